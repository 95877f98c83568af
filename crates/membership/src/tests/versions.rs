//! Members of different versions.

use super::leader;
use super::world::{World, voters};
use crate::ChangeError;
use crate::state::Change;
use fonn_proto::member::MemberState::Active;

fn unknown() -> Change {
    serde_json::from_str(r#"{"Paint":{"in":"red"}}"#).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_newer_leader_writes_and_others_do_not_know_changes_nothing_and_stops_no_member() {
    let world = World::new();
    let mut nodes = world.form(&["a", "b", "c"]).await;
    voters(&nodes, &["a", "b", "c"]).await;
    let leading = leader(&nodes).await;
    let before = nodes[leading].cluster.map().borrow().epoch;
    let refused = nodes[leading].propose(unknown()).await;
    assert!(
        matches!(refused, Err(ChangeError::Refused(_))),
        "{refused:?}"
    );
    // A newer one does not ask, if it was proposed before an older one came.
    let raft = &nodes[leading].cluster.participant.raft;
    raft.client_write(unknown()).await.unwrap();
    let epoch = nodes[leading]
        .propose(Change::SetReplicas(2))
        .await
        .unwrap();
    // Where the machine stood still a member may have failed and returned.
    nodes[leading].map(|map| map.epoch >= epoch).await;
    let state = nodes[leading].cluster.state().borrow().clone();
    let has_fallen = state.members.values().any(|it| it.sync.since.0 > before);
    assert!(epoch == before + 1 || has_fallen, "{epoch} after {before}");
    for node in &nodes {
        node.map(|map| map.replicas == 2).await;
    }
    // It is in the log on disk, and is read again.
    let last = nodes.remove((leading + 1) % 3);
    let id = last.id().to_owned();
    last.stop().await;
    let again = world.join(&id, &nodes[0]).await;
    again.propose(Change::SetReplicas(3)).await.unwrap();
    again.map(|map| map.replicas == 3).await;
    nodes.push(again);
    for node in &nodes {
        node.sees(&["a", "b", "c"], Active).await;
        let state = node.cluster.state().borrow().clone();
        assert!(state.needs.is_first());
    }
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_says_its_version_at_each_start() {
    let world = World::new();
    let founder = world.found("a").await;
    let joined = world.join("b", &founder).await;
    founder.sees(&["a", "b"], Active).await;
    joined.stop().await;
    let start = crate::Start::Join(vec![founder.address()]);
    let mut options = world.options("b", start);
    options.version = "7.5.3".to_owned();
    let joined = world.start(options).await;
    let is_so = |version: &str| version == "7.5.3";
    founder
        .map(|map| map.member("b").is_some_and(|it| is_so(&it.version)))
        .await;
    joined.stop().await;
    founder.stop().await;
}
