//! The local index: which copy of a key counts, and where in the bucket it lies.
//!
//! It is derived from the footers in the bucket, and may be thrown away at any time, except for the
//! rows of lost copies ([`lost`]). One writer at a time; readers never wait for it. Each change is
//! one batch: the entries, what is then alive in which segment, and how far the segments of each
//! writer were followed. A segment with very many entries takes several batches, the last of which
//! makes it known; merging is idempotent, so it does not matter where a crash cuts it.
//!
//! An entry that leads to a segment that is unknown or lost leads nowhere: it is not found, yet it
//! still keeps older copies from coming back.

#[cfg(any(test, feature = "test-util", feature = "test-util-s3"))]
mod aged;
pub(crate) mod database;
mod lost;
mod marks;
pub(crate) mod merge;
mod parts;
pub(crate) mod rows;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use parking_lot::{Mutex, RwLock};

#[cfg(any(test, feature = "test-util", feature = "test-util-s3"))]
pub use aged::age_writers;
pub use database::IndexError;
pub(crate) use lost::LostRow;
use lost::{IsVisible, NOWHERE};
pub(crate) use parts::{Arrival, Cursor, Frozen, Merged};

use crate::checkpoint::{IndexEntry, SegmentFacts, SegmentState};
use crate::names::{KeyHash, SegmentName, WriterKey};
use crate::observer::{ColdObserver, CopyRef};
use crate::segment::{FlushMark, FooterEntry, MarkKey};
use crate::spill::source::SpillCursor;
use database::{Batch, Database};
use merge::merge;
use table::{Deltas, Table};

/// Format of the whole index.
const FORMAT: u32 = 6;

/// Entries in a batch.
const BATCH_ENTRIES: usize = 16 << 10;

const KEY_FORMAT: &[u8] = b"format";
const KEY_RESTORING: &[u8] = b"restoring";
const KEY_COMPLETE: &[u8] = b"complete";
const KEY_NEXT: &[u8] = b"next";
const KEY_SPILL: &[u8] = b"spill";
const KEY_MERGED: &[u8] = b"merged";
const PREFIX_FOLLOW: &[u8] = b"follow/";
const PREFIX_FLUSH: &[u8] = b"flush/";

/// The index, open.
pub(crate) struct Index {
    database: Database,
    table: RwLock<Table>,
    marks: RwLock<HashMap<MarkKey, u64>>,
    /// Held by one writer at a time, also while it waits for the disk or for the observer.
    writer: Mutex<()>,
    /// As the last commit left them. Nothing is waited for while this is locked.
    positions: Mutex<Positions>,
}

/// How far this node and the writers that it follows are in the index.
struct Positions {
    cursors: BTreeMap<WriterKey, Cursor>,
    spill: SpillCursor,
    /// Segments and entries merged since the last checkpoint.
    merged: Merged,
    is_complete: bool,
}

impl Index {
    /// Opens the index in `dir`, creating it if there is none.
    ///
    /// # Errors
    /// [`IndexError`].
    pub(crate) fn open(dir: &Path, memtable: u64, cache: u64) -> Result<Self, IndexError> {
        let database = Database::open(dir, memtable, cache)?;
        if database.is_empty()? {
            let mut batch = Batch::default();
            batch.put_meta(KEY_FORMAT, u64::from(FORMAT).to_le_bytes().to_vec());
            database.commit(batch)?;
        }
        let found =
            number(&database, KEY_FORMAT)?.ok_or_else(|| IndexError::unreadable("index format"))?;
        if found != u64::from(FORMAT) {
            return Err(IndexError::Format {
                found: u32::try_from(found).unwrap_or(u32::MAX),
                known: FORMAT,
            });
        }
        if database.meta(KEY_RESTORING)?.is_some() {
            return Err(IndexError::Broken(
                "it was cut off while it was restored".to_owned(),
            ));
        }
        let next = number(&database, KEY_NEXT)?.unwrap_or(0);
        let mut table = Table::with_next(u32::try_from(next).unwrap_or(u32::MAX));
        for (id, row) in database.segments()? {
            table.put(id, rows::decode_facts(&row)?);
        }
        let mut marks = HashMap::new();
        for (key, cutoff) in database.meta_under(PREFIX_FLUSH)? {
            marks.insert(rows::mark(&key)?, rows::number(&cutoff)?);
        }
        let mut cursors = BTreeMap::new();
        for (key, cursor) in database.meta_under(PREFIX_FOLLOW)? {
            cursors.insert(rows::writer_key(&key)?, rows::decode_cursor(&cursor)?);
        }
        let spill = database.meta(KEY_SPILL)?.unwrap_or_default();
        let merged = match database.meta(KEY_MERGED)? {
            Some(bytes) => rows::decode_merged(&bytes)?,
            None => Merged::default(),
        };
        let is_complete = database.meta(KEY_COMPLETE)?.is_some();
        Ok(Self {
            database,
            table: RwLock::new(table),
            marks: RwLock::new(marks),
            writer: Mutex::new(()),
            positions: Mutex::new(Positions {
                cursors,
                spill: SpillCursor::new(spill),
                merged,
                is_complete,
            }),
        })
    }

