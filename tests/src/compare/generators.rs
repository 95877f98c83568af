//! A second load generator beside our own: whether both find the same ratios of Fonn to its peers.
//!
//! `redis-benchmark` drives Redis and Fonn, `memcaslap` drives memcached and Fonn. Each cell is
//! measured with our load generator as well, with the same keys, lengths and connections. Ours
//! overwrites its keys at random where the other does, so that values lie in memory in the same
//! way. Servers have the first processor, the load generators the second, and neither sleeps.

#![allow(clippy::print_stderr, reason = "progress of a run of minutes")]

mod other;
mod table;

use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use self::other::Generator;
use self::table::Row;
use super::placed::{allowed, first_two, keep_awake, only, place};
use super::{Programs, Running, Server, parse_seconds};
use crate::load::{self, LoadOptions, Protocol, Sizes};

/// Numbers of connections.
const CONNECTIONS: [usize; 3] = [1, 16, 64];

/// Requests in flight on a connection while our generator fills.
const FILL_PIPELINE: NonZeroUsize = NonZeroUsize::MIN.saturating_add(15);

/// Sets for each key, where keys are filled at random.
const SETS_PER_KEY: u64 = 8;

/// Both generators work for so long before a measurement.
const WARM_UP: Duration = Duration::from_millis(30);

/// How long and how often to measure.
#[derive(Clone, Debug, Args)]
pub struct GeneratorsOptions {
    /// Length of one measurement in seconds.
    #[arg(long = "seconds", value_parser = parse_seconds, default_value = "0.1")]
    pub duration: Duration,
    /// Measurements by each generator of each server, in turn; medians count.
    #[arg(long, default_value_t = 25)]
    pub rounds: usize,
    /// Only kinds of work whose name contains this, for example `SET 100 B`.
    #[arg(long)]
    pub only: Option<String>,
    /// A look in less than three minutes: a few rounds over 16 connections.
    #[arg(long)]
    pub quick: bool,
}

/// What all requests of a kind of work do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Get,
    Set,
}

/// One kind of work.
#[derive(Clone, Copy, Debug)]
struct Work {
    name: &'static str,
    operation: Operation,
    value_len: usize,
    /// Requests in flight on a connection.
    pipeline: usize,
}

impl Work {
    const fn new(name: &'static str, operation: Operation, value_len: usize) -> Self {
        Self {
            name,
            operation,
            value_len,
            pipeline: 1,
        }
    }

    const fn pipelined(mut self) -> Self {
        self.pipeline = 16;
        self
    }
}

const WORKS: [Work; 8] = [
    Work::new("GET 100 B", Operation::Get, 100),
    Work::new("GET 1 KiB", Operation::Get, 1 << 10),
    Work::new("GET 16 KiB", Operation::Get, 16 << 10),
    Work::new("SET 100 B", Operation::Set, 100),
    Work::new("SET 1 KiB", Operation::Set, 1 << 10),
    Work::new("SET 16 KiB", Operation::Set, 16 << 10),
    Work::new("GET 100 B, pipelined by 16", Operation::Get, 100).pipelined(),
    Work::new("SET 100 B, pipelined by 16", Operation::Set, 100).pipelined(),
];

/// A protocol with the peer that speaks it and the other generator that drives both servers.
struct Family {
    protocol: Protocol,
    peer: Server,
    peer_name: &'static str,
    generator: Generator,
}

const FAMILIES: [Family; 3] = [
    Family {
        protocol: Protocol::Resp,
        peer: Server::Redis,
        peer_name: "redis",
        generator: Generator::RedisBenchmark,
    },
    Family {
        protocol: Protocol::Text,
        peer: Server::Memcached,
        peer_name: "memcached text",
        generator: Generator::Memcaslap,
    },
    Family {
        protocol: Protocol::Binary,
        peer: Server::Memcached,
        peer_name: "memcached binary",
        generator: Generator::Memcaslap,
    },
];

/// One kind of work over one number of connections.
#[derive(Clone, Copy, Debug)]
struct Cell {
    work: Work,
    connections: usize,
    /// Keys that both generators use.
    keys: u64,
}

