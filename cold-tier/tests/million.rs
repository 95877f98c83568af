//! A node with an empty disk over a bucket with many entries: it serves all of them, and prints how
//! long that took.
//!
//! `FONN_COLD_ENTRIES=1000000 cargo test --release -p fonn-cold-tier --test million -- --nocapture`

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fonn_base::boxed::BoxFuture;
use fonn_base::clock::Clock;
use fonn_base::tasks::Tasks;
use fonn_cold_tier::segment::{Facts, FlushMark};
use fonn_cold_tier::store::MemoryStore;
use fonn_cold_tier::{
    Backlog, ColdObserver, ColdOptions, ColdTier, CopyRef, Fetched, Found, ObjectStore,
    RestoreFrom, SpillBatch, SpillCursor, SpillFact, SpillRecord, SpillSource, SpillSourceError,
};

/// Entries without `FONN_COLD_ENTRIES`: those of two segments.
const ENTRIES_DEFAULT: u64 = 100_000;
const SPACE: u32 = 1;
const BATCH: u64 = 10_000;

fn key(number: u64) -> Vec<u8> {
    format!("a/b/c/{number:064x}").into_bytes()
}

/// A queue that has the first so many entries.
struct Numbers(u64);

fn cursor(position: u64) -> SpillCursor {
    SpillCursor::new(position.to_le_bytes().to_vec())
}

fn position(cursor: &SpillCursor) -> u64 {
    <[u8; 8]>::try_from(cursor.as_bytes()).map_or(0, u64::from_le_bytes)
}

impl SpillSource for Numbers {
    fn read(&self, from: &SpillCursor, _max_bytes: usize) -> Result<SpillBatch, SpillSourceError> {
        let from = position(from);
        let end = (from + BATCH).min(self.0);
        let record = |number: u64| {
            let mut frame = Vec::new();
            let value = number.to_le_bytes().repeat(8);
            fonn_codec::encode(fonn_codec::CodecSpec::none(), 0, &value, &mut frame).unwrap();
            SpillRecord {
                space: SPACE,
                key: key(number).into(),
                at: number + 1,
                fact: SpillFact::Put {
                    facts: Facts::default(),
                    frame: Bytes::from(frame),
                },
                written_ms: 0,
                after: cursor(number + 1),
            }
        };
        Ok(SpillBatch {
            records: (from..end).map(record).collect(),
            end: cursor(end),
        })
    }

    fn acknowledge(&self, _: &SpillCursor) {}

    fn backlog(&self, cursor: &SpillCursor) -> Backlog {
        Backlog {
            entries: self.0 - position(cursor),
            ..Backlog::default()
        }
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// An observer that does nothing.
struct Idle;

impl ColdObserver for Idle {
    fn superseded(&self, _: &[CopyRef<'_>]) {}

    fn flushed(&self, _: &FlushMark) -> bool {
        true
    }

    fn is_visible(&self, _: u32, _: u64) -> bool {
        true
    }
}

async fn start(
    dir: &Path,
    store: &Arc<dyn ObjectStore>,
    restore: RestoreFrom,
    entries: u64,
) -> (ColdTier, Tasks) {
    let mut options = ColdOptions::new(dir, "eu".parse().unwrap());
    options.restore = restore;
    let tier = ColdTier::open(options, Arc::clone(store), Arc::new(Idle)).unwrap();
    let tasks = Tasks::new();
    tier.start(Arc::new(Numbers(entries)), &tasks);
    (tier, tasks)
}

async fn stop(tasks: Tasks) {
    let late = tasks.finish(Instant::now() + Duration::from_secs(60)).await;
    assert!(late.is_empty(), "{late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_an_empty_disk_serves_all_entries_of_the_bucket() {
    let entries = std::env::var("FONN_COLD_ENTRIES");
    let entries = entries.map_or(ENTRIES_DEFAULT, |it| {
        it.parse().expect("FONN_COLD_ENTRIES is a number")
    });
    let root = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new(Clock::system()));
    let began = Instant::now();
    let dir = root.path().join("first");
    let (tier, tasks) = start(&dir, &store, RestoreFrom::Checkpoint, entries).await;
    let deadline = Instant::now() + Duration::from_secs(1800);
    assert!(tier.drain(deadline.into()).await);
    println!("spilled {entries} entries in {:.1?}", began.elapsed());
    stop(tasks).await;
    drop(tier);

    for (name, restore) in [
        ("checkpoint", RestoreFrom::Checkpoint),
        ("footers", RestoreFrom::Footers),
    ] {
        let began = Instant::now();
        let (tier, tasks) = start(&root.path().join(name), &store, restore, 0).await;
        while !tier.is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let ready = began.elapsed();
        let status = tier.status();
        println!(
            "{name}: ready after {ready:.2?}, {} segments",
            status.segments
        );
        for number in (0..entries).step_by(1009) {
            let key = key(number);
            let Found::At(location) = tier.find(SPACE, &key) else {
                panic!("entry {number} is lost");
            };
            let Fetched::Hit(entry) = tier.fetch(SPACE, &key, &location).await.0 else {
                panic!("entry {number} cannot be read");
            };
            assert_eq!(entry.value, number.to_le_bytes().repeat(8));
        }
        assert_eq!(tier.find(SPACE, &key(entries)), Found::Absent);
        stop(tasks).await;
    }
}
