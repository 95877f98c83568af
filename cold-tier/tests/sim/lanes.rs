//! Segments that are on their way at the same time, and writers that begin late.

use std::sync::Arc;

use fonn_cold_tier::store::Operation;
use fonn_cold_tier::store::fault::{Fault, Rule};
use fonn_cold_tier::{ColdOptions, Found, StoreErrorKind};
use tokio::time::Duration;

use crate::chaos::busy;
use crate::node::{Node, Queue};
use crate::world::World;

/// A second member of the region, which spills nothing and is the one that collects.
async fn follower(world: &World, options: &dyn Fn(&mut ColdOptions)) -> Node {
    let dir = world.dir().join("follower");
    let node = world.start_in(&dir, &Arc::new(Queue::default()), options);
    node.until("caught up", |tier| tier.status().caught_up)
        .await;
    node.until("the collector", |tier| tier.status().is_collector)
        .await;
    node
}

/// The puts of a writer's segments fail from now on.
fn refuse(world: &World, writer: &str) {
    for operation in [Operation::PutIfAbsent, Operation::Put] {
        let refused = Fault::Error(StoreErrorKind::Unavailable);
        let rule = Rule::new(refused).on(operation).matching(writer);
        world.faults.add(rule);
    }
}

fn is_at(tier: &fonn_cold_tier::ColdTier, key: &[u8]) -> bool {
    matches!(tier.find(1, key), Found::At(_))
}

/// Spills one entry, so that there is a writer, and gives its id.
async fn first_writer(world: &mut World, node: &Node, follower: &Node) -> String {
    world.put(b"first", 1000, None);
    world.drain(node).await;
    follower
        .until("followed", |tier| is_at(tier, b"first"))
        .await;
    let announced = node.tier.announcement();
    let writer = announced.borrow().writers.keys().next().copied();
    writer.unwrap().to_string()
}

#[tokio::test(start_paused = true)]
async fn a_segment_that_is_stuck_lets_others_pass_and_is_acknowledged_before_them() {
    let mut world = World::new(31);
    let other = follower(&world, &busy).await;
    let node = world.start(&busy);
    let writer = first_writer(&mut world, &node, &other).await;
    let acknowledged = world.queue.acknowledged();
    refuse(&world, &writer);
    world.put(b"stuck", 60_000, None);
    world.put(b"passes", 60_000, None);
    other.until("passed", |tier| is_at(tier, b"passes")).await;
    assert_eq!(other.tier.find(1, b"stuck"), Found::Absent);
    // A crash now must find both in the queue.
    assert_eq!(world.queue.acknowledged(), acknowledged);
    assert_eq!(node.tier.find(1, b"passes"), Found::Absent);
    node.crash().await;
    world.faults.clear();
    let node = world.start(&busy);
    world.drain(&node).await;
    assert_eq!(world.queue.acknowledged(), acknowledged + 2);
    world.check(&node, true).await;
    // And without one, the order is that of the queue again.
    other.until("followed", |tier| is_at(tier, b"stuck")).await;
    world.check(&other, false).await;
    node.crash().await;
    other.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_segment_leaves_out_what_another_on_its_way_has_deleted() {
    let mut world = World::new(32);
    let other = follower(&world, &busy).await;
    let node = world.start(&busy);
    let writer = first_writer(&mut world, &node, &other).await;
    // A tombstone is kept for what it may hide, so nothing older is left in the bucket.
    world.delete(b"first");
    world.drain(&node).await;
    other
        .until("collected", |tier| tier.find(1, b"first") == Found::Absent)
        .await;
    refuse(&world, &writer);
    world.put(b"k", 1000, None);
    world.put(b"stays", 60_000, None);
    node.until("refused", |tier| tier.status().counts.upload_retries > 0)
        .await;
    world.delete(b"k");
    other
        .until("deleted", |tier| {
            matches!(tier.find(1, b"k"), Found::Tombstone(_))
        })
        .await;
    // Long enough for the tombstone to go, as far as it hides nothing.
    tokio::time::sleep(Duration::from_secs(600)).await;
    world.faults.clear();
    other.until("uploaded", |tier| is_at(tier, b"stays")).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    for node in [&node, &other] {
        assert!(!is_at(&node.tier, b"k"), "a deleted entry is back");
    }
    world.drain(&node).await;
    world.check(&node, true).await;
    node.crash().await;
    other.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_spills_first_hours_after_its_start_is_found_as_soon_as_others() {
    // Nothing but the search for writers finds one in time.
    let options = |options: &mut ColdOptions| {
        busy(options);
        options.reconcile_interval = Duration::from_secs(30 * 86_400);
    };
    let mut world = World::new(33);
    let other = follower(&world, &options).await;
    let quiet_queue = Arc::new(Queue::default());
    let quiet = world.start_in(&world.dir().join("quiet"), &quiet_queue, &options);
    quiet
        .until("caught up", |tier| tier.status().caught_up)
        .await;
    tokio::time::sleep(Duration::from_secs(5 * 3600)).await;
    let node = world.start(&options);
    first_writer(&mut world, &node, &other).await;
    tokio::time::sleep(Duration::from_secs(5 * 3600)).await;
    let value = crate::node::put(b"value", 0);
    quiet_queue.push(b"late", world.now_ms() << 16, value, world.now_ms());
    quiet.until("spilled", |tier| is_at(tier, b"late")).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(is_at(&other.tier, b"late"));
    for node in [quiet, node, other] {
        node.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_backlog_goes_in_segments_of_full_length() {
    const ENTRIES: usize = 200;
    let mut world = World::new(34);
    world
        .faults
        .add(Rule::new(Fault::Error(StoreErrorKind::Unavailable)));
    for number in 0..ENTRIES {
        world.put(format!("{number}").as_bytes(), 4000, None);
    }
    // All of it is older than anything may be that waits for company.
    tokio::time::sleep(Duration::from_secs(600)).await;
    world.faults.clear();
    let node = world.start(&busy);
    world.drain(&node).await;
    let counts = node.tier.status().counts;
    assert_eq!(counts.spilled_entries, ENTRIES as u64);
    // Sixteen fit into a segment, and each lane may begin with less.
    let most = (ENTRIES / 15 + 4 + 1) as u64;
    assert!(counts.spilled_segments <= most, "{counts:?}");
    world.check(&node, true).await;
    node.crash().await;
}
