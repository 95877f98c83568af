//! What goes into the core and what comes out of it.
//!
//! `E` is what a write carries: an entry or a tombstone. The core copies it and never
//! looks into it, so `E` should be cheap to clone.

use std::sync::Arc;
use std::time::Duration;

use crate::{Change, Epoch, MemberId, SavedSlot, Slot, SlotSet, Topology, Version};

/// A request of a client, named by the shell.
pub type RequestId = u64;

/// One attempt of a learner to copy a group of slots. No two attempts are equal, also across
/// restarts.
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
    /// [`Core::is_fit`](crate::Core::is_fit), as of the last [`Command::Save`].
    pub is_fit: bool,
    /// What is saved of each slot, as of the last [`Command::Save`].
    pub slots: Vec<SavedSlot>,
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

/// A stored record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record<E> {
    /// The slot of the key.
    pub slot: Slot,
    /// The version of the write.
    pub version: Version,
    /// The epoch under which the owners took the write.
    pub epoch: Epoch,
    /// What was written.
    pub entry: E,
}

/// Where a page starts. Empty at the beginning. The store of the primary chooses the bytes. They
/// stay valid when slots leave the request.
pub type Cursor = Arc<[u8]>;

/// A learner's request for a page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageRequest {
    /// The attempt of the learner.
    pub attempt: Attempt,
    /// The slots. The receiver is the primary of each of them.
    pub slots: SlotSet,
    /// Only records of later epochs are asked for. `None` asks for a full copy.
    pub after: Option<Epoch>,
    /// Where the page starts, as told with the previous page.
    pub cursor: Cursor,
}

/// A page of a feed or of a full copy.
///
/// The pages of a request have each record that the store has from the first page to the last one,
/// or what has replaced it meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Page<E> {
    /// The request that this page answers.
    pub request: PageRequest,
    /// The records of the page.
    pub records: Vec<Record<E>>,
    /// Where the next page starts. `None` if this page is the last one.
    pub next: Option<Cursor>,
}

/// A message between members.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message<E> {
    /// The sender.
    pub from: MemberId,
    /// The epoch that the sender has applied.
    pub epoch: Epoch,
    /// What the sender says.
    pub body: Body<E>,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body<E> {
    /// Tells the epoch alone.
    Status,
    /// A write of the primary. The epoch of the record is that of the message.
    Write(Record<E>),
    /// The sender has a write. Slot and version name the write.
    Ack {
        /// The slot.
        slot: Slot,
        /// The version.
        version: Version,
    },
    /// A learner asks for a page. The shell of the primary answers with one of the two next bodies
    /// ([`Core::incomplete`](crate::Core::incomplete)).
    PageRequest(PageRequest),
    /// A page.
    Page(Page<E>),
    /// The primary no longer has everything since the epoch of the request.
    Incomplete {
        /// The request that this message answers.
        request: PageRequest,
        /// The slots that must be copied in full.
        slots: SlotSet,
    },
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
    },
    /// The member learned a topology. Epochs may be skipped. R2: the store enters the range of
    /// versions of the applied epoch after [`Command::Save`], and before the rights are published.
    Topology(Arc<Topology>),
    /// R6: the member may answer up to this time of its monotonic clock, which replaces any other
    /// time. The leader promised not to declare the member down before it. So a member that is down
    /// in a topology answers nothing any more. A member that has heard no leader for so long that
    /// the cluster has probably lost its quorum goes on by its last topology without such a time
    /// ([`Duration::MAX`]).
    Lease(Duration),
    /// A message of another member arrived.
    Message(Message<E>),
    /// The store has executed a write that [`Core::rights`](crate::Core::rights) admitted.
    /// Versions may arrive out of order.
    Write {
        /// The request.
        request: RequestId,
        /// What the store has, with the epoch that was applied when the write was admitted.
        record: Record<E>,
    },
    /// What [`Command::Clear`] names is gone.
    Cleared(Attempt),
    /// The store evicted records of this epoch and of earlier ones from its log. The shell repeats
    /// the event after each start.
    Evicted {
        /// The latest epoch of an evicted record.
        through: Epoch,
    },
    /// [`Config::tick`](crate::Config::tick) has passed since the last such event.
    Timer,
}

/// The answer to a write that the store has executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The write is acknowledged.
    Written,
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
    Persist(Record<E>),
    /// Hide what the store has of these slots up to the base of the range. It takes effect at once,
    /// and holds until the slots are cleared.
    RaiseFloor(SlotSet),
    /// Remove what the store has of these slots, then deliver [`Event::Cleared`]. Records above the
    /// base of the range that arrive meanwhile must stay. Older ones may be removed, too. When the
    /// event comes, earlier removals of the slots are over as well, and nothing is hidden.
    Clear {
        /// The attempt that waits for the removal.
        attempt: Attempt,
        /// The slots.
        slots: SlotSet,
    },
    /// Save the states of some slots, or the applied epoch, the fitness and the states of all
    /// slots. Later commands take effect only when it is durable. Until the first such command of
    /// all slots is durable, the next start is as unclean as that of this process.
    Save(Option<SlotSet>),
    /// Answer a client.
    Answer(RequestId, Reply),
    /// Propose [`Change::Sync`] or [`Change::InSync`] of this member.
    Propose(Change),
}
