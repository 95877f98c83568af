//! From a frame to its value while the frame is still coming, as from a network.
//!
//! What it takes in memory is the value and at most one stored block: the rest of the frame is gone
//! when it was decoded. Input is hostile until [`FrameStream::finish`] has compared the checksum,
//! which covers the whole frame: nothing of the value is given out before.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::mem;

use super::decode::{BlockIndex, block_len_of};
use crate::checksum;
use crate::frame::{Encoding, FrameError, HEADER_LEN, Header};
use crate::registry::{Operations, Support};

/// A frame of which a part is there.
#[derive(Debug)]
pub struct FrameStream {
    /// Bytes of the payload.
    payload_len: usize,
    /// How many of them are to come.
    left: usize,
    /// The one in the header.
    stored_checksum: u32,
    /// That of what has come.
    checksum: u32,
    body: Body,
    value_len: usize,
    value: Vec<u8>,
}

#[derive(Debug)]
enum Body {
    Verbatim,
    Compressed(Blocks),
    /// This build cannot decode it, but can tell whether it is in order.
    Foreign(FrameError),
}

/// Blocks that come one after the other, behind their index. A value of one piece is one block
/// without.
#[derive(Debug)]
struct Blocks {
    codec: &'static str,
    operations: Operations,
    original_len: usize,
    stored_len: usize,
    index_len: usize,
    index: Vec<u8>,
    /// The block that comes next.
    block: usize,
    /// What has come of it, if not all.
    carry: Vec<u8>,
}

impl FrameStream {
    /// Begins with the frame's first bytes, [`HEADER_LEN`] of them or more, of which only the
    /// header is looked at. `frame_len` is how many bytes the frame has together, as its reader
    /// knows them.
    ///
    /// A codec that is unknown or left out is no error yet: it is unknown by now whether the bytes
    /// are in order.
    ///
    /// # Errors
    /// [`FrameError`] as of [`Frame::parse`](crate::Frame::parse).
    pub fn begin(head: &[u8], frame_len: usize, limit: usize) -> Result<Self, FrameError> {
        let (start, _) = head
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(FrameError::Truncated { len: head.len() })?;
        let payload_len = frame_len
            .checked_sub(HEADER_LEN)
            .ok_or(FrameError::Truncated { len: frame_len })?;
        let [checked @ .., c0, c1, c2, c3] = start;
        let (body, value_len) = match Header::parse(start, limit) {
            Ok(header) if header.stored_len() != payload_len => {
                return Err(FrameError::Length {
                    expected: header.frame_len(),
                    found: frame_len,
                });
            }
            Ok(header) => (Body::of(&header)?, header.original_len()),
            Err(foreign @ (FrameError::UnknownCodec { .. } | FrameError::AbsentCodec { .. })) => {
                (Body::Foreign(foreign), 0)
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            payload_len,
            left: payload_len,
            stored_checksum: u32::from_le_bytes([*c0, *c1, *c2, *c3]),
            checksum: checksum::crc32c(checked),
            body,
            value_len,
            // Its pages are taken as it grows.
            value: Vec::with_capacity(value_len),
        })
    }

    /// Bytes of the value; 0 if this build cannot decode it.
    #[must_use]
    pub fn value_len(&self) -> usize {
        self.value_len
    }

    /// Takes the next bytes of the payload, and decodes the blocks that are complete with them.
    ///
    /// # Errors
    /// [`FrameError`]: they cannot be what was written. The stream is of no use then.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), FrameError> {
        self.left = self
            .left
            .checked_sub(piece.len())
            .ok_or(FrameError::Length {
                expected: self.payload_len,
                found: self.payload_len.saturating_add(piece.len()),
            })?;
        self.checksum = checksum::crc32c_append(self.checksum, piece);
        match &mut self.body {
            Body::Verbatim => {
                self.value.extend_from_slice(piece);
                Ok(())
            }
            Body::Compressed(blocks) => blocks.feed(piece, &mut self.value),
            Body::Foreign(_) => Ok(()),
        }
    }

    /// The value, once all of the payload was fed.
    ///
    /// # Errors
    /// [`FrameError`]: it is not all there, or not what was written; of the kind
    /// [`Unsupported`](crate::frame::ErrorKind::Unsupported) only if it is, and of a codec that
    /// this build does not have.
    pub fn finish(self) -> Result<Vec<u8>, FrameError> {
        if self.left > 0 {
            return Err(FrameError::Length {
                expected: self.payload_len,
                found: self.payload_len.saturating_sub(self.left),
            });
        }
        if self.checksum != self.stored_checksum {
            return Err(FrameError::Checksum {
                stored: self.stored_checksum,
                computed: self.checksum,
            });
        }
        match self.body {
            Body::Foreign(reason) => Err(reason),
            Body::Compressed(blocks) if self.value.len() != blocks.original_len => {
                Err(blocks.undecodable())
            }
            Body::Compressed(_) | Body::Verbatim => Ok(self.value),
        }
    }
}

