//! Promises of a leader over real sockets.

use std::time::{Duration, Instant};

use super::world::{World, leader};
use crate::Standing;
use crate::detector::DOWN_AFTER;
use crate::state::Change;
use fonn_proto::member::MemberState::Draining;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_drained_and_has_lost_its_vote_promises_to_the_others() {
    let world = World::new();
    let nodes = world.form(&["a", "b", "c", "d"]).await;
    let of = leader(&nodes).await;
    let drained = nodes[of].id().to_owned();
    let drain = Change::Drain {
        id: drained.clone(),
    };
    nodes[of].propose(drain).await.unwrap();
    nodes[of].sees(&[&drained], Draining).await;
    let moved = nodes[of].status(|status| !status.voters.contains(&drained));
    moved.await;
    // What was promised before is over then.
    let over = Instant::now() + DOWN_AFTER;
    for node in nodes.iter().filter(|node| node.id() != drained) {
        node.standing(|standing| Instant::now() > over && !standing.lease.is_zero())
            .await;
    }
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_member_has_a_lease_and_none_has_one_without_a_leader() {
    let world = World::new();
    let mut nodes = world.form(&["a", "b", "c"]).await;
    for node in &nodes {
        node.standing(|standing| !standing.lease.is_zero()).await;
    }
    for node in nodes.drain(1..) {
        node.stop().await;
    }
    let alone = nodes.remove(0);
    alone.standing(|standing| standing.lease.is_zero()).await;
    alone.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_removed_as_it_is_when_it_answers_no_more_though_it_does_not_hear_of_it() {
    let world = World::new();
    let nodes = world.form(&["a", "b", "c"]).await;
    let of = leader(&nodes).await;
    let victim = &nodes[(of + 1) % 3];
    victim.standing(|standing| !standing.lease.is_zero()).await;
    world.links.isolate(&victim.address());
    let remove = Change::Remove {
        id: victim.id().to_owned(),
    };
    nodes[of].propose(remove).await.unwrap();
    nodes[of].map(|map| map.member(victim.id()).is_none()).await;
    let standing = victim.cluster.standing(u64::MAX);
    assert_eq!(standing.lease, Duration::ZERO);
    let map = victim.cluster.map().borrow().clone();
    assert!(map.member(victim.id()).is_some(), "it has not heard of it");
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_removed_while_it_was_cut_off_is_refused_when_the_link_is_back() {
    let world = World::new();
    let nodes = world.form(&["a", "b", "c"]).await;
    let of = leader(&nodes).await;
    let victim = &nodes[(of + 1) % 3];
    world.links.isolate(&victim.address());
    let remove = Change::Remove {
        id: victim.id().to_owned(),
    };
    nodes[of].propose(remove).await.unwrap();
    nodes[of].map(|map| map.member(victim.id()).is_none()).await;
    let standing = victim.cluster.standing(u64::MAX);
    assert!(!standing.is_refused, "no member could tell it");
    world.links.heal();
    let is_out = |standing: Standing| standing.is_refused && standing.lease.is_zero();
    victim.standing(is_out).await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_removed_as_it_is_promises_itself_nothing_any_more() {
    for ids in [&["a", "b", "c", "d"][..], &["a", "b"]] {
        let world = World::new();
        let nodes = world.form(ids).await;
        let of = leader(&nodes).await;
        let id = nodes[of].id().to_owned();
        nodes[of]
            .standing(|standing| !standing.lease.is_zero())
            .await;
        nodes[(of + 1) % nodes.len()]
            .propose(Change::Remove { id: id.clone() })
            .await
            .unwrap();
        let stops = nodes[of].standing(|standing| standing.lease.is_zero());
        stops.await;
        for node in nodes.iter().filter(|node| node.id() != id) {
            node.map(|map| map.member(&id).is_none()).await;
        }
        for node in nodes {
            node.stop().await;
        }
    }
}
