//! What this member may do with each slot, for the request path: one byte a slot, read without a
//! lock, and the lease.
//!
//! The core decides ([`fonn_replication::Core::rights`]). This table is rewritten when the core's
//! revision changes.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use fonn_proto::placement::SLOT_COUNT;
use fonn_replication::{Core, Role, Slot, SlotState};

/// The member executes writes, and answers reads as the primary.
const LEADS: u8 = 1;
const HEDGED_READS: u8 = 2;
/// A write is complete when this member has executed it.
const COMPLETES: u8 = 4;
/// The member takes writes of the primary.
const TAKES: u8 = 8;
/// The member is the primary by the topology, in sync or not.
const PRIMARY: u8 = 16;

/// The rights of this member.
#[derive(Debug)]
pub(super) struct RightsTable {
    slots: Box<[AtomicU8]>,
    /// The version below which entries of the slot are hidden and not removed yet; 0 for none.
    floors: Box<[AtomicU64]>,
    /// Up to this time of the monotonic clock the member holds a lease, in milliseconds.
    lease_end_ms: AtomicU64,
}

impl RightsTable {
    /// No rights at all.
    pub(super) fn new() -> Self {
        Self {
            slots: (0..SLOT_COUNT).map(|_| AtomicU8::new(0)).collect(),
            floors: (0..SLOT_COUNT).map(|_| AtomicU64::new(0)).collect(),
            lease_end_ms: AtomicU64::new(0),
        }
    }

    /// Takes over what the core says.
    pub(super) fn publish<E: Clone>(&self, core: &Core<E>) {
        for ((slot, cell), state) in (0u16..).zip(&self.slots).zip(core.slots()) {
            cell.store(flags(core, slot, state), Ordering::SeqCst);
        }
    }

    /// The member may answer up to this time of the monotonic clock.
    pub(super) fn extend_lease(&self, end_ms: u64) {
        self.lease_end_ms.store(end_ms, Ordering::SeqCst);
    }

    /// Whether the member holds a lease.
    #[inline]
    pub(super) fn holds_lease(&self, now_ms: u64) -> bool {
        now_ms < self.lease_end_ms.load(Ordering::SeqCst)
    }

    /// Hides what is below `floor` in a slot until it is removed.
    pub(super) fn raise_floor(&self, slot: u16, floor: u64) {
        if let Some(cell) = self.floors.get(usize::from(slot)) {
            cell.fetch_max(floor, Ordering::SeqCst);
        }
    }

    /// What was below `floor` is removed.
    pub(super) fn clear_floor(&self, slot: u16, floor: u64) {
        if let Some(cell) = self.floors.get(usize::from(slot)) {
            let is_removed = |known| (known <= floor).then_some(0);
            // Where it was raised further, another removal is to come.
            let _ = cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_removed);
        }
    }

    /// The version below which entries of a slot are hidden.
    pub(super) fn floor(&self, slot: u16) -> Option<u64> {
        let cell = self.floors.get(usize::from(slot))?;
        let floor = cell.load(Ordering::SeqCst);
        (floor != 0).then_some(floor)
    }

    /// Whether the member executes writes, and answers reads as the primary.
    #[inline]
    pub(super) fn leads(&self, slot: u16) -> bool {
        self.has(slot, LEADS)
    }

    /// Whether the member answers reads as the primary, without a look at the floor.
    #[inline]
    pub(super) fn reads_at_once(&self, slot: u16) -> bool {
        self.leads(slot) && self.floor(slot).is_none()
    }

    /// Whether the member answers hedged reads.
    pub(super) fn hedges(&self, slot: u16) -> bool {
        self.has(slot, HEDGED_READS)
    }

    /// Whether a write is complete when this member has executed it.
    pub(super) fn completes(&self, slot: u16) -> bool {
        self.has(slot, COMPLETES)
    }

    /// Whether the member takes writes of the primary.
    pub(super) fn takes(&self, slot: u16) -> bool {
        self.has(slot, TAKES)
    }

    /// Whether the member is the primary by the topology.
    pub(super) fn is_primary(&self, slot: u16) -> bool {
        self.has(slot, PRIMARY)
    }

    #[inline]
    fn flags(&self, slot: u16) -> u8 {
        let cell = self.slots.get(usize::from(slot));
        cell.map_or(0, |cell| cell.load(Ordering::SeqCst))
    }

    #[inline]
    fn has(&self, slot: u16, flag: u8) -> bool {
        self.flags(slot) & flag != 0
    }
}

fn flags<E: Clone>(core: &Core<E>, slot: u16, state: &SlotState) -> u8 {
    let rights = core.rights(Slot(slot));
    let flag = |is: bool, flag| if is { flag } else { 0 };
    flag(rights.leads, LEADS)
        | flag(rights.hedged_reads, HEDGED_READS)
        | flag(rights.completes, COMPLETES)
        | flag(matches!(state.role, Role::Owner | Role::Learner), TAKES)
        | flag(state.role == Role::Primary, PRIMARY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_stays_until_all_below_it_is_removed() {
        let rights = RightsTable::new();
        assert_eq!(rights.floor(7), None);
        rights.raise_floor(7, 10);
        rights.raise_floor(7, 20);
        rights.clear_floor(7, 10);
        assert_eq!(rights.floor(7), Some(20), "another removal is to come");
        assert_eq!(rights.floor(8), None);
        rights.clear_floor(7, 20);
        assert_eq!(rights.floor(7), None);
    }
}
