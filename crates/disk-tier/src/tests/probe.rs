//! Lookups that need no value.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;

use super::eviction::{fill_until, small};
use super::replay::log_of;
use super::*;
use crate::record::{HEAD_LEN, index_key};

const LARGE_LEN: usize = 1 << 20;

/// Changes the byte at a place of the newest record of a key.
fn damage_at(rig: &Rig, key: &[u8], place: impl FnOnce(u64) -> u64) {
    let found = rig.shared().generations.find(&index_key(SPACE, key));
    let found = found.unwrap().unwrap();
    let path = log_of(&rig.options.dir, found.generation.id);
    let log = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let at = found.entry.offset + place(found.entry.record_len.into());
    let mut byte = [0];
    log.read_exact_at(&mut byte, at).unwrap();
    log.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Changes the last byte of the value of a key.
pub(super) fn damage_end_of(rig: &Rig, key: &[u8]) {
    damage_at(rig, key, |len| len - 1);
}

/// The facts that the head of a record told; None if none was read.
async fn facts(rig: &Rig, key: &[u8]) -> Option<DiskFacts> {
    match probe(rig, key).await {
        DiskProbed::Facts(facts) => Some(facts),
        DiskProbed::Found(_) => None,
    }
}

async fn probe(rig: &Rig, key: &[u8]) -> DiskProbed {
    rig.tier().find_facts(SPACE, key).await.unwrap()
}

fn is_absent(probed: &DiskProbed) -> bool {
    matches!(probed, DiskProbed::Found(DiskFound::Absent))
}

#[tokio::test]
async fn a_probe_reads_the_head_of_a_large_entry_and_a_small_one_whole() {
    let rig = Rig::new();
    let text = Bytes::from(b"over and over, ".repeat(100_000));
    for (version, spec) in (1..).zip(["none", "lz4", "zstd:3"]) {
        rig.tier().fresh().set(spec.parse().unwrap(), 256);
        let value = Bytes::from([&noise(version, 200_000)[..], &text].concat());
        let key = spec.as_bytes();
        rig.put(key, version, value.clone()).await;
        let expected = DiskFacts {
            meta: Meta::new(version, 7, 0),
            value_len: value.len(),
        };
        assert_eq!(facts(&rig, key).await, Some(expected), "{spec}");
        assert_eq!(rig.get(key).await.unwrap().value, value);
    }
    rig.put(b"short", 9, "value").await;
    let DiskProbed::Found(DiskFound::Entry(entry)) = probe(&rig, b"short").await else {
        panic!("it was not read");
    };
    assert_eq!(entry.value, "value");
    assert!(is_absent(&probe(&rig, b"absent").await));
    rig.delete(b"none", 10).await;
    assert!(is_absent(&probe(&rig, b"none").await));
}

#[tokio::test]
async fn a_probe_reads_no_large_value_until_a_read_has_found_damage() {
    let rig = Rig::new();
    let value = noise(1, LARGE_LEN);
    for (version, key) in (1..).zip([b"k1", b"k2"]) {
        rig.put(key, version, value.clone()).await;
    }
    damage_end_of(&rig, b"k1");
    // The damage would be found if the value was read.
    assert!(facts(&rig, b"k1").await.is_some());
    assert_eq!(rig.stats().reads_corrupt, 0);
    assert_eq!(rig.get(b"k1").await, None);
    assert_eq!(rig.stats().reads_corrupt, 1);
    // A client that asks stores it again.
    assert!(is_absent(&probe(&rig, b"k1").await));
    rig.put(b"k1", 3, value.clone()).await;
    for (key, version) in [(b"k1", 3), (b"k2", 2)] {
        let DiskProbed::Found(DiskFound::Entry(entry)) = probe(&rig, key).await else {
            panic!("it is not there");
        };
        assert_eq!(entry.meta.version, version);
        assert!(entry.value == value);
    }
}

#[tokio::test]
async fn a_large_entry_with_a_damaged_head_is_absent_to_a_probe() {
    let rig = Rig::new();
    let in_frame = (HEAD_LEN + b"k1".len() + 5) as u64;
    for (version, place) in (1..).zip([0, 20, HEAD_LEN as u64, in_frame]) {
        // The probe before has noted damage of its generation.
        rig.roll().await;
        let key = format!("k{version}").into_bytes();
        rig.put(&key, version, noise(version, LARGE_LEN)).await;
        damage_at(&rig, &key, |_| place);
        assert!(is_absent(&probe(&rig, &key).await), "byte {place}");
        assert_eq!(rig.stats().reads_corrupt, version);
    }
}

#[tokio::test]
async fn a_large_entry_whose_end_the_log_has_lost_is_absent_to_a_probe() {
    let rig = Rig::new();
    rig.put(b"k", 1, noise(1, LARGE_LEN)).await;
    let newest = rig.shared().generations.newest().unwrap();
    newest.log.cut(newest.log.end() - 1).unwrap();
    assert!(is_absent(&probe(&rig, b"k").await));
}

#[tokio::test]
async fn a_probe_gives_a_large_entry_of_the_older_half_a_second_chance() {
    let rig = small();
    rig.put(b"k", 1, noise(1, 100_000)).await;
    let in_older_half = || rig.tier().usage().bytes_on_disk > BUDGET_BYTES_MIN * 3 / 4;
    fill_until(&rig, 2, in_older_half).await;
    assert_eq!(facts(&rig, b"k").await, None);
    within(|| rig.stats().carried == 1).await;
    // Then it is in the newest generation.
    rig.tier().barrier().await;
    assert!(facts(&rig, b"k").await.is_some());
}
