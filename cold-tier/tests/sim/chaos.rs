//! Random work under faults and crashes, then recovery.

use fonn_cold_tier::store::fault::{Fault, Rule};
use fonn_cold_tier::store::{Operation, StoreErrorKind};
use fonn_cold_tier::{ColdOptions, RestoreFrom};
use tokio::time::Duration;

use crate::key;
use crate::node::{Node, verify};
use crate::world::World;

/// Every place that a crash can be made at.
const POINTS: [&str; 17] = [
    "before-put",
    "uploaded",
    "merged",
    "before-acknowledge",
    "followed",
    "restored",
    "listed",
    "before-ingest",
    "parts-written",
    "manifest-written",
    "checkpoint-removed",
    "values-moved",
    "moved",
    "doomed",
    "before-delete",
    "deleted",
    "forgotten",
];

/// Everything happens often, in small pieces.
pub fn busy(options: &mut ColdOptions) {
    options.memory_bytes = 2 << 20;
    options.segment_target_bytes = 64 << 10;
    options.follow_interval = Duration::from_secs(2);
    options.reconcile_interval = Duration::from_secs(60);
    options.collect_interval = Duration::from_secs(10);
    options.grace = Duration::from_secs(30);
    options.tombstone_age_min = Duration::from_secs(60);
    options.checkpoint_segments = 2;
}

/// A node that also follows its former selves' garbage down to the last byte.
fn work(world: &mut World, node: &Node, ttl: bool) {
    for _ in 0..40 {
        let which = key(world.random.below(60));
        match world.random.below(20) {
            0..=2 => world.delete(&which),
            3..=5 if ttl => world.put(&which, 4000, Some(20_000)),
            _ => {
                let len = 2000 + world.random.below(8000) as usize;
                world.put(&which, len, None);
            }
        }
    }
    if world.random.below(12) == 0 {
        world.flush(node);
    }
}

async fn settle(world: &mut World, options: &dyn Fn(&mut ColdOptions)) {
    let node = world.start(options);
    node.until("ready", |tier| tier.status().ready).await;
    world.drain(&node).await;
    world.check(&node, true).await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    world.check(&node, true).await;
    // No orphans, nothing damaged, nothing that leads nowhere.
    let report = verify(&node.tier).await;
    let is_whole = report.damaged.is_empty() && report.unknown.is_empty();
    assert!(is_whole || world.may_be_torn, "{report:?}");
    assert!(report.missing.is_empty(), "{report:?}");
    assert_eq!(report.wrong_entries, 0);
    // Two checkpoints are kept; one more may have been finished and not yet cleaned up after. What
    // is left of those that crashed is removed by the next holder of the lease.
    let mut waits = 0;
    loop {
        let objects = world.objects("v1/idx/").await;
        let manifests = objects.iter().filter(|name| name.ends_with("/manifest"));
        if manifests.count() <= 3 {
            break;
        }
        waits += 1;
        assert!(waits <= 10, "{objects:?}");
        tokio::time::sleep(Duration::from_secs(200)).await;
    }
    node.crash().await;
}