/// Measures all cells with both generators and returns a table in Markdown.
///
/// # Errors
/// When a server or generator does not start, or a server gives a wrong byte, a refusal or a miss
/// for a key that was set.
pub fn compare_generators(programs: &Programs, options: &GeneratorsOptions) -> Result<String> {
    let mut options = options.clone();
    let mut connections = CONNECTIONS.as_slice();
    if options.quick {
        options.rounds = options.rounds.min(5);
        connections = &CONNECTIONS[1..2];
    }
    let processors = allowed()?;
    let [servers_on, client_on] = first_two(&processors);
    // The generators that this process starts inherit its processor.
    place(std::process::id(), &only(client_on))?;
    let mut awake = vec![keep_awake(servers_on)?];
    if client_on != servers_on {
        awake.push(keep_awake(client_on)?);
    }
    let mut rows = Vec::new();
    for family in &FAMILIES {
        let wanted = |work: &&Work| {
            let is_named = options
                .only
                .as_ref()
                .is_none_or(|it| work.name.contains(it));
            is_named && family.generator.can_do(work)
        };
        for work in WORKS.iter().filter(wanted) {
            let found = measure_work(family, *work, connections, programs, &options, servers_on);
            rows.extend(found.with_context(|| format!("{}, {}", family.peer_name, work.name))?);
        }
    }
    drop(awake);
    place(std::process::id(), &processors)?;
    Ok(table::markdown(&rows))
}

fn measure_work(
    family: &Family,
    work: Work,
    connections: &[usize],
    programs: &Programs,
    options: &GeneratorsOptions,
    servers_on: usize,
) -> Result<Vec<Row>> {
    let start = |kind: Server| -> Result<Running> {
        let running = Running::start(kind, programs)?;
        place(running.pid()?, &only(servers_on))?;
        family.generator.prepare(&running, work)?;
        Ok(running)
    };
    let servers = [
        (family.peer, start(family.peer)?),
        (Server::Fonn, start(Server::Fonn)?),
    ];
    let mut rows = Vec::new();
    for connections in connections {
        let cell = Cell {
            work,
            connections: *connections,
            keys: family.generator.keys(&work, *connections),
        };
        let mut row = Row::new(&cell, family);
        let mut sides = Vec::new();
        for (kind, running) in &servers {
            family.generator.clear(running)?;
            fill(running, family, &cell)?;
            let driver = family
                .generator
                .start((*kind, running), family.protocol, &cell);
            sides.push((running, driver.with_context(|| family.generator.name())?));
        }
        for _ in 0..options.rounds.max(1) {
            let (mut own, mut other) = ([0.0; 2], [0.0; 2]);
            for (at, (running, driver)) in sides.iter_mut().enumerate() {
                own[at] = by_our_generator(running, family, &cell, options.duration)?;
                let found = driver.measure(options.duration);
                other[at] = found.with_context(|| family.generator.name())?;
            }
            row.push(own, other);
        }
        eprintln!("{row}");
        rows.push(row);
    }
    Ok(rows)
}

/// The requests of our generator for a cell, without a fill.
fn load_options(running: &Running, family: &Family, cell: &Cell) -> LoadOptions {
    let at_least_one = |count| NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN);
    let mut options = LoadOptions::new(running.target(), family.protocol);
    options.value_size = Sizes::fixed(cell.work.value_len);
    options.keys = cell.keys;
    options.get_ratio = match cell.work.operation {
        Operation::Get => 1.0,
        Operation::Set => 0.0,
    };
    options.connections = at_least_one(cell.connections);
    options.pipeline = at_least_one(cell.work.pipeline);
    options.no_fill = true;
    options
}

/// Sets the keys of our generator.
fn fill(running: &Running, family: &Family, cell: &Cell) -> Result<()> {
    let mut options = load_options(running, family, cell);
    options.pipeline = FILL_PIPELINE;
    (options.no_fill, options.fill_only) = (false, true);
    load::run(&options).context("setting all keys")?;
    if cell.work.operation == Operation::Get && family.generator.fills_at_random() {
        (options.no_fill, options.fill_only) = (true, false);
        options.get_ratio = 0.0;
        options.operations = Some(cell.keys * SETS_PER_KEY);
        load::run(&options).context("overwriting keys at random")?;
    }
    Ok(())
}

/// Operations of one second of the server's processor time, driven by our load generator.
fn by_our_generator(
    running: &Running,
    family: &Family,
    cell: &Cell,
    duration: Duration,
) -> Result<f64> {
    let mut options = load_options(running, family, cell);
    options.server_pid = Some(running.pid()?);
    options.warm_up = WARM_UP;
    options.duration = duration;
    let report = load::run(&options)?;
    ensure!(
        report.is_clean() && report.unexpected_misses == 0,
        "{report}"
    );
    Ok(report.operations_per_server_cpu_second.unwrap_or_default())
}
