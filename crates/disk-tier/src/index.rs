//! The index of a generation: a fjall database with one keyspace, from key to record.
//!
//! Only small entries live in it; values are in the value log. It is derived: every batch that it
//! commits may carry a checkpoint, the position in the log up to which it knows every record, and
//! what it lost (its journal is never synced by us) is read again from there. A batch is visible
//! whole or not at all, and what survives of a journal is always a prefix of it. When a commit
//! returns the kernel has it: a kill of the process loses nothing.
//!
//! fjall's own threads may fail and leave the database *poisoned*: it still reads, and writes no
//! more. A panic out of fjall is caught and counts as an error.

mod journal;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fjall::config::{
    BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
    PartitioningPolicy, PinningPolicy,
};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use fonn_base::file::is_damage;

use super::record::{IndexEntry, IndexKey};

/// Name of the only keyspace. fjall persists options when a keyspace is created: other options need
/// another name.
const KEYSPACE: &str = "entries.2";

/// Key of the checkpoint.
const CHECKPOINT: &[u8] = b"\0checkpoint";

/// Of absent keys, the share that a filter lets pass: with nine generations about one read of an
/// absent key in a thousand looks at an index block. Costs 2.4 bytes of RAM a key.
const FALSE_POSITIVE_RATE: f32 = 0.0001;

/// fjall makes its caller sleep at 4 sealed memtables or 20 runs in level 0, without an end if its
/// workers have died; commits wait here before it comes to that.
const SEALED_MEMTABLES_MAX: usize = 2;
const LEVEL_0_TABLES_MAX: usize = 16;

/// fjall's threads of one index. The first only flushes, and passes a wish to compact back into the
/// queue as fast as it can until another takes it: with one other, that costs a core for as long as
/// a compaction takes. With none besides it, a worker that waits for room in the queue that it
/// empties itself would wait forever.
const WORKERS: usize = 3;

/// The RAM of all indexes: each has memtables of its own, the block cache is shared.
#[derive(Clone)]
pub(crate) struct IndexMemory {
    /// Bytes of one memtable.
    memtable: u64,
    /// Holds the cache: fjall gives it no name of its own.
    cache: fjall::Config,
}

impl IndexMemory {
    pub(crate) fn new(memtable: u64, cache: u64) -> Self {
        Self {
            memtable,
            cache: Database::builder("/").cache_size(cache).into_config(),
        }
    }

    /// Bytes of one memtable.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.memtable
    }
}

/// Which start of the machine a checkpoint was made in, or that nothing was to follow it.
type Stamp = [u8; 16];

/// Of a checkpoint behind which nothing was ever written.
const STAMP_SEALED: Stamp = [0xff; 16];

/// How far an index knows every record of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checkpoint {
    /// Up to here; more is to follow.
    Written(u64),
    /// Up to here, and nothing follows.
    Sealed(u64),
}

impl Checkpoint {
    fn to_bytes(self) -> Vec<u8> {
        let (end, stamp) = match self {
            Self::Written(end) => (end, this_start()),
            Self::Sealed(end) => (end, STAMP_SEALED),
        };
        [&end.to_le_bytes()[..], &stamp].concat()
    }
}

/// What an index that was opened says of its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Up to where it knows every record.
    pub(crate) end: u64,
    /// Nothing that follows was ever acknowledged: the machine has not lost power since.
    pub(crate) is_all: bool,
    /// Nothing was to follow, and nothing is to be written behind it.
    pub(crate) is_sealed: bool,
}

impl Known {
    fn parse(bytes: &[u8]) -> Self {
        let split = bytes.split_first_chunk::<8>();
        let split = split.and_then(|(end, stamp)| Some((end, Stamp::try_from(stamp).ok()?)));
        let Some((end, stamp)) = split else {
            return Self::default();
        };
        Self {
            end: u64::from_le_bytes(*end),
            is_all: stamp == STAMP_SEALED || (stamp == this_start() && this_start() != [0; 16]),
            is_sealed: stamp == STAMP_SEALED,
        }
    }
}

/// What tells this start of the machine from others; zeros if the system does not say.
fn this_start() -> Stamp {
    static STAMP: OnceLock<Stamp> = OnceLock::new();
    *STAMP.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16).unwrap_or(0).to_le_bytes()
    })
}

/// The index of one generation.
pub(crate) struct Index {
    database: Database,
    keyspace: Keyspace,
}

/// Why an index did not do what it should.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IndexError {
    /// The operating system refused; the index itself may be fine.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What is on disk cannot be used, or the database is poisoned.
    #[error("{0}")]
    Broken(String),
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
        .unwrap_or_else(|_| Err(IndexError::Broken("the index panicked".to_owned())))
}

