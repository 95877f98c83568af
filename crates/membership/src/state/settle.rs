//! What members and the leader do for tests of the state, when there is nothing to copy.

use super::{Change, State};

/// What a member asks that has applied the newest epoch.
pub(crate) fn asks_to_sync(state: &State, id: &str) -> Change {
    Change::Sync {
        raft_id: state.members[id].info.raft_id,
        applied: state.epoch,
        started: 1,
    }
}

/// What a member reports that has applied the newest epoch and has copied its slots.
pub(crate) fn reports(state: &State, id: &str) -> Change {
    Change::InSync {
        raft_id: state.members[id].info.raft_id,
        applied: state.epoch,
    }
}

/// Has the members do what they do when nothing is to be copied, and the leader what it does then.
/// Those that are down come back.
pub(crate) fn settle(state: &mut State) {
    let names: Vec<String> = state
        .members
        .values()
        .map(|it| it.info.id.clone())
        .collect();
    for id in &names {
        if state.members[id].is_down() {
            state.apply(asks_to_sync(state, id));
        }
    }
    settle_up(state);
}

/// Applies reports and layout changes until no layout change is due. Members that are down report
/// nothing and stay down.
pub(crate) fn settle_up(state: &mut State) {
    for _ in 0..20 {
        let up = state.members.values().filter(|it| !it.is_down());
        let names: Vec<String> = up.map(|it| it.info.id.clone()).collect();
        for id in &names {
            state.apply(reports(state, id));
        }
        if let Some(change) = state.next_layout_change() {
            state.apply(change);
        }
    }
    assert_eq!(state.next_layout_change(), None);
}