    /// The copy of a key that counts.
    pub(crate) fn entry(&self, hash: KeyHash) -> Result<Option<IndexEntry>, IndexError> {
        self.database.entry(hash)
    }

    /// The segment of an entry, if it may be read.
    pub(crate) fn readable_segment(&self, id: u32) -> Option<SegmentName> {
        let table = self.table.read();
        match table.state(id)? {
            SegmentState::Live | SegmentState::Doomed { .. } => table.name(id).cloned(),
            SegmentState::Lost { .. } => None,
        }
    }

    /// Whether the index was complete at some time: what it does not find now was not in the
    /// bucket, as far as the bucket was followed.
    pub(crate) fn is_complete(&self) -> bool {
        self.positions.lock().is_complete
    }

    /// Notes that it is complete.
    pub(crate) fn set_complete(&self) -> Result<(), IndexError> {
        let _writer = self.writer.lock();
        let mut batch = Batch::default();
        batch.put_meta(KEY_COMPLETE, vec![1]);
        self.database.commit(batch)?;
        self.positions.lock().is_complete = true;
        Ok(())
    }

    /// Whether nothing was ever put into it.
    pub(crate) fn is_blank(&self) -> bool {
        let table = self.table.read();
        table.len() == 0 && table.next() == 0 && !self.is_complete()
    }

    /// Whether it has an entry. A blank one has those of lost copies.
    pub(crate) fn has_entries(&self) -> Result<bool, IndexError> {
        self.database.has_entries()
    }

    /// Merges a segment. One that is known already is merged again, to no effect but repair. Copies
    /// that it makes out of date are told to `observer`, and flushes that it does not believe are
    /// left out; none is needed for segments of this process.
    ///
    /// # Errors
    /// [`IndexError`]; what of it is visible then is harmless, and merging may be repeated.
    pub(crate) fn merge(
        &self,
        arrival: &Arrival<'_>,
        observer: Option<&dyn ColdObserver>,
    ) -> Result<(), IndexError> {
        let _writer = self.writer.lock();
        let name = arrival.footer.header.name();
        let known = self.table.read().number(&name);
        let id = match known {
            Some(id) => id,
            None => self.admit(arrival)?,
        };
        let marks = arrival.footer.flush_marks.iter().copied();
        let raised: Vec<FlushMark> = marks
            .filter(|mark| {
                self.cutoff(mark.key()) < mark.cutoff
                    && observer.is_none_or(|observer| observer.flushed(mark))
            })
            .collect();
        let mut batch = Batch::default();
        for chunk in arrival.footer.entries.chunks(BATCH_ENTRIES) {
            if !batch.is_empty() {
                self.database.commit(std::mem::take(&mut batch))?;
            }
            let deltas = self.merge_chunk(id, chunk, observer, &mut batch)?;
            let changed = deltas.apply(&mut self.table.write()).into_iter();
            // The segment itself becomes known with the last batch.
            self.put_rows(
                changed.filter(|&row| row != id || known.is_some()),
                &mut batch,
            );
        }
        self.finish(id, arrival, known.is_none(), &raised, batch)
    }