impl Body {
    fn of(header: &Header) -> Result<Self, FrameError> {
        let Encoding::Compressed(spec) = header.encoding() else {
            return Ok(Self::Verbatim);
        };
        let Support::Compiled(operations) = spec.codec().support() else {
            return Err(FrameError::Field { name: "codec" });
        };
        let index_len = header.index_len();
        let stored_len = header
            .stored_len()
            .checked_sub(index_len)
            .ok_or(FrameError::Field {
                name: "stored length",
            })?;
        Ok(Self::Compressed(Blocks {
            codec: spec.codec().name(),
            operations: *operations,
            original_len: header.original_len(),
            stored_len,
            index_len,
            index: Vec::with_capacity(index_len),
            block: 0,
            carry: Vec::new(),
        }))
    }
}

impl Blocks {
    fn undecodable(&self) -> FrameError {
        FrameError::Decode {
            codec: self.codec,
            block: self.block,
        }
    }

    fn feed(&mut self, piece: &[u8], value: &mut Vec<u8>) -> Result<(), FrameError> {
        let missing = self.index_len.saturating_sub(self.index.len());
        let (index, mut rest) = piece.split_at(missing.min(piece.len()));
        if missing > 0 {
            self.index.extend_from_slice(index);
            if self.index.len() < self.index_len {
                return Ok(());
            }
            self.index().check()?;
        }
        while !rest.is_empty() {
            let block = self.block;
            let stored = self.index().range(block);
            let stored_len = stored.ok_or(FrameError::Index { block })?.len();
            let missing = stored_len.saturating_sub(self.carry.len());
            let (front, back) = rest.split_at(missing.min(rest.len()));
            rest = back;
            if front.len() < missing || !self.carry.is_empty() {
                self.carry.extend_from_slice(front);
            }
            if front.len() < missing {
                return Ok(());
            }
            let mut carry = mem::take(&mut self.carry);
            let stored = if carry.is_empty() { front } else { &carry };
            self.decode(stored, value)
                .ok_or_else(|| self.undecodable())?;
            // Its memory is used again.
            carry.clear();
            self.carry = carry;
            self.block = block.saturating_add(1);
        }
        Ok(())
    }

    /// Appends the block at hand to the value.
    fn decode(&self, stored: &[u8], value: &mut Vec<u8>) -> Option<()> {
        let original_len = block_len_of(self.original_len, self.block);
        if stored.len() == original_len {
            value.extend_from_slice(stored);
            return Some(());
        }
        let start = value.len();
        let end = start.checked_add(original_len)?;
        if let Some(append) = self.operations.append {
            append(stored, value)?;
        } else {
            value.resize(end, 0);
            let len = (self.operations.decompress)(stored, value.get_mut(start..)?)?;
            value.truncate(start.checked_add(len)?);
        }
        (value.len() == end).then_some(())
    }

