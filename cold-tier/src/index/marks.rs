//! Flushes and purges that the index knows of.

use std::cmp::Reverse;

use super::database::Batch;
use super::{Index, IndexError, mark_key};
use crate::segment::{FLUSHES_MAX, FlushMark, MarkKey, PURGES_MAX};

impl Index {
    /// Versions below this were flushed or purged, of what the mark with this key is about.
    pub(crate) fn cutoff(&self, key: MarkKey) -> u64 {
        self.marks.read().get(&key).copied().unwrap_or(0)
    }

    /// Raises the cutoff of a mark; returns whether it was lower.
    pub(crate) fn raise_cutoff(&self, mark: FlushMark) -> Result<bool, IndexError> {
        let _writer = self.writer.lock();
        if self.cutoff(mark.key()) >= mark.cutoff {
            return Ok(false);
        }
        let mut batch = Batch::default();
        batch.put_meta(mark_key(mark.key()), mark.cutoff.to_le_bytes().to_vec());
        self.database.commit(batch)?;
        self.marks.write().insert(mark.key(), mark.cutoff);
        Ok(true)
    }

    /// The cutoffs, in the order of their keys: all, or the highest ones that a footer has room
    /// for.
    pub(crate) fn marks(&self) -> Vec<FlushMark> {
        let known = self.marks.read();
        let (flushes, purges): (Vec<FlushMark>, Vec<_>) = known
            .iter()
            .map(|(&(space, writer, since), &cutoff)| FlushMark {
                space,
                writer,
                since,
                cutoff,
            })
            .partition(|mark| mark.writer == 0);
        drop(known);
        let mut marks = newest(flushes, FLUSHES_MAX);
        marks.extend(newest(purges, PURGES_MAX));
        marks.sort_by_key(FlushMark::key);
        marks
    }
}

/// The marks with the highest cutoffs, if there are more than `count_max`.
fn newest(mut marks: Vec<FlushMark>, count_max: usize) -> Vec<FlushMark> {
    if marks.len() > count_max {
        marks.sort_unstable_by_key(|mark| (Reverse(mark.cutoff), mark.key()));
        marks.truncate(count_max);
    }
    marks
}
