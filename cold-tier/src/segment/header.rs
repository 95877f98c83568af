//! The first bytes of a segment: its format, its writer, and its time.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use fonn_codec::checksum;

use crate::format::{Fields, FormatError, check, check_version};
use crate::names::{Region, SegmentName, WriterId};

/// The format version that this build reads and writes.
pub const FORMAT: u32 = 4;

/// Length of the header in bytes; the first record begins there.
pub const HEADER_LEN: usize = 92;

/// First bytes of the header, last bytes of the trailer.
pub(super) const MAGIC: [u8; 8] = *b"FONNSEG\n";

const PART: &str = "header";

/// Bytes before the checksum, which ends the header.
const CHECKED_LEN: usize = 88;

/// The writer of a segment, and its time. Fixed before the first byte is uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Where the writer runs.
    pub region: Region,
    /// The writer.
    pub writer: WriterId,
    /// The segment's number in its writer's.
    pub seq: u64,
    /// Unix time in milliseconds. Of two copies of one version, that in the segment with the later
    /// one counts: a node that copies records gives the new segment a later time than the old one
    /// has.
    pub created_ms: u64,
}

impl SegmentHeader {
    /// The segment's name.
    #[must_use]
    pub fn name(&self) -> SegmentName {
        SegmentName {
            region: self.region.clone(),
            writer: self.writer,
            seq: self.seq,
        }
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut region = [0; Region::LEN_MAX];
        let name = self.region.as_str().as_bytes();
        for (place, byte) in region.iter_mut().zip(name) {
            *place = *byte;
        }
        let mut bytes = Vec::with_capacity(HEADER_LEN);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&self.seq.to_le_bytes());
        bytes.extend_from_slice(&self.created_ms.to_le_bytes());
        bytes.extend_from_slice(self.writer.as_bytes());
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(&region);
        bytes.push(0);
        let checksum = checksum::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.try_into().expect("the fields have this length")
    }

    /// Reads the header that `bytes` begin with.
    ///
    /// # Errors
    /// [`FormatError::Version`] for a segment of another format version; others for damage.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let truncated = || FormatError::Length {
            part: PART,
            needed: HEADER_LEN as u64,
            len: bytes.len() as u64,
        };
        let bytes: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or_else(truncated)?;
        let (checked, stored) = bytes.split_at(CHECKED_LEN);
        let mut fields = Fields(checked);
        if fields.array() != Some(MAGIC) {
            return Err(FormatError::Magic { part: PART });
        }
        // Before the checksum: another version may have it elsewhere.
        check_version("segment", fields.u32().ok_or_else(truncated)?, FORMAT)?;
        check(PART, checksum::crc32c(checked), Fields(stored).u32())?;
        Self::parse(fields)
    }

    fn parse(mut fields: Fields<'_>) -> Result<Self, FormatError> {
        let wrong = |field| FormatError::Field { part: PART, field };
        let seq = fields.u64().ok_or(wrong("number"))?;
        let created_ms = fields.u64().ok_or(wrong("time"))?;
        let writer = fields
            .bytes(WriterId::LEN)
            .and_then(|bytes| std::str::from_utf8(bytes).ok()?.parse().ok())
            .ok_or(wrong("writer"))?;
        let region = fields
            .u8()
            .and_then(|len| {
                let padded = fields.bytes(Region::LEN_MAX)?;
                let (name, padding) = padded.split_at_checked(usize::from(len))?;
                let name = std::str::from_utf8(name).ok()?;
                padding.iter().all(|byte| *byte == 0).then_some(name)
            })
            .and_then(|name| name.parse().ok())
            .ok_or(wrong("region"))?;
        if fields.u8() != Some(0) {
            return Err(wrong("reserved byte"));
        }
        Ok(Self {
            region,
            writer,
            seq,
            created_ms,
        })
    }
}
