//! Throughput: what each contender does with one processor second, cell by cell.
//!
//! The servers of one kind of work run side by side, but are asked in turn: a slow minute of the
//! machine hits all of them. Servers have the first processor, the load generator the second.

#![allow(clippy::print_stderr, reason = "progress of a run of minutes")]

mod cells;
mod limit;
mod strip;
mod table;

use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use self::cells::{CONNECTIONS, WORKS, Work};
use self::limit::Limit;
pub use self::limit::{LimitOptions, serve_limit};
use self::table::Cell;
use super::placed::{allowed, first_two, only, place};
use super::{CONTENDERS, Programs, Running, Server};
use crate::load::{self, LoadOptions, Protocol, Report, Sizes, Target, Verify};

/// How long each protocol of a server is used before its first measurement.
const FIRST_USE: Duration = Duration::from_millis(150);
/// How often the servers are started anew. Where their values lie in memory changes a cell by up to
/// a tenth.
const LIVES: usize = 3;
/// How long the connections of a measurement are used before it begins.
const WARM_UP: Duration = Duration::from_millis(20);

/// How long and how often to measure.
#[derive(Clone, Debug)]
pub struct SpeedOptions {
    /// Length of one measurement.
    pub duration: Duration,
    /// Measurements of each contender; medians count.
    pub rounds: usize,
    /// Only kinds of work whose name contains this.
    pub only: Option<String>,
    /// A few rounds over 16 connections, for a look in less than three minutes.
    pub quick: bool,
    /// Where `speed.csv` and `speed.svg` go; a run of some kinds of work writes neither.
    pub out_dir: PathBuf,
}

/// Measures all cells and returns the tables in Markdown.
///
/// # Errors
/// When a server does not start, or gives a wrong byte, a refusal or a miss for what was set.
pub fn compare_speed(programs: &Programs, options: &SpeedOptions) -> Result<String> {
    let mut options = options.clone();
    let mut connections = CONNECTIONS.as_slice();
    if options.quick {
        options.rounds = options.rounds.min(3);
        connections = &CONNECTIONS[1..2];
    }
    let processors = allowed()?;
    let [servers_on, client_on] = first_two(&processors);
    place(std::process::id(), &only(client_on))?;
    let mut cells = Vec::new();
    for work in WORKS.iter().filter(|work| is_wanted(work, &options)) {
        let found = measure_work(work, connections, programs, &options, servers_on);
        cells.extend(found.with_context(|| work.name)?);
    }
    place(std::process::id(), &processors)?;
    if options.only.is_none() && !options.quick {
        let write = |name: &str, text: String| {
            let file = options.out_dir.join(name);
            fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
        };
        fs::create_dir_all(&options.out_dir)?;
        write("speed.csv", table::csv(&cells))?;
        write("speed.svg", strip::svg(&cells))?;
    }
    Ok(table::markdown(&cells))
}

fn is_wanted(work: &Work, options: &SpeedOptions) -> bool {
    let named = options.only.as_ref();
    named.is_none_or(|only| work.name.contains(only)) && !(options.quick && work.is_long)
}

/// Measures one kind of work over each number of connections.
fn measure_work(
    work: &'static Work,
    connections: &[usize],
    programs: &Programs,
    options: &SpeedOptions,
    servers_on: usize,
) -> Result<Vec<Cell>> {
    let cells = connections.iter().map(|count| Cell::new(work, *count));
    let mut cells: Vec<Cell> = cells.collect();
    for life in 0..LIVES {
        // What is left over goes to the first ones.
        let rounds = (options.rounds.max(1) + LIVES - 1 - life) / LIVES;
        if rounds > 0 {
            measure_life(
                &mut cells,
                work,
                programs,
                (rounds, options.duration),
                servers_on,
            )?;
        }
    }
    for cell in &cells {
        eprintln!("{cell}");
    }
    Ok(cells)
}

/// Starts the servers, and measures each cell in so many rounds of a length.
fn measure_life(
    cells: &mut [Cell],
    work: &'static Work,
    programs: &Programs,
    (rounds, duration): (usize, Duration),
    servers_on: usize,
) -> Result<()> {
    let kinds = [Server::Memcached, Server::Redis, Server::Fonn];
    let servers = kinds
        .into_iter()
        .map(|kind| {
            let running = Running::start(kind, programs)?;
            place(running.pid()?, &only(servers_on))?;
            Ok((kind, running))
        })
        .collect::<Result<Vec<_>>>()?;
    let of = |kind: Server| {
        let found = servers.iter().find(|(it, _)| *it == kind);
        found.map(|(_, running)| running).context("no such server")
    };
    for contender in CONTENDERS {
        let running = of(contender.0)?;
        // Without the page faults of memory that the server has for the first time. Each protocol
        // receives values in its own way.
        let server = (running.target(), running.pid()?);
        let mut first = load_options(server, contender.1, work, 16);
        first.no_fill = false;
        first.duration = FIRST_USE;
        load::run(&first)?;
    }
    let limit = Limit::start(work)?;
    place(limit.daemon.pid(), &only(servers_on))?;
    for cell in cells {
        for _ in 0..rounds {
            for (at, contender) in CONTENDERS.into_iter().enumerate() {
                let running = of(contender.0)?;
                let server = (running.target(), running.pid()?);
                let mut load = load_options(server, contender.1, work, cell.connections);
                load.duration = duration;
                let report = load::run(&load)?;
                ensure!(
                    report.is_clean() && report.unexpected_misses == 0,
                    "{contender:?}: {report}"
                );
                cell.push(at, work.score(&report), report.latency.p999_us);
            }
            let server = (Target::Tcp(limit.addr), limit.daemon.pid());
            let mut load = load_options(server, Protocol::Resp, work, cell.connections);
            load.duration = duration;
            load.verify = Verify::None;
            cell.limits.push(work.score(&load::run(&load)?));
        }
    }
    Ok(())
}

fn load_options(
    (target, pid): (Target, u32),
    protocol: Protocol,
    work: &Work,
    connections: usize,
) -> LoadOptions {
    let at_least_one = |count| NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN);
    let mut options = LoadOptions::new(target, protocol);
    options.server_pid = Some(pid);
    options.value_size = Sizes::fixed(work.value_len);
    options.keys = work.keys();
    options.get_ratio = work.get_ratio;
    options.pipeline = at_least_one(work.pipeline);
    options.connections = at_least_one(connections);
    options.no_fill = true;
    options.warm_up = WARM_UP;
    // The client must not be slower than the server on large values.
    options.verify = if work.is_in_bytes() {
        Verify::Sample
    } else {
        Verify::All
    };
    options
}

impl Work {
    /// Thousands of operations, or gigabytes of large values, per processor second of the server.
    fn score(&self, report: &Report) -> f64 {
        let per_second = if self.is_in_bytes() {
            report.megabytes_per_server_cpu_second
        } else {
            report.operations_per_server_cpu_second
        };
        per_second.unwrap_or(0.0) / 1e3
    }
}
