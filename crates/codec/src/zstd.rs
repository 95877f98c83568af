//! The row `zstd`: one Zstandard frame a block.

use std::cell::RefCell;
use std::io::Cursor;

use zstd::zstd_safe::{CCtx, CParameter, DCtx, compress_bound};

use crate::registry::Operations;

pub(crate) const OPERATIONS: Operations = Operations {
    bound: compress_bound,
    compress,
    decompress,
    append: Some(append),
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
    with_decompression(|context| context.decompress(out, stored).ok())
}

fn append(stored: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut end = Cursor::new(&mut *out);
    end.set_position(u64::try_from(end.get_ref().len()).ok()?);
    with_decompression(|context| context.decompress(&mut end, stored).ok())?;
    Some(())
}

fn with_decompression<T>(work: impl FnOnce(&mut DCtx<'static>) -> Option<T>) -> Option<T> {
    DECOMPRESSION.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = DCtx::try_create();
        }
        work(kept.as_mut()?)
    })
}
