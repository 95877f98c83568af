//! The row `snappy`: raw Snappy streams (not the framing format), by snap.

use std::cell::RefCell;

use snap::raw::{Decoder, Encoder, max_compress_len};

use crate::registry::Operations;

pub(crate) const OPERATIONS: Operations = Operations {
    bound: max_compress_len,
    compress,
    decompress,
    append: None,
};

thread_local! {
    static ENCODER: RefCell<Encoder> = RefCell::new(Encoder::new());
}

fn compress(_level: i8, raw: &[u8], out: &mut [u8]) -> Option<usize> {
    ENCODER.with_borrow_mut(|encoder| encoder.compress(raw, out).ok())
}

fn decompress(stored: &[u8], out: &mut [u8]) -> Option<usize> {
    // The decoder has no state to keep.
    Decoder::new().decompress(stored, out).ok()
}
