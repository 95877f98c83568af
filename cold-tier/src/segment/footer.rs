//! The footer: what a segment holds, so that an index can be built without reading the values.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use fonn_codec::{CodecSpec, Frame, checksum};

use crate::checkpoint::{SegmentFacts, SegmentState};
use crate::format::{Fields, FormatError, check};
use crate::names::KeyHash;
use crate::segment::Version;
use crate::segment::record::{RECORD_HEAD_LEN, Record};
use crate::segment::trailer::{TRAILER_LEN, Trailer};
use crate::segment::{HEADER_LEN, SegmentHeader};

/// How much to read from the end of a segment at first: the footer of a few hundred entries.
pub const TAIL_LEN_GUESS: u64 = 64 * 1024;

/// Longest footer, decoded, in bytes: that of about 300,000 entries. A segment of 64 MiB reaches it
/// only with records shorter than 220 bytes.
pub const FOOTER_LEN_MAX: usize = 16 << 20;

/// Bytes of an entry before its key.
pub(super) const ENTRY_HEAD_LEN: usize = 27;

/// Bytes before the flush marks.
const FIXED_LEN: usize = HEADER_LEN + 16;

const MARK_LEN: usize = 24;

/// Bytes of the flush marks at most.
pub(super) const MARKS_LEN_MAX: usize = (FLUSHES_MAX + PURGES_MAX) * MARK_LEN;

/// The most flushes that a footer tells of, as many as nodes keep.
pub(crate) const FLUSHES_MAX: usize = 1 << 16;

/// The most purges that a footer tells of. Nodes keep fewer.
pub(crate) const PURGES_MAX: usize = 4096;

const PART: &str = "footer";

/// The footer takes no more entries.
pub(super) const FULL: FormatError = FormatError::Full {
    part: PART,
    len_max: FOOTER_LEN_MAX,
};

const BIT_TOMBSTONE: u8 = 1;

/// The codec for footers: they are written once and read by every node.
const CODEC: &str = "zstd:3";

/// What a segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The segment's header once more.
    pub header: SegmentHeader,
    /// One for each record, in their order in the segment.
    pub entries: Vec<FooterEntry>,
    /// The flushes and purges that the writer knew of, by [`FlushMark::key`].
    pub flush_marks: Vec<FlushMark>,
    /// Bytes of all records.
    pub data_len: u64,
}

/// A record, as its footer tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FooterEntry {
    /// The keyspace.
    pub space: u32,
    /// The whole key.
    pub key: Box<[u8]>,
    /// The version.
    pub at: Version,
    /// When it expires: Unix time in milliseconds, 0 never.
    pub expires_at_ms: u64,
    /// Where the record begins in the object.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u32,
    /// Whether it is a tombstone.
    pub tombstone: bool,
}

/// A flush: what was written into the space before it does not count. Or a purge: of that, what one
/// identity wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlushMark {
    /// The keyspace. Of a purge the first one of a namespace, or `u32::MAX` for all.
    pub space: u32,
    /// Number of the writer that is purged; 0 of a flush.
    pub writer: u32,
    /// Of a purge: entries with a version below this stay.
    pub since: u64,
    /// Entries with a version below this are gone.
    pub cutoff: u64,
}

/// What tells a mark from others: of two with the same key, the higher cutoff counts.
pub type MarkKey = (u32, u32, u64);

impl FlushMark {
    /// A flush.
    #[must_use]
    pub fn of_space(space: u32, cutoff: u64) -> Self {
        Self {
            space,
            writer: 0,
            since: 0,
            cutoff,
        }
    }

    /// See [`MarkKey`].
    #[must_use]
    pub fn key(&self) -> MarkKey {
        (self.space, self.writer, self.since)
    }

    pub(crate) fn encode_into(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.space.to_le_bytes());
        out.extend_from_slice(&self.writer.to_le_bytes());
        out.extend_from_slice(&self.since.to_le_bytes());
        out.extend_from_slice(&self.cutoff.to_le_bytes());
    }

    pub(crate) fn take(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            space: fields.u32()?,
            writer: fields.u32()?,
            since: fields.u64()?,
            cutoff: fields.u64()?,
        })
    }
}

/// What the last bytes of an object gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The footer.
    Complete(Footer),
    /// The footer is longer.
    NeedMore {
        /// How many of the last bytes are needed.
        suffix_len: u64,
    },
}

