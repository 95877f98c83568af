//! What an index knows of a key.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::format::{Fields, FormatError, check_version};
use crate::names::KeyHash;
use crate::segment::{FooterEntry, Version};

/// Length of an entry's value in bytes; its key is the hash.
pub const ENTRY_LEN: usize = 38;

const PART: &str = "index entry";

const LAYOUT: u8 = 4;

const BIT_TOMBSTONE: u8 = 1;
const BIT_SHADOWS: u8 = 1 << 1;

/// The newest copy of a key that the bucket has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The key's hash.
    pub hash: KeyHash,
    /// The keyspace.
    pub space: u32,
    /// The index's own number of the segment that it is in.
    pub segment: u32,
    /// Where the record begins in the segment.
    pub offset: u64,
    /// The record's length in bytes.
    pub len: u32,
    /// The version.
    pub at: Version,
    /// When it expires: Unix time in milliseconds, 0 never.
    pub expires_at_ms: u64,
    /// Whether the key was deleted, or its value dropped.
    pub tombstone: bool,
    /// Whether an older value of the key is in the bucket, or may be; with a tombstone, also one of
    /// its own version.
    pub shadows: bool,
}

impl IndexEntry {
    /// The entry of a record that an index sees for the first time.
    #[must_use]
    pub fn of(segment: u32, entry: &FooterEntry) -> Self {
        Self {
            hash: entry.hash(),
            space: entry.space,
            segment,
            offset: entry.offset,
            len: entry.len,
            at: entry.at,
            expires_at_ms: entry.expires_at_ms,
            tombstone: entry.tombstone,
            shadows: false,
        }
    }

    /// The entry for a key of which an index has two copies, one in each segment; `created_ms` are
    /// those of the segments. The order of merging does not matter, and merging again changes
    /// nothing.
    ///
    /// The higher version wins. Of one version a tombstone wins over the value (the value was
    /// dropped), else the copy in the segment created later (it was moved there), else the one in
    /// the segment with the higher number.
    #[must_use]
    pub fn merge(self, created_ms: u64, other: Self, other_created_ms: u64) -> Self {
        let rank = |entry: &Self, created_ms: u64| {
            (
                entry.at,
                entry.tombstone,
                created_ms,
                entry.segment,
                entry.offset,
            )
        };
        let (winner, loser) = if rank(&self, created_ms) >= rank(&other, other_created_ms) {
            (self, other)
        } else {
            (other, self)
        };
        // An older tombstone is not a value, but it may hide one. A tombstone of the same version
        // hides the value that was dropped, from whatever comes after both.
        let hides_loser = !loser.tombstone && (loser.at < winner.at || winner.tombstone);
        Self {
            shadows: winner.shadows || loser.shadows || hides_loser,
            ..winner
        }
    }

    /// Whether it has expired at `now_ms` (Unix time in milliseconds).
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms != 0 && self.expires_at_ms <= now_ms
    }

    /// The value's bytes, as they are stored in an index and in the parts of a checkpoint.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_LEN] {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let bits = bit(self.tombstone, BIT_TOMBSTONE) | bit(self.shadows, BIT_SHADOWS);
        let mut bytes = Vec::with_capacity(ENTRY_LEN);
        bytes.extend_from_slice(&[LAYOUT, bits]);
        bytes.extend_from_slice(&self.space.to_le_bytes());
        bytes.extend_from_slice(&self.segment.to_le_bytes());
        bytes.extend_from_slice(&self.offset.to_le_bytes());
        bytes.extend_from_slice(&self.len.to_le_bytes());
        bytes.extend_from_slice(&self.at.to_le_bytes());
        bytes.extend_from_slice(&self.expires_at_ms.to_le_bytes());
        bytes.try_into().expect("the fields have this length")
    }

    /// Reads the value of the key `hash`.
    ///
    /// # Errors
    /// [`FormatError`]: it is of another layout, or damaged in a way that shows. An entry
    /// has no checksum: what is around it has one, and the record that it leads to.
    pub fn decode(hash: KeyHash, bytes: &[u8]) -> Result<Self, FormatError> {
        let wrong = |field| FormatError::Field { part: PART, field };
        let mut fields = Fields(bytes);
        let layout = fields.u8().ok_or(wrong("length"))?;
        check_version(PART, layout.into(), LAYOUT.into())?;
        if bytes.len() != ENTRY_LEN {
            return Err(wrong("length"));
        }
        let bits = fields.u8().ok_or(wrong("bits"))?;
        if bits & !(BIT_TOMBSTONE | BIT_SHADOWS) != 0 {
            return Err(wrong("bits"));
        }
        Ok(Self {
            hash,
            space: fields.u32().ok_or(wrong("space"))?,
            segment: fields.u32().ok_or(wrong("segment"))?,
            offset: fields.u64().ok_or(wrong("offset"))?,
            len: fields.u32().ok_or(wrong("length"))?,
            at: fields.u64().ok_or(wrong("version"))?,
            expires_at_ms: fields.u64().ok_or(wrong("expiry"))?,
            tombstone: bits & BIT_TOMBSTONE != 0,
            shadows: bits & BIT_SHADOWS != 0,
        })
    }
}
