//! R4: how a learner copies slots, and how the primary serves it.
//!
//! The learner groups the slots by their primary, and by the last epoch in which it was in sync for
//! them. It asks the primary for the feed after that epoch. What the primary can no longer feed is
//! cleared and copied in full. Live writes arrive beside the pages (R1), and the store keeps the
//! newer version.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::Core;
use crate::slot::Transition;
use crate::{
    Attempt, Body, Command, Cursor, Epoch, MemberId, Page, PageRequest, Record, Rule, Slot,
    SlotSet, SlotState,
};

/// A group of slots that is being copied. All have the same primary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Copying {
    request: PageRequest,
    primary: MemberId,
    /// The store still removes what it had of the slots. No page is asked for before it is gone.
    clearing: bool,
    asked: Duration,
}

impl<E: Clone> Core<E> {
    /// Goes on with copies after a new topology, and begins those that are due. A slot whose
    /// primary changed leaves its group and begins anew.
    pub(crate) fn continue_copies(
        &mut self,
        now: Duration,
        transitions: &[Transition],
        out: &mut Vec<Command<E>>,
    ) {
        let goes_on = |slot: &Slot| {
            let transition = transitions.get(slot.index());
            let state = self.slots.get(slot.index());
            state.is_some_and(|state| state.must_copy())
                && transition.is_some_and(|t| t.continues && !t.primary_changed)
        };
        let mut copying = self.copying.clone();
        for copy in &mut copying {
            copy.request.slots.retain(goes_on);
            copy.asked = now;
        }
        copying.retain(|copy| !copy.request.slots.is_empty());
        for copy in &copying {
            self.request_page(copy, out);
        }
        self.copying = copying;
        self.begin_copies(now, out);
    }

