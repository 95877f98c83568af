//! The bytes of a record in a value log, and of the entry that leads to it in an index.
//!
//! Layouts: `docs/formats/disk-record.md`. Neither is ever changed in place; a record is believed
//! only after its checksum, its key and its version were compared with what led to it.

use std::ops::Range;

use fonn_codec::checksum;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use smallvec::SmallVec;

use fonn_base::entry::{Meta, Space};
use fonn_proto::{Version, WriterId};

/// Layout version of records and index entries.
const LAYOUT: u8 = 4;

/// Bytes of a record before its key.
pub(crate) const HEAD_LEN: usize = 50;

/// How much of the frame the checksum of the record covers; the frame's own covers all of it. It
/// binds the two together.
pub(crate) const BOUND_FRAME_LEN: usize = 16;

/// The longest key in bytes: a record has 16 bits for its length.
pub(crate) const KEY_LEN_MAX: usize = u16::MAX as usize;

const BIT_TOMBSTONE: u8 = 1;
const BIT_STALE: u8 = 1 << 1;
const BIT_TOKEN_SENT: u8 = 1 << 2;
const BIT_CAS_OVERRIDE: u8 = 1 << 3;
const BIT_WRITER: u8 = 1 << 4;
const BITS_KNOWN: u8 = 0x1f;

const INDEX_ENTRY_LEN: usize = 36;

/// First byte of the index keys of entries; the index's own facts have 0.
const INDEX_PREFIX: u8 = 1;

/// Bytes of an index key before the key.
const INDEX_KEY_HEAD_LEN: usize = 5;

/// Bytes that stand for a long key in an index key: its first ones, then its digest. A key of as
/// many bytes or more is long. fjall keeps the last key of each index block of each table in
/// memory: keys of 32 KiB filled it.
const LONG_KEY_LEN: usize = 224;

/// Key of an entry in an index: prefix, space (big endian, so that a scan stays in one), then the
/// key or what stands for a long one.
pub(crate) type IndexKey = SmallVec<[u8; 128]>;

/// What an index key says of the key of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named<'a> {
    /// The key.
    Key(&'a [u8]),
    /// It is long: only the record has it.
    Long,
}

/// The version of a tombstone that erases: whatever the key had before it in the log is as unknown
/// as if it had been evicted, whatever its version. No write has this version.
pub const ERASED: Version = 0;

/// What a record or index entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A value was written.
    Put(Meta),
    /// The key was deleted.
    Tombstone(Version),
}

impl Fact {
    /// The version of the write.
    #[must_use]
    pub fn version(&self) -> Version {
        match self {
            Self::Put(meta) => meta.version,
            Self::Tombstone(version) => *version,
        }
    }

    fn bits(&self) -> u8 {
        match self {
            Self::Tombstone(_) => BIT_TOMBSTONE,
            Self::Put(meta) => {
                let stale = if meta.stale { BIT_STALE } else { 0 };
                let token = if meta.token_sent { BIT_TOKEN_SENT } else { 0 };
                let cas = if meta.cas_override.is_some() {
                    BIT_CAS_OVERRIDE
                } else {
                    0
                };
                let writer = if meta.writer.is_known() {
                    BIT_WRITER
                } else {
                    0
                };
                stale | token | cas | writer
            }
        }
    }

    fn from_fields(fields: Fields) -> Option<Self> {
        if fields.bits & !BITS_KNOWN != 0 {
            return None;
        }
        if fields.bits & BIT_TOMBSTONE != 0 {
            return Some(Self::Tombstone(fields.version));
        }
        Some(Self::Put(Meta {
            version: fields.version,
            cas_override: (fields.bits & BIT_CAS_OVERRIDE != 0).then_some(fields.cas_override),
            flags: fields.flags,
            expires_at_ms: fields.expires_at_ms,
            stale: fields.bits & BIT_STALE != 0,
            token_sent: fields.bits & BIT_TOKEN_SENT != 0,
            writer: WriterId::new(fields.writer),
        }))
    }

