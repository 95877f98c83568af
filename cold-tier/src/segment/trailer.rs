//! The last bytes of a segment: where its footer is.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use fonn_codec::checksum;

use crate::format::{Fields, FormatError, check, check_version};
use crate::segment::header::{FORMAT, MAGIC};
use crate::segment::{FOOTER_LEN_MAX, HEADER_LEN};

/// Length of the trailer in bytes.
pub const TRAILER_LEN: usize = 36;

const PART: &str = "trailer";

/// Bytes before the checksum. After it come only the format version and the magic number, which
/// stay at the end of every version.
const CHECKED_LEN: usize = 20;

/// Where the footer is and what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    /// Where the footer begins in the object.
    pub(super) footer_offset: u64,
    /// Its length there, in bytes.
    pub(super) footer_len: u32,
    /// Its length decoded.
    pub(super) decoded_len: u32,
    /// CRC-32C of its bytes in the object.
    pub(super) checksum: u32,
}

impl Trailer {
    pub(super) fn encode(&self) -> [u8; TRAILER_LEN] {
        let mut bytes = Vec::with_capacity(TRAILER_LEN);
        bytes.extend_from_slice(&self.footer_offset.to_le_bytes());
        bytes.extend_from_slice(&self.footer_len.to_le_bytes());
        bytes.extend_from_slice(&self.decoded_len.to_le_bytes());
        bytes.extend_from_slice(&self.checksum.to_le_bytes());
        let checksum = checksum::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&MAGIC);
        bytes.try_into().expect("the fields have this length")
    }

    /// Reads the trailer of an object of `object_len` bytes. What it says of lengths agrees with
    /// that and is within the limits.
    pub(super) fn decode(bytes: &[u8; TRAILER_LEN], object_len: u64) -> Result<Self, FormatError> {
        let wrong = |field| FormatError::Field { part: PART, field };
        let (checked, rest) = bytes.split_at(CHECKED_LEN);
        let mut rest = Fields(rest);
        let stored = rest.u32();
        let format = rest.u32().unwrap_or(0);
        if rest.array() != Some(MAGIC) {
            return Err(FormatError::Magic { part: PART });
        }
        check_version("segment", format, FORMAT)?;
        check(PART, checksum::crc32c(checked), stored)?;
        let mut fields = Fields(checked);
        let trailer = Self {
            footer_offset: fields.u64().ok_or(wrong("footer offset"))?,
            footer_len: fields.u32().ok_or(wrong("footer length"))?,
            decoded_len: fields.u32().ok_or(wrong("decoded length"))?,
            checksum: fields.u32().ok_or(wrong("checksum"))?,
        };
        let end = trailer.footer_offset.checked_add(trailer.tail_len());
        if end != Some(object_len) || trailer.footer_offset < HEADER_LEN as u64 {
            return Err(wrong("footer offset"));
        }
        // A frame is at most its header longer than what it holds.
        let frame_len_max = FOOTER_LEN_MAX.saturating_add(fonn_codec::frame::HEADER_LEN);
        if trailer.footer_len as usize > frame_len_max {
            return Err(wrong("footer length"));
        }
        if trailer.decoded_len as usize > FOOTER_LEN_MAX {
            return Err(wrong("decoded length"));
        }
        Ok(trailer)
    }

    /// Bytes of footer and trailer.
    pub(super) fn tail_len(&self) -> u64 {
        u64::from(self.footer_len).saturating_add(TRAILER_LEN as u64)
    }
}
