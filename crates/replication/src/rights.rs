//! R6: what a member may answer, and which members need a write.

use std::time::Duration;

use crate::core::Core;
use crate::{MemberSet, Rule, Slot};

/// What a member may do with the requests of a slot while it holds a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Whether it executes writes, and answers reads as the primary.
    pub leads: bool,
    /// Whether it answers hedged reads. They may return a value that is not acknowledged yet, but
    /// nothing older than an acknowledged write: each acknowledged write has reached all owners.
    pub hedged_reads: bool,
    /// Whether a write is acknowledged when the store has executed it: no other member needs it.
    /// Else it is acknowledged when the core answers [`Event::Write`](crate::Event::Write).
    ///
    /// The shell looks at the revision and at the lease again after the execution. If the revision
    /// is another one, or the lease is over, it passes that event all the same.
    pub completes: bool,
}

/// A number that changes when rights change. It counts, and says nothing about the state, so all
/// revisions are equal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Revision(pub(crate) u64);

impl PartialEq for Revision {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Revision {}

impl std::hash::Hash for Revision {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl<E> Core<E> {
    /// Whether the member holds a lease.
    #[must_use]
    pub fn may_answer(&self, now: Duration) -> bool {
        now < self.lease || !self.config.rules.hold(Rule::Lease)
    }

    /// What the member may do with a slot while it holds a lease. It changes only with
    /// [`Core::revision`].
    #[must_use]
    pub fn rights(&self, slot: Slot) -> Rights {
        let state = self.slots.get(slot.index()).copied().unwrap_or_default();
        let leads = state.leads();
        Rights {
            leads,
            hedged_reads: state.role.owns() && state.in_sync,
            completes: leads && self.targets(slot).is_empty() && self.handed_over(slot),
        }
    }

    /// A number that grows whenever any rights may have changed.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision.0
    }

    /// The members that need a write of the slot: all owners and learners but this member.
    #[must_use]
    pub fn targets(&self, slot: Slot) -> MemberSet {
        let Some(topology) = &self.topology else {
            return MemberSet::default();
        };
        let placement = topology.placement(slot);
        let mut targets = placement.owners.with(placement.learners);
        targets.remove(self.config.me);
        targets
    }

    /// R4: whether no former owner of a slot can answer reads any more.
    pub(crate) fn handed_over(&self, slot: Slot) -> bool {
        let state = self.slots.get(slot.index());
        state.is_some_and(|state| state.handed_over <= self.applied_by_all)
            || !self.config.rules.hold(Rule::FormerOwners)
    }
}
