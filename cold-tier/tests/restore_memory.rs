//! A checkpoint of a million entries is restored within the memory that the tier may take.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helpers of tests are not known to be tests.

mod idle;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_base::pool::BlockingPool;
use fonn_base::random::SplitMix64;
use fonn_base::tasks::Tasks;
use fonn_cold_tier::checkpoint::{
    IndexEntry, Manifest, PartBuilder, PartFacts, SegmentFacts, SegmentState,
};
use fonn_cold_tier::names::{
    CheckpointName, CheckpointObject, KeyHash, Region, SegmentName, WriterId,
};
use fonn_cold_tier::segment::Version;
use fonn_cold_tier::store::FsStore;
use fonn_cold_tier::{ColdOptions, ColdTier, ObjectStore};

use idle::{Nothing, process_bytes};

const ENTRIES: u64 = 1_000_000;
/// The least that a node gives its cold tier.
const MEMORY_BYTES: u64 = 32 << 20;
/// Entries in a part: what a writer with as much memory makes of them.
const PART_ENTRIES: u64 = MEMORY_BYTES / 8 * 5 / 8 / 56;

/// Writes a checkpoint of [`ENTRIES`] into the bucket, part by part; gives the length of its parts
/// together.
async fn write_checkpoint(store: &dyn ObjectStore, region: &Region) -> u64 {
    let writer = WriterId::mint(1_750_000_000_000, 7);
    let segment = SegmentName {
        region: region.clone(),
        writer,
        seq: 0,
    };
    let checkpoint = CheckpointName {
        region: region.clone(),
        id: writer,
    };
    store.put(&segment.key(), "there".into()).await.unwrap();
    let mut random = SplitMix64::new(1);
    let mut parts: Vec<PartFacts> = Vec::new();
    let mut number = 0;
    while number < ENTRIES {
        let mut part = PartBuilder::new();
        for number in number..(number + PART_ENTRIES).min(ENTRIES) {
            // In order, and as random as hashes are.
            let hash = u128::from(number) << 107 | u128::from(random.next_u64()) << 40;
            part.push(&IndexEntry {
                hash: KeyHash(hash.to_be_bytes()),
                space: 0,
                segment: 0,
                offset: random.next_u64() % (1 << 34),
                len: (random.next_u64() % 200_000) as u32,
                at: random.next_u64() >> 1,
                expires_at_ms: 0,
                tombstone: false,
                shadows: false,
            })
            .unwrap();
        }
        let (bytes, facts) = part.finish().unwrap();
        let key = checkpoint.key(CheckpointObject::Part(parts.len() as u32));
        store.put(&key, bytes.into()).await.unwrap();
        parts.push(facts);
        number += PART_ENTRIES;
    }
    let len = parts.iter().map(|part| part.len).sum();
    let facts = SegmentFacts {
        name: segment,
        size: 5,
        data_len: 5,
        live_bytes: 5,
        entries: ENTRIES as u32,
        live_entries: ENTRIES as u32,
        tombstones: 0,
        min_version: 0,
        max_version: Version::MAX,
        expires_max_ms: u64::MAX,
        created_ms: 1,
        last_read_ms: 0,
        state: SegmentState::Live,
    };
    let manifest = Manifest {
        name: checkpoint.clone(),
        created_ms: 1,
        segments: vec![(0, facts)],
        cursors: Vec::new(),
        flush_marks: Vec::new(),
        parts,
    };
    let key = checkpoint.key(CheckpointObject::Manifest);
    let bytes = manifest.encode().unwrap();
    store.put(&key, bytes.into()).await.unwrap();
    len
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_entries_are_restored_within_the_memory_of_the_tier() {
    let root = tempfile::tempdir().unwrap();
    let pool = BlockingPool::new("test", NonZeroUsize::MIN, 64).unwrap();
    let store = FsStore::open(root.path().join("bucket"), pool).unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    let region: Region = "eu".parse().unwrap();
    let len = write_checkpoint(store.as_ref(), &region).await;
    assert!(len > MEMORY_BYTES / 4 * 3, "{len} bytes are no test");

    let mut options = ColdOptions::new(root.path().join("index"), region);
    options.memory_bytes = MEMORY_BYTES;
    let tier = ColdTier::open(options, store, Arc::new(Nothing)).unwrap();
    let tasks = Tasks::new();
    // The highest from now on is counted.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = process_bytes("VmRSS:");
    tier.start(Arc::new(Nothing), &tasks);
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut accounted = 0;
    while !tier.is_ready() {
        assert!(Instant::now() < deadline, "{:?}", tier.status());
        accounted = accounted.max(tier.status().upload_memory_bytes);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(tier.entries_approx() >= ENTRIES);
    let grown = process_bytes("VmHWM:").saturating_sub(before);
    // Parts, and the database that takes them.
    assert!(accounted > 0 && accounted <= MEMORY_BYTES / 8 * 5 / 4 * 3);
    assert!(grown <= MEMORY_BYTES, "{grown} bytes, {len} in the bucket");
    println!("{grown} bytes more, {accounted} accounted, for {len} bytes of parts");
    let late = tasks.finish(Instant::now() + Duration::from_secs(60)).await;
    assert!(late.is_empty(), "{late:?}");
}
