//! A record: one version of one key, with its value or as a tombstone.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use fonn_base::hlc::Version;
use fonn_codec::checksum;

use crate::format::{Fields, FormatError, check};

/// Bytes of a record before its key.
pub const RECORD_HEAD_LEN: usize = 48;

/// The longest key in bytes.
pub const KEY_LEN_MAX: usize = u16::MAX as usize;

const PART: &str = "record";

/// The checksum's own length; it covers everything behind it.
pub(super) const CHECKSUM_LEN: usize = 4;

const LAYOUT: u8 = 4;

const BIT_TOMBSTONE: u8 = 1;
const BIT_STALE: u8 = 1 << 1;
const BIT_TOKEN_SENT: u8 = 1 << 2;
const BIT_CAS_OVERRIDE: u8 = 1 << 3;
const BITS_KNOWN: u8 = 0x0f;

/// One version of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The keyspace: namespace × 16 + database.
    pub space: u32,
    /// The key, at most [`KEY_LEN_MAX`] bytes.
    pub key: &'a [u8],
    /// Its version.
    pub at: Version,
    /// What happened to the key.
    pub fact: Fact<'a>,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact<'a> {
    /// A value was written.
    Put {
        /// The facts beside it.
        facts: Facts,
        /// The value as a frame of `fonn-codec`, stored as it is. Nothing here looks into it: its
        /// codec may be one that this build leaves out.
        frame: &'a [u8],
    },
    /// The key was deleted, or its value was dropped while an older copy may be in the bucket.
    Tombstone,
}

/// The facts about an entry beside its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The client's opaque flags.
    pub flags: u32,
    /// Unix time in milliseconds at which the entry expires; 0 means never.
    pub expires_at_ms: u64,
    /// The CAS token where the client chose one; the version is the token otherwise.
    pub cas_override: Option<u64>,
    /// Marked stale: still served, but a client should recache it.
    pub stale: bool,
    /// A client holds the right to recache.
    pub token_sent: bool,
    /// Number of the identity that wrote the value; 0 for none.
    pub writer: u32,
}

/// Bytes of a whole record.
fn record_len(key_len: usize, frame_len: usize) -> usize {
    RECORD_HEAD_LEN
        .saturating_add(key_len)
        .saturating_add(frame_len)
}

impl<'a> Record<'a> {
    /// Bytes of the record.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        record_len(self.key.len(), self.frame().len())
    }

    /// The value's frame; empty for a tombstone.
    #[must_use]
    pub fn frame(&self) -> &'a [u8] {
        match self.fact {
            Fact::Put { frame, .. } => frame,
            Fact::Tombstone => &[],
        }
    }

    /// When the entry expires: Unix time in milliseconds, 0 never. A tombstone never does.
    #[must_use]
    pub fn expires_at_ms(&self) -> u64 {
        match self.fact {
            Fact::Put { facts, .. } => facts.expires_at_ms,
            Fact::Tombstone => 0,
        }
    }

    /// Whether it is a tombstone.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        matches!(self.fact, Fact::Tombstone)
    }

    /// Checks that the lengths fit into a record.
    ///
    /// # Errors
    /// [`FormatError::TooLong`].
    pub fn check_lengths(&self) -> Result<(), FormatError> {
        let len = self.encoded_len();
        if self.key.len() > KEY_LEN_MAX {
            return Err(FormatError::TooLong {
                part: "key",
                len: self.key.len(),
            });
        }
        if u32::try_from(len).is_err() {
            return Err(FormatError::TooLong { part: PART, len });
        }
        Ok(())
    }

    /// Appends the record to `out`.
    ///
    /// # Panics
    /// If the lengths do not fit ([`check_lengths`](Self::check_lengths)).
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        assert!(self.check_lengths().is_ok(), "record is too long");
        out.reserve(self.encoded_len());
        out.extend_from_slice(&self.encode_head());
        out.extend_from_slice(self.key);
        out.extend_from_slice(self.frame());
    }

    /// The head with the checksum of all. Lengths that do not fit are cut: the caller has checked.
    pub(super) fn encode_head(&self) -> [u8; RECORD_HEAD_LEN] {
        let facts = match self.fact {
            Fact::Put { facts, .. } => facts,
            Fact::Tombstone => Facts::default(),
        };
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let bits = bit(self.is_tombstone(), BIT_TOMBSTONE)
            | bit(facts.stale, BIT_STALE)
            | bit(facts.token_sent, BIT_TOKEN_SENT)
            | bit(facts.cas_override.is_some(), BIT_CAS_OVERRIDE);
        let mut checked = Vec::with_capacity(RECORD_HEAD_LEN);
        checked.extend_from_slice(&[LAYOUT, bits]);
        checked.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        checked.extend_from_slice(&self.space.to_le_bytes());
        checked.extend_from_slice(&(self.frame().len() as u32).to_le_bytes());
        checked.extend_from_slice(&facts.flags.to_le_bytes());
        checked.extend_from_slice(&self.at.to_le_bytes());
        checked.extend_from_slice(&facts.expires_at_ms.to_le_bytes());
        checked.extend_from_slice(&facts.cas_override.unwrap_or(0).to_le_bytes());
        checked.extend_from_slice(&facts.writer.to_le_bytes());
        let checksum = checksum::crc32c(&checked);
        let checksum = checksum::crc32c_append(checksum, self.key);
        let checksum = checksum::crc32c_append(checksum, self.frame());
        let head = [checksum.to_le_bytes().as_slice(), &checked].concat();
        head.try_into().expect("the fields have this length")
    }

    /// Reads the record that `bytes` are, from the first to the last. It is a record that was
    /// written, unless damage hit its checksum: which entry it is of, the caller compares.
    ///
    /// # Errors
    /// [`FormatError`]: it is damaged, or not as long as it says.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let head = Head::parse(bytes)?;
        if head.record_len() != bytes.len() {
            return Err(FormatError::Length {
                part: PART,
                needed: head.record_len() as u64,
                len: bytes.len() as u64,
            });
        }
        let (_, checked) = bytes.split_at(CHECKSUM_LEN.min(bytes.len()));
        check(PART, checksum::crc32c(checked), Some(head.checksum))?;
        let wrong = |field| FormatError::Field { part: PART, field };
        let (_, data) = bytes
            .split_at_checked(RECORD_HEAD_LEN)
            .ok_or(wrong("length"))?;
        let (key, frame) = data.split_at_checked(head.key_len).ok_or(wrong("length"))?;
        Ok(Record {
            space: head.space,
            key,
            at: head.at,
            fact: head.fact(frame)?,
        })
    }
}

