//! An entry on its way from one node to another: all that makes it up, its version among it.
//!
//! | offset | bytes | field |
//! |--------|-------|-------|
//! | 0 | 4 | CRC-32C of all behind it |
//! | 4 | 2 | bits: 1 tombstone, 2 stale, 4 recache token given out, 8 expiry, 16 CAS token, 32 framed, 64 omitted, 128 writer |
//! | 6 | 2 | space |
//! | 8 | 4 | the client's flags |
//! | 12 | 8 | version |
//! | | 8 | when it expires, Unix time in milliseconds (bit 8) |
//! | | 8 | CAS token that differs from the version (bit 16) |
//! | | 4 | number of the writer (bit 128) |
//! | | 2 | length of the key |
//! | | | key, then the value: plain, or as the frame of a codec (bit 32); its length only, in 8 bytes (bit 64) |

use bytes::Bytes;

use super::crc;
use super::field::{Reader, Writer, bit};
use super::{DecodeError, KEY_LEN_MAX, TooLong};
use crate::outcome::Value;
use crate::{Version, WriterId};

const TOMBSTONE: u16 = 1;
const STALE: u16 = 2;
const TOKEN_GIVEN: u16 = 4;
const EXPIRES: u16 = 8;
const CAS: u16 = 16;
const FRAMED: u16 = 32;
const OMITTED: u16 = 64;
const WRITER: u16 = 128;
const ALL: u16 = 255;

/// An entry or tombstone with its version.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry<'a> {
    /// Namespace × 16 + database.
    pub space: u32,
    /// The key.
    pub key: &'a [u8],
    /// The client's opaque flags.
    pub flags: u32,
    /// The version, as its owner gave it.
    pub version: Version,
    /// When it expires, Unix time in milliseconds; None means never.
    pub expires_at_ms: Option<u64>,
    /// The CAS token, where a client chose one that is not the version.
    pub cas: Option<Version>,
    /// It is marked stale.
    pub is_stale: bool,
    /// The right to recache it was given to a client.
    pub is_token_given: bool,
    /// The identity that wrote the value.
    pub writer: WriterId,
    /// The value, or that there is none.
    pub content: Content<'a>,
}

