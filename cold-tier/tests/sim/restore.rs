//! Checkpoints that the bucket lists and does not give.

use fonn_cold_tier::StoreErrorKind;
use fonn_cold_tier::store::Operation;
use fonn_cold_tier::store::fault::{Fault, Rule};
use tokio::time::Duration;

use crate::chaos::busy;
use crate::key;
use crate::world::World;

/// A bucket with two checkpoints, whose manifests are given, the newest last.
async fn with_checkpoints(seed: u64) -> (World, Vec<String>) {
    let mut world = World::new(seed);
    let node = world.start(&busy);
    for round in 0..40 {
        for number in 0..10 {
            world.put(&key(round * 10 + number), 5000, None);
        }
        world.drain(&node).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    assert!(node.tier.status().counts.checkpoints > 1);
    node.crash().await;
    let mut manifests = world.objects("v1/idx/").await;
    manifests.retain(|name| name.ends_with("/manifest"));
    assert_eq!(manifests.len(), 2, "{manifests:?}");
    world.lose_index();
    (world, manifests)
}

/// Starts without an index while `part` of the checkpoints cannot be read; gives how many footers were read
/// until it was ready.
async fn footers_read_without(world: &World, part: &str, kind: StoreErrorKind) -> u64 {
    let unreadable = Rule::new(Fault::Error(kind)).on(Operation::Get);
    world.faults.add(unreadable.matching(part));
    let before = world.calls(Operation::GetSuffix);
    let node = world.start(&busy);
    node.until("ready", |tier| tier.status().ready).await;
    let footers = world.calls(Operation::GetSuffix) - before;
    world.check(&node, true).await;
    node.crash().await;
    world.faults.clear();
    footers
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_cannot_be_read_is_passed_over_for_an_older_one() {
    for kind in [StoreErrorKind::Denied, StoreErrorKind::Unavailable] {
        let (mut world, manifests) = with_checkpoints(70).await;
        let segments = world.objects("v1/seg/").await.len() as u64;
        let footers = footers_read_without(&world, &manifests[1], kind).await;
        // Of the segments after the older one, not of all.
        assert!(footers < segments, "{footers} of {segments} footers");
        world.lose_index();
        let part = manifests[1].replace("manifest", "");
        footers_read_without(&world, &part, kind).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_any_checkpoint_that_can_be_read_all_footers_are() {
    for kind in [StoreErrorKind::Denied, StoreErrorKind::Invalid] {
        let (world, _) = with_checkpoints(71).await;
        let segments = world.objects("v1/seg/").await.len() as u64;
        let footers = footers_read_without(&world, "v1/idx/", kind).await;
        assert!(footers >= segments, "{footers} of {segments} footers");
    }
}
