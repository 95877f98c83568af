//! One key under simulated membership, with one owner: which member may answer for it, its
//! versions, and what clients see.
//!
//! Wall clocks differ by seconds. The clock of versions and the leases are the real ones. Copying
//! the key is a model: the new owner asks all members that are up, and they answer once they have
//! applied its map.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use fonn_base::clock::ManualClock;
use fonn_base::hlc::{COUNTER_BITS, Hlc};
use parking_lot::Mutex;

use super::flush::{Flushes, Flushing, News};
use super::log::Disk;
use super::message::Message;
use super::missing::Removing;
use super::node::Node;
use super::world::{Event, FAIR, World};
use super::{FORMED, seeds};
use crate::cluster::election;
use crate::cluster::lease::Role;
use crate::cluster::member::Phase;
use crate::cluster::types::RaftId;
use crate::engine::CEILING_AHEAD_MS;

/// As the members' pulses have it: a promise is taken to end earlier by this.
const PROMISE_GUARD: Duration = Duration::from_millis(50);
/// The same: the leader is waited for, before the last map is gone by.
const LEADER_WAIT: Duration = Duration::from_secs(3);
/// How far wall clocks are apart.
const SKEW_MS: u64 = 8000;
/// Where wall clocks begin.
const WALL_MS: u64 = 1_700_000_000_000;
/// For how long faults happen.
const FAULTS: Duration = Duration::from_secs(40);

/// What members go by; without any of it it shows why they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// A member without a lease does not answer.
    pub(super) leases: bool,
    /// A member gives versions of the range of its epoch alone.
    pub(super) ranges: bool,
    /// Members agree on the cutoff of a flush.
    pub(super) agrees: bool,
    /// Clients flush.
    pub(super) flushes: bool,
    /// What a member that is down may have overwritten is not shown.
    pub(super) doubts: bool,
    /// Only a member that can know is believed that no member is missing.
    pub(super) knows: bool,
    /// Members that still had to be asked are noted.
    pub(super) sources: bool,
    /// Members are removed as they are.
    pub(super) removals: bool,
    /// That waits for what was promised to them.
    pub(super) waits: bool,
}

impl Default for Rules {
    /// What members go by, without flushes.
    fn default() -> Self {
        Self {
            leases: true,
            ranges: true,
            agrees: true,
            flushes: false,
            doubts: true,
            knows: true,
            sources: true,
            removals: false,
            waits: true,
        }
    }
}

/// What a member has of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) version: u64,
    pub(super) value: u64,
}

/// A member's part in it.
pub(super) struct Data {
    clock: ManualClock,
    hlc: Hlc,
    pub(super) rules: Rules,
    /// The applied map, and the members that are up by it.
    pub(super) epoch: u64,
    pub(super) up: BTreeSet<RaftId>,
    is_owner: bool,
    /// The members that have been up ever since it owns the key: what others acknowledged before,
    /// and took along, it does not know.
    pub(super) stayed: BTreeSet<RaftId>,
    /// The members that have not told yet what they have.
    lacks: BTreeSet<RaftId>,
    /// The flush that it began last, if that is not over.
    pub(super) flushing: Option<Flushing>,
    /// Its part in flushes, for the world.
    pub(super) news: Vec<News>,
    /// How many were up when the world looked last.
    pub(super) up_seen: usize,
    /// The member that it removes, as the leader.
    pub(super) removing: Option<Removing>,
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Data")
            .field("epoch", &self.epoch)
            .field("up", &self.up)
            .field("is_owner", &self.is_owner)
            .field("lacks", &self.lacks)
            .finish_non_exhaustive()
    }
}

/// Whether a member answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// It does not own the key, or is promised nothing.
    No,
    /// It hears no member, and applies its last map: nothing is promised to its clients.
    CutOff,
    Yes,
}

impl Data {
    pub(super) fn new(disk: &Disk, now: Instant) -> Self {
        let clock = ManualClock::new(WALL_MS);
        let hlc = Hlc::new(clock.clock(), disk.ceiling);
        let mut data = Self {
            clock,
            hlc: hlc.unwrap_or_else(|error| panic!("{error}")),
            rules: Rules::default(),
            epoch: 0,
            up: BTreeSet::new(),
            is_owner: false,
            stayed: BTreeSet::new(),
            lacks: BTreeSet::new(),
            flushing: None,
            news: Vec::new(),
            up_seen: 0,
            removing: None,
        };
        data.set_clock(disk, now);
        data
    }

    fn set_clock(&mut self, disk: &Disk, now: Instant) {
        if let Some((start, wall_ms)) = disk.wall {
            let passed = now.saturating_duration_since(start).as_millis() as u64;
            self.clock.set_wall_ms(wall_ms + passed);
        }
    }

