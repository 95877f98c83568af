use openraft::{Membership, StoredMembership};

use super::*;
use crate::member::MemberInfo;
use crate::state::settle::settle;

fn info(id: &str, raft_id: RaftId) -> MemberInfo {
    MemberInfo {
        id: id.to_owned(),
        raft_id,
        client_address: format!("{id}:1"),
        cluster_address: format!("{id}:2"),
        zone: "z".to_owned(),
        weight: 1,
        version: String::new(),
    }
}

/// A cluster of `a` (1), `b` (2) and `c` (3), all active.
fn three() -> State {
    let mut state = State::default();
    let founder = info("a", 1);
    state.apply(Change::Form {
        cluster: 1,
        founder,
        version: 0,
        down_after_ms: 1500,
    });
    for (id, raft_id) in [("b", 2), ("c", 3)] {
        state.apply(Change::Join(info(id, raft_id)));
        state.apply(Change::Activate(raft_id));
    }
    settle(&mut state);
    state
}

fn metrics(configs: &[&[RaftId]], nodes: &[(RaftId, &str)]) -> Metrics {
    let configs = configs
        .iter()
        .map(|ids| ids.iter().copied().collect())
        .collect();
    let nodes: BTreeMap<RaftId, BasicNode> = nodes
        .iter()
        .map(|(id, address)| (*id, BasicNode::new(address)))
        .collect();
    let mut metrics = Metrics::new_initial(1);
    let membership = Membership::new(configs, nodes);
    metrics.membership_config = Arc::new(StoredMembership::new(None, membership));
    metrics
}

const NODES: [(RaftId, &str); 3] = [(1, "a:2"), (2, "b:2"), (3, "c:2")];

fn step(state: &State, metrics: &Metrics, ready: &[RaftId]) -> Option<Step> {
    let sight = Sight {
        is_ready: true,
        is_lost: false,
    };
    next_step(
        state,
        metrics,
        &ready.iter().map(|id| (*id, sight)).collect(),
    )
}

fn voters(ids: &[RaftId]) -> Option<Step> {
    Some(Step::Raft(ChangeMembers::ReplaceAllVoters(
        ids.iter().copied().collect(),
    )))
}

#[test]
fn where_all_is_right_nothing_is_done() {
    let metrics = metrics(&[&[1, 2, 3]], &NODES);
    assert_eq!(step(&three(), &metrics, &[1, 2, 3]), None);
    assert_eq!(
        step(&three(), &metrics, &[1]),
        None,
        "silence alone changes no voter"
    );
    assert_eq!(step(&State::default(), &metrics, &[1]), None);
}

#[test]
fn a_joining_member_follows_then_votes_and_owns() {
    let mut state = three();
    state.apply(Change::Join(info("d", 4)));
    let known = metrics(&[&[1, 2, 3]], &NODES);
    let added = BTreeMap::from([(4, BasicNode::new("d:2"))]);
    let expected = Some(Step::Raft(ChangeMembers::AddNodes(added)));
    assert_eq!(step(&state, &known, &[1, 2, 3]), expected);
    let nodes = [NODES.as_slice(), &[(4, "d:2")]].concat();
    let known = metrics(&[&[1, 2, 3]], &nodes);
    assert_eq!(step(&state, &known, &[1, 2, 3]), None, "it is not near yet");
    let activate = Change::Activate(4);
    assert_eq!(
        step(&state, &known, &[1, 2, 3, 4]),
        Some(Step::State(activate))
    );
}

#[test]
fn a_member_that_moved_is_reached_at_its_new_address() {
    let moved = metrics(&[&[1, 2, 3]], &[(1, "a:2"), (2, "old:2"), (3, "c:2")]);
    let set = BTreeMap::from([(2, BasicNode::new("b:2"))]);
    let expected = Some(Step::Raft(ChangeMembers::SetNodes(set)));
    assert_eq!(step(&three(), &moved, &[1, 2, 3]), expected);
}

#[test]
fn a_removed_member_votes_no_more_and_then_is_forgotten() {
    let mut state = three();
    let remove = Change::Remove { id: "c".into() };
    state.apply(remove.clone());
    let voting = metrics(&[&[1, 2, 3]], &NODES);
    assert_eq!(step(&state, &voting, &[1, 2]), voters(&[1]));
    let learning = metrics(&[&[1]], &NODES);
    let next = step(&state, &learning, &[1, 2]);
    assert_eq!(next, Some(Step::State(Change::ProposeLayout)), "it is up");
    state.apply(Change::Down(3));
    let next = step(&state, &learning, &[1, 2]);
    assert_eq!(next, Some(Step::State(remove.clone())));
    state.apply(remove);
    let gone = Some(Step::Raft(ChangeMembers::RemoveNodes(BTreeSet::from([3]))));
    assert_eq!(step(&state, &learning, &[1, 2]), gone);
}

#[test]
fn a_change_of_voters_that_was_left_half_done_is_finished() {
    let joint = metrics(&[&[1], &[1, 2, 3]], &NODES);
    assert_eq!(step(&three(), &joint, &[1, 2, 3]), voters(&[1, 2, 3]));
}
