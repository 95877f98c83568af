//! What clients that find the owners of keys by themselves are told of the cluster, and how they
//! are sent to another member.
//!
//! Redis Cluster clients ask any member for all of them (`CLUSTER SLOTS`), and go straight to a
//! key's owner from then on. A [`ClusterView`] is what there is to tell; the RESP dialect words it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use bytes::Bytes;

use crate::Outcome;
use crate::hash::{fnv1a, mix};
use crate::member::{host_and_port, is_reachable};
use crate::placement::{Owners, SLOT_COUNT};

/// Bytes of a [`NodeId`].
pub const NODE_ID_LEN: usize = 20;

/// The name that a member has among Redis Cluster clients: 40 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId([u8; NODE_ID_LEN]);

impl NodeId {
    /// The id of the member of that name: always the same.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        let mut bytes = [0; NODE_ID_LEN];
        for (at, chunk) in (1..).zip(bytes.chunks_mut(8)) {
            let hash = mix(fnv1a(name.as_bytes()) ^ mix(at)).to_be_bytes();
            chunk
                .iter_mut()
                .zip(hash)
                .for_each(|(byte, hash)| *byte = hash);
        }
        Self(bytes)
    }

    /// An id from its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; NODE_ID_LEN]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; NODE_ID_LEN] {
        &self.0
    }

    /// The id of the shard of which the member is the primary (`CLUSTER MYSHARDID`).
    #[must_use]
    pub fn shard(&self) -> Self {
        Self::of_name(&format!("shard {self}"))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    Online,
    /// It does not answer yet.
    Loading,
    /// It does not answer any more.
    Failed,
}

/// A member as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMember {
    /// Its id.
    pub id: NodeId,
    /// Its address for clients, without brackets; empty stands for the one that the client has
    /// used.
    pub host: String,
    /// Its port for clients.
    pub port: u16,
    /// How it is.
    pub health: Health,
}

/// A run of neighboring slots with the same owners; both ends belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRange {
    /// First slot.
    pub first: u16,
    /// Last slot.
    pub last: u16,
    /// Their owners, as positions in the list of members: the primary first.
    pub owners: Owners,
}

impl SlotRange {
    /// How many slots it has.
    #[must_use]
    pub fn len(&self) -> u16 {
        self.last.saturating_sub(self.first).saturating_add(1)
    }

    /// Never: a range has at least one slot.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The position of the primary.
    #[must_use]
    pub fn primary(&self) -> usize {
        self.owners
            .positions()
            .first()
            .copied()
            .map_or(0, usize::from)
    }
}

/// The owners of slots, as one member reports them.
///
/// Invariants: the member that tells it is one of the members; ranges are in order and have no slot
/// in common; owners are members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    epoch: u64,
    me: u16,
    members: Vec<ClusterMember>,
    ranges: Vec<SlotRange>,
    worded: Worded,
}

/// The long answers that are made of a view, each made once for all clients.
///
/// They say no more than the view: a copy of it has none yet, and views with and without are the
/// same.
#[derive(Default)]
struct Worded([OnceLock<Bytes>; ClusterView::ANSWERS]);

impl Clone for Worded {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Worded {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Worded {}

impl fmt::Debug for Worded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worded").finish_non_exhaustive()
    }
}

impl ClusterView {
    /// How many long answers are kept with a view.
    pub const ANSWERS: usize = 6;

    /// The long answer of that number, below [`Self::ANSWERS`], made by `word` for the first client
    /// that asks for it. Thousands of ranges take a millisecond, and a megabyte: with many clients
    /// that ask at once there is one such buffer.
    pub fn worded(&self, number: usize, word: impl FnOnce() -> Bytes) -> Bytes {
        match self.worded.0.get(number) {
            Some(cell) => cell.get_or_init(word).clone(),
            None => word(),
        }
    }

    /// Whether that answer was made.
    #[must_use]
    pub fn is_worded(&self, number: usize) -> bool {
        let cell = self.worded.0.get(number);
        cell.is_some_and(|it| it.get().is_some())
    }

    /// Checks a view. `me` is the position of the member that tells it.
    ///
    /// None if it breaks an invariant.
    #[must_use]
    pub fn new(
        epoch: u64,
        me: u16,
        members: Vec<ClusterMember>,
        ranges: Vec<SlotRange>,
    ) -> Option<Self> {
        if usize::from(me) >= members.len() || members.len() > usize::from(u16::MAX) {
            return None;
        }
        let mut next = 0;
        for range in &ranges {
            let owners = range.owners.positions();
            let are_known = owners.iter().all(|it| usize::from(*it) < members.len());
            let is_in_order = next <= range.first && range.first <= range.last;
            if !are_known || !is_in_order || range.last >= SLOT_COUNT {
                return None;
            }
            // Below the number of slots, so this is too small to overflow.
            next = range.last.saturating_add(1);
        }
        Some(Self {
            epoch,
            me,
            members,
            ranges,
            worded: Worded::default(),
        })
    }

    /// The view of a process that owns all slots alone, under the name `name`, at the address that
    /// the client reached; without one (a Unix socket) host and port are empty and 0.
    #[must_use]
    pub fn alone(name: &str, address: Option<SocketAddr>) -> Self {
        Self::of_one(ClusterMember {
            id: NodeId::of_name(name),
            host: address.map_or_else(String::new, |it| it.ip().to_canonical().to_string()),
            port: address.map_or(0, |it| it.port()),
            health: Health::Online,
        })
    }

