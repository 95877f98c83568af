//! The stored form of one value: a header of 16 bytes, and the bytes, compressed or verbatim.
//!
//! It knows nothing of keys, flags or expiry: the record around it has those. The same layout, with
//! an example, is in `docs/formats/value-frame.md`. Integers are unsigned and little-endian unless
//! said otherwise.
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 1 | format | `0xF` in the upper half, the format version (1) in the lower |
//! | 1 | 1 | codec | id of the codec ([`CodecId`](crate::CodecId)); 0: the payload is verbatim |
//! | 2 | 1 | detail | compressed: the level (signed, 0 if the codec has none); verbatim: why ([`Verbatim`]) |
//! | 3 | 1 | blocks | 0: the payload is one piece; 17: blocks of 2^17 bytes with an index |
//! | 4 | 4 | original length | bytes of the value |
//! | 8 | 4 | stored length | bytes of the payload, which ends the frame |
//! | 12 | 4 | checksum | CRC-32C of the bytes 0 to 11, then of the payload |
//! | 16 | stored length | payload | see below |
//!
//! Payload:
//!
//! - Verbatim (`codec` 0, `blocks` 0, both lengths equal): the value, in one piece.
//! - One piece (`codec` > 0, `blocks` 0, original length at most 128 KiB): the codec's output.
//! - Blocks (`codec` > 0, `blocks` 17, original length over 128 KiB): the value is cut into `n`
//!   blocks of 128 KiB, the last one shorter or equal. Each is compressed alone, so that several
//!   threads can decode them at once, with little memory. First `n` integers of 4 bytes: where each
//!   block's stored bytes end, counted from the end of this index. Then the stored bytes of all
//!   blocks without gaps. A block whose stored length is its original length is verbatim.
//!
//! Invariants: the stored length is at most the original length (a compressed payload is shorter by
//! at least 1/32). Each field has one valid meaning, anything else is refused. The checksum finds
//! every error of up to 32 adjacent bits, so every changed byte.

mod decode;
mod encode;
mod error;
mod header;
mod share;
mod stream;

pub use decode::Frame;
pub use encode::{
    EncodeError, Encoded, compress, encode, encode_verbatim, reason_to_leave, verbatim_header,
};
pub use error::{ErrorKind, FrameError};
pub use header::{Encoding, Header, Verbatim, is_intact};
pub use stream::FrameStream;

/// Bytes of a frame's header. A frame is never longer than this and its value.
pub const HEADER_LEN: usize = 16;

/// Longest value of one piece, and length of a block of a longer one, in bytes.
///
/// It bounds the memory that decoding takes. Larger blocks gain little (btrfs compresses extents of
/// the same size, for the same reasons).
pub const BLOCK_LEN: usize = 1 << BLOCK_LEN_LOG2;

/// What the field `blocks` holds if there are any.
const BLOCK_LEN_LOG2: u8 = 17;

/// A compressed payload must be shorter than the value by this part of it, or each read would pay
/// for next to nothing.
pub(crate) const GAIN_MIN_PART: usize = 32;

/// Bytes of an entry of the block index.
const INDEX_ENTRY_LEN: usize = 4;

#[cfg(test)]
mod tests;
