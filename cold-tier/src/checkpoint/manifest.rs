//! The manifest: what a checkpoint covers, and which parts it has.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use fonn_codec::{CodecSpec, Frame};

use crate::checkpoint::{FORMAT, PartFacts};
use crate::format::{Fields, FormatError, check_version};
use crate::names::{CheckpointName, KeyHash, Region, SegmentName, WriterId, WriterKey};
use crate::segment::{FlushMark, Version};

/// Longest manifest, decoded, in bytes: some 400,000 segments.
pub const MANIFEST_LEN_MAX: usize = 64 << 20;

const PART: &str = "manifest";

const TOO_LONG: FormatError = FormatError::Full {
    part: PART,
    len_max: MANIFEST_LEN_MAX,
};

const MAGIC: [u8; 8] = *b"FONNMAN\n";

/// Bytes before the frame: magic, format.
const HEAD_LEN: usize = 12;

const CODEC: &str = "zstd:3";

/// What an index knows of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Its name.
    pub name: SegmentName,
    /// The object's length in bytes.
    pub size: u64,
    /// Bytes of its records.
    pub data_len: u64,
    /// Bytes of the records that entries of the index lead to, tombstones among them.
    pub live_bytes: u64,
    /// Records in it.
    pub entries: u32,
    /// Entries of the index that lead to it, tombstones among them.
    pub live_entries: u32,
    /// Records in it that are tombstones. It never changes: where it is `entries`, there are no
    /// values in the segment.
    pub tombstones: u32,
    /// The lowest version of a value in it; [`Version::MAX`] where there is none.
    pub min_version: Version,
    /// The highest version in it.
    pub max_version: Version,
    /// When the last of its values expires: Unix time in milliseconds; `u64::MAX`: some never do;
    /// 0: there are none.
    pub expires_max_ms: u64,
    /// When it was made: Unix time in milliseconds.
    pub created_ms: u64,
    /// When something was read from it last: Unix time in milliseconds; 0 never.
    pub last_read_ms: u64,
    /// What is to become of it.
    pub state: SegmentState,
}

/// What is to become of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// It stays.
    Live,
    /// What counted in it was moved; it is deleted when no node's index can lead to it any more.
    Doomed {
        /// Since when: Unix time in milliseconds.
        since_ms: u64,
    },
    /// The bucket does not have it, though no node of this region deleted it.
    Lost {
        /// Since when: Unix time in milliseconds.
        since_ms: u64,
    },
}

/// What a checkpoint covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The checkpoint's name.
    pub name: CheckpointName,
    /// When it was begun: Unix time in milliseconds.
    pub created_ms: u64,
    /// The segments by the numbers that the entries know them by, in their order.
    pub segments: Vec<(u32, SegmentFacts)>,
    /// The number of the next segment to follow, for each writer.
    pub cursors: Vec<(WriterKey, u64)>,
    /// The flushes and purges known, by [`FlushMark::key`].
    pub flush_marks: Vec<FlushMark>,
    /// The parts, in the order of their hashes.
    pub parts: Vec<PartFacts>,
}

impl Manifest {
    /// The object's bytes.
    ///
    /// # Errors
    /// [`FormatError::Full`]; [`FormatError::Field`] if segments, flush marks or parts
    /// are not in order.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        self.check_order()?;
        let mut payload = Vec::new();
        put_writer(&mut payload, &self.name.region, self.name.id);
        payload.extend_from_slice(&self.created_ms.to_le_bytes());
        for count in [
            self.segments.len(),
            self.cursors.len(),
            self.flush_marks.len(),
            self.parts.len(),
        ] {
            let count = u32::try_from(count).map_err(|_| TOO_LONG)?;
            payload.extend_from_slice(&count.to_le_bytes());
        }
        for (id, facts) in &self.segments {
            payload.extend_from_slice(&id.to_le_bytes());
            facts.encode_into(&mut payload);
        }
        for (key, next) in &self.cursors {
            put_writer(&mut payload, &key.region, key.writer);
            payload.extend_from_slice(&next.to_le_bytes());
        }
        for mark in &self.flush_marks {
            mark.encode_into(&mut payload);
        }
        for part in &self.parts {
            payload.extend_from_slice(&part.len.to_le_bytes());
            payload.extend_from_slice(&part.entries.to_le_bytes());
            payload.extend_from_slice(&part.first.0);
            payload.extend_from_slice(&part.last.0);
        }
        if payload.len() > MANIFEST_LEN_MAX {
            return Err(TOO_LONG);
        }
        let mut object = Vec::new();
        object.extend_from_slice(&MAGIC);
        object.extend_from_slice(&FORMAT.to_le_bytes());
        let codec = CODEC.parse().unwrap_or_else(|_| CodecSpec::none());
        fonn_codec::encode(codec, 0, &payload, &mut object).map_err(|_| TOO_LONG)?;
        Ok(object)
    }

    /// Reads a manifest. Allocates at most [`MANIFEST_LEN_MAX`] bytes and what it holds, decoded.
    ///
    /// # Errors
    /// [`FormatError`]: it is of another format version, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let wrong = |field| FormatError::Field { part: PART, field };
        let (head, frame) = bytes
            .split_at_checked(HEAD_LEN)
            .ok_or(FormatError::Length {
                part: PART,
                needed: HEAD_LEN as u64,
                len: bytes.len() as u64,
            })?;
        let mut fields = Fields(head);
        if fields.array() != Some(MAGIC) {
            return Err(FormatError::Magic { part: PART });
        }
        check_version(PART, fields.u32().ok_or(wrong("length"))?, FORMAT)?;
        let failed = |source| FormatError::Frame { part: PART, source };
        let frame = Frame::parse(frame, MANIFEST_LEN_MAX).map_err(failed)?;
        frame.verify().map_err(failed)?;
        let mut payload = Vec::new();
        frame.decode_into(&mut payload).map_err(failed)?;
        let mut fields = Fields(&payload);
        let manifest = Self::decode_payload(&mut fields).ok_or(wrong("field"))?;
        if !fields.0.is_empty() {
            return Err(wrong("length"));
        }
        manifest.check_order()?;
        Ok(manifest)
    }

    fn decode_payload(fields: &mut Fields<'_>) -> Option<Self> {
        let WriterKey { region, writer: id } = take_writer(fields)?;
        let created_ms = fields.u64()?;
        let counts = [fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?];
        let [segments, cursors, marks, parts] = counts;
        // Vectors grow with what is there, not with what a count claims.
        let mut manifest = Self {
            name: CheckpointName { region, id },
            created_ms,
            segments: Vec::new(),
            cursors: Vec::new(),
            flush_marks: Vec::new(),
            parts: Vec::new(),
        };
        for _ in 0..segments {
            let id = fields.u32()?;
            manifest.segments.push((id, SegmentFacts::take(fields)?));
        }
        for _ in 0..cursors {
            let key = take_writer(fields)?;
            manifest.cursors.push((key, fields.u64()?));
        }
        for _ in 0..marks {
            manifest.flush_marks.push(FlushMark::take(fields)?);
        }
        for _ in 0..parts {
            manifest.parts.push(PartFacts {
                len: fields.u64()?,
                entries: fields.u32()?,
                first: KeyHash(fields.array()?),
                last: KeyHash(fields.array()?),
            });
        }
        Some(manifest)
    }

    fn check_order(&self) -> Result<(), FormatError> {
        let wrong = |field| FormatError::Field { part: PART, field };
        if !self.segments.is_sorted_by(|(a, _), (b, _)| a < b) {
            return Err(wrong("order of segments"));
        }
        if !self.flush_marks.is_sorted_by(|a, b| a.key() < b.key()) {
            return Err(wrong("order of flush marks"));
        }
        let is_range = |part: &PartFacts| part.first <= part.last;
        if !self.parts.iter().all(is_range) || !self.parts.is_sorted_by(|a, b| a.last < b.first) {
            return Err(wrong("order of parts"));
        }
        Ok(())
    }
}

