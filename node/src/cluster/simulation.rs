//! Membership under simulated time: thousands of runs, each a function of its seed, without a clock, a
//! thread or a socket. Messages are late, lost and out of order; members crash, come back, and lose their
//! disks; links are cut, each direction by itself.
//!
//! `FONN_SIMULATION_SEEDS` says how many seeds (2,000), `FONN_SIMULATION_SEED` which one alone.

mod asking;
mod data;
mod flush;
mod log;
mod missing;
mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use fonn_proto::placement::moves;
use fonn_runtime::random::SplitMix64;

use self::data::Clients;
use self::log::{Disk, Payload};
use self::node::{DECIDE, HEARTBEAT, JOIN, Message, Node, RECONCILE, detector_options};
use super::map::{Map, MapMember, members};
use super::member::MemberInfo;
use super::state::Change;
use super::types::RaftId;

/// Down within this time of its last sign of life.
const FALL_MAX: Duration = Duration::from_secs(2);
/// The same for who led: another leader has to be found first.
const LEADER_FALL_MAX: Duration = Duration::from_secs(2);
/// The same if that one does not stay: the next waits for what it may have promised.
const TWO_ELECTIONS_FALL_MAX: Duration = Duration::from_secs(5);
/// When a cluster of up to seven has come together, and when faults end.
const FORMED: Duration = Duration::from_secs(6);
const FAULTS: Duration = Duration::from_secs(12);
/// From the end of all faults until nobody falls any more: who was silent is missed a little later.
const RESTLESS: Duration = Duration::from_secs(4);
/// From the end of all faults until all agree.
const AGREEMENT_MAX: Duration = Duration::from_secs(12);
/// For how long each loss is watched.
const LOSS: Duration = Duration::from_secs(7);

#[derive(Clone, Copy, Debug)]
enum Tick {
    Campaign,
    Heartbeat,
    Ask,
    Decide,
    Reconcile,
    Join,
}

#[derive(Debug)]
enum Event {
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
    /// A client asks for something.
    Operate,
    /// A client flushes, and will again.
    Flush {
        again: bool,
    },
}

/// What the network does.
#[derive(Clone, Copy, Debug)]
struct Weather {
    late_max: Duration,
    lost_permille: u64,
}

const FAIR: Weather = Weather {
    late_max: Duration::from_millis(40),
    lost_permille: 0,
};

struct World {
    seed: u64,
    random: SplitMix64,
    start: Instant,
    now: Instant,
    /// By time, and in the order in which they were made.
    events: BTreeMap<(Instant, u64), Box<Event>>,
    count: u64,
    nodes: Vec<Slot>,
    weather: Weather,
    /// From whom to whom nothing arrives.
    cut: BTreeSet<(usize, usize)>,
    /// What everybody made of an epoch.
    maps: BTreeMap<u64, Vec<MapMember>>,
    leaders: BTreeMap<u64, RaftId>,
    /// Who was held for down, and for up again, in the order in which it was agreed on.
    verdicts: Vec<Verdict>,
    judged: usize,
    clients: Clients,
}

/// What a leader made of a member.
#[derive(Clone, Debug)]
struct Verdict {
    raft_id: RaftId,
    is_down: bool,
    term: u64,
    /// When it was proposed.
    made: Instant,
    /// When it was agreed on, as far as anybody knows.
    agreed: Instant,
}

