//! The first 16 bytes of a frame.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::checksum;
use crate::frame::{BLOCK_LEN, BLOCK_LEN_LOG2, FrameError, HEADER_LEN, INDEX_ENTRY_LEN};
use crate::registry::{self, CodecId};
use crate::spec::CodecSpec;

/// Upper half of the first byte.
const MAGIC: u8 = 0xF0;
/// Lower half of the first byte.
const VERSION: u8 = 1;

/// Length of the part of the header that the checksum covers: all before it.
const CHECKED_LEN: usize = HEADER_LEN - 4;

/// How a value rests in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// As it is.
    Verbatim(Verbatim),
    /// Compressed by this codec at this level.
    Compressed(CodecSpec),
}

/// Why a value was stored verbatim. Kept in the frame, so that a later change of level need not
/// try again what is known to fail. The numbers are stored and never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verbatim {
    /// No codec was asked: it was `none`, or the value came behind many that did not shrink and was
    /// not looked at ([`Runs`](crate::sniff::Runs)).
    NoCodec = 0,
    /// The value was shorter than the threshold.
    BelowThreshold = 1,
    /// The value's first bytes are those of a compressed format.
    Recognized = 2,
    /// A sample of the value looked random.
    LooksRandom = 3,
    /// The codec did not make it smaller by at least 1/32 (or failed).
    DidNotShrink = 4,
}

impl Verbatim {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::NoCodec,
        Self::BelowThreshold,
        Self::Recognized,
        Self::LooksRandom,
        Self::DidNotShrink,
    ];

    /// A short lower-case name, for metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoCodec => "no-codec",
            Self::BelowThreshold => "below-threshold",
            Self::Recognized => "recognized",
            Self::LooksRandom => "looks-random",
            Self::DidNotShrink => "did-not-shrink",
        }
    }
}

/// A frame's header, with fields that agree with each other. (Whether they are true only the
/// checksum can tell.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub(super) encoding: Encoding,
    pub(super) original_len: u32,
    pub(super) stored_len: u32,
    pub(super) checksum: u32,
}

/// Whether `frame` is what was written, as far as its checksum tells. It needs no codec: what a
/// build with other features wrote is not taken for damage. Costs one pass over the bytes.
#[must_use]
pub fn is_intact(frame: &[u8]) -> bool {
    let Some((header, payload)) = frame.split_first_chunk::<HEADER_LEN>() else {
        return false;
    };
    let Some((checked, stored)) = header.split_last_chunk::<4>() else {
        return false;
    };
    let computed = checksum::crc32c_append(checksum::crc32c(checked), payload);
    checked.starts_with(&[MAGIC | VERSION]) && computed == u32::from_le_bytes(*stored)
}

impl Header {
    /// Reads the header that `bytes` begin with. What follows it is not looked at.
    ///
    /// # Errors
    /// Any [`FrameError`] but those about the payload. [`FrameError::OverLimit`] if the value has
    /// more than `limit` bytes.
    pub fn parse(bytes: &[u8], limit: usize) -> Result<Self, FrameError> {
        let header: &[u8; HEADER_LEN] = bytes
            .first_chunk()
            .ok_or(FrameError::Truncated { len: bytes.len() })?;
        let [
            format,
            codec,
            detail,
            blocks,
            o0,
            o1,
            o2,
            o3,
            s0,
            s1,
            s2,
            s3,
            c0,
            c1,
            c2,
            c3,
        ] = *header;
        if format & 0xF0 != MAGIC {
            return Err(FrameError::NotAFrame { found: format });
        }
        if format & 0x0F != VERSION {
            return Err(FrameError::Version {
                found: format & 0x0F,
            });
        }
        let original_len = u32::from_le_bytes([o0, o1, o2, o3]);
        let stored_len = u32::from_le_bytes([s0, s1, s2, s3]);
        let checksum = u32::from_le_bytes([c0, c1, c2, c3]);

        let codec = registry::by_id(codec).ok_or(FrameError::UnknownCodec { id: codec })?;
        let encoding = if codec.id() == CodecId::NONE {
            let reason = Verbatim::ALL.get(usize::from(detail));
            Encoding::Verbatim(*reason.ok_or(FrameError::Field { name: "detail" })?)
        } else {
            let spec = CodecSpec::from_stored(codec, detail.cast_signed());
            Encoding::Compressed(spec.ok_or(FrameError::Field { name: "detail" })?)
        };
        let header = Self {
            encoding,
            original_len,
            stored_len,
            checksum,
        };
        if blocks != header.blocks_field() {
            return Err(FrameError::Field { name: "blocks" });
        }
        header.check_stored_len()?;
        if header.original_len() > limit {
            return Err(FrameError::OverLimit {
                claimed: header.original_len(),
                limit,
            });
        }
        if let (false, Some(feature)) = (codec.is_available(), codec.feature()) {
            return Err(FrameError::AbsentCodec {
                codec: codec.name(),
                feature,
            });
        }
        Ok(header)
    }

