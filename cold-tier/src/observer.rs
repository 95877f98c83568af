//! What the cold tier tells the node, and asks it.

use crate::segment::{FlushMark, Version};

/// The node, as the cold tier sees it. Called on threads that may block, never on a reactor.
///
/// Each news is told *before* the index remembers it: after a crash in between it is told again. So
/// it may come more than once, and must be in effect, as durably as the node's own entries are,
/// when the call returns.
pub trait ColdObserver: Send + Sync + 'static {
    /// Copies of another writer are newer than any that the index knew. Copies that the node itself
    /// holds with a lower version must not be served from now on. Also comes for keys that the node
    /// has no copy of, and for what an earlier run of this node wrote itself. A call has what the
    /// index is about to remember together, so that the node waits for its disk once.
    fn superseded(&self, newer: &[CopyRef<'_>]);

    /// Another writer flushed a space or purged an identity: copies that this is about are gone.
    /// False if the node does not believe it, since it is too far ahead of the clock. The index
    /// then does not keep the mark, which would hide every later flush.
    fn flushed(&self, mark: &FlushMark) -> bool;

    /// Whether the node would serve a copy of that version: false once it was flushed.
    fn is_visible(&self, space: u32, version: u64) -> bool;
}

/// A copy of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRef<'a> {
    /// Space of the key.
    pub space: u32,
    /// The key.
    pub key: &'a [u8],
    /// Its place in the order of copies.
    pub at: Version,
}