    /// Begins copies of slots that this member learns, up to the limit of groups.
    fn begin_copies(&mut self, now: Duration, out: &mut Vec<Command<E>>) {
        let must_copy = self.numbered().filter(|(_, state)| state.must_copy());
        let mut due: SlotSet = must_copy.map(|(slot, _)| slot).collect();
        for copy in &self.copying {
            due = &due - &copy.request.slots;
        }
        if !self.config.rules.hold(Rule::Copy) {
            return self.finish_copies(due, out);
        }
        let mut groups: BTreeMap<(MemberId, Option<Epoch>), SlotSet> = BTreeMap::new();
        for slot in due {
            if let Some(primary) = self.topology.as_ref().and_then(|it| it.primary(slot)) {
                let group = groups.entry((primary, self.feed_start(slot)));
                group.or_default().insert(slot);
            }
        }
        let room = self.config.copies_max.saturating_sub(self.copying.len());
        for ((primary, after), slots) in groups.into_iter().take(room) {
            self.attempts += 1;
            let attempt = Attempt {
                incarnation: self.incarnation,
                count: self.attempts,
            };
            let clearing = after.is_none() && self.clear(attempt, &slots, out);
            let copy = Copying {
                request: PageRequest {
                    attempt,
                    slots,
                    after,
                    cursor: Cursor::default(),
                },
                primary,
                clearing,
                asked: now,
            };
            self.request_page(&copy, out);
            self.copying.push(copy);
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

    /// Clears slots, because what the store has may be older than what is copied. The saved states
    /// have no start of a feed before anything is removed. Returns whether the learner has to wait.
    fn clear(&mut self, attempt: Attempt, slots: &SlotSet, out: &mut Vec<Command<E>>) -> bool {
        let epoch = self.applied.next();
        self.change_slots(slots, |state| state.reset_floor(epoch));
        out.push(Command::Save(Some(slots.clone())));
        if !self.config.rules.hold(Rule::CopyFloor) {
            return false;
        }
        let slots = slots.clone();
        out.push(Command::Clear { attempt, slots });
        self.config.rules.hold(Rule::Clear)
    }

    /// The old content of a group is gone, so its first page is asked for.
    pub(crate) fn take_cleared(
        &mut self,
        now: Duration,
        attempt: Attempt,
        out: &mut Vec<Command<E>>,
    ) {
        let mut groups = self.copying.iter();
        let found = groups.position(|copy| copy.request.attempt == attempt && copy.clearing);
        if let Some(copy) = found.and_then(|index| self.copying.get_mut(index)) {
            copy.clearing = false;
            copy.asked = now;
            let copy = copy.clone();
            self.request_page(&copy, out);
        }
    }

    fn request_page(&self, copy: &Copying, out: &mut Vec<Command<E>>) {
        if !copy.clearing {
            let request = copy.request.clone();
            self.send(copy.primary, Body::PageRequest(request), out);
        }
    }

    /// Asks again for pages that did not arrive.
    pub(crate) fn repeat_copies(&mut self, now: Duration, out: &mut Vec<Command<E>>) {
        let mut copying = std::mem::take(&mut self.copying);
        for copy in &mut copying {
            if now.saturating_sub(copy.asked) >= self.config.tick {
                copy.asked = now;
                self.request_page(copy, out);
            }
        }
        self.copying = copying;
    }

    /// Which of some slots this member cannot feed after an epoch, because its log misses changes
    /// since. `None` if it is not the primary of all of them, or not in sync.
    ///
    /// The shell asks when a learner wants a page under the epoch that both have applied. It asks
    /// again when it has read the page, because the log may lose changes meanwhile. It sends the
    /// page if all slots are complete, and [`Body::Incomplete`] if some are not. It sends no page
    /// for `None`.
    #[must_use]
    pub fn incomplete(&self, slots: &SlotSet, after: Option<Epoch>) -> Option<SlotSet> {
        let mut incomplete = SlotSet::new();
        for &slot in slots {
            let state = self.slots.get(slot.index()).filter(|state| state.leads())?;
            let feeds = |after: Epoch| state.floor <= after.next() && self.evicted <= after;
            if !after.is_none_or(feeds) && self.config.rules.hold(Rule::CompleteFeed) {
                incomplete.insert(slot);
            }
        }
        Some(incomplete)
    }

    /// Whether the member waits for the page of a request under an epoch. A shell may store the
    /// records of such a page before it passes the page on without them.
    #[must_use]
    pub fn wants_page(&self, epoch: Epoch, request: &PageRequest) -> bool {
        epoch == self.applied && self.copying.iter().any(|copy| copy.request == *request)
    }

    /// The learner stores a page, and asks for the next one.
    pub(crate) fn take_page(&mut self, now: Duration, page: Page<E>, out: &mut Vec<Command<E>>) {
        let found = self.copying.iter().position(|c| c.request == page.request);
        let Some(index) = found else { return };
        let asked = |record: &Record<E>| page.request.slots.contains(&record.slot);
        out.extend(page.records.into_iter().filter(asked).map(Command::Persist));
        let Some(cursor) = page.next else {
            self.copying.swap_remove(index);
            self.finish_copies(page.request.slots, out);
            self.begin_copies(now, out);
            return self.propose_own_status(out);
        };
        if let Some(copy) = self.copying.get_mut(index) {
            copy.request.cursor = cursor;
            copy.asked = now;
            let copy = copy.clone();
            self.request_page(&copy, out);
        }
    }

    fn finish_copies(&mut self, slots: SlotSet, out: &mut Vec<Command<E>>) {
        let epoch = self.applied;
        self.change_slots(&slots, |state| state.finish_copy(epoch));
        if !slots.is_empty() {
            self.revision.0 += 1;
            out.push(Command::Save(Some(slots)));
        }
    }

    /// The learner copies in full what the primary cannot feed, and goes on with the rest.
    pub(crate) fn copy_in_full(
        &mut self,
        now: Duration,
        request: &PageRequest,
        slots: &SlotSet,
        out: &mut Vec<Command<E>>,
    ) {
        let found = self.copying.iter().position(|c| c.request == *request);
        let Some(index) = found else { return };
        let mut copy = self.copying.swap_remove(index);
        let rest = &request.slots - slots;
        self.change_slots(&(&request.slots & slots), SlotState::forget_sync);
        if !rest.is_empty() {
            copy.request.slots = rest;
            copy.asked = now;
            self.request_page(&copy, out);
            self.copying.push(copy);
        }
        self.begin_copies(now, out);
    }
}
