//! Reads: a bounded queue of questions and the threads that answer them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use fonn_codec::FrameError;
use fonn_codec::frame::HEADER_LEN;
use parking_lot::{Condvar, Mutex};
use tracing::warn;

use fonn_base::entry::{Meta, Space};
use fonn_cold_tier::Found as FoundBelow;
use fonn_proto::Version;

use super::error::DiskError;
use super::generation::Generation;
use super::generations::Found;
use super::index::IndexError;
use super::queue::Carry;
use super::record::{ERASED, Fact, IndexEntry, Record, index_key};
use super::stats::{DiskStats, add};
use super::value::{self, Decoded, Undecodable};
use super::{DiskEntry, DiskFound, Shared};

/// Reads that may wait.
pub(crate) const READS_MAX: usize = 8192;

/// Longer records, in bytes, are left to the threads for long reads.
const SHORT_RECORD_LEN_MAX: u64 = 1 << 20;

/// What a thread is to find out. It sends the answer itself.
pub(crate) type Question = Box<dyn FnOnce(&Shared) + Send>;

/// Which tiers a read asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The disk tier alone.
    Here,
    /// The disk tier, and the tier below it.
    Below,
}

/// Questions that wait for a thread.
pub(crate) struct Waiting {
    /// What waits, and whether nothing more is taken.
    waiting: Mutex<(VecDeque<Question>, bool)>,
    filled: Condvar,
    len_max: usize,
}

impl Waiting {
    /// Room for so many.
    pub(crate) fn new(len_max: usize) -> Self {
        Self {
            waiting: Mutex::new((VecDeque::new(), false)),
            filled: Condvar::new(),
            len_max,
        }
    }

    /// Adds a question, unless too many wait. A thread that is awake may take it at once; a thread
    /// that sleeps is woken by [`Waiting::hand_over`].
    pub(crate) fn push(&self, question: Question) -> Result<(), DiskError> {
        let mut waiting = self.waiting.lock();
        if waiting.1 {
            return Err(DiskError::Closed);
        }
        if waiting.0.len() >= self.len_max {
            return Err(DiskError::Busy);
        }
        waiting.0.push_back(question);
        Ok(())
    }

    /// Wakes a thread if something waits. One is enough: it wakes the next before it begins if
    /// there is more.
    pub(crate) fn hand_over(&self, stats: &DiskStats) {
        let waiting = self.waiting.lock();
        self.wake_for(&waiting.0, stats);
    }

    fn wake_for(&self, waiting: &VecDeque<Question>, stats: &DiskStats) {
        if !waiting.is_empty() && self.filled.notify_one() {
            add(&stats.read_wakes, 1);
        }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().0.len()
    }

    /// Takes no more; what waits is not answered.
    pub(crate) fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.1 = true;
        waiting.0.clear();
        self.filled.notify_all();
    }

    /// The next one, for a thread; waits for it. None once it is closed.
    pub(crate) fn take(&self, stats: &DiskStats) -> Option<Question> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.1 {
                return None;
            }
            if let Some(one) = waiting.0.pop_front() {
                self.wake_for(&waiting.0, stats);
                return Some(one);
            }
            self.filled.wait(&mut waiting);
        }
    }
}

/// Body of a thread that answers questions, as long as `take` has one.
pub(crate) fn run(shared: &Shared, take: impl Fn() -> Option<Question>) {
    while let Some(question) = take() {
        // fjall may panic; the caller hears that the read failed.
        if catch_unwind(AssertUnwindSafe(|| question(shared))).is_err() {
            add(&shared.stats.reads_failed, 1);
            warn!("a read panicked");
        }
    }
}

/// What stands where an index entry leads to.
pub(crate) enum Looked {
    Whole { record: Bytes, frame: Bytes },
    Damaged,
    Refused,
}

/// Reads the record that `entry` leads to, and checks that it is the one.
pub(crate) fn look(
    log: &super::log::Log,
    entry: &IndexEntry,
    (space, key): (Space, &[u8]),
) -> Looked {
    let Ok(len) = usize::try_from(entry.record_len) else {
        return Looked::Damaged;
    };
    let bytes = match log.read(entry.offset, len) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Looked::Damaged,
        Err(_) => return Looked::Refused,
    };
    match Record::parse(&bytes) {
        Some(record) if record.space == space && record.key == key && record.fact == entry.fact => {
            Looked::Whole {
                frame: bytes.slice_ref(record.frame),
                record: bytes.clone(),
            }
        }
        _ => Looked::Damaged,
    }
}

/// What came of a lookup that reads no long record.
pub(crate) enum Lookup<T> {
    Found(T),
    /// The newest record has so many bytes. The threads for long reads are to read it.
    Long(u64),
}

/// What the indexes know of a key.
pub(crate) enum Indexed {
    Put(Found, Meta),
    /// No index leads to a value: what the tier below has.
    NoValue(DiskFound),
}

