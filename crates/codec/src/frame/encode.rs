//! From a value to its frame.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::checksum;
use crate::frame::{
    BLOCK_LEN, Encoding, GAIN_MIN_PART, HEADER_LEN, Header, INDEX_ENTRY_LEN, Verbatim, share,
};
use crate::registry::{Operations, Support};
use crate::sniff;
use crate::spec::CodecSpec;
use crate::workspace::with_scratch;

/// A verbatim value is checked and copied in pieces of this length, so that the second pass finds
/// it in the first-level cache.
const COPY_LEN: usize = 16 << 10;

/// What [`encode`] made of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// How the value is stored, and if verbatim, why.
    pub encoding: Encoding,
    /// The value's length in bytes.
    pub original_len: usize,
    /// Bytes appended, header included.
    pub frame_len: usize,
}

/// Why a value cannot be framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Lengths are stored in 32 bits.
    #[error("value of {len} bytes is over the frame format's limit of 4 GiB")]
    TooLong {
        /// The value's length in bytes.
        len: usize,
    },
}

/// Appends the frame of `raw` to `out`.
///
/// `spec` is what to compress with, if `raw` has at least `min_bytes` bytes, is not recognized as
/// incompressible, and shrinks. At most [`HEADER_LEN`] more than `raw.len()` bytes are appended.
/// Allocates only where `out` must grow. Cost: one pass for the codec, one over what is stored for
/// the checksum.
///
/// # Errors
/// [`EncodeError`]; `out` is as it was then.
pub fn encode(
    spec: CodecSpec,
    min_bytes: usize,
    raw: &[u8],
    out: &mut Vec<u8>,
) -> Result<Encoded, EncodeError> {
    let reason = match reason_to_leave(spec, min_bytes, raw) {
        Some(reason) => reason,
        None => match compress(spec, raw, 1, out) {
            Ok(encoded) => return Ok(encoded),
            Err(reason) => reason,
        },
    };
    encode_verbatim(reason, raw, out)
}

/// Why `raw` is better left as it is without an attempt, as [`encode`] decides it: from its length,
/// its first bytes, and a look at a sample of it.
#[must_use]
pub fn reason_to_leave(spec: CodecSpec, min_bytes: usize, raw: &[u8]) -> Option<Verbatim> {
    match sniff::before_a_look(spec, min_bytes, raw) {
        None if sniff::looks_random(raw) => Some(Verbatim::LooksRandom),
        reason => reason,
    }
}

/// Appends the frame of `raw` to `out` if `spec` makes it shorter by at least 1/32. The attempt
/// alone: for callers that have asked [`reason_to_leave`] or [`Runs`](crate::sniff::Runs), and may
/// have another place for what stays as it is than a copy.
///
/// The bytes are the same with up to `threads` threads, if `raw` has several MiB: the caller's and
/// others that end before this returns. `threads` is how many processors are idle now. Takes up to
/// 4 MiB of memory for each thread besides, and the time of starting threads (some 0.1 ms).
///
/// # Errors
/// Why the value is to rest verbatim; `out` is as it was then. (A value that is too long for a
/// frame is among these.)
pub fn compress(
    spec: CodecSpec,
    raw: &[u8],
    threads: usize,
    out: &mut Vec<u8>,
) -> Result<Encoded, Verbatim> {
    let Support::Compiled(operations) = spec.codec().support() else {
        return Err(Verbatim::NoCodec);
    };
    let original_len = u32::try_from(raw.len()).map_err(|_| Verbatim::DidNotShrink)?;
    let threads = share::thread_count(threads, raw.len());
    let header = append_compressed(spec, *operations, raw, original_len, threads, out);
    let header = header.ok_or(Verbatim::DidNotShrink)?;
    Ok(Encoded {
        encoding: header.encoding,
        original_len: raw.len(),
        frame_len: header.frame_len(),
    })
}

/// Appends the verbatim frame of `raw` to `out`.
///
/// # Errors
/// [`EncodeError`]; `out` is as it was then.
pub fn encode_verbatim(
    reason: Verbatim,
    raw: &[u8],
    out: &mut Vec<u8>,
) -> Result<Encoded, EncodeError> {
    let mut header = Header::verbatim(reason, raw)?;
    let start = out.len();
    out.reserve(header.frame_len());
    out.extend_from_slice(&[0; HEADER_LEN]);
    for piece in raw.chunks(COPY_LEN) {
        header.checksum = checksum::crc32c_append(header.checksum, piece);
        out.extend_from_slice(piece);
    }
    fill_in(out, start, &header.to_bytes());
    Ok(Encoded {
        encoding: header.encoding,
        original_len: raw.len(),
        frame_len: header.frame_len(),
    })
}

/// The header of the verbatim frame of `raw`: for callers that write `raw` from where it is.
///
/// # Errors
/// [`EncodeError`].
pub fn verbatim_header(reason: Verbatim, raw: &[u8]) -> Result<[u8; HEADER_LEN], EncodeError> {
    let mut header = Header::verbatim(reason, raw)?;
    header.checksum = checksum::crc32c_append(header.checksum, raw);
    Ok(header.to_bytes())
}

impl Header {
    /// The header of a verbatim frame, with the checksum of the header alone.
    fn verbatim(reason: Verbatim, raw: &[u8]) -> Result<Self, EncodeError> {
        let len = u32::try_from(raw.len()).map_err(|_| EncodeError::TooLong { len: raw.len() })?;
        let mut header = Self {
            encoding: Encoding::Verbatim(reason),
            original_len: len,
            stored_len: len,
            checksum: 0,
        };
        header.checksum = header.checksum_start();
        Ok(header)
    }
}

