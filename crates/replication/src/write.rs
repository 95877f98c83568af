//! R1: writes. The primary sends a write to all owners and learners, and answers when all have it.
//!
//! Invariant: an acknowledged write was taken by all owners and learners of one epoch, under that
//! epoch. So the feed after a later epoch never has to contain it.

use std::time::Duration;

use crate::core::Core;
use crate::{
    Body, Change, Command, Epoch, Hlc, MemberId, MemberSet, Now, Record, Reply, RequestId, Role,
    Rule, Slot, SlotState, Version,
};

/// A write that waits for acknowledgements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pending<E> {
    request: RequestId,
    slot: Slot,
    version: Version,
    entry: E,
    /// The owners and learners that have not acknowledged the write.
    missing: MemberSet,
    started: Duration,
    /// Answered writes stay until all earlier ones are answered too.
    answered: bool,
}

/// A flush whose slots are not all acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlushProgress {
    request: RequestId,
    epoch: Epoch,
    slots: usize,
    open: usize,
}

impl<E: Clone> Core<E> {
    /// Begins a write of a client.
    pub(crate) fn write(
        &mut self,
        now: Now,
        request: RequestId,
        slot: Slot,
        entry: E,
        out: &mut Vec<Command<E>>,
    ) {
        let Some(state) = self.slots.get(slot.index()) else {
            return Self::answer(request, Reply::Busy, out);
        };
        if state.role != Role::Primary {
            return Self::answer(request, Reply::Elsewhere(self.primary(slot)), out);
        }
        if !state.in_sync || !self.may_answer(now) || self.pending.len() >= self.config.pending_max
        {
            return Self::answer(request, Reply::Busy, out);
        }
        self.replicate(now, request, slot, entry, out);
    }

    /// Begins a flush: a write to each slot of which this member is the primary.
    pub(crate) fn flush(
        &mut self,
        now: Now,
        request: RequestId,
        entry: &E,
        out: &mut Vec<Command<E>>,
    ) {
        let leads = |state: &SlotState| state.role == Role::Primary;
        let slots = self.slots.iter().filter(|state| leads(state)).count();
        let in_sync = self.slots.iter().all(|s| !leads(s) || s.in_sync);
        let fits = self.pending.len() + slots <= self.config.pending_max;
        if !in_sync || !fits || !self.may_answer(now) {
            return Self::answer(request, Reply::Busy, out);
        }
        // One more than there are slots, so that it does not end while slots are begun.
        self.flushes.push(FlushProgress {
            request,
            epoch: self.applied,
            slots,
            open: slots + 1,
        });
        for slot in (0..self.config.slots_len).map(Slot) {
            if self.slots.get(slot.index()).is_some_and(leads) {
                self.replicate(now, request, slot, entry.clone(), out);
            }
        }
        self.finish(request, Reply::Written, out);
    }

    fn replicate(
        &mut self,
        now: Now,
        request: RequestId,
        slot: Slot,
        entry: E,
        out: &mut Vec<Command<E>>,
    ) {
        let term = self.slots.get(slot.index()).map_or(Epoch(0), |s| s.term);
        let version = Version {
            region: self.config.region,
            term: if self.config.rules.hold(Rule::Term) {
                term
            } else {
                Epoch(0)
            },
            clock: self.clock.tick(now.wall_ms),
        };
        self.pending.push_back(Pending {
            request,
            slot,
            version,
            entry,
            missing: MemberSet::default(),
            started: now.elapsed,
            answered: false,
        });
        self.distribute(self.pending.len() - 1, out);
        self.answer_if_complete(now, self.pending.len() - 1, out);
        self.drop_answered();
    }

    /// Stores a pending write and sends it to all other owners and learners, under the applied
    /// epoch.
    fn distribute(&mut self, index: usize, out: &mut Vec<Command<E>>) {
        let Some(topology) = &self.topology else {
            return;
        };
        let Some(write) = self.pending.get_mut(index) else {
            return;
        };
        let placement = topology.placement(write.slot);
        write.missing = placement.owners.with(placement.learners);
        write.missing.remove(self.config.me);
        let (slot, version, missing) = (write.slot, write.version, write.missing);
        let record = Record {
            version,
            epoch: self.applied,
            entry: write.entry.clone(),
        };
        for member in missing.iter() {
            let entry = record.entry.clone();
            self.send(
                member,
                Body::Write {
                    slot,
                    version,
                    entry,
                },
                out,
            );
        }
        out.push(Command::Persist { slot, record });
    }

    /// Takes a write of the primary and acknowledges it.
    pub(crate) fn take_write(
        &mut self,
        from: MemberId,
        epoch: Epoch,
        slot: Slot,
        version: Version,
        entry: E,
        out: &mut Vec<Command<E>>,
    ) {
        let role = self.slots.get(slot.index()).map(|state| state.role);
        let takes = matches!(role, Some(Role::Owner | Role::Learner));
        if !takes && self.config.rules.hold(Rule::SameEpoch) {
            return;
        }
        self.clock.observe(version.clock);
        let record = Record {
            version,
            epoch,
            entry,
        };
        out.push(Command::Persist { slot, record });
        let clock = version.clock;
        self.send(from, Body::Ack { clock }, out);
    }

    /// Notes that a member has a write.
    pub(crate) fn take_ack(
        &mut self,
        now: Now,
        from: MemberId,
        clock: Hlc,
        out: &mut Vec<Command<E>>,
    ) {
        let found = self
            .pending
            .binary_search_by_key(&clock, |write| write.version.clock);
        let Ok(index) = found else { return };
        if let Some(write) = self.pending.get_mut(index) {
            write.missing.remove(from);
        }
        self.answer_if_complete(now, index, out);
        self.drop_answered();
    }

