//! The disk tier's value logs as the queue in front of the bucket.

use std::sync::Arc;

use fonn_base::boxed::BoxFuture;
use fonn_base::entry::Meta;
use fonn_base::hlc::Hlc;
use fonn_cold_tier::segment::Facts;
use fonn_cold_tier::{
    Backlog, SpillBatch, SpillCursor, SpillFact, SpillRecord, SpillSource, SpillSourceError,
};
use fonn_disk_tier::{DiskTier, Fact, TailPosition, TailRecord};

use super::gate::Gate;

/// The queue.
pub(super) struct LogQueue {
    disk: DiskTier,
    gate: Arc<Gate>,
    /// Gave the versions of most records, and knows when.
    hlc: Arc<Hlc>,
    /// Only generations that are about to be dropped are read.
    is_on_evict: bool,
}

impl LogQueue {
    pub(super) fn new(disk: DiskTier, gate: Arc<Gate>, hlc: Arc<Hlc>, is_on_evict: bool) -> Self {
        Self {
            disk,
            gate,
            hlc,
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
        writer: meta.writer.number(),
    }
}

fn spill_record(record: TailRecord, hlc: &Hlc) -> SpillRecord {
    let version = record.fact.version();
    SpillRecord {
        space: record.space.0,
        key: record.key,
        at: version,
        fact: match record.fact {
            Fact::Put(meta) => SpillFact::Put {
                facts: facts_of(&meta),
                frame: record.frame,
            },
            Fact::Tombstone(_) => SpillFact::Tombstone,
        },
        written_ms: hlc.written_ms(version),
        after: cursor(record.after),
    }
}

impl SpillSource for LogQueue {
    fn read(&self, from: &SpillCursor, max_bytes: usize) -> Result<SpillBatch, SpillSourceError> {
        let read = self
            .disk
            .read_tail(position(from), max_bytes, self.horizon());
        let tailed = read.map_err(|error| SpillSourceError(Box::new(error)))?;
        let records = tailed.records.into_iter();
        Ok(SpillBatch {
            records: records.map(|it| spill_record(it, &self.hlc)).collect(),
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
            oldest_written_ms: unread.oldest.map(|version| self.hlc.written_ms(version)),
        }
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.disk.tail_grew())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fonn_base::clock::ManualClock;
    use fonn_base::entry::Space;
    use fonn_base::hlc::at_ms;

    use super::*;

    #[test]
    fn a_record_is_due_by_when_it_was_written_however_far_versions_are_ahead() {
        const WALL_MS: u64 = 1_700_000_000_000;
        let manual = ManualClock::new(WALL_MS);
        let hlc = Hlc::new(manual.clock(), 0).unwrap();
        hlc.mark();
        // Another member's clock is half a minute ahead.
        hlc.observe(at_ms(WALL_MS + 30_000)).unwrap();
        let record = TailRecord {
            space: Space(1),
            key: bytes::Bytes::from_static(b"k"),
            fact: Fact::Tombstone(hlc.next()),
            frame: bytes::Bytes::new(),
            after: TailPosition::default(),
        };
        manual.advance(Duration::from_millis(100));
        hlc.mark();
        manual.advance(Duration::from_secs(4));
        assert_eq!(spill_record(record, &hlc).written_ms, WALL_MS);
    }
}