    /// Makes a row for a new segment, in RAM, and its number used up, on disk.
    fn admit(&self, arrival: &Arrival<'_>) -> Result<u32, IndexError> {
        let id = self.table.read().next();
        if id == u32::MAX {
            return Err(IndexError::Broken("segment numbers are used up".to_owned()));
        }
        if arrival.footer.entries.len() > BATCH_ENTRIES {
            let mut batch = Batch::default();
            batch.put_meta(KEY_NEXT, u64::from(id + 1).to_le_bytes().to_vec());
            self.database.commit(batch)?;
        }
        let facts = SegmentFacts {
            live_bytes: 0,
            live_entries: 0,
            ..arrival.footer.facts(arrival.size)
        };
        self.table.write().put(id, facts);
        Ok(id)
    }

    fn merge_chunk(
        &self,
        id: u32,
        chunk: &[FooterEntry],
        observer: Option<&dyn ColdObserver>,
        batch: &mut Batch,
    ) -> Result<Deltas, IndexError> {
        let mut deltas = Deltas::default();
        // Entries of this very batch: a segment may hold a key more than once.
        let mut fresh: HashMap<KeyHash, IndexEntry> = HashMap::new();
        let mut newer = Vec::new();
        for footer_entry in chunk {
            let arriving = IndexEntry::of(id, footer_entry);
            let present = match fresh.get(&arriving.hash) {
                Some(entry) => Some(*entry),
                None => self.database.entry(arriving.hash)?,
            };
            let merged = {
                let table = self.table.read();
                let created_ms = table.created_ms(id).unwrap_or(0);
                let present = present.as_ref();
                let placed = present.map(|present| (present, table.created_ms(present.segment)));
                merge(placed, (&arriving, created_ms))
            };
            let Some(entry) = merged else {
                continue;
            };
            if present.is_none_or(|present| present.at < entry.at) && observer.is_some() {
                newer.push(CopyRef {
                    space: footer_entry.space,
                    key: &footer_entry.key,
                    at: entry.at,
                });
            }
            if let Some(present) = &present {
                deltas.lost(present);
            }
            deltas.gained(&entry);
            fresh.insert(entry.hash, entry);
            batch.put_entry(entry);
        }
        // All at once: the observer waits for its disk.
        if let Some(observer) = observer.filter(|_| !newer.is_empty()) {
            observer.superseded(&newer);
        }
        Ok(deltas)
    }

    /// The last batch of a merge.
    fn finish(
        &self,
        id: u32,
        arrival: &Arrival<'_>,
        is_new: bool,
        raised: &[FlushMark],
        mut batch: Batch,
    ) -> Result<(), IndexError> {
        self.put_rows([id], &mut batch);
        let next = self.table.read().next();
        batch.put_meta(KEY_NEXT, u64::from(next).to_le_bytes().to_vec());
        for mark in raised {
            batch.put_meta(mark_key(mark.key()), mark.cutoff.to_le_bytes().to_vec());
        }
        let key = arrival.footer.header.name().writer_key();
        let present = self.positions.lock().cursors.get(&key).copied();
        // A repetition must not move it back.
        let cursor = arrival.cursor.map(|cursor| match present {
            Some(present) if present.next_seq > cursor.next_seq => present,
            _ => cursor,
        });
        if let Some(cursor) = &cursor {
            batch.put_meta(follow_key(&key), rows::encode_cursor(cursor));
        }
        if let Some(spilled) = arrival.spilled {
            batch.put_meta(KEY_SPILL, spilled.as_bytes().to_vec());
        }
        let mut merged = self.merged();
        if is_new {
            merged.segments += 1;
            merged.entries += arrival.footer.entries.len() as u64;
            batch.put_meta(KEY_MERGED, rows::encode_merged(&merged));
        }
        self.database.commit(batch)?;
        let raised = raised.iter().map(|mark| (mark.key(), mark.cutoff));
        self.marks.write().extend(raised);
        let mut positions = self.positions.lock();
        positions.merged = merged;
        if let Some(cursor) = cursor {
            positions.cursors.insert(key, cursor);
        }
        if let Some(spilled) = arrival.spilled {
            positions.spill = spilled.clone();
        }
        Ok(())
    }