    /// A stored length is bound by the original length from both sides.
    fn check_stored_len(&self) -> Result<(), FrameError> {
        let is_plausible = match self.encoding {
            Encoding::Verbatim(_) => self.stored_len == self.original_len,
            // No block is stored in less than a byte.
            Encoding::Compressed(_) => {
                let len_min = self
                    .block_count()
                    .saturating_mul(INDEX_ENTRY_LEN.saturating_add(1));
                let len_min = if self.has_blocks() { len_min } else { 1 };
                self.stored_len < self.original_len && self.stored_len() >= len_min
            }
        };
        if is_plausible {
            Ok(())
        } else {
            Err(FrameError::Field {
                name: "stored length",
            })
        }
    }

    /// The header's bytes, with the checksum as it is in `self`.
    pub(super) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let (codec, detail) = match self.encoding {
            Encoding::Verbatim(reason) => (CodecId::NONE, reason as u8),
            Encoding::Compressed(spec) => (spec.id(), spec.stored_level().cast_unsigned()),
        };
        let [o0, o1, o2, o3] = self.original_len.to_le_bytes();
        let [s0, s1, s2, s3] = self.stored_len.to_le_bytes();
        let [c0, c1, c2, c3] = self.checksum.to_le_bytes();
        [
            MAGIC | VERSION,
            codec.as_u8(),
            detail,
            self.blocks_field(),
            o0,
            o1,
            o2,
            o3,
            s0,
            s1,
            s2,
            s3,
            c0,
            c1,
            c2,
            c3,
        ]
    }

    /// The CRC-32C of the checked part of the header; the payload's bytes come next.
    pub(super) fn checksum_start(self) -> u32 {
        let bytes = self.to_bytes();
        let (checked, _) = bytes.split_at(CHECKED_LEN);
        checksum::crc32c(checked)
    }

    /// How the value is stored.
    #[must_use]
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The value's length in bytes.
    #[must_use]
    pub fn original_len(&self) -> usize {
        self.original_len as usize
    }

    /// The payload's length in bytes.
    #[must_use]
    pub fn stored_len(&self) -> usize {
        self.stored_len as usize
    }

    /// The frame's length in bytes, header and payload.
    #[must_use]
    pub fn frame_len(&self) -> usize {
        HEADER_LEN.saturating_add(self.stored_len())
    }

    /// Whether the payload is blocks with an index.
    fn has_blocks(&self) -> bool {
        matches!(self.encoding, Encoding::Compressed(_)) && self.original_len() > BLOCK_LEN
    }

    /// Bytes of the index of blocks, with which the payload begins.
    pub(super) fn index_len(&self) -> usize {
        if self.has_blocks() {
            self.block_count().saturating_mul(INDEX_ENTRY_LEN)
        } else {
            0
        }
    }

    /// How many blocks the value would be cut into.
    fn block_count(&self) -> usize {
        self.original_len().div_ceil(BLOCK_LEN)
    }

    fn blocks_field(&self) -> u8 {
        if self.has_blocks() { BLOCK_LEN_LOG2 } else { 0 }
    }
}
