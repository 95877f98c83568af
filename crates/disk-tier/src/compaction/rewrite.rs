//! Writes what is of use in a generation into its next incarnation, in the same order.

use std::io::IoSlice;
use std::sync::Arc;

use fonn_base::clock::Clock;
use fonn_base::entry::Space;

use super::recode::Workspace;
use super::{Pace, Stopped, discard};
use crate::Shared;
use crate::error::DiskError;
use crate::generation::Generation;
use crate::index::Checkpoint;
use crate::log::{DirectWriter, Stored};
use crate::record::{BOUND_FRAME_LEN, ERASED, Fact, IndexEntry, IndexKey, index_key, write_head};
use crate::stats::add;
use crate::tail::end_of;
use crate::writer::INDEX_ENTRY_COST;

/// Bytes of records that are written in one call, and after which it rests.
const PIECE_LEN: usize = 256 << 10;

/// Bytes after which the new log is synced: one sync of a whole generation at the end would hold up
/// all others.
const SYNC_LEN: u64 = 8 << 20;

/// What a record is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Reads return it, or it is a tombstone that hides something.
    Whole,
    /// Its value is of no use, but it hides something older.
    Tombstone,
    /// None: a newer record of its key exists, or there is nothing that it would hide.
    None,
}

/// What the record that an index entry of `source` leads to is good for.
pub(super) fn usefulness(
    shared: &Shared,
    source: &Generation,
    (space, key): (Space, &[u8]),
    entry: &IndexEntry,
    now_ms: u64,
) -> Result<Use, Stopped> {
    // Not kept for longer than one key: a snapshot holds generations that are to be removed.
    let generations = shared.generations.snapshot();
    let mut all = generations.iter();
    for newer in all.by_ref().take_while(|it| it.id != source.id) {
        if has_record(newer, key)? {
            return Ok(Use::None);
        }
    }
    if let Fact::Put(meta) = entry.fact
        && !meta.is_expired(now_ms)
        && !shared.is_hidden(space, &meta, now_ms)
    {
        return Ok(Use::Whole);
    }
    for older in all {
        // A failed one may have records that its index does not know and a restart would find.
        if older.has_failed() || has_record(older, key)? {
            return Ok(match entry.fact {
                Fact::Put(_) => Use::Tombstone,
                Fact::Tombstone(_) => Use::Whole,
            });
        }
    }
    if entry.fact.version() == ERASED {
        return Ok(Use::None);
    }
    // The tier below may have something older, until it was told.
    let hides_below = shared
        .below
        .as_ref()
        .is_some_and(|below| !below.has_passed(end_of(source)));
    // So may another member, which may send it, or have the slot some day. Of what was flushed all
    // of them know.
    let hides_elsewhere =
        shared.keeps_tombstones() && !shared.is_flushed(space, entry.fact.version(), now_ms);
    Ok(match (hides_below || hides_elsewhere, entry.fact) {
        (false, _) => Use::None,
        (true, Fact::Put(_)) => Use::Tombstone,
        (true, Fact::Tombstone(_)) => Use::Whole,
    })
}

fn has_record(generation: &Generation, key: &[u8]) -> Result<bool, DiskError> {
    let entry = generation.index.get(key);
    entry.map_or_else(
        |error| Err(generation.unreadable(error)),
        |it| Ok(it.is_some()),
    )
}

