//! The row `zlib`: raw deflate streams by zlib-rs through flate2. The zlib wrapper is left out: its
//! Adler checksum would be computed on each read beside the frame's own.

use std::cell::RefCell;

use flate2::{
    Compress, Compression, Decompress, DecompressError, FlushCompress, FlushDecompress, Status,
};

use crate::registry::Operations;

pub(crate) const OPERATIONS: Operations = Operations {
    bound,
    compress,
    decompress,
    append: Some(append),
};

thread_local! {
    static DEFLATE: RefCell<Option<Deflate>> = const { RefCell::new(None) };
    static INFLATE: RefCell<Option<Decompress>> = const { RefCell::new(None) };
}

struct Deflate {
    level: i8,
    stream: Compress,
}

/// Twice what the worst input grows by (9 bits for each byte at level 1). The buffer must never be
/// filled, although the result is of no use then: zlib-rs 0.6 panics at level 1 when it is.
fn bound(raw_len: usize) -> usize {
    raw_len.saturating_add(raw_len / 4).saturating_add(64)
}

fn compress(level: i8, raw: &[u8], out: &mut [u8]) -> Option<usize> {
    let compression = Compression::new(u32::try_from(level).ok()?);
    DEFLATE.with_borrow_mut(|kept| {
        let deflate = kept.get_or_insert_with(|| Deflate {
            level,
            stream: Compress::new(compression, false),
        });
        deflate.stream.reset();
        if deflate.level != level {
            // Nothing was written since the reset, so this only changes the parameters.
            deflate.stream.set_level(compression).ok()?;
            deflate.level = level;
        }
        match deflate.stream.compress(raw, out, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => usize::try_from(deflate.stream.total_out()).ok(),
            _ => None,
        }
    })
}

fn decompress(stored: &[u8], out: &mut [u8]) -> Option<usize> {
    inflate(stored, |stream| {
        stream.decompress(stored, out, FlushDecompress::Finish)
    })
}

fn append(stored: &[u8], out: &mut Vec<u8>) -> Option<()> {
    inflate(stored, |stream| {
        stream.decompress_vec(stored, out, FlushDecompress::Finish)
    })?;
    Some(())
}

/// How many bytes `run` gave, if it used all of `stored` and came to the stream's end.
fn inflate(
    stored: &[u8],
    run: impl FnOnce(&mut Decompress) -> Result<Status, DecompressError>,
) -> Option<usize> {
    INFLATE.with_borrow_mut(|kept| {
        let stream = kept.get_or_insert_with(|| Decompress::new(false));
        stream.reset(false);
        match run(stream) {
            Ok(Status::StreamEnd) if stream.total_in() == stored.len() as u64 => {
                usize::try_from(stream.total_out()).ok()
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_for_the_worst_input_at_every_level() {
        // Bytes from 144 on take 9 bits in the fixed code; an LCG over them repeats no 4 of them
        // soon.
        let mut state = 1u32;
        let raw: Vec<u8> = (0..128 << 10)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                144 + ((state >> 16) % 112) as u8
            })
            .collect();
        for level in 1..=9 {
            for len in [1, 8, 100, 4096, 65_536, raw.len()] {
                let mut out = vec![0; bound(len)];
                let stored = compress(level, &raw[..len], &mut out).unwrap();
                assert!(stored < out.len(), "{level} {len}");
                let mut back = vec![0; len];
                assert_eq!(decompress(&out[..stored], &mut back), Some(len));
                assert_eq!(back, raw[..len]);
            }
        }
    }
}
