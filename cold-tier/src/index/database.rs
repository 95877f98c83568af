//! The database under the local index: fjall, with what keeps it from harm.
//!
//! A commit hands its batch to the kernel, so the batch survives a `kill -9`. A loss of power
//! leaves a prefix of the batches, with at least those before the last [`Database::sync`]. The
//! bucket has the rest. fjall's own threads may fail and leave the database *poisoned*: it still
//! reads, and writes no more. A panic out of fjall is caught and counts as an error. All calls
//! block.

use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use fjall::config::{
    BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
    PartitioningPolicy, PinningPolicy,
};
use fjall::{
    CompressionType, Database as Fjall, Keyspace, KeyspaceCreateOptions, PersistMode, Readable,
    Snapshot,
};
use fonn_base::file::is_damage;
use fonn_base::niceness;

use crate::checkpoint::IndexEntry;
use crate::names::KeyHash;

/// Names of the keyspaces. fjall persists options when a keyspace is created: other options need
/// another name.
const ENTRIES: &str = "entries.1";
const SEGMENTS: &str = "segments.1";
const META: &str = "meta.1";

/// Of absent keys, the share that a filter lets pass, on every level: most lookups are of keys that
/// are not here.
const FALSE_POSITIVE_RATE: f32 = 0.0001;

/// fjall makes its caller sleep at 4 sealed memtables or 20 runs in level 0, without an end if its
/// workers have died; commits wait here before it comes to that.
const SEALED_MEMTABLES_MAX: usize = 2;
const LEVEL_0_TABLES_MAX: usize = 16;

/// fjall's threads. The first only flushes, and passes a wish to compact back into the queue as
/// fast as it can until another takes it: with one other, that costs a core for as long as a
/// compaction takes.
const WORKERS: usize = 3;

/// Nice value of these threads: no client waits for them.
const WORKER_NICENESS: i32 = 10;

/// Why the index did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The operating system refused; the index itself may be fine.
    #[error("the local index of the cold tier cannot be read or written")]
    Io(#[from] io::Error),
    /// What is on disk cannot be used, or the database is poisoned. It is to be built anew from the
    /// bucket.
    #[error("the local index of the cold tier is damaged: {0}")]
    Broken(String),
    /// The index was written by another release.
    #[error(
        "the local index of the cold tier has format {found}, this release reads {known}: \
         run the release that wrote it, or remove its directory (it is built again from the bucket)"
    )]
    Format {
        /// The format found.
        found: u32,
        /// The format that this release writes.
        known: u32,
    },
}

impl IndexError {
    pub(crate) fn unreadable(what: &str) -> Self {
        Self::Broken(format!("unreadable {what}"))
    }
}

impl From<fjall::Error> for IndexError {
    fn from(error: fjall::Error) -> Self {
        let source = match error {
            fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => source,
            other => return Self::Broken(other.to_string()),
        };
        if is_damage(&source) {
            Self::Broken(source.to_string())
        } else {
            Self::Io(source)
        }
    }
}

/// Runs a call into fjall; a panic becomes an error.
fn guarded<T>(call: impl FnOnce() -> Result<T, IndexError>) -> Result<T, IndexError> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(IndexError::Broken("the database panicked".to_owned())))
}

fn options(memtable: u64) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(memtable)
        .data_block_compression_policy(CompressionPolicy::disabled())
        .index_block_compression_policy(CompressionPolicy::disabled())
        .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(
            BloomConstructionPolicy::FalsePositiveRate(FALSE_POSITIVE_RATE),
        )))
        .filter_block_partitioning_policy(PartitioningPolicy::all(false))
        .filter_block_pinning_policy(PinningPolicy::all(true))
        // A whole index block of a large table would be loaded for each read.
        .index_block_partitioning_policy(PartitioningPolicy::all(true))
        .expect_point_read_hits(false)
        .with_kv_separation(None)
        .manual_journal_persist(true)
}

fn parse_entry(hash: KeyHash, bytes: &[u8]) -> Result<IndexEntry, IndexError> {
    IndexEntry::decode(hash, bytes).map_err(|error| IndexError::Broken(error.to_string()))
}

/// The database, open.
pub(crate) struct Database {
    fjall: Fjall,
    entries: Keyspace,
    segments: Keyspace,
    meta: Keyspace,
}

/// Key and value of the meta keyspace.
pub(crate) type MetaRow = (Vec<u8>, Vec<u8>);

/// Changes that become visible, and survive a crash, together.
#[derive(Default)]
pub(crate) struct Batch(Vec<Change>);

