//! Members of a cluster that announce their segments to each other.

use std::sync::Arc;

use fonn_cold_tier::store::Operation;
use fonn_cold_tier::store::fault::{Fault, Rule};
use fonn_cold_tier::{Found, StoreErrorKind};
use tokio::time::{Duration, Instant};

use crate::node::{Node, Queue};
use crate::world::World;
use crate::{defaults, key};

/// Less than a follower waits between two requests by itself.
const SOON: Duration = Duration::from_secs(1);

/// A member that writes, and another one that has followed all there was.
async fn pair(world: &mut World) -> (Node, Node) {
    let writer = world.start(&defaults);
    let dir = world.dir().join("other");
    let other = world.start_in(&dir, &Arc::new(Queue::default()), &defaults);
    for node in [&writer, &other] {
        node.until("caught up", |tier| tier.status().caught_up)
            .await;
    }
    (writer, other)
}

fn announce(from: &Node, to: &Node) {
    let told = from.tier.announcement().borrow().clone();
    to.tier.hear("writer", &told);
}

fn has(node: &Node, number: u64) -> bool {
    matches!(node.tier.find(1, &key(number)), Found::At(_))
}

#[tokio::test(start_paused = true)]
async fn a_segment_is_found_as_soon_as_it_is_announced_whether_its_writer_is_new_or_was_idle() {
    let mut world = World::new(600);
    let (writer, other) = pair(&mut world).await;
    for (number, idle) in [(0, Duration::ZERO), (1, Duration::from_secs(7200))] {
        tokio::time::sleep(idle).await;
        world.put(&key(number), 1000, None);
        world.drain(&writer).await;
        tokio::time::sleep(SOON).await;
        assert!(!has(&other, number), "{number} was found without a word");
        announce(&writer, &other);
        tokio::time::sleep(SOON).await;
        assert!(has(&other, number), "{number}");
    }
    assert_eq!(other.tier.status().counts.announced_segments, 2);
    writer.crash().await;
    other.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_is_announced_is_asked_about_every_five_minutes() {
    const HOUR: u64 = 3600;
    let mut world = World::new(601);
    let (writer, other) = pair(&mut world).await;
    world.put(&key(0), 1000, None);
    world.drain(&writer).await;
    announce(&writer, &other);
    tokio::time::sleep(SOON).await;
    assert!(has(&other, 0));
    let before = world.calls(Operation::GetSuffix);
    for _ in 0..HOUR / 2 {
        announce(&writer, &other);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let asked = world.calls(Operation::GetSuffix) - before;
    assert!((11..=13).contains(&asked), "asked {asked} times in an hour");
    writer.crash().await;
    other.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_takeover_finds_what_a_lost_member_did_not_live_to_announce() {
    // What the other member had heard: of the writer with its first segment, of no writer, of no
    // member.
    for heard in [Some(true), Some(false), None] {
        let mut world = World::new(602);
        let (writer, other) = pair(&mut world).await;
        if heard == Some(false) {
            announce(&writer, &other);
        }
        world.put(&key(0), 1000, None);
        world.drain(&writer).await;
        if heard == Some(true) {
            announce(&writer, &other);
            tokio::time::sleep(SOON).await;
            assert!(has(&other, 0));
        }
        world.put(&key(1), 1000, None);
        world.drain(&writer).await;
        writer.crash().await;
        assert!(!has(&other, 1), "{heard:?}");
        let began = Instant::now();
        let caught_up = other.tier.take_over("writer");
        assert!(!caught_up.is_done(), "{heard:?}");
        caught_up.done().await;
        assert!(began.elapsed() < SOON, "{heard:?}: {:?}", began.elapsed());
        assert!(has(&other, 0) && has(&other, 1), "{heard:?}");
        other.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_takeover_goes_on_until_the_bucket_answers() {
    let mut world = World::new(603);
    let (writer, other) = pair(&mut world).await;
    world.put(&key(0), 1000, None);
    world.drain(&writer).await;
    announce(&writer, &other);
    tokio::time::sleep(SOON).await;
    world.put(&key(1), 1000, None);
    world.drain(&writer).await;
    writer.crash().await;
    let failing = Rule::new(Fault::Error(StoreErrorKind::Unavailable)).per_mille(1000);
    world.faults.add(failing);
    let caught_up = other.tier.take_over("writer");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!caught_up.is_done() && !has(&other, 1));
    world.faults.clear();
    tokio::time::sleep(SOON).await;
    assert!(caught_up.is_done() && has(&other, 1));
    other.crash().await;
}
