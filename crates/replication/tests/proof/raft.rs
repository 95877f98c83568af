//! A model of what raft does for the core: a log of topologies, and leases.
//!
//! The model is one service that members reach over links of their own. It is available while a
//! majority of members reaches it. A member is declared down when its last lease is over.

use std::collections::BTreeMap;
use std::sync::Arc;

use fonn_base::hlc::{VersionRange, at_ms};
use fonn_replication::{Change, Epoch, Layout, Member, MemberId, Slot, Status, Topology, Version};

pub const LEASE_MS: u64 = 1_500;

/// How far above the clock of the leader the range of versions ends.
const EXTEND_MS: u64 = 6_000;

/// What the members agree on: a topology, and the range of versions of its epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agreed {
    pub topology: Arc<Topology>,
    pub versions: VersionRange,
}

impl Agreed {
    pub fn first(topology: Topology) -> Self {
        Self {
            topology: Arc::new(topology),
            versions: VersionRange::default().next_epoch(),
        }
    }

    /// What is agreed on after a change, if it has an effect.
    pub fn after(&self, change: &Change) -> Option<Self> {
        self.topology.after(change).map(|topology| Self {
            topology: Arc::new(topology),
            versions: self.versions.next_epoch(),
        })
    }

    /// The same epoch with a higher ceiling.
    pub fn extended(&self, ceiling: Version) -> Self {
        let mut extended = self.clone();
        extended.versions.ceiling = ceiling.0.max(self.versions.ceiling);
        extended
    }
}

pub struct Raft {
    pub log: Vec<Agreed>,
    pub available_since: Option<u64>,
    /// Until when each member was promised not to be declared down.
    promised: Vec<u64>,
    heard: Vec<u64>,
    layout_since: u64,
    /// The highest version that a member has noted.
    noted: Version,
}

impl Raft {
    pub fn new(members: usize, layout: Arc<Layout>) -> Self {
        Self {
            log: vec![Agreed::first(first_topology(members, layout))],
            available_since: Some(0),
            promised: vec![LEASE_MS; members],
            heard: vec![0; members],
            layout_since: 0,
            noted: Version(0),
        }
    }

    fn last(&self) -> &Agreed {
        self.log.last().expect("there is a first topology")
    }

    pub fn topology(&self) -> &Arc<Topology> {
        &self.last().topology
    }

    /// The position of an epoch in the log. Later positions of the epoch have higher ceilings.
    pub fn position(&self, epoch: Epoch) -> usize {
        self.log
            .partition_point(|agreed| agreed.topology.epoch < epoch)
    }

    /// The last ceiling of an epoch so far.
    pub fn ceiling(&self, epoch: Epoch) -> Version {
        let position = self.position(epoch.next());
        Version(self.log[position - 1].versions.ceiling)
    }

    fn commit(&mut self, change: &Change, now: u64) {
        if let Some(next) = self.last().after(change) {
            if let Change::ProposeLayout(_) = change {
                self.layout_since = now;
            }
            self.log.push(next);
        }
    }

    /// Follows whether a majority reaches the service.
    pub fn follow_quorum(&mut self, quorum: bool, now: u64) {
        match (quorum, self.available_since) {
            (false, Some(_)) => self.available_since = None,
            (true, None) => {
                // A new leader does not know what the one before it promised.
                self.available_since = Some(now);
                for index in 0..self.promised.len() {
                    self.promised[index] = self.promised[index].max(now + LEASE_MS);
                    self.heard[index] = now;
                }
            }
            _ => {}
        }
    }

    pub fn propose(&mut self, change: &Change, now: u64) {
        if self.available_since.is_some() {
            self.commit(change, now);
        }
    }

    /// A member asks for a lease, and tells which version it has noted. Returns until when it has
    /// the lease.
    pub fn grant(&mut self, member: MemberId, noted: Version, now: u64) -> Option<u64> {
        let index = usize::from(member.0);
        self.available_since?;
        self.noted = self.noted.max(noted);
        self.heard[index] = now;
        if self.topology().status(member) == Status::Down {
            return None;
        }
        self.promised[index] = now + LEASE_MS;
        Some(now + LEASE_MS)
    }

    /// Extends the range of versions, declares members down, and replaces the layout when its
    /// owners are ready.
    pub fn tick(&mut self, now: u64, wall_ms: u64) {
        if self.available_since.is_none() {
            return;
        }
        let newest = at_ms(wall_ms).max(self.noted.0);
        if newest + at_ms(EXTEND_MS - 1_000) > self.last().versions.ceiling {
            let extended = self.last().extended(Version(newest + at_ms(EXTEND_MS)));
            self.log.push(extended);
        }
        for index in 0..self.promised.len() {
            let member = MemberId(index as u8);
            let silent = self.heard[index] + LEASE_MS < now;
            let due = silent && self.promised[index] < now;
            if due && self.topology().status(member) != Status::Down {
                self.commit(&Change::Down(member), now);
            }
        }
        if self.topology().next_layout_is_ready() {
            self.commit(&Change::ReplaceLayout, now);
        } else if self.topology().next_layout.is_some() && self.layout_since + 15_000 < now {
            self.commit(&Change::CancelLayout, now);
        }
    }
}

/// The first topology, in which no member is in sync.
pub fn first_topology(members_len: usize, layout: Arc<Layout>) -> Topology {
    let epoch = Epoch(1);
    let member = Member::new(Status::Syncing, epoch);
    let first = Topology {
        epoch,
        members: vec![member; members_len],
        layout,
        next_layout: None,
        proposed: epoch,
        stand_ins: BTreeMap::new(),
    };
    first.with_stand_ins(epoch)
}

/// The slots of which all owners were lost between two topologies, so that another member stands
/// in. It is an error if a slot is taken from an owner that is still there.
pub fn lost_slots(before: &Topology, after: &Topology, slots: u16) -> Result<Vec<Slot>, String> {
    let mut lost = Vec::new();
    if before.epoch == after.epoch {
        return Ok(lost);
    }
    for slot in (0..slots).map(Slot) {
        let Some(stand_in) = after.stand_ins.get(&slot) else {
            continue;
        };
        if stand_in.since == after.epoch {
            let life = |t: &Topology, m: MemberId| {
                let member = t.members[usize::from(m.0)];
                (member.status, member.incarnation)
            };
            let remains = |&m: &MemberId| life(before, m) == life(after, m);
            if before.owners(slot).iter().any(|m| remains(&m)) {
                return Err(format!("{slot:?} is taken from a living owner: {after:?}"));
            }
            lost.push(slot);
        }
    }
    Ok(lost)
}