struct Change {
    keyspace: fn(&Database) -> &Keyspace,
    key: Vec<u8>,
    /// None: the row is removed.
    value: Option<Vec<u8>>,
}

impl Batch {
    pub(crate) fn put_entry(&mut self, entry: IndexEntry) {
        let value = Some(entry.encode().to_vec());
        self.push(|db| &db.entries, entry.hash.0.to_vec(), value);
    }

    pub(crate) fn remove_entry(&mut self, hash: KeyHash) {
        self.push(|db| &db.entries, hash.0.to_vec(), None);
    }

    pub(crate) fn put_segment(&mut self, id: u32, row: Vec<u8>) {
        self.push(|db| &db.segments, id.to_be_bytes().to_vec(), Some(row));
    }

    pub(crate) fn remove_segment(&mut self, id: u32) {
        self.push(|db| &db.segments, id.to_be_bytes().to_vec(), None);
    }

    pub(crate) fn put_meta(&mut self, key: impl Into<Vec<u8>>, value: Vec<u8>) {
        self.push(|db| &db.meta, key.into(), Some(value));
    }

    pub(crate) fn remove_meta(&mut self, key: impl Into<Vec<u8>>) {
        self.push(|db| &db.meta, key.into(), None);
    }

    fn push(&mut self, keyspace: fn(&Database) -> &Keyspace, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.0.push(Change {
            keyspace,
            key,
            value,
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Database {
    /// Opens the database in `dir`, creating it if there is none.
    pub(crate) fn open(dir: &Path, memtable: u64, cache: u64) -> Result<Self, IndexError> {
        guarded(|| {
            let config = Fjall::builder(dir)
                .worker_threads(WORKERS)
                .max_cached_files(Some(64))
                .cache_size(cache)
                .journal_compression(CompressionType::None)
                .manual_journal_persist(true)
                .into_config();
            // fjall's workers inherit the nice value of the thread that opens the database.
            let open = || {
                // Tests are many at a time: such a thread would get next to no time.
                if !cfg!(any(test, feature = "test-util")) {
                    niceness::stand_back(WORKER_NICENESS);
                }
                Fjall::open(config)
            };
            let opened = std::thread::scope(|scope| scope.spawn(open).join());
            let fjall = opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let entries = fjall.keyspace(ENTRIES, || options(memtable))?;
            // The small ones change with each segment, not with each entry.
            let small = (memtable / 4).max(64 << 10);
            let segments = fjall.keyspace(SEGMENTS, || options(small))?;
            let meta = fjall.keyspace(META, || options(small))?;
            Ok(Self {
                fjall,
                entries,
                segments,
                meta,
            })
        })
    }

    pub(crate) fn entry(&self, hash: KeyHash) -> Result<Option<IndexEntry>, IndexError> {
        let found = guarded(|| Ok(self.entries.get(hash.0)?))?;
        found.map(|bytes| parse_entry(hash, &bytes)).transpose()
    }

    pub(crate) fn meta(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        guarded(|| Ok(self.meta.get(key)?.map(|bytes| bytes.to_vec())))
    }

    /// What the meta keyspace has under a prefix, as key without the prefix, and value.
    pub(crate) fn meta_under(&self, prefix: &[u8]) -> Result<Vec<MetaRow>, IndexError> {
        guarded(|| {
            let found = self.meta.prefix(prefix).map(|guard| {
                let (key, value) = guard.into_inner()?;
                let rest = key.get(prefix.len()..).unwrap_or_default();
                Ok((rest.to_vec(), value.to_vec()))
            });
            found.collect()
        })
    }

    /// Rows that the meta keyspace has under a prefix, from behind `after` on, as
    /// [`Database::meta_under`] gives them. At most `rows_max`, and none behind the row with which
    /// their keys have `bytes_max` bytes.
    pub(crate) fn meta_page(
        &self,
        prefix: &[u8],
        after: &[u8],
        (rows_max, bytes_max): (usize, usize),
    ) -> Result<Vec<MetaRow>, IndexError> {
        guarded(|| {
            let start = Bound::Excluded([prefix, after].concat());
            let range = (start, Bound::<Vec<u8>>::Unbounded);
            let mut page = Vec::new();
            let mut bytes = 0;
            for guard in self.meta.range(range).take(rows_max) {
                let (key, value) = guard.into_inner()?;
                let Some(rest) = key.strip_prefix(prefix) else {
                    break;
                };
                bytes += rest.len();
                page.push((rest.to_vec(), value.to_vec()));
                if bytes >= bytes_max {
                    break;
                }
            }
            Ok(page)
        })
    }

    /// All rows of the segment table.
    pub(crate) fn segments(&self) -> Result<Vec<(u32, Vec<u8>)>, IndexError> {
        guarded(|| {
            let rows = self.segments.iter().map(|guard| {
                let (key, value) = guard.into_inner()?;
                let id = <[u8; 4]>::try_from(&*key)
                    .map_err(|_| IndexError::unreadable("segment number"))?;
                Ok((u32::from_be_bytes(id), value.to_vec()))
            });
            rows.collect()
        })
    }

    /// Makes a batch visible, and hands it to the kernel.
    ///
    /// # Errors
    /// Nothing of the batch is visible then. The database is to be regarded as poisoned.
    pub(crate) fn commit(&self, batch: Batch) -> Result<(), IndexError> {
        self.wait_for_flushes()?;
        guarded(|| {
            let mut writes = self.fjall.batch().durability(Some(PersistMode::Buffer));
            for change in batch.0 {
                let keyspace = (change.keyspace)(self);
                match change.value {
                    Some(value) => writes.insert(keyspace, change.key, value),
                    None => writes.remove(keyspace, change.key),
                }
            }
            Ok(writes.commit()?)
        })
    }

    fn wait_for_flushes(&self) -> Result<(), IndexError> {
        while self.entries.sealed_memtable_count() > SEALED_MEMTABLES_MAX
            || self.entries.l0_table_count() > LEVEL_0_TABLES_MAX
        {
            // Tells a poisoned database, whose workers would never get done.
            guarded(|| Ok(self.fjall.persist(PersistMode::Buffer)?))?;
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Puts entries into a database that has none, in the order of their hashes, past journal and
    /// memtables. They are visible at the end, all at once.
    pub(crate) fn ingest(
        &self,
        entries: impl Iterator<Item = Result<IndexEntry, IndexError>>,
    ) -> Result<u64, IndexError> {
        guarded(|| {
            let mut ingestion = self.entries.start_ingestion()?;
            let mut count = 0;
            let mut last: Option<KeyHash> = None;
            for entry in entries {
                let entry = entry?;
                if last.is_some_and(|last| last >= entry.hash) {
                    return Err(IndexError::unreadable("order of entries"));
                }
                last = Some(entry.hash);
                ingestion.write(entry.hash.0.to_vec(), entry.encode().to_vec())?;
                count += 1;
            }
            ingestion.finish()?;
            Ok(count)
        })
    }

    /// Whether there is an entry.
    pub(crate) fn has_entries(&self) -> Result<bool, IndexError> {
        guarded(|| Ok(!self.entries.is_empty()?))
    }

    /// Whether nothing was ever written.
    pub(crate) fn is_empty(&self) -> Result<bool, IndexError> {
        guarded(|| Ok(self.entries.is_empty()? && self.meta.is_empty()?))
    }

    /// The entries as they are now, in the order of their hashes, from one hash on.
    pub(crate) fn scan(&self) -> Scan {
        Scan {
            snapshot: self.fjall.snapshot(),
            entries: self.entries.clone(),
        }
    }

    /// Puts all batches so far on the disk.
    pub(crate) fn sync(&self) -> Result<(), IndexError> {
        guarded(|| Ok(self.fjall.persist(PersistMode::SyncData)?))
    }

    /// About how many entries there are; an entry written twice may count twice.
    pub(crate) fn entries_approx(&self) -> u64 {
        self.entries.approximate_len() as u64
    }
}

/// Entries at one moment.
pub(crate) struct Scan {
    snapshot: Snapshot,
    entries: Keyspace,
}

impl Scan {
    /// Up to `limit` entries behind `after`, in the order of their hashes.
    pub(crate) fn page(
        &self,
        after: Option<KeyHash>,
        limit: usize,
    ) -> Result<Vec<IndexEntry>, IndexError> {
        guarded(|| {
            let start = after.map_or(Bound::Unbounded, |hash| Bound::Excluded(hash.0.to_vec()));
            let range = (start, Bound::<Vec<u8>>::Unbounded);
            let page = self.snapshot.range(&self.entries, range).take(limit);
            page.map(|guard| {
                let (key, value) = guard.into_inner()?;
                let hash =
                    <[u8; 16]>::try_from(&*key).map_err(|_| IndexError::unreadable("key hash"))?;
                parse_entry(KeyHash(hash), &value)
            })
            .collect()
        })
    }
}