    /// Adds the present rows of these segments to a batch.
    fn put_rows(&self, ids: impl IntoIterator<Item = u32>, batch: &mut Batch) {
        let table = self.table.read();
        for id in ids {
            if let Some(facts) = table.facts(id) {
                batch.put_segment(id, rows::encode_facts(&facts));
            }
        }
    }

    /// Removes entries that still lead to `segment`; their copies may vanish without a trace.
    pub(crate) fn forget(
        &self,
        segment: u32,
        hashes: impl IntoIterator<Item = KeyHash>,
    ) -> Result<(), IndexError> {
        let _writer = self.writer.lock();
        let mut hashes = hashes.into_iter().peekable();
        while hashes.peek().is_some() {
            let mut batch = Batch::default();
            let mut deltas = Deltas::default();
            for hash in hashes.by_ref().take(BATCH_ENTRIES) {
                let Some(entry) = self.database.entry(hash)? else {
                    continue;
                };
                if entry.segment == segment {
                    deltas.lost(&entry);
                    batch.remove_entry(hash);
                }
            }
            let changed = deltas.apply(&mut self.table.write());
            self.put_rows(changed, &mut batch);
            if !batch.is_empty() {
                self.database.commit(batch)?;
            }
        }
        Ok(())
    }

    /// Makes an entry whose bytes turned out to be damaged unreadable, yet keeps its place in the
    /// order of copies.
    pub(crate) fn make_hole(&self, damaged: &IndexEntry) -> Result<(), IndexError> {
        let _writer = self.writer.lock();
        let Some(entry) = self.database.entry(damaged.hash)? else {
            return Ok(());
        };
        if (entry.segment, entry.offset) != (damaged.segment, damaged.offset) || entry.tombstone {
            return Ok(());
        }
        let mut batch = Batch::default();
        batch.put_entry(IndexEntry {
            tombstone: true,
            ..entry
        });
        self.database.commit(batch)
    }

    /// Changes what is known of a segment.
    pub(crate) fn set_state(&self, id: u32, state: SegmentState) -> Result<(), IndexError> {
        let _writer = self.writer.lock();
        let Some(mut facts) = self.table.read().facts(id) else {
            return Ok(());
        };
        if facts.state == state {
            return Ok(());
        }
        facts.state = state;
        let mut batch = Batch::default();
        batch.put_segment(id, rows::encode_facts(&facts));
        self.database.commit(batch)?;
        self.table.write().put(id, facts);
        Ok(())
    }

    /// Forgets a segment that is no longer in the bucket. Entries that lead to it lead nowhere.
    pub(crate) fn remove_segment(&self, id: u32) -> Result<(), IndexError> {
        let _writer = self.writer.lock();
        let mut batch = Batch::default();
        batch.remove_segment(id);
        self.database.commit(batch)?;
        self.table.write().remove(id);
        Ok(())
    }

    /// Moves on in the queue of this node without a segment: there was nothing to write.
    pub(crate) fn set_spilled(&self, cursor: &SpillCursor) -> Result<(), IndexError> {
        let _writer = self.writer.lock();
        if self.spilled() == *cursor {
            return Ok(());
        }
        let mut batch = Batch::default();
        batch.put_meta(KEY_SPILL, cursor.as_bytes().to_vec());
        self.database.commit(batch)?;
        self.positions.lock().spill = cursor.clone();
        Ok(())
    }

    /// How far the queue of this node is in the bucket.
    pub(crate) fn spilled(&self) -> SpillCursor {
        self.positions.lock().spill.clone()
    }

