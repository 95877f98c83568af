//! Long values, without I/O (ADR 0032).
//!
//! A value that is longer than `--max-value` is cut into chunks by its content. Each chunk is a
//! blob of the content-addressed store, under its SHA-256. The entry itself has a manifest, which
//! lists the chunks. So values with equal parts share their chunks.

mod cutter;
mod manifest;

pub(crate) use self::cutter::{Cutter, chunk_len_avg};
pub(crate) use self::manifest::{Chunk, Manifest};

/// Longest value in bytes.
pub(crate) const LONG_LEN_MAX: u64 = 10 << 30;

/// Longest chunk in bytes.
pub(crate) const CHUNK_LEN_MAX: usize = 4 << 20;
