//! Membership under simulated time: thousands of runs, each a function of its seed, without a
//! clock, a thread or a socket. Messages are late, lost and out of order; members crash, come back,
//! and lose their disks; links are cut, each direction by itself.
//!
//! `FONN_SIMULATION_SEEDS` says how many seeds (100; the suite `simulations` has more),
//! `FONN_SIMULATION_SEED` which one alone.

mod asking;
mod judge;
mod log;
mod message;
mod node;
mod world;

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use fonn_proto::placement::SLOT_COUNT;

use self::node::Node;
use self::world::{FAIR, World};
use super::map::Map;

/// Seeds of a run that asks for no number: each simulation takes seconds then.
const SEEDS: u64 = 100;
/// Down within this time of its last sign of life.
const FALL_MAX: Duration = Duration::from_secs(2);
/// The same for the leader: another leader has to be found first.
const LEADER_FALL_MAX: Duration = Duration::from_secs(2);
/// The same if the next leader does not stay: the next waits for what it may have promised.
const TWO_ELECTIONS_FALL_MAX: Duration = Duration::from_secs(5);
/// When a cluster of up to seven has come together, and when faults end.
const FORMED: Duration = Duration::from_secs(6);
const FAULTS: Duration = Duration::from_secs(12);
/// From the end of all faults until no member fails any more: a silent member is missed a little
/// later.
const RESTLESS: Duration = Duration::from_secs(4);
/// From the end of all faults until all agree.
const AGREEMENT_MAX: Duration = Duration::from_secs(12);
/// For how long each loss is watched.
const LOSS: Duration = Duration::from_secs(7);

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

/// Messages arrive within bounds: no member fails or stands for election.
fn calm(seed: u64) {
    let mut world = World::form(seed, 3 + 2 * (seed / 4 % 3) as usize);
    let leaders = world.leaders.clone();
    world.run_until(FAULTS);
    let has_fallen = world.verdicts.iter().any(|it| it.is_down);
    assert!(!has_fallen, "seed {seed}: {:?}", world.verdicts);
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
        // With two left no member can vote in its place.
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
    let moved = (0..SLOT_COUNT).filter(|slot| before.owner_ids(*slot) != after.owner_ids(*slot));
    let moved: Vec<_> = moved.collect();
    let had = |slot: &&u16| before.owner_ids(**slot).contains(&gone);
    totals.moved += moved.len();
    totals.least += moved.iter().filter(had).count();
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

/// The seeds that are asked for.
fn seeds() -> Range<u64> {
    match setting("FONN_SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("FONN_SIMULATION_SEEDS").unwrap_or(SEEDS),
    }
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
    let seeds = seeds();
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
