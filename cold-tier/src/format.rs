//! What the formats in the bucket have in common: fields, checks, and what can be wrong.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use fonn_codec::FrameError;

/// Why bytes are not what they should be, or cannot become it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Another program, or another version of Fonn, wrote it.
    #[error(
        "{part} has format version {found}, this build reads version {known}: \
         use a build that reads it, or another prefix in the bucket"
    )]
    Version {
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
        /// Where it was looked for.
        part: &'static str,
    },
    /// There are fewer bytes than there must be, or others than are announced.
    #[error("{part} needs {needed} bytes and has {len}")]
    Length {
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
    /// The frame in it cannot be decoded.
    #[error("{part} cannot be decoded")]
    Frame {
        /// What it should be.
        part: &'static str,
        /// Why not.
        #[source]
        source: FrameError,
    },
    /// What is to be written does not fit.
    #[error("{part} is over its limit of {len_max} bytes; begin another one")]
    Full {
        /// What would be too long.
        part: &'static str,
        /// The limit.
        len_max: usize,
    },
    /// An entry that is not behind the one before it.
    #[error(
        "entries of a checkpoint's part must be pushed in the order of their hashes, once each"
    )]
    Order,
    /// A key or a record that is too long for its length field: it fits into no segment.
    #[error("{part} of {len} bytes is too long for a record")]
    TooLong {
        /// Which of them.
        part: &'static str,
        /// Its length in bytes.
        len: usize,
    },
}

pub(crate) fn check_version(part: &'static str, found: u32, known: u32) -> Result<(), FormatError> {
    if found == known {
        Ok(())
    } else {
        Err(FormatError::Version { part, found, known })
    }
}

/// Compares a checksum with the one that was stored.
pub(crate) fn check(
    part: &'static str,
    computed: u32,
    stored: Option<u32>,
) -> Result<(), FormatError> {
    match stored {
        Some(stored) if stored == computed => Ok(()),
        stored => Err(FormatError::Checksum {
            part,
            stored: stored.unwrap_or(0),
            computed,
        }),
    }
}

/// Little-endian fields one after the other; the end of the bytes is None. It is what is left to
/// read.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(field)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
