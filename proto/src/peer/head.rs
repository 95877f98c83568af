//! The 34 bytes in front of every body.
//!
//! | offset | bytes | field |
//! |--------|-------|-------|
//! | 0 | 1 | kind: 0xFB request, 0xFC reply |
//! | 1 | 1 | opcode |
//! | 2 | 2 | flags, each opcode's own |
//! | 4 | 4 | checksum |
//! | 8 | 4 | id |
//! | 12 | 4 | length of the body |
//! | 16 | 2 | slot |
//! | 18 | 4 | space: namespace × 16 + database |
//! | 22 | 4 | budget in milliseconds |
//! | 26 | 4 | epoch of the map |
//! | 30 | 4 | number of the writer, 0 for none |
//!
//! The checksum is CRC-32C of bytes 8 to the end of the head and of the first [`CHECKED_LEN`] bytes
//! of the body, with bytes 0 to 4 (as a number) for a start value, so that it is one pass over
//! bytes without a gap.

use bytes::BufMut;

use super::FrameError;
use super::crc;
use crate::WriterId;

/// Length of a head in bytes.
pub const HEAD_LEN: usize = 34;

/// So many bytes of a body are covered by the frame's checksum: small frames whole, of large ones
/// facts and key. (Values that move between nodes as entries have a checksum of their own.)
pub const CHECKED_LEN: usize = 512;

/// Where the part of the head begins that is summed up.
const SUMMED_AT: usize = 8;

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To the node that executes.
    Request,
    /// Back.
    Reply,
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Self::Request => 0xfb,
            Self::Reply => 0xfc,
        }
    }

    /// Checks the first byte of a frame.
    pub(super) fn check(self, byte: u8) -> Result<(), FrameError> {
        if byte == self.byte() {
            Ok(())
        } else {
            Err(FrameError::Kind(byte))
        }
    }
}

/// What a frame says about its request apart from what is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Chosen by the sender of the request, repeated in the reply. It must not be used again before
    /// the reply came or the connection ended.
    pub id: u32,
    /// The key's slot; 0 in replies.
    pub slot: u16,
    /// The key's space (namespace × 16 + database); 0 in replies.
    pub space: u32,
    /// How long the sender still waits, in milliseconds; 0 if it does not say. 0 in replies.
    pub budget_ms: u32,
    /// The epoch of the sender's map of the cluster. It has 32 bits on the wire: the sender cuts a
    /// larger epoch to the largest number of 32 bits.
    pub epoch: u64,
    /// The identity that the sender executes the request for. None in replies.
    pub writer: WriterId,
}

impl Envelope {
    /// The same, of a request that is executed for `writer`.
    #[must_use]
    pub fn of(self, writer: WriterId) -> Self {
        Self { writer, ..self }
    }

    /// The envelope of a reply to this request, from a member that has applied `epoch`.
    #[must_use]
    pub fn reply(&self, epoch: u64) -> Self {
        Self {
            id: self.id,
            epoch,
            ..Self::default()
        }
    }
}

/// A head, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What is asked or answered.
    pub opcode: u8,
    /// The opcode's own flags.
    pub flags: u16,
    /// About the request.
    pub envelope: Envelope,
    /// Length of the body in bytes.
    pub body_len: u32,
}

impl Head {
    /// The head's bytes, the checksum still 0.
    pub(super) fn encode(&self, kind: Kind) -> [u8; HEAD_LEN] {
        let Envelope {
            id,
            slot,
            space,
            budget_ms,
            epoch,
            writer,
        } = self.envelope;
        let mut bytes = [0; HEAD_LEN];
        // The fields' lengths add up to the head's.
        let mut rest = bytes.as_mut_slice();
        rest.put_u8(kind.byte());
        rest.put_u8(self.opcode);
        rest.put_u16_le(self.flags);
        rest.put_u32_le(0);
        rest.put_u32_le(id);
        rest.put_u32_le(self.body_len);
        rest.put_u16_le(slot);
        rest.put_u32_le(space);
        rest.put_u32_le(budget_ms);
        rest.put_u32_le(u32::try_from(epoch).unwrap_or(u32::MAX));
        rest.put_u32_le(writer.number());
        bytes
    }

    /// Reads the fields. Returns the checksum beside them, unchecked.
    #[inline]
    pub(super) fn decode(bytes: &[u8; HEAD_LEN]) -> (Self, u32) {
        let (word, rest) = bytes.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let [_, opcode, f0, f1, c0, c1, c2, c3] = *word;
        let (id, rest) = le32(rest);
        let (body_len, rest) = le32(rest);
        let (slot, rest) = rest.split_first_chunk().unwrap_or((&[0; 2], &[]));
        let (space, rest) = le32(rest);
        let (budget_ms, rest) = le32(rest);
        let (epoch, rest) = le32(rest);
        let (writer, _) = le32(rest);
        let head = Self {
            opcode,
            flags: u16::from_le_bytes([f0, f1]),
            envelope: Envelope {
                id,
                slot: u16::from_le_bytes(*slot),
                space,
                budget_ms,
                epoch: u64::from(epoch),
                writer: WriterId::new(writer),
            },
            body_len,
        };
        (head, u32::from_le_bytes([c0, c1, c2, c3]))
    }
}

#[inline]
fn le32(bytes: &[u8]) -> (u32, &[u8]) {
    bytes
        .split_first_chunk()
        .map_or((0, &[]), |(chunk, rest)| (u32::from_le_bytes(*chunk), rest))
}

/// The checksum of a frame. `frame` is its head and at least the part of the body that is summed
/// up, or as much of it as there is in one piece; `more` is the rest of that part.
#[inline]
pub(super) fn checksum(frame: &[u8], more: &[u8]) -> u32 {
    let end = HEAD_LEN.saturating_add(CHECKED_LEN).min(frame.len());
    let start = frame
        .first_chunk()
        .map_or(0, |word| u32::from_le_bytes(*word));
    let sum = crc::crc32c_append(start, frame.get(SUMMED_AT..end).unwrap_or(&[]));
    let left = HEAD_LEN.saturating_add(CHECKED_LEN).saturating_sub(end);
    match more.get(..left).unwrap_or(more) {
        [] => sum,
        more => crc::crc32c_append(sum, more),
    }
}