impl FooterEntry {
    /// The hash that an index knows its key by.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(self.space, &self.key)
    }

    /// What a footer says of a record at this offset.
    pub(super) fn of(offset: u64, record: &Record<'_>) -> Self {
        Self {
            space: record.space,
            key: record.key.into(),
            at: record.at,
            expires_at_ms: record.expires_at_ms(),
            offset,
            len: record.encoded_len() as u32,
            tombstone: record.is_tombstone(),
        }
    }
}

impl Footer {
    /// The facts of a segment that was just merged into an index and of which everything counts.
    /// `size` is the object's length in bytes.
    #[must_use]
    pub fn facts(&self, size: u64) -> SegmentFacts {
        let tombstones = self.entries.iter().filter(|entry| entry.tombstone).count();
        let puts = || self.entries.iter().filter(|entry| !entry.tombstone);
        let never_as_max = |ms: u64| if ms == 0 { u64::MAX } else { ms };
        SegmentFacts {
            name: self.header.name(),
            size,
            data_len: self.data_len,
            live_bytes: self.data_len,
            entries: self.entries.len() as u32,
            live_entries: self.entries.len() as u32,
            tombstones: tombstones as u32,
            min_version: puts().map(|entry| entry.at).min().unwrap_or(Version::MAX),
            max_version: self
                .entries
                .iter()
                .map(|entry| entry.at)
                .max()
                .unwrap_or_default(),
            expires_max_ms: puts()
                .map(|entry| never_as_max(entry.expires_at_ms))
                .max()
                .unwrap_or(0),
            created_ms: self.header.created_ms,
            last_read_ms: 0,
            state: SegmentState::Live,
        }
    }

    /// The footer's bytes and the trailer's, for a footer that begins behind the records.
    ///
    /// # Errors
    /// [`FormatError::Full`] over [`FOOTER_LEN_MAX`].
    pub(super) fn encode_tail(&self) -> Result<Vec<u8>, FormatError> {
        let payload = self.encode_payload();
        if payload.len() > FOOTER_LEN_MAX {
            return Err(FULL);
        }
        let codec = CODEC.parse().unwrap_or_else(|_| CodecSpec::none());
        let mut tail = Vec::new();
        fonn_codec::encode(codec, 0, &payload, &mut tail).map_err(|_| FULL)?;
        let trailer = Trailer {
            footer_offset: (HEADER_LEN as u64).saturating_add(self.data_len),
            footer_len: tail.len() as u32,
            decoded_len: payload.len() as u32,
            checksum: checksum::crc32c(&tail),
        };
        tail.extend_from_slice(&trailer.encode());
        Ok(tail)
    }

    fn encode_payload(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.header.encode());
        out.extend_from_slice(&self.data_len.to_le_bytes());
        out.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.flush_marks.len() as u32).to_le_bytes());
        for mark in &self.flush_marks {
            mark.encode_into(&mut out);
        }
        for entry in &self.entries {
            out.push(if entry.tombstone { BIT_TOMBSTONE } else { 0 });
            out.extend_from_slice(&entry.space.to_le_bytes());
            out.extend_from_slice(&(entry.key.len() as u16).to_le_bytes());
            out.extend_from_slice(&entry.len.to_le_bytes());
            out.extend_from_slice(&entry.at.to_le_bytes());
            out.extend_from_slice(&entry.expires_at_ms.to_le_bytes());
            out.extend_from_slice(&entry.key);
        }
        out
    }

    fn decode_payload(payload: &[u8], data_len: u64) -> Result<Self, FormatError> {
        let wrong = |field| FormatError::Field { part: PART, field };
        let header = SegmentHeader::decode(payload)?;
        let mut fields = Fields(payload);
        fields.bytes(HEADER_LEN).ok_or(wrong("length"))?;
        if fields.u64() != Some(data_len) {
            return Err(wrong("data length"));
        }
        let entries = fields.u32().ok_or(wrong("length"))? as usize;
        let marks = fields.u32().ok_or(wrong("length"))? as usize;
        // Each takes so many bytes: a claim cannot ask for more memory than was sent.
        let len_min = entries
            .checked_mul(ENTRY_HEAD_LEN)
            .zip(marks.checked_mul(MARK_LEN))
            .and_then(|(entries, marks)| entries.checked_add(marks));
        if len_min.is_none_or(|len_min| len_min > fields.0.len()) {
            return Err(wrong("number of entries"));
        }
        let mut flush_marks: Vec<FlushMark> = Vec::with_capacity(marks);
        for _ in 0..marks {
            flush_marks.push(FlushMark::take(&mut fields).ok_or(wrong("flush mark"))?);
        }
        if !flush_marks.is_sorted_by(|a, b| a.key() < b.key()) {
            return Err(wrong("flush mark"));
        }
        let mut offset = HEADER_LEN as u64;
        let mut list = Vec::with_capacity(entries);
        for _ in 0..entries {
            let entry = decode_entry(&mut fields, offset).ok_or(wrong("entry"))?;
            offset = offset.saturating_add(u64::from(entry.len));
            list.push(entry);
        }
        let end = (HEADER_LEN as u64).checked_add(data_len);
        if Some(offset) != end || !fields.0.is_empty() {
            return Err(wrong("length"));
        }
        Ok(Self {
            header,
            entries: list,
            flush_marks,
            data_len,
        })
    }
}

