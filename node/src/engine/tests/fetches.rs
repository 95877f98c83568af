//! What is fetched from below RAM: what it is good for after a write of its stripe, and the time
//! that it takes.

use fonn_base::tasks::Tasks;
use fonn_cold_tier::store::fault::{Fault, FaultStore, Rule};
use fonn_cold_tier::store::memory::MemoryStore;
use fonn_proto::peer::SlotSet;

use super::*;
use crate::engine::peer::tests::{PATIENCE, open_above};
use crate::stats::Counter;

/// What the disk has of a key, with a write of its stripe since.
async fn voided(rig: &Rig, key: &str) -> Fetched {
    evict_all(rig.engine());
    let fetched = rig.fetch(key, rig.ticket(&get(key))).await;
    let hot = &rig.engine().hot;
    hot.mutated(hot.ram.hash(SPACE, key.as_bytes()));
    fetched
}

#[tokio::test]
async fn a_read_is_answered_although_its_stripe_was_written_since_and_nothing_is_kept() {
    let rig = Rig::new(Choice::default());
    rig.set("k", b"value").await;
    let fetched = voided(&rig, "k").await;
    let Attempt::Done(Outcome::Hit(hit)) = rig.attempt(&get("k"), Some(&fetched)) else {
        panic!("it is fetched again");
    };
    assert_eq!(hit.value.as_slice(), b"value");
    assert_eq!(rig.engine().locate_in_ram(SPACE, b"k"), None);
    let absent = voided(&rig, "absent").await;
    let attempt = rig.attempt(&get("absent"), Some(&absent));
    assert!(matches!(attempt, Attempt::Done(Outcome::Miss)));
    let total = |counter| rig.engine().stats().total(counter);
    assert_eq!(total(Counter::HitsDisk), 1);
    assert_eq!(total(Counter::MissesAbsent), 1);
}

#[tokio::test]
async fn what_was_fetched_before_a_write_of_the_stripe_is_judged_as_of_now() {
    let rig = Rig::new(Choice::default());
    let is_miss = |fetched: &Fetched| {
        let attempt = rig.attempt(&get("k"), Some(fetched));
        matches!(attempt, Attempt::Done(Outcome::Miss))
    };
    rig.set("k", b"old").await;
    let fetched = voided(&rig, "k").await;
    rig.set("k", b"newer").await;
    // RAM knows the newest.
    let Attempt::Done(mut outcome) = rig.attempt(&get("k"), Some(&fetched)) else {
        panic!("it is not answered from RAM");
    };
    let hit = hit_in_scratch(&get("k"), &mut outcome);
    assert_eq!(hit.map(|hit| hit.value_len), Some(5));
    rig.touch("k", ExpirySpec::InMs(1000)).await;
    let fetched = voided(&rig, "k").await;
    assert!(!is_miss(&fetched));
    rig.clock.set_wall_ms(START_MS + 2000);
    assert!(is_miss(&fetched), "it has expired");
    rig.set("k", b"other").await;
    let fetched = voided(&rig, "k").await;
    assert!(!is_miss(&fetched));
    rig.engine().flush(&[SPACE], 0).await.unwrap();
    assert!(is_miss(&fetched), "it was flushed");
}

#[tokio::test]
async fn what_may_change_an_entry_is_fetched_again_after_a_write_of_the_stripe() {
    let rig = Rig::new(Choice::default());
    rig.set("k", b"value").await;
    rig.run(&Command::Delete(Delete {
        mark_stale: true,
        ..Delete::new(b"k")
    }))
    .await;
    let fetched = voided(&rig, "k").await;
    let read = || Get::new(b"k");
    let delete = Get {
        delete: true,
        ..read()
    };
    let retime = Get {
        touch: Some(ExpirySpec::Never),
        ..read()
    };
    // It is given the token of the stale entry.
    let claim = Get {
        claim: true,
        ..read()
    };
    let gets = [delete, retime, claim].map(Command::Get);
    let others = [
        touch("k", ExpirySpec::Never),
        Command::Delete(Delete::new(b"k")),
    ];
    for command in gets.iter().chain(&others) {
        let attempt = rig.attempt(command, Some(&fetched));
        assert!(matches!(attempt, Attempt::Fetch(_)), "{command:?}");
    }
    // RAM had the key for a moment, so that nothing was fetched.
    let unknown = Fetched {
        ticket: Ticket::VOID,
        entry: None,
        ..fetched
    };
    let attempt = rig.attempt(&get("k"), Some(&unknown));
    assert!(matches!(attempt, Attempt::Fetch(_)));
}

