//! What can go wrong with the cold tier as a whole.

use crate::format::FormatError;
use crate::index::IndexError;
use crate::names::SegmentName;
use crate::spill::source::SpillSourceError;
use crate::store::{StoreError, StoreErrorKind};

/// Why the cold tier did not do what it should. Never the reason to fail a request: a cache that
/// cannot read its cold tier misses.
#[derive(Debug, thiserror::Error)]
pub enum ColdError {
    /// The bucket.
    #[error("the bucket of the cold tier failed")]
    Store(#[from] StoreError),
    /// The local index.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// A segment in the bucket.
    #[error("segment {name} cannot be used; what only it holds is lost")]
    Segment {
        /// Which.
        name: SegmentName,
        /// What is wrong.
        #[source]
        source: FormatError,
    },
    /// A checkpoint in the bucket.
    #[error("a checkpoint cannot be used; older ones or the segments are read instead")]
    Checkpoint(#[source] FormatError),
    /// The queue of the node.
    #[error(transparent)]
    Source(#[from] SpillSourceError),
    /// The blocking work has no thread: the process is stopping, or a job panicked.
    #[error("the cold tier is stopping")]
    Stopping,
    /// Footers and checkpoints cannot be read or written.
    #[error(
        "the cold tier needs the codec zstd, which this build leaves out (cargo feature `zstd`): \
         take a build that has it, or leave out --cold-tier"
    )]
    NoZstd,
    /// The local index failed earlier; nothing is written to it any more.
    #[error("the local index of the cold tier failed; restart the node to have it built again")]
    IndexFailed,
}

impl ColdError {
    /// Whether the bucket said that there is no such object.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Store(error) if error.kind == StoreErrorKind::NotFound)
    }
}
