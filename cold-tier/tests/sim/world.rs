//! A node, a bucket with faults, and a model of every operation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fonn_base::clock::ManualClock;
use fonn_base::random::SplitMix64;
use fonn_cold_tier::segment::FlushMark;
use fonn_cold_tier::store::meter::{MeterStats, Prices};
use fonn_cold_tier::store::{FaultStore, MemoryStore, MeterStore, Operation, PAGE_MAX};
use fonn_cold_tier::{ColdOptions, Fetched, Found, ObjectStore};
use tempfile::TempDir;
use tokio::time::Duration;

use crate::node::{Node, Queue, put};
use fonn_cold_tier::SpillFact;

pub const START_MS: u64 = 1_750_000_000_000;

#[derive(Clone, Debug)]
pub enum Kind {
    Put { value: Vec<u8>, expires_at_ms: u64 },
    Delete,
}

#[derive(Clone, Debug)]
pub struct Op {
    pub version: u64,
    pub kind: Kind,
}

pub struct World {
    pub manual: ManualClock,
    pub memory: Arc<MemoryStore>,
    pub faults: Arc<FaultStore>,
    pub meter: Arc<MeterStats>,
    store: Arc<dyn ObjectStore>,
    root: TempDir,
    dirs: u32,
    pub queue: Arc<Queue>,
    pub random: SplitMix64,
    pub model: BTreeMap<Vec<u8>, Vec<Op>>,
    version: u64,
    pub cutoff: u64,
    /// Versions up to this are in the bucket.
    durable: u64,
    /// Entries may be lost: objects vanished or were damaged.
    pub may_lose: bool,
    /// Half of a segment may be left by an upload that a crash ended.
    pub may_be_torn: bool,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let manual = ManualClock::new(START_MS);
        let memory = Arc::new(MemoryStore::new(manual.clock()));
        let inner: Arc<dyn ObjectStore> = memory.clone();
        let faults = Arc::new(FaultStore::new(inner, seed));
        let metered: Arc<dyn ObjectStore> = faults.clone();
        let meter = MeterStore::new(metered, Prices::default(), manual.clock());
        let stats = meter.stats();
        let ticking = manual.clone();
        // Ends with the test's runtime.
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                ticking.advance(Duration::from_millis(100));
            }
        });
        Self {
            manual,
            memory,
            faults,
            meter: stats,
            store: Arc::new(meter),
            root: tempfile::tempdir().unwrap(),
            dirs: 0,
            queue: Arc::default(),
            random: SplitMix64::new(seed),
            model: BTreeMap::new(),
            version: 0,
            cutoff: 0,
            durable: 0,
            may_lose: false,
            may_be_torn: false,
        }
    }

    pub fn now_ms(&self) -> u64 {
        self.manual.clock().wall_ms()
    }

    pub fn dir(&self) -> PathBuf {
        self.root.path().join(self.dirs.to_string())
    }

    /// From now on nodes start without an index.
    pub fn lose_index(&mut self) {
        self.dirs += 1;
    }

    pub fn start(&self, options: &dyn Fn(&mut ColdOptions)) -> Node {
        self.start_in(&self.dir(), &self.queue, options)
    }

    pub fn start_in(
        &self,
        dir: &Path,
        queue: &Arc<Queue>,
        options: &dyn Fn(&mut ColdOptions),
    ) -> Node {
        let clock = self.manual.clock();
        let node = Node::start(dir, Arc::clone(&self.store), queue, &|chosen| {
            chosen.clock = clock.clone();
            options(chosen);
        });
        // What a node does after each start.
        if self.cutoff > 0 {
            *node.told.flushed.lock() = self.cutoff;
            node.tier
                .flush(FlushMark::of_space(1, self.cutoff))
                .unwrap();
        }
        node
    }

    fn next_version(&mut self) -> u64 {
        self.version = (self.version + 1).max(self.now_ms() << 16);
        self.version
    }

    fn record(&mut self, key: &[u8], kind: Kind) {
        let version = self.next_version();
        let fact = match &kind {
            Kind::Put {
                value,
                expires_at_ms,
            } => put(value, *expires_at_ms),
            Kind::Delete => SpillFact::Tombstone,
        };
        self.queue.push(key, version, fact, self.now_ms());
        let ops = self.model.entry(key.to_vec()).or_default();
        ops.push(Op { version, kind });
    }

    pub fn put(&mut self, key: &[u8], len: usize, ttl_ms: Option<u64>) {
        let mut value = Vec::with_capacity(len + 8);
        while value.len() < len {
            value.extend_from_slice(&self.random.next_u64().to_le_bytes());
        }
        let expires_at_ms = ttl_ms.map_or(0, |ttl_ms| self.now_ms() + ttl_ms);
        self.record(
            key,
            Kind::Put {
                value,
                expires_at_ms,
            },
        );
    }

    pub fn delete(&mut self, key: &[u8]) {
        self.record(key, Kind::Delete);
    }

    pub fn flush(&mut self, node: &Node) {
        self.cutoff = self.next_version();
        *node.told.flushed.lock() = self.cutoff;
        node.tier
            .flush(FlushMark::of_space(1, self.cutoff))
            .unwrap();
    }

    /// Spills everything; it must succeed.
    pub async fn drain(&mut self, node: &Node) {
        let version = self.version;
        assert!(
            node.drain(Duration::from_secs(3600)).await,
            "{:?}",
            node.tier.status()
        );
        self.durable = version;
    }

    pub async fn try_drain(&mut self, node: &Node, within: Duration) {
        let version = self.version;
        if node.drain(within).await {
            self.durable = version;
        }
    }

    /// Compares what the node gives with the model. Complete if nothing durable may be missing.
    pub async fn check(&self, node: &Node, is_complete: bool) {
        for (key, ops) in &self.model {
            let hit = match node.tier.find(1, key) {
                Found::Absent | Found::Tombstone(_) => None,
                Found::At(location) => match node.tier.fetch(1, key, &location).await.0 {
                    Fetched::Hit(entry) => Some(entry),
                    other => {
                        assert!(
                            !is_complete || self.may_lose,
                            "{other:?} for {} in {}",
                            String::from_utf8_lossy(key),
                            "a bucket without faults"
                        );
                        None
                    }
                },
            };
            let durable = ops.iter().rev().find(|op| op.version <= self.durable);
            let name = String::from_utf8_lossy(key);
            if let Some(entry) = &hit {
                let version = entry.at;
                let op = ops.iter().find(|op| op.version == version);
                let Some(Op {
                    kind:
                        Kind::Put {
                            value,
                            expires_at_ms,
                        },
                    ..
                }) = op
                else {
                    panic!("{name}: version {version} was never put");
                };
                assert!(*value == entry.value, "{name}: wrong bytes");
                assert!(version >= self.cutoff, "{name}: flushed and back");
                let now_ms = self.now_ms();
                assert!(
                    *expires_at_ms == 0 || *expires_at_ms + 60_000 > now_ms,
                    "{name}: expired and back"
                );
                if let Some(durable) = durable {
                    assert!(
                        version >= durable.version,
                        "{name}: an older version is back"
                    );
                }
            }
            let newest = ops.last().map(|op| op.version);
            let Some(Op {
                version,
                kind: Kind::Put { expires_at_ms, .. },
            }) = durable
            else {
                continue;
            };
            let lives = (*expires_at_ms == 0 || *expires_at_ms > self.now_ms())
                && *version >= self.cutoff
                && newest == Some(*version);
            if is_complete && lives && !self.may_lose {
                assert!(
                    hit.is_some(),
                    "{name}: lost {version}: {:?}",
                    node.tier.find(1, key)
                );
            }
        }
    }

    pub fn calls(&self, operation: Operation) -> u64 {
        self.meter.of(operation).calls
    }

    /// Calls of each operation.
    pub fn all_calls(&self) -> [u64; Operation::ALL.len()] {
        Operation::ALL.map(|operation| self.calls(operation))
    }

    /// What is in the bucket below a prefix, faults or not.
    pub async fn objects(&self, prefix: &str) -> Vec<String> {
        let page = self.memory.list(prefix, None, PAGE_MAX).await.unwrap();
        assert_eq!(page.next, None, "more than a page");
        let names = page.objects.iter();
        names.map(|object| object.key.as_str().to_owned()).collect()
    }
}
