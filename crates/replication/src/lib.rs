//! The pure core of replication: which member may answer for a slot, and which members must have
//! a write before it is acknowledged. `docs/replication.md` describes the design.
//!
//! What it is not: it knows no socket, file, clock, runtime or randomness, and it stores no entry.
//! What the members agree on can be serialized, in any format.
//! A shell passes events to [`Core::handle`] and executes the returned commands in their order.
//!
//! Invariants:
//! - An owner of a slot has every acknowledged write of the slot (R1, R4).
//! - A member answers for a slot only while it is an owner, in sync, and holds a lease (R6).
//! - Copies that may be stale are below the floor, so a read of them is a miss (R3).
//!
//! The store of the shell assigns the versions. It keeps all versions of a later epoch above all
//! versions of an earlier one (R2).
//!
//! Entry points: [`Core`], [`Event`], [`Command`], [`Topology`]. [`Rule`] lists the rules, and each
//! rule names the place where it is kept.

mod core;
mod event;
mod id;
mod rights;
mod rules;
mod slot;
mod sync;
mod topology;
mod write;

pub use core::{Config, Core};
pub use event::{
    Attempt, Body, Command, Cursor, Disk, Event, Message, Page, PageRequest, Record, Reply,
    RequestId, Saved,
};
pub use id::{Epoch, MemberId, MemberSet, Slot, SlotSet, Version};
pub use rights::Rights;
pub use rules::{Rule, Rules};
pub use slot::{Role, SavedSlot, SlotState};
pub use topology::{Change, Layout, Member, StandIn, Status, Topology};
