//! Runs seeds of the simulation.

use super::flush::Flushing;
use super::setup::Setup;
use super::world::{Action, World};

/// What the seeds did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub reads: u64,
    pub hits: u64,
    pub acknowledged: u64,
    pub topologies: u64,
    pub flushes: u64,
}

pub fn run(setup: Setup) -> Result<Totals, String> {
    let chaos_ms = setup.chaos_ms;
    let seed = setup.seed;
    let mut world = World::new(setup);
    let outcome = run_world(&mut world, chaos_ms);
    outcome.map_err(|e| format!("seed {seed} at {} ms: {e}\n{:?}", world.now, world.setup))?;
    let mut totals = Totals::default();
    for cluster in &world.clusters {
        totals.reads += cluster.judge.reads;
        totals.hits += cluster.judge.hits;
        totals.acknowledged += cluster.judge.acknowledged;
        totals.topologies += cluster.raft.log.len() as u64;
        totals.flushes += cluster.judge.flushes;
    }
    Ok(totals)
}

fn run_world(world: &mut World, chaos_ms: u64) -> Result<(), String> {
    for c in 0..world.clusters.len() {
        for n in 0..world.setup.members {
            world.start((c, n));
        }
        world.schedule(0, Action::Beat(c));
    }
    world.schedule(0, Action::Probe);
    world.schedule(500, Action::Client);
    world.schedule(3_000, Action::Fault);
    if world.setup.flushes {
        world.schedule(2_000, Action::Flush(Flushing::Begin));
    }
    if world.setup.bucket {
        world.schedule(1_000, Action::Upload);
    }
    world.run_until(chaos_ms)?;
    world.heal()?;
    world.run_until(chaos_ms + 25_000)?;
    world.check_end()
}

pub fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_seed_shows_a_stale_value_loses_a_write_or_leaves_a_slot_alone() {
    let one = variable("FONN_REPLICATION_SEED");
    let count = variable("FONN_REPLICATION_SEEDS").unwrap_or(200);
    let first = variable("FONN_REPLICATION_FROM").unwrap_or(0);
    let seeds = one.map_or(first..first + count, |seed| seed..seed + 1);
    let mut sum = Totals::default();
    let mut failures = Vec::new();
    for seed in seeds {
        match run(Setup::from_seed(seed)) {
            Ok(totals) => {
                sum.reads += totals.reads;
                sum.hits += totals.hits;
                sum.acknowledged += totals.acknowledged;
                sum.topologies += totals.topologies;
                sum.flushes += totals.flushes;
            }
            Err(failure) => failures.push(failure),
        }
    }
    println!("{sum:?}");
    for failure in failures.iter().take(6) {
        println!("{failure}\nreplay: FONN_REPLICATION_SEED=<seed> FONN_REPLICATION_TRACE=1");
    }
    assert!(failures.is_empty(), "{} seeds failed", failures.len());
}
