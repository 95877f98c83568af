//! What both tiers agree on about an entry: where its key lives, and the facts beside its value.

pub use fonn_proto::Space;
use fonn_proto::{Version, WriterId};

/// The facts about an entry that every tier keeps beside the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Orders the copies of an entry: the highest wins.
    pub version: Version,
    /// The CAS token where the client chose one (meta `E`); the version is the token otherwise.
    pub cas_override: Option<u64>,
    /// The client's opaque flags.
    pub flags: u32,
    /// Unix time in milliseconds at which the entry expires; 0 means never.
    pub expires_at_ms: u64,
    /// Marked stale by meta `I`: still served, but a client should recache it.
    pub stale: bool,
    /// A client holds the right to recache (meta `W` was given out).
    pub token_sent: bool,
    /// The identity that wrote the value. Changes of the facts alone leave it.
    pub writer: WriterId,
}

impl Meta {
    /// Facts of a fresh entry.
    #[must_use]
    pub fn new(version: Version, flags: u32, expires_at_ms: u64) -> Self {
        Self {
            version,
            cas_override: None,
            flags,
            expires_at_ms,
            stale: false,
            token_sent: false,
            writer: WriterId::NONE,
        }
    }

    /// The token that clients see and compare with.
    #[must_use]
    pub fn cas(&self) -> u64 {
        self.cas_override.unwrap_or(self.version)
    }

    /// Whether the entry has expired at `now_ms`.
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms != 0 && self.expires_at_ms <= now_ms
    }
}
