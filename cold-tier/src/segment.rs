//! Segments: the immutable objects that hold values in the bucket.
//!
//! A segment is a header, records without gaps, a footer that lists them, and a trailer by which
//! the footer is found from the end. So one read of an object's last bytes tells all that is in it,
//! and the objects alone rebuild every index. This module knows bytes only: no store, no clock.
//!
//! | part | length in bytes |
//! |---|---|
//! | header | [`HEADER_LEN`] |
//! | records | the footer's `data_len` |
//! | footer | the trailer says it; a frame of `fonn-codec` |
//! | trailer | [`TRAILER_LEN`] |
//!
//! Layouts, byte by byte: `docs/formats/segment.md`. Invariants: every byte is covered by a
//! checksum; nothing is ever changed in place; no input makes a decoder panic, or allocate more
//! than a small multiple of the length of the object that it stands for, or than
//! [`FOOTER_LEN_MAX`].

mod builder;
mod footer;
mod header;
mod record;
mod scan;
mod stream;
mod trailer;

pub use builder::{CHUNK_LEN, SealedSegment, SegmentBuilder};
pub use fonn_base::hlc::Version;
pub(crate) use footer::{FLUSHES_MAX, PURGES_MAX};
pub use footer::{
    FOOTER_LEN_MAX, FlushMark, Footer, FooterEntry, MarkKey, TAIL_LEN_GUESS, Tail, decode_tail,
    decoded_len,
};
pub use header::{FORMAT, HEADER_LEN, SegmentHeader};
pub use record::{Fact, Facts, KEY_LEN_MAX, RECORD_HEAD_LEN, Record};
pub use scan::{Records, scan_records, verify};
pub use stream::{ColdEntry, RecordStream, StreamError, Wanted};
pub use trailer::TRAILER_LEN;

#[cfg(test)]
pub(crate) mod tests;
