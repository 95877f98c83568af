//! The queue in front of the bucket, as the cold tier sees it.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use fonn_base::boxed::BoxFuture;

use crate::segment::{Facts, Version};

/// A position in the queue; opaque.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpillCursor(Bytes);

impl SpillCursor {
    /// A position from the source's own bytes. Empty means the beginning: everything that the
    /// source has.
    #[must_use]
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The source's own bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What a record of the queue says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpillFact {
    /// A value was written.
    Put {
        /// What is known of it besides its bytes.
        facts: Facts,
        /// Its frame (`fonn_codec::frame`).
        frame: Bytes,
    },
    /// The key was deleted.
    Tombstone,
}

/// One record of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillRecord {
    /// Space of the key.
    pub space: u32,
    /// The key.
    pub key: Bytes,
    /// Its place in the order of copies.
    pub at: Version,
    /// What it says.
    pub fact: SpillFact,
    /// Unix time in milliseconds when it was written.
    pub written_ms: u64,
    /// The position behind it.
    pub after: SpillCursor,
}

/// Records in the order of the queue.
#[derive(Clone, Debug, Default)]
pub struct SpillBatch {
    /// The records. A source leaves out those that are not the newest of their key.
    pub records: Vec<SpillRecord>,
    /// The position behind everything looked at, which may be beyond the last record. The same as
    /// where the read began if there is nothing.
    pub end: SpillCursor,
}

/// What is in the queue behind a position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Records.
    pub entries: u64,
    /// Bytes of their values and keys.
    pub bytes: u64,
    /// Unix time in milliseconds when the oldest was written; None if there is none.
    pub oldest_written_ms: Option<u64>,
}

impl Backlog {
    /// Age of the oldest; zero if there is none, or if the clock was set back.
    #[must_use]
    pub fn age(&self, now_ms: u64) -> Duration {
        let age_ms = |written_ms| now_ms.saturating_sub(written_ms);
        Duration::from_millis(self.oldest_written_ms.map_or(0, age_ms))
    }
}

/// Why a source could not be read; it is asked again later.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the queue of entries for the bucket")]
pub struct SpillSourceError(#[from] pub Box<dyn Error + Send + Sync>);

/// The queue. A node has it in the value logs of its disk tier.
///
/// Its methods block, except [`SpillSource::wait`], and are called from one thread at a time.
pub trait SpillSource: Send + Sync + 'static {
    /// Reads on from a position. At least one record is returned if there is one, else as many as
    /// have `max_bytes` together. A position that is gone (its log was dropped) means the oldest
    /// that there is.
    ///
    /// # Errors
    /// [`SpillSourceError`].
    fn read(&self, from: &SpillCursor, max_bytes: usize) -> Result<SpillBatch, SpillSourceError>;

    /// Everything before `cursor` is in the bucket or need not be. Comes late or not at all after a
    /// crash, never early.
    fn acknowledge(&self, cursor: &SpillCursor);

    /// What is behind `cursor`.
    fn backlog(&self, cursor: &SpillCursor) -> Backlog;

    /// Waits until there may be something new. May return for no reason; must not miss anything
    /// that was added after the last [`SpillSource::read`] began.
    fn wait(&self) -> BoxFuture<'_, ()>;
}
