//! The budget, and the entries that survive when a generation is dropped.

use super::*;
use crate::directory::disk_bytes;
use crate::queue::Carry;
use crate::reader::{Looked, look};
use crate::record::index_key;

/// Writes values of 20,000 bytes under keys of their own until `has_happened`; returns the next
/// version.
pub(super) async fn fill_until(
    rig: &Rig,
    mut version: u64,
    mut has_happened: impl FnMut() -> bool,
) -> u64 {
    let deadline = Instant::now() + GRACE;
    while !has_happened() {
        assert!(Instant::now() < deadline, "did not happen");
        let key = format!("fill{version}");
        rig.put(key.as_bytes(), version, noise(version, 20_000))
            .await;
        version += 1;
    }
    version
}

pub(super) fn small() -> Rig {
    Rig::with(|options| options.budget_bytes = BUDGET_BYTES_MIN)
}

#[tokio::test]
async fn the_budget_holds_under_sustained_writing_and_after_reopening() {
    for (budget, value_len) in [
        (BUDGET_BYTES_MIN, 3000),
        (64 << 20, 16_000),
        (64 << 20, 2_000_000),
    ] {
        let mut rig = Rig::with(|options| options.budget_bytes = budget);
        let dir = rig.options.dir.clone();
        let limit = budget + budget / 10;
        let mut most = 0;
        let mut version = 0;
        for round in 0..2 {
            let mut written = 0;
            while written < 2 * budget {
                version += 1;
                let key = Bytes::from(format!("k{version}"));
                let value = Bytes::from(noise(version, value_len));
                written += value.len() as u64;
                let kind = WriteKind::Put {
                    meta: Meta::new(version, 0, 0),
                    value,
                };
                let write = Write {
                    space: SPACE,
                    key,
                    kind,
                    ack: None,
                };
                rig.tier().write(write, GRACE).await.unwrap();
                if version % (1 + 200_000 / value_len as u64) == 0 {
                    most = most.max(disk_bytes(&dir).unwrap());
                }
            }
            version += 1;
            rig.put(b"last", version, noise(version, value_len)).await;
            rig.tier().barrier().await;
            most = most.max(disk_bytes(&dir).unwrap());
            assert!(
                most <= limit,
                "{most} bytes on disk in round {round}, budget {budget}"
            );
            let used = rig.tier().usage().bytes_on_disk;
            assert!(used >= budget / 2, "only {used} of {budget} bytes are used");
            assert_eq!(rig.stats().writes_failed, 0);
            rig.reopen();
            most = most.max(disk_bytes(&dir).unwrap());
        }
        assert_eq!(rig.version_of(b"last").await, Some(version));
    }
}

#[tokio::test]
async fn a_smaller_budget_is_reached_without_a_restart() {
    let rig = Rig::new();
    let mut version = 1;
    while rig.tier().usage().bytes_on_disk < 40 << 20 {
        version = fill_until(&rig, version, || true).await + 1;
        rig.put(
            format!("f{version}").as_bytes(),
            version,
            noise(version, 500_000),
        )
        .await;
    }
    rig.tier().set_budget(BUDGET_BYTES_MIN).unwrap();
    within(|| rig.tier().usage().bytes_on_disk <= BUDGET_BYTES_MIN).await;
    assert!(rig.tier().set_budget(1).is_err());
}

#[tokio::test]
async fn hot_entries_live_on_and_cold_ones_are_evicted() {
    let rig = small();
    rig.put(b"hot", 1, noise(1, 20_000)).await;
    rig.put(b"cold", 2, noise(2, 20_000)).await;
    rig.witness.kept.lock().insert(b"hot".to_vec());
    fill_until(&rig, 3, || rig.stats().generations_dropped >= 20).await;
    assert_eq!(rig.get(b"hot").await.unwrap().value, noise(1, 20_000));
    assert_eq!(rig.version_of(b"cold").await, None);
    assert!(rig.stats().carried >= 1);
}

#[tokio::test]
async fn what_is_read_from_the_older_half_gets_a_second_chance() {
    let rig = small();
    rig.put(b"read", 1, noise(1, 20_000)).await;
    rig.put(b"unread", 2, noise(2, 20_000)).await;
    let first = rig.newest_id();
    let mut version = 3;
    let in_older_half = || rig.tier().usage().bytes_on_disk > BUDGET_BYTES_MIN * 3 / 4;
    version = fill_until(&rig, version, in_older_half).await;
    assert_eq!(rig.version_of(b"read").await, Some(1));
    within(|| rig.stats().carried == 1).await;
    let dropped = || {
        !rig.shared()
            .generations
            .snapshot()
            .iter()
            .any(|g| g.id == first)
    };
    fill_until(&rig, version, dropped).await;
    assert_eq!(rig.get(b"read").await.unwrap().value, noise(1, 20_000));
    assert_eq!(rig.version_of(b"unread").await, None);
}

