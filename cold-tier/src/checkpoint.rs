//! Checkpoints: a whole index in the bucket, so that a node without one need not read every footer.
//!
//! A checkpoint is a number of parts, sorted by key hash and at most [`PART_LEN_MAX`] bytes long,
//! and a manifest that is written after them: it names the segments that were merged, how far each
//! writer was followed, the flushes, and the length of each part. A checkpoint without a manifest
//! does not count.
//!
//! Nothing rests on checkpoints but time: the segments alone tell everything. Layouts:
//! `docs/formats/checkpoint.md`.

mod entry;
mod manifest;
mod part;

pub use entry::{ENTRY_LEN, IndexEntry};
pub use manifest::{MANIFEST_LEN_MAX, Manifest, SegmentFacts, SegmentState};
pub(crate) use part::ROW_LEN;
pub use part::{PART_LEN_MAX, PartBuilder, PartEntries, PartFacts, decode_part};

/// The format version that this build reads and writes.
pub const FORMAT: u32 = 7;

#[cfg(test)]
mod tests;
