//! Bringing an index up to date from its log, at opening.
//!
//! What the index does not know is read from its checkpoint on. A damaged record costs itself: it becomes an
//! entry that leads to a miss, so that what it replaced or deleted stays hidden. Of whom it was tells
//! the index, if that knows records behind it (its batches are kept in the order of the log, so it knows all
//! before them too), or the record itself (see [`Damage`]). If neither can, everything older is suspect, in
//! this generation and in those before it, and goes.

use std::collections::HashMap;

use fonn_proto::Version;
use tracing::warn;

use super::Generation;
use crate::entry::Space;
use crate::lsm::index::IndexError;
use crate::lsm::log::{Damage, Stored};
use crate::lsm::reader::{Looked, look};
use crate::lsm::record::{IndexEntry, IndexKey, index_key, split_index_key};

/// Records that are put into an index in one batch.
const REPLAY_BATCH: usize = 1024;

/// What was read from a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Replayed {
    /// Records that were put into the index.
    pub(super) records: u64,
    /// Records, or stretches of records that the index knew, that are damaged.
    pub(super) damaged: u64,
    /// Bytes that were cut off the end.
    pub(super) cut_bytes: u64,
}

impl Generation {
    /// Puts every record from `offset` on into the index, and cuts off what was not written whole.
    ///
    /// # Errors
    /// [`IndexError::Broken`] also if records are lost of which nobody knows whose they were.
    pub(super) fn replay(&self, offset: u64) -> Result<Replayed, IndexError> {
        let mut replayed = Replayed::default();
        let mut batch: Vec<(IndexKey, IndexEntry)> = Vec::new();
        let mut newest = Version::default();
        let mut records = self.log.records(offset);
        loop {
            if let Some(record) = records.next()? {
                replayed.records += 1;
                newest = newest.max(record.fact.version());
                batch.push(entry_of(&record));
            } else if records.position() == records.end() {
                break;
            } else {
                let at = records.position();
                let Some(next) = self.pass(at, newest, &mut batch)? else {
                    replayed.cut_bytes = records.end() - at;
                    warn!(
                        generation = self.id,
                        position = at,
                        bytes = replayed.cut_bytes,
                        "cut an unfinished end off a value log"
                    );
                    self.log.cut(at)?;
                    break;
                };
                replayed.damaged += 1;
                warn!(
                    generation = self.id,
                    position = at,
                    next,
                    "damaged record in a value log"
                );
                records = self.log.records(next);
            }
            if batch.len() >= REPLAY_BATCH {
                self.replay_batch(&mut batch, None)?;
            }
        }
        if replayed.records + replayed.damaged > 0 {
            self.replay_batch(&mut batch, Some(self.log.end()))?;
            self.index.persist()?;
        }
        Ok(replayed)
    }

    /// Where to go on behind the damage at `at`; what is known of it goes into `batch`. None if nothing was
    /// ever written there whole. `newest` is the highest version before it.
    fn pass(
        &self,
        at: u64,
        newest: Version,
        batch: &mut Vec<(IndexKey, IndexEntry)>,
    ) -> Result<Option<u64>, IndexError> {
        if let Some(known) = self.known_behind(at, newest)? {
            return Ok(Some(known));
        }
        match self.log.damage(at)? {
            Damage::Named(record) => {
                batch.push(entry_of(&record));
                Ok(Some(at + u64::from(record.len())))
            }
            Damage::Torn => Ok(None),
            Damage::Unknown => Err(IndexError::Broken(format!(
                "value log is damaged at {at}, and nobody knows which keys that concerns"
            ))),
        }
    }

    /// Up to where the index knows every record, if that is behind `at`.
    ///
    /// After a loss of power it may have entries of records that the log never got, and others may lie in their
    /// place. So an entry counts only if its record is there; or, for the damaged one itself, if it is newer than
    /// all before it.
    fn known_behind(&self, at: u64, newest: Version) -> Result<Option<u64>, IndexError> {
        let mut behind = Vec::new();
        for found in self.index.entries_from(&index_key(Space(0), b"")) {
            let (key, entry) = found?;
            if entry.offset >= at {
                behind.push((key, entry));
            }
        }
        behind.sort_unstable_by_key(|(_, entry)| std::cmp::Reverse(entry.offset));
        let is_there = |(key, entry): &(Vec<u8>, IndexEntry)| {
            if entry.offset == at {
                return entry.fact.version() > newest;
            }
            split_index_key(key)
                .is_some_and(|place| matches!(look(&self.log, entry, place), Looked::Whole { .. }))
        };
        let end = self.log.end();
        let last = behind.iter().find(|found| is_there(found));
        Ok(last
            .map(|(_, entry)| entry.offset + u64::from(entry.record_len))
            .filter(|known| (at + 1..=end).contains(known)))
    }

    /// The newest record of a key counts, as when they were written.
    fn replay_batch(
        &self,
        batch: &mut Vec<(IndexKey, IndexEntry)>,
        checkpoint: Option<u64>,
    ) -> Result<(), IndexError> {
        let mut newest = HashMap::<IndexKey, IndexEntry>::new();
        for (key, entry) in batch.drain(..) {
            let known = match newest.get(&key) {
                Some(known) => Some(*known),
                None => self.index.get(&key)?,
            };
            if known.is_none_or(|known| known.fact.version() <= entry.fact.version()) {
                newest.insert(key, entry);
            }
        }
        self.index.commit(newest.into_iter(), checkpoint)
    }
}

fn entry_of(record: &Stored) -> (IndexKey, IndexEntry) {
    let entry = IndexEntry {
        fact: record.fact,
        offset: record.offset,
        record_len: record.len(),
    };
    (index_key(record.space, record.key()), entry)
}