#[tokio::test]
async fn entries_live_on_when_outdated_records_are_what_takes_the_space() {
    let rig = small();
    for version in 1..=40 {
        rig.put(
            format!("live{version}").as_bytes(),
            version,
            noise(version, 10_000),
        )
        .await;
    }
    // The same few keys over and over: half a megabyte is live in all.
    let mut version = 41;
    while rig.stats().generations_dropped < 12 {
        rig.put(
            format!("busy{}", version % 5).as_bytes(),
            version,
            noise(version, 10_000),
        )
        .await;
        version += 1;
    }
    for live in 1..=40 {
        let key = format!("live{live}");
        assert_eq!(rig.version_of(key.as_bytes()).await, Some(live), "{key}");
    }
}

/// The carry-over that a read of `key` would queue.
pub(super) fn carry_of(rig: &Rig, key: &[u8]) -> Carry {
    let found = rig
        .shared()
        .generations
        .find(&index_key(SPACE, key))
        .unwrap()
        .unwrap();
    let Looked::Whole { record, .. } = look(&found.generation.log, &found.entry, (SPACE, key))
    else {
        panic!("record is damaged");
    };
    Carry {
        space: SPACE,
        record,
        generation: found.generation.id,
        fact: found.entry.fact,
    }
}

pub(super) async fn carry(rig: &Rig, carry: Carry) {
    assert!(rig.shared().queue.try_carry(carry).is_ok());
    within(|| {
        rig.shared()
            .queue
            .wait_for_carries(Duration::from_millis(1))
    })
    .await;
}

#[tokio::test]
async fn a_late_copy_never_brings_back_what_was_overwritten_or_deleted() {
    let mut rig = Rig::new();
    rig.put(b"overwritten", 1, "old").await;
    rig.put(b"deleted", 2, "old").await;
    rig.put(b"kept", 3, "old").await;
    let copies = [b"overwritten".as_slice(), b"deleted", b"kept"].map(|key| carry_of(&rig, key));
    rig.roll().await;
    rig.put(b"overwritten", 4, "new").await;
    rig.delete(b"deleted", 5).await;
    rig.roll().await;
    for copy in copies {
        carry(&rig, copy).await;
    }
    let stats = rig.stats();
    assert_eq!((stats.carried, stats.carries_skipped), (1, 2));
    for _ in 0..2 {
        assert_eq!(rig.version_of(b"overwritten").await, Some(4));
        assert_eq!(rig.version_of(b"deleted").await, None);
        assert_eq!(rig.version_of(b"kept").await, Some(3));
        rig.reopen();
    }
}

#[tokio::test]
async fn a_copy_that_comes_after_its_generation_was_dropped_is_not_written() {
    let rig = small();
    rig.put(b"k", 1, noise(1, 20_000)).await;
    let late = carry_of(&rig, b"k");
    let first = rig.newest_id();
    let dropped = || {
        !rig.shared()
            .generations
            .snapshot()
            .iter()
            .any(|g| g.id == first)
    };
    fill_until(&rig, 2, dropped).await;
    // No generation has the key, so the deletion is not written: the copy would stay for ever.
    let written = rig.stats().written_bytes;
    rig.delete(b"k", 1_000_000).await;
    assert_eq!(rig.stats().written_bytes, written);
    carry(&rig, late).await;
    assert_eq!(rig.version_of(b"k").await, None);
}

#[tokio::test]
async fn flushed_and_expired_entries_are_not_carried_over() {
    let rig = small();
    rig.tier()
        .save_state(&StoreState {
            purges: Vec::new(),
            version_ceiling: 0,
            flushes: vec![FlushMark {
                space: SPACE,
                cutoff: 2,
                at_ms: 0,
            }],
        })
        .unwrap();
    rig.put(b"flushed", 1, noise(1, 20_000)).await;
    let expired = Meta::new(2, 0, 1);
    let value = noise(2, 20_000).into();
    rig.write(
        b"expired",
        WriteKind::Put {
            meta: expired,
            value,
        },
    )
    .await
    .unwrap();
    rig.witness
        .kept
        .lock()
        .extend([b"flushed".to_vec(), b"expired".to_vec()]);
    fill_until(&rig, 3, || rig.stats().generations_dropped >= 12).await;
    assert_eq!(rig.stats().carried, 0);
    assert_eq!(rig.version_of(b"flushed").await, None);
}
