//! The world of simulated members: its time, its network, and its running members.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fonn_base::random::SplitMix64;
use fonn_proto::member::Member;

use super::FORMED;
use super::judge::Verdict;
use super::log::Disk;
use super::message::Message;
use super::node::{DECIDE, JOIN, Node, RECONCILE};
use crate::detector::PERIOD;
use crate::election::HEARTBEAT;
use crate::member::MemberInfo;
use crate::types::RaftId;

#[derive(Clone, Copy, Debug)]
pub(super) enum Tick {
    Campaign,
    Heartbeat,
    Ask,
    Decide,
    Reconcile,
    Join,
}

#[derive(Debug)]
pub(super) enum Event {
    Tick {
        at: usize,
        life: u32,
        tick: Tick,
    },
    Message {
        from: RaftId,
        to: RaftId,
        message: Message,
    },
}

/// What the network does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) late_max: Duration,
    pub(super) lost_permille: u64,
}

pub(super) const FAIR: Weather = Weather {
    late_max: Duration::from_millis(40),
    lost_permille: 0,
};

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) random: SplitMix64,
    pub(super) start: Instant,
    pub(super) now: Instant,
    /// By time, and in the order in which they were made.
    events: BTreeMap<(Instant, u64), Box<Event>>,
    count: u64,
    pub(super) nodes: Vec<Slot>,
    pub(super) weather: Weather,
    /// The pairs between which nothing arrives.
    pub(super) cut: BTreeSet<(usize, usize)>,
    /// What all members made of an epoch.
    pub(super) maps: BTreeMap<u64, Vec<Member>>,
    pub(super) leaders: BTreeMap<u64, RaftId>,
    /// The members declared down, and up again, in the order in which it was agreed on.
    pub(super) verdicts: Vec<Verdict>,
    pub(super) judged: usize,
}

/// A place for a member: it runs or it does not.
pub(super) struct Slot {
    pub(super) node: Option<Node>,
    pub(super) info: MemberInfo,
    pub(super) disk: Disk,
    life: u32,
    /// What it had applied when it was looked at last.
    pub(super) looked: usize,
}

fn info(at: usize, raft_id: RaftId) -> MemberInfo {
    let id = format!("node-{at}");
    MemberInfo {
        client_address: format!("{id}:1"),
        cluster_address: format!("{id}:2"),
        zone: format!("zone-{}", at % 3),
        weight: 100,
        version: String::new(),
        id,
        raft_id,
    }
}

impl World {
    /// A cluster of `count` that comes together until [`FORMED`].
    pub(super) fn form(seed: u64, count: usize) -> Self {
        // Any instant is as good as another: only differences matter.
        let start = Instant::now();
        let mut world = Self {
            seed,
            random: SplitMix64::new(seed),
            start,
            now: start,
            events: BTreeMap::new(),
            count: 0,
            nodes: Vec::new(),
            weather: FAIR,
            cut: BTreeSet::new(),
            maps: BTreeMap::new(),
            leaders: BTreeMap::new(),
            verdicts: Vec::new(),
            judged: 0,
        };
        for at in 0..count {
            let info = info(at, 1 + at as u64);
            let disk = match at {
                0 => Node::founded(&info, start),
                _ => Disk::default(),
            };
            world.nodes.push(Slot {
                node: None,
                info,
                disk,
                life: 0,
                looked: 0,
            });
            world.wake(at);
        }
        world.run_until(FORMED);
        let formed = world.running().all(|node| node.active().len() == count);
        assert!(
            formed,
            "seed {seed}: not formed in {FORMED:?}: {}",
            world.describe()
        );
        world
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter_map(|slot| slot.node.as_ref())
    }

