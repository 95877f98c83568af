//! The pure core of replication: which member may answer for a slot, and which members must have
//! a write before it is acknowledged. `docs/replication.md` describes the design.
//!
//! What it is not: it knows no socket, file, clock, runtime or randomness, and it stores no entry.
//! A shell passes events to [`Core::handle`] and executes the returned commands in their order.
//!
//! Invariants:
//! - An owner of a slot has every acknowledged write of the slot (R1, R4).
//! - A member answers for a slot only while it is an owner, in sync, and holds a lease (R6).
//! - Copies that may be stale are below the floor, so a read of them is a miss (R3).
//!
//! Entry points: [`Core`], [`Event`], [`Command`], [`Topology`], [`Version`]. [`Rule`] lists the
//! rules, and each rule names the place where it is kept.

mod clock;
mod core;
mod event;
mod id;
mod lease;
mod read;
mod rules;
mod slot;
mod sync;
mod topology;
mod version;
mod write;

pub use core::{Config, Core};
pub use event::{
    Attempt, Body, Command, Disk, Event, Message, Page, PageRequest, ReadFrom, Record, Reply,
    RequestId, Saved,
};
pub use id::{Epoch, MemberId, MemberSet, Slot};
pub use lease::Lease;
pub use rules::{Rule, Rules};
pub use slot::{Role, SlotState};
pub use topology::{Change, Layout, Member, StandIn, Status, Topology};
pub use version::{Hlc, Version};

/// The time at which an event is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Now {
    /// A monotonic clock that also runs while the process is stopped. Leases and timers follow it.
    pub elapsed: std::time::Duration,
    /// The wall clock in milliseconds since the Unix epoch. Only versions follow it.
    pub wall_ms: u64,
}