/// Asks the indexes. If one cannot be read at all, that is an error: the key may have an entry, and
/// a delete must not take it for absent.
pub(crate) fn indexed(shared: &Shared, space: Space, key: &[u8]) -> Result<Indexed, DiskError> {
    let stats = &shared.stats;
    let found = shared.generations.find(&index_key(space, key));
    let found = found.inspect_err(|error| {
        add(&stats.reads_failed, 1);
        warn!(%error, "cannot read an index");
    })?;
    let version = found.as_ref().map(|found| found.entry.fact.version());
    let put = found.and_then(|found| match found.entry.fact {
        Fact::Put(meta) => Some(Indexed::Put(found, meta)),
        Fact::Tombstone(_) => None,
    });
    Ok(put.unwrap_or_else(|| {
        add(&stats.reads_missed, 1);
        Indexed::NoValue(find_below(shared, space, key, version))
    }))
}

/// Reads the newest record of a key, whatever its length.
pub(crate) fn find(shared: &Shared, space: Space, key: &[u8]) -> Result<DiskFound, DiskError> {
    match indexed(shared, space, key)? {
        Indexed::Put(found, meta) => read(shared, (space, key), &found, meta),
        Indexed::NoValue(below) => Ok(below),
    }
}

/// As [`find`], but leaves a long record to other threads.
pub(crate) fn find_short(
    shared: &Shared,
    space: Space,
    key: &[u8],
) -> Result<Lookup<DiskFound>, DiskError> {
    match indexed(shared, space, key)? {
        Indexed::Put(found, meta) => read_short(shared, (space, key), &found, meta),
        Indexed::NoValue(below) => Ok(Lookup::Found(below)),
    }
}

/// Reads the record that an index led to, unless it is long.
pub(crate) fn read_short(
    shared: &Shared,
    at: (Space, &[u8]),
    found: &Found,
    meta: Meta,
) -> Result<Lookup<DiskFound>, DiskError> {
    match u64::from(found.entry.record_len) {
        len if len > SHORT_RECORD_LEN_MAX => Ok(Lookup::Long(len)),
        _ => read(shared, at, found, meta).map(Lookup::Found),
    }
}

/// Reads the record that an index led to.
fn read(
    shared: &Shared,
    (space, key): (Space, &[u8]),
    found: &Found,
    meta: Meta,
) -> Result<DiskFound, DiskError> {
    let stats = &shared.stats;
    let decoded = match look(&found.generation.log, &found.entry, (space, key)) {
        Looked::Whole { record, frame } => {
            match value::decode(&frame, shared.options.value_len_max, &shared.idle_cpus) {
                Ok(Decoded { value, threads }) => {
                    add(&stats.values_shared, u64::from(threads > 1));
                    Some((record, frame, value))
                }
                Err(Undecodable::Unsupported(reason)) => {
                    return Ok(unsupported(shared, reason));
                }
                Err(Undecodable::Damaged) => None,
            }
        }
        Looked::Damaged => None,
        Looked::Refused => return Err(refused(shared, key, found)),
    };
    let Some((record, frame, value)) = decoded else {
        return Ok(damaged(shared, (space, key), found));
    };
    let generation = found.generation.id;
    if shared.is_in_older_half(generation) {
        let carry = Carry {
            space,
            record,
            fact: found.entry.fact,
            generation,
        };
        if shared.queue.try_carry(carry).is_err() {
            add(&stats.carries_skipped, 1);
        }
    }
    let is_verbatim = frame.len() == value.len() + HEADER_LEN;
    let frame = (!is_verbatim).then_some(frame);
    Ok(DiskFound::Entry(DiskEntry { meta, value, frame }))
}

/// Counts a read of an entry that this build cannot decode. It is absent.
pub(crate) fn unsupported(shared: &Shared, reason: FrameError) -> DiskFound {
    add(&shared.stats.reads_unsupported, 1);
    shared.warn_of_unsupported(reason);
    DiskFound::Absent
}

/// Counts a read of a damaged record. It is no entry, unless the tier below has the same.
pub(crate) fn damaged(shared: &Shared, (space, key): (Space, &[u8]), found: &Found) -> DiskFound {
    add(&shared.stats.reads_corrupt, 1);
    // A log that lost its end has many: `fonn_disk_damaged_reads_total` counts them.
    if found.generation.is_first_damage() {
        warn!(
            generation = found.generation.id,
            offset = found.entry.offset,
            key_hash = xxhash_rust::xxh3::xxh3_64(key),
            "damaged record; more of this generation are only counted"
        );
    }
    find_below(shared, space, key, Some(found.entry.fact.version()))
}

/// Counts a read that the device has refused.
pub(crate) fn refused(shared: &Shared, key: &[u8], found: &Found) -> DiskError {
    let generation = found.generation.id;
    let key_hash = xxhash_rust::xxh3::xxh3_64(key);
    add(&shared.stats.reads_failed, 1);
    warn!(generation, key_hash, "cannot read a value log");
    let reason = "its value log cannot be read".to_owned();
    DiskError::Index { generation, reason }
}

