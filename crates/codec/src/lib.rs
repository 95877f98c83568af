//! Codecs behind one table, and the frame that carries one stored value.
//!
//! This crate knows bytes only: no keys, no expiry. It answers four questions.
//!
//! - Which codecs are there? [`registry`] is the table, one row a codec; [`CodecSpec`] is a codec
//!   with its level, as the operator writes it (`zstd:3`).
//! - Is it worth an attempt? [`sniff`] recognizes what is compressed already, from its first bytes
//!   or from a small sample.
//! - How does a value rest in RAM, on disk, in a bucket? As a [`frame`]: header, checksum, and the
//!   bytes, compressed or verbatim.
//! - Which codec should a level use now? [`policy`] chooses, where the operator wrote `auto`.
//!
//! The invariant of the whole crate: decoding a frame gives exactly the bytes that were encoded, or
//! an error. No input makes it panic or allocate more than the caller's limit.

pub mod checksum;
pub mod frame;
#[cfg(feature = "lz4")]
mod lz4;
pub mod policy;
pub mod registry;
#[cfg(feature = "snappy")]
mod snappy;
pub mod sniff;
mod spec;
mod workspace;
#[cfg(feature = "zlib")]
mod zlib;
#[cfg(feature = "zstd")]
mod zstd;

pub use frame::{
    Encoded, Encoding, Frame, FrameError, Verbatim, compress, encode, encode_verbatim,
    reason_to_leave,
};
pub use registry::{Codec, CodecId};
pub use spec::{CodecSpec, SpecError};
