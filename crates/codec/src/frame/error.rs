//! What can be wrong with bytes that should be a frame.

/// Why bytes are not a frame that can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than the header has.
    #[error("frame of {len} bytes is shorter than its header")]
    Truncated {
        /// Bytes given.
        len: usize,
    },
    /// The first byte is not that of a frame.
    #[error("first byte {found:#04x} is not that of a frame")]
    NotAFrame {
        /// The byte.
        found: u8,
    },
    /// A frame of another format version.
    #[error("frame format version {found} is not known here")]
    Version {
        /// Its version.
        found: u8,
    },
    /// A codec id that no build uses yet.
    #[error("codec id {id} is not known here")]
    UnknownCodec {
        /// The id.
        id: u8,
    },
    /// The codec is known, but this build leaves it out.
    #[error(
        "frame needs the codec {codec}, which this build leaves out (cargo feature `{feature}`)"
    )]
    AbsentCodec {
        /// The codec's name.
        codec: &'static str,
        /// The cargo feature that would bring it.
        feature: &'static str,
    },
    /// A header field has a value that no encoder writes.
    #[error("frame header has an impossible {name}")]
    Field {
        /// The field.
        name: &'static str,
    },
    /// The value is longer than the caller accepts. Nothing was allocated for it.
    #[error("frame of a value of {claimed} bytes is over the limit of {limit}")]
    OverLimit {
        /// Original length, in bytes.
        claimed: usize,
        /// The caller's limit, in bytes.
        limit: usize,
    },
    /// The bytes given for the frame, or the room given for its value, have another length than the
    /// header says.
    #[error("{found} bytes were given for a frame or its value, the header says {expected}")]
    Length {
        /// Bytes that the header says.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The block index is not in order.
    #[error("frame index is wrong at block {block}")]
    Index {
        /// Index of the block.
        block: usize,
    },
    /// The bytes are not those that were written.
    #[error("frame checksum is {stored:#010x}, its bytes have {computed:#010x}")]
    Checksum {
        /// The one in the header.
        stored: u32,
        /// The one of the bytes.
        computed: u32,
    },
    /// The codec refused its input, or gave another length than it should.
    #[error("codec {codec} cannot decode block {block}")]
    Decode {
        /// The codec's name.
        codec: &'static str,
        /// Index of the block.
        block: usize,
    },
}

/// What to do about a [`FrameError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The bytes are damaged: count, log, treat as a miss.
    Corrupt,
    /// The bytes may be fine, this build cannot read them: a miss, and one log line for all.
    Unsupported,
}

impl FrameError {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Version { .. } | Self::UnknownCodec { .. } | Self::AbsentCodec { .. } => {
                ErrorKind::Unsupported
            }
            Self::Truncated { .. }
            | Self::NotAFrame { .. }
            | Self::Field { .. }
            | Self::OverLimit { .. }
            | Self::Length { .. }
            | Self::Index { .. }
            | Self::Checksum { .. }
            | Self::Decode { .. } => ErrorKind::Corrupt,
        }
    }
}
