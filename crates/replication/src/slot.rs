//! The state of one slot at one member, and how a new topology changes it (R3, R4, R5).
//!
//! Invariant: a slot is `in_sync` only while the local store has every acknowledged write of it, or
//! while its floor hides what the store does not have.

use crate::topology::Placement;
use crate::{Epoch, MemberId, MemberSet, Rule, Rules, Slot, Status, Topology};

/// What a member does with a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Nothing. Copies of an earlier time may be on the disk.
    #[default]
    None,
    /// The member copies the slot and takes its writes.
    Learner,
    /// The member takes the writes, and answers hedged reads.
    Owner,
    /// The member orders the writes and answers reads.
    Primary,
}

impl Role {
    /// Whether the member may answer for the slot.
    #[must_use]
    pub fn owns(self) -> bool {
        matches!(self, Self::Owner | Self::Primary)
    }
}

/// The state of one slot at one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlotState {
    /// What the member does with the slot.
    pub role: Role,
    /// Whether the member has every acknowledged write.
    pub in_sync: bool,
    /// The last epoch in which the member was in sync. The feed is asked for from here.
    pub synced: Option<Epoch>,
    /// The log has every change that was taken in this epoch or later, as far as nothing was
    /// evicted. It is the epoch of the floor.
    pub floor: Epoch,
    /// While the member leads the slot: the epoch since which no other member can have led it.
    pub led_since: Epoch,
    /// Former owners may answer reads until they have applied this epoch or are down.
    pub handed_over: Epoch,
}

/// What a member saves of the state of a slot. All else follows from the topology that it applies
/// first after a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SavedSlot {
    /// [`SlotState::in_sync`].
    pub in_sync: bool,
    /// [`SlotState::synced`].
    pub synced: Option<Epoch>,
    /// [`SlotState::floor`].
    pub floor: Epoch,
}

/// A step from one topology to another.
pub(crate) struct Step<'a> {
    pub(crate) me: MemberId,
    pub(crate) rules: Rules,
    /// The epoch that was applied before. Zero at the first one.
    pub(crate) from: Epoch,
    /// The topology before, if this process has applied it.
    pub(crate) before: Option<&'a Topology>,
    pub(crate) to: &'a Topology,
    /// Whether the member has everything that it acknowledged, or the members know that it has not.
    pub(crate) fit: bool,
}

/// What a step means for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transition {
    /// The member stands in with nothing: what it has may be stale.
    pub(crate) raise_floor: bool,
    /// What the member was copying or pending under the old topology goes on.
    pub(crate) continues: bool,
    /// Another member may be the primary.
    pub(crate) primary_changed: bool,
}

impl Step<'_> {
    /// Whether no epoch lies between the two topologies.
    fn in_order(&self) -> bool {
        self.to.epoch <= self.from.next()
    }

    /// R5: whether the member was an owner or learner all the time, if it is one at both ends.
    /// `stands_in` is since when it stands in, if it does.
    ///
    /// A member that was declared down has applied that epoch before it came back, so it is not an
    /// owner or learner at both ends. A member that skipped epochs does not know their layouts.
    fn continuous(&self, stands_in: Option<Epoch>) -> bool {
        self.in_order() || stands_in.unwrap_or(self.to.proposed) <= self.from
    }

    /// R4: whether an owner left that may still answer reads by the topology before.
    fn owner_left(&self, slot: Slot, now: &Placement) -> bool {
        let Some(before) = self.before.filter(|_| self.in_order()) else {
            return true;
        };
        let left = before.owners(slot).without(now.owners.with(now.learners));
        let down: MemberSet = left
            .iter()
            .filter(|&m| self.to.status(m) == Status::Down)
            .collect();
        !left.without(down).is_empty()
    }
}

impl SlotState {
    /// What is saved of it.
    #[must_use]
    pub fn saved(&self) -> SavedSlot {
        SavedSlot {
            in_sync: self.in_sync,
            synced: self.synced,
            floor: self.floor,
        }
    }

    /// The state before the first topology after a start.
    pub(crate) fn restored(saved: SavedSlot) -> Self {
        Self {
            in_sync: saved.in_sync,
            synced: saved.synced,
            floor: saved.floor,
            ..Self::default()
        }
    }

    /// Whether the member orders the writes of the slot.
    pub(crate) fn leads(&self) -> bool {
        self.role == Role::Primary && self.in_sync
    }

    /// R1: whether the member may replicate a write that it took in an epoch. If another member has
    /// led the slot since, the write may be based on what that member has replaced.
    pub(crate) fn may_replicate(&self, taken: Epoch, rules: Rules) -> bool {
        self.leads() && (self.led_since <= taken || !rules.hold(Rule::Interrupted))
    }

    /// R1: whether the member takes writes of the primary.
    pub(crate) fn takes_writes(&self) -> bool {
        matches!(self.role, Role::Owner | Role::Learner)
    }

    /// R4: whether the member has to copy the slot.
    pub(crate) fn must_copy(&self) -> bool {
        self.role == Role::Learner && !self.in_sync
    }

    /// Follows a step.
    pub(crate) fn step(&mut self, slot: Slot, step: &Step<'_>) -> Transition {
        let to = step.to;
        let placement = to.placement(slot);
        let was = *self;
        self.role = match placement.primary {
            Some(primary) if primary == step.me => Role::Primary,
            _ if placement.owners.contains(step.me) => Role::Owner,
            _ if placement.learners.contains(step.me) => Role::Learner,
            _ => Role::None,
        };
        let stands_in = placement.stand_in.filter(|_| self.role.owns());
        // A member has a role in each slot that it is in sync for, also if it has just started.
        let had_role = was.in_sync || was.role != Role::None;
        let has_role = had_role && self.role != Role::None || !step.rules.hold(Rule::Return);
        let continues = has_role && step.continuous(stands_in);
        self.in_sync = was.in_sync && continues;
        if self.in_sync {
            self.synced = Some(to.epoch);
        }
        // R3: no owner was left, so what the store has may be stale, and a miss is right.
        let raise_floor = stands_in.is_some() && !self.in_sync && step.fit;
        if raise_floor {
            self.reset_floor(to.epoch);
            self.in_sync = true;
            self.synced = Some(to.epoch);
        }
        // R4: the log has what the member copied, and not what it had before. A member that was
        // away until now copies the slot in full.
        if was.role == Role::Learner && self.role.owns() && self.in_sync && !raise_floor {
            self.floor = self.floor.max(to.epoch.next());
        }
        if !(was.leads() && continues) {
            self.led_since = to.epoch;
        }
        if step.owner_left(slot, &placement) {
            self.handed_over = to.epoch;
        }
        let before = step.before.filter(|_| step.in_order());
        let primary_before = before.and_then(|before| before.primary(slot));
        Transition {
            raise_floor: raise_floor && step.rules.hold(Rule::Floor),
            continues,
            primary_changed: before.is_none() || primary_before != placement.primary,
        }
    }

    /// Notes that everything before an epoch is gone.
    pub(crate) fn reset_floor(&mut self, epoch: Epoch) {
        self.floor = epoch;
        self.synced = None;
        self.in_sync = false;
    }

    /// R4: notes that the slot has been copied.
    pub(crate) fn finish_copy(&mut self, epoch: Epoch) {
        self.in_sync = true;
        self.synced = Some(epoch);
    }

    /// R5: forgets what cannot be relied on after acknowledged writes may have been lost.
    pub(crate) fn forget_sync(&mut self) {
        self.in_sync = false;
        self.synced = None;
    }
}
