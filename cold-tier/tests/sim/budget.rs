//! `--cold-budget`: kept soon, by all regions together, and without turning in circles.

use std::sync::Arc;

use fonn_cold_tier::store::Operation;
use fonn_cold_tier::{ColdOptions, Fetched, Found};
use tokio::time::Duration;

use crate::chaos::busy;
use crate::key;
use crate::node::Queue;
use crate::world::World;

const BUDGET: u64 = 2 << 20;

/// Rounds as rare as they are outside of tests.
fn bounded(options: &mut ColdOptions) {
    busy(options);
    options.collect_interval = ColdOptions::new("", "eu".parse().unwrap()).collect_interval;
    options.budget_bytes = Some(BUDGET);
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_exceeded_does_not_wait_for_the_next_round() {
    let mut world = World::new(50);
    let node = world.start(&bounded);
    node.until("the collector", |tier| tier.status().is_collector)
        .await;
    // Another round is minutes away.
    tokio::time::sleep(Duration::from_secs(10)).await;
    for number in 0..1000 {
        world.put(&key(number), 4000, None);
    }
    world.drain(&node).await;
    let before = node.tier.status().region_bytes;
    assert!(before > BUDGET * 3 / 2, "{before}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let bytes = node.tier.status().region_bytes;
    assert!(bytes < BUDGET + BUDGET / 10, "{bytes} of {BUDGET}");
    assert!(bytes > BUDGET / 2, "{bytes}: dropped without need");
    world.may_lose = true;
    world.check(&node, false).await;
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_cannot_be_kept_costs_no_more_rounds_than_one_that_is() {
    let mut world = World::new(51);
    let node = world.start(&bounded);
    node.until("the collector", |tier| tier.status().is_collector)
        .await;
    for number in 0..100 {
        world.put(&key(number), 4000, None);
    }
    world.drain(&node).await;
    // The segment that says so stays, whatever the budget is.
    world.flush(&node);
    node.tier.set_budget(Some(1));
    tokio::time::sleep(Duration::from_secs(600)).await;
    // A look at the lease begins each round.
    let before = world.calls(Operation::Get);
    tokio::time::sleep(Duration::from_secs(6 * 3600)).await;
    let rounds = world.calls(Operation::Get) - before;
    assert!(node.tier.status().region_bytes > 1);
    assert!((60..=80).contains(&rounds), "{rounds} rounds in six hours");
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn regions_keep_the_budget_together_and_the_larger_gives_way() {
    let mut world = World::new(52);
    let eu = world.start(&bounded);
    let us_queue = Arc::new(Queue::default());
    let us = world.start_in(&world.dir().join("us"), &us_queue, &|options| {
        bounded(options);
        options.region = "us".parse().unwrap();
    });
    for node in [&eu, &us] {
        node.until("the collector", |tier| tier.status().is_collector)
            .await;
    }
    let value = |number: u8| crate::node::put(&[number; 4000], 0);
    for number in 0..100u8 {
        let version = (world.now_ms() << 16) + u64::from(number);
        let (key, now_ms) = (key(10_000 + u64::from(number)), world.now_ms());
        us_queue.push(&key, version, value(number), now_ms);
    }
    assert!(us.drain(Duration::from_secs(3600)).await);
    for number in 0..1000 {
        world.put(&key(number), 4000, None);
    }
    world.drain(&eu).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    for node in [&eu, &us] {
        let status = node.tier.status();
        let most = BUDGET + BUDGET / 10;
        assert!(status.bytes < most, "{} of {BUDGET}", status.bytes);
        assert_eq!(status.budget_bytes, Some(BUDGET));
        let part = status.region_budget_bytes.unwrap();
        assert!(part < BUDGET && part > status.region_bytes * 9 / 10);
    }
    // The one that takes less than its part keeps all.
    for number in 0..100 {
        let found = us.tier.find(1, &key(10_000 + number));
        assert!(matches!(found, Found::At(_)), "{found:?} of {number}");
    }
    eu.crash().await;
    us.crash().await;
}

/// Which of four sets of entries, the oldest first, the collector's region still has after it made
/// room for half of them; another region has read the first before, if it `reads`.
async fn kept_of_four(seed: u64, reads: bool) -> Vec<bool> {
    const SET: u64 = 250;
    let mut world = World::new(seed);
    let eu = world.start(&bounded);
    eu.tier.set_budget(Some(16 << 20));
    for set in 0..4 {
        for number in 0..SET {
            world.put(&key(set * SET + number), 4000, None);
        }
        world.drain(&eu).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let us = world.start_in(&world.dir().join("us"), &Arc::default(), &|options| {
        bounded(options);
        options.region = "us".parse().unwrap();
        options.budget_bytes = Some(16 << 20);
    });
    us.until("the index", |tier| tier.status().caught_up).await;
    if reads {
        for number in [16, 18, 100, 240] {
            let key = key(number);
            let Found::At(location) = us.tier.find(1, &key) else {
                panic!("entry {number} is not there");
            };
            let fetched = us.tier.fetch(1, &key, &location).await.0;
            assert!(matches!(fetched, Fetched::Hit(_)), "{fetched:?}");
        }
    }
    eu.until("the collector", |tier| tier.status().is_collector)
        .await;
    tokio::time::sleep(Duration::from_secs(700)).await;
    eu.tier.set_budget(Some(BUDGET + BUDGET / 5));
    tokio::time::sleep(Duration::from_secs(120)).await;
    let is_there = |set: u64| {
        let found = eu.tier.find(1, &key(set * SET + 17));
        matches!(found, Found::At(_))
    };
    let kept = (0..4).map(is_there).collect();
    let bytes = eu.tier.status().region_bytes;
    assert!(bytes < BUDGET * 4 / 3, "{bytes} of {BUDGET}");
    eu.crash().await;
    us.crash().await;
    kept
}

#[tokio::test(start_paused = true)]
async fn what_another_region_reads_is_not_given_up_before_unread_segments() {
    assert_eq!(kept_of_four(53, false).await, [false, false, true, true]);
    // The rest of the first set went too, so there may be room for one more.
    let kept = kept_of_four(54, true).await;
    assert_eq!((kept[0], kept[1], kept[3]), (true, false, true), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn telling_what_was_read_costs_a_request_a_round_and_none_without_a_budget() {
    for budget in [None, Some(16 << 20)] {
        let mut world = World::new(55);
        let node = world.start(&bounded);
        node.tier.set_budget(budget);
        world.put(&key(1), 4000, None);
        world.drain(&node).await;
        node.until("the collector", |tier| tier.status().is_collector)
            .await;
        let told = |puts: u64| world.calls(Operation::Put) - puts;
        let puts = world.calls(Operation::Put);
        for _ in 0..360 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let Found::At(location) = node.tier.find(1, &key(1)) else {
                panic!("the entry is not there");
            };
            let fetched = node.tier.fetch(1, &key(1), &location).await.0;
            assert!(matches!(fetched, Fetched::Hit(_)), "{fetched:?}");
        }
        let objects = world.objects("v1/read/").await;
        let puts_while_reading = told(puts);
        // Nothing is read: nothing is told. The lease is renewed as before.
        let puts = world.calls(Operation::Put);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let puts_of_the_lease = told(puts);
        let news = puts_while_reading.saturating_sub(puts_of_the_lease);
        match budget {
            None => assert_eq!((objects.len(), news), (0, 0)),
            Some(_) => {
                assert_eq!(objects.len(), 1);
                assert!((5..=13).contains(&news), "{news} in an hour");
            }
        }
        node.crash().await;
    }
}
