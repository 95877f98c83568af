//! A cluster of the simulation: members with stores, and the links between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fonn_replication::{Config, Core, Epoch, Layout, MemberId, Saved, Slot, Version};

use super::judge::{Judge, Kind, Replaced};
use super::raft::Raft;
use super::random::Random;
use super::setup::Setup;
use super::store::{Entry, Key, Store, Stored};
use super::world::Action;

/// A write that a member has executed. A crash may lose it until a later command makes it durable.
pub struct Volatile {
    pub slot: Slot,
    pub key: Key,
    pub version: Version,
    pub before: Option<Stored>,
}

pub struct Node {
    pub core: Core<Entry>,
    pub store: Store,
    pub saved: Option<Saved>,
    /// Whether acknowledged writes were lost since `saved` was saved as a whole.
    pub lost_writes: bool,
    pub alive: bool,
    /// Until when the process is stopped.
    pub paused_until: Option<u64>,
    pub backlog: Vec<Action>,
    pub incarnation: u64,
    pub wall_offset_ms: u64,
    /// How many topologies of the log the member has learned.
    pub learned: usize,
    pub heard_leader: u64,
    pub lease: Duration,
    pub evicted: Epoch,
    pub volatile: Vec<Volatile>,
}

impl Node {
    pub fn runs(&self) -> bool {
        self.alive && self.paused_until.is_none()
    }
}

/// A write of a client that is not answered.
pub struct Open {
    pub node: usize,
    pub id: u32,
    pub kind: Kind,
    pub slot: Slot,
    pub key: Key,
    pub replaced: Option<Replaced>,
}

pub struct Cluster {
    pub raft: Raft,
    pub topologies_seen: usize,
    pub nodes: Vec<Node>,
    /// Until when no message arrives from one member at another.
    pub cut: Vec<Vec<u64>>,
    pub cut_to_leader: Vec<u64>,
    pub cut_from_leader: Vec<u64>,
    pub no_leader_until: u64,
    pub open: HashMap<u64, Open>,
    pub judge: Judge,
    /// A flush that was refused may hide versions below it.
    pub doubtful: Version,
    /// The stand-ins, by slot and epoch, that have raised their floors, and whether a write was
    /// acknowledged by their epoch.
    pub losses: HashMap<(Slot, Epoch), bool>,
    /// When each slot was last answered for.
    pub served: Vec<u64>,
    /// When a write of each slot was last acknowledged.
    pub written: Vec<u64>,
}

/// The lease of a member that has heard no leader for so long that it goes on without one.
pub const NO_QUORUM: Duration = Duration::MAX;

/// How often a core gets a timer.
pub const TICK_MS: u64 = 100;

pub fn config(setup: &Setup, me: usize) -> Config {
    Config {
        me: MemberId(me as u8),
        slots_len: setup.slots,
        copies_max: 2,
        tick: Duration::from_millis(TICK_MS),
        refuse_after: Duration::from_millis(3_000),
        rules: setup.rules,
    }
}

/// A layout by rendezvous hashing over random weights.
pub fn layout(setup: &Setup, random: &mut Random) -> Arc<Layout> {
    let weights: Vec<u64> = (0..setup.members)
        .map(|_| [0, 1, 1, 2][random.index(4)])
        .collect();
    let rows: Vec<Vec<MemberId>> = (0..setup.slots)
        .map(|_| {
            let mut scored: Vec<(bool, u64, MemberId)> = (0..setup.members)
                .map(|m| {
                    let score = random.below(1_000) * weights[m];
                    (weights[m] > 0, score, MemberId(m as u8))
                })
                .collect();
            scored.sort_by(|a, b| b.cmp(a));
            let ranked = scored.into_iter().map(|(_, _, member)| member);
            ranked.take(setup.replicas).collect()
        })
        .collect();
    // A member without a weight stands in as well, so that no slot is without an owner.
    let members = (0..setup.members).map(|m| MemberId(m as u8)).collect();
    Arc::new(Layout::new(&rows, members).expect("rows of equal length"))
}

impl Cluster {
    pub fn new(setup: &Setup, random: &mut Random) -> Self {
        let members = setup.members;
        let node = |me: usize, random: &mut Random| Node {
            core: Core::new(config(setup, me)),
            store: Store::new(setup.slots),
            saved: None,
            lost_writes: false,
            alive: false,
            paused_until: None,
            backlog: Vec::new(),
            incarnation: 0,
            wall_offset_ms: 1_000_000 + random.below(2 * setup.skew_ms_max + 1),
            learned: 0,
            heard_leader: 0,
            lease: Duration::ZERO,
            evicted: Epoch(0),
            volatile: Vec::new(),
        };
        let layout = layout(setup, random);
        Self {
            raft: Raft::new(members, layout),
            topologies_seen: 1,
            nodes: (0..members).map(|me| node(me, random)).collect(),
            cut: vec![vec![0; members]; members],
            cut_to_leader: vec![0; members],
            cut_from_leader: vec![0; members],
            no_leader_until: 0,
            open: HashMap::new(),
            losses: HashMap::new(),
            doubtful: Version(0),
            judge: Judge::new(setup.slots, setup.keys),
            served: vec![0; usize::from(setup.slots)],
            written: vec![0; usize::from(setup.slots)],
        }
    }

    /// Whether a majority of the members reaches the leader, which they elect among themselves.
    pub fn has_quorum(&self, now: u64) -> bool {
        let reaches = |&m: &usize| {
            self.nodes[m].runs() && self.cut_to_leader[m] <= now && self.cut_from_leader[m] <= now
        };
        let reaching = (0..self.nodes.len()).filter(reaches).count();
        reaching * 2 > self.nodes.len() && self.no_leader_until <= now
    }

    /// The wall clock of the leader. Each election may give another leader.
    pub fn leader_wall_ms(&self, now: u64) -> u64 {
        let elected = self.raft.available_since.unwrap_or(0) as usize / 100;
        now + self.nodes[elected % self.nodes.len()].wall_offset_ms
    }

    /// Whether a member goes on without a quorum while the others have gone on without it.
    pub fn is_left_behind(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        node.lease == NO_QUORUM && node.core.applied() < self.raft.topology().epoch
    }

    /// Notes that a member acknowledges a write. True if the write is lost already: a stand-in has
    /// raised its floor, which the member has not heard of. The stand-in acknowledges nothing until
    /// all members that are up have.
    pub fn is_lost(&mut self, node: usize, slot: Slot) -> bool {
        let applied = self.nodes[node].core.applied();
        let mut is_lost = false;
        for ((_, since), is_over) in self.losses.iter_mut().filter(|((s, _), _)| *s == slot) {
            is_lost |= applied < *since && !*is_over;
            *is_over |= applied >= *since;
        }
        is_lost
    }

    /// Notes the outcome of a write for the judge.
    pub fn answered(&mut self, request: u64, outcome: Outcome) {
        let Some(open) = self.open.remove(&request) else {
            return;
        };
        let (id, kind, scope) = (open.id, open.kind, (open.slot.0, open.key));
        match outcome {
            Outcome::Acknowledged if !self.is_left_behind(open.node) => {
                self.judge.acknowledge(id, kind, scope);
            }
            Outcome::Skipped => self.judge.skip(id, kind, scope),
            _ => self.judge.fail(id, kind, scope),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Acknowledged,
    Unknown,
    Skipped,
}
