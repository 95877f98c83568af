//! Disks that stall: a write begins and does not return.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::world::{Node, World, leader};
use super::{CEILING, raised};
use crate::LEADER_FRESH;
use fonn_proto::member::MemberState::{Active, Down};

const ALL: [&str; 3] = ["a", "b", "c"];

/// Keeps the thread that writes a member's journal busy, until what this returns is dropped.
fn hold_journal(node: &Node) -> SyncSender<()> {
    let (held, free) = sync_channel(1);
    let waiting = node.cluster.participant.pool.submit(move || free.recv());
    drop(waiting.unwrap());
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_disk_stalls_is_down_until_the_disk_answers() {
    let world = World::new();
    let nodes = world.form(&ALL).await;
    let at = leader(&nodes).await;
    let stalled = &nodes[(at + 1) % 3];
    let device = world.device(stalled.id());
    let call = device.begin(0);
    nodes[at].sees(&[stalled.id()], Down).await;
    stalled.standing(|standing| standing.lease.is_zero()).await;
    drop(call);
    nodes[at].sees(&ALL, Active).await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_stalls_gives_way_to_another_and_is_down() {
    let world = World::new();
    let nodes = world.form(&ALL).await;
    let at = leader(&nodes).await;
    let (stalled, other) = (&nodes[at], &nodes[(at + 1) % 3]);
    let device = world.device(stalled.id());
    let call = device.begin(0);
    other.sees(&[stalled.id()], Down).await;
    let is_led = |leader: &Option<String>| leader.as_deref().is_some_and(|it| it != stalled.id());
    other.status(|status| is_led(&status.leader)).await;
    stalled.standing(|standing| standing.lease.is_zero()).await;
    drop(call);
    other.sees(&ALL, Active).await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_journal_stalls_is_down_and_does_not_take_itself_for_cut_off() {
    let world = World::new();
    let nodes = world.form(&ALL).await;
    let at = leader(&nodes).await;
    let stalled = &nodes[(at + 1) % 3];
    let held = hold_journal(stalled);
    nodes[at].propose(raised(CEILING)).await.unwrap();
    nodes[at].sees(&[stalled.id()], Down).await;
    let later = Instant::now() + LEADER_FRESH;
    stalled
        .standing(|standing| {
            let is_late = Instant::now() > later;
            is_late && standing.lease.is_zero() && standing.leader_silence < LEADER_FRESH
        })
        .await;
    drop(held);
    nodes[at].sees(&ALL, Active).await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_journal_stalls_has_no_lease_and_another_leads() {
    let world = World::new();
    let nodes = world.form(&ALL).await;
    let at = leader(&nodes).await;
    let (stalled, other) = (&nodes[at], &nodes[(at + 1) % 3]);
    let held = hold_journal(stalled);
    // It may be agreed on when the journal goes on.
    let proposed = stalled
        .cluster
        .propose(raised(CEILING), Duration::from_millis(200));
    proposed.await.unwrap_err();
    other.sees(&[stalled.id()], Down).await;
    stalled.standing(|standing| standing.lease.is_zero()).await;
    drop(held);
    other.sees(&ALL, Active).await;
    for node in nodes {
        node.stop().await;
    }
}
