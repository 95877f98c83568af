//! A part of a checkpoint: entries in the order of their hashes.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use fonn_codec::{CodecSpec, Frame, frame};

use crate::checkpoint::{ENTRY_LEN, IndexEntry};
use crate::format::FormatError;
use crate::names::KeyHash;

/// Longest part in bytes.
pub const PART_LEN_MAX: usize = 32 << 20;

const PART: &str = "checkpoint part";

/// Hash and value.
pub(crate) const ROW_LEN: usize = 16 + ENTRY_LEN;

/// So many fit into a part even if nothing compresses.
const ENTRIES_MAX: usize = (PART_LEN_MAX - frame::HEADER_LEN) / ROW_LEN;

/// Hashes are random and the rest is numbers: a higher level gains little.
const CODEC: &str = "zstd:1";

/// What a manifest says of a part. The part itself is a frame, which has the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartFacts {
    /// The object's length in bytes.
    pub len: u64,
    /// How many entries it has; at least 1.
    pub entries: u32,
    /// The lowest hash.
    pub first: KeyHash,
    /// The highest hash.
    pub last: KeyHash,
}

/// A part that takes entries.
#[derive(Debug, Default)]
pub struct PartBuilder {
    rows: Vec<u8>,
    ends: Option<(KeyHash, KeyHash)>,
}

impl PartBuilder {
    /// Begins a part.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// [`FormatError::Order`] if its hash is not higher than the last one,
    /// [`FormatError::Full`] if it does not fit; the part is as it was then.
    pub fn push(&mut self, entry: &IndexEntry) -> Result<(), FormatError> {
        if self.entries() >= ENTRIES_MAX {
            return Err(FormatError::Full {
                part: PART,
                len_max: PART_LEN_MAX,
            });
        }
        let first = match self.ends {
            Some((_, last)) if last >= entry.hash => return Err(FormatError::Order),
            Some((first, _)) => first,
            None => entry.hash,
        };
        self.ends = Some((first, entry.hash));
        self.rows.extend_from_slice(&entry.hash.0);
        self.rows.extend_from_slice(&entry.encode());
        Ok(())
    }

    /// How many entries it has.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.rows.len() / ROW_LEN
    }

    /// The object's bytes, and what the manifest says of them. None without entries: such a part is
    /// not written.
    #[must_use]
    pub fn finish(self) -> Option<(Vec<u8>, PartFacts)> {
        let (first, last) = self.ends?;
        let entries = self.entries() as u32;
        let mut object = Vec::new();
        let codec = CODEC.parse().unwrap_or_else(|_| CodecSpec::none());
        fonn_codec::encode(codec, 0, &self.rows, &mut object)
            .expect("a part is shorter than a frame may be");
        let facts = PartFacts {
            len: object.len() as u64,
            entries,
            first,
            last,
        };
        Some((object, facts))
    }
}

/// Checks the bytes of a part against what its manifest says, and gives its entries in the order of
/// their hashes. Allocates the entries' bytes, at most [`PART_LEN_MAX`].
///
/// # Errors
/// [`FormatError`]: it is another part, or damaged.
pub fn decode_part(bytes: &[u8], facts: &PartFacts) -> Result<PartEntries, FormatError> {
    let wrong = |field| FormatError::Field { part: PART, field };
    if bytes.len() as u64 != facts.len || bytes.len() > PART_LEN_MAX {
        return Err(FormatError::Length {
            part: PART,
            needed: facts.len,
            len: bytes.len() as u64,
        });
    }
    let entries = facts.entries as usize;
    if entries == 0 || entries > ENTRIES_MAX {
        return Err(wrong("number of entries"));
    }
    let rows_len = entries.saturating_mul(ROW_LEN);
    let failed = |source| FormatError::Frame { part: PART, source };
    let frame = Frame::parse(bytes, rows_len).map_err(failed)?;
    frame.verify().map_err(failed)?;
    if frame.original_len() != rows_len {
        return Err(wrong("number of entries"));
    }
    let mut rows = Vec::new();
    frame.decode_into(&mut rows).map_err(failed)?;
    check_rows(&rows, facts)?;
    Ok(PartEntries { rows, at: 0 })
}

fn check_rows(rows: &[u8], facts: &PartFacts) -> Result<(), FormatError> {
    let wrong = |field| FormatError::Field { part: PART, field };
    let mut ends: Option<(KeyHash, KeyHash)> = None;
    for row in rows.chunks_exact(ROW_LEN) {
        let entry = decode_row(row)?;
        ends = match ends {
            None => Some((entry.hash, entry.hash)),
            Some((first, last)) if last < entry.hash => Some((first, entry.hash)),
            Some(_) => return Err(wrong("order of entries")),
        };
    }
    if ends == Some((facts.first, facts.last)) {
        Ok(())
    } else {
        Err(wrong("first or last entry"))
    }
}

fn decode_row(row: &[u8]) -> Result<IndexEntry, FormatError> {
    let (hash, value) = row.split_first_chunk::<16>().ok_or(FormatError::Field {
        part: PART,
        field: "length",
    })?;
    IndexEntry::decode(KeyHash(*hash), value)
}

/// The entries of a part that was checked.
#[derive(Debug)]
pub struct PartEntries {
    rows: Vec<u8>,
    at: usize,
}

impl Iterator for PartEntries {
    type Item = IndexEntry;

    fn next(&mut self) -> Option<IndexEntry> {
        let end = self.at.checked_add(ROW_LEN)?;
        // Every row was decoded once already.
        let entry = decode_row(self.rows.get(self.at..end)?).ok()?;
        self.at = end;
        Some(entry)
    }
}
