//! What the tiers and the engine agree on: the facts of entries, acknowledgements of the disk, and
//! wakes between reactors and threads.
//!
//! It knows no tier and no protocol.

pub mod ack;
pub mod entry;
pub mod reactor;
