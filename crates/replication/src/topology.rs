//! What the members agree on by raft, and how it changes.
//!
//! [`Topology::after`] is the state machine. It is pure, so each member that applies the same
//! changes has the same topology. Invariant: a slot gets an owner that has not copied it only if no
//! owner is left that has.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Epoch, MemberId, MemberSet, Slot};

/// Whether a member has what it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Status {
    /// The member has every acknowledged write of its slots.
    InSync,
    /// The member is reachable and copies what it missed.
    Syncing,
    /// The member does not answer, and its leases are over.
    Down,
}

/// A member as the members agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Whether it is in sync.
    pub status: Status,
    /// The epoch of its last change of status.
    pub since: Epoch,
    /// Whether it has copied all slots that the next layout gives to it.
    pub ready: bool,
    /// The start of its process with which it last asked to sync.
    pub incarnation: u64,
}

impl Member {
    /// A member that has this status since an epoch, and has not asked to sync yet.
    #[must_use]
    pub const fn new(status: Status, since: Epoch) -> Self {
        Self {
            status,
            since,
            ready: false,
            incarnation: 0,
        }
    }
}

/// For each slot, its placed owners in rank order. Placement computes it from members and weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    /// How many owners placement gives to a slot.
    replicas: usize,
    /// The members that may stand in for the owners of any slot.
    members: MemberSet,
    /// One row of owners after the other.
    owners: Vec<MemberId>,
}

impl Layout {
    /// A layout from rows of equal length, one row per slot. `None` if the rows differ in length.
    /// `members` may stand in where none of the owners is left.
    #[must_use]
    pub fn new(rows: &[Vec<MemberId>], members: MemberSet) -> Option<Self> {
        let replicas = rows.first()?.len();
        let equal = rows.iter().all(|row| row.len() == replicas);
        equal.then(|| Self {
            replicas,
            members,
            owners: rows.concat(),
        })
    }

    /// How many slots there are.
    #[must_use]
    pub fn slots_len(&self) -> usize {
        self.owners.len() / self.replicas.max(1)
    }

    /// The placed owners of a slot in rank order.
    #[must_use]
    pub fn owners(&self, slot: Slot) -> &[MemberId] {
        let start = slot.index() * self.replicas;
        self.owners
            .get(start..start + self.replicas)
            .unwrap_or_default()
    }

    /// The member that stands in for a slot, among some members: by rendezvous hashing, so that the
    /// slots of a member that is down are spread over all others.
    fn stand_in(&self, slot: Slot, among: impl Fn(MemberId) -> bool) -> Option<MemberId> {
        let members = self.members.iter().filter(|&member| among(member));
        members.max_by_key(|member| mix(u64::from(slot.0) << 8 | u64::from(member.0)))
    }
}

/// The finalizer of MurmurHash3 (Austin Appleby, public domain).
fn mix(mut value: u64) -> u64 {
    value ^= value >> 33;
    value = value.wrapping_mul(0xff51_afd7_ed55_8ccd);
    value ^= value >> 33;
    value = value.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

/// A member that owns a slot because no placed owner is in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StandIn {
    /// The member.
    pub member: MemberId,
    /// The epoch at which it was chosen.
    pub since: Epoch,
}

/// What the members agree on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// The number of this topology.
    pub epoch: Epoch,
    /// The members, by their ids.
    pub members: Vec<Member>,
    /// The layout in force.
    pub layout: Arc<Layout>,
    /// The layout that replaces it as soon as its owners have copied their slots.
    pub next_layout: Option<Arc<Layout>>,
    /// The epoch at which the latest of the two layouts was proposed.
    pub proposed: Epoch,
    /// The slots of which no placed owner is in sync. A stand-in keeps its slot until a placed
    /// owner is in sync or the stand-in is down: a member that returns meanwhile has none of its
    /// writes.
    pub stand_ins: BTreeMap<Slot, StandIn>,
}