/// What an [`Entry`] holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Content<'a> {
    /// The key was deleted.
    Tombstone,
    /// The value as the client gave it.
    Value(Value<'a>),
    /// The value as a frame of the codec crate, as it rests in a tier.
    Frame(Value<'a>),
    /// There is a value, too long for the place: ask for the entry by its key.
    Omitted {
        /// The value's length in bytes.
        len: u64,
    },
}

impl<'a> Entry<'a> {
    /// A tombstone.
    #[must_use]
    pub fn tombstone(space: u32, key: &'a [u8], version: Version) -> Self {
        Self {
            space,
            key,
            flags: 0,
            version,
            expires_at_ms: None,
            cas: None,
            is_stale: false,
            is_token_given: false,
            writer: WriterId::NONE,
            content: Content::Tombstone,
        }
    }

    fn bits(&self) -> u16 {
        let content = match self.content {
            Content::Tombstone => TOMBSTONE,
            Content::Value(_) => 0,
            Content::Frame(_) => FRAMED,
            Content::Omitted { .. } => OMITTED,
        };
        content
            | bit(self.is_stale, STALE)
            | bit(self.is_token_given, TOKEN_GIVEN)
            | bit(self.expires_at_ms.is_some(), EXPIRES)
            | bit(self.cas.is_some(), CAS)
            | bit(self.writer.is_known(), WRITER)
    }

    /// All but the content, with the checksum of everything in front.
    fn front(&self) -> Result<Vec<u8>, TooLong> {
        let key_len = u16::try_from(self.key.len()).map_err(|_| TooLong {
            what: "a key",
            len: self.key.len(),
            max: KEY_LEN_MAX,
        })?;
        let mut front = Vec::with_capacity(self.key.len().saturating_add(64));
        front.extend_from_slice(&[0; 4]);
        front.extend_from_slice(&self.bits().to_le_bytes());
        front.extend_from_slice(&self.space.to_le_bytes());
        front.extend_from_slice(&self.flags.to_le_bytes());
        front.extend_from_slice(&self.version.to_le_bytes());
        for fact in [self.expires_at_ms, self.cas].into_iter().flatten() {
            front.extend_from_slice(&fact.to_le_bytes());
        }
        if self.writer.is_known() {
            front.extend_from_slice(&self.writer.number().to_le_bytes());
        }
        front.extend_from_slice(&key_len.to_le_bytes());
        front.extend_from_slice(self.key);
        if let Content::Omitted { len } = self.content {
            front.extend_from_slice(&len.to_le_bytes());
        }
        let sum = front.get(4..).map_or(0, crc::crc32c);
        let sum = crc::crc32c_append(sum, self.content.bytes());
        if let Some(place) = front.first_chunk_mut() {
            *place = sum.to_le_bytes();
        }
        Ok(front)
    }

    /// Writes all but the content, which is the frame's payload.
    pub(super) fn write(&self, writer: &mut Writer<'_>) -> Result<(), TooLong> {
        writer.put(&self.front()?);
        Ok(())
    }

    /// Writes the entry into a page.
    pub(super) fn append_to(&self, page: &mut Vec<u8>) -> Result<(), TooLong> {
        let front = self.front()?;
        let content = self.content.bytes();
        let len = front.len().saturating_add(content.len());
        let len = u32::try_from(len).map_err(|_| TooLong {
            what: "an entry of a page",
            len,
            max: u32::MAX as usize,
        })?;
        page.extend_from_slice(&len.to_le_bytes());
        page.extend_from_slice(&front);
        page.extend_from_slice(content);
        Ok(())
    }

    pub(super) fn decode(bytes: &'a [u8], source: Option<&'a Bytes>) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes, source);
        let sum = reader.u32("entry checksum")?;
        let bits = reader.u16("entry bits")?;
        let space = reader.u32("space")?;
        let flags = reader.u32("flags")?;
        let version = reader.u64("version")?;
        if bytes.get(4..).map_or(0, crc::crc32c) != sum {
            return Err(DecodeError::EntryChecksum { version });
        }
        let has = |bit| bits & bit != 0;
        let expires_at_ms = reader.optional(has(EXPIRES), |it| it.u64("expiry"))?;
        let cas = reader.optional(has(CAS), |it| it.u64("CAS token"))?;
        let writer = reader.optional(has(WRITER), |it| it.u32("writer"))?;
        let key = reader.short("key")?;
        let content = match bits & (TOMBSTONE | FRAMED | OMITTED) {
            _ if bits & !ALL != 0 => None,
            0 => Some(Content::Value(reader.value())),
            TOMBSTONE => Some(Content::Tombstone),
            FRAMED => Some(Content::Frame(reader.value())),
            OMITTED => Some(Content::Omitted {
                len: reader.u64("length")?,
            }),
            _ => None,
        };
        let content = content.ok_or(DecodeError::Meaningless {
            field: "entry bits",
            value: u64::from(bits),
        })?;
        reader.end(Self {
            space,
            key,
            flags,
            version,
            expires_at_ms,
            cas,
            is_stale: has(STALE),
            is_token_given: has(TOKEN_GIVEN),
            writer: WriterId::new(writer.unwrap_or(0)),
            content,
        })
    }
}

impl Content<'_> {
    /// Bytes of the value or frame that are here.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether no such bytes are here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the value or frame.
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Tombstone | Self::Omitted { .. } => &[],
            Self::Value(value) | Self::Frame(value) => value.as_slice(),
        }
    }

    /// The same bytes as a payload.
    pub(super) fn payload(&self) -> Value<'_> {
        match self {
            Self::Tombstone | Self::Omitted { .. } => Value::Copied(&[]),
            Self::Value(value) | Self::Frame(value) => value.clone(),
        }
    }
}
