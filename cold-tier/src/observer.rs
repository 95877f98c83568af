//! What the cold tier tells the node, and asks it.

use crate::segment::{FlushMark, Version};

/// The node, as the cold tier sees it. Called on threads that may block, never on a reactor.
///
/// Each news is told *before* the index remembers it: after a crash in between it is told again. So
/// it may come more than once, and must be in effect, as durably as the node's own entries are,
/// when the call returns.
pub trait ColdObserver: Send + Sync + 'static {
    /// Another writer's copy of a key, at `at`, is newer than any that the index knew. Copies that
    /// the node itself holds with a lower version must not be served from now on. Also comes for
    /// keys that the node has no copy of, and for what an earlier run of this node wrote itself.
    fn superseded(&self, space: u16, key: &[u8], at: Version);

    /// Another writer flushed a space or purged an identity: copies that this is about are gone.
    fn flushed(&self, mark: &FlushMark);

    /// Whether the node would serve a copy of that version: false once it was flushed.
    fn is_visible(&self, space: u16, version: u64) -> bool;
}