/// A proposed change of the topology.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A member is down. The leader proposes it only when the leases of the member are over.
    Down(MemberId),
    /// A member asks to sync: it was down, or it may have lost acknowledged writes. Only the member
    /// itself asks, after it has applied the epoch at which it was declared down. So no member is
    /// back before it knows that it was down.
    Sync {
        /// The member itself.
        member: MemberId,
        /// The epoch that it had applied.
        applied: Epoch,
        /// The start of its process. A later start than the known one has lost what the member had.
        incarnation: u64,
    },
    /// A member has copied all its slots.
    InSync {
        /// The member itself.
        member: MemberId,
        /// The epoch that it had applied.
        applied: Epoch,
    },
    /// The members should copy what this layout gives to them.
    ProposeLayout(Arc<Layout>),
    /// The next layout is given up.
    CancelLayout,
    /// The next layout replaces the layout in force.
    ReplaceLayout,
}

/// The owners and learners of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The first owner in rank.
    pub(crate) primary: Option<MemberId>,
    /// All owners, the primary among them.
    pub(crate) owners: MemberSet,
    /// The members that copy the slot.
    pub(crate) learners: MemberSet,
    /// Since when a member stands in, if no placed owner is in sync.
    pub(crate) stand_in: Option<Epoch>,
}

impl Topology {
    /// The status of a member. An unknown member is down.
    #[must_use]
    pub fn status(&self, member: MemberId) -> Status {
        self.members
            .get(usize::from(member.0))
            .map_or(Status::Down, |member| member.status)
    }

    /// The first owner of a slot in rank. It orders the writes of the slot.
    #[must_use]
    pub fn primary(&self, slot: Slot) -> Option<MemberId> {
        self.placement(slot).primary
    }

    /// The owners of a slot.
    #[must_use]
    pub fn owners(&self, slot: Slot) -> MemberSet {
        self.placement(slot).owners
    }

    /// The owners of a slot in rank order, the primary first.
    pub fn ranked_owners(&self, slot: Slot) -> impl Iterator<Item = MemberId> {
        let Placement {
            primary, owners, ..
        } = self.placement(slot);
        let ranks = self.layout.owners(slot).iter().copied();
        let others = ranks.filter(move |&m| owners.contains(m) && Some(m) != primary);
        primary.into_iter().chain(others)
    }

    /// The members that are not down.
    pub(crate) fn up(&self) -> impl Iterator<Item = MemberId> {
        (0u8..)
            .zip(&self.members)
            .filter(|(_, member)| member.status != Status::Down)
            .map(|(index, _)| MemberId(index))
    }

    /// R3, R4: the owners and the learners of a slot.
    pub(crate) fn placement(&self, slot: Slot) -> Placement {
        let placed = |layout: &Layout, status| -> MemberSet {
            let placed = layout.owners(slot).iter().copied();
            placed.filter(|&m| self.status(m) == status).collect()
        };
        let mut owners = placed(&self.layout, Status::InSync);
        let stand_in = owners.is_empty().then(|| self.stand_ins.get(&slot));
        let stand_in = stand_in.flatten();
        if let Some(stand_in) = stand_in {
            owners.insert(stand_in.member);
        }
        let mut learners = placed(&self.layout, Status::Syncing);
        if let Some(next) = &self.next_layout {
            learners = learners.with(placed(next, Status::Syncing));
            learners = learners.with(placed(next, Status::InSync));
        }
        let mut ranks = self.layout.owners(slot).iter().copied();
        let primary = match stand_in {
            Some(stand_in) => Some(stand_in.member),
            None => ranks.find(|&member| owners.contains(member)),
        };
        Placement {
            primary,
            owners,
            learners: learners.without(owners),
            stand_in: stand_in.map(|stand_in| stand_in.since),
        }
    }

    /// The topology with other members standing in where the last owner of a slot is gone, as of
    /// the epoch that follows. For a member whose disk was lost.
    #[must_use]
    pub fn with_stand_ins(mut self, epoch: Epoch) -> Self {
        let before = std::mem::replace(&mut self.epoch, epoch);
        self.choose_stand_ins();
        self.epoch = before;
        self
    }