/// Makes the next incarnation of a generation, complete and not yet published. `planned` is what it
/// is going to take in bytes, if room for that is to be kept from the beginning.
///
/// If a part of its index is damaged, all of its records are copied. The index could not tell which
/// record of a key is the newest, and a record that is left out must not show what it replaced.
///
/// # Errors
/// [`Stopped`]; nothing is left of it then.
pub(crate) fn rewrite(
    shared: &Shared,
    source: &Arc<Generation>,
    planned: u64,
) -> Result<Generation, Stopped> {
    if source.is_cut() {
        // What is lost of it hides older records, and is known to its index alone.
        return Err(Stopped::Failed("its value log lost its end".to_owned()));
    }
    let copies_all = source.has_broken_index();
    if copies_all && source.has_failed() {
        let reason = "its index is damaged, and its value log may have records of failed writes";
        return Err(Stopped::Failed(reason.to_owned()));
    }
    let Some(room) = shared.reserve(planned, shared.limits().total_max) else {
        return Err(Stopped::NoSpace);
    };
    shared.set_compaction_bytes(planned);
    drop(room);
    let target = shared.create_generation(source.name().next())?;
    shared.set_compaction_bytes(planned.max(target.disk_bytes()));
    let mut rewrite = Rewrite {
        shared,
        source,
        target,
        copies_all,
        pace: Pace::new(shared, source),
        now_ms: Clock::system().wall_ms(),
        workspace: Workspace::default(),
        piece: Vec::new(),
        direct: DirectWriter::default(),
        entries: Vec::new(),
        read_since_rest: 0,
        synced_at: 0,
        planned,
    };
    match rewrite.run() {
        Ok(()) => Ok(rewrite.target),
        Err(stopped) => {
            discard(rewrite.target);
            Err(stopped)
        }
    }
}

struct Rewrite<'a> {
    shared: &'a Shared,
    source: &'a Arc<Generation>,
    target: Generation,
    /// The index of the source is not asked.
    copies_all: bool,
    pace: Pace<'a>,
    now_ms: u64,
    workspace: Workspace,
    /// Records that are not written yet.
    piece: Vec<u8>,
    direct: DirectWriter,
    /// The entries of these.
    entries: Vec<(IndexKey, IndexEntry)>,
    read_since_rest: usize,
    synced_at: u64,
    /// Bytes that are counted for it from the beginning.
    planned: u64,
}

