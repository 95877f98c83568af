//! A generation: a value log and the index over it, in a directory of their own.
//!
//! It has all entries that were written in one stretch of time. The writer fills the newest
//! generation. The others are sealed and only read, until the oldest is dropped whole, journal and
//! all. Compaction replaces a sealed one by its next *incarnation*: the same useful records in
//! another directory. Directory names are used once.
//!
//! Invariant: the log is the truth. The index knows every record up to its checkpoint; opening
//! reads the rest of the log into it, or all of it if the index is unusable.

mod replay;

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fonn_base::entry::Space;
use fonn_base::file::{self, is_damage};
use fonn_proto::Version;
use tracing::{error, warn};

use super::directory::{GenerationName, create_file, disk_bytes, make_dir};
use super::error::DiskError;
use super::index::{Checkpoint, Index, IndexError, IndexMemory, Known};
use super::log::Log;
use super::record::{HEAD_LEN, IndexEntry, Named, index_key, key_place, split_index_key};
use super::stats::{DiskStats, add};

const LOG: &str = "values";
/// The log of an incarnation that is not complete yet.
const LOG_UNFINISHED: &str = "values.new";
const INDEX: &str = "index";
const DROPPED: &str = "dropped";
const COMPACTED: &str = "compacted";

/// A value log and the index over it.
pub(crate) struct Generation {
    pub(crate) id: u64,
    /// How often it was written anew. Positions mean another incarnation's records.
    pub(crate) incarnation: u32,
    dir: PathBuf,
    pub(crate) log: Log,
    pub(crate) index: Index,
    /// Bytes on disk of everything but the log, when last looked at.
    side_bytes: AtomicU64,
    /// About how many bytes were added to these since.
    side_bytes_since: AtomicU64,
    /// Not written any more.
    sealed: AtomicBool,
    /// Compaction has nothing to do here, or cannot do it.
    compacted: AtomicBool,
    /// The tier below had all of it when it was written anew, at other positions.
    passed: AtomicBool,
    /// Takes no more writes, because its log or index failed. Reads go on.
    failed: AtomicBool,
    /// A read met a damaged record.
    has_damage: AtomicBool,
    /// A read met damage of its index.
    has_broken_index: AtomicBool,
    /// The log lost its end, which the index knows.
    is_cut: bool,
    /// Up to where the index knows every record of the log.
    committed: AtomicU64,
    /// The newest version of the records that were put into its log since it was opened.
    newest: AtomicU64,
    /// It may have records from before it was opened.
    is_reopened: bool,
    /// Bytes of the records that the index leads to, by space; once it was sealed and a reader
    /// asked.
    contents: OnceLock<Vec<(Space, u64)>>,
}

/// A generation as opening found it.
pub(crate) struct Opened {
    pub(crate) generation: Generation,
    /// Whether it may go on being written.
    pub(crate) writable: bool,
}

/// What a directory that bears the name of a generation holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// A generation.
    Generation,
    /// One that was dropped.
    Dropped,
    /// One that was never completed.
    Nothing,
}

/// Looks what a directory holds. A log that is missing or empty is no proof of nothing: if the
/// index knows records of it, it is lost, and they hide older ones all the same.
pub(crate) fn look_into(dir: &Path, memory: &IndexMemory) -> Holds {
    let exists = |name| dir.join(name).exists();
    if exists(DROPPED) {
        return Holds::Dropped;
    }
    if std::fs::metadata(dir.join(LOG)).is_ok_and(|log| log.len() > 0) {
        return Holds::Generation;
    }
    if exists(LOG_UNFINISHED) || !exists(INDEX) {
        return Holds::Nothing;
    }
    let index = Index::open(&dir.join(INDEX), memory);
    match index.and_then(|index| index.known()) {
        Ok(known) if known.end > 0 => Holds::Generation,
        _ => Holds::Nothing,
    }
}

/// Removes a generation. It does not count from the beginning: what a kill may leave is a remnant.
pub(crate) fn remove(dir: &Path) -> io::Result<()> {
    // On a full disk no file can be made; without its log it is at worst one that lost it.
    if create_file(&dir.join(DROPPED)).is_err() {
        let _ = std::fs::remove_file(dir.join(LOG));
    }
    remove_all(dir)
}

/// Removes a directory with all that is in it, or the file that is in its place.
fn remove_all(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => std::fs::remove_file(path),
        removed => removed,
    }
}

