//! Single changes of what the members agree on.

use std::sync::Arc;

use fonn_replication::{Change, Epoch, Layout, MemberId, Slot, Status, Topology};

use super::raft::first_topology;

const SLOT: Slot = Slot(0);
const A: MemberId = MemberId(0);
const B: MemberId = MemberId(1);
const C: MemberId = MemberId(2);

/// A layout of one slot with one owner.
fn layout(owner: MemberId) -> Arc<Layout> {
    let members = [A, B, C].into_iter().collect();
    Arc::new(Layout::new(&[vec![owner]], members).expect("one row"))
}

/// Three members in sync, of which the first owns the only slot.
fn in_sync() -> Topology {
    let mut topology = first_topology(3, layout(A));
    for member in [A, B, C] {
        topology = reports(&topology, member);
    }
    topology
}

/// The topology after a member has told that it is in sync.
pub fn reports(topology: &Topology, member: MemberId) -> Topology {
    let applied = topology.epoch;
    let change = Change::InSync { member, applied };
    topology.after(&change).expect("it has an effect")
}

fn asks_to_sync(member: MemberId, applied: Epoch, incarnation: u64) -> Change {
    Change::Sync {
        member,
        applied,
        incarnation,
    }
}

#[test]
fn a_stand_in_keeps_its_slot_when_a_member_with_a_better_rank_returns() {
    let down = in_sync().after(&Change::Down(B)).expect("it has an effect");
    let stands_in = down.after(&Change::Down(A)).expect("it has an effect");
    assert_eq!(stands_in.primary(SLOT), Some(C));
    let returns = asks_to_sync(B, stands_in.epoch, 1);
    let back = reports(&stands_in.after(&returns).expect("it has an effect"), B);
    assert_eq!(back.status(B), Status::InSync);
    assert_eq!(back.primary(SLOT), Some(C));
}

#[test]
fn a_placed_owner_takes_its_slot_back_when_it_is_in_sync_and_not_before() {
    let down = in_sync().after(&Change::Down(A)).expect("it has an effect");
    let syncing = down
        .after(&asks_to_sync(A, down.epoch, 1))
        .expect("it has an effect");
    assert_eq!(syncing.primary(SLOT), down.primary(SLOT));
    assert_ne!(syncing.primary(SLOT), Some(A));
    assert_eq!(reports(&syncing, A).primary(SLOT), Some(A));
}

#[test]
fn requests_from_before_the_last_change_of_a_member_have_no_effect() {
    let before = in_sync();
    let down = before.after(&Change::Down(A)).expect("it has an effect");
    assert_eq!(down.after(&asks_to_sync(A, before.epoch, 1)), None);
    let syncing = down
        .after(&asks_to_sync(A, down.epoch, 1))
        .expect("it has an effect");
    let applied = down.epoch;
    assert_eq!(syncing.after(&Change::InSync { member: A, applied }), None);
}

#[test]
fn a_stand_in_that_lost_its_writes_is_replaced() {
    let down = in_sync().after(&Change::Down(A)).expect("it has an effect");
    let stand_in = down.primary(SLOT).expect("there is one");
    let other = if stand_in == B { C } else { B };
    let lost = down
        .after(&asks_to_sync(stand_in, down.epoch, 1))
        .expect("it has an effect");
    assert_eq!(lost.primary(SLOT), Some(other));
}

#[test]
fn a_layout_is_replaced_when_all_members_have_copied_their_slots() {
    let change = Change::ProposeLayout(layout(B));
    let mut topology = in_sync().after(&change).expect("it has an effect");
    for member in [A, B, C] {
        assert_eq!(topology.after(&Change::ReplaceLayout), None);
        assert_eq!(topology.primary(SLOT), Some(A));
        topology = reports(&topology, member);
    }
    let replaced = topology
        .after(&Change::ReplaceLayout)
        .expect("it has an effect");
    assert_eq!(replaced.primary(SLOT), Some(B));
}
