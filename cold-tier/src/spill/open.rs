//! The segment that is being filled.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::source::{SpillFact, SpillRecord};
use crate::format::FormatError;
use crate::memory::Held;
use crate::options::SpillMode;
use crate::segment::{Fact, Record, SegmentBuilder};

/// How long a segment is filled at most when nothing asks for haste.
const OPEN_MAX: Duration = Duration::from_secs(60);

/// A segment with the memory of what is in it.
#[derive(Default)]
pub(super) struct OpenSegment {
    pub(super) builder: SegmentBuilder,
    /// When it is to be uploaded even if there is room in it.
    pub(super) due: Option<Instant>,
    /// Memory that is kept until it is uploaded.
    pub(super) held: Vec<Held>,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// It is in the segment.
    Yes,
    /// It does not fit into this segment.
    Full,
    /// It fits into none.
    Unreadable,
}

impl OpenSegment {
    /// Adds a record that should be in the bucket soon after `due`.
    pub(super) fn add(&mut self, record: &SpillRecord, due: Instant) -> Added {
        let (fact, bytes) = match &record.fact {
            &SpillFact::Put { facts, ref frame } => (Fact::Put { facts, frame }, frame.clone()),
            SpillFact::Tombstone => (Fact::Tombstone, Bytes::new()),
        };
        let spilled = Record {
            space: record.space,
            key: &record.key,
            at: record.at,
            fact,
        };
        match self.builder.push_shared(&spilled, &bytes) {
            Ok(()) => {
                self.due = Some(self.due.map_or(due, |before| before.min(due)));
                Added::Yes
            }
            Err(FormatError::Full { .. }) if !self.builder.is_empty() => Added::Full,
            Err(_) => Added::Unreadable,
        }
    }
}

/// How long a record may wait from now on, if uploads take `upload`. Wall-clock times that make no
/// sense, since a clock was set, count as the nearest that do.
pub(super) fn due_in(mode: SpillMode, now_ms: u64, written_ms: u64, upload: Duration) -> Duration {
    match mode {
        SpillMode::OnEvict => OPEN_MAX,
        SpillMode::WriteBehind(after) => {
            let age = Duration::from_millis(now_ms.saturating_sub(written_ms));
            // Slow uploads must not make segments ever smaller and more.
            let upload = upload.min(after / 2);
            after.saturating_sub(age).saturating_sub(upload)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_leaves_in_time_whatever_the_clock_says() {
        let secs = Duration::from_secs;
        let mode = SpillMode::WriteBehind(secs(30));
        assert_eq!(due_in(mode, 50_000, 50_000, secs(0)), secs(30));
        assert_eq!(due_in(mode, 60_000, 50_000, secs(5)), secs(15));
        assert_eq!(due_in(mode, 50_000, 50_000, secs(600)), secs(15));
        // From the future, and from long ago.
        assert_eq!(due_in(mode, 0, 50_000, secs(0)), secs(30));
        assert_eq!(due_in(mode, 900_000, 50_000, secs(0)), secs(0));
    }
}
