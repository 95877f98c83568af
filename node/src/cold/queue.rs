//! The disk tier's value logs as the queue in front of the bucket.

use std::sync::Arc;

use fonn_cold_tier::segment::Facts;
use fonn_cold_tier::{
    Backlog, BoxFuture, SpillBatch, SpillCursor, SpillFact, SpillRecord, SpillSource,
    SpillSourceError,
};
use fonn_runtime::hlc;

use super::gate::{Gate, copy_version};
use crate::entry::Meta;
use crate::lsm::{DiskTier, Fact, TailPosition, TailRecord};

/// The queue.
pub(super) struct LogQueue {
    disk: DiskTier,
    gate: Arc<Gate>,
    /// Only generations that are about to be dropped are read.
    is_on_evict: bool,
}

impl LogQueue {
    pub(super) fn new(disk: DiskTier, gate: Arc<Gate>, is_on_evict: bool) -> Self {
        Self {
            disk,
            gate,
            is_on_evict,
        }
    }

    /// Number of the last generation that may be read.
    fn horizon(&self) -> u64 {
        if self.is_on_evict {
            self.disk.leaving()
        } else {
            u64::MAX
        }
    }
}

fn position(cursor: &SpillCursor) -> TailPosition {
    TailPosition::from_bytes(cursor.as_bytes())
}

fn cursor(position: TailPosition) -> SpillCursor {
    SpillCursor::new(position.to_bytes().to_vec())
}

/// The facts of an entry as segments keep them.
pub(super) fn facts_of(meta: &Meta) -> Facts {
    Facts {
        flags: meta.flags,
        expires_at_ms: meta.expires_at_ms,
        cas_override: meta.cas_override,
        stale: meta.stale,
        token_sent: meta.token_sent,
    }
}

fn spill_record(record: TailRecord) -> SpillRecord {
    let version = record.fact.version();
    SpillRecord {
        space: record.space.0,
        key: record.key,
        at: copy_version(version),
        fact: match record.fact {
            Fact::Put(meta) => SpillFact::Put {
                facts: facts_of(&meta),
                frame: record.frame,
            },
            Fact::Tombstone(_) => SpillFact::Tombstone,
        },
        written_ms: hlc::wall_ms(version),
        after: cursor(record.after),
    }
}

impl SpillSource for LogQueue {
    fn read(&self, from: &SpillCursor, max_bytes: usize) -> Result<SpillBatch, SpillSourceError> {
        let read = self
            .disk
            .read_tail(position(from), max_bytes, self.horizon());
        let tailed = read.map_err(|error| SpillSourceError(Box::new(error)))?;
        Ok(SpillBatch {
            records: tailed.records.into_iter().map(spill_record).collect(),
            end: cursor(tailed.next),
        })
    }

    fn acknowledge(&self, cursor: &SpillCursor) {
        self.gate.pass(position(cursor));
        self.disk.wake_upkeep();
    }

    fn backlog(&self, cursor: &SpillCursor) -> Backlog {
        // What is lost with the node is everything behind, in either mode.
        let unread = self.disk.unread(position(cursor), u64::MAX);
        Backlog {
            entries: unread.entries,
            bytes: unread.bytes,
            oldest_written_ms: unread.oldest.map(hlc::wall_ms),
        }
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.disk.tail_grew())
    }
}
