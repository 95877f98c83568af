//! Bringing an index up to date from its log, at opening.
//!
//! Opening reads the log from the index's checkpoint on. After a kill that is the end of one batch,
//! after a loss of power perhaps much, and all of it if the index is new. A damaged record costs
//! itself: it becomes an entry that leads to a miss, so that what it replaced or deleted stays
//! hidden. The record itself tells its key (see [`Damage`]). If it cannot, and may have been
//! acknowledged, every older record is suspect. Opening drops these, in this generation and in
//! those before it.

use std::collections::HashMap;

use tracing::warn;

use super::Generation;
use crate::index::{Checkpoint, IndexError, Known};
use crate::log::{Damage, Stored};
use crate::record::{ERASED, IndexEntry, IndexKey, index_key};

/// Records that are put into an index in one batch.
const REPLAY_BATCH: usize = 1024;

/// What was read from a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Replayed {
    /// Records that were put into the index.
    pub(super) records: u64,
    /// Records that are damaged.
    pub(super) damaged: u64,
    /// Bytes that were cut off the end.
    pub(super) cut_bytes: u64,
}

impl Generation {
    /// Puts every record that the index does not know into it, and cuts off what was not written
    /// whole.
    ///
    /// # Errors
    /// [`IndexError::Broken`] also if records are lost with unknown keys.
    pub(super) fn replay(&self, known: Known) -> Result<Replayed, IndexError> {
        let mut replayed = Replayed::default();
        let mut batch: Vec<(IndexKey, IndexEntry)> = Vec::new();
        let mut records = self.log.records(known.end);
        loop {
            if let Some(record) = records.next()? {
                replayed.records += 1;
                batch.push(entry_of(&record));
            } else if records.position() == records.end() {
                break;
            } else {
                let at = records.position();
                let Some(record) = self.damaged(at, known)? else {
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
                let next = at + u64::from(record.len());
                replayed.damaged += 1;
                warn!(
                    generation = self.id,
                    position = at,
                    next,
                    "damaged record in a value log"
                );
                batch.push(entry_of(&record));
                records = self.log.records(next);
            }
            if batch.len() >= REPLAY_BATCH {
                self.replay_batch(&mut batch, None)?;
            }
        }
        if replayed.records + replayed.damaged > 0 {
            let checkpoint = Checkpoint::Written(self.log.end());
            self.replay_batch(&mut batch, Some(checkpoint))?;
        }
        Ok(replayed)
    }

    /// The damaged record at `at`; None if nothing there, or behind it, was ever acknowledged.
    fn damaged(&self, at: u64, known: Known) -> Result<Option<Stored>, IndexError> {
        match self.log.damage(at)? {
            Damage::Named(record) => Ok(Some(record)),
            Damage::Torn => Ok(None),
            Damage::Unknown if known.is_all => Ok(None),
            Damage::Unknown => Err(IndexError::Broken(format!(
                "value log is damaged at {at}, and it is unknown which keys that concerns"
            ))),
        }
    }

    /// The newest record of a key counts, as when they were written.
    fn replay_batch(
        &self,
        batch: &mut Vec<(IndexKey, IndexEntry)>,
        checkpoint: Option<Checkpoint>,
    ) -> Result<(), IndexError> {
        let mut newest = HashMap::<IndexKey, IndexEntry>::new();
        for (key, entry) in batch.drain(..) {
            let known = match newest.get(&key) {
                Some(known) => Some(*known),
                None => self.index.get(&key)?,
            };
            let version = entry.fact.version();
            if version == ERASED || known.is_none_or(|known| known.fact.version() <= version) {
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