#[tokio::test]
async fn the_time_of_a_get_counts_for_the_disk_only_if_the_disk_had_the_entry() {
    let rig = Rig::new(Choice::default());
    rig.set("k", b"value").await;
    evict_all(rig.engine());
    let gets = || rig.engine().disk_get_latency.sum().count();
    assert_eq!(rig.get("absent").await, None);
    assert_eq!(gets(), 0);
    assert!(rig.get("k").await.is_some());
    assert_eq!(gets(), 1);
}

#[tokio::test]
async fn what_needs_no_value_reads_no_large_one_from_disk_and_nothing_is_kept() {
    let rig = Rig::new(Choice {
        ram_bytes: 4 << 20,
        queue_bytes: 4 << 20,
        value_len_max: 1 << 20,
        disk_value_len_max: 1 << 20,
        ..Choice::default()
    });
    let engine = rig.engine();
    let value = vec![7; 200_000];
    rig.set("k", &value).await;
    evict_all(engine);
    let probe = Command::Get(Get {
        want_value: false,
        ..Get::new(b"k")
    });
    let Outcome::Hit(hit) = rig.run(&probe).await else {
        panic!("it is there");
    };
    assert_eq!(hit.value_len, value.len());
    assert!(hit.value.as_slice().is_empty());
    assert_eq!(engine.locate_in_ram(SPACE, b"k"), None);

    let ticket = rig.ticket(&probe);
    let known = engine.fetch(SPACE, b"k", Need::of(&probe), ticket).await;
    let known = known.unwrap();
    assert!(known.entry.is_none() && known.facts.is_some());
    engine.hot.mutated(engine.hot.ram.hash(SPACE, b"k"));
    let Attempt::Done(Outcome::Hit(hit)) = rig.attempt(&probe, Some(&known)) else {
        panic!("it is fetched again");
    };
    assert_eq!(hit.value_len, value.len());
    assert_eq!(engine.stats().total(Counter::HitsDisk), 2);

    assert_eq!(rig.get("k").await, Some(value));
    evict_all(engine);
    let deleted = rig.delete("k").await;
    assert!(matches!(deleted, Outcome::Deleted { .. }));
    assert!(matches!(rig.run(&probe).await, Outcome::Miss));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_tries_of_a_command_share_the_time_that_the_bucket_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(MemoryStore::new(fonn_base::clock::Clock::system()));
    let bucket = Arc::new(FaultStore::new(memory, 1));
    let engine = open_above(dir.path(), &bucket);
    let tasks = Tasks::new();
    engine.start_cold(&tasks);
    let (outcome, failures) = run(&engine, &set("k", b"value")).await;
    assert!(matches!(outcome, Outcome::Stored(_)) && failures.is_empty());
    engine.drain_cold(Instant::now() + PATIENCE).await;
    // The bucket alone has it from now on.
    let newest = engine.versions().newest();
    engine.hide_slots(&SlotSet::all(), newest).await.unwrap();

    let ticket = engine.hot.ticket(engine.hot.ram.hash(SPACE, b"k"));
    let reads = || engine.cold_get_latency.sum().count();
    let mut deadline = None;
    let key = &b"k"[..];
    let first = engine.fetch_by((SPACE, key), Need::Value, ticket, &mut deadline);
    assert!(first.await.is_ok_and(|it| it.entry.is_some()));
    assert_eq!(reads(), 1);
    let first_deadline = deadline;
    assert!(first_deadline.is_some());
    let second = engine.fetch_by((SPACE, key), Need::Value, ticket, &mut deadline);
    assert!(second.await.is_ok());
    assert_eq!(deadline, first_deadline);
    assert_eq!(reads(), 2);

    bucket.add(Rule::new(Fault::Hang));
    let mut over = Some(tokio::time::Instant::now());
    let late = engine.fetch_by((SPACE, key), Need::Value, ticket, &mut over);
    assert_eq!(late.await.err(), Some(Unknown::Deadline));
    assert_eq!(reads(), 2);
    bucket.clear();
    engine.close(PATIENCE);
}
