//! Writes as they are given to the disk tier, and the receivers of their results.

use bytes::Bytes;

use fonn_base::ack::Ack;
use fonn_base::entry::{Meta, Space};
use fonn_proto::{Failure, Version};

/// A write for the disk.
#[derive(Debug)]
pub struct Write {
    /// Where the key lives.
    pub space: Space,
    /// The key; copied, so that it may be part of a larger buffer.
    pub key: Bytes,
    /// What is to become of it.
    pub kind: WriteKind,
    /// Completed when the write is as durable as the tier promises.
    pub ack: Option<Ack>,
}

/// What a [`Write`] does.
#[derive(Debug)]
pub enum WriteKind {
    /// Stores a value. One that comes after a newer write of its key does nothing.
    Put {
        /// The facts beside the value.
        meta: Meta,
        /// The value.
        value: Bytes,
    },
    /// Gives other facts to a value that is there. It is written as it is stored on disk, if it is;
    /// else as it is given.
    Facts {
        /// The new facts.
        meta: Meta,
        /// The version of the entry that has the value.
        of: Version,
        /// The value, or its frame.
        stored: Bytes,
        /// Whether it is a frame.
        framed: bool,
    },
    /// Deletes the key.
    Tombstone {
        /// The version of the deletion. [`ERASED`](crate::ERASED) erases what the key has.
        version: Version,
    },
}

impl Write {
    /// A write that is not acknowledged. The key is copied.
    #[must_use]
    pub fn new(space: Space, key: &[u8], kind: WriteKind) -> Self {
        Self {
            space,
            key: Bytes::copy_from_slice(key),
            kind,
            ack: None,
        }
    }

    /// The version of the write.
    #[must_use]
    pub fn version(&self) -> Version {
        match &self.kind {
            WriteKind::Put { meta, .. } | WriteKind::Facts { meta, .. } => meta.version,
            WriteKind::Tombstone { version } => *version,
        }
    }

    /// Bytes it holds while it waits.
    #[must_use]
    pub fn cost(&self) -> usize {
        let value_len = match &self.kind {
            WriteKind::Put { value, .. } => value.len(),
            WriteKind::Facts { stored, .. } => stored.len(),
            WriteKind::Tombstone { .. } => 0,
        };
        std::mem::size_of::<Self>() + self.key.len() + value_len
    }
}

/// The tier above, which the disk tier tells and asks. Calls must be short and must not call back.
pub trait DiskObserver: Send + Sync {
    /// A write has become as durable as acknowledged writes are, or has failed. Called in the order
    /// of the writes, on the writer thread, before its [`Ack`] is completed. A deletion or an
    /// outdated write for which nothing had to be written counts as written.
    fn written(&self, space: Space, key: &[u8], version: Version, result: Result<(), Failure>);

    /// The generation that holds this entry is about to be dropped: shall the entry live on? Called
    /// on the upkeep thread. Yes, if RAM holds this version and it is neither flushed nor expired.
    fn keep(&self, space: Space, key: &[u8], meta: &Meta) -> bool;
}
