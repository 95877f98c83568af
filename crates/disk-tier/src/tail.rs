//! Reading everything that was written, in the order of writing: the queue of what lies below.
//!
//! The value logs are that queue: they are bounded by the disk budget, survive a kill, and are
//! there anyway. A reader keeps a [`TailPosition`]; what was written since is behind it. Only the
//! newest record of each key is given out, so a key that is written often passes once.

use bytes::Bytes;
use fonn_base::entry::Space;
use fonn_base::file::is_damage;
use tracing::warn;

use super::generation::Generation;
use super::index::IndexError;
use super::log::Stored;
use super::record::{ERASED, Fact, HEAD_LEN, IndexEntry, Lengths, index_key};
use super::stats::add;
use super::{DiskError, Shared};

/// A position in the sequence of all records: everything before it was passed.
///
/// Compaction rewrites a generation, which moves its records; `rewrite` counts how often.
/// Then a reader begins anew with that generation, unless the tier below had all of it before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TailPosition {
    /// Number of the generation.
    pub generation: u64,
    /// How often the generation had been rewritten.
    pub rewrite: u64,
    /// Bytes of its value log.
    pub offset: u64,
}

impl TailPosition {
    /// Its length in bytes as a cursor.
    pub const LEN: usize = 24;

    /// As bytes, to be kept by the reader.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let fields = [self.generation, self.rewrite, self.offset];
        for (place, field) in out.as_chunks_mut::<8>().0.iter_mut().zip(fields) {
            *place = field.to_le_bytes();
        }
        out
    }

    /// From bytes; the beginning of everything if these are no position.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let (fields, rest) = bytes.as_chunks::<8>();
        let [generation, rewrite, offset] = fields else {
            return Self::default();
        };
        if !rest.is_empty() {
            return Self::default();
        }
        Self {
            generation: u64::from_le_bytes(*generation),
            rewrite: u64::from_le_bytes(*rewrite),
            offset: u64::from_le_bytes(*offset),
        }
    }
}

/// A record that was the newest of its key when it was read. It shares memory with no other.
#[derive(Clone, Debug)]
pub struct TailRecord {
    /// Where its key lives.
    pub space: Space,
    /// The key.
    pub key: Bytes,
    /// What was written.
    pub fact: Fact,
    /// The value's frame, verified; empty for a tombstone.
    pub frame: Bytes,
    /// The position behind it.
    pub after: TailPosition,
}

/// What was read.
#[derive(Debug, Default)]
pub struct Tailed {
    /// The records, in the order of the log.
    pub records: Vec<TailRecord>,
    /// Where to go on; behind the last record, further if others were passed over.
    pub next: TailPosition,
}

/// How much lies behind a position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Bytes of value logs.
    pub bytes: u64,
    /// Records, about.
    pub entries: u64,
    /// Version of the first of them; None if there is none.
    pub oldest: Option<u64>,
}