impl Rewrite<'_> {
    fn run(&mut self) -> Result<(), Stopped> {
        let source = self.source;
        let mut records = source.log.records(0);
        while let Some(record) = records.next()? {
            self.take(&record)?;
            self.read_since_rest += record.bytes.len();
            if self.read_since_rest >= PIECE_LEN {
                self.write()?;
                self.pace.rest()?;
                self.read_since_rest = 0;
            }
        }
        if records.position() < records.end() {
            // What follows can still be read where it is.
            let position = records.position();
            return Err(Stopped::Failed(format!("damaged record at {position}")));
        }
        self.write()?;
        self.target.log.sync()?;
        self.target.set_committed(self.target.log.end());
        self.target.measure();
        self.shared.set_compaction_bytes(self.target.disk_bytes());
        add(&self.shared.stats.compaction_read_bytes, records.end());
        add(
            &self.shared.stats.compaction_written_bytes,
            self.target.log.end(),
        );
        Ok(())
    }

    fn take(&mut self, record: &Stored) -> Result<(), Stopped> {
        let key = index_key(record.space, record.key());
        if self.copies_all {
            // The last record of a key counts. One batch of the index takes a key once.
            if self.entries.iter().any(|(known, _)| *known == key) {
                self.write()?;
            }
            return self.keep(key, record);
        }
        let entry = self.source.index.get(&key);
        let Some(entry) = entry.map_err(|error| self.source.unreadable(error))? else {
            // Of a write that failed.
            return Ok(());
        };
        if entry.offset != record.offset {
            return Ok(());
        }
        let place = (record.space, &*key);
        match usefulness(self.shared, self.source, place, &entry, self.now_ms)? {
            Use::None => Ok(()),
            Use::Tombstone => {
                let fact = Fact::Tombstone(record.fact.version());
                let start = self.piece.len();
                write_head(&mut self.piece, (record.space, record.key()), &fact, &[], 0);
                self.push(key, fact, start);
                Ok(())
            }
            Use::Whole => self.keep(key, record),
        }
    }

    fn keep(&mut self, key: IndexKey, record: &Stored) -> Result<(), Stopped> {
        let options = &self.shared.options;
        let last = &self.shared.compacted;
        // Recoding needs the value and both of its frames in memory.
        let len_max = options.value_len_max.min(options.memory_bytes);
        // A compacted value was tried, and is as short as it got: it is written anew for room only.
        let is_recoded = !self.source.has_been_compacted()
            && !record.frame().is_empty()
            && self.workspace.recode(record.frame(), last, len_max);
        let start = self.piece.len();
        if is_recoded {
            let frame = &self.workspace.frame;
            let bound = frame.get(..BOUND_FRAME_LEN).unwrap_or(frame);
            let Ok(frame_len) = u32::try_from(frame.len()) else {
                return Err(Stopped::Failed("frame of more than 4 GiB".to_owned()));
            };
            let place = (record.space, record.key());
            write_head(&mut self.piece, place, &record.fact, bound, frame_len);
            self.piece.extend_from_slice(frame);
            add(&self.shared.stats.compaction_recoded, 1);
        } else if record.bytes.len() >= PIECE_LEN {
            // Not copied once more.
            self.write()?;
            return self.append(key, record);
        } else {
            self.piece.extend_from_slice(&record.bytes);
        }
        self.push(key, record.fact, start);
        self.workspace.shrink();
        Ok(())
    }

    /// Notes that a record was put into the piece, from `start` on.
    fn push(&mut self, key: IndexKey, fact: Fact, start: usize) {
        let entry = IndexEntry {
            fact,
            offset: self.target.log.end() + start as u64,
            record_len: u32::try_from(self.piece.len() - start).unwrap_or(u32::MAX),
        };
        self.entries.push((key, entry));
    }

    /// Writes a record from where it is.
    fn append(&mut self, key: IndexKey, record: &Stored) -> Result<(), Stopped> {
        let entry = IndexEntry {
            fact: record.fact,
            offset: self.target.log.end(),
            record_len: record.len(),
        };
        self.entries.push((key, entry));
        self.write_slice(&record.bytes)
    }

    fn write(&mut self) -> Result<(), Stopped> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let mut piece = std::mem::take(&mut self.piece);
        self.write_slice(&piece)?;
        piece.clear();
        piece.shrink_to(4 * PIECE_LEN);
        self.piece = piece;
        Ok(())
    }

    fn write_slice(&mut self, bytes: &[u8]) -> Result<(), Stopped> {
        let versions = self.entries.iter().map(|(_, entry)| entry.fact.version());
        self.target.note_newest(versions.max().unwrap_or(0));
        let keys: u64 = self.entries.iter().map(|(key, _)| key.len() as u64).sum();
        let side = 2 * keys + INDEX_ENTRY_COST * self.entries.len() as u64;
        let after = self.target.disk_bytes() + bytes.len() as u64 + side;
        let room = match after > self.planned {
            true => Some(self.pace.room(bytes.len() as u64 + side)?),
            false => None,
        };
        self.shared.throttle.take(bytes.len() as u64);
        let log = &self.target.log;
        log.append(&mut self.direct, &mut [IoSlice::new(bytes)])
            .map_err(|error| error.source)?;
        add(
            &self.shared.stats.direct_bytes,
            self.direct.take_written_bytes(),
        );
        let checkpoint = Checkpoint::Written(log.end());
        self.target
            .index
            .commit(self.entries.drain(..), Some(checkpoint))?;
        self.target.add_side_bytes(side);
        let compacting = self.planned.max(self.target.disk_bytes());
        self.shared.set_compaction_bytes(compacting);
        drop(room);
        self.shared.take_free(bytes.len() as u64);
        if log.end() - self.synced_at >= SYNC_LEN {
            log.sync()?;
            self.synced_at = log.end();
        }
        Ok(())
    }
}
