//! A node around the cold tier: a queue that survives crashes, and an observer that keeps a record.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use fonn_base::boxed::BoxFuture;
use fonn_base::tasks::Tasks;
use fonn_cold_tier::crash::CrashPoints;
use fonn_cold_tier::names::SegmentName;
use fonn_cold_tier::segment::{Facts, FlushMark};
use fonn_cold_tier::{
    Backlog, ColdObserver, ColdOptions, ColdTier, CopyRef, ObjectStore, SpillBatch, SpillCursor,
    SpillFact, SpillRecord, SpillSource, SpillSourceError,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Duration, Instant};

/// The queue in front of the bucket: what a disk tier would have in its logs.
#[derive(Default)]
pub struct Queue {
    records: Mutex<Vec<SpillRecord>>,
    acknowledged: Mutex<u64>,
    news: Notify,
}

fn cursor(position: u64) -> SpillCursor {
    SpillCursor::new(position.to_le_bytes().to_vec())
}

fn position(cursor: &SpillCursor) -> usize {
    let bytes = <[u8; 8]>::try_from(cursor.as_bytes());
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes) as usize)
}

impl Queue {
    pub fn push(&self, key: &[u8], version: u64, fact: SpillFact, written_ms: u64) {
        let mut records = self.records.lock();
        let after = cursor(records.len() as u64 + 1);
        records.push(SpillRecord {
            space: 1,
            key: Bytes::copy_from_slice(key),
            at: version,
            fact,
            written_ms,
            after,
        });
        drop(records);
        self.news.notify_one();
    }

    /// How many records the bucket has taken over.
    pub fn acknowledged(&self) -> u64 {
        *self.acknowledged.lock()
    }
}

pub fn put(value: &[u8], expires_at_ms: u64) -> SpillFact {
    let mut frame = Vec::new();
    fonn_codec::encode(fonn_codec::CodecSpec::none(), 0, value, &mut frame).unwrap();
    SpillFact::Put {
        facts: Facts {
            expires_at_ms,
            ..Facts::default()
        },
        frame: frame.into(),
    }
}

impl SpillSource for Queue {
    fn read(&self, from: &SpillCursor, max_bytes: usize) -> Result<SpillBatch, SpillSourceError> {
        let records = self.records.lock();
        let newest: HashMap<&[u8], u64> = records
            .iter()
            .map(|record| (&record.key[..], record.at))
            .collect();
        let mut batch = SpillBatch {
            records: Vec::new(),
            end: from.clone(),
        };
        let mut bytes = 0;
        for record in records.iter().skip(position(from)) {
            let len = match &record.fact {
                SpillFact::Put { frame, .. } => frame.len(),
                SpillFact::Tombstone => 0,
            };
            if bytes + len > max_bytes && !batch.records.is_empty() {
                break;
            }
            bytes += len;
            batch.end = record.after.clone();
            if newest.get(&record.key[..]) == Some(&record.at) {
                batch.records.push(record.clone());
            }
        }
        Ok(batch)
    }

    fn acknowledge(&self, cursor: &SpillCursor) {
        let mut acknowledged = self.acknowledged.lock();
        *acknowledged = (*acknowledged).max(position(cursor) as u64);
    }

    fn backlog(&self, cursor: &SpillCursor) -> Backlog {
        let records = self.records.lock();
        let rest = records.iter().skip(position(cursor));
        Backlog {
            entries: rest.clone().count() as u64,
            bytes: 0,
            oldest_written_ms: rest.map(|record| record.written_ms).min(),
        }
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.news.notified())
    }
}

/// A version that no clock in a test comes to.
pub const UNBELIEVABLE: u64 = 1 << 62;

/// What the node was told.
#[derive(Default)]
pub struct Told {
    pub superseded: Mutex<HashMap<Vec<u8>, u64>>,
    pub flushed: Mutex<u64>,
}

impl ColdObserver for Told {
    fn superseded(&self, newer: &[CopyRef<'_>]) {
        let mut superseded = self.superseded.lock();
        for copy in newer {
            let newest = superseded.entry(copy.key.to_vec()).or_default();
            *newest = copy.at.max(*newest);
        }
    }

    /// What a clock that is years ahead has flushed is not believed.
    fn flushed(&self, mark: &FlushMark) -> bool {
        let is_believed = mark.cutoff < UNBELIEVABLE;
        if is_believed {
            let mut flushed = self.flushed.lock();
            *flushed = mark.cutoff.max(*flushed);
        }
        is_believed
    }

    fn is_visible(&self, _space: u32, version: u64) -> bool {
        version >= *self.flushed.lock()
    }
}

/// One run of a node.
pub struct Node {
    pub tier: ColdTier,
    pub tasks: Tasks,
    pub told: Arc<Told>,
    pub crash: Arc<CrashPoints>,
}

impl Node {
    pub fn start(
        dir: &Path,
        store: Arc<dyn ObjectStore>,
        queue: &Arc<Queue>,
        options: &dyn Fn(&mut ColdOptions),
    ) -> Self {
        let mut chosen = ColdOptions::new(dir, "eu".parse().unwrap());
        chosen.inline_blocking = true;
        chosen.memory_bytes = 8 << 20;
        let crash = Arc::new(CrashPoints::default());
        chosen.crash = Some(Arc::clone(&crash));
        options(&mut chosen);
        let told = Arc::new(Told::default());
        let observer: Arc<dyn ColdObserver> = told.clone();
        let tier = ColdTier::open(chosen, store, observer).unwrap();
        let tasks = Tasks::new();
        tier.start(Arc::<Queue>::clone(queue), &tasks);
        Self {
            tier,
            tasks,
            told,
            crash,
        }
    }

    pub async fn drain(&self, within: Duration) -> bool {
        self.tier.drain(Instant::now() + within).await
    }

    /// Everything of the process is gone.
    pub async fn crash(self) {
        let deadline = Instant::now() + Duration::from_secs(3600);
        let late = self.tasks.finish(deadline.into_std()).await;
        assert!(late.is_empty(), "{late:?}");
    }

    /// Waits for something to become true.
    pub async fn until(&self, what: &str, is_true: impl Fn(&ColdTier) -> bool) {
        for _ in 0..100_000 {
            if is_true(&self.tier) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("never: {what}: {:?}", self.tier.status());
    }
}

/// What a check of all segments in the bucket found.
#[derive(Debug, Default)]
pub struct Verification {
    pub segments: u64,
    pub damaged: Vec<String>,
    pub unknown: Vec<SegmentName>,
    pub missing: Vec<SegmentName>,
    pub wrong_entries: u64,
}

/// Compares the bucket with the index and reads every segment.
pub async fn verify(tier: &ColdTier) -> Verification {
    let compared = tier.compare().await.unwrap();
    let known: HashSet<SegmentName> = tier.list().into_iter().map(|it| it.name).collect();
    let listed = compared.listed.iter().map(|(name, _)| name);
    let mut found = Verification {
        unknown: listed
            .filter(|name| !known.contains(name))
            .cloned()
            .collect(),
        missing: compared.missing,
        ..Verification::default()
    };
    for (name, _) in &compared.listed {
        if let Some(check) = tier.verify_segment(name).await.unwrap() {
            found.segments += 1;
            found.wrong_entries += check.wrong_entries;
            found.damaged.extend(check.damage);
        }
    }
    found
}
