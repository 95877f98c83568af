//! Many entries in one reply.

use crate::peer::entry::Entry;
use crate::peer::{DecodeError, TooLong};

/// Entries and tombstones of some slots, and where to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// The entries, each behind its length in 32 bits.
    pub entries: &'a [u8],
    /// The cursor for the next page; empty after the last one. At most 65,535 bytes.
    pub next: &'a [u8],
}

impl<'a> Page<'a> {
    /// The entries, in order. Ends with the first one that cannot be read.
    pub fn iter(&self) -> impl Iterator<Item = Result<Entry<'a>, DecodeError>> + use<'a> {
        let mut rest = self.entries;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let entry = split(rest).and_then(|(entry, behind)| {
                rest = behind;
                Entry::decode(entry, None)
            });
            if entry.is_err() {
                rest = &[];
            }
            Some(entry)
        })
    }
}

fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
    let (len, rest) = bytes
        .split_first_chunk()
        .ok_or(DecodeError::Truncated("entry"))?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
        .ok_or(DecodeError::Truncated("entry"))
}

/// Gathers the entries of a [`Page`].
#[derive(Debug, Default)]
pub struct PageBuilder {
    entries: Vec<u8>,
}

impl PageBuilder {
    /// An empty page.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// If its key is longer than 65,535 bytes or all of it longer than 4 GiB; it is left out then.
    pub fn push(&mut self, entry: &Entry<'_>) -> Result<(), TooLong> {
        entry.append_to(&mut self.entries)
    }

    /// The page, with the cursor for the next one.
    #[must_use]
    pub fn page<'a>(&'a self, next: &'a [u8]) -> Page<'a> {
        Page {
            entries: &self.entries,
            next,
        }
    }
}
