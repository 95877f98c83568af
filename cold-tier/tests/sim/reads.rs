//! Reads of a bucket that answers something else than bytes, or nothing.

use std::sync::Arc;

use fonn_cold_tier::store::fault::{Fault, Rule};
use fonn_cold_tier::store::s3_server::{Answer, Method, Reply, S3Server};
use fonn_cold_tier::store::{ObjectStore, Operation, S3Store};
use fonn_cold_tier::{ColdOptions, ColdTier, Fetched, Found, StoreErrorKind};
use tokio::time::{Duration, Instant};

use crate::chaos::busy;
use crate::key;
use crate::node::{Node, Queue, put};
use crate::world::World;

const ENTRIES: u64 = 60;

async fn fetch(tier: &ColdTier, key: &[u8]) -> Option<Fetched> {
    match tier.find(1, key) {
        Found::At(location) => Some(tier.fetch(1, key, &location).await),
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
async fn a_segment_that_was_not_found_for_a_while_is_not_deleted_when_it_is_back() {
    let mut world = World::new(63);
    let node = world.start(&|options: &mut ColdOptions| {
        busy(options);
        // Nothing but the collector looks at it again.
        options.reconcile_interval = Duration::from_secs(86_400);
    });
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
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(node.tier.status().lost_segments, 0);
    world.check(&node, true).await;
    node.crash().await;
}

/// A node with `hedge`, whose reads were quick so far, and one read that hangs: what came of that, and how many requests
/// it made.
async fn with_one_that_hangs(hedge: bool) -> (Option<Fetched>, u64) {
    let mut world = World::new(61);
    let node = world.start(&|options: &mut ColdOptions| options.hedge = hedge);
    for number in 0..200 {
        world.put(&key(number), 1000, None);
    }
    world.drain(&node).await;
    for number in 0..199 {
        let fetched = fetch(&node.tier, &key(number)).await;
        assert!(matches!(fetched, Some(Fetched::Hit(_))), "{fetched:?}");
    }
    assert_eq!(node.tier.status().counts.hedged, 0);
    world
        .faults
        .add(Rule::new(Fault::Hang).on(Operation::GetRange).times(1));
    let before = world.calls(Operation::GetRange);
    let fetched = fetch(&node.tier, &key(199)).await;
    let counts = node.tier.status().counts;
    assert_eq!(counts.hedged, u64::from(hedge));
    assert_eq!(counts.hedges_won, u64::from(hedge));
    let calls = world.calls(Operation::GetRange) - before;
    node.crash().await;
    (fetched, calls)
}

#[tokio::test(start_paused = true)]
async fn a_read_that_hangs_is_sent_a_second_time_if_that_is_wanted() {
    let (fetched, calls) = with_one_that_hangs(true).await;
    assert!(matches!(fetched, Some(Fetched::Hit(_))), "{fetched:?}");
    assert_eq!(calls, 2);
    let (fetched, calls) = with_one_that_hangs(false).await;
    assert_eq!((fetched, calls), (Some(Fetched::Deadline), 1));
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_slow_as_a_whole_gets_few_reads_twice() {
    let mut world = World::new(62);
    let node = world.start(&|options: &mut ColdOptions| {
        options.hedge = true;
        options.read_timeout = Duration::from_millis(100);
    });
    for number in 0..400 {
        world.put(&key(number), 1000, None);
    }
    world.drain(&node).await;
    for number in 0..100 {
        fetch(&node.tier, &key(number)).await;
    }
    world
        .faults
        .add(Rule::new(Fault::Hang).on(Operation::GetRange));
    for number in 100..400 {
        fetch(&node.tier, &key(number)).await;
        // The breaker lets one try now and then.
        tokio::time::sleep(Duration::from_secs(31)).await;
    }
    let counts = node.tier.status().counts;
    assert!((1..=6).contains(&counts.hedged), "{counts:?}");
    node.crash().await;
}
