//! The range of versions that the members agree on.

use std::sync::Arc;
use std::time::Duration;

use fonn_base::clock::Clock;
use fonn_base::hlc::{Hlc, VERSION_MAX, at_ms};

use super::world::{Node, PATIENCE, World};
use crate::state::{Change, State};
use crate::{ChangeError, Start};
use fonn_proto::member::MemberState::Active;

/// A clock of versions above `floor`.
fn versions(floor: u64) -> Option<Arc<Hlc>> {
    Some(Arc::new(Hlc::new(Clock::system(), floor).unwrap()))
}

/// Waits for a state of the cluster.
async fn state(node: &Node, is_wanted: impl Fn(&State) -> bool) -> State {
    let mut states = node.cluster.state();
    let found = tokio::time::timeout(PATIENCE, states.wait_for(|state| is_wanted(state))).await;
    State::clone(&found.expect("the state comes").unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_range_of_versions_follows_the_clock_and_contains_those_of_a_joining_member() {
    let world = World::new();
    let now_ms = || Clock::system().wall_ms();
    let mut options = world.options("a", Start::Bootstrap);
    options.versions = versions(0);
    let a = world.start(options).await;
    a.sees(&["a"], Active).await;
    let soon = at_ms(now_ms() + 5_000);
    state(&a, |state| state.versions.ceiling > soon).await;

    let far = at_ms(now_ms() + 3_600_000);
    let mut options = world.options("b", Start::Join(vec![a.address()]));
    options.versions = versions(far);
    let b = world.start(options).await;
    a.sees(&["a", "b"], Active).await;
    let joined = state(&a, |state| state.versions.base > far).await;
    assert!(joined.epoch > 1);

    let hostile = Change::ExtendVersions {
        ceiling: VERSION_MAX,
    };
    for node in [&a, &b] {
        let refused = node
            .cluster
            .propose(hostile.clone(), Duration::from_secs(10))
            .await;
        assert!(
            matches!(refused, Err(ChangeError::Refused(_))),
            "{refused:?}"
        );
    }
    for node in [a, b] {
        node.stop().await;
    }
}
