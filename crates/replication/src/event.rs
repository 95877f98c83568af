//! What goes into the core and what comes out of it.
//!
//! `E` is what a write carries: an entry, a tombstone or a flush. The core copies it and never
//! looks into it, so `E` should be cheap to clone.

use std::sync::Arc;
use std::time::Duration;

use crate::{Change, Epoch, Hlc, Lease, MemberId, Slot, SlotState, Topology, Version};

/// A request of a client, named by the shell.
pub type RequestId = u64;

/// One attempt of a learner to copy a slot. No two attempts are equal, also across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The start of the learner's process.
    pub incarnation: u64,
    /// The number of the attempt since then.
    pub count: u64,
}

/// What a member saved before it stopped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Saved {
    /// The last epoch that the member applied.
    pub applied: Epoch,
    /// The state of each slot, as of the last [`Command::Save`].
    pub slots: Vec<SlotState>,
}

/// What a member finds on its disk when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Disk {
    /// Nothing: the disk is empty.
    Empty,
    /// The saved state, but acknowledged writes may be lost.
    Unclean(Saved),
    /// The saved state and everything that the member acknowledged.
    Clean(Saved),
}

/// Which owner a read asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadFrom {
    /// The primary. All reads but hedged ones ask it.
    Primary,
    /// Any owner: a hedged read.
    AnyOwner,
}

/// A stored record, as the feed carries it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record<E> {
    /// The version of the write.
    pub version: Version,
    /// The epoch under which the owners took the write.
    pub epoch: Epoch,
    /// What was written.
    pub entry: E,
}

/// A page of a feed or of a full copy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Page<E> {
    /// The request that this page answers.
    pub request: PageRequest,
    /// The records of the page.
    pub records: Vec<Record<E>>,
    /// Where the next page starts. `None` if this page is the last one.
    pub next: Option<u64>,
}

/// A learner's request for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRequest {
    /// The slot.
    pub slot: Slot,
    /// The attempt of the learner.
    pub attempt: Attempt,
    /// Only records of later epochs are asked for. `None` asks for a full copy.
    pub after: Option<Epoch>,
    /// Where the page starts, as told with the previous page.
    pub cursor: u64,
}

/// A message between members.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message<E> {
    /// The sender.
    pub from: MemberId,
    /// The epoch that the sender has applied.
    pub epoch: Epoch,
    /// The clock of the sender.
    pub clock: Hlc,
    /// What the sender says.
    pub body: Body<E>,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body<E> {
    /// Tells the epoch and the clock alone.
    Status,
    /// A write of the primary.
    Write {
        /// The slot.
        slot: Slot,
        /// The version that the primary assigned.
        version: Version,
        /// What is written.
        entry: E,
    },
    /// The sender has a write.
    Ack {
        /// The clock of the write's version, which names the write.
        clock: Hlc,
    },
    /// A learner asks for a page.
    PageRequest(PageRequest),
    /// A page.
    Page(Page<E>),
    /// The primary no longer has everything since the epoch of the request.
    Incomplete(PageRequest),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event<E> {
    /// The process started. It is the first event.
    Start {
        /// What is on the disk.
        disk: Disk,
        /// A value that is greater than that of each earlier start of this member.
        incarnation: u64,
        /// A clock after every version that this member has assigned or stored.
        clock: Hlc,
    },
    /// The member learned a topology. Epochs may be skipped.
    Topology(Arc<Topology>),
    /// The lease changed.
    Lease(Lease),
    /// A message of another member arrived.
    Message(Message<E>),
    /// A client writes or deletes a key.
    Write {
        /// The request.
        request: RequestId,
        /// The slot of the key.
        slot: Slot,
        /// What is written.
        entry: E,
    },
    /// A client flushes. The core writes the flush to each slot of which it is the primary.
    Flush {
        /// The request.
        request: RequestId,
        /// The flush.
        entry: E,
    },
    /// A client reads a key.
    Read {
        /// The request.
        request: RequestId,
        /// The slot of the key.
        slot: Slot,
        /// Which owner the read asks.
        from: ReadFrom,
    },
    /// The shell has read a page of the store for a learner.
    PageRead {
        /// The learner.
        to: MemberId,
        /// The page.
        page: Page<E>,
    },
    /// The store evicted records of this epoch and of earlier ones from its log. The shell repeats
    /// the event after each start.
    Evicted {
        /// The latest epoch of an evicted record.
        through: Epoch,
    },
    /// The time of the last [`Command::Wake`] has come.
    Timer,
}

/// The answer to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The read is answered from the local store, and from the bucket where the store has nothing.
    ReadLocally,
    /// The write is acknowledged.
    Written,
    /// The flush is acknowledged for the slots of this member.
    Flushed {
        /// The epoch by which the member chose the slots.
        epoch: Epoch,
        /// How many slots the member flushed. The flush of a cluster is complete when the counts of
        /// one epoch add up to all slots.
        slots: usize,
    },
    /// Another member has to be asked, if one is known.
    Elsewhere(Option<MemberId>),
    /// Nothing was done. The client may repeat the request.
    Busy,
    /// The write was not taken by all owners. It may show later.
    Refused,
}

/// What the shell has to do. Commands take effect in their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command<E> {
    /// Send a message.
    Send(MemberId, Message<E>),
    /// Store a record. The store keeps the newer version of the key, with the later of both epochs:
    /// the feed after an epoch has each key of which any record was taken since.
    Persist {
        /// The slot.
        slot: Slot,
        /// The record.
        record: Record<E>,
    },
    /// Move the floor of a slot to the end of the log: what the store has of the slot is gone.
    RaiseFloor(Slot),
    /// Save the state of one slot, or the applied epoch and all slots. Later commands take effect
    /// only when it is durable.
    Save(Option<Slot>),
    /// Read a page of the store and return it with [`Event::PageRead`].
    ReadPage {
        /// The learner.
        to: MemberId,
        /// What it asks for.
        request: PageRequest,
    },
    /// Answer a client.
    Answer(RequestId, Reply),
    /// Propose a change of the topology.
    Propose(Change),
    /// Deliver [`Event::Timer`] at this time of the monotonic clock.
    Wake(Duration),
}