/// A place for a member: it runs or it does not.
struct Slot {
    node: Option<Node>,
    info: MemberInfo,
    disk: Disk,
    life: u32,
    /// What it had applied when it was looked at last.
    looked: usize,
    /// Until then it stands still; what comes waits.
    paused_until: Instant,
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
    fn form(seed: u64, count: usize) -> Self {
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
            clients: Clients::default(),
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
                paused_until: start,
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

    fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter_map(|slot| slot.node.as_ref())
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count), Box::new(event));
    }

    /// Starts a member on the disk that it has.
    fn wake(&mut self, at: usize) {
        let (seed, now) = (self.random.next_u64(), self.now);
        let slot = &mut self.nodes[at];
        if slot.node.is_some() {
            return;
        }
        slot.life += 1;
        slot.looked = 0;
        slot.node = Some(Node::new(slot.info.clone(), slot.disk.clone(), seed, now));
        let life = slot.life;
        self.rule(at);
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

    fn crash(&mut self, at: usize) {
        let slot = &mut self.nodes[at];
        if let Some(node) = slot.node.take() {
            slot.disk = node.disk;
        }
    }

    /// Its disk is empty from now on: to raft it is somebody else.
    fn wipe(&mut self, at: usize) {
        self.crash(at);
        self.nodes[at].disk = Disk::default();
        self.nodes[at].info.raft_id += 100;
    }

    /// Whether every set of voters that somebody goes by has a majority without any one disk: what else is lost
    /// with a disk no protocol can make up for.
    fn bears_loss_of_a_disk(&self) -> bool {
        let mut disks = self.nodes.iter().map(|slot| match &slot.node {
            Some(node) => &node.disk,
            None => &slot.disk,
        });
        disks.all(|disk| disk.config().bears_a_loss())
    }

    fn place(&self, id: RaftId) -> Option<usize> {
        self.nodes.iter().position(|slot| slot.info.raft_id == id)
    }

    fn run_until(&mut self, time: Duration) {
        let end = self.start + time;
        while let Some(next) = self.events.first_entry()
            && next.key().0 <= end
        {
            self.now = next.key().0;
            match *next.remove() {
                Event::Tick { at, life, tick } => self.tick(at, life, tick),
                Event::Message { from, to, message } => self.deliver(from, to, message),
                Event::Operate => self.operate(),
                Event::Flush { again } => self.flush(again),
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
        if slot.paused_until > now {
            let until = slot.paused_until;
            return self.schedule(until, Event::Tick { at, life, tick });
        }
        node.turn(now);
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
                now + detector_options().period
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
        let until = self.nodes[at].paused_until;
        if until > now {
            return self.schedule(until, Event::Message { from, to, message });
        }
        if let Some(node) = &mut self.nodes[at].node {
            node.turn(now);
            node.receive(from, message, now);
            self.collect(at);
        }
    }

    /// Sends what a member has to say, and looks at what it came to.
    fn collect(&mut self, at: usize) {
        let Some(node) = &mut self.nodes[at].node else {
            return;
        };
        let own = node.info.raft_id;
        for (to, message) in std::mem::take(&mut node.out) {
            self.send(own, to, message);
        }
        self.hear_of_flushes(at);
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
        let late_max = message.late_max(self.weather.late_max);
        let late = self.random.below(late_max.as_micros() as u64 + 1);
        let at = self.now + Duration::from_micros(200 + late);
        self.schedule(at, Event::Message { from, to, message });
    }

    /// What has to hold at every moment.
    fn judge(&mut self, at: usize) {
        let (seed, now) = (self.seed, self.now);
        let slot = &mut self.nodes[at];
        let Some(node) = &slot.node else { return };
        if node.is_leader() {
            let leader = *self.leaders.entry(node.term()).or_insert(node.info.raft_id);
            let (own, term) = (node.info.raft_id, node.term());
            assert_eq!(leader, own, "seed {seed}: two leaders of term {term}");
        }
        if node.applied == slot.looked {
            return;
        }
        slot.looked = node.applied;
        if node.state.epoch > 0 {
            // The owners of slots are a function of this alone.
            let (epoch, map) = (node.state.epoch, members(&node.state));
            let known = self.maps.entry(epoch).or_insert_with(|| map.clone());
            assert_eq!(*known, map, "seed {seed}: two maps of epoch {epoch}");
        }
        for entry in node.disk.log.iter().take(node.applied).skip(self.judged) {
            self.judged += 1;
            let (term, made) = (entry.term, entry.made);
            let Payload::Change(Change::SetDown {
                raft_id, is_down, ..
            }) = entry.payload
            else {
                continue;
            };
            let last = self.verdicts.iter().rev().find(|it| it.raft_id == raft_id);
            // Another leader has its own view; the same one does not change its mind so soon.
            if let Some(last) = last.filter(|it| it.term == term && it.is_down && !is_down) {
                let stood = made - last.made;
                let is_stable = stood >= detector_options().stable;
                assert!(is_stable, "seed {seed}: {raft_id} was down for {stood:?}");
            }
            self.verdicts.push(Verdict {
                raft_id,
                is_down,
                term,
                made,
                agreed: now,
            });
        }
    }

    fn leader(&self) -> Option<usize> {
        self.nodes
            .iter()
            .position(|slot| slot.node.as_ref().is_some_and(|it| it.is_leading(self.now)))
    }

    /// How long after `since` it was agreed on that a member is down.
    fn fall(&self, raft_id: RaftId, since: Instant) -> Option<Duration> {
        let mut falls = self.verdicts.iter().filter(|it| it.raft_id == raft_id);
        let fall = falls.find(|it| it.is_down && it.agreed >= since);
        fall.map(|it| it.agreed - since)
    }

    /// All links are whole and everybody runs: then all agree, and go on.
    fn settle(&mut self) {
        self.cut.clear();
        self.weather = FAIR;
        (0..self.nodes.len()).for_each(|at| self.wake(at));
        self.run_until(FAULTS + AGREEMENT_MAX);
        let (seed, count) = (self.seed, self.nodes.len());
        assert!(
            self.leader().is_some(),
            "seed {seed}: no leader in the end: {}",
            self.describe()
        );
        let late = self.start + FAULTS + RESTLESS;
        // Who lost its disk is missed under its old id as soon as somebody leads.
        let runs = |it: &&Verdict| self.place(it.raft_id).is_some();
        let mut falls = self.verdicts.iter().filter(|it| it.is_down).filter(runs);
        let late = falls.find(|it| it.made > late);
        assert!(late.is_none(), "seed {seed}: {late:?} with all links whole");
        let first = self.running().map(|node| &node.state).next().cloned();
        for node in self.running() {
            assert_eq!(
                Some(&node.state),
                first.as_ref(),
                "seed {seed}: {}",
                self.describe()
            );
            assert_eq!(
                node.active().len(),
                count,
                "seed {seed}: {}",
                self.describe()
            );
        }
    }

    fn describe(&self) -> String {
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

/// What runs came to.
#[derive(Debug, Default)]
struct Totals {
    falls: Falls,
    leader_falls: Falls,
    two_elections_falls: Falls,
    moved: usize,
    least: usize,
    lost_disks: u32,
}

/// How long each loss took to be agreed on.
#[derive(Default)]
struct Falls(Vec<Duration>);

impl Falls {
    fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

impl fmt::Debug for Falls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |permille: usize| {
            let rank = sorted.len().saturating_sub(1) * permille / 1000;
            sorted.get(rank).copied().unwrap_or_default()
        };
        write!(
            f,
            "{} times, p50 {:?}, p99 {:?}, max {:?}",
            sorted.len(),
            at(500),
            at(990),
            at(1000)
        )
    }
}

impl Totals {
    fn and(self, other: Self) -> Self {
        Self {
            falls: self.falls.and(other.falls),
            leader_falls: self.leader_falls.and(other.leader_falls),
            two_elections_falls: self.two_elections_falls.and(other.two_elections_falls),
            moved: self.moved + other.moved,
            least: self.least + other.least,
            lost_disks: self.lost_disks + other.lost_disks,
        }
    }
}

/// Messages arrive within bounds: nobody falls, nobody stands for election.
fn calm(seed: u64) {
    let mut world = World::form(seed, 3 + 2 * (seed / 4 % 3) as usize);
    let (fallen, leaders) = (world.verdicts.len(), world.leaders.clone());
    world.run_until(FAULTS);
    assert_eq!(
        world.verdicts.len(),
        fallen,
        "seed {seed}: {:?}",
        world.verdicts
    );
    assert_eq!(fallen, 0, "seed {seed}: {:?}", world.verdicts);
    assert_eq!(world.leaders, leaders, "seed {seed}");
}

/// One member after the other crashes: each is noticed in time, others vote in its place.
fn losses(seed: u64, totals: &mut Totals) {
    let mut world = World::form(seed, 5);
    // A table is slow to make without optimisation, and the owners are a function of the members.
    let is_counted = seed.is_multiple_of(64);
    let first = world.running().next().filter(|_| is_counted);
    let before = first.map(|node| Map::new(&node.state));
    for round in 0..3_u32 {
        let candidates: Vec<usize> = (0..5)
            .filter(|at| world.nodes[*at].node.is_some())
            .collect();
        let at = candidates[world.random.below(candidates.len() as u64) as usize];
        let was_leader = world.leader() == Some(at);
        let (id, raft_id, since) = (
            world.nodes[at].info.id.clone(),
            world.nodes[at].info.raft_id,
            world.now,
        );
        let leaders = world.leaders.len();
        world.crash(at);
        world.run_until(FORMED + LOSS * (round + 1));
        let elections = world.leaders.len() - leaders;
        let fall = world.fall(raft_id, since);
        let fall =
            fall.unwrap_or_else(|| panic!("seed {seed}: {id} is not missed\n{}", world.describe()));
        let (max, seen) = match was_leader {
            true if elections > 1 => (TWO_ELECTIONS_FALL_MAX, &mut totals.two_elections_falls),
            true => (LEADER_FALL_MAX, &mut totals.leader_falls),
            false => (FALL_MAX, &mut totals.falls),
        };
        assert!(
            fall <= max,
            "seed {seed}: {id} fell {fall:?} after its crash"
        );
        seen.0.push(fall);
        // With two left there is nobody to vote in its place.
        let leader = world
            .leader()
            .unwrap_or_else(|| panic!("seed {seed}: nobody leads\n{}", world.describe()));
        let voters = world.nodes[leader].node.as_ref().map(Node::voters);
        let votes = voters.is_some_and(|it| it.contains(&raft_id));
        assert!(
            round == 2 || !votes,
            "seed {seed}: {id} still votes\n{}",
            world.describe()
        );
        if round == 0 && is_counted {
            let after = world.nodes[leader]
                .node
                .as_ref()
                .map(|node| Map::new(&node.state));
            if let (Some(before), Some(after)) = (&before, &after) {
                count_moves(before, after, &id, totals);
            }
        }
    }
    let verdicts = world.verdicts.iter().filter(|it| it.is_down).count();
    assert_eq!(verdicts, 3, "seed {seed}: {:?}", world.verdicts);
}

fn count_moves(before: &Map, after: &Map, gone: &str, totals: &mut Totals) {
    fn ids(map: &Map) -> Vec<&str> {
        map.members.iter().map(|it| it.id.as_str()).collect()
    }
    let (Some(old), Some(new)) = (&before.table, &after.table) else {
        return;
    };
    let moved = moves((old, &ids(before)), (new, &ids(after)));
    totals.moved += moved.len();
    totals.least += moved
        .iter()
        .filter(|it| it.from.iter().any(|id| id == gone))
        .count();
}

/// Everything at once; then all faults end.
fn chaos(seed: u64, totals: &mut Totals) {
    let count = 3 + (seed / 4 % 5) as usize;
    let mut world = World::form(seed, count);
    let mut is_wiped = false;
    let mut time = FORMED;
    while time < FAULTS {
        let at = world.random.below(count as u64) as usize;
        let other = world.random.below(count as u64) as usize;
        match world.random.below(12) {
            0 | 1 => world.crash(at),
            2 | 3 => world.wake(at),
            // One disk alone: a majority of them is what the cluster agreed on.
            4 if !is_wiped && world.bears_loss_of_a_disk() => {
                is_wiped = true;
                totals.lost_disks += 1;
                world.wipe(at);
                world.wake(at);
            }
            5 => {
                world.cut.insert((at, other));
            }
            6 => world.cut.extend([(at, other), (other, at)]),
            7 => world
                .cut
                .extend((0..count).flat_map(|it| [(at, it), (it, at)])),
            8 => world.cut.clear(),
            9 => world.weather = FAIR,
            10 => world.weather.lost_permille = world.random.below(300),
            _ => world.weather.late_max = Duration::from_millis(world.random.below(600)),
        }
        time += Duration::from_millis(50 + world.random.below(900));
        world.run_until(time.min(FAULTS));
    }
    world.settle();
}

fn run(seed: u64, totals: &mut Totals) {
    match seed % 4 {
        0 => losses(seed, totals),
        1 => calm(seed),
        _ => chaos(seed, totals),
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs seeds one after the other.
fn run_some(seeds: impl Iterator<Item = u64>) -> Totals {
    let mut totals = Totals::default();
    for seed in seeds {
        run(seed, &mut totals);
    }
    totals
}

#[test]
fn whatever_happens_there_is_one_map_an_epoch_and_all_agree_in_the_end() {
    let seeds = match setting("FONN_SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("FONN_SIMULATION_SEEDS").unwrap_or(2000),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // Each run is a function of its seed alone, so threads change nothing but the time it takes.
    let totals = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads)
            .map(|at| {
                scope.spawn({
                    let seeds = seeds.clone().skip(at).step_by(threads);
                    move || run_some(seeds)
                })
            })
            .collect();
        let joined = runs.into_iter().map(|run| run.join());
        joined
            .map(|totals| totals.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .fold(Totals::default(), Totals::and)
    });
    println!("{} seeds: {totals:?}", seeds.end - seeds.start);
    let Totals { moved, least, .. } = totals;
    assert!(
        moved * 10 <= least * 11,
        "{moved} slots moved where {least} had to"
    );
}
