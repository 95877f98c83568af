//! From a frame to its value.
//!
//! Input is hostile until [`Frame::verify`] has passed, and nothing here relies on that it has.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::ops::Range;

use crate::checksum;
use crate::frame::{BLOCK_LEN, Encoding, FrameError, HEADER_LEN, Header, INDEX_ENTRY_LEN, share};
use crate::registry::{Append, Operations, Support};

/// A frame of which the lengths and fields agree with each other and with the bytes at hand.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    header: Header,
    payload: &'a [u8],
    body: Body<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Body<'a> {
    Verbatim,
    Compressed {
        codec: &'static str,
        operations: Operations,
        blocks: Blocks<'a>,
    },
}

/// The stored blocks of a value. A value of one piece is one block without an index.
#[derive(Clone, Copy, Debug)]
struct Blocks<'a> {
    index: BlockIndex<'a>,
    stored: &'a [u8],
}

/// Where each stored block of a value ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockIndex<'a> {
    /// 4 bytes for each block; none for a value of one piece.
    pub(super) entries: &'a [u8],
    /// Bytes of all stored blocks.
    pub(super) stored_len: usize,
    /// Bytes of the value.
    pub(super) original_len: usize,
}

impl<'a> Frame<'a> {
    /// Reads the frame that `bytes` are, from the first to the last. The checksum is not looked at:
    /// call [`verify`](Self::verify) when the bytes come from where they can have been damaged.
    /// Allocates nothing; cost grows with the number of blocks, not with the bytes.
    ///
    /// # Errors
    /// [`FrameError`]: the bytes are not a frame, not all of one, or of a value of more
    /// than `limit` bytes.
    pub fn parse(bytes: &'a [u8], limit: usize) -> Result<Self, FrameError> {
        let header = Header::parse(bytes, limit)?;
        if bytes.len() != header.frame_len() {
            return Err(FrameError::Length {
                expected: header.frame_len(),
                found: bytes.len(),
            });
        }
        let payload = bytes.get(HEADER_LEN..).unwrap_or_default();
        let body = match header.encoding {
            Encoding::Verbatim(_) => Body::Verbatim,
            Encoding::Compressed(spec) => match spec.codec().support() {
                Support::Compiled(operations) => Body::Compressed {
                    codec: spec.codec().name(),
                    operations: *operations,
                    blocks: Blocks::parse(&header, payload)?,
                },
                Support::Verbatim | Support::Absent => {
                    return Err(FrameError::Field { name: "codec" });
                }
            },
        };
        Ok(Self {
            header,
            payload,
            body,
        })
    }

    /// Compares the checksum with the bytes: one pass over what is stored.
    ///
    /// # Errors
    /// [`FrameError::Checksum`]: the bytes are not those that were written.
    pub fn verify(&self) -> Result<(), FrameError> {
        let stored = self.header.checksum;
        let computed = checksum::crc32c_append(self.header.checksum_start(), self.payload);
        if stored == computed {
            Ok(())
        } else {
            Err(FrameError::Checksum { stored, computed })
        }
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The value's length in bytes.
    #[must_use]
    pub fn original_len(&self) -> usize {
        self.header.original_len()
    }

    /// How the value is stored.
    #[must_use]
    pub fn encoding(&self) -> Encoding {
        self.header.encoding
    }

    /// Where the value is within the frame's bytes, if it is there as it is: a caller that owns
    /// them in shared form can hand out a slice instead of decoding.
    #[must_use]
    pub fn verbatim(&self) -> Option<Range<usize>> {
        match self.body {
            Body::Verbatim => Some(HEADER_LEN..self.header.frame_len()),
            Body::Compressed { .. } => None,
        }
    }

    /// Makes `out` the value. What `out` held before is overwritten and is better not cleared: for
    /// codecs whose library writes to initialized memory only (LZ4, Snappy) what is missing in
    /// length is filled with zeros first. Allocates only if its capacity is short, then exactly
    /// [`original_len`](Self::original_len) bytes.
    ///
    /// # Errors
    /// [`FrameError::Decode`] if the stored bytes are damaged; `out` is empty then.
    pub fn decode_into(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        let len = self.original_len();
        match self.body {
            Body::Verbatim => {
                out.clear();
                out.extend_from_slice(self.payload);
                Ok(())
            }
            Body::Compressed {
                codec,
                operations:
                    Operations {
                        append: Some(append),
                        ..
                    },
                blocks,
            } if out.len() < len => {
                out.clear();
                if out.capacity() < len {
                    *out = Vec::with_capacity(len);
                }
                let block = blocks.append_all(append, out);
                block.map_err(|block| {
                    out.clear();
                    FrameError::Decode { codec, block }
                })
            }
            Body::Compressed { .. } => {
                set_len(out, len);
                self.fill(0, out).inspect_err(|_| out.clear())
            }
        }
    }

    /// Makes `out`, which has [`original_len`](Self::original_len) bytes, the value. For callers
    /// with a buffer that is used again: a vector that grows is filled with zeros first for LZ4 and
    /// Snappy, which costs up to 8 % of LZ4's speed.
    ///
    /// # Errors
    /// [`FrameError::Length`] if `out` has another length, [`FrameError::Decode`] if the stored
    /// bytes are damaged: what `out` holds then is unspecified.
    pub fn decode_to(&self, out: &mut [u8]) -> Result<(), FrameError> {
        if out.len() != self.original_len() {
            return Err(FrameError::Length {
                expected: self.original_len(),
                found: out.len(),
            });
        }
        match self.body {
            Body::Verbatim => {
                out.copy_from_slice(self.payload);
                Ok(())
            }
            Body::Compressed { .. } => self.fill(0, out),
        }
    }

    /// Like [`decode_into`](Self::decode_into), with up to `threads` threads if the value has
    /// several MiB: the caller's and others that end before this returns. `threads` is how many
    /// processors are idle now. Starting one takes some 0.1 ms.
    ///
    /// # Errors
    /// [`FrameError::Decode`] if the stored bytes are damaged; `out` is empty then.
    pub fn decode_shared(&self, threads: usize, out: &mut Vec<u8>) -> Result<(), FrameError> {
        let threads = share::thread_count(threads, self.original_len());
        let (Body::Compressed { codec, .. }, 2..) = (self.body, threads) else {
            return self.decode_into(out);
        };
        set_len(out, self.original_len());
        let parts = out.chunks_mut(share::PART_LEN).enumerate();
        let results = share::share(threads, parts, |(index, part)| {
            self.fill(index.saturating_mul(share::PART_LEN / BLOCK_LEN), part)
        });
        let result = match results {
            Some(results) => results.into_iter().collect(),
            None => Err(FrameError::Decode { codec, block: 0 }),
        };
        if result.is_err() {
            out.clear();
        }
        result
    }

    /// Fills `out` with whole blocks of the value from the block `first` on.
    fn fill(&self, first: usize, out: &mut [u8]) -> Result<(), FrameError> {
        let Body::Compressed {
            codec,
            operations,
            blocks,
        } = self.body
        else {
            return Err(FrameError::Field { name: "codec" });
        };
        for (block, out) in (first..).zip(out.chunks_mut(BLOCK_LEN)) {
            let decoded = blocks.decode(block, operations, out);
            decoded.ok_or(FrameError::Decode { codec, block })?;
        }
        Ok(())
    }
}

/// The bytes of a value that are in one of its blocks.
pub(super) fn block_len_of(original_len: usize, block: usize) -> usize {
    original_len
        .saturating_sub(block.saturating_mul(BLOCK_LEN))
        .min(BLOCK_LEN)
}

impl BlockIndex<'_> {
    /// Whether the blocks follow each other without gaps, and none is longer than what it holds.
    pub(super) fn check(&self) -> Result<(), FrameError> {
        let mut start = 0;
        let count = self.original_len.div_ceil(BLOCK_LEN);
        for block in 0..count {
            let end = self.end(block).ok_or(FrameError::Index { block })?;
            let is_in_order = end > start
                && end <= self.stored_len
                && end.saturating_sub(start) <= block_len_of(self.original_len, block);
            if !is_in_order {
                return Err(FrameError::Index { block });
            }
            start = end;
        }
        if start == self.stored_len {
            Ok(())
        } else {
            Err(FrameError::Index { block: count })
        }
    }