fn options(memory: &IndexMemory) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(memory.memtable)
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

impl Index {
    /// Opens the index in `dir`, creating it if there is none.
    pub(crate) fn open(dir: &Path, memory: &IndexMemory) -> Result<Self, IndexError> {
        match journal::is_in_order(dir) {
            Ok(true) => {}
            Err(error) if !is_damage(&error) => return Err(error.into()),
            _ => return Err(IndexError::Broken("damaged journal".to_owned())),
        }
        guarded(|| {
            let mut config = Database::builder(dir)
                .worker_threads(WORKERS)
                .max_cached_files(Some(32))
                .journal_compression(CompressionType::None)
                .manual_journal_persist(true)
                .into_config();
            config.cache = Arc::clone(&memory.cache.cache);
            // fjall's workers inherit the nice value of the thread that opens the database.
            let open = || {
                super::stand_back(super::WRITE_NICENESS);
                Database::open(config)
            };
            let opened = std::thread::scope(|scope| scope.spawn(open).join());
            let database = opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let keyspace = database.keyspace(KEYSPACE, || options(memory))?;
            Ok(Self { database, keyspace })
        })
    }

    /// The entry of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<IndexEntry>, IndexError> {
        guarded(|| self.keyspace.get(key).map_err(IndexError::from))?
            .map(|bytes| {
                IndexEntry::parse(&bytes)
                    .ok_or_else(|| IndexError::Broken("unreadable index entry".to_owned()))
            })
            .transpose()
    }

    /// Writes entries at once, and hands them to the kernel. `checkpoint` is the end of the log
    /// whose records the index will know all of.
    ///
    /// # Errors
    /// Nothing of the batch is visible then. The index is to be regarded as poisoned.
    pub(crate) fn commit(
        &self,
        entries: impl Iterator<Item = (IndexKey, IndexEntry)>,
        checkpoint: Option<Checkpoint>,
    ) -> Result<(), IndexError> {
        self.wait_for_flushes()?;
        guarded(|| {
            let to_kernel = Some(PersistMode::Buffer);
            let mut batch = self.database.batch().durability(to_kernel);
            for (key, entry) in entries {
                batch.insert(&self.keyspace, key.to_vec(), entry.to_bytes());
            }
            if let Some(checkpoint) = checkpoint {
                batch.insert(&self.keyspace, CHECKPOINT, checkpoint.to_bytes());
            }
            Ok(batch.commit()?)
        })
    }

    /// Waits until compaction has caught up with what was written.
    ///
    /// # Errors
    /// The database failed.
    pub(crate) fn wait_for_flushes(&self) -> Result<(), IndexError> {
        while self.keyspace.sealed_memtable_count() > SEALED_MEMTABLES_MAX
            || self.keyspace.l0_table_count() > LEVEL_0_TABLES_MAX
        {
            // Tells a poisoned database, whose workers would never get done.
            self.database.persist(PersistMode::Buffer)?;
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// How far into the log the index knows every record.
    pub(crate) fn known(&self) -> Result<Known, IndexError> {
        let bytes = guarded(|| Ok(self.keyspace.get(CHECKPOINT)?))?;
        Ok(bytes.as_deref().map_or_else(Known::default, Known::parse))
    }

    /// Entries in key order, from `start` on. A key that is not an entry's ends it.
    pub(crate) fn entries_from(
        &self,
        start: &[u8],
    ) -> impl Iterator<Item = Result<(Vec<u8>, IndexEntry), IndexError>> + use<> {
        self.keyspace.range(start.to_vec()..).map(|guard| {
            let (key, bytes) = guarded(|| Ok(guard.into_inner()?))?;
            let entry = IndexEntry::parse(&bytes)
                .ok_or_else(|| IndexError::Broken("unreadable index entry".to_owned()))?;
            Ok((key.to_vec(), entry))
        })
    }

    /// Has the memtable written to a table in the background, so that neither RAM nor a restart
    /// needs it any more.
    pub(crate) fn flush(&self) -> Result<(), IndexError> {
        guarded(|| {
            self.keyspace.rotate_memtable()?;
            Ok(())
        })
    }

    /// Whether something is still to be flushed or compacted.
    pub(crate) fn is_idle(&self) -> bool {
        self.keyspace.sealed_memtable_count() == 0
            && self.database.outstanding_flushes() == 0
            && self.database.active_compactions() == 0
    }

    /// About how many keys it has; keys written twice may count twice.
    pub(crate) fn entries_approx(&self) -> u64 {
        self.keyspace.approximate_len() as u64
    }
}

#[cfg(test)]
mod tests {
    use fonn_base::entry::{Meta, Space};

    use super::*;
    use crate::record::{Fact, index_key};

    fn memory() -> IndexMemory {
        IndexMemory::new(1 << 20, 1 << 20)
    }

    fn entry(version: u64) -> IndexEntry {
        IndexEntry {
            fact: Fact::Put(Meta::new(version, 0, 0)),
            offset: version,
            record_len: 9,
        }
    }

    #[test]
    fn entries_and_checkpoint_are_found_after_reopening() {
        let dir = tempfile::tempdir().unwrap();
        {
            let index = Index::open(dir.path(), &memory()).unwrap();
            assert_eq!(index.known().unwrap(), Known::default());
            let key = index_key(Space(1), b"k");
            index
                .commit([(key.clone(), entry(1))].into_iter(), None)
                .unwrap();
            index
                .commit([(key, entry(2))].into_iter(), Some(Checkpoint::Written(77)))
                .unwrap();
        }
        let index = Index::open(dir.path(), &memory()).unwrap();
        let known = index.known().unwrap();
        assert_eq!((known.end, known.is_all), (77, this_start() != [0; 16]));
        assert_eq!(
            index.get(&index_key(Space(1), b"k")).unwrap(),
            Some(entry(2))
        );
        assert_eq!(index.get(&index_key(Space(2), b"k")).unwrap(), None);
        let all: Vec<_> = index.entries_from(&index_key(Space(0), b"")).collect();
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn nothing_follows_a_checkpoint_of_this_start_or_of_a_seal_unnoticed() {
        let known = |is_all, is_sealed| Known {
            end: 7,
            is_all,
            is_sealed,
        };
        let written = Checkpoint::Written(7).to_bytes();
        let says = this_start() != [0; 16];
        assert_eq!(Known::parse(&written), known(says, false));
        let sealed = Checkpoint::Sealed(7).to_bytes();
        assert_eq!(Known::parse(&sealed), known(true, true));
        // Of another start, and of an unknown one.
        let end = 7_u64.to_le_bytes();
        for stamp in [[1; 16], [0; 16]] {
            let bytes = [&end[..], &stamp].concat();
            assert_eq!(Known::parse(&bytes), known(false, false));
        }
        for damaged in [&b"?"[..], &end, &sealed[1..]] {
            assert_eq!(Known::parse(damaged), Known::default());
        }
    }

    #[test]
    fn a_batch_that_claims_to_be_older_than_it_is_breaks_the_index() {
        let dir = tempfile::tempdir().unwrap();
        let key = index_key(Space(1), b"k");
        let index = Index::open(dir.path(), &memory()).unwrap();
        for version in 1..=3 {
            let checkpoint = Checkpoint::Written(version);
            let entries = [(key.clone(), entry(version))].into_iter();
            index.commit(entries, Some(checkpoint)).unwrap();
        }
        drop(index);
        let path = dir.path().join("0.jnl");
        let good = std::fs::read(&path).unwrap();
        // The start of a batch of two items, and the first of these.
        let is_start = |it: &[u8]| it.starts_with(&[1, 2, 0, 0, 0]) && it.get(13) == Some(&2);
        let starts: Vec<_> = (0..good.len())
            .filter(|at| is_start(&good[*at..]))
            .collect();
        assert_eq!(starts.len(), 3);
        let opened = |number: u64| {
            let mut bytes = good.clone();
            bytes[starts[2] + 5..][..8].copy_from_slice(&number.to_le_bytes());
            std::fs::write(&path, bytes).unwrap();
            Index::open(dir.path(), &memory())
        };
        let number = u64::from_le_bytes(*good[starts[2] + 5..].first_chunk().unwrap());
        for lower in [0, number - 1, number - 2] {
            assert!(
                matches!(opened(lower), Err(IndexError::Broken(_))),
                "{lower}"
            );
        }
        let higher = opened(number + 70).unwrap();
        assert_eq!(higher.get(&key).unwrap(), Some(entry(3)));
    }

    #[test]
    fn an_index_whose_files_are_gone_is_broken_and_not_an_io_error() {
        let dir = tempfile::tempdir().unwrap();
        drop(Index::open(dir.path(), &memory()).unwrap());
        std::fs::write(dir.path().join("version"), b"FJL\x09").unwrap();
        assert!(matches!(
            Index::open(dir.path(), &memory()),
            Err(IndexError::Broken(_))
        ));
    }
}
