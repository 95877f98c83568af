//! R6: which member answers a read.

use crate::core::Core;
use crate::{Now, ReadFrom, Reply, Role, Rule, Slot};

impl<E> Core<E> {
    /// Decides about a read. A member answers as an owner that is in sync and holds a lease.
    ///
    /// A hedged read may return a value that is not acknowledged yet. It never returns anything
    /// older than an acknowledged write: each acknowledged write has reached all owners.
    pub(crate) fn read(&self, now: Now, slot: Slot, from: ReadFrom) -> Reply {
        let Some(state) = self.slots.get(slot.index()) else {
            return Reply::Busy;
        };
        let asked = match from {
            ReadFrom::Primary => state.role == Role::Primary,
            ReadFrom::AnyOwner => state.role.owns(),
        };
        if !asked {
            return Reply::Elsewhere(self.primary(slot));
        }
        if !state.in_sync || !self.may_answer(now) {
            return Reply::Busy;
        }
        Reply::ReadLocally
    }

    /// Whether the member holds a lease.
    pub(crate) fn may_answer(&self, now: Now) -> bool {
        self.lease.permits(now) || !self.config.rules.hold(Rule::Lease)
    }
}
