//! R4: how a learner copies a slot, and how the primary serves it.
//!
//! The learner asks for the feed after the last epoch in which it was in sync for the slot. If the
//! primary no longer has that feed, the learner raises its floor and copies the slot in full. Live
//! writes arrive beside the pages (R1), and the store keeps the newer version.

use std::time::Duration;

use crate::core::Core;
use crate::slot::Transition;
use crate::{Attempt, Body, Command, Epoch, MemberId, Now, Page, PageRequest, Role, Rule, Slot};

/// A slot that is being copied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Copying {
    request: PageRequest,
    asked: Duration,
}

impl<E: Clone> Core<E> {
    /// Goes on with copies after a new topology, and begins those that are due.
    pub(crate) fn continue_copies(
        &mut self,
        now: Now,
        transitions: &[Transition],
        out: &mut Vec<Command<E>>,
    ) {
        let mut copying = std::mem::take(&mut self.copying);
        copying.retain_mut(|copy| {
            let index = copy.request.slot.index();
            let (Some(&state), Some(transition)) = (self.slots.get(index), transitions.get(index))
            else {
                return false;
            };
            if transition.primary_changed {
                copy.request.cursor = 0;
                copy.request.attempt = self.next_attempt();
            }
            state.role == Role::Learner && !state.in_sync && transition.continues
        });
        self.copying = copying;
        for copy in &mut self.copying {
            copy.asked = now.elapsed;
        }
        for copy in &self.copying {
            self.request_page(&copy.request, out);
        }
        self.begin_copies(now, out);
    }

    /// Begins copies of slots that this member learns, up to the limit.
    fn begin_copies(&mut self, now: Now, out: &mut Vec<Command<E>>) {
        for slot in (0..self.config.slots_len).map(Slot) {
            if self.copying.len() >= self.config.copies_max {
                return;
            }
            let Some(state) = self.slots.get(slot.index()) else {
                return;
            };
            let due = state.role == Role::Learner && !state.in_sync;
            if !due || self.copying.iter().any(|copy| copy.request.slot == slot) {
                continue;
            }
            if !self.config.rules.hold(Rule::Copy) {
                self.finish_copy(slot, out);
                continue;
            }
            let after = self.feed_start(slot);
            if after.is_none() {
                self.forget_copies(slot, out);
            }
            self.begin_copy(now, slot, after, out);
        }
    }

    /// The epoch after which this member misses changes, if it has been in sync for the slot.
    fn feed_start(&self, slot: Slot) -> Option<Epoch> {
        let synced = self.slots.get(slot.index())?.synced?;
        if self.config.rules.hold(Rule::SlotEpoch) {
            return Some(synced);
        }
        let slots = self.slots.iter().filter_map(|state| state.synced);
        slots.max()
    }

    /// Raises the floor, because what the store has may be older than what is copied.
    fn forget_copies(&mut self, slot: Slot, out: &mut Vec<Command<E>>) {
        let epoch = self.applied.next();
        if let Some(state) = self.slots.get_mut(slot.index()) {
            state.reset_floor(epoch);
        }
        if self.config.rules.hold(Rule::CopyFloor) {
            out.push(Command::RaiseFloor(slot));
        }
        out.push(Command::Save(Some(slot)));
    }

    fn begin_copy(
        &mut self,
        now: Now,
        slot: Slot,
        after: Option<Epoch>,
        out: &mut Vec<Command<E>>,
    ) {
        let request = PageRequest {
            slot,
            attempt: self.next_attempt(),
            after,
            cursor: 0,
        };
        self.request_page(&request, out);
        self.copying.push(Copying {
            request,
            asked: now.elapsed,
        });
    }

    fn next_attempt(&mut self) -> Attempt {
        self.attempts += 1;
        Attempt {
            incarnation: self.incarnation,
            count: self.attempts,
        }
    }

    fn request_page(&self, request: &PageRequest, out: &mut Vec<Command<E>>) {
        if let Some(primary) = self.primary(request.slot) {
            self.send(primary, Body::PageRequest(*request), out);
        }
    }

    /// Asks again for pages that did not arrive.
    pub(crate) fn repeat_copies(&mut self, now: Now, out: &mut Vec<Command<E>>) {
        let tick = self.config.tick;
        let mut copying = std::mem::take(&mut self.copying);
        for copy in &mut copying {
            if now.elapsed.saturating_sub(copy.asked) >= tick {
                copy.asked = now.elapsed;
                self.request_page(&copy.request, out);
            }
        }
        self.copying = copying;
    }

    /// Whether this member can serve a feed: it has everything, and its log has every change since.
    fn can_serve(&self, request: &PageRequest) -> Option<bool> {
        let state = self.slots.get(request.slot.index())?;
        if state.role != Role::Primary || !state.in_sync {
            return None;
        }
        let Some(after) = request.after else {
            return Some(true);
        };
        let complete = state.floor <= after.next() && self.evicted <= after;
        Some(complete || !self.config.rules.hold(Rule::CompleteFeed))
    }

    /// The primary answers a request for a page.
    pub(crate) fn answer_page_request(
        &self,
        to: MemberId,
        request: PageRequest,
        out: &mut Vec<Command<E>>,
    ) {
        match self.can_serve(&request) {
            Some(true) => out.push(Command::ReadPage { to, request }),
            Some(false) => self.send(to, Body::Incomplete(request), out),
            None => {}
        }
    }

    /// The primary sends a page. The log may have lost changes while the page was read, so the
    /// check is made again.
    pub(crate) fn send_page(&self, to: MemberId, page: Page<E>, out: &mut Vec<Command<E>>) {
        match self.can_serve(&page.request) {
            Some(true) => self.send(to, Body::Page(page), out),
            Some(false) => self.send(to, Body::Incomplete(page.request), out),
            None => {}
        }
    }

    /// The learner stores a page, and asks for the next one.
    pub(crate) fn take_page(&mut self, now: Now, page: Page<E>, out: &mut Vec<Command<E>>) {
        let slot = page.request.slot;
        let found = self.copying.iter().position(|c| c.request == page.request);
        let Some(index) = found else { return };
        for record in page.records {
            self.clock.observe(record.version.clock);
            out.push(Command::Persist { slot, record });
        }
        let Some(cursor) = page.next else {
            self.copying.swap_remove(index);
            self.finish_copy(slot, out);
            self.begin_copies(now, out);
            return self.propose_own_status(out);
        };
        if let Some(copy) = self.copying.get_mut(index) {
            copy.request.cursor = cursor;
            copy.asked = now.elapsed;
            let request = copy.request;
            self.request_page(&request, out);
        }
    }

    fn finish_copy(&mut self, slot: Slot, out: &mut Vec<Command<E>>) {
        let epoch = self.applied;
        if let Some(state) = self.slots.get_mut(slot.index()) {
            state.finish_copy(epoch);
        }
        out.push(Command::Save(Some(slot)));
    }

    /// The learner copies in full what the primary cannot feed.
    pub(crate) fn copy_in_full(
        &mut self,
        now: Now,
        request: PageRequest,
        out: &mut Vec<Command<E>>,
    ) {
        let found = self.copying.iter().position(|c| c.request == request);
        let Some(index) = found else { return };
        self.copying.swap_remove(index);
        self.forget_copies(request.slot, out);
        self.begin_copy(now, request.slot, None, out);
    }
}
