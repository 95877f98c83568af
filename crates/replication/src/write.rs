//! R1: writes. The store of the primary executes a write and assigns its version. The primary sends
//! the result to all owners and learners, and answers when all have it.
//!
//! Invariant: an acknowledged write was taken by all owners and learners of one epoch, under that
//! epoch. So the feed after a later epoch never has to contain it.

use std::time::Duration;

use crate::core::Core;
use crate::{
    Body, Command, Epoch, MemberId, MemberSet, Record, Reply, RequestId, Rule, Slot, Version,
};

/// What names a pending write. Two requests that changed one key may both wait for the later
/// version.
pub(crate) type WriteId = (Version, Slot, RequestId);

/// A write that waits for acknowledgements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pending<E> {
    record: Record<E>,
    /// The owners and learners that have not acknowledged the write.
    missing: MemberSet,
    started: Duration,
}

impl<E: Clone> Core<E> {
    /// Replicates a write that the store has executed.
    pub(crate) fn write(
        &mut self,
        now: Duration,
        request: RequestId,
        record: Record<E>,
        out: &mut Vec<Command<E>>,
    ) {
        if !self.may_replicate(record.slot, record.epoch) {
            return out.push(Command::Answer(request, Reply::Refused));
        }
        let mut write = Pending {
            record,
            missing: MemberSet::default(),
            started: now,
        };
        if write.record.epoch != self.applied {
            self.store_again(&mut write, out);
        }
        self.distribute(&mut write, out);
        if self.is_complete(&write) && self.may_answer(now) {
            out.push(Command::Answer(request, Reply::Written));
        } else {
            let id = (write.record.version, write.record.slot, request);
            self.pending.insert(id, write);
        }
    }

    fn may_replicate(&self, slot: Slot, taken: Epoch) -> bool {
        let state = self.slots.get(slot.index());
        state.is_some_and(|state| state.may_replicate(taken, self.config.rules))
    }

    /// Stores a pending write under the applied epoch. The feed after an earlier epoch has it then.
    fn store_again(&self, write: &mut Pending<E>, out: &mut Vec<Command<E>>) {
        write.record.epoch = self.applied;
        if self.config.rules.hold(Rule::StoreAgain) {
            out.push(Command::Persist(write.record.clone()));
        }
    }

    /// Sends a pending write to all other owners and learners.
    fn distribute(&self, write: &mut Pending<E>, out: &mut Vec<Command<E>>) {
        write.missing = self.targets(write.record.slot);
        for member in write.missing.iter() {
            self.send(member, Body::Write(write.record.clone()), out);
        }
    }

    /// Takes a write of the primary and acknowledges it.
    pub(crate) fn take_write(
        &mut self,
        from: MemberId,
        record: Record<E>,
        out: &mut Vec<Command<E>>,
    ) {
        let (slot, version) = (record.slot, record.version);
        let state = self.slots.get(slot.index()).copied().unwrap_or_default();
        let takes = state.takes_writes() || !self.config.rules.hold(Rule::SameEpoch);
        if takes {
            out.push(Command::Persist(record));
            self.send(from, Body::Ack { slot, version }, out);
        }
    }

    /// Notes that a member has a write.
    pub(crate) fn take_ack(
        &mut self,
        now: Duration,
        from: MemberId,
        (version, slot): (Version, Slot),
        out: &mut Vec<Command<E>>,
    ) {
        let of_write = (version, slot, RequestId::MIN)..=(version, slot, RequestId::MAX);
        for (_, write) in self.pending.range_mut(of_write.clone()) {
            write.missing.remove(from);
        }
        if !self.may_answer(now) {
            return;
        }
        let complete = self.pending.range(of_write);
        let complete = complete.filter(|(_, write)| self.is_complete(write));
        let complete: Vec<WriteId> = complete.map(|(&id, _)| id).collect();
        self.end_writes(complete, Reply::Written, out);
    }

    /// R1, R4: whether all owners and learners have a write, and no former owner can answer reads
    /// of the slot any more.
    fn is_complete(&self, write: &Pending<E>) -> bool {
        let taken = write.missing.is_empty() || !self.config.rules.hold(Rule::AllOwners);
        taken && self.handed_over(write.record.slot)
    }

    /// Answers what has become complete, if the member holds a lease (R6).
    pub(crate) fn answer_pending(&mut self, now: Duration, out: &mut Vec<Command<E>>) {
        if !self.may_answer(now) {
            return;
        }
        let complete = self.pending.iter().filter(|(_, w)| self.is_complete(w));
        let complete: Vec<WriteId> = complete.map(|(&id, _)| id).collect();
        self.end_writes(complete, Reply::Written, out);
    }

    fn end_writes(&mut self, ids: Vec<WriteId>, reply: Reply, out: &mut Vec<Command<E>>) {
        for id in ids {
            self.pending.remove(&id);
            out.push(Command::Answer(id.2, reply));
        }
    }

    /// R1: begins pending writes anew under the applied epoch, also at owners that have them
    /// already. An owner that has a write only under an earlier epoch could not tell later that it
    /// missed the acknowledgement.
    pub(crate) fn resend_pending(&mut self, now: Duration, out: &mut Vec<Command<E>>) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|id, write| {
            let goes_on = self.may_replicate(write.record.slot, write.record.epoch);
            if !goes_on {
                out.push(Command::Answer(id.2, Reply::Refused));
            }
            goes_on
        });
        // The shell stores all writes before it sends any: one wait for the disk is enough then.
        if self.config.rules.hold(Rule::Resend) {
            for write in pending.values_mut() {
                self.store_again(write, out);
            }
        }
        for write in pending.values_mut() {
            if self.config.rules.hold(Rule::Resend) {
                self.distribute(write, out);
            } else {
                let left = write.missing.without(self.targets(write.record.slot));
                write.missing = write.missing.without(left);
            }
        }
        self.pending = pending;
        self.answer_pending(now, out);
    }

    /// Sends a member what it has not acknowledged, after it has applied another epoch.
    pub(crate) fn resend_pending_to(&self, member: MemberId, out: &mut Vec<Command<E>>) {
        for write in self.pending.values().filter(|w| w.missing.contains(member)) {
            self.send(member, Body::Write(write.record.clone()), out);
        }
    }

    /// Repeats writes, and refuses overdue ones.
    pub(crate) fn repeat_pending(&mut self, now: Duration, out: &mut Vec<Command<E>>) {
        let mut overdue = Vec::new();
        for (&id, write) in &self.pending {
            let age = now.saturating_sub(write.started);
            if age >= self.config.tick {
                for member in write.missing.iter() {
                    self.send(member, Body::Write(write.record.clone()), out);
                }
            }
            if age >= self.config.refuse_after {
                overdue.push(id);
            }
        }
        self.end_writes(overdue, Reply::Refused, out);
    }
}