/// Recovery on what is there, then on nothing but the bucket, both ways.
async fn recover(world: &mut World) {
    settle(world, &busy).await;
    world.lose_index();
    settle(world, &busy).await;
    world.lose_index();
    settle(world, &|options| {
        busy(options);
        options.restore = RestoreFrom::Footers;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_step_loses_nothing_and_brings_nothing_back() {
    for (seed, point) in POINTS.into_iter().enumerate() {
        println!("crash at {point}");
        let mut world = World::new(seed as u64);
        let mut crashes = 0;
        for round in 0..5 {
            let node = world.start(&busy);
            // Some places are passed once in a run.
            let passes = match round % 2 {
                0 => 0,
                _ => world.random.below(3) as u32,
            };
            node.crash.arm(point, passes);
            for _ in 0..6 {
                work(&mut world, &node, true);
                world.try_drain(&node, Duration::from_secs(20)).await;
                tokio::select! {
                    () = node.crash.crashed() => break,
                    () = tokio::time::sleep(Duration::from_secs(30)) => {}
                }
                world.check(&node, false).await;
            }
            crashes += u32::from(node.crash.has_crashed());
            node.crash().await;
            if round % 2 == 1 {
                world.lose_index();
            }
        }
        assert!(crashes > 0, "never at {point}");
        recover(&mut world).await;
    }
}

fn rules(round: u64) -> Vec<Rule> {
    let error = |kind| Rule::new(Fault::Error(kind));
    match round % 9 {
        0 => vec![error(StoreErrorKind::Throttled).per_mille(300)],
        1 => vec![error(StoreErrorKind::Unavailable).per_mille(300)],
        2 => vec![Rule::new(Fault::LostAnswer(StoreErrorKind::Timeout)).per_mille(300)],
        3 => vec![Rule::new(Fault::Hang).per_mille(100)],
        4 => vec![Rule::new(Fault::StaleList).per_mille(500)],
        5 => vec![
            Rule::new(Fault::LostAnswer(StoreErrorKind::Unavailable))
                .on(Operation::PutIfAbsent)
                .per_mille(500),
            Rule::new(Fault::LostAnswer(StoreErrorKind::Unavailable))
                .on(Operation::Delete)
                .per_mille(500),
        ],
        // Checkpoints, and the lease.
        6 => vec![
            Rule::new(Fault::FlipBit).on(Operation::Get).per_mille(300),
            Rule::new(Fault::Truncate).on(Operation::Get).per_mille(300),
        ],
        7 => vec![
            Rule::new(Fault::HalfWritten(StoreErrorKind::Unavailable)).per_mille(300),
            Rule::new(Fault::HalfWritten(StoreErrorKind::Timeout))
                .on(Operation::PutIfAbsent)
                .per_mille(200),
        ],
        _ => vec![
            Rule::new(Fault::FlipBit)
                .on(Operation::GetSuffix)
                .per_mille(200),
            Rule::new(Fault::Truncate)
                .on(Operation::GetSuffix)
                .per_mille(200),
        ],
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_bucket_costs_time_and_nothing_else() {
    for seed in 0..9 {
        println!("seed {seed}");
        let mut world = World::new(100 + seed);
        for round in 0..4 {
            let node = world.start(&busy);
            world.may_be_torn |= (seed + round) % 9 == 7;
            for rule in rules(seed + round) {
                world.faults.add(rule);
            }
            for step in 0..4 {
                work(&mut world, &node, true);
                if step == 1 {
                    world.faults.go_down();
                }
                world.try_drain(&node, Duration::from_secs(60)).await;
                tokio::time::sleep(Duration::from_secs(120)).await;
                world.faults.come_up();
                world.check(&node, false).await;
            }
            world.faults.clear();
            if round == 2 {
                world.drain(&node).await;
            }
            node.crash().await;
            if round == 1 {
                world.lose_index();
            }
        }
        recover(&mut world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn bits_that_flip_on_the_way_are_never_served() {
    let mut world = World::new(7);
    let node = world.start(&busy);
    for number in 0..200 {
        world.put(&key(number), 3000, None);
    }
    world.drain(&node).await;
    world.may_lose = true;
    world.faults.add(
        Rule::new(Fault::FlipBit)
            .on(Operation::GetRange)
            .per_mille(400),
    );
    world.faults.add(
        Rule::new(Fault::Truncate)
            .on(Operation::GetRange)
            .per_mille(400),
    );
    world.check(&node, false).await;
    let counts = node.tier.status().counts;
    assert!(counts.damaged > 10 && counts.hits > 10, "{counts:?}");
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_vanished_segment_is_a_miss_without_further_requests() {
    let mut world = World::new(8);
    let node = world.start(&busy);
    for number in 0..100 {
        world.put(&key(number), 3000, None);
    }
    world.drain(&node).await;
    world.may_lose = true;
    world
        .faults
        .add(Rule::new(Fault::Vanish).on(Operation::GetRange).times(1));
    world.check(&node, false).await;
    let status = node.tier.status();
    assert_eq!((status.counts.gone, status.lost_segments), (1, 1));
    let before = world.calls(Operation::GetRange);
    let hits = status.counts.hits;
    world.check(&node, false).await;
    assert_eq!(world.calls(Operation::GetRange) - before, hits);
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn clocks_that_jump_bring_nothing_back() {
    for seed in 0..4 {
        println!("seed {seed}");
        let mut world = World::new(200 + seed);
        let node = world.start(&busy);
        for _ in 0..10 {
            work(&mut world, &node, false);
            let day = 86_400_000;
            let now_ms = world.now_ms();
            let jump = world.random.below(2 * day);
            world
                .manual
                .set_wall_ms((now_ms + jump).saturating_sub(day));
            world.drain(&node).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            world.check(&node, true).await;
        }
        node.crash().await;
        recover(&mut world).await;
    }
}
