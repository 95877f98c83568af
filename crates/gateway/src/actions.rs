//! The cache service of GitHub Actions, version 2, without I/O: what clients send, and what is
//! stored (ADR 0029).
//!
//! A client reserves an entry, uploads its archive in blocks as to Azure's block blobs, and
//! publishes it. A restore names a key and prefixes of keys. Archives and blocks are stored as long
//! values are: a manifest, and chunks that others may share.

mod blocks;
mod document;
mod index;

pub(crate) use self::blocks::{BLOCKS_MAX, Component, block_list, component, parameter};
pub(crate) use self::document::{Find, Publish, Reserve, entry_id};
pub(crate) use self::index::Index;

/// Longest key in bytes, and versions are not longer. GitHub allows 512 characters.
pub(crate) const KEY_LEN_MAX: usize = 2048;

/// Changes of an index that other clients may forestall, until one is refused as busy.
pub(crate) const INDEX_TRIES_MAX: usize = 16;

/// The name of an entry in URLs and keys of the store.
pub(crate) type EntryId = [u8; 32];

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