    fn fields(&self) -> Fields {
        match self {
            Self::Tombstone(version) => Fields {
                bits: self.bits(),
                version: *version,
                ..Fields::default()
            },
            Self::Put(meta) => Fields {
                bits: self.bits(),
                flags: meta.flags,
                version: meta.version,
                expires_at_ms: meta.expires_at_ms,
                cas_override: meta.cas_override.unwrap_or(0),
                writer: meta.writer.number(),
            },
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Fields {
    bits: u8,
    flags: u32,
    version: Version,
    expires_at_ms: u64,
    cas_override: u64,
    writer: u32,
}

/// Where a head has its own checksum.
const HEAD_CHECK: Range<usize> = 48..HEAD_LEN;

/// The checksum of a head without its other checksum: the lower half of a CRC-32C. It tells a head
/// that was written whole from a damaged one, also where the rest of the record is not there.
fn head_check(head: &[u8]) -> Option<[u8; 2]> {
    let crc = checksum::crc32c(head.get(4..HEAD_CHECK.start)?);
    crc.to_le_bytes().first_chunk().copied()
}

/// The lengths that a record's head announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub(crate) key: usize,
    pub(crate) frame: usize,
}

impl Lengths {
    /// Bytes of the whole record.
    pub(crate) fn record(&self) -> u64 {
        HEAD_LEN as u64 + self.key as u64 + self.frame as u64
    }

    /// Bytes of the record that its checksum covers, and the checksum itself.
    pub(crate) fn bound(&self) -> usize {
        HEAD_LEN + self.key + self.frame.min(BOUND_FRAME_LEN)
    }

    /// Reads them from the first [`HEAD_LEN`] bytes; None if these are not an intact head.
    pub(crate) fn peek(head: &[u8]) -> Option<Self> {
        if head.get(HEAD_CHECK)? != head_check(head)? {
            return None;
        }
        let mut fields = Reader(head);
        fields.u32()?;
        if fields.u8()? != LAYOUT {
            return None;
        }
        fields.u8()?;
        let key = usize::from(fields.u16()?);
        fields.skip(36)?;
        let frame = usize::try_from(fields.u32()?).ok()?;
        Some(Self { key, frame })
    }

    /// The version that an intact head tells.
    pub(crate) fn peek_version(head: &[u8]) -> Option<Version> {
        Self::peek(head)?;
        let mut fields = Reader(head);
        fields.skip(16)?;
        fields.u64()
    }
}

/// Whether the first [`Lengths::bound`] bytes of a record are those that were written.
pub(crate) fn is_head_intact(bound: &[u8]) -> bool {
    let Some((checksum, covered)) = bound.split_first_chunk() else {
        return false;
    };
    u32::from_le_bytes(*checksum) == checksum::crc32c(covered)
}

/// A record whose head, key and binding to the frame were verified. The frame's own checksum is
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) fact: Fact,
    pub(crate) space: Space,
    pub(crate) key: &'a [u8],
    pub(crate) frame: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads a whole record; None if it is damaged or not as long as it says.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        Self::parse_start(bytes, bytes.len() as u64)
    }

    /// As [`Record::parse`], from the first bytes of a record of `record_len` bytes,
    /// [`Lengths::bound`] of them or more. The frame ends where `bytes` end.
    pub(crate) fn parse_start(bytes: &'a [u8], record_len: u64) -> Option<Self> {
        let lengths = Lengths::peek(bytes)?;
        if lengths.record() != record_len {
            return None;
        }
        if !is_head_intact(bytes.get(..lengths.bound())?) {
            return None;
        }
        let mut fields = Reader(bytes);
        fields.skip(5)?;
        let bits = fields.u8()?;
        fields.skip(2)?;
        let space = Space(fields.u32()?);
        let fact = Fact::from_fields(Fields {
            bits,
            flags: fields.u32()?,
            version: fields.u64()?,
            expires_at_ms: fields.u64()?,
            cas_override: fields.u64()?,
            writer: fields.u32()?,
        })?;
        let (key, frame) = bytes.get(HEAD_LEN..)?.split_at_checked(lengths.key)?;
        Some(Self {
            fact,
            space,
            key,
            frame,
        })
    }
}