impl SegmentFacts {
    /// Appends the facts to `out`, as they are in a manifest; an index may store them alike.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        put_writer(out, &self.name.region, self.name.writer);
        out.extend_from_slice(&self.name.seq.to_le_bytes());
        for bytes in [self.size, self.data_len, self.live_bytes] {
            out.extend_from_slice(&bytes.to_le_bytes());
        }
        for count in [self.entries, self.live_entries, self.tombstones] {
            out.extend_from_slice(&count.to_le_bytes());
        }
        for at in [self.min_version, self.max_version] {
            out.extend_from_slice(&at.to_le_bytes());
        }
        for ms in [self.expires_max_ms, self.created_ms, self.last_read_ms] {
            out.extend_from_slice(&ms.to_le_bytes());
        }
        let (state, since_ms) = match self.state {
            SegmentState::Live => (0, 0),
            SegmentState::Doomed { since_ms } => (1, since_ms),
            SegmentState::Lost { since_ms } => (2, since_ms),
        };
        out.push(state);
        out.extend_from_slice(&u64::to_le_bytes(since_ms));
    }

    /// Reads what [`encode_into`](Self::encode_into) wrote.
    ///
    /// # Errors
    /// [`FormatError::Field`]: the bytes are not that, or not all of it.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut fields = Fields(bytes);
        Self::take(&mut fields)
            .filter(|_| fields.0.is_empty())
            .ok_or(FormatError::Field {
                part: "facts of a segment",
                field: "field",
            })
    }

    fn take(fields: &mut Fields<'_>) -> Option<Self> {
        let WriterKey { region, writer } = take_writer(fields)?;
        Some(Self {
            name: SegmentName {
                region,
                writer,
                seq: fields.u64()?,
            },
            size: fields.u64()?,
            data_len: fields.u64()?,
            live_bytes: fields.u64()?,
            entries: fields.u32()?,
            live_entries: fields.u32()?,
            tombstones: fields.u32()?,
            min_version: fields.u64()?,
            max_version: fields.u64()?,
            expires_max_ms: fields.u64()?,
            created_ms: fields.u64()?,
            last_read_ms: fields.u64()?,
            state: match (fields.u8()?, fields.u64()?) {
                (0, 0) => SegmentState::Live,
                (1, since_ms) => SegmentState::Doomed { since_ms },
                (2, since_ms) => SegmentState::Lost { since_ms },
                _ => return None,
            },
        })
    }
}

fn put_writer(out: &mut Vec<u8>, region: &Region, writer: WriterId) {
    out.push(region.as_str().len() as u8);
    out.extend_from_slice(region.as_str().as_bytes());
    out.extend_from_slice(writer.as_bytes());
}

fn take_writer(fields: &mut Fields<'_>) -> Option<WriterKey> {
    let len = usize::from(fields.u8()?);
    let region = std::str::from_utf8(fields.bytes(len)?).ok()?;
    let writer = std::str::from_utf8(fields.bytes(WriterId::LEN)?).ok()?;
    Some(WriterKey {
        region: region.parse().ok()?,
        writer: writer.parse().ok()?,
    })
}
