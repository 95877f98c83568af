//! The row `lz4`: LZ4 blocks by lz4_flex, without its length prefix (the frame has the length).

use std::cell::RefCell;

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

use crate::registry::Operations;

pub(crate) const OPERATIONS: Operations = Operations {
    bound: get_maximum_output_size,
    compress,
    decompress,
    append: None,
};

thread_local! {
    static TABLES: RefCell<Tables> = const { RefCell::new(Tables { small: None, large: None }) };
}

/// Positions in inputs of up to 64 KiB take 16 bits: half the table to clear for each call. A table
/// of the wrong size would be replaced inside lz4_flex, so each size has its own.
struct Tables {
    small: Option<CompressTable>,
    large: Option<CompressTable>,
}

fn compress(_level: i8, raw: &[u8], out: &mut [u8]) -> Option<usize> {
    TABLES.with_borrow_mut(|tables| {
        let table = if raw.len() < usize::from(u16::MAX) {
            tables.small.get_or_insert_with(CompressTable::small)
        } else {
            tables.large.get_or_insert_with(CompressTable::large)
        };
        compress_into_with_table(raw, out, table).ok()
    })
}

fn decompress(stored: &[u8], out: &mut [u8]) -> Option<usize> {
    decompress_into(stored, out).ok()
}
