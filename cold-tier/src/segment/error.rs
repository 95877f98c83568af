//! What can be wrong with the bytes of a segment, or with what should become one.

use fonn_codec::FrameError;

use crate::segment::{FOOTER_LEN_MAX, KEY_LEN_MAX};

/// Why bytes are not a segment, or a record cannot be put into one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// Another program, or another version of Fonn, wrote it.
    #[error(
        "segment has format version {found}, this build reads version {known}: \
         use a build that reads it, or another prefix in the bucket"
    )]
    Format {
        /// The one in the bytes.
        found: u32,
        /// The one that this build reads and writes.
        known: u32,
    },
    /// The bytes at the place of the magic number are others.
    #[error("{part} does not have a segment's magic number")]
    NotASegment {
        /// Where it was looked for.
        part: &'static str,
    },
    /// There are fewer bytes than there must be.
    #[error("{part} needs {needed} bytes and has {len}")]
    Truncated {
        /// What they should be.
        part: &'static str,
        /// How many it needs.
        needed: u64,
        /// How many there are.
        len: u64,
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
        /// The part it is in.
        part: &'static str,
        /// Its name.
        field: &'static str,
    },
    /// The footer's frame cannot be decoded.
    #[error("footer cannot be decoded")]
    Footer(#[source] FrameError),
    /// A key that is too long for a record.
    #[error("key of {len} bytes is over the limit of {KEY_LEN_MAX} bytes for a record")]
    KeyTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// A record that is too long for its length field.
    #[error("record of {len} bytes is over the segment format's limit of 4 GiB")]
    RecordTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// The segment has as many entries as its footer can hold.
    #[error("segment is full: its footer is limited to {FOOTER_LEN_MAX} bytes; begin another one")]
    Full,
}