impl Generation {
    /// Makes a new generation; its names survive a loss of power. One that shall replace another
    /// does not count before [`Generation::publish`].
    pub(crate) fn create(
        dir: PathBuf,
        name: GenerationName,
        memory: &IndexMemory,
    ) -> Result<Self, DiskError> {
        make_dir(&dir).map_err(DiskError::io("make", &dir))?;
        let log_name = if name.incarnation == 0 {
            LOG
        } else {
            LOG_UNFINISHED
        };
        let log =
            Log::open(&dir.join(log_name)).map_err(DiskError::io("make value log in", &dir))?;
        let index_dir = dir.join(INDEX);
        let index =
            Index::open(&index_dir, memory).map_err(|error| failure(name.id, &index_dir, error))?;
        // fjall makes its journals 64 MiB long at once. The bytes take no room before they are
        // written, but a sum of file lengths would be wrong.
        let journal = index_dir.join("0.jnl");
        if let Ok(journal) = File::options().write(true).open(journal) {
            let _ = journal.set_len(0);
        }
        let synced = file::sync_dir(&dir).and_then(|()| file::sync_parent(&dir));
        synced.map_err(DiskError::io("sync", &dir))?;
        let generation = Self::new(dir, name, log, index);
        generation.measure();
        Ok(generation)
    }

    fn new(dir: PathBuf, name: GenerationName, log: Log, index: Index) -> Self {
        let is_compacted = name.incarnation != 0 || dir.join(COMPACTED).exists();
        Self {
            id: name.id,
            incarnation: name.incarnation,
            dir,
            log,
            index,
            side_bytes: AtomicU64::new(0),
            side_bytes_since: AtomicU64::new(0),
            sealed: AtomicBool::new(false),
            compacted: AtomicBool::new(is_compacted),
            passed: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            has_damage: AtomicBool::new(false),
            has_broken_index: AtomicBool::new(false),
            is_cut: false,
            committed: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            is_reopened: false,
            contents: OnceLock::new(),
        }
    }

    /// Up to where the index knows every record of the log, in bytes.
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Notes that the index knows every record of the log up to `end`.
    pub(crate) fn set_committed(&self, end: u64) {
        self.committed.store(end, Ordering::Release);
    }

    /// How often it was rewritten.
    pub(crate) fn rewrite(&self) -> u64 {
        u64::from(self.incarnation)
    }

    /// Its name.
    pub(crate) fn name(&self) -> GenerationName {
        GenerationName {
            id: self.id,
            incarnation: self.incarnation,
        }
    }

    /// From now on this incarnation counts and the one before does not, whatever happens. The log
    /// is durable before, and the name when this returns.
    pub(crate) fn publish(&self) -> Result<(), DiskError> {
        let publish = || {
            let _ = self.log.trim();
            self.log.sync()?;
            std::fs::rename(self.dir.join(LOG_UNFINISHED), self.dir.join(LOG))?;
            file::sync_dir(&self.dir)
        };
        publish().map_err(DiskError::io("publish", &self.dir))
    }

    /// Opens a generation after a clean stop, a kill, or a loss of power.
    ///
    /// # Errors
    /// [`DiskError::Io`] if the operating system refuses, [`DiskError::Index`] if not even a new
    /// index can be made, or if records are lost of which it is unknown what they replaced or
    /// deleted.
    pub(crate) fn open(
        dir: PathBuf,
        name: GenerationName,
        memory: &IndexMemory,
        stats: &DiskStats,
    ) -> Result<Opened, DiskError> {
        let id = name.id;
        let log = Log::open(&dir.join(LOG)).map_err(|error| failure(id, &dir, error.into()))?;
        let index_dir = dir.join(INDEX);
        let opened = Index::open(&index_dir, memory)
            .and_then(|index| index.known().map(|known| (index, known)));
        let (index, known) = match opened {
            Ok(opened) => opened,
            Err(IndexError::Io(error)) => return Err(DiskError::io("open", &index_dir)(error)),
            Err(IndexError::Broken(reason)) => {
                error!(
                    generation = id,
                    reason, "index is unusable: making a new one from the value log"
                );
                add(&stats.indexes_rebuilt, 1);
                remove_all(&index_dir).map_err(DiskError::io("remove", &index_dir))?;
                let index = Index::open(&index_dir, memory)
                    .map_err(|error| failure(id, &index_dir, error))?;
                (index, Known::default())
            }
        };
        let mut generation = Self::new(dir, name, log, index);
        generation.is_reopened = true;
        if known.end > generation.log.end() {
            // Power was lost before the log was synced, or the file is damaged. The index's entries
            // for what is missing lead to misses, as they must; new records must not come to lie
            // where they point to.
            warn!(
                generation = id,
                checkpoint = known.end,
                end = generation.log.end(),
                "value log lost its end: what was there is missed from now on"
            );
            add(&stats.records_damaged, 1);
            generation.is_cut = true;
            generation.set_compacted();
            generation.measure();
            generation.set_committed(generation.log.end());
            return Ok(Opened {
                generation,
                writable: false,
            });
        }
        let replayed = generation
            .replay(known)
            .map_err(|error| failure(id, &index_dir, error))?;
        add(&stats.records_replayed, replayed.records);
        add(&stats.records_damaged, replayed.damaged);
        add(&stats.log_bytes_cut, replayed.cut_bytes);
        generation.measure();
        generation.set_committed(generation.log.end());
        Ok(Opened {
            // What is written now is to be compacted some day, and that happens once. And a seal is
            // synced: that it is broken would not be.
            writable: !generation.has_been_compacted() && !known.is_sealed,
            generation,
        })
    }

