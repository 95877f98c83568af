//! The memcached binary protocol: packets of a 24-byte header and a body.
//!
//! What is implemented is what memcached's `protocol_binary.txt` describes, as memcached 1.6.18
//! really speaks it (the tests name the odd cases that were compared). It differs from memcached in
//! three points, all on purpose:
//!
//! - **Errors other than a miss have no body.** memcached sends a text such as `Too large.`;
//!   clients exist that do not read it and then take it for the next header (sccache's, for one). A
//!   miss has the text `Not found`, or its key where `GETK` and `GATK` ask for that.
//! - **A malformed packet is swallowed** and answered with 0x0004, where memcached closes the
//!   connection or loses step. The header says how long the packet is, so nothing else has to be
//!   guessed. Only a wrong magic byte ends the connection, and lengths that no packet can have
//!   (extras and key longer than the body, a body of 2 GiB or more), which are answered with 0x0004
//!   at once.
//! - `VERBOSITY` is answered (and changes nothing); memcached 1.6 does not know it.
//!
//! Numbers are big-endian. Offsets of the header, requests and replies alike:
//!
//! | offset | bytes | request | reply |
//! |--------|-------|---------|-------|
//! | 0 | 1 | magic 0x80 | magic 0x81 |
//! | 1 | 1 | opcode | the request's opcode |
//! | 2 | 2 | key length | key length |
//! | 4 | 1 | extras length | extras length |
//! | 5 | 1 | data type, ignored | 0 |
//! | 6 | 2 | virtual bucket, ignored | [`Status`] |
//! | 8 | 4 | length of extras + key + value | the same |
//! | 12 | 4 | opaque | the request's opaque |
//! | 16 | 8 | CAS, 0 for none | the entry's version, or 0 |

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod header;
mod opcode;
mod parse;
mod reply;
mod status;

#[cfg(test)]
mod tests;

pub use header::{HEADER_LEN, MAGIC_REQUEST, MAGIC_RESPONSE};
pub use parse::Parser;
pub use reply::{Late, Reply};
pub use status::Status;