    /// Where a block is among the stored bytes.
    pub(super) fn range(&self, block: usize) -> Option<Range<usize>> {
        let start = match block.checked_sub(1) {
            Some(before) => self.end(before)?,
            None => 0,
        };
        Some(start..self.end(block)?)
    }

    fn end(&self, block: usize) -> Option<usize> {
        if self.entries.is_empty() {
            return (block == 0).then_some(self.stored_len);
        }
        let from = block.checked_mul(INDEX_ENTRY_LEN)?;
        let entry = self.entries.get(from..)?.first_chunk()?;
        usize::try_from(u32::from_le_bytes(*entry)).ok()
    }
}

impl<'a> Blocks<'a> {
    fn parse(header: &Header, payload: &'a [u8]) -> Result<Self, FrameError> {
        let (entries, stored) =
            payload
                .split_at_checked(header.index_len())
                .ok_or(FrameError::Field {
                    name: "stored length",
                })?;
        let index = BlockIndex {
            entries,
            stored_len: stored.len(),
            original_len: header.original_len(),
        };
        index.check()?;
        Ok(Self { index, stored })
    }

    fn stored_of(&self, block: usize) -> Option<&'a [u8]> {
        self.stored.get(self.index.range(block)?)
    }

    /// Appends all blocks to `out`, which is empty and has room for them. Else which of them cannot
    /// be had.
    fn append_all(&self, append: Append, out: &mut Vec<u8>) -> Result<(), usize> {
        for block in 0..self.index.original_len.div_ceil(BLOCK_LEN) {
            self.append(block, append, out).ok_or(block)?;
        }
        Ok(())
    }

    fn append(&self, block: usize, append: Append, out: &mut Vec<u8>) -> Option<()> {
        let stored = self.stored_of(block)?;
        let original_len = block_len_of(self.index.original_len, block);
        if stored.len() == original_len {
            out.extend_from_slice(stored);
            return Some(());
        }
        let start = out.len();
        append(stored, out)?;
        (out.len().checked_sub(start)? == original_len).then_some(())
    }

    /// Fills `out` with the bytes of `block`. None if they cannot be had.
    fn decode(&self, block: usize, operations: Operations, out: &mut [u8]) -> Option<()> {
        let stored = self.stored_of(block)?;
        if out.len() != block_len_of(self.index.original_len, block) {
            return None;
        }
        if stored.len() == out.len() {
            out.copy_from_slice(stored);
            return Some(());
        }
        let len = (operations.decompress)(stored, out)?;
        (len == out.len()).then_some(())
    }
}

/// Makes `out` `len` bytes long, whatever they are.
fn set_len(out: &mut Vec<u8>, len: usize) {
    if out.capacity() < len {
        // Zeroed memory from the allocator is often free, and the old bytes need not move.
        *out = vec![0; len];
    } else {
        out.resize(len, 0);
    }
}