    /// Follows a writer from there on, or from further on if that is known.
    pub(crate) fn set_cursor(&self, key: &WriterKey, cursor: Cursor) -> Result<(), IndexError> {
        let _writer = self.writer.lock();
        let present = self.positions.lock().cursors.get(key).copied();
        if present.is_some_and(|present| present.next_seq >= cursor.next_seq) {
            return Ok(());
        }
        let mut batch = Batch::default();
        batch.put_meta(follow_key(key), rows::encode_cursor(&cursor));
        self.database.commit(batch)?;
        self.positions.lock().cursors.insert(key.clone(), cursor);
        Ok(())
    }

    /// Follows a writer no more.
    pub(crate) fn remove_cursor(&self, key: &WriterKey) -> Result<(), IndexError> {
        let _writer = self.writer.lock();
        let mut batch = Batch::default();
        batch.remove_meta(follow_key(key));
        self.database.commit(batch)?;
        self.positions.lock().cursors.remove(key);
        Ok(())
    }

    /// The writers that the index follows, and how far.
    pub(crate) fn cursors(&self) -> BTreeMap<WriterKey, Cursor> {
        self.positions.lock().cursors.clone()
    }

    /// Segments, readable or not.
    pub(crate) fn table(&self) -> parking_lot::RwLockReadGuard<'_, Table> {
        self.table.read()
    }

    /// What was merged since the last checkpoint.
    pub(crate) fn merged(&self) -> Merged {
        self.positions.lock().merged
    }

    /// A checkpoint holds everything up to `at`.
    pub(crate) fn checkpointed(&self, at: Merged) -> Result<(), IndexError> {
        let _writer = self.writer.lock();
        let merged = self.merged();
        let left = Merged {
            segments: merged.segments.saturating_sub(at.segments),
            entries: merged.entries.saturating_sub(at.entries),
        };
        let mut batch = Batch::default();
        batch.put_meta(KEY_MERGED, rows::encode_merged(&left));
        self.database.commit(batch)?;
        self.positions.lock().merged = left;
        Ok(())
    }

    /// The index as it is now. Writers wait only for the moment. None as long as a tombstone of a
    /// lost copy is in no segment: an index without it would not know that the key has older
    /// values in the bucket.
    pub(crate) fn freeze(&self, is_visible: IsVisible<'_>) -> Result<Option<Frozen>, IndexError> {
        let _writer = self.writer.lock();
        if self.has_open_row(is_visible)? {
            return Ok(None);
        }
        Ok(Some(Frozen {
            scan: self.database.scan(),
            segments: self.table.read().all(),
            cursors: self.cursors().into_iter().collect(),
            marks: self.marks(),
            merged: self.merged(),
        }))
    }

    /// Fills a blank index from a checkpoint. `entries` come in the order of their hashes. Returns
    /// how many there were.
    ///
    /// None, and no change, if there are tombstones of lost copies already: what is ingested would
    /// hide them. The footers of all segments are merged with them instead.
    ///
    /// # Errors
    /// [`IndexError`]; the index is then to be thrown away.
    pub(crate) fn restore(
        &self,
        segments: &[(u32, SegmentFacts)],
        cursors: &[(WriterKey, Cursor)],
        marks: &[FlushMark],
        entries: impl Iterator<Item = Result<IndexEntry, IndexError>>,
    ) -> Result<Option<u64>, IndexError> {
        let _writer = self.writer.lock();
        if self.database.has_entries()? {
            return Ok(None);
        }
        let next = segments.iter().map(|&(id, _)| id.saturating_add(1)).max();
        let next = next.unwrap_or(0);
        let mut batch = Batch::default();
        batch.put_meta(KEY_RESTORING, vec![1]);
        self.database.commit(batch)?;
        // What is ingested is on disk at once, and must not be found without the journal's
        // beginning.
        self.database.sync()?;
        let count = self.database.ingest(entries)?;
        let mut batch = Batch::default();
        batch.remove_meta(KEY_RESTORING);
        batch.put_meta(KEY_NEXT, u64::from(next).to_le_bytes().to_vec());
        for (id, facts) in segments {
            batch.put_segment(*id, rows::encode_facts(facts));
        }
        for (key, cursor) in cursors {
            batch.put_meta(follow_key(key), rows::encode_cursor(cursor));
        }
        for mark in marks {
            batch.put_meta(mark_key(mark.key()), mark.cutoff.to_le_bytes().to_vec());
        }
        self.database.commit(batch)?;
        let mut table = Table::with_next(next);
        for (id, facts) in segments {
            table.put(*id, facts.clone());
        }
        *self.table.write() = table;
        let followed = cursors.iter().cloned();
        self.positions.lock().cursors.extend(followed);
        let mut present = self.marks.write();
        for mark in marks {
            let cutoff = present.entry(mark.key()).or_default();
            *cutoff = mark.cutoff.max(*cutoff);
        }
        Ok(Some(count))
    }

    /// Removes entries that lead nowhere, or to a lost segment out of `missing`, and that `may_go`;
    /// looks at all, in pages. Returns how many.
    pub(crate) fn sweep(
        &self,
        missing: &BTreeSet<u32>,
        may_go: impl Fn(&IndexEntry) -> bool,
    ) -> Result<u64, IndexError> {
        let scan = self.database.scan();
        let mut after = None;
        let mut removed = 0;
        loop {
            let page = scan.page(after, BATCH_ENTRIES)?;
            let Some(last) = page.last() else {
                return Ok(removed);
            };
            after = Some(last.hash);
            let dangling: Vec<IndexEntry> = {
                let table = self.table.read();
                let leads_nowhere = |entry: &&IndexEntry| match table.state(entry.segment) {
                    // The tombstone of a lost copy is still to be put somewhere.
                    None => entry.segment != NOWHERE,
                    Some(SegmentState::Lost { .. }) => missing.contains(&entry.segment),
                    Some(SegmentState::Live | SegmentState::Doomed { .. }) => false,
                };
                page.iter().filter(leads_nowhere).copied().collect()
            };
            let _writer = self.writer.lock();
            let mut batch = Batch::default();
            let mut deltas = Deltas::default();
            for entry in dangling.iter().filter(|entry| may_go(entry)) {
                // It may have found a better place since.
                if self.database.entry(entry.hash)? == Some(*entry) {
                    deltas.lost(entry);
                    batch.remove_entry(entry.hash);
                    removed += 1;
                }
            }
            let changed = deltas.apply(&mut self.table.write());
            self.put_rows(changed, &mut batch);
            if !batch.is_empty() {
                self.database.commit(batch)?;
            }
        }
    }

    /// Bytes of the entries that are picked, for each segment; looks at all entries.
    pub(crate) fn bytes_of(
        &self,
        is_picked: impl Fn(&IndexEntry) -> bool,
    ) -> Result<HashMap<u32, u64>, IndexError> {
        let scan = self.database.scan();
        let mut picked = HashMap::new();
        let mut after = None;
        loop {
            let page = scan.page(after, BATCH_ENTRIES)?;
            let Some(last) = page.last() else {
                return Ok(picked);
            };
            after = Some(last.hash);
            for entry in page.iter().filter(|entry| is_picked(entry)) {
                *picked.entry(entry.segment).or_default() += u64::from(entry.len);
            }
        }
    }

    /// Puts what was committed on the disk.
    pub(crate) fn sync(&self) -> Result<(), IndexError> {
        self.database.sync()
    }

    /// About how many entries there are.
    pub(crate) fn entries_approx(&self) -> u64 {
        self.database.entries_approx()
    }
}

fn number(database: &Database, key: &[u8]) -> Result<Option<u64>, IndexError> {
    let bytes = database.meta(key)?;
    bytes.map(|bytes| rows::number(&bytes)).transpose()
}

fn mark_key((space, writer, since): MarkKey) -> Vec<u8> {
    [
        PREFIX_FLUSH,
        &space.to_be_bytes(),
        &writer.to_be_bytes(),
        &since.to_be_bytes(),
    ]
    .concat()
}

fn follow_key(key: &WriterKey) -> Vec<u8> {
    [
        PREFIX_FOLLOW,
        key.region.as_str().as_bytes(),
        b"/",
        key.writer.as_bytes(),
    ]
    .concat()
}
