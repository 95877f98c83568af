//! Races between commands, the disk and eviction, each in its worst order.

use super::*;

#[tokio::test]
async fn a_fetch_is_void_when_the_key_was_overwritten_and_evicted_since() {
    let rig = Rig::new(Choice::default());
    rig.set("k", b"old").await;
    evict_all(rig.engine());
    let ticket = rig.ticket(&get("k"));
    let fetched = rig.fetch("k", ticket).await;
    assert!(fetched.entry.is_some());
    rig.set("k", b"new").await;
    evict_all(rig.engine());
    let changing = touch("k", ExpirySpec::Never);
    assert!(matches!(
        rig.attempt(&changing, Some(&fetched)),
        Attempt::Fetch(_)
    ));
    assert_eq!(rig.get("k").await.unwrap(), b"new");
}

#[tokio::test]
async fn a_fetch_is_void_when_a_deletion_has_come_and_gone_to_disk_since() {
    let rig = Rig::new(Choice::default());
    rig.set("k", b"old").await;
    evict_all(rig.engine());
    let fetched = rig.fetch("k", rig.ticket(&get("k"))).await;
    assert!(fetched.entry.is_some());
    rig.delete("k").await;
    assert_eq!(rig.engine().ram().stats().tombstones, 0);
    let changing = touch("k", ExpirySpec::Never);
    assert!(matches!(
        rig.attempt(&changing, Some(&fetched)),
        Attempt::Fetch(_)
    ));
    assert_eq!(rig.get("k").await, None);
}

#[tokio::test]
async fn what_was_fetched_is_judged_by_flushes_and_time_at_its_use() {
    let rig = Rig::new(Choice::default());
    rig.set("k", b"old").await;
    evict_all(rig.engine());
    let fetched = rig.fetch("k", rig.ticket(&get("k"))).await;
    rig.engine().flush(&[SPACE], 0).await.unwrap();
    let attempt = rig.attempt(&get("k"), Some(&fetched));
    assert!(matches!(attempt, Attempt::Done(Outcome::Miss)));
}

#[tokio::test]
async fn what_the_disk_refuses_is_gone_and_what_was_there_before_too() {
    let mut rig = Rig::new(Choice {
        disk_value_len_max: 100,
        ..Choice::default()
    });
    rig.set("k", b"old").await;
    let (_, failures) = run(rig.engine(), &set("k", &[7; 101])).await;
    assert_eq!(failures, [Failure::TooLarge]);
    assert_eq!(rig.get("k").await, None);
    evict_all(rig.engine());
    assert_eq!(rig.get("k").await, None, "the tombstone is not evicted");
    rig.engine().upkeep_once(&mut 0).await;
    rig.engine().disk().unwrap().barrier().await;
    assert_eq!(rig.engine().ram().stats().tombstones, 0);
    assert_eq!(rig.get("k").await, None);
    rig.drop_and_open();
    assert_eq!(rig.get("k").await, None);
}

#[tokio::test]
async fn what_the_disk_refused_is_resolved_at_the_end() {
    let mut rig = Rig::new(Choice {
        disk_value_len_max: 100,
        durability: Durability::None,
        ..Choice::default()
    });
    rig.set("k", b"old").await;
    rig.set("k", &[7; 101]).await;
    rig.engine().disk().unwrap().barrier().await;
    rig.reopen();
    assert_eq!(rig.get("k").await, None);
}

#[tokio::test]
async fn a_late_tombstone_is_not_queued_behind_a_newer_write() {
    let rig = Rig::new(Choice {
        disk_value_len_max: 100,
        ..Choice::default()
    });
    let disk = rig.engine().disk().unwrap();
    let (_, failures) = run(rig.engine(), &set("k", &[7; 101])).await;
    assert_eq!(failures, [Failure::TooLarge]);
    rig.set("k", b"new").await;
    // The writer itself looks at the newest generation alone.
    disk.compact_all().await;
    let written = || disk.stats().snapshot().written_bytes;
    let before = written();
    rig.engine().settle();
    disk.barrier().await;
    assert_eq!(written(), before, "nothing was written");
    evict_all(rig.engine());
    assert_eq!(rig.get("k").await.unwrap(), b"new");
}

#[tokio::test]
async fn a_set_that_is_too_large_for_ram_removes_what_it_should_have_replaced() {
    let rig = Rig::new(Choice {
        ram_bytes: 512 << 10,
        value_len_max: 400 << 10,
        disk_value_len_max: 400 << 10,
        ..Choice::default()
    });
    let long = vec![7; 400 << 10];
    assert!(!rig.engine().fits_ram(1, long.len()));
    for _ in 0..2 {
        rig.set("k", b"old").await;
        let (mut acks, mut scratch) = (Acks::default(), Vec::new());
        let command = set("k", &long);
        let job = job(&command);
        let outcome = rig.engine().execute(&job, &mut acks, &mut scratch);
        assert_eq!(outcome.await, Outcome::Failed(Failure::TooLarge));
        assert_eq!(acks.wait().await, []);
        assert_eq!(rig.get("k").await, None);
        evict_all(rig.engine());
    }
}