    /// R3: keeps each stand-in that is up, and chooses another member where none is left.
    fn choose_stand_ins(&mut self) {
        let slots = u16::try_from(self.layout.slots_len()).unwrap_or(u16::MAX);
        for slot in (0..slots).map(Slot) {
            let mut placed = self.layout.owners(slot).iter();
            if placed.any(|&member| self.status(member) == Status::InSync) {
                self.stand_ins.remove(&slot);
                continue;
            }
            let current = self.stand_ins.get(&slot);
            if current.is_some_and(|current| self.status(current.member) != Status::Down) {
                continue;
            }
            let first = |status| self.layout.stand_in(slot, |m| self.status(m) == status);
            let chosen = first(Status::InSync).or_else(|| first(Status::Syncing));
            match chosen {
                Some(member) => {
                    let since = self.epoch;
                    self.stand_ins.insert(slot, StandIn { member, since });
                }
                None => {
                    self.stand_ins.remove(&slot);
                }
            }
        }
    }

    /// The topology after a change, or `None` if the change is outdated or has no effect.
    #[must_use]
    pub fn after(&self, change: &Change) -> Option<Self> {
        let mut next = self.clone();
        next.epoch = self.epoch.next();
        let epoch = next.epoch;
        match change {
            Change::Down(id) => {
                let member = next.members.get_mut(usize::from(id.0))?;
                if member.status == Status::Down {
                    return None;
                }
                member.status = Status::Down;
                member.since = epoch;
                member.ready = false;
            }
            Change::Sync {
                member: id,
                applied,
                incarnation,
            } => {
                let member = next.members.get_mut(usize::from(id.0))?;
                let forgot = *incarnation > member.incarnation;
                if *applied < member.since || (member.status == Status::Syncing && !forgot) {
                    return None;
                }
                if member.status != Status::Down && forgot {
                    next.stand_ins.retain(|_, stand_in| stand_in.member != *id);
                }
                member.incarnation = (*incarnation).max(member.incarnation);
                member.status = Status::Syncing;
                member.since = epoch;
                member.ready = false;
            }
            Change::InSync { member, applied } => {
                let proposed = self.proposed;
                let waits = self.next_layout.is_some();
                let member = next.members.get_mut(usize::from(member.0))?;
                if member.status == Status::Down || *applied < member.since {
                    return None;
                }
                let ready = waits && *applied >= proposed;
                if member.status == Status::InSync && (!ready || member.ready) {
                    return None;
                }
                if member.status == Status::Syncing {
                    member.status = Status::InSync;
                    member.since = epoch;
                }
                member.ready |= ready;
            }
            Change::ProposeLayout(layout) => {
                if layout.slots_len() != self.layout.slots_len() {
                    return None;
                }
                next.next_layout = Some(Arc::clone(layout));
                next.proposed = epoch;
                next.members.iter_mut().for_each(|m| m.ready = false);
            }
            Change::CancelLayout => {
                next.next_layout.take()?;
                next.members.iter_mut().for_each(|m| m.ready = false);
            }
            Change::ReplaceLayout => {
                if !self.next_layout_is_ready() {
                    return None;
                }
                next.layout = next.next_layout.take()?;
                next.members.iter_mut().for_each(|m| m.ready = false);
            }
        }
        next.choose_stand_ins();
        Some(next)
    }

    /// R4: whether the next layout may replace the layout in force: all members that are up have
    /// copied their slots, and each slot has an owner among them.
    #[must_use]
    pub fn next_layout_is_ready(&self) -> bool {
        let Some(layout) = &self.next_layout else {
            return false;
        };
        let ready = |m: &Member| m.status == Status::Down || m.ready;
        let slots = u16::try_from(layout.slots_len()).unwrap_or(u16::MAX);
        self.members.iter().all(ready)
            && (0..slots).map(Slot).all(|slot| {
                let mut placed = layout.owners(slot).iter();
                placed.any(|&member| self.status(member) == Status::InSync)
            })
    }
}
