//! Reads of a bucket that answers something else than bytes, or nothing.

use std::sync::Arc;

use fonn_cold_tier::store::fault::{Fault, Rule};
use fonn_cold_tier::store::s3_server::{Answer, Method, Reply, S3Server};
use fonn_cold_tier::store::{ObjectStore, Operation, S3Store};
use fonn_cold_tier::{ColdTier, Fetched, FixedCodec, Found, Location, StoreErrorKind};
use tokio::time::{Duration, Instant};

use crate::chaos::busy;
use crate::key;
use crate::node::{Node, Queue, put};
use crate::world::World;

const ENTRIES: u64 = 60;

async fn fetch(tier: &ColdTier, key: &[u8]) -> Option<Fetched> {
    match tier.find(1, key) {
        Found::At(location) => Some(tier.fetch(1, key, &location).await.0),
        Found::Absent | Found::Tombstone(_) => None,
    }
}

/// Every entry is a hit once the breaker lets reads pass.
async fn all_are_hits(tier: &ColdTier) {
    let deadline = Instant::now() + Duration::from_secs(120);
    for number in 0..ENTRIES {
        loop {
            match fetch(tier, &key(number)).await {
                Some(Fetched::Hit(_)) => break,
                Some(Fetched::Unavailable) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                other => panic!("{other:?} for {number}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_says_nothing_of_the_record_makes_no_hole_in_the_index() {
    for kind in [
        StoreErrorKind::Invalid,
        StoreErrorKind::Denied,
        StoreErrorKind::Unsupported,
        StoreErrorKind::Unavailable,
    ] {
        let mut world = World::new(60);
        let node = world.start(&crate::defaults);
        for number in 0..ENTRIES {
            world.put(&key(number), 1000, None);
        }
        world.drain(&node).await;
        let refused = Rule::new(Fault::Error(kind)).on(Operation::GetRange);
        world.faults.add(refused);
        for number in 0..ENTRIES {
            let fetched = fetch(&node.tier, &key(number)).await;
            assert_eq!(fetched, Some(Fetched::Unavailable), "{kind}");
        }
        // Most were not even sent.
        let calls = world.calls(Operation::GetRange);
        assert!(
            calls < ENTRIES / 2,
            "{calls} calls: the breaker is not open"
        );
        world.faults.clear();
        all_are_hits(&node.tier).await;
        assert_eq!(node.tier.status().counts.damaged, 0);
        node.crash().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_was_gone_or_elsewhere_is_whole_again_afterwards() {
    let server = S3Server::start().await.unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(S3Store::open(server.options()).await.unwrap());
    let dir = tempfile::tempdir().unwrap();
    let queue = Arc::new(Queue::default());
    let node = Node::start(dir.path(), store, &queue, &|options| {
        options.read_timeout = Duration::from_secs(30);
    });
    for number in 0..ENTRIES {
        let version = ((number + 1) << 16) + 1;
        queue.push(&key(number), version, put(&[7; 500], 0), 1);
    }
    assert!(node.drain(Duration::from_secs(60)).await);
    for (status, code) in [
        (404, "NoSuchBucket"),
        (301, "PermanentRedirect"),
        (400, "AuthorizationHeaderMalformed"),
    ] {
        server.answer(Answer {
            method: Some(Method::GET),
            times: u64::MAX,
            reply: Reply::Error(status, code),
        });
        for number in 0..ENTRIES {
            let fetched = fetch(&node.tier, &key(number)).await;
            assert_eq!(fetched, Some(Fetched::Unavailable), "{code}");
        }
        server.answer_itself();
        all_are_hits(&node.tier).await;
    }
    assert_eq!(node.tier.status().counts.damaged, 0);
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_segment_that_was_not_found_for_a_while_is_not_forgotten_when_it_is_back() {
    let mut world = World::new(63);
    let node = world.start(&busy);
    node.until("the collector", |tier| tier.status().is_collector)
        .await;
    for number in 0..10 {
        world.put(&key(number), 1000, None);
    }
    world.drain(&node).await;
    // As another bucket answers.
    let elsewhere = Fault::Error(StoreErrorKind::NotFound);
    world
        .faults
        .add(Rule::new(elsewhere).on(Operation::GetRange).times(1));
    assert_eq!(fetch(&node.tier, &key(0)).await, Some(Fetched::Gone));
    assert_eq!(node.tier.status().lost_segments, 1);
    // A deletion meanwhile has to be remembered.
    assert!(node.tier.may_have(1, &key(0)) && !node.tier.may_have(1, &key(99)));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(node.tier.status().lost_segments, 0);
    world.check(&node, true).await;
    node.crash().await;
}

/// A node with so much memory for its cold tier, and entries of `len` equal bytes that zstd makes
/// next to nothing.
async fn with_values(seed: u64, memory_bytes: u64, count: u8, len: usize) -> (World, Node) {
    let mut world = World::new(seed);
    let node = world.start(&|options| {
        options.memory_bytes = memory_bytes;
        options.read_timeout = Duration::from_secs(3600);
        options.codec = Arc::new(FixedCodec {
            spec: "zstd:1".parse().unwrap(),
            min_bytes: 256,
        });
    });
    for number in 0..count {
        let version = (world.now_ms() << 16) + u64::from(number);
        let value = put(&vec![number; len], 0);
        world
            .queue
            .push(&key(number.into()), version, value, world.now_ms());
    }
    world.drain(&node).await;
    (world, node)
}

fn location(node: &Node, number: u64) -> Location {
    match node.tier.find(1, &key(number)) {
        Found::At(location) => location,
        found => panic!("{found:?} for {number}"),
    }
}

#[tokio::test(start_paused = true)]
async fn values_take_memory_until_they_are_elsewhere_and_others_wait_for_it() {
    const LEN: usize = 500_000;
    // 1,280 KiB are for reads: two such values.
    const CAPACITY: u64 = 1280 << 10;
    let (world, node) = with_values(63, 8 << 20, 4, LEN).await;
    let tier = node.tier.clone();
    let used = || tier.status().read_memory_bytes;
    let locations: Vec<Location> = (0..4).map(|number| location(&node, number)).collect();
    assert!(locations[0].len_bytes() < 1000, "it is compressed");
    let mut held = Vec::new();
    for number in 0..2 {
        let (key, location) = (key(number), &locations[number as usize]);
        let (fetched, reading) = tier.fetch(1, &key, location).await;
        let Fetched::Hit(entry) = fetched else {
            panic!("{fetched:?}");
        };
        assert!(entry.value == vec![number as u8; LEN] && entry.frame.is_some());
        held.push(reading);
        let bytes = (number + 1) * LEN as u64;
        assert!(
            (bytes..bytes + (8 << 10)).contains(&used()),
            "{} held",
            used()
        );
    }
    // There is room for the bytes as they are in the bucket, not for the value: it is asked for
    // again.
    let before = world.calls(Operation::GetRange);
    let third_key = key(2);
    let third = tier.fetch(1, &third_key, &locations[2]);
    tokio::pin!(third);
    let waited = tokio::time::timeout(Duration::from_secs(60), &mut third).await;
    assert!(waited.is_err(), "it did not wait: {waited:?}");
    assert_eq!(world.calls(Operation::GetRange) - before, 1);
    assert!(used() <= CAPACITY);
    held.clear();
    let (fetched, reading) = third.await;
    assert!(matches!(fetched, Fetched::Hit(_)), "{fetched:?}");
    assert_eq!(world.calls(Operation::GetRange) - before, 2);
    drop(reading);
    assert_eq!(used(), 0);
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn values_above_all_the_memory_pass_one_after_the_other() {
    const LEN: usize = 9 << 20;
    let (_world, node) = with_values(64, 8 << 20, 3, LEN).await;
    let reads = (0..3).map(|number| {
        let (tier, location) = (node.tier.clone(), location(&node, number));
        tokio::spawn(async move {
            let (fetched, reading) = tier.fetch(1, &key(number), &location).await;
            // All that there is for reads is this one's.
            assert_eq!(tier.status().read_memory_bytes, 1280 << 10);
            drop(reading);
            matches!(fetched, Fetched::Hit(entry) if entry.value == vec![number as u8; LEN])
        })
    });
    let reads: Vec<_> = reads.collect();
    for read in reads {
        assert!(read.await.unwrap());
    }
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn long_records_are_read_in_parts_where_there_is_memory_for_them() {
    const LEN: usize = (20 << 20) + 3;
    for (memory_bytes, requests) in [(8 << 20, 1), (512 << 20, 3)] {
        let mut world = World::new(65);
        let node = world.start(&|options| {
            options.memory_bytes = memory_bytes;
            options.read_timeout = Duration::from_secs(3600);
        });
        world.put(&key(0), LEN, None);
        world.drain(&node).await;
        let before = world.calls(Operation::GetRange);
        world.check(&node, true).await;
        assert_eq!(world.calls(Operation::GetRange) - before, requests);
        // A wrong bit in any of them is found, wherever it is, and helped by a second try unless it
        // is there again.
        let flipped = Rule::new(Fault::FlipBit).on(Operation::GetRange);
        world.faults.add(flipped.after(requests - 1).times(1));
        world.check(&node, true).await;
        world
            .faults
            .add(Rule::new(Fault::FlipBit).on(Operation::GetRange));
        let fetched = fetch(&node.tier, &key(0)).await;
        assert_eq!(fetched, Some(Fetched::Damaged));
        node.crash().await;
    }
}