    /// The index, once all of it has come.
    fn index(&self) -> BlockIndex<'_> {
        BlockIndex {
            entries: &self.index,
            stored_len: self.stored_len,
            original_len: self.original_len,
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)] // Of small numbers, known to the tests.
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::{BLOCK_LEN, ErrorKind, is_intact};
    use crate::{CodecSpec, Frame, encode};

    const LIMIT: usize = 1 << 20;

    /// What a reader makes of a frame that is there at once.
    fn at_once(bytes: &[u8]) -> Result<Vec<u8>, ErrorKind> {
        let value = || -> Result<Vec<u8>, FrameError> {
            let frame = Frame::parse(bytes, LIMIT)?;
            frame.verify()?;
            let mut value = Vec::new();
            frame.decode_into(&mut value)?;
            Ok(value)
        };
        value().map_err(|error| match error.kind() {
            ErrorKind::Unsupported if !is_intact(bytes) => ErrorKind::Corrupt,
            kind => kind,
        })
    }

    /// The same of one that comes in pieces of these lengths, in turn.
    fn in_pieces(bytes: &[u8], lens: &[usize]) -> Result<Vec<u8>, ErrorKind> {
        let value = || -> Result<Vec<u8>, FrameError> {
            let mut stream = FrameStream::begin(bytes, bytes.len(), LIMIT)?;
            let mut rest = bytes.get(HEADER_LEN..).unwrap_or_default();
            for len in lens.iter().cycle() {
                let (piece, after) =
                    rest.split_at((*len).clamp(1, rest.len().max(1)).min(rest.len()));
                if piece.is_empty() {
                    break;
                }
                stream.feed(piece)?;
                if let Body::Compressed(blocks) = &stream.body {
                    assert!(blocks.carry.len() <= BLOCK_LEN);
                }
                rest = after;
            }
            stream.finish()
        };
        value().map_err(|error| match error {
            FrameError::Version { .. } => ErrorKind::Corrupt,
            error => error.kind(),
        })
    }

    fn value(len: usize, seed: u64) -> Vec<u8> {
        let line = |n: u64| format!("{n}: {}\n", (n + seed) * 7919 % 10_007);
        let mut text: Vec<u8> = (0..).map(line).take(len / 4 + 1).collect::<String>().into();
        text.truncate(len);
        text
    }

    fn codecs() -> Vec<CodecSpec> {
        let named = ["lz4", "snappy", "zlib", "zstd"];
        let compiled = named.iter().filter_map(|name| name.parse().ok());
        std::iter::once(CodecSpec::none()).chain(compiled).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn any_split_gives_what_the_whole_gives(
            (codec, seed) in (any::<prop::sample::Index>(), 0..1000u64),
            len in prop_oneof![0..2000usize, 100_000..140_000usize, 200_000..600_000usize],
            lens in proptest::collection::vec(prop_oneof![1..40usize, 1..300_000usize], 1..6),
            damage in proptest::option::of((any::<prop::sample::Index>(), 1..=255u8)),
            cut in proptest::option::of(any::<prop::sample::Index>()),
        ) {
            let codecs = codecs();
            let mut bytes = Vec::new();
            encode(codecs[codec.index(codecs.len())], 0, &value(len, seed), &mut bytes).unwrap();
            if let Some((at, bits)) = damage {
                let at = at.index(bytes.len());
                bytes[at] ^= bits;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            prop_assert_eq!(in_pieces(&bytes, &lens), at_once(&bytes));
        }
    }

    #[test]
    fn an_unknown_codec_is_told_once_all_is_there_and_in_order() {
        let mut bytes = vec![0xF1, 0xEE, 0, 0, 200, 0, 0, 0, 100, 0, 0, 0];
        let checksum = checksum::crc32c_append(checksum::crc32c(&bytes), &[7; 100]);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(&[7; 100]);
        assert_eq!(in_pieces(&bytes, &[13]), Err(ErrorKind::Unsupported));
        bytes[40] ^= 1;
        assert_eq!(in_pieces(&bytes, &[13]), Err(ErrorKind::Corrupt));
    }

    #[test]
    fn more_than_was_announced_is_refused() {
        let mut bytes = Vec::new();
        encode(CodecSpec::none(), 0, b"snow", &mut bytes).unwrap();
        let mut stream = FrameStream::begin(&bytes, bytes.len(), LIMIT).unwrap();
        assert_eq!(stream.value_len(), 4);
        stream.feed(b"sno").unwrap();
        assert!(matches!(stream.feed(b"w!"), Err(FrameError::Length { .. })));
        let long = FrameStream::begin(&bytes, bytes.len() + 1, LIMIT);
        assert!(matches!(long, Err(FrameError::Length { .. })));
        let over = FrameStream::begin(&bytes, bytes.len(), 3);
        assert!(matches!(over, Err(FrameError::OverLimit { .. })));
    }
}