    /// What a range has to contain so that versions follow the clock.
    pub(super) fn wanted(&self) -> u64 {
        self.hlc.wanted()
    }

    pub(super) const fn is_owner(&self) -> bool {
        self.is_owner
    }

    pub(super) const fn lacks(&self) -> &BTreeSet<RaftId> {
        &self.lacks
    }

    pub(super) fn newest_here(&self) -> u64 {
        self.hlc.newest()
    }

    /// The last version that was given or observed.
    pub(super) fn last(&self) -> u64 {
        self.hlc.last()
    }

    /// The next version.
    pub(super) fn next(&self) -> u64 {
        self.hlc.next()
    }

    /// Another member tells how far its versions are.
    pub(super) fn hear(&self, version: u64) {
        self.hlc
            .hear(version)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    pub(super) fn observe(&self, version: u64) {
        self.hlc
            .observe(version)
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

impl Node {
    /// Time goes on.
    pub(super) fn turn(&mut self, now: Instant) {
        self.data.set_clock(&self.disk, now);
        if self.is_leader() {
            self.lease.lead();
        }
    }

    /// Applies the map that was applied last.
    pub(super) fn go_by(&mut self) {
        let own = self.id();
        if self.data.rules.ranges {
            self.data.hlc.enter(self.state.versions);
            self.disk.ceiling = self.disk.ceiling.max(self.data.hlc.last() + 1);
        }
        if self.state.epoch == self.data.epoch {
            return;
        }
        let is_up = |member: &&crate::cluster::member::Member| {
            member.phase == Phase::Active && !member.is_down
        };
        let up: BTreeSet<RaftId> = self
            .state
            .live()
            .filter(is_up)
            .map(|it| it.info.raft_id)
            .collect();
        let back = self.note_missing(&up);
        let data = &mut self.data;
        let is_owner = up.first() == Some(&own);
        if is_owner && data.is_owner && data.up.contains(&own) {
            data.lacks.retain(|id| up.contains(id));
            data.lacks.extend(back);
            data.stayed.retain(|id| up.contains(id));
        } else {
            data.stayed = up.clone();
            data.lacks = up.iter().copied().filter(|id| *id != own).collect();
        }
        (data.epoch, data.up, data.is_owner) = (self.state.epoch, up, is_owner);
        self.note_settled();
        self.ask_for_slot();
    }

    /// Asks those that have not told yet.
    pub(super) fn ask_for_slot(&mut self) {
        let epoch = self.data.epoch;
        for id in self.data.lacks.iter().filter(|_| self.data.is_owner) {
            self.out.push((*id, Message::Fetch { epoch }));
        }
    }

    /// Tells what it has, once it goes by that map.
    pub(super) fn tell(&mut self, to: RaftId, epoch: u64) {
        if self.data.epoch >= epoch {
            let message = Message::Fetched {
                epoch: self.data.epoch,
                held: self.disk.held,
                cutoff: self.disk.cutoff,
                missing: self.missing(),
            };
            self.out.push((to, message));
        }
    }

    pub(super) fn told(&mut self, from: RaftId, (epoch, held, cutoff): (u64, Option<Held>, u64)) {
        if epoch < self.data.epoch {
            return;
        }
        self.learn_cutoff(cutoff);
        if let Some(held) = held {
            self.data.observe(held.version);
            if self.disk.held.is_none_or(|own| own.version < held.version) {
                self.disk.held = Some(held);
            }
        }
        self.data.lacks.remove(&from);
        self.note_settled();
    }

    fn standing(&mut self, now: Instant) -> Stand {
        if !self.data.is_owner || !self.data.lacks.is_empty() {
            return Stand::No;
        }
        let footing = self.footing(now);
        footing.unwrap_or_else(|| panic!("all members know of promises"))
    }

    /// Whether it belongs to the cluster by its map; None if it was told nothing of that.
    pub(super) fn footing(&mut self, now: Instant) -> Option<Stand> {
        let heard = self.heard(now).map_or(Duration::MAX, |heard| now - heard);
        let silence = self.lease.silence(now).map_or(heard, |it| it.min(heard));
        if !self.data.rules.leases {
            // What it went by before there were promises.
            return Some(match silence > Duration::from_millis(1500) {
                true => Stand::CutOff,
                false => Stand::Yes,
            });
        }
        let lease = election::Options::default().lease;
        let role = Role::of(&self.metrics(now));
        if let Some(left) = role.own_lease(lease) {
            let member = self.state.by_raft_id(self.id());
            let since = member.map_or(self.state.epoch, |member| member.since);
            self.lease.promise(since, now + left, now);
        }
        let left = self.lease.left(self.data.epoch, now)?;
        Some(match left > PROMISE_GUARD {
            true => Stand::Yes,
            false if silence >= LEADER_WAIT => Stand::CutOff,
            false => Stand::No,
        })
    }

    fn write(&mut self, value: u64) -> Held {
        let held = Held {
            version: self.data.hlc.next(),
            value,
        };
        if held.version >= self.disk.ceiling {
            // A part of the rest of the range, as in the ledger.
            let newest = self.data.hlc.newest();
            let rest = self.data.hlc.ceiling().saturating_sub(newest);
            let ahead = (CEILING_AHEAD_MS << COUNTER_BITS).min(rest / 8);
            self.disk.ceiling = newest + ahead.max(2 << COUNTER_BITS);
        }
        // What it had is older: it was given, or seen, here.
        self.disk.held = Some(held);
        held
    }
}

/// What clients know.
#[derive(Debug, Default)]
pub(super) struct Clients {
    pub(super) rules: Rules,
    /// What was acknowledged last, and its member, unless it was flushed.
    pub(super) newest: Option<(Held, RaftId)>,
    /// The member that was, or is to be, removed: with what it wrote last.
    pub(super) removed: BTreeSet<RaftId>,
    /// Nothing is said of older versions: a member that was cut off wrote one.
    beyond: u64,
    pub(super) values: u64,
    pub(super) flushes: Flushes,
    judged: u64,
    /// What was seen that must not be.
    pub(super) violation: Option<String>,
}

impl World {
    /// Rules for a member that starts.
    pub(super) fn rule(&mut self, at: usize) {
        let rules = self.clients.rules;
        if let Some(node) = &mut self.nodes[at].node {
            node.data.rules = rules;
        }
    }

    /// A client asks a member something.
    pub(super) fn operate(&mut self) {
        let wait = Duration::from_millis(5 + self.random.below(30));
        self.schedule(self.now + wait, Event::Operate);
        let (now, at) = (
            self.now,
            self.random.below(self.nodes.len() as u64) as usize,
        );
        let is_write = self.random.below(2) == 0 && !self.clients.flushes.is_quiet(now);
        let slot = &mut self.nodes[at];
        let is_paused = slot.paused_until > now;
        let Some(node) = slot.node.as_mut().filter(|_| !is_paused) else {
            return;
        };
        node.turn(now);
        let own = node.info.raft_id;
        let clients = &mut self.clients;
        match node.standing(now) {
            Stand::No => {}
            Stand::CutOff if is_write => {
                clients.values += 1;
                let held = node.write(clients.values);
                clients.beyond = clients.beyond.max(held.version);
            }
            Stand::CutOff => {}
            Stand::Yes if is_write => {
                clients.values += 1;
                let held = node.write(clients.values);
                clients.newest = Some((held, own));
                clients.flushes.note_write(now);
                clients.judged += 1;
            }
            Stand::Yes => {
                if clients.flushes.is_shown(node, clients.beyond) {
                    let (seed, shown) = (self.seed, node.shown());
                    let why = format!(
                        "seed {seed}: {own} shows {shown:?}, {:?} after the start, {:?}, {:?}",
                        now - self.start,
                        clients.flushes,
                        node.data,
                    );
                    clients.violation.get_or_insert(why);
                }
                let Some((newest, by)) = clients.newest else {
                    return;
                };
                // What a failed member took along is missed until it is back, or the key is
                // overwritten.
                let is_there = by == own || node.data.stayed.contains(&by);
                let is_known = newest.version > clients.beyond
                    && !clients.flushes.may_hide(newest.version)
                    && !clients.removed.contains(&by);
                let shown = node.shown();
                let is_right = match shown {
                    Some(shown) => shown == newest,
                    None => !is_there || node.misses_for_doubt(),
                };
                // A miss is always allowed, and says little.
                clients.judged += u64::from(is_known && shown.is_some());
                if is_known && !is_right {
                    let seed = self.seed;
                    let why = format!(
                        "seed {seed}: {own} shows {:?} after {newest:?} was acknowledged by {by}, {:?} after the start, {:?}, {:?}",
                        shown,
                        now - self.start,
                        node.data,
                        node.disk.noted,
                    );
                    clients.violation.get_or_insert(why);
                }
            }
        }
    }
}

/// A cluster of one key whose clients read and write, and when its clocks are together.
pub(super) fn begin(seed: u64, count: usize, rules: Rules) -> (World, Duration) {
    let mut world = World::form(seed, count);
    world.clients.rules = rules;
    for at in 0..count {
        let wall_ms = WALL_MS + world.random.below(SKEW_MS);
        let anchor = Some((world.start, wall_ms));
        if let Some(node) = &mut world.nodes[at].node {
            node.disk.wall = anchor;
        }
        world.rule(at);
    }
    world.operate();
    if rules.flushes {
        world.flush(true);
    }
    // The range of versions follows the clock by then.
    let time = FORMED + Duration::from_secs(1);
    world.run_until(time);
    (world, time)
}

/// Faults under reads and writes of one key. Tells what was seen that must not be.
fn run(seed: u64, rules: Rules) -> (u64, Option<String>) {
    let count = 3 + (seed % 3) as usize;
    let (mut world, mut time) = begin(seed, count, rules);
    let end = time + FAULTS;
    while time < end && world.clients.violation.is_none() {
        let at = world.random.below(count as u64) as usize;
        let other = world.random.below(count as u64) as usize;
        if rules.removals && world.random.below(8) == 0 {
            world.remove_somebody();
        }
        match world.random.below(16) {
            0 => world.crash(at),
            1 | 2 => (0..count).for_each(|it| world.wake(it)),
            // Twice in a row.
            3 => {
                world.crash(at);
                world.wake(at);
            }
            4 | 5 => drop(world.cut.insert((at, other))),
            // No member hears it; it hears all.
            6 | 7 => world.cut.extend((0..count).map(|it| (at, it))),
            8 => world.cut.extend([(at, other), (other, at)]),
            9..=11 => world.cut.clear(),
            12 => world.weather = FAIR,
            13 => world.weather.lost_permille = world.random.below(200),
            14 => world.weather.late_max = Duration::from_millis(world.random.below(500)),
            // Without promises it was another rule that held for a member that stood still.
            _ if rules.leases => {
                let lasts = Duration::from_millis(world.random.below(5000));
                world.nodes[at].paused_until = world.now + lasts;
            }
            _ => {}
        }
        // Versions count on after each epoch; it takes a while until they follow the clock again.
        let pause_ms = if rules.agrees { 1500 } else { 12_000 };
        time += Duration::from_millis(50 + world.random.below(pause_ms));
        world.run_until(time.min(end));
    }
    world.cut.clear();
    world.weather = FAIR;
    (0..count).for_each(|at| world.wake(at));
    world.run_until(time + Duration::from_secs(20));
    let judged = world.clients.judged + world.clients.flushes.count;
    (judged, world.clients.violation.take())
}

/// Runs seeds. Returns how much was judged, and the violations that were seen. With `is_enough` no
/// seed begins after it says so of a violation count.
fn run_all(
    seeds: Range<u64>,
    rules: Rules,
    is_enough: impl Fn(usize) -> bool + Sync,
) -> (u64, Vec<String>) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let done = Mutex::new((0, Vec::new()));
    std::thread::scope(|scope| {
        for at in 0..threads {
            let seeds = seeds.clone().skip(at).step_by(threads);
            let (done, is_enough) = (&done, &is_enough);
            scope.spawn(move || {
                for seed in seeds {
                    if is_enough(done.lock().1.len()) {
                        return;
                    }
                    let (judged, violation) = run(seed, rules);
                    let mut done = done.lock();
                    done.0 += judged;
                    done.1.extend(violation);
                }
            });
        }
    });
    done.into_inner()
}

/// Runs seeds in which no violation may be seen.
pub(super) fn assert_right(seeds: Range<u64>, rules: Rules) {
    let count = seeds.end - seeds.start;
    let (judged, seen) = run_all(seeds, rules, |_| false);
    println!("{count} seeds: {judged} reads, writes and flushes judged");
    let of = seen.len();
    assert!(seen.is_empty(), "{of} of {count}:\n{}", seen.join("\n"));
    assert!(judged > 50 * count, "{judged}");
}

/// Runs seeds without a rule, until one of them shows the violation that the rule prevents.
pub(super) fn assert_wrong(seeds: Range<u64>, rules: Rules) {
    let count = seeds.end - seeds.start;
    let (judged, seen) = run_all(seeds, rules, |seen| seen > 0);
    println!("of {count} seeds at most: {seen:?} ({judged} judged)");
    assert!(!seen.is_empty());
}

#[test]
fn with_one_owner_nothing_older_shows_than_what_was_acknowledged() {
    assert_right(seeds(), Rules::default());
}

#[test]
fn without_leases_or_without_ranges_of_versions_older_values_show() {
    for (leases, ranges) in [(false, true), (true, false)] {
        let rules = Rules {
            leases,
            ranges,
            ..Rules::default()
        };
        assert_wrong(0..200, rules);
    }
}
