//! Every protocol Fonn speaks, without I/O.
//!
//! A dialect (memcached text, meta and binary; RESP2 and RESP3) turns bytes into [`Request`]s whose
//! body is made of dialect-free [`Command`]s, and turns the [`Outcome`] of each command back into
//! bytes in an [`Out`] buffer. The executor of commands (a node from its tiers, a router through a
//! node) never sees a dialect, so a value set by one protocol is read by every other.
//!
//! Nothing here reads a clock, a socket or a file: expiries stay as the client gave them
//! ([`ExpirySpec`]) until the executor resolves them against its clock.

pub mod batch;
pub mod cluster;
pub mod command;
pub mod differences;
#[cfg(any(test, feature = "test-util"))]
pub mod drive;
#[cfg(feature = "grpc")]
pub mod grpc;
pub mod hash;
pub mod member;
pub mod memcached;
pub mod out;
pub mod outcome;
pub mod overlay;
pub mod peer;
pub mod placement;
pub mod request;
pub mod resp;
pub mod session;
pub mod space;
pub mod writer;

pub use batch::{Batch, BatchStep, Seen, StepOutcomes, Transfer, Watched};
pub use cluster::{ClusterView, Moved, Redirects};
pub use command::{
    Arith, ArithOp, Command, Delete, ExpireCondition, ExpirySpec, Get, SetBit, SetRange, Store,
    StoreMode, Touch,
};
pub use out::Out;
pub use outcome::{Failure, Hit, Number, Outcome, Stored};
pub use overlay::{Base, Overlay};
pub use request::{Body, Limits, Request, ServerCommand, Step};
pub use space::Space;
pub use writer::{PurgeScope, WriterId};

/// Identifies one write of one key; the highest version of a key is its value.
///
/// It is the memcached CAS token. 0 is never a version of a stored entry.
pub type Version = u64;
