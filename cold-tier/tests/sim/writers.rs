//! Several nodes that write, or read, the same keys, each at its own pace.

use std::sync::Arc;

use fonn_cold_tier::store::fault::{Fault, Rule};
use fonn_cold_tier::{ColdOptions, Fetched, Found, StoreErrorKind};
use tokio::time::Duration;

use crate::chaos::busy;
use crate::key;
use crate::node::{Node, Queue};
use crate::world::{Kind, World};

#[tokio::test(start_paused = true)]
async fn two_regions_that_write_the_same_keys_agree_on_the_newest_whatever_fails() {
    for seed in 0..4 {
        println!("seed {seed}");
        let mut world = World::new(300 + seed);
        let dirs = ["eu", "us"].map(|region| (region, world.dir().join(region)));
        // The queue that the world writes to is that of whoever's turn it is.
        let queues = [Arc::clone(&world.queue), Arc::new(Queue::default())];
        let start = |world: &World, index: usize| {
            let (region, dir) = &dirs[index];
            world.start_in(dir, &queues[index], &|options: &mut ColdOptions| {
                busy(options);
                options.region = region.parse().unwrap();
            })
        };
        let mut nodes = [start(&world, 0), start(&world, 1)];
        for round in 0..6 {
            let failing = Rule::new(Fault::Error(StoreErrorKind::Unavailable)).per_mille(200);
            let lost = Rule::new(Fault::LostAnswer(StoreErrorKind::Timeout)).per_mille(200);
            world.faults.add(failing);
            world.faults.add(lost);
            for _ in 0..60 {
                let which = key(world.random.below(30));
                world.queue = Arc::clone(&queues[world.random.below(2) as usize]);
                match world.random.below(6) {
                    0 => world.delete(&which),
                    _ => world.put(&which, 3000, None),
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            if round % 2 == 0 {
                let index = world.random.below(2) as usize;
                let [eu, us] = nodes;
                let (kept, crashed) = if index == 0 { (us, eu) } else { (eu, us) };
                crashed.crash().await;
                let again = start(&world, index);
                nodes = if index == 0 {
                    [again, kept]
                } else {
                    [kept, again]
                };
            }
            world.faults.clear();
            for node in &nodes {
                node.until("caught up", |tier| tier.status().caught_up)
                    .await;
                world.drain(node).await;
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
            for node in &nodes {
                world.check(node, true).await;
            }
        }
        for node in nodes {
            node.crash().await;
        }
        // Only the bucket remembers anything.
        world.lose_index();
        let node = world.start_in(&world.dir(), &Arc::new(Queue::default()), &busy);
        node.until("ready", |tier| tier.status().ready).await;
        world.check(&node, true).await;
        node.crash().await;
    }
}

/// What a reader has, by its own index: entries that it serves in their newest version, in an older
/// one, and reads of which the segment was gone.
async fn read_all(world: &World, reader: &Node) -> (u64, u64, u64) {
    let (mut newest, mut older, mut gone) = (0, 0, 0);
    for (key, ops) in &world.model {
        let Found::At(location) = reader.tier.find(1, key) else {
            continue;
        };
        match reader.tier.fetch(1, key, &location).await.0 {
            Fetched::Hit(entry) => {
                let op = ops.iter().find(|op| op.version == entry.at);
                let is_right = op.is_some_and(
                    |op| matches!(&op.kind, Kind::Put { value, .. } if *value == entry.value),
                );
                assert!(is_right, "wrong bytes");
                if ops.last().is_some_and(|op| op.version == entry.at) {
                    newest += 1;
                } else {
                    older += 1;
                }
            }
            Fetched::Gone => gone += 1,
            other => panic!("{other:?}"),
        }
    }
    (newest, older, gone)
}

#[tokio::test(start_paused = true)]
async fn a_reader_whose_index_is_old_misses_nothing_within_the_grace_and_is_never_wrong() {
    const KEYS: u64 = 100;
    let mut world = World::new(310);
    let grace = Duration::from_secs(1800);
    let patient = |options: &mut ColdOptions| {
        busy(options);
        options.grace = grace;
    };
    let writer = world.start(&patient);
    for number in 0..KEYS {
        world.put(&key(number), 4000, None);
    }
    world.drain(&writer).await;
    // It sees the bucket as it is now, and hears nothing for a day.
    let dir = world.dir().join("reader");
    let reader = world.start_in(&dir, &Arc::new(Queue::default()), &|options| {
        busy(options);
        let day = Duration::from_secs(86_400);
        options.region = "us".parse().unwrap();
        options.follow_interval = day;
        options.reconcile_interval = 100 * day;
    });
    reader
        .until("caught up", |tier| tier.status().caught_up)
        .await;
    assert_eq!(read_all(&world, &reader).await, (KEYS, 0, 0));
    // Its segments become old, then mostly garbage, then rewritten.
    tokio::time::sleep(grace + Duration::from_secs(60)).await;
    for number in 0..KEYS {
        if number % 5 != 0 {
            world.put(&key(number), 4000, None);
        }
    }
    world.drain(&writer).await;
    writer
        .until("rewritten", |_| {
            writer.crash.passed().contains_key("doomed")
        })
        .await;
    world.check(&writer, true).await;
    tokio::time::sleep(grace / 2).await;
    // What counts was moved, and is there still where it was. Where nothing counts any more, the
    // segment is gone at once.
    let (newest, older, _) = read_all(&world, &reader).await;
    assert_eq!(newest, KEYS / 5);
    assert!(older > 0);
    tokio::time::sleep(grace).await;
    let (_, _, gone) = read_all(&world, &reader).await;
    assert!(gone > 0, "nothing is gone");
    world.check(&writer, true).await;
    writer.crash().await;
    reader.crash().await;
}
