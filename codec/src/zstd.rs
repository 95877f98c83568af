//! The row `zstd`: one Zstandard frame a block.

use std::cell::RefCell;

use zstd::zstd_safe::{CCtx, CParameter, DCtx, compress_bound};

use crate::registry::Operations;

pub(crate) const OPERATIONS: Operations = Operations {
    bound: compress_bound,
    compress,
    decompress,
};

thread_local! {
    static COMPRESSION: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSION: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

fn compress(level: i8, raw: &[u8], out: &mut [u8]) -> Option<usize> {
    COMPRESSION.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = CCtx::try_create();
        }
        let context = kept.as_mut()?;
        context
            .set_parameter(CParameter::CompressionLevel(i32::from(level)))
            .ok()?;
        context.compress2(out, raw).ok()
    })
}

fn decompress(stored: &[u8], out: &mut [u8]) -> Option<usize> {
    DECOMPRESSION.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = DCtx::try_create();
        }
        kept.as_mut()?.decompress(out, stored).ok()
    })
}
