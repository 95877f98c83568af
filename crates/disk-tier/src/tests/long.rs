//! Reads of long records, beside others.

use std::sync::mpsc::{SyncSender, sync_channel};

use super::probe::damage_end_of;
use super::*;
use crate::transit::{taken, with_room};
use crate::{long_reads, reader};

const LONG_LEN: usize = 2 << 20;

/// Has all threads for long reads wait until what is returned is dropped.
async fn hold_threads(rig: &Rig) -> Vec<SyncSender<()>> {
    let long_reads = &rig.shared().long_reads;
    let mut held = Vec::new();
    for _ in 0..long_reads::threads(rig.options.read_threads) {
        let (hold, released) = sync_channel(1);
        let wait = move |_: &Shared| {
            let _ = released.recv();
        };
        long_reads.push(0, 1, Box::new(wait)).unwrap();
        held.push(hold);
    }
    within(|| long_reads.len() == 0).await;
    held
}

#[tokio::test]
async fn a_short_read_waits_for_no_long_one() {
    let rig = Rig::new();
    let value = noise(1, LONG_LEN);
    rig.put(b"long", 1, value.clone()).await;
    rig.put(b"short", 2, "value").await;
    let held = hold_threads(&rig).await;
    let mut reads = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let tier = rig.tier().clone();
        reads.spawn(async move { tier.get(SPACE, b"long").await.unwrap() });
    }
    within(|| rig.shared().long_reads.len() == 20).await;
    assert_eq!(rig.tier().usage().reads_waiting, 20);
    assert_eq!(rig.get(b"short").await.unwrap().value, "value");
    drop(held);
    for found in reads.join_all().await {
        assert!(found.unwrap().value == value);
    }
}

#[tokio::test]
async fn a_long_read_whose_caller_has_gone_is_not_carried_out() {
    let rig = Rig::new();
    rig.put(b"abandoned", 1, noise(1, LONG_LEN)).await;
    // Reading it would be counted.
    damage_end_of(&rig, b"abandoned");
    rig.put(b"long", 2, noise(2, LONG_LEN)).await;
    let held = hold_threads(&rig).await;
    let tier = rig.tier().clone();
    let abandoned = tokio::spawn(async move { tier.get(SPACE, b"abandoned").await });
    within(|| rig.shared().long_reads.len() == 1).await;
    abandoned.abort();
    assert!(abandoned.await.unwrap_err().is_cancelled());
    drop(held);
    // It comes behind the other one, or finds it skipped.
    assert_eq!(rig.version_of(b"long").await, Some(2));
    within(|| rig.shared().long_reads.len() == 0).await;
    assert_eq!(rig.stats().reads_corrupt, 0);
    assert_eq!(rig.get(b"abandoned").await, None);
    assert_eq!(rig.stats().reads_corrupt, 1);
}

#[tokio::test]
async fn long_reads_that_wait_end_when_the_tier_is_closed() {
    let mut rig = Rig::new();
    rig.put(b"long", 1, noise(1, LONG_LEN)).await;
    let held = hold_threads(&rig).await;
    let tier = rig.tier().clone();
    let read = tokio::spawn(async move { tier.get(SPACE, b"long").await });
    within(|| rig.shared().long_reads.len() == 1).await;
    stop(rig.shared());
    assert!(matches!(read.await.unwrap(), Err(DiskError::Closed)));
    drop(held);
    rig.close();
}

#[tokio::test]
async fn a_value_counts_from_its_read_until_it_is_taken() {
    let rig = Rig::new();
    let value = noise(1, LONG_LEN);
    rig.put(b"key", 1, value.clone()).await;
    let transit = &rig.shared().transit;
    let read = with_room(|shared: &Shared| reader::find(shared, SPACE, b"key"));
    let answer = read(rig.shared()).unwrap();
    assert_eq!(transit.bytes(), LONG_LEN);
    let DiskFound::Entry(entry) = taken(answer) else {
        panic!("it is there");
    };
    assert!(entry.value == value);
    assert_eq!(transit.bytes(), 0);
    // Reads by the queues end so too.
    assert!(rig.get(b"key").await.is_some());
    assert_eq!(transit.bytes(), 0);
}
