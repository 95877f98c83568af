//! Making a segment in memory.

use bytes::Bytes;

use crate::format::FormatError;
use crate::segment::footer::{ENTRY_HEAD_LEN, FOOTER_LEN_MAX, FULL, MARKS_LEN_MAX};
use crate::segment::{FlushMark, Footer, FooterEntry, HEADER_LEN, Record, SegmentHeader};

/// Longest piece of a segment's body in bytes.
pub const CHUNK_LEN: usize = 1 << 20;

/// A shared frame below this length is copied: a piece of its own would cost more.
const SHARED_LEN_MIN: usize = 64 << 10;

/// A segment that takes records.
#[derive(Debug, Default)]
pub struct SegmentBuilder {
    chunks: Vec<Bytes>,
    /// The last piece, not yet full.
    open: Vec<u8>,
    entries: Vec<FooterEntry>,
    data_len: u64,
    keys_len: usize,
}

/// A whole segment. Its bytes never change: what failed is sent again under the same name.
#[derive(Clone, Debug)]
pub struct SealedSegment {
    /// The object's bytes, in pieces of at most [`CHUNK_LEN`].
    pub body: Vec<Bytes>,
    /// How many they are.
    pub len: u64,
    /// What is in it.
    pub footer: Footer,
}

impl SegmentBuilder {
    /// Begins a segment.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a record, copying its bytes.
    ///
    /// # Errors
    /// [`FormatError::TooLong`] for a record that fits into no segment, [`FormatError::Full`] for
    /// one that does not fit into this segment; the segment is as it was then.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), FormatError> {
        self.begin(record)?;
        self.append(record.frame());
        Ok(())
    }

    /// Appends a record without copying its frame, if that is long: the segment shares `bytes`, of
    /// which the frame is a part, until it is dropped.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    ///
    /// # Panics
    /// If a long frame is no part of `bytes`.
    pub fn push_shared(&mut self, record: &Record<'_>, bytes: &Bytes) -> Result<(), FormatError> {
        let frame = record.frame();
        if frame.len() < SHARED_LEN_MIN {
            return self.push(record);
        }
        self.begin(record)?;
        self.close_chunk();
        let mut rest = bytes.slice_ref(frame);
        while rest.len() > CHUNK_LEN {
            self.chunks.push(rest.split_to(CHUNK_LEN));
        }
        self.chunks.push(rest);
        Ok(())
    }

    /// Head and key of a record, and its entry.
    fn begin(&mut self, record: &Record<'_>) -> Result<(), FormatError> {
        record.check_lengths()?;
        let footer_len = HEADER_LEN
            + 16
            + MARKS_LEN_MAX
            + (self.entries.len() + 1) * ENTRY_HEAD_LEN
            + self.keys_len
            + record.key.len();
        if footer_len > FOOTER_LEN_MAX {
            return Err(FULL);
        }
        let entry = FooterEntry::of(self.len(), record);
        self.entries.push(entry);
        self.data_len += record.encoded_len() as u64;
        self.keys_len += record.key.len();
        self.append(&record.encode_head());
        self.append(record.key);
        Ok(())
    }

    fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.open.len() == CHUNK_LEN {
                self.close_chunk();
            }
            let room = CHUNK_LEN - self.open.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.open.extend_from_slice(now);
            bytes = later;
        }
    }

    fn close_chunk(&mut self) {
        if !self.open.is_empty() {
            // What the vector holds beyond its length would stay allocated with it.
            let mut chunk = std::mem::take(&mut self.open);
            chunk.shrink_to_fit();
            self.chunks.push(chunk.into());
        }
    }

    /// Bytes of the segment so far, without footer and trailer.
    #[must_use]
    pub fn len(&self) -> u64 {
        HEADER_LEN as u64 + self.data_len
    }

    /// Whether it has no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Closes the segment and names it. `flush_marks` are all flushes that the writer knows of, by
    /// [`FlushMark::key`].
    #[must_use]
    pub fn finish(mut self, header: SegmentHeader, flush_marks: &[FlushMark]) -> SealedSegment {
        let head = Bytes::copy_from_slice(&header.encode());
        let footer = Footer {
            header,
            entries: std::mem::take(&mut self.entries),
            flush_marks: flush_marks.to_vec(),
            data_len: self.data_len,
        };
        let tail = footer
            .encode_tail()
            .expect("every record was checked against the footer's limit");
        let len = self.len() + tail.len() as u64;
        self.append(&tail);
        self.close_chunk();
        SealedSegment {
            body: std::iter::once(head).chain(self.chunks).collect(),
            len,
            footer,
        }
    }
}

impl SealedSegment {
    /// All bytes in one piece, copied.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        match self.body.as_slice() {
            [only] => only.clone(),
            chunks => chunks.concat().into(),
        }
    }
}
