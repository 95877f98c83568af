//! The footers of a bucket full of dense segments are read within a bounded memory.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helpers of tests are not known to be tests.

mod idle;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_base::pool::BlockingPool;
use fonn_base::random::SplitMix64;
use fonn_base::tasks::Tasks;
use fonn_cold_tier::names::{Region, SegmentName, WriterId};
use fonn_cold_tier::segment::{Fact, Record, SegmentBuilder, SegmentHeader};
use fonn_cold_tier::store::FsStore;
use fonn_cold_tier::{ColdOptions, ColdTier, ObjectStore};

use idle::{Nothing, process_bytes};

const SEGMENTS: u64 = 18;
/// Their keys make a footer of 8 MiB.
const ENTRIES: u64 = 60_000;
/// More than the node is to take for it. With 16 footers at a time it took 280 MiB.
const GROWN_MAX: u64 = 160 << 20;

/// Writes a segment of tombstones, each of which is little more than its key.
async fn write_segment(store: &dyn ObjectStore, name: SegmentName, random: &mut SplitMix64) {
    let mut builder = SegmentBuilder::new();
    for version in 0..ENTRIES {
        let key: Vec<u8> = (0..13)
            .flat_map(|_| random.next_u64().to_le_bytes())
            .collect();
        let record = Record {
            space: 0,
            key: &key,
            at: version,
            fact: Fact::Tombstone,
        };
        builder.push(&record).unwrap();
    }
    let key = name.key();
    let header = SegmentHeader {
        region: name.region,
        writer: name.writer,
        seq: name.seq,
        created_ms: 1_750_000_000_000,
    };
    let body = builder.finish(header, &[]).to_bytes();
    store.put(&key, body.into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_footers_are_read_one_at_a_time() {
    let root = tempfile::tempdir().unwrap();
    let pool = BlockingPool::new("test", NonZeroUsize::MIN, 64).unwrap();
    let store = FsStore::open(root.path().join("bucket"), pool).unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    let region: Region = "eu".parse().unwrap();
    let mut random = SplitMix64::new(1);
    for seq in 0..SEGMENTS {
        let name = SegmentName {
            region: region.clone(),
            writer: WriterId::mint(1_750_000_000_000, 7),
            seq,
        };
        write_segment(store.as_ref(), name, &mut random).await;
    }

    let options = ColdOptions::new(root.path().join("index"), region);
    let tier = ColdTier::open(options, store, Arc::new(Nothing)).unwrap();
    let tasks = Tasks::new();
    // The highest from now on is counted.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = process_bytes("VmRSS:");
    tier.start(Arc::new(Nothing), &tasks);
    let deadline = Instant::now() + Duration::from_secs(300);
    while !tier.is_ready() {
        assert!(Instant::now() < deadline, "{:?}", tier.status());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let grown = process_bytes("VmHWM:").saturating_sub(before);
    println!("{} MiB more for {SEGMENTS} footers", grown >> 20);
    assert!(tier.entries_approx() >= SEGMENTS * ENTRIES / 2);
    assert!(grown <= GROWN_MAX, "{} MiB", grown >> 20);
    let late = tasks.finish(Instant::now() + Duration::from_secs(60)).await;
    assert!(late.is_empty(), "{late:?}");
}
