//! The peer protocol: what routers and nodes speak among themselves.
//!
//! It carries the commands of clients to the node that owns their key, in the neutral model of this
//! crate, and entries from node to node (replicas, hand-over). One connection serves many callers:
//! each request has an id, and replies come in any order and name it. Byte by byte it is in
//! `docs/formats/peer.md`.
//!
//! A connection begins with a [`hello`] from either side. After it come frames: a [`Head`] of 32
//! bytes and a body. All numbers are little-endian, and every frame has a checksum over its head
//! and the first [`CHECKED_LEN`] bytes of its body, so a frame whose length, id, key or facts were
//! damaged is never believed. What is wrong with a frame shows in two ways:
//!
//! - [`FrameError`]: the start of the next frame is unknown; the connection has to be closed;
//! - [`DecodeError`]: this frame is malformed, which is answered ([`Refusal`]); the stream
//!   stays in step. So members of different versions can talk.
//!
//! Decoding borrows keys and values from the frame. Values from
//! [`SHARE_LEN_MIN`](crate::out::SHARE_LEN_MIN) on are sent from where they are, and shared with
//! the buffer they were received in.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod crc;
mod entry;
mod error;
mod field;
mod frame;
mod head;
pub mod hello;
mod reply;
mod request;
mod slots;

#[cfg(test)]
mod tests;

pub use entry::{Content, Entry};
pub use error::{DecodeError, FrameError, TooLong};
pub use frame::{Step, next};
pub use head::{CHECKED_LEN, Envelope, HEAD_LEN, Head, Kind};
pub use reply::{Flush, Page, PageBuilder, Refusal, Reply};
pub use request::Request;
pub use slots::SlotSet;

/// The first byte of every connection in this protocol. It begins no client dialect, and never
/// occurs in UTF-8.
pub const FIRST_BYTE: u8 = 0xfa;

/// The newest version of the protocol that is spoken here.
pub const VERSION: u16 = 1;

/// The oldest version that is still understood.
pub const VERSION_MIN: u16 = 1;

/// Longest key that a frame can carry, in bytes.
pub const KEY_LEN_MAX: usize = u16::MAX as usize;

/// What a frame may need beyond the value in it, in bytes: key and all facts.
pub const OVERHEAD_LEN_MAX: usize = KEY_LEN_MAX + 256;
