//! What goes into the index and comes out of it.

use super::database::Scan;
use crate::checkpoint::SegmentFacts;
use crate::names::WriterKey;
use crate::segment::{FlushMark, Footer};
use crate::spill::source::SpillCursor;

/// How far a writer was followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The segment to be asked for next.
    pub(crate) next_seq: u64,
    /// Unix time in milliseconds of its last segment.
    pub(crate) last_new_ms: u64,
}

/// What was merged since the last checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Merged {
    pub(crate) segments: u64,
    pub(crate) entries: u64,
}

/// A segment to be merged.
pub(crate) struct Arrival<'a> {
    pub(crate) size: u64,
    pub(crate) footer: &'a Footer,
    /// How far its writer is followed with it.
    pub(crate) cursor: Option<Cursor>,
    /// How far the queue of this node is in the bucket with it.
    pub(crate) spilled: Option<&'a SpillCursor>,
}

/// The index at one moment, to be written as a checkpoint.
pub(crate) struct Frozen {
    pub(crate) scan: Scan,
    pub(crate) segments: Vec<(u32, SegmentFacts)>,
    pub(crate) cursors: Vec<(WriterKey, Cursor)>,
    pub(crate) marks: Vec<FlushMark>,
    pub(crate) merged: Merged,
}