/// None if the codec did not make it smaller; `out` is as it was then.
fn append_compressed(
    spec: CodecSpec,
    operations: Operations,
    raw: &[u8],
    original_len: u32,
    threads: usize,
    out: &mut Vec<u8>,
) -> Option<Header> {
    let start = out.len();
    let payload_start = start.saturating_add(HEADER_LEN);
    let len_max = raw.len().saturating_sub(raw.len().div_ceil(GAIN_MIN_PART));
    out.extend_from_slice(&[0; HEADER_LEN]);
    let did_shrink = if raw.len() <= BLOCK_LEN {
        append_block(spec, operations, raw, len_max, out)
    } else if threads > 1 {
        append_parts(spec, operations, raw, len_max, threads, out)
    } else {
        append_blocks(spec, operations, raw, len_max, out)
    };
    let payload = out.get(payload_start..).unwrap_or_default();
    if !did_shrink {
        out.truncate(start);
        return None;
    }
    let mut header = Header {
        encoding: Encoding::Compressed(spec),
        original_len,
        stored_len: u32::try_from(payload.len()).ok()?,
        checksum: 0,
    };
    header.checksum = checksum::crc32c_append(header.checksum_start(), payload);
    fill_in(out, start, &header.to_bytes());
    Some(header)
}

/// Appends one block's compressed bytes, or nothing if they are more than `len_max`.
fn append_block(
    spec: CodecSpec,
    operations: Operations,
    block: &[u8],
    len_max: usize,
    out: &mut Vec<u8>,
) -> bool {
    with_scratch((operations.bound)(block.len()), |scratch| {
        let len = (operations.compress)(spec.stored_level(), block, scratch);
        match len.and_then(|len| scratch.get(..len)) {
            Some(stored) if !stored.is_empty() && stored.len() <= len_max => {
                out.extend_from_slice(stored);
                true
            }
            _ => false,
        }
    })
}

/// Appends the index and all blocks. False as soon as it is plain that they are more than
/// `len_max`.
fn append_blocks(
    spec: CodecSpec,
    operations: Operations,
    raw: &[u8],
    len_max: usize,
    out: &mut Vec<u8>,
) -> bool {
    let index_start = out.len();
    let blocks_start = index_start.saturating_add(index_len(raw.len()));
    out.resize(blocks_start, 0);
    for (block, entry_start) in raw
        .chunks(BLOCK_LEN)
        .zip((index_start..blocks_start).step_by(INDEX_ENTRY_LEN))
    {
        // One shorter, because a stored block of the original length is verbatim.
        let block_len_max = block.len().saturating_sub(1);
        if sniff::looks_random(block) || !append_block(spec, operations, block, block_len_max, out)
        {
            out.extend_from_slice(block);
        }
        if out.len().saturating_sub(index_start) > len_max {
            return false;
        }
        let Ok(end) = u32::try_from(out.len().saturating_sub(blocks_start)) else {
            return false;
        };
        fill_in(out, entry_start, &end.to_le_bytes());
    }
    true
}

/// Like [`append_blocks`], with several threads. Each makes index and blocks of a part of the value
/// at a time; here they are put together, a few parts at a time, so that little waits for it.
fn append_parts(
    spec: CodecSpec,
    operations: Operations,
    raw: &[u8],
    len_max: usize,
    threads: usize,
    out: &mut Vec<u8>,
) -> bool {
    let index_start = out.len();
    let blocks_start = index_start.saturating_add(index_len(raw.len()));
    out.resize(blocks_start, 0);
    let mut entry_starts = (index_start..blocks_start).step_by(INDEX_ENTRY_LEN);
    for window in raw.chunks(share::window_len(threads)) {
        let parts = share::share(threads, window.chunks(share::PART_LEN), |part| {
            let mut made = Vec::new();
            append_blocks(spec, operations, part, len_max, &mut made).then_some(made)
        });
        let Some(parts) = parts.and_then(|made| made.into_iter().collect::<Option<Vec<_>>>())
        else {
            return false;
        };
        for (raw, part) in window.chunks(share::PART_LEN).zip(parts) {
            let (index, blocks) = part.split_at(index_len(raw.len()));
            let Ok(base) = u32::try_from(out.len().saturating_sub(blocks_start)) else {
                return false;
            };
            let (entries, _) = index.as_chunks::<INDEX_ENTRY_LEN>();
            for (entry, entry_start) in entries.iter().zip(&mut entry_starts) {
                // Does not saturate: all of it is shorter than the value.
                let end = u32::from_le_bytes(*entry).saturating_add(base);
                fill_in(out, entry_start, &end.to_le_bytes());
            }
            out.extend_from_slice(blocks);
            if out.len().saturating_sub(index_start) > len_max {
                return false;
            }
        }
    }
    true
}

/// Bytes of the index of a value of `len` bytes.
fn index_len(len: usize) -> usize {
    len.div_ceil(BLOCK_LEN).saturating_mul(INDEX_ENTRY_LEN)
}

/// Writes `bytes` over those at `start`, which were appended as zeros before.
fn fill_in(out: &mut [u8], start: usize, bytes: &[u8]) {
    let place = out
        .get_mut(start..)
        .and_then(|rest| rest.get_mut(..bytes.len()));
    place.expect("was appended before").copy_from_slice(bytes);
}