/// Reads from `from` on until `bytes_max` of records are found or everything up to the generation
/// `horizon` is read. At least one record is given if there is one.
///
/// Damage does not stop the reader. It passes over a record that cannot be read. It gives out a
/// record if a damaged index does not tell whether the record is the newest.
///
/// # Errors
/// [`DiskError::Index`] if a log cannot be read for a reason that may pass.
pub(crate) fn read(
    shared: &Shared,
    from: TailPosition,
    bytes_max: usize,
    horizon: u64,
) -> Result<Tailed, DiskError> {
    let mut tailed = Tailed {
        next: from,
        ..Tailed::default()
    };
    let mut bytes = 0;
    // Taken before any end is looked at: of all but the newest nothing more is written.
    let snapshot = shared.generations.snapshot();
    for generation in snapshot.iter().rev() {
        if generation.id < tailed.next.generation || generation.id > horizon {
            continue;
        }
        tailed.next = position_in(generation, tailed.next);
        let end = generation.committed();
        let mut records = generation.log.records(tailed.next.offset);
        while tailed.next.offset < end {
            if bytes >= bytes_max {
                return Ok(tailed);
            }
            let next = match records.next() {
                Err(error) if is_damage(&error) => None,
                next => next.map_err(|error| generation.unreadable(error.into()))?,
            };
            let Some(stored) = next else {
                add(&shared.stats.reads_corrupt, 1);
                let next = record_behind(generation, tailed.next.offset, end);
                tailed.next.offset = next.map_err(|error| generation.unreadable(error))?;
                warn!(
                    generation = generation.id,
                    next = tailed.next.offset,
                    "damaged record in a value log"
                );
                records = generation.log.records(tailed.next.offset);
                continue;
            };
            tailed.next.offset = records.position();
            // What lies below is not erased with it.
            if stored.fact.version() != ERASED && may_be_newest(shared, generation, &stored) {
                let stored = stored.alone();
                bytes += stored.bytes.len();
                tailed.records.push(TailRecord {
                    space: stored.space,
                    key: stored.bytes.slice_ref(stored.key()),
                    fact: stored.fact,
                    frame: stored.bytes.slice_ref(stored.frame()),
                    after: tailed.next,
                });
            }
        }
        // Compacted meanwhile, its records had another place and were passed over: once more, from
        // its beginning.
        let now = shared.generations.by_id(generation.id);
        if now.is_some_and(|now| now.name() != generation.name()) {
            return Ok(tailed);
        }
    }
    Ok(tailed)
}

/// How much lies behind `from` in generations up to `horizon`.
pub(crate) fn unread(shared: &Shared, from: TailPosition, horizon: u64) -> Unread {
    let mut unread = Unread::default();
    for generation in shared.generations.snapshot().iter().rev() {
        if generation.id < from.generation || generation.id > horizon {
            continue;
        }
        let start = position_in(generation, from).offset;
        let end = generation.committed();
        if start >= end {
            continue;
        }
        unread.bytes += end - start;
        // Records are taken to be of one size.
        let share = (end - start) as f64 / end as f64;
        unread.entries += (generation.index.entries_approx() as f64 * share).ceil() as u64;
        if unread.oldest.is_none() {
            let head = generation.log.read(start, HEAD_LEN).ok();
            let version = head.and_then(|head| Lengths::peek_version(&head));
            unread.oldest = version.filter(|version| *version != ERASED);
        }
    }
    unread
}

/// The position behind everything that a generation has.
pub(crate) fn end_of(generation: &Generation) -> TailPosition {
    TailPosition {
        generation: generation.id,
        rewrite: generation.rewrite(),
        offset: generation.committed(),
    }
}

/// The position in this generation that `from` means.
fn position_in(generation: &Generation, from: TailPosition) -> TailPosition {
    let start = TailPosition {
        generation: generation.id,
        rewrite: generation.rewrite(),
        offset: 0,
    };
    if from.generation != start.generation {
        return start;
    }
    if from.rewrite == start.rewrite {
        return from;
    }
    // A node at rest writes its newest generation anew, with the reader at its end: none of that is
    // late.
    if generation.is_passed() {
        return end_of(generation);
    }
    start
}

/// Whether a read of the key would find this record, or fail at an index.
fn may_be_newest(shared: &Shared, generation: &Generation, stored: &Stored) -> bool {
    let key = index_key(stored.space, stored.key());
    match shared.generations.find(&key) {
        Ok(found) => found.is_some_and(|found| {
            found.generation.name() == generation.name() && found.entry.offset == stored.offset
        }),
        // The tier below keeps the higher version.
        Err(_) => true,
    }
}

/// Where the first record behind a damaged one begins: the index knows, as far as it is not damaged
/// itself.
fn record_behind(generation: &Generation, offset: u64, end: u64) -> Result<u64, IndexError> {
    let mut next = end;
    for found in generation.index.entries_from(&index_key(Space(0), b"")) {
        match found {
            Ok((_, IndexEntry { offset: other, .. })) if other > offset => next = next.min(other),
            Ok(_) => {}
            Err(IndexError::Broken(_)) => break,
            Err(passing) => return Err(passing),
        }
    }
    Ok(next)
}