/// Appends a record's head and key. `frame_start` holds at least the first [`BOUND_FRAME_LEN`]
/// bytes of the frame, or all of it, and `frame_len` is the length of the whole.
pub(crate) fn write_head(
    out: &mut Vec<u8>,
    (space, key): (Space, &[u8]),
    fact: &Fact,
    frame_start: &[u8],
    frame_len: u32,
) {
    debug_assert!(key.len() <= KEY_LEN_MAX);
    let start = out.len();
    let fields = fact.fields();
    out.extend_from_slice(&[0; 4]);
    out.push(LAYOUT);
    out.push(fields.bits);
    out.extend_from_slice(&u16::try_from(key.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend_from_slice(&space.0.to_le_bytes());
    out.extend_from_slice(&fields.flags.to_le_bytes());
    out.extend_from_slice(&fields.version.to_le_bytes());
    out.extend_from_slice(&fields.expires_at_ms.to_le_bytes());
    out.extend_from_slice(&fields.cas_override.to_le_bytes());
    out.extend_from_slice(&fields.writer.to_le_bytes());
    out.extend_from_slice(&frame_len.to_le_bytes());
    let check = out.get(start..).and_then(head_check).unwrap_or_default();
    out.extend_from_slice(&check);
    out.extend_from_slice(key);
    let bound = frame_start.get(..BOUND_FRAME_LEN).unwrap_or(frame_start);
    let crc = checksum::crc32c_append(checksum::crc32c(out.get(start + 4..).unwrap_or(&[])), bound);
    if let Some(place) = out.get_mut(start..start + 4) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
}

/// Where the newest record of a key lies in the value log of a generation, and its facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) fact: Fact,
    /// Position of the record in bytes.
    pub(crate) offset: u64,
    /// Length of the whole record in bytes.
    pub(crate) record_len: u32,
}

impl IndexEntry {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let fields = self.fact.fields();
        let mut out = Vec::with_capacity(INDEX_ENTRY_LEN + 12);
        out.extend_from_slice(&[LAYOUT, fields.bits, 0, 0]);
        out.extend_from_slice(&fields.flags.to_le_bytes());
        out.extend_from_slice(&fields.version.to_le_bytes());
        out.extend_from_slice(&fields.expires_at_ms.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.record_len.to_le_bytes());
        if fields.bits & BIT_CAS_OVERRIDE != 0 {
            out.extend_from_slice(&fields.cas_override.to_le_bytes());
        }
        if fields.bits & BIT_WRITER != 0 {
            out.extend_from_slice(&fields.writer.to_le_bytes());
        }
        out
    }

    /// None if the bytes are no entry of this layout.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader(bytes);
        if fields.u8()? != LAYOUT {
            return None;
        }
        let bits = fields.u8()?;
        fields.skip(2)?;
        let flags = fields.u32()?;
        let version = fields.u64()?;
        let expires_at_ms = fields.u64()?;
        let offset = fields.u64()?;
        let record_len = fields.u32()?;
        let cas_override = if bits & BIT_CAS_OVERRIDE == 0 {
            0
        } else {
            fields.u64()?
        };
        let writer = match bits & BIT_WRITER {
            0 => 0,
            _ => fields.u32()?,
        };
        let fact = Fact::from_fields(Fields {
            bits,
            flags,
            version,
            expires_at_ms,
            cas_override,
            writer,
        })?;
        Some(Self {
            fact,
            offset,
            record_len,
        })
    }
}

/// The index key of an entry.
pub(crate) fn index_key(space: Space, key: &[u8]) -> IndexKey {
    let mut out = IndexKey::new();
    out.push(INDEX_PREFIX);
    out.extend_from_slice(&space.0.to_be_bytes());
    match key.get(..LONG_KEY_LEN - SHA256_OUTPUT_LEN) {
        Some(first) if key.len() >= LONG_KEY_LEN => {
            out.extend_from_slice(first);
            out.extend_from_slice(digest(&SHA256, key).as_ref());
        }
        _ => out.extend_from_slice(key),
    }
    out
}

/// Length of the index key of a key of `key_len` bytes.
pub(crate) fn index_key_len(key_len: usize) -> usize {
    INDEX_KEY_HEAD_LEN + key_len.min(LONG_KEY_LEN)
}

/// Takes an index key apart again; None for the index's own facts.
pub(crate) fn split_index_key(index_key: &[u8]) -> Option<(Space, Named<'_>)> {
    let (&[prefix, space @ ..], key) = index_key.split_first_chunk::<INDEX_KEY_HEAD_LEN>()?;
    let named = match key.len() {
        LONG_KEY_LEN => Named::Long,
        _ => Named::Key(key),
    };
    (prefix == INDEX_PREFIX).then_some((Space(u32::from_be_bytes(space)), named))
}

/// The place of the key in a record, from the first [`HEAD_LEN`] bytes of the record; None if these
/// are fewer. Nothing is verified.
pub(crate) fn key_place(head: &[u8]) -> Option<Range<usize>> {
    let len = head.get(6..8)?.try_into().map(u16::from_le_bytes).ok()?;
    Some(HEAD_LEN..HEAD_LEN + usize::from(len))
}

