//! Checkpoints that the bucket lists and does not give.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};

use fonn_cold_tier::store::fault::{Fault, Rule};
use fonn_cold_tier::store::{ObjectStore, Operation, PAGE_MAX};
use fonn_cold_tier::{ColdTier, StoreErrorKind};
use tokio::time::{Duration, Instant};

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

#[tokio::test(start_paused = true)]
async fn the_next_start_removes_checkpoints_that_were_left() {
    let mut world = World::new(73);
    // Each crashes between its checkpoint and the removal of older ones.
    for life in 0..4 {
        let node = world.start(&busy);
        node.crash.arm("manifest-written", 0);
        for round in 0..100 {
            for number in 0..10 {
                world.put(&key(life * 1000 + round * 10 + number), 5000, None);
            }
            world.try_drain(&node, Duration::from_secs(20)).await;
            tokio::select! {
                () = node.crash.crashed() => break,
                () = tokio::time::sleep(Duration::from_secs(20)) => {}
            }
        }
        assert!(node.crash.has_crashed());
        node.crash().await;
    }
    let count = async |world: &World| {
        let objects = world.objects("v1/idx/").await;
        objects
            .iter()
            .filter(|name| name.ends_with("/manifest"))
            .count()
    };
    assert_eq!(count(&world).await, 4);
    let node = world.start(&busy);
    node.until("ready", |tier| tier.status().ready).await;
    // The lease of the last one has to run out.
    tokio::time::sleep(Duration::from_secs(2000)).await;
    assert_eq!(count(&world).await, 2);
    world.check(&node, true).await;
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_of_a_node_that_started_before_others_is_kept() {
    let mut world = World::new(75);
    let first = world.start_in(&world.dir().join("first"), &Arc::default(), &|options| {
        busy(options);
        // The other one gets the lease.
        options.collect_interval = Duration::from_secs(86_400);
    });
    first
        .until("caught up", |tier| tier.status().caught_up)
        .await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let second = world.start(&busy);
    for round in 0..40 {
        for number in 0..10 {
            world.put(&key(round * 10 + number), 5000, None);
        }
        world.drain(&second).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    assert!(second.tier.status().counts.checkpoints > 1);
    second.crash().await;
    let stopped_ms = world.now_ms();
    first
        .until("a checkpoint", |tier| tier.status().counts.checkpoints > 0)
        .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let page = world.memory.list("v1/idx/", None, PAGE_MAX).await.unwrap();
    let objects = page.objects.iter();
    let manifests = objects.filter(|object| object.key.as_str().ends_with("/manifest"));
    let written_ms = manifests.map(|object| object.modified_ms).max();
    assert!(written_ms > Some(stopped_ms), "it was removed at once");
    first.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_is_kept_after_the_clock_was_set_back() {
    let (mut world, before) = with_checkpoints(76).await;
    let hour_ms = 3_600_000;
    world.manual.set_wall_ms(world.now_ms() - hour_ms);
    let node = world.start(&busy);
    node.until("ready", |tier| tier.status().ready).await;
    for round in 0..200 {
        if node.tier.status().counts.checkpoints > 0 {
            break;
        }
        for number in 0..10 {
            world.put(&key(1000 + round * 10 + number), 5000, None);
        }
        world.drain(&node).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    assert!(node.tier.status().counts.checkpoints > 0);
    // A round of the collector later, the oldest of three is gone.
    tokio::time::sleep(Duration::from_secs(600)).await;
    let mut after = world.objects("v1/idx/").await;
    after.retain(|name| name.ends_with("/manifest"));
    assert_eq!(after.len(), 2, "{after:?}");
    assert!(!after.contains(&before[0]), "{after:?}");
    assert!(after.iter().any(|name| !before.contains(name)), "{after:?}");
    node.crash().await;
}

/// Starts without an index while `part` of the checkpoints cannot be read; gives how many footers
/// were read until it was ready.
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

#[tokio::test(start_paused = true)]
async fn a_footer_that_is_refused_is_named_and_waited_for() {
    let (mut world, _) = with_checkpoints(72).await;
    let name = world.objects("v1/seg/").await.remove(3);
    let refusal = Rule::new(Fault::Error(StoreErrorKind::Denied)).on(Operation::GetSuffix);
    world.faults.add(refusal.matching(&name));
    // Without a checkpoint its footer is needed.
    let checkpoints = Rule::new(Fault::Error(StoreErrorKind::Denied)).on(Operation::Get);
    world.faults.add(checkpoints.matching("v1/idx/"));
    world.put(&key(1000), 100, None);
    let node = world.start(&busy);
    node.until("it is named", |tier| tier.status().refused.is_some())
        .await;
    let before = world.calls(Operation::List);
    tokio::time::sleep(Duration::from_secs(600)).await;
    // The bucket has thousands of pages, perhaps.
    let lists = world.calls(Operation::List) - before;
    assert!(lists <= 4, "{lists} lists in ten minutes");
    let status = node.tier.status();
    let refused = status.refused.unwrap();
    assert_eq!((refused.name.to_string(), refused.is_denied), (name, true));
    // It may hold a newer copy of anything, or a tombstone: nothing counts as complete.
    assert!(!status.ready && !status.caught_up);
    world.check(&node, false).await;
    world.faults.clear();
    let began = Instant::now();
    node.until("ready", |tier| tier.status().caught_up).await;
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(node.tier.status().refused, None);
    world.drain(&node).await;
    world.check(&node, true).await;
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn while_the_index_is_read_no_older_copy_is_served() {
    let mut world = World::new(74);
    let node = world.start(&busy);
    for number in 0..20 {
        world.put(&key(number), 500, None);
    }
    world.drain(&node).await;
    for number in 0..20 {
        match number % 2 {
            0 => world.put(&key(number), 400, None),
            _ => world.delete(&key(number)),
        }
    }
    world.drain(&node).await;
    node.crash().await;
    let segments = world.objects("v1/seg/").await;
    world.lose_index();
    // What came first is known long before what came after it.
    let slow = Rule::new(Fault::Slow(Duration::from_secs(20))).on(Operation::GetSuffix);
    world
        .faults
        .add(slow.matching(&segments[segments.len() - 1]));
    let node = world.start(&busy);
    for _ in 0..15 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!node.tier.is_ready());
        world.check(&node, false).await;
    }
    assert!(node.tier.entries_approx() > 0, "nothing is known by now");
    node.until("ready", ColdTier::is_ready).await;
    world.check(&node, true).await;
    node.crash().await;
}

/// Keeps what is logged: message and fields of each event.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn an_index_built_from_the_footers_alone_says_how_far_it_is() {
    let (world, _) = with_checkpoints(73).await;
    let segments = world.objects("v1/seg/").await.len();
    let checkpoints = Rule::new(Fault::Error(StoreErrorKind::Denied)).on(Operation::Get);
    world.faults.add(checkpoints.matching("v1/idx/"));
    let slow = Rule::new(Fault::Slow(Duration::from_secs(6))).on(Operation::GetSuffix);
    world.faults.add(slow);
    let log = Log::default();
    let kept = tracing::subscriber::set_default(log.clone());
    let node = world.start(&busy);
    node.until("ready", |tier| tier.status().ready).await;
    drop(kept);
    world.faults.clear();
    world.check(&node, true).await;
    node.crash().await;
    // A round of reads takes longer than the log waits: each is told of, and each is further.
    let lines = log.0.lock().unwrap();
    let number = |line: &str, name: &str| -> Option<usize> {
        let (_, rest) = line.split_once(&format!("{name}="))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let told: Vec<(usize, usize)> = lines
        .iter()
        .filter(|line| line.contains("reading footers of segments"))
        .map(|line| {
            (
                number(line, "done").unwrap(),
                number(line, "total").unwrap(),
            )
        })
        .collect();
    assert!(told.len() >= 2, "{lines:?}");
    assert!(told.is_sorted_by(|a, b| a.0 < b.0), "{told:?}");
    assert!(
        told.iter()
            .all(|(done, total)| done <= total && *total == segments)
    );
}
