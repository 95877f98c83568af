//! `kill -9` at random moments under a writer that keeps book: each acknowledged write is there
//! or was overwritten by a later one, no value is wrong, what was deleted stays gone.
//!
//! `FONN_CRASH_ROUNDS` (default 10) and `FONN_CRASH_SEED` (default from the clock, printed)
//! control the run; the same seed repeats the same operations and the same delays.

#![allow(clippy::print_stderr, reason = "the seed must be on record")]

mod writer;

use std::str::FromStr;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use fonn_tests::checker::{History, State};
use fonn_tests::client::Dialect;
use fonn_tests::component::clock_shifter;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::rng::{Rng, mix};
use fonn_tests::values::{Content, ValuePool};

use crate::writer::{VALUE_LEN_MAX, Writer};

/// Two connections of each dialect.
const WRITERS: usize = 2 * Dialect::ALL.len();
const KEYS_PER_WRITER: usize = 40;

fn setting<T: FromStr>(name: &str) -> Result<Option<T>> {
    let Some(text) = std::env::var_os(name) else {
        return Ok(None);
    };
    let text = text.to_string_lossy().into_owned();
    let parsed = text
        .parse()
        .ok()
        .with_context(|| format!("{name}={text} is not a number"))?;
    Ok(Some(parsed))
}

fn seed() -> Result<u64> {
    let given = setting("FONN_CRASH_SEED")?;
    let seed = given.unwrap_or_else(|| UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64));
    eprintln!("FONN_CRASH_SEED={seed}");
    Ok(seed)
}

fn rounds() -> Result<u64> {
    Ok(setting("FONN_CRASH_ROUNDS")?.unwrap_or(10))
}

/// Lets all writers work until the node dies under them after `life`.
fn work_and_kill(
    node: &mut FonnNode,
    writers: &mut [Writer],
    pool: &ValuePool,
    life: Duration,
) -> Result<u64> {
    let addr = node.addr();
    thread::scope(|scope| {
        let handles: Vec<_> = writers
            .iter_mut()
            .map(|writer| scope.spawn(move || writer.work(addr, pool)))
            .collect();
        thread::sleep(life);
        let killed = node.kill9();
        let mut acknowledged = 0;
        for handle in handles {
            acknowledged += handle.join().expect("a writer does not panic")?;
        }
        killed?;
        Ok(acknowledged)
    })
}

/// Reads every key through a dialect of its own and compares it with what is known.
fn check(node: &FonnNode, writers: &mut [Writer], pool: &ValuePool, shift: u64) -> Result<()> {
    for (index, writer) in writers.iter_mut().enumerate() {
        let dialect = Dialect::ALL[(index + 1) % Dialect::ALL.len()];
        let mut client = dialect.connect(node.addr())?;
        for history in writer.histories() {
            let seen = client.get(history.key())?;
            let now = SystemTime::now() + Duration::from_secs(shift);
            history.judge(seen.as_deref(), now, pool)?;
        }
    }
    Ok(())
}

fn flush(node: &FonnNode, writers: &mut [Writer]) -> Result<()> {
    node.text()?.command("flush_all")?;
    let histories = writers.iter_mut().flat_map(Writer::histories);
    histories.for_each(|history: &mut History| history.acknowledge(State::Absent));
    Ok(())
}

fn new_writers(seed: u64) -> Vec<Writer> {
    (0..WRITERS)
        .map(|index| {
            let dialect = Dialect::ALL[index % Dialect::ALL.len()];
            Writer::new(
                index,
                dialect,
                KEYS_PER_WRITER,
                Rng::new(mix(seed ^ index as u64)),
            )
        })
        .collect()
}

/// Runs rounds of work, death and recovery with the node options given.
fn survive(options: NodeOptions, seed: u64, rounds: u64) -> Result<()> {
    let pool = ValuePool::new(Content::Random, VALUE_LEN_MAX);
    let (mut rng, mut writers) = (Rng::new(seed), new_writers(seed));
    let mut node = options.start()?;
    let mut acknowledged = 0;
    for round in 0..rounds {
        if rng.chance(0.1) {
            flush(&node, &mut writers)?;
        }
        // From deaths within the first requests to deaths under full load; one of the latter at
        // least.
        let life = match round {
            0 => Duration::from_secs(1),
            _ => Duration::from_micros(1 << (8 + rng.below(12))),
        };
        acknowledged += work_and_kill(&mut node, &mut writers, &pool, life)?;
        let log = |node: &mut FonnNode| node.daemon().map(|it| it.log_end()).unwrap_or_default();
        node.start_again()
            .with_context(|| format!("seed {seed}, round {round}"))?;
        check(&node, &mut writers, &pool, 0)
            .with_context(|| format!("seed {seed}, round {round}\n{}", log(&mut node)))?;
        // A second look: what was read once must not change by itself.
        if rng.chance(0.2) {
            check(&node, &mut writers, &pool, 0)
                .with_context(|| format!("seed {seed}, round {round}, second look"))?;
        }
    }
    eprintln!("{rounds} kills, {acknowledged} acknowledged operations");
    assert!(
        acknowledged > rounds,
        "the node died before it did anything"
    );
    Ok(())
}

#[test]
fn acknowledged_writes_survive_kills() -> Result<()> {
    survive(NodeOptions::new(), seed()?, rounds()?)
}

/// Little RAM, so that reads come from disk, and a durability of fsync.
#[test]
fn acknowledged_writes_survive_kills_with_fsync_and_little_memory() -> Result<()> {
    let options = NodeOptions::new()
        .flag("--durability", "fsync")
        .flag("--ram-budget", "8m");
    survive(
        options.flag("--max-value", "2m"),
        seed()? ^ 1,
        rounds()?.div_ceil(5),
    )
}

/// While the node is down, its clock moves by hours: what is over by then is gone, the rest is
/// there, and writes after a jump back win over those before it.
#[test]
fn acknowledged_writes_survive_kills_with_a_clock_that_jumps() -> Result<()> {
    let Some(shifter) = clock_shifter()? else {
        return Ok(());
    };
    let seed = seed()? ^ 2;
    let pool = ValuePool::new(Content::Random, VALUE_LEN_MAX);
    let (mut rng, mut writers) = (Rng::new(seed), new_writers(seed));
    let mut node = NodeOptions::new().start()?;
    for round in 0..rounds()?.div_ceil(2) {
        // Work under the true clock, look under one that is ahead, go on under the true one.
        work_and_kill(&mut node, &mut writers, &pool, Duration::from_millis(150))?;
        let hours = 1 + rng.below(30);
        let shift = hours * 3600;
        node.start_again_with(|options| options.clock_offset(&shifter, shift as i64))?;
        check(&node, &mut writers, &pool, shift)
            .with_context(|| format!("seed {seed}, round {round}, {hours} hours ahead"))?;
        node.kill9()?;
        node.start_again_with(|options| options.clock_offset(&shifter, 0))?;
        // Whatever was seen to be over may come back with the clock, as any clock that goes back
        // makes it; what was overwritten or deleted may not.
        for writer in &mut writers {
            writer.forget_expired(node.addr())?;
        }
        check(&node, &mut writers, &pool, 0)
            .with_context(|| format!("seed {seed}, round {round}, back again"))?;
    }
    Ok(())
}