#[tokio::test]
async fn an_entry_that_ram_refuses_does_not_uncover_the_older_one_on_disk() {
    // The longest value that the check lets pass takes more than the half of the budget that RAM
    // gives to one entry: it is rounded to pages.
    let rig = Rig::new(Choice {
        ram_bytes: 512 << 10,
        value_len_max: 256 << 10,
        disk_value_len_max: 256 << 10,
        ..Choice::default()
    });
    let long = vec![7; (256 << 10) - 1024 - 1];
    assert!(rig.engine().fits_ram(1, long.len()));
    for _ in 0..20 {
        rig.set("k", b"old").await;
        let (mut acks, mut scratch) = (Acks::default(), Vec::new());
        let command = set("k", &long);
        let job = job(&command);
        let outcome = rig.engine().execute(&job, &mut acks, &mut scratch);
        assert!(matches!(outcome.await, Outcome::Stored(_)));
        let value = rig.get("k").await;
        assert!(
            value.is_none_or(|value| value == long),
            "the older value came back"
        );
        assert_eq!(acks.wait().await, []);
        assert_eq!(rig.get("k").await.unwrap(), long);
    }
}

#[tokio::test]
async fn an_all_or_nothing_store_that_meets_a_full_queue_leaves_nothing() {
    // The queue takes one write at a time, and the writer cannot keep up with a loop.
    let mut rig = Rig::new(Choice {
        queue_bytes: 1,
        ..Choice::default()
    });
    let keys: Vec<String> = (0..100).map(|number| format!("k{number}")).collect();
    let batch = all_or_none(keys.iter().map(|key| (key.as_str(), &b"v"[..])));
    let mut acks = Acks::default();
    let stored = rig.engine().execute_batch(SPACE, &batch, &mut acks).await;
    assert_eq!(stored, ServerOutcome::Failed(Failure::Busy));
    acks.wait().await;
    for key in &keys {
        assert_eq!(rig.get(key).await, None);
    }
    while !rig.engine().hot.unsettled.lock().is_empty() {
        rig.engine().upkeep_once(&mut 0).await;
        rig.engine().disk().unwrap().barrier().await;
    }
    assert_eq!(rig.engine().ram().stats().tombstones, 0);
    rig.drop_and_open();
    for key in &keys {
        assert_eq!(rig.get(key).await, None);
    }
}

#[tokio::test]
async fn a_command_that_the_full_queue_made_wait_counts_its_acknowledgement_once() {
    let rig = Rig::new(Choice {
        queue_bytes: 1,
        ..Choice::default()
    });
    let (mut acks, mut scratch) = (Acks::default(), Vec::new());
    for number in 0..50 {
        let key = format!("k{number}");
        let command = set(&key, b"v");
        let job = job(&command);
        let outcome = rig.engine().execute(&job, &mut acks, &mut scratch);
        assert!(matches!(outcome.await, Outcome::Stored(_)));
        assert_eq!(acks.count(), number + 1);
    }
    assert_eq!(acks.wait().await, []);
    assert_eq!(acks.count(), 0);
}

#[tokio::test]
async fn a_deletion_of_what_has_expired_holds_when_the_clock_is_set_back() {
    let rig = Rig::new(Choice::default());
    rig.set("k", b"v").await;
    rig.touch("k", ExpirySpec::InMs(1000)).await;
    rig.clock.set_wall_ms(START_MS + 2000);
    assert_eq!(rig.delete("k").await, Outcome::NotFound);
    rig.clock.set_wall_ms(START_MS);
    assert_eq!(rig.get("k").await, None);
}

#[tokio::test]
async fn counting_entries_does_not_push_out_the_cursors_of_clients() {
    let rig = Rig::new(Choice::default());
    for number in 0..20 {
        rig.set(&format!("k{number}"), b"v").await;
    }
    let (cursor, keys) = rig.engine().scan(SPACE, 0, 5, &[]).await.unwrap().unwrap();
    assert_eq!(keys.len(), 5);
    assert_eq!(rig.engine().count_entries(SPACE).await, Ok(20));
    let (_, keys) = rig
        .engine()
        .scan(SPACE, cursor, 100, &[])
        .await
        .unwrap()
        .unwrap();
    assert_eq!(keys.len(), 15);
}
