//! The cold tier under simulated time, with a bucket that fails in every way and crashes at every
//! step. Seeds are in the messages; equal seeds give equal runs.

// A test; what is not in a test function is so by its file.
#![allow(clippy::unwrap_used, clippy::panic)]

mod announced;
mod budget;
mod chaos;
mod collection;
mod lanes;
mod lost;
mod node;
mod reads;
mod restore;
mod world;
mod writers;

use fonn_cold_tier::store::Operation;
use fonn_cold_tier::{ColdOptions, Fetched, Found, SpillMode};
use tokio::time::Duration;

use world::World;

fn defaults(_: &mut ColdOptions) {}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

#[tokio::test(start_paused = true)]
async fn what_was_spilled_is_read_back_also_by_a_node_without_an_index() {
    let mut world = World::new(1);
    let node = world.start(&defaults);
    for number in 0..300 {
        world.put(&key(number), 1000, None);
    }
    for number in 0..50 {
        world.put(&key(number), 500, None);
        world.delete(&key(100 + number));
    }
    world.drain(&node).await;
    world.check(&node, true).await;
    node.crash().await;

    let node = world.start(&defaults);
    world.check(&node, true).await;
    node.crash().await;

    world.lose_index();
    let node = world.start(&defaults);
    node.until("ready", |tier| tier.status().ready).await;
    world.check(&node, true).await;
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn absent_keys_cost_nothing_and_a_hit_one_request_however_many_want_it() {
    let mut world = World::new(2);
    let node = world.start(&defaults);
    for number in 0..1000 {
        world.put(&key(number), 60 << 10, None);
    }
    let before = world.calls(Operation::PutIfAbsent) + world.calls(Operation::Put);
    world.drain(&node).await;
    let puts = world.calls(Operation::PutIfAbsent) + world.calls(Operation::Put) - before;
    // With 8 MiB of memory a segment has little more than 1 MiB.
    assert!(puts <= 60, "{puts} puts for 1,000 entries of 60 KiB");
    // Nothing but lookups has anything to do meanwhile: no time passes.
    let before = world.all_calls();
    assert!(before.iter().sum::<u64>() > 0);
    for number in 1000..101_000 {
        assert_eq!(node.tier.find(1, &key(number)), Found::Absent);
        if number % 1000 == 0 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(world.all_calls(), before);

    let Found::At(location) = node.tier.find(1, &key(7)) else {
        panic!("lost");
    };
    let wanted = key(7);
    let fetches: Vec<_> = (0..100)
        .map(|_| {
            let (tier, location, wanted) = (node.tier.clone(), location.clone(), wanted.clone());
            tokio::spawn(async move { tier.fetch(1, &wanted, &location).await.0 })
        })
        .collect();
    for fetch in fetches {
        assert!(matches!(fetch.await.unwrap(), Fetched::Hit(_)));
    }
    assert_eq!(world.calls(Operation::GetRange), 1);
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_entries_cost_at_most_ten_puts() {
    let mut world = World::new(3);
    let node = world.start(&|options| {
        options.memory_bytes = 256 << 20;
        options.spill_age = SpillMode::WriteBehind(Duration::from_secs(30));
    });
    node.until("caught up", |tier| tier.status().caught_up)
        .await;
    for number in 0..1000 {
        world.put(&key(number), 60 << 10, None);
    }
    world.drain(&node).await;
    let puts = world.calls(Operation::PutIfAbsent) + world.calls(Operation::Put);
    assert!(puts <= 10, "{puts} puts");
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn entries_are_in_the_bucket_in_time_without_being_asked_for() {
    let mut world = World::new(4);
    let node = world.start(&defaults);
    node.until("caught up", |tier| tier.status().caught_up)
        .await;
    world.put(b"k", 100, None);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(node.tier.status().backlog.entries, 0);
    assert!(matches!(node.tier.find(1, b"k"), Found::At(_)));
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_value_larger_than_all_memory_passes_both_ways() {
    let mut world = World::new(5);
    let node = world.start(&|options| {
        options.memory_bytes = 4 << 20;
        options.read_timeout = Duration::from_secs(60);
    });
    world.put(b"small", 100, None);
    world.put(b"large", 40 << 20, None);
    world.put(b"behind", 100, None);
    world.drain(&node).await;
    world.check(&node, true).await;
    assert_eq!(node.tier.status().upload_memory_bytes, 0);
    node.crash().await;
}
