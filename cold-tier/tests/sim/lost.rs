//! Copies that left the node before the bucket had them.

use std::sync::Arc;

use fonn_cold_tier::store::Operation;
use fonn_cold_tier::store::fault::{Fault, Rule};
use fonn_cold_tier::{ColdTier, CopyRef, Found, StoreErrorKind};
use tokio::time::Duration;

use crate::node::Node;
use crate::world::World;
use crate::{defaults, key};

/// A node with an entry of the key `k` in the bucket, and a version that is newer.
async fn with_an_entry(world: &mut World) -> (Node, u64) {
    let node = world.start(&defaults);
    world.put(b"k", 1000, None);
    world.drain(&node).await;
    let version = world.model[&b"k"[..]].last().unwrap().version;
    (node, version + 1)
}

fn lose(node: &Node, at: u64) {
    let copy = CopyRef {
        space: 1,
        key: b"k",
        at,
    };
    node.tier.lost(&[copy]).unwrap();
}

/// The puts of segments fail from now on.
fn refuse(world: &World) {
    for operation in [Operation::PutIfAbsent, Operation::Put] {
        let refused = Rule::new(Fault::Error(StoreErrorKind::Unavailable)).on(operation);
        world.faults.add(refused.matching("v1/seg/"));
    }
}

/// What a node finds that has nothing but the bucket.
async fn found_in_bucket(world: &mut World) -> Found {
    world.lose_index();
    let node = world.start_in(&world.dir(), &Arc::default(), &defaults);
    node.until("ready", ColdTier::is_ready).await;
    let found = node.tier.find(1, b"k");
    node.crash().await;
    found
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_lost_again_while_its_tombstone_is_on_its_way_gets_another_one() {
    let mut world = World::new(80);
    let (node, first) = with_an_entry(&mut world).await;
    refuse(&world);
    lose(&node, first);
    node.until("refused", |tier| tier.status().counts.upload_retries > 0)
        .await;
    lose(&node, first + 1);
    world.faults.clear();
    world.drain(&node).await;
    node.crash().await;
    let found = found_in_bucket(&mut world).await;
    assert_eq!(found, Found::Tombstone(first + 1));
}

#[tokio::test(start_paused = true)]
async fn a_lost_copy_gets_its_tombstone_however_often_haste_was_asked_for() {
    let mut world = World::new(81);
    let (node, lost) = with_an_entry(&mut world).await;
    refuse(&world);
    // More than there is memory for: the spiller waits for the uploads.
    for number in 0..200 {
        world.put(&key(number), 60 << 10, None);
    }
    node.until("refused", |tier| tier.status().counts.upload_retries > 0)
        .await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    for _ in 0..20 {
        node.tier.hurry();
    }
    lose(&node, lost);
    world.faults.clear();
    world.drain(&node).await;
    node.crash().await;
    let found = found_in_bucket(&mut world).await;
    assert_eq!(found, Found::Tombstone(lost));
}
