//! Garbage, budgets and several nodes.

use std::sync::Arc;

use fonn_cold_tier::names::SegmentName;
use fonn_cold_tier::segment::{Fact, FlushMark, Record, SegmentBuilder, SegmentHeader};
use fonn_cold_tier::store::fault::{Fault, Rule};
use fonn_cold_tier::store::{ObjectKey, ObjectStore, Operation};
use fonn_cold_tier::{ColdOptions, Found, RestoreFrom, SpillFact, StoreErrorKind};
use tokio::time::Duration;

use crate::chaos::busy;
use crate::key;
use crate::node::{Queue, UNBELIEVABLE, put, verify};
use crate::world::World;

#[tokio::test(start_paused = true)]
async fn overwritten_deleted_and_expired_entries_leave_the_bucket() {
    let mut world = World::new(20);
    let node = world.start(&busy);
    for _ in 0..5 {
        for number in 0..100 {
            world.put(&key(number), 5000, None);
            world.put(&key(1000 + number), 5000, Some(1000));
        }
        world.drain(&node).await;
    }
    let full = node.tier.status().bytes;
    for number in 0..90 {
        world.delete(&key(number));
    }
    world.drain(&node).await;
    tokio::time::sleep(Duration::from_secs(1800)).await;
    world.check(&node, true).await;
    let status = node.tier.status();
    assert!(
        status.bytes < 300_000,
        "{} of {full} bytes are left: {status:?}",
        status.bytes
    );
    assert!(status.is_collector);
    assert!(status.counts.collected_bytes >= full - status.bytes);
    // What is in the bucket is what the index knows.
    let report = verify(&node.tier).await;
    assert!(report.damaged.is_empty() && report.unknown.is_empty() && report.missing.is_empty());
    assert_eq!(report.segments, node.tier.list().len() as u64);
    node.crash().await;
    world.lose_index();
    let node = world.start(&busy);
    node.until("ready", |tier| tier.status().ready).await;
    world.check(&node, true).await;
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn the_budget_holds_and_dropped_entries_uncover_nothing() {
    let mut world = World::new(21);
    let budget = 2 << 20;
    let options = |options: &mut ColdOptions| {
        busy(options);
        options.budget_bytes = Some(budget);
    };
    let node = world.start(&options);
    world.may_lose = true;
    for round in 0..20u64 {
        for number in 0..100 {
            world.put(&key(round * 50 + number), 4000, None);
        }
        world.drain(&node).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        world.check(&node, true).await;
    }
    tokio::time::sleep(Duration::from_secs(300)).await;
    let bytes = node.tier.status().region_bytes;
    assert!(bytes < budget + budget / 10, "{bytes} of {budget}");
    assert!(
        bytes > budget / 2,
        "{bytes} of {budget}: dropped without need"
    );
    node.crash().await;
    world.lose_index();
    let node = world.start(&options);
    node.until("ready", |tier| tier.status().ready).await;
    world.check(&node, true).await;
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn another_node_hears_of_what_is_newer_and_reads_it() {
    let mut world = World::new(22);
    let writer = world.start(&busy);
    let other_queue = Arc::new(Queue::default());
    let other_dir = world.dir().join("other");
    let other = world.start_in(&other_dir, &other_queue, &|options| {
        busy(options);
        options.region = "us".parse().unwrap();
    });
    other
        .until("caught up", |tier| tier.status().caught_up)
        .await;
    world.put(b"k", 1000, None);
    world.drain(&writer).await;
    other
        .until("followed", |tier| {
            matches!(tier.find(1, b"k"), Found::At(_))
        })
        .await;
    let version = world.model[&b"k"[..]].last().unwrap().version;
    assert_eq!(other.told.superseded.lock().get(&b"k"[..]), Some(&version));
    assert!(
        writer.told.superseded.lock().is_empty(),
        "it wrote it itself"
    );
    world.check(&other, false).await;
    world.delete(b"k");
    world.drain(&writer).await;
    other
        .until("deleted", |tier| {
            matches!(tier.find(1, b"k"), Found::Tombstone(_))
        })
        .await;
    world.flush(&writer);
    let cutoff = world.cutoff;
    other
        .until("flushed", |_| *other.told.flushed.lock() == cutoff)
        .await;
    writer.crash().await;
    other.crash().await;
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_is_late_brings_nothing_back_that_was_deleted_meanwhile() {
    let mut world = World::new(24);
    let late = world.start(&busy);
    let other_queue = Arc::new(Queue::default());
    let other_dir = world.dir().join("other");
    let other = world.start_in(&other_dir, &other_queue, &|options| {
        busy(options);
        options.region = "us".parse().unwrap();
    });
    for node in [&late, &other] {
        node.until("caught up", |tier| tier.status().caught_up)
            .await;
    }
    // Only the first region's puts fail.
    for operation in [Operation::PutIfAbsent, Operation::Put] {
        let refused = Fault::Error(StoreErrorKind::Unavailable);
        world
            .faults
            .add(Rule::new(refused).on(operation).matching("/eu/"));
    }
    world.put(b"k", 1000, None);
    world.put(b"stays", 1000, None);
    late.until("refused", |tier| tier.status().counts.upload_retries > 0)
        .await;
    let version = world.model[&b"k"[..]].last().unwrap().version + 1;
    other_queue.push(b"k", version, SpillFact::Tombstone, world.now_ms());
    for node in [&late, &other] {
        node.until("deleted", |tier| {
            matches!(tier.find(1, b"k"), Found::Tombstone(_))
        })
        .await;
    }
    // It hides nothing that is in the bucket.
    other
        .until("collected", |tier| tier.find(1, b"k") == Found::Absent)
        .await;
    // Long enough for the index of the late node to forget it, too, if it did.
    tokio::time::sleep(Duration::from_secs(600)).await;
    world.faults.clear();
    other
        .until("uploaded", |tier| {
            matches!(tier.find(1, b"stays"), Found::At(_))
        })
        .await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    for node in [&late, &other] {
        assert!(!matches!(node.tier.find(1, b"k"), Found::At(_)));
    }
    late.crash().await;
    other.crash().await;
}

#[tokio::test(start_paused = true)]
async fn what_expired_or_was_deleted_does_not_uncover_what_it_overwrote() {
    let mut world = World::new(23);
    let node = world.start(&busy);
    // A segment that stays, since most of it lives.
    for number in 0..10 {
        world.put(&key(number), 5000, None);
    }
    world.drain(&node).await;
    let old = node.tier.list().first().map(|segment| segment.name.clone());
    world.put(&key(0), 5000, Some(60_000));
    world.delete(&key(1));
    world.drain(&node).await;
    let hiding = node.tier.list().last().map(|segment| segment.name.clone());
    tokio::time::sleep(Duration::from_secs(1800)).await;
    let names: Vec<_> = node
        .tier
        .list()
        .into_iter()
        .map(|segment| segment.name)
        .collect();
    assert!(
        names.contains(&old.unwrap()),
        "the old copies are still there"
    );
    assert!(
        !names.contains(&hiding.unwrap()),
        "what hid them was collected"
    );
    world.check(&node, true).await;
    node.crash().await;
    // Only the bucket remembers anything.
    world.queue = Arc::new(Queue::default());
    world.lose_index();
    let node = world.start(&|options| {
        busy(options);
        options.restore = RestoreFrom::Footers;
    });
    node.until("ready", |tier| tier.status().ready).await;
    world.check(&node, true).await;
    assert!(matches!(node.tier.find(1, &key(0)), Found::Tombstone(_)));
    assert!(matches!(node.tier.find(1, &key(1)), Found::Tombstone(_)));
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn flushed_entries_leave_the_bucket_without_a_budget() {
    let mut world = World::new(25);
    let node = world.start(&busy);
    for number in 0..200 {
        world.put(&key(number), 5000, None);
    }
    world.drain(&node).await;
    let full = node.tier.status().bytes;
    world.flush(&node);
    tokio::time::sleep(Duration::from_secs(1800)).await;
    let bytes = node.tier.status().bytes;
    assert!(bytes < full / 10, "{bytes} of {full}");
    world.check(&node, true).await;
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_flush_of_a_clock_that_is_years_ahead_ends_no_spilling() {
    let mut world = World::new(26);
    let node = world.start(&busy);
    let ahead = world.start_in(&world.dir().join("ahead"), &Arc::default(), &|options| {
        busy(options);
        options.region = "us".parse().unwrap();
    });
    for it in [&node, &ahead] {
        it.until("caught up", |tier| tier.status().caught_up).await;
    }
    let mark = FlushMark::of_space(1, UNBELIEVABLE);
    ahead.tier.flush(mark).unwrap();
    node.until("followed", |tier| {
        tier.status().counts.followed_segments > 0
    })
    .await;
    world.put(b"k", 1000, None);
    world.drain(&node).await;
    world.check(&node, true).await;
    assert_eq!(node.tier.flush_marks(), []);
    node.crash().await;
    ahead.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_collect_forgets_what_the_collector_dropped() {
    let mut world = World::new(29);
    let dir = world.dir().join("collector");
    let collector = world.start_in(&dir, &Arc::default(), &busy);
    collector
        .until("the collector", |tier| tier.status().is_collector)
        .await;
    let node = world.start(&busy);
    for number in 0..100 {
        world.put(&key(number), 5000, Some(60_000));
    }
    world.drain(&node).await;
    assert!(node.tier.status().segments > 0);
    // An empty bucket could be another one.
    world.put(b"alive", 100, None);
    world.drain(&node).await;
    tokio::time::sleep(Duration::from_secs(1800)).await;
    for it in [&collector, &node] {
        let status = it.tier.status();
        assert_eq!((status.segments, status.lost_segments), (1, 0));
        // Nothing has vanished that no node deleted.
        assert_eq!(status.counts.lost_segments, 0);
    }
    // What is known to be gone is not asked for again.
    let before = world.calls(Operation::Head);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.calls(Operation::Head), before);
    collector.crash().await;
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn vanished_segments_of_another_region_hinder_no_collection() {
    /// More than a round has steps.
    const SEGMENTS: u64 = 70;
    let mut world = World::new(30);
    let us_queue = Arc::new(Queue::default());
    let us = world.start_in(&world.dir().join("us"), &us_queue, &|options| {
        busy(options);
        options.region = "us".parse().unwrap();
        // It ends before it would merge them.
        options.collect_interval = Duration::from_secs(86_400);
    });
    for number in 0..SEGMENTS {
        let version = (world.now_ms() << 16) + number;
        let value = put(&[7; 500], 0);
        us_queue.push(&key(10_000 + number), version, value, world.now_ms());
        assert!(us.drain(Duration::from_secs(3600)).await);
    }
    us.crash().await;
    let node = world.start(&busy);
    node.until("followed", |tier| tier.status().segments >= SEGMENTS)
        .await;
    for name in world.objects("v1/seg/us/").await {
        let key = ObjectKey::new(&name).unwrap();
        world.memory.delete(&key).await.unwrap();
    }
    // Longer than the grace, from when it is noticed on.
    tokio::time::sleep(Duration::from_secs(300)).await;
    for _ in 0..5 {
        for number in 0..100 {
            world.put(&key(number), 5000, None);
        }
        world.drain(&node).await;
    }
    let full = node.tier.status().bytes;
    tokio::time::sleep(Duration::from_secs(1800)).await;
    let status = node.tier.status();
    assert!(status.bytes < full / 2, "{} of {full}", status.bytes);
    // They are most of all, and may come back.
    assert_eq!(status.lost_segments, SEGMENTS);
    world.check(&node, true).await;
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_half_written_segment_gets_another_name_and_leaves_nothing() {
    let mut world = World::new(27);
    let node = world.start(&busy);
    node.until("caught up", |tier| tier.status().caught_up)
        .await;
    let torn = Fault::HalfWritten(StoreErrorKind::Unavailable);
    world.faults.add(
        Rule::new(torn)
            .on(Operation::PutIfAbsent)
            .matching("v1/seg/")
            .times(5),
    );
    for number in 0..200 {
        world.put(&key(number), 4000, None);
    }
    let before = world.faults.injected();
    world.drain(&node).await;
    assert_eq!(world.faults.injected() - before, 5);
    world.check(&node, true).await;
    let report = verify(&node.tier).await;
    assert!(
        report.damaged.is_empty() && report.unknown.is_empty(),
        "{report:?}"
    );
    let objects = world.objects("v1/seg/").await;
    assert_eq!(objects.len() as u64, report.segments);
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_taken_by_the_segment_of_another_is_left_to_it() {
    let mut world = World::new(28);
    let node = world.start(&busy);
    node.until("caught up", |tier| tier.status().caught_up)
        .await;
    // The first try leaves a part, and the next ones wait for the test.
    let torn = Rule::new(Fault::HalfWritten(StoreErrorKind::Unavailable)).times(1);
    let refused = Rule::new(Fault::Error(StoreErrorKind::Unavailable));
    for rule in [torn, refused] {
        world
            .faults
            .add(rule.on(Operation::PutIfAbsent).matching("v1/seg/"));
    }
    world.put(b"ours", 1000, None);
    node.until("refused", |tier| tier.status().counts.upload_retries > 1)
        .await;
    let objects = world.objects("v1/seg/").await;
    let name = SegmentName::parse(&objects[0]).unwrap();
    let mut theirs = SegmentBuilder::new();
    let record = Record {
        space: 1,
        key: b"theirs",
        at: 1,
        fact: Fact::Tombstone,
    };
    theirs.push(&record).unwrap();
    let header = SegmentHeader {
        region: name.region.clone(),
        writer: name.writer,
        seq: name.seq,
        created_ms: world.now_ms(),
    };
    let theirs = theirs.finish(header, &[]).to_bytes();
    let key = name.key();
    world.memory.put(&key, theirs.clone().into()).await.unwrap();
    world.faults.clear();
    world.drain(&node).await;
    assert!(matches!(node.tier.find(1, b"ours"), Found::At(_)));
    assert_eq!(world.memory.get(&key).await.unwrap(), theirs);
    assert_eq!(world.objects("v1/seg/").await.len(), 2);
    node.crash().await;
}