/// What the tier below has of a key whose record on disk, if it has one, is no entry. That of
/// another region may be newer than a deletion here, and one of the same version replaces a damaged
/// one.
fn find_below(shared: &Shared, space: Space, key: &[u8], version: Option<Version>) -> DiskFound {
    let Some(below) = &shared.below else {
        return DiskFound::Absent;
    };
    match below.find(space, key) {
        FoundBelow::At(location) if version.is_none_or(|here| location.at() >= here) => {
            DiskFound::Below(location)
        }
        _ => DiskFound::Absent,
    }
}

/// The highest version that the indexes here, and below if these are asked, know of a key.
pub(crate) fn newest(
    shared: &Shared,
    space: Space,
    key: &[u8],
    reach: Reach,
) -> Result<Option<Version>, DiskError> {
    let found = shared.generations.find(&index_key(space, key))?;
    let here = found.map(|found| found.entry.fact.version());
    let here = here.filter(|version| *version != ERASED);
    let below = shared.below.as_ref().filter(|_| reach == Reach::Below);
    let below = below.and_then(|below| match below.find(space, key) {
        FoundBelow::At(location) => Some(location.at()),
        FoundBelow::Tombstone(at) => Some(at),
        FoundBelow::Absent => None,
    });
    Ok(here.max(below))
}

/// An index key and its entry.
type Keyed = (Vec<u8>, IndexEntry);

/// Entries of an index in the order of their index keys.
type Entries = Box<dyn Iterator<Item = Result<Keyed, IndexError>>>;

/// The newest entry of a key.
pub(super) struct Met {
    pub(super) space: Space,
    pub(super) key: Vec<u8>,
    pub(super) entry: IndexEntry,
    /// Number of the generation that has it.
    pub(super) generation: u64,
}

/// The entries of all generations, the newest of each key, in the order of their index keys. An
/// entry whose long key is damaged is left out.
pub(super) struct Merged(Vec<Cursor>);

impl Merged {
    /// The entries of a space and those after it, from behind the key `after` on.
    pub(super) fn open(
        generations: &[Arc<Generation>],
        space: Space,
        after: Option<&[u8]>,
    ) -> Result<Self, DiskError> {
        let mut start = index_key(space, after.unwrap_or(&[]));
        if after.is_some() {
            // The first key behind it.
            start.push(0);
        }
        let mut cursors = Vec::with_capacity(generations.len());
        for generation in generations.iter() {
            let mut cursor = Cursor {
                generation: Arc::clone(generation),
                entries: Box::new(generation.index.entries_from(&start)),
                head: None,
            };
            cursor.advance()?;
            cursors.push(cursor);
        }
        Ok(Self(cursors))
    }

    pub(super) fn next(&mut self) -> Result<Option<Met>, DiskError> {
        while let Some((generation, (key, entry))) = self.next_entry()? {
            let named = generation.key_of(&key, &entry);
            let named = named.map_err(|error| generation.unreadable(error.into()))?;
            if let Some((space, key)) = named {
                let key = key.into_owned();
                return Ok(Some(Met {
                    space,
                    key,
                    entry,
                    generation: generation.id,
                }));
            }
        }
        Ok(None)
    }

    fn next_entry(&mut self) -> Result<Option<(Arc<Generation>, Keyed)>, DiskError> {
        // The first of equal keys is the newest generation's.
        let mut least: Option<(usize, &[u8])> = None;
        for (at, cursor) in self.0.iter().enumerate() {
            let Some((key, _)) = &cursor.head else {
                continue;
            };
            if least.is_none_or(|(_, least)| key.as_slice() < least) {
                least = Some((at, key));
            }
        }
        let least = least.map(|(at, _)| at);
        let Some(cursor) = least.and_then(|at| self.0.get_mut(at)) else {
            return Ok(None);
        };
        let head = cursor.head.take();
        let generation = Arc::clone(&cursor.generation);
        cursor.advance()?;
        let Some((key, entry)) = head else {
            return Ok(None);
        };
        for cursor in &mut self.0 {
            if cursor.head.as_ref().is_some_and(|head| head.0 == key) {
                cursor.advance()?;
            }
        }
        Ok(Some((generation, (key, entry))))
    }
}

struct Cursor {
    generation: Arc<Generation>,
    entries: Entries,
    head: Option<Keyed>,
}

impl Cursor {
    fn advance(&mut self) -> Result<(), DiskError> {
        let next = self.entries.next().transpose();
        self.head = next.map_err(|error| self.generation.unreadable(error))?;
        Ok(())
    }
}

impl Shared {
    /// Whether half of the budget or more was written after this generation: what is read there
    /// deserves a second chance.
    pub(crate) fn is_in_older_half(&self, generation: u64) -> bool {
        let newer: u64 = self
            .generations
            .snapshot()
            .iter()
            .take_while(|newer| newer.id != generation)
            .map(|newer| newer.disk_bytes())
            .sum();
        newer >= self.budget.load(Ordering::Relaxed) / 2
    }
}
