//! What an entry has of a long value. Integers are little endian.
//!
//! | offset | size | meaning |
//! |---|---|---|
//! | 0 | 8 | `fonnlng1` |
//! | 8 | 4 | length h of the head |
//! | 12 | h | the head: what stands before the body in a value of Turborepo |
//! | 12 + h + 36 n | 32 | SHA-256 of chunk n |
//! | 44 + h + 36 n | 4 | its length in bytes, 1 to 4 MiB |

use std::ops::Range;

use bytes::Bytes;

use super::{CHUNK_LEN_MAX, LONG_LEN_MAX};

const MARK: &[u8; 8] = b"fonnlng1";

const ROW_LEN: usize = 36;

/// Chunks of a value at most. A value of 10 GiB has 10,000 on average.
pub(crate) const CHUNKS_MAX: usize = 100_000;

/// A chunk of a long value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Its SHA-256.
    pub(crate) digest: [u8; 32],
    /// Its length in bytes.
    pub(crate) len: u32,
}

/// A chunk, and which bytes of the value it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) chunk: Chunk,
    /// Offset of its first byte in the value.
    pub(crate) offset: u64,
}

/// The chunks of a long value, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    head: Bytes,
    chunks: Vec<Chunk>,
    len: u64,
}

impl Part {
    /// The bytes of the chunk that are in this range of the value; `None` if there are none.
    pub(crate) fn slice(&self, wanted: &Range<u64>) -> Option<Range<usize>> {
        let end = self.offset + u64::from(self.chunk.len);
        let (from, to) = (wanted.start.max(self.offset), wanted.end.min(end));
        let within = |at: u64| (at - self.offset) as usize;
        (from < to).then(|| within(from)..within(to))
    }
}

impl Manifest {
    /// A value without chunks yet.
    pub(crate) fn new(head: Bytes) -> Self {
        Self {
            head,
            ..Self::default()
        }
    }

    /// What stands before the body in the value.
    pub(crate) fn head(&self) -> &Bytes {
        &self.head
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Length of the value in bytes, without its head.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Adds a chunk to the end. False if the value would be too long, or the chunk has no valid
    /// length.
    #[must_use]
    pub(crate) fn push(&mut self, chunk: Chunk) -> bool {
        let len = self.len + u64::from(chunk.len);
        let is_valid = (1..=CHUNK_LEN_MAX).contains(&(chunk.len as usize));
        if !is_valid || len > LONG_LEN_MAX || self.chunks.len() == CHUNKS_MAX {
            return false;
        }
        self.chunks.push(chunk);
        self.len = len;
        true
    }

    /// The chunks that have bytes of this range.
    pub(crate) fn parts(&self, wanted: Range<u64>) -> impl Iterator<Item = Part> + Send {
        let mut end = 0;
        let parts = self.chunks.iter().map(move |chunk| {
            let offset = end;
            end += u64::from(chunk.len);
            Part {
                chunk: *chunk,
                offset,
            }
        });
        parts.filter(move |part| part.slice(&wanted).is_some())
    }

    /// As [`Manifest::parts`], of a manifest that is needed for nothing else.
    pub(crate) fn into_parts(self, wanted: Range<u64>) -> impl Iterator<Item = Part> + Send {
        let mut offset = 0;
        let parts = self.chunks.into_iter().map(move |chunk| {
            let part = Part { chunk, offset };
            offset += u64::from(chunk.len);
            part
        });
        parts.filter(move |part| part.slice(&wanted).is_some())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let rows_len = self.chunks.len() * ROW_LEN;
        let mut bytes = Vec::with_capacity(MARK.len() + 4 + self.head.len() + rows_len);
        bytes.extend_from_slice(MARK);
        bytes.extend_from_slice(&(self.head.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.head);
        for chunk in &self.chunks {
            bytes.extend_from_slice(&chunk.digest);
            bytes.extend_from_slice(&chunk.len.to_le_bytes());
        }
        bytes
    }

    /// `None` if the bytes are no manifest.
    pub(crate) fn parse(bytes: &Bytes) -> Option<Self> {
        let rest = bytes.strip_prefix(MARK.as_slice())?;
        let (head_len, rest) = rest.split_first_chunk()?;
        let head_len = u32::from_le_bytes(*head_len) as usize;
        let (head, rows) = rest.split_at_checked(head_len)?;
        let mut manifest = Self::new(bytes.slice_ref(head));
        if !rows.len().is_multiple_of(ROW_LEN) {
            return None;
        }
        for row in rows.chunks_exact(ROW_LEN) {
            let (digest, len) = row.split_first_chunk()?;
            let chunk = Chunk {
                digest: *digest,
                len: u32::from_le_bytes(*len.first_chunk()?),
            };
            if !manifest.push(chunk) {
                return None;
            }
        }
        Some(manifest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunk(len: u32) -> Chunk {
        Chunk {
            digest: [len as u8; 32],
            len,
        }
    }

    fn manifest(lens: &[u32]) -> Manifest {
        let mut manifest = Manifest::default();
        assert!(lens.iter().all(|len| manifest.push(chunk(*len))));
        manifest
    }

    #[test]
    fn a_range_has_a_slice_of_each_chunk_that_it_meets() {
        let part = Part {
            chunk: chunk(5),
            offset: 10,
        };
        for (wanted, slice) in [
            (0..10, None),
            (0..11, Some(0..1)),
            (11..13, Some(1..3)),
            (14..99, Some(4..5)),
            (15..99, None),
            (0..99, Some(0..5)),
        ] {
            assert_eq!(part.slice(&wanted), slice, "{wanted:?}");
        }
        let manifest = manifest(&[3, 2, 4]);
        let offsets = |wanted| {
            let parts = manifest.parts(wanted);
            parts.map(|it| it.offset).collect::<Vec<_>>()
        };
        assert_eq!(offsets(0..9), [0, 3, 5]);
        assert_eq!(offsets(3..5), [3]);
        assert_eq!(offsets(4..6), [3, 5]);
    }

    #[test]
    fn values_beyond_the_limits_have_no_manifest() {
        let longest = CHUNK_LEN_MAX as u32;
        let mut manifest = manifest(&[longest; 2560]);
        assert_eq!(manifest.len(), LONG_LEN_MAX);
        assert!(!manifest.push(chunk(1)));
        let mut many = Manifest::default();
        assert!(!many.push(chunk(0)) && !many.push(chunk(longest + 1)));
        assert!((0..CHUNKS_MAX).all(|_| many.push(chunk(1))));
        assert!(!many.push(chunk(1)));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_parsed(head: Vec<u8>, lens in prop::collection::vec(1u32..5000, 0..40)) {
            let mut made = Manifest::new(head.into());
            for len in lens {
                prop_assert!(made.push(chunk(len)));
            }
            prop_assert_eq!(Manifest::parse(&made.encode().into()), Some(made.clone()));
            let mut end = 0;
            for part in made.parts(0..made.len()) {
                prop_assert_eq!(part.offset, end);
                end += u64::from(part.chunk.len);
            }
            prop_assert_eq!(end, made.len());
            let parts: Vec<_> = made.parts(0..end / 2).collect();
            let owned: Vec<_> = made.into_parts(0..end / 2).collect();
            prop_assert_eq!(parts, owned);
        }

        #[test]
        fn any_bytes_are_a_manifest_or_none(bytes: Vec<u8>) {
            let _ = Manifest::parse(&[MARK.as_slice(), &bytes].concat().into());
            let _ = Manifest::parse(&bytes.into());
        }
    }
}