    /// R1, R4, R6: answers a write when all owners and learners have it, no former owner can answer
    /// reads of the slot any more, and this member holds a lease.
    fn answer_if_complete(&mut self, now: Now, index: usize, out: &mut Vec<Command<E>>) {
        let may_answer = self.may_answer(now);
        let rules = self.config.rules;
        let Some(write) = self.pending.get_mut(index) else {
            return;
        };
        let state = self.slots.get(write.slot.index());
        let handed_over = state.is_some_and(|s| s.handed_over <= self.applied_by_all);
        let taken = write.missing.is_empty() || !rules.hold(Rule::AllOwners);
        let alone = handed_over || !rules.hold(Rule::FormerOwners);
        if taken && alone && may_answer && !write.answered {
            write.answered = true;
            let request = write.request;
            self.finish(request, Reply::Written, out);
        }
    }

    /// Answers what has become complete.
    pub(crate) fn answer_pending(&mut self, now: Now, out: &mut Vec<Command<E>>) {
        for index in 0..self.pending.len() {
            self.answer_if_complete(now, index, out);
        }
        self.drop_answered();
    }

    /// R1: begins pending writes anew under the applied epoch, also at owners that have them
    /// already. An owner that has a write only under an earlier epoch could not tell later that it
    /// missed the acknowledgement.
    pub(crate) fn resend_pending(&mut self, now: Now, out: &mut Vec<Command<E>>) {
        for index in 0..self.pending.len() {
            let Some(write) = self.pending.get_mut(index).filter(|w| !w.answered) else {
                continue;
            };
            let state = self.slots.get(write.slot.index());
            let leads = state.is_some_and(|s| s.role == Role::Primary && s.in_sync);
            // A later tenure has later versions. The client repeats the write.
            let tenure = state.is_some_and(|s| s.term == write.version.term)
                || !self.config.rules.hold(Rule::Term);
            if !leads || !tenure {
                write.answered = true;
                let request = write.request;
                self.finish(request, Reply::Refused, out);
            } else if self.config.rules.hold(Rule::Resend) {
                self.distribute(index, out);
            } else if let Some(topology) = &self.topology {
                let placement = topology.placement(write.slot);
                let targets = placement.owners.with(placement.learners);
                write.missing = write.missing.without(write.missing.without(targets));
            }
        }
        self.answer_pending(now, out);
    }

    /// Sends a member what it has not acknowledged, after it has applied another epoch.
    pub(crate) fn resend_pending_to(&self, member: MemberId, out: &mut Vec<Command<E>>) {
        for write in &self.pending {
            if !write.answered && write.missing.contains(member) {
                let (slot, version, entry) = (write.slot, write.version, write.entry.clone());
                self.send(
                    member,
                    Body::Write {
                        slot,
                        version,
                        entry,
                    },
                    out,
                );
            }
        }
    }

    /// Repeats writes, proposes members as down that do not take them, and refuses overdue writes.
    pub(crate) fn repeat_pending(&mut self, now: Now, out: &mut Vec<Command<E>>) {
        let mut missing = MemberSet::default();
        let mut suspects = MemberSet::default();
        for index in 0..self.pending.len() {
            let Some(write) = self.pending.get_mut(index).filter(|w| !w.answered) else {
                continue;
            };
            missing = missing.with(write.missing);
            let age = now.elapsed.saturating_sub(write.started);
            let late = age >= self.config.refuse_after;
            let (request, slot, waits_for) = (write.request, write.slot, write.missing);
            if late {
                write.answered = true;
                self.finish(request, Reply::Refused, out);
            }
            if age >= self.config.suspect_after {
                suspects = suspects.with(waits_for).with(self.former_owners(slot));
            }
        }
        for member in missing.iter() {
            self.resend_pending_to(member, out);
        }
        for member in suspects.iter() {
            out.push(Command::Propose(Change::Down(member)));
        }
        self.answer_pending(now, out);
    }

    /// Members that may answer reads of a slot by a topology in which they owned it.
    fn former_owners(&self, slot: Slot) -> MemberSet {
        let (Some(topology), Some(state)) = (&self.topology, self.slots.get(slot.index())) else {
            return MemberSet::default();
        };
        let me = self.config.me;
        let behind = |&m: &MemberId| m != me && self.told_epoch(m) < state.handed_over;
        topology.up().filter(behind).collect()
    }

    /// Answers a request, or counts a slot of a flush.
    fn finish(&mut self, request: RequestId, reply: Reply, out: &mut Vec<Command<E>>) {
        let found = self.flushes.iter().position(|f| f.request == request);
        let Some(flush) = found.and_then(|index| self.flushes.get_mut(index)) else {
            return Self::answer(request, reply, out);
        };
        flush.open -= 1;
        let (epoch, slots, open) = (flush.epoch, flush.slots, flush.open);
        if reply == Reply::Written && open > 0 {
            return;
        }
        self.flushes.retain(|flush| flush.request != request);
        if reply == Reply::Written {
            return Self::answer(request, Reply::Flushed { epoch, slots }, out);
        }
        // What is left of the flush is no longer awaited.
        for write in self.pending.iter_mut().filter(|w| w.request == request) {
            write.answered = true;
        }
        Self::answer(request, Reply::Refused, out);
    }

    fn drop_answered(&mut self) {
        while self.pending.front().is_some_and(|write| write.answered) {
            self.pending.pop_front();
        }
    }
}