    pub(super) fn schedule(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count), Box::new(event));
    }

    /// Starts a member on the disk that it has.
    pub(super) fn wake(&mut self, at: usize) {
        let (seed, now) = (self.random.next_u64(), self.now);
        let slot = &mut self.nodes[at];
        if slot.node.is_some() {
            return;
        }
        slot.life += 1;
        slot.looked = 0;
        slot.node = Some(Node::new(slot.info.clone(), slot.disk.clone(), seed, now));
        let life = slot.life;
        for tick in [
            Tick::Campaign,
            Tick::Heartbeat,
            Tick::Ask,
            Tick::Decide,
            Tick::Reconcile,
            Tick::Join,
        ] {
            self.schedule(now, Event::Tick { at, life, tick });
        }
    }

    pub(super) fn crash(&mut self, at: usize) {
        let slot = &mut self.nodes[at];
        if let Some(node) = slot.node.take() {
            slot.disk = node.disk;
        }
    }

    /// Its disk is empty from now on: to raft it is another member.
    pub(super) fn wipe(&mut self, at: usize) {
        self.crash(at);
        self.nodes[at].disk = Disk::default();
        self.nodes[at].info.raft_id += 100;
    }

    /// Whether every set of voters that a member applies has a majority without any one disk: what
    /// else is lost with a disk no protocol can make up for.
    pub(super) fn bears_loss_of_a_disk(&self) -> bool {
        let mut disks = self.nodes.iter().map(|slot| match &slot.node {
            Some(node) => &node.disk,
            None => &slot.disk,
        });
        disks.all(|disk| disk.config().bears_a_loss())
    }

    pub(super) fn place(&self, id: RaftId) -> Option<usize> {
        self.nodes.iter().position(|slot| slot.info.raft_id == id)
    }

    pub(super) fn run_until(&mut self, time: Duration) {
        let end = self.start + time;
        while let Some(next) = self.events.first_entry()
            && next.key().0 <= end
        {
            self.now = next.key().0;
            match *next.remove() {
                Event::Tick { at, life, tick } => self.tick(at, life, tick),
                Event::Message { from, to, message } => self.deliver(from, to, message),
            }
        }
        self.now = end;
    }

    fn tick(&mut self, at: usize, life: u32, tick: Tick) {
        let now = self.now;
        let slot = &mut self.nodes[at];
        let Some(node) = slot.node.as_mut().filter(|_| slot.life == life) else {
            return;
        };
        let next = match tick {
            Tick::Campaign => {
                node.campaign(now);
                node.due().max(now + Duration::from_millis(1))
            }
            Tick::Heartbeat => {
                node.heartbeat(now);
                now + HEARTBEAT
            }
            Tick::Ask => {
                node.ask(now);
                now + PERIOD
            }
            Tick::Decide => {
                node.decide(now);
                now + DECIDE
            }
            Tick::Reconcile => {
                node.reconcile(now);
                now + RECONCILE
            }
            Tick::Join => {
                if node.wants_in() {
                    let (info, own) = (node.info.clone(), node.info.raft_id);
                    let others = self.nodes.iter().map(|it| it.info.raft_id);
                    let others: Vec<RaftId> = others.filter(|id| *id != own).collect();
                    for id in others {
                        self.send(own, id, Message::Join(info.clone()));
                    }
                }
                now + JOIN
            }
        };
        self.schedule(next, Event::Tick { at, life, tick });
        self.collect(at);
    }

    fn deliver(&mut self, from: RaftId, to: RaftId, message: Message) {
        let now = self.now;
        let Some(at) = self.place(to) else { return };
        if let Some(node) = &mut self.nodes[at].node {
            node.receive(from, message, now);
            self.collect(at);
        }
    }

    /// Sends what a member has to say, and looks at what it came to.
    pub(super) fn collect(&mut self, at: usize) {
        let Some(node) = &mut self.nodes[at].node else {
            return;
        };
        let own = node.info.raft_id;
        for (to, message) in std::mem::take(&mut node.out) {
            self.send(own, to, message);
        }
        self.judge(at);
    }

    fn send(&mut self, from: RaftId, to: RaftId, message: Message) {
        let (Some(source), Some(target)) = (self.place(from), self.place(to)) else {
            return;
        };
        let is_lost = self.random.below(1000) < self.weather.lost_permille;
        if self.cut.contains(&(source, target)) || is_lost {
            return;
        }
        let late_max = self.weather.late_max;
        let late = self.random.below(late_max.as_micros() as u64 + 1);
        let at = self.now + Duration::from_micros(200 + late);
        self.schedule(at, Event::Message { from, to, message });
    }

    pub(super) fn leader(&self) -> Option<usize> {
        self.nodes
            .iter()
            .position(|slot| slot.node.as_ref().is_some_and(|it| it.is_leading(self.now)))
    }

    pub(super) fn describe(&self) -> String {
        let shown = self.nodes.iter().enumerate().map(|(at, slot)| match &slot.node {
            None => format!("node-{at} does not run"),
            Some(node) => format!(
                "node-{at} ({}): term {}, epoch {}, log {}, applied {}, voters {:?}, active {:?}",
                node.info.raft_id, node.term(), node.state.epoch, node.disk.log.len(), node.applied, node.voters(), node.active(),
            ),
        });
        shown.collect::<Vec<_>>().join("\n")
    }
}