    /// Bytes on disk, about.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.log.end()
            + self.log.ahead()
            + self.side_bytes.load(Ordering::Relaxed)
            + self.side_bytes_since.load(Ordering::Relaxed)
    }

    /// Notes that about so many bytes were added beside the log.
    pub(crate) fn add_side_bytes(&self, bytes: u64) {
        self.side_bytes_since.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that records up to this version are about to be put into its log.
    pub(crate) fn note_newest(&self, version: Version) {
        self.newest.fetch_max(version, Ordering::AcqRel);
    }

    /// The version that none of its records is above. The whole index of one that was there at the
    /// start is read for it: when a file was written says nothing, since versions may be ahead of
    /// the clock.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub(crate) fn newest_version(&self) -> Result<Version, IndexError> {
        let mut newest = self.newest.load(Ordering::Acquire);
        if self.is_reopened {
            for found in self.index.entries_from(&index_key(Space(0), b"")) {
                let (_, entry) = found?;
                newest = newest.max(entry.fact.version());
            }
        }
        Ok(newest)
    }

    /// The space and the key of an entry of the index; a long key is read from the record. None for
    /// the index's own facts, and if the record is damaged.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(crate) fn key_of<'k>(
        &self,
        found: &'k [u8],
        entry: &IndexEntry,
    ) -> io::Result<Option<(Space, Cow<'k, [u8]>)>> {
        let space = match split_index_key(found) {
            Some((space, Named::Key(key))) => return Ok(Some((space, Cow::Borrowed(key)))),
            Some((space, Named::Long)) => space,
            None => return Ok(None),
        };
        let read = || {
            let head = self.log.read(entry.offset, HEAD_LEN)?;
            let place = key_place(&head).ok_or(io::ErrorKind::UnexpectedEof)?;
            let at = entry.offset.saturating_add(place.start as u64);
            self.log.read(at, place.len())
        };
        match read() {
            // The digest says whether it is the key.
            Ok(key) if *index_key(space, &key) == *found => {
                Ok(Some((space, Cow::Owned(key.into()))))
            }
            Ok(_) => Ok(None),
            Err(error) if is_damage(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks how many bytes on disk there are beside the log.
    pub(crate) fn measure(&self) {
        let added = self.side_bytes_since.load(Ordering::Relaxed);
        // The log grows to whole blocks, and its length is what is counted for it.
        let bytes = disk_bytes(&self.dir.join(INDEX)).map(|bytes| bytes + 8192);
        if let Ok(bytes) = bytes {
            self.side_bytes.store(bytes, Ordering::Relaxed);
            self.side_bytes_since.fetch_sub(added, Ordering::Relaxed);
        }
    }

    /// Seals it: from now on it is only read, and a restart finds all of it in tables.
    pub(crate) fn seal(&self) -> Result<(), DiskError> {
        if self.sealed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let _ = self.log.trim();
        self.log
            .sync()
            .map_err(DiskError::io("sync value log in", &self.dir))?;
        if self.is_cut {
            // The index must go on knowing of more.
            return Ok(());
        }
        let checkpoint = Checkpoint::Sealed(self.log.end());
        let sealed = self
            .index
            .commit(std::iter::empty(), Some(checkpoint))
            .and_then(|()| self.index.flush());
        sealed.map_err(|error| failure(self.id, &self.dir, error))
    }

    /// Whether its log has lost records that its index knows. It must not be written anew: what is
    /// lost of it hides older records, and is in no log.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether it takes no more writes.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// From now on it takes no more writes; false if that was known.
    pub(crate) fn set_failed(&self) -> bool {
        !self.failed.swap(true, Ordering::AcqRel)
    }

    /// Notes that a read met a damaged record; false if one has before.
    pub(crate) fn is_first_damage(&self) -> bool {
        !self.has_damage.swap(true, Ordering::AcqRel)
    }

    /// Whether a read has met a damaged record.
    pub(crate) fn has_met_damage(&self) -> bool {
        self.has_damage.load(Ordering::Acquire)
    }

    /// What a caller is told of an index that cannot be read. Damage of a part of it is noted, so
    /// that compaction writes the generation anew.
    pub(crate) fn unreadable(&self, error: IndexError) -> DiskError {
        let reason = error.to_string();
        let is_broken = matches!(error, IndexError::Broken(_));
        if is_broken && !self.has_broken_index.swap(true, Ordering::AcqRel) {
            warn!(
                generation = self.id,
                reason, "a part of an index is damaged: its keys cannot be read for now"
            );
            self.compacted.store(self.is_cut, Ordering::Release);
        }
        DiskError::Index {
            generation: self.id,
            reason,
        }
    }

    /// Whether a part of its index is damaged. Only the log has all of its records then.
    pub(crate) fn has_broken_index(&self) -> bool {
        self.has_broken_index.load(Ordering::Acquire)
    }

    /// Whether compaction is done with it.
    pub(crate) fn has_been_compacted(&self) -> bool {
        self.compacted.load(Ordering::Acquire)
    }

    /// Compaction is done with it, as long as the process lives.
    pub(crate) fn set_compacted(&self) {
        self.compacted.store(true, Ordering::Release);
    }

    /// Compaction is done with it and left it as it is; a restart need not look again.
    pub(crate) fn mark_compacted(&self) {
        self.set_compacted();
        // Without the file, a restart looks again.
        let _ = create_file(&self.dir.join(COMPACTED));
    }

    /// Notes that the tier below had all that the incarnation before this one held. It is not
    /// remembered across a restart, after which the tier below reads it once more, and finds that
    /// it has it.
    pub(crate) fn mark_passed(&self) {
        self.passed.store(true, Ordering::Release);
    }

    /// Whether a position in an earlier incarnation is behind all of it.
    pub(crate) fn is_passed(&self) -> bool {
        self.passed.load(Ordering::Acquire)
    }

    /// Whether it is only read from now on.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Bytes of the records that the index leads to, by space. The first call on a sealed
    /// generation reads the whole index; later ones know.
    pub(crate) fn contents(&self) -> Result<&[(Space, u64)], IndexError> {
        if let Some(known) = self.contents.get() {
            return Ok(known);
        }
        let mut contents: Vec<(Space, u64)> = Vec::new();
        for found in self.index.entries_from(&index_key(Space(0), b"")) {
            let (key, entry) = found?;
            let Some((space, _)) = split_index_key(&key) else {
                continue;
            };
            let len = u64::from(entry.record_len);
            match contents.last_mut() {
                Some((last, bytes)) if *last == space => *bytes += len,
                _ => contents.push((space, len)),
            }
        }
        Ok(self.contents.get_or_init(|| contents))
    }

    /// Whether its disk use changes no more.
    pub(crate) fn is_quiet(&self) -> bool {
        self.sealed.load(Ordering::Acquire) && self.index.is_idle()
    }

    /// From now on its directory does not count as a generation, whatever happens. Reads go on.
    pub(crate) fn mark_dropped(&self) -> Result<(), DiskError> {
        // On a full disk no file can be made; without its log it does not count either.
        let marked = create_file(&self.dir.join(DROPPED)).map(drop);
        let marked = marked.or_else(|_| std::fs::remove_file(self.dir.join(LOG)));
        marked
            .and_then(|()| file::sync_dir(&self.dir))
            .map_err(DiskError::io("drop", &self.dir))
    }

    /// Closes it and removes its directory. Call it when no other thread reads it.
    pub(crate) fn remove(self) -> Result<(), DiskError> {
        let Self {
            dir, log, index, ..
        } = self;
        drop((log, index));
        std::fs::remove_dir_all(&dir).map_err(DiskError::io("remove", &dir))
    }
}

fn failure(generation: u64, path: &Path, error: IndexError) -> DiskError {
    match error {
        IndexError::Io(source) if is_damage(&source) => DiskError::Index {
            generation,
            reason: source.to_string(),
        },
        IndexError::Io(source) => DiskError::io("use", path)(source),
        IndexError::Broken(reason) => DiskError::Index { generation, reason },
    }
}