/// Reads little-endian fields off the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn skip(&mut self, len: usize) -> Option<()> {
        self.0 = self.0.get(len..)?;
        Some(())
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> Meta {
        Meta {
            version: 0x0102_0304_0506_0708,
            cas_override: Some(9),
            flags: 0xdead_beef,
            expires_at_ms: 1_700_000_000_000,
            stale: true,
            token_sent: true,
            writer: WriterId::new(77),
        }
    }

    fn record(fact: Fact, key: &[u8], frame: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_head(
            &mut out,
            (Space(7), key),
            &fact,
            frame,
            u32::try_from(frame.len()).unwrap(),
        );
        out.extend_from_slice(frame);
        out
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for fact in [
            Fact::Put(meta()),
            Fact::Put(Meta::new(1, 0, 0)),
            Fact::Tombstone(77),
        ] {
            for frame in [&b""[..], b"short", &[7; 100]] {
                let bytes = record(fact, b"some key", frame);
                let parsed = Record::parse(&bytes).unwrap();
                assert_eq!(
                    parsed,
                    Record {
                        fact,
                        space: Space(7),
                        key: b"some key",
                        frame
                    }
                );
            }
        }
    }

    #[test]
    fn the_layout_of_a_record_never_changes() {
        let bytes = record(Fact::Put(meta()), b"k", b"v");
        let expected = [
            &[0xcb, 0x18, 0x37, 0x52][..],
            &[
                4, 0b1_1110, 1, 0, 7, 0, 0, 0, 0xef, 0xbe, 0xad, 0xde, 8, 7, 6, 5, 4, 3, 2, 1,
            ],
            &1_700_000_000_000u64.to_le_bytes(),
            &[9, 0, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0, 1, 0, 0, 0],
            &[207, 164, b'k', b'v'],
        ]
        .concat();
        assert_eq!(bytes[4..], expected[4..]);
        assert_eq!(bytes[..4], checksum::crc32c(&expected[4..]).to_le_bytes());
    }

    #[test]
    fn any_changed_bit_of_head_key_or_start_of_the_frame_is_noticed() {
        let bytes = record(Fact::Put(meta()), b"some key", &[5; 40]);
        for at in 0..HEAD_LEN + 8 + BOUND_FRAME_LEN {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert_eq!(Record::parse(&damaged), None, "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn any_changed_byte_of_a_head_is_noticed_without_the_rest() {
        let bytes = record(Fact::Put(meta()), b"some key", &[5; 40]);
        let head = &bytes[..HEAD_LEN];
        assert!(Lengths::peek(head).is_some());
        // The checksum of the whole record is not a part of its head.
        for at in 4..HEAD_LEN {
            for change in 1..=u8::MAX {
                let mut damaged = head.to_vec();
                damaged[at] ^= change;
                assert_eq!(Lengths::peek(&damaged), None, "byte {at} by {change:#x}");
            }
        }
    }

    #[test]
    fn a_cut_record_is_none() {
        let bytes = record(Fact::Put(meta()), b"some key", &[5; 40]);
        for len in 0..bytes.len() {
            assert_eq!(Record::parse(&bytes[..len]), None);
        }
    }

    #[test]
    fn an_index_entry_reads_back_as_it_was_written() {
        for fact in [
            Fact::Put(meta()),
            Fact::Put(Meta::new(1, 0, 0)),
            Fact::Tombstone(77),
        ] {
            let entry = IndexEntry {
                fact,
                offset: 1 << 40,
                record_len: 123_456,
            };
            let bytes = entry.to_bytes();
            assert_eq!(IndexEntry::parse(&bytes), Some(entry));
            for len in 0..bytes.len() {
                assert_eq!(IndexEntry::parse(&bytes[..len]), None);
            }
        }
    }

    #[test]
    fn index_keys_keep_spaces_apart_and_in_order() {
        let low = index_key(Space(1), b"zz");
        let high = index_key(Space(256), b"a");
        assert!(low < high);
        assert_eq!(split_index_key(&high), Some((Space(256), Named::Key(b"a"))));
        assert_eq!(split_index_key(b"\0c"), None);
    }

    #[test]
    fn an_index_key_names_a_short_key_and_stands_for_one_long_key() {
        let key = vec![b'k'; KEY_LEN_MAX];
        for len in [0, 1, LONG_KEY_LEN - 1] {
            let short = index_key(Space(7), &key[..len]);
            assert_eq!(
                split_index_key(&short),
                Some((Space(7), Named::Key(&key[..len])))
            );
            assert_eq!(short.len(), index_key_len(len));
        }
        let mut met = std::collections::HashSet::new();
        for len in [LONG_KEY_LEN, LONG_KEY_LEN + 1, KEY_LEN_MAX] {
            let long = index_key(Space(7), &key[..len]);
            assert_eq!(split_index_key(&long), Some((Space(7), Named::Long)));
            assert_eq!(long.len(), index_key_len(len));
            assert!(met.insert(long.clone()));
            // The bytes that stand for a long key are themselves a long key, and have other bytes.
            assert!(met.insert(index_key(Space(7), &long[INDEX_KEY_HEAD_LEN..])));
        }
    }
}