/// A record's head as it is stored.
pub(super) struct Head {
    /// That of everything behind [`CHECKSUM_LEN`].
    pub(super) checksum: u32,
    bits: u8,
    pub(super) space: u32,
    /// Bytes of the key.
    pub(super) key_len: usize,
    /// Bytes of the frame; 0 for a tombstone.
    pub(super) frame_len: usize,
    flags: u32,
    pub(super) at: Version,
    expires_at_ms: u64,
    cas_override: u64,
    writer: u32,
}

impl Head {
    /// Reads a record's first [`RECORD_HEAD_LEN`] bytes, on trust: only the checksum of the whole
    /// record tells whether they are true.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let head: &[u8; RECORD_HEAD_LEN] = bytes.first_chunk().ok_or(FormatError::Length {
            part: PART,
            needed: RECORD_HEAD_LEN as u64,
            len: bytes.len() as u64,
        })?;
        let mut fields = Fields(head);
        let wrong = |field| FormatError::Field { part: PART, field };
        let checksum = fields.u32().ok_or(wrong("checksum"))?;
        if fields.u8() != Some(LAYOUT) {
            return Err(wrong("layout"));
        }
        let bits = fields.u8().ok_or(wrong("bits"))?;
        let key_len = fields.u16().ok_or(wrong("key length"))?;
        let space = fields.u32().ok_or(wrong("space"))?;
        Ok(Self {
            checksum,
            bits,
            space,
            key_len: usize::from(key_len),
            frame_len: fields.u32().ok_or(wrong("frame length"))? as usize,
            flags: fields.u32().ok_or(wrong("flags"))?,
            at: fields.u64().ok_or(wrong("version"))?,
            expires_at_ms: fields.u64().ok_or(wrong("expiry"))?,
            cas_override: fields.u64().ok_or(wrong("cas override"))?,
            writer: fields.u32().ok_or(wrong("writer"))?,
        })
    }

    /// Bytes of the whole record.
    pub(super) fn record_len(&self) -> usize {
        record_len(self.key_len, self.frame_len)
    }

    /// Each fact has one spelling, anything else is refused.
    pub(super) fn fact<'a>(&self, frame: &'a [u8]) -> Result<Fact<'a>, FormatError> {
        let wrong = |field| FormatError::Field { part: PART, field };
        let has_override = self.bits & BIT_CAS_OVERRIDE != 0;
        if self.bits & !BITS_KNOWN != 0 {
            return Err(wrong("bits"));
        }
        if !has_override && self.cas_override != 0 {
            return Err(wrong("cas override"));
        }
        if self.bits & BIT_TOMBSTONE == 0 {
            return Ok(Fact::Put {
                facts: Facts {
                    flags: self.flags,
                    expires_at_ms: self.expires_at_ms,
                    cas_override: has_override.then_some(self.cas_override),
                    stale: self.bits & BIT_STALE != 0,
                    token_sent: self.bits & BIT_TOKEN_SENT != 0,
                    writer: self.writer,
                },
                frame,
            });
        }
        let is_bare = self.bits == BIT_TOMBSTONE
            && self.flags == 0
            && self.expires_at_ms == 0
            && self.writer == 0;
        if is_bare && frame.is_empty() {
            Ok(Fact::Tombstone)
        } else {
            Err(wrong("tombstone"))
        }
    }
}
