//! What can be wrong with the bytes of a checkpoint or of an index entry.

use fonn_codec::FrameError;

use crate::checkpoint::{MANIFEST_LEN_MAX, PART_LEN_MAX};

/// Why bytes are not a checkpoint's, or cannot become one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Another program, or another version of Fonn, wrote it.
    #[error(
        "{part} has format version {found}, this build reads version {known}: \
         the index is built from an older checkpoint or from the segments"
    )]
    Format {
        /// What it is of.
        part: &'static str,
        /// The one in the bytes.
        found: u32,
        /// The one that this build reads and writes.
        known: u32,
    },
    /// The bytes at the place of the magic number are others.
    #[error("{part} does not have its magic number")]
    Magic {
        /// What it should be.
        part: &'static str,
    },
    /// The length is another than it should be.
    #[error("{part} has {len} bytes, {expected} are expected")]
    Length {
        /// What has it.
        part: &'static str,
        /// How many there are.
        len: u64,
        /// How many there should be, or must be at least.
        expected: u64,
    },
    /// The bytes are not those that were written.
    #[error("checksum of the {part} is {stored:#010x}, its bytes have {computed:#010x}")]
    Checksum {
        /// What is damaged.
        part: &'static str,
        /// The one that was stored.
        stored: u32,
        /// The one of the bytes.
        computed: u32,
    },
    /// A field has a value that it cannot have, or that does not agree with another one.
    #[error("{part} has a wrong {field}")]
    Field {
        /// What it is in.
        part: &'static str,
        /// Its name.
        field: &'static str,
    },
    /// The bytes cannot be decoded.
    #[error("{part} cannot be decoded")]
    Frame {
        /// What they should be.
        part: &'static str,
        /// Why not.
        #[source]
        source: FrameError,
    },
    /// An entry that is not behind the one before it.
    #[error(
        "entries of a checkpoint's part must be pushed in the order of their hashes, once each"
    )]
    Order,
    /// The part has as many entries as it may.
    #[error("part is full: it is limited to {PART_LEN_MAX} bytes; begin another one")]
    Full,
    /// There are more segments than a manifest can name.
    #[error("manifest is over its limit of {MANIFEST_LEN_MAX} bytes; collect segments first")]
    TooLong,
}