fn decode_entry(fields: &mut Fields<'_>, offset: u64) -> Option<FooterEntry> {
    let bits = fields.u8()?;
    let space = fields.u32()?;
    let key_len = usize::from(fields.u16()?);
    let len = fields.u32()?;
    let at = fields.u64()?;
    let expires_at_ms = fields.u64()?;
    let tombstone = bits == BIT_TOMBSTONE;
    let bare_len = RECORD_HEAD_LEN.checked_add(key_len)?;
    let is_plausible = if tombstone {
        len as usize == bare_len && expires_at_ms == 0
    } else {
        bits == 0 && len as usize >= bare_len
    };
    is_plausible.then_some(FooterEntry {
        space,
        key: fields.bytes(key_len)?.into(),
        at,
        expires_at_ms,
        offset,
        len,
        tombstone,
    })
}

/// How long the footer of an object of `object_len` bytes is when it is decoded, by `suffix`, its
/// last bytes. Decodes nothing. None if `suffix` does not tell.
#[must_use]
pub fn decoded_len(suffix: &[u8], object_len: u64) -> Option<u64> {
    let trailer = suffix.last_chunk::<TRAILER_LEN>()?;
    let trailer = Trailer::decode(trailer, object_len).ok()?;
    Some(u64::from(trailer.decoded_len))
}

/// Reads the footer from `suffix`, the last bytes of an object of `object_len` bytes. The first try
/// is best made with [`TAIL_LEN_GUESS`].
///
/// # Errors
/// [`FormatError`]: the object is not a segment, is of another format version, or is damaged.
pub fn decode_tail(suffix: &[u8], object_len: u64) -> Result<Tail, FormatError> {
    let len_min = HEADER_LEN.saturating_add(TRAILER_LEN) as u64;
    if object_len < len_min || suffix.len() as u64 > object_len {
        return Err(FormatError::Length {
            part: "segment",
            needed: len_min.max(suffix.len() as u64),
            len: object_len,
        });
    }
    let Some((before, trailer)) = suffix.split_last_chunk::<TRAILER_LEN>() else {
        return Ok(Tail::NeedMore {
            suffix_len: TAIL_LEN_GUESS.min(object_len),
        });
    };
    let trailer = Trailer::decode(trailer, object_len)?;
    let data_len = trailer.footer_offset.saturating_sub(HEADER_LEN as u64);
    // An entry is shorter than its record: a small object cannot claim a large footer.
    let decoded_len_max = data_len.saturating_add((FIXED_LEN + MARKS_LEN_MAX) as u64);
    if u64::from(trailer.decoded_len) > decoded_len_max {
        return Err(FormatError::Field {
            part: "trailer",
            field: "decoded length",
        });
    }
    let start = before.len().checked_sub(trailer.footer_len as usize);
    let Some(stored) = start.and_then(|start| before.get(start..)) else {
        return Ok(Tail::NeedMore {
            suffix_len: trailer.tail_len(),
        });
    };
    check(PART, checksum::crc32c(stored), Some(trailer.checksum))?;
    let failed = |source| FormatError::Frame { part: PART, source };
    let frame = Frame::parse(stored, trailer.decoded_len as usize).map_err(failed)?;
    if frame.original_len() != trailer.decoded_len as usize {
        return Err(FormatError::Field {
            part: "trailer",
            field: "decoded length",
        });
    }
    // The frame's own checksum is within what was just checked.
    let mut payload = Vec::new();
    frame.decode_into(&mut payload).map_err(failed)?;
    Footer::decode_payload(&payload, data_len).map(Tail::Complete)
}