    /// The view of a router that clients reach at HOST:PORT: it finds the owners of any slot, so it
    /// says that it owns all. `None` if that is no address.
    #[must_use]
    pub fn of_router(address: &str) -> Option<Self> {
        let (host, port) = host_and_port(address).filter(|_| is_reachable(address))?;
        Some(Self::of_one(ClusterMember {
            id: NodeId::of_name(&router_name(address)),
            host: host.to_owned(),
            port,
            health: Health::Online,
        }))
    }

    /// The view of the owner of all slots.
    fn of_one(member: ClusterMember) -> Self {
        let all = Owners::new(&[0]).map(|owners| SlotRange {
            first: 0,
            last: SLOT_COUNT - 1,
            owners,
        });
        Self {
            epoch: 1,
            me: 0,
            members: vec![member],
            ranges: all.into_iter().collect(),
            worded: Worded::default(),
        }
    }

    /// The version of the map.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The position of the member that tells it.
    #[must_use]
    pub const fn me(&self) -> u16 {
        self.me
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> &[ClusterMember] {
        &self.members
    }

    /// The slots that have owners, in order.
    #[must_use]
    pub fn ranges(&self) -> &[SlotRange] {
        &self.ranges
    }

    /// The position of the member with that id, given as its digits in any case.
    #[must_use]
    pub fn position_of(&self, id: &[u8]) -> Option<usize> {
        let is_it = |member: &ClusterMember| {
            let digits = member.id.to_string();
            digits.as_bytes().eq_ignore_ascii_case(id)
        };
        self.members.iter().position(is_it)
    }

    /// The owners of a slot by rank.
    #[must_use]
    pub fn owners(&self, slot: u16) -> Option<Owners> {
        let after = self.ranges.partition_point(|range| range.first <= slot);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        (slot <= range.last).then_some(range.owners)
    }

    /// Where a client has to go with a command on a key of `slot`, instead of being answered by the
    /// member that tells this view.
    #[must_use]
    pub fn moved(&self, slot: u16, redirects: Redirects) -> Option<Moved> {
        if redirects == Redirects::Never {
            return None;
        }
        let owners = self.owners(slot)?;
        let rank = owners.positions().iter().position(|it| *it == self.me);
        if !redirects.applies_at(rank) {
            return None;
        }
        let primary = self
            .members
            .get(usize::from(*owners.positions().first()?))?;
        Some(Moved {
            slot,
            host: primary.host.clone(),
            port: primary.port,
        })
    }

    /// The member that a member without primary slots replicates, if there is exactly one.
    #[must_use]
    pub fn primary_of(&self, position: usize) -> Option<usize> {
        let mut primary = None;
        for range in &self.ranges {
            if range.primary() == position {
                return None;
            }
            let owners = range.owners.positions();
            if owners.iter().any(|it| usize::from(*it) == position) {
                match primary {
                    Some(known) if known != range.primary() => return None,
                    _ => primary = Some(range.primary()),
                }
            }
        }
        primary
    }
}

/// The name of the router that clients reach at HOST:PORT: its id follows from it.
#[must_use]
pub fn router_name(address: &str) -> String {
    format!("router {address}")
}

/// Whether HOST:PORT is one of this machine alone. Names are not looked up.
#[must_use]
pub fn is_loopback(text: &str) -> bool {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

/// Joins neighboring slots with the same owners; slots without owners are left out.
#[must_use]
pub fn ranges(owners: impl Fn(u16) -> Option<Owners>) -> Vec<SlotRange> {
    let mut ranges: Vec<SlotRange> = Vec::new();
    for slot in 0..SLOT_COUNT {
        let Some(owners) = owners(slot) else {
            continue;
        };
        match ranges.last_mut() {
            Some(range) if range.owners == owners && range.last.saturating_add(1) == slot => {
                range.last = slot;
            }
            _ => ranges.push(SlotRange {
                first: slot,
                last: slot,
                owners,
            }),
        }
    }
    ranges
}

/// Whether a client wants to be told when a command is for another member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redirects {
    /// It knows of no owners: the command is carried out wherever that has to be done.
    #[default]
    Never,
    /// It goes to the primary itself.
    ToPrimary,
    /// It reads, and any owner of the slot may answer (RESP `READONLY`).
    ToOwner,
}

impl Redirects {
    /// Whether the client is told, by the rank that the member has among the owners of the slot: 0
    /// is the primary, none is no owner.
    #[must_use]
    pub const fn applies_at(self, rank: Option<usize>) -> bool {
        match (self, rank) {
            (Self::Never, _) | (Self::ToPrimary | Self::ToOwner, Some(0)) => false,
            (Self::ToOwner, Some(_)) => false,
            (Self::ToPrimary, Some(_)) | (_, None) => true,
        }
    }
}

/// Another member owns the slot of the command's key; nothing was done. Only clients that asked for
/// it are told so ([`Redirects`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The slot.
    pub slot: u16,
    /// The owner's address for clients, without brackets.
    pub host: String,
    /// Its port for clients.
    pub port: u16,
}

impl From<Moved> for Outcome<'_> {
    fn from(moved: Moved) -> Self {
        Self::Moved(moved)
    }
}

#[cfg(test)]
mod tests;
