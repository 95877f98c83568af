//! How Fonn and memcached scale: with a second thread, and with connections that are idle.
//!
//! The first table has one and two serving threads. On two processors the client takes its share
//! of both, so work per processor second of the server is given beside work per second of the
//! clock. The second table has 100 active connections, alone and among 10,000: what an idle
//! connection costs the requests of others.

#![allow(clippy::print_stderr, reason = "progress of a run of minutes")]

mod table;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use self::table::{Rates, Rounds};
use super::placed::{allowed, first_two, only, place};
use super::{Programs, Running, Server, parse_seconds};
use crate::client::REPLY_LIMIT;
use crate::load::{self, LoadOptions, Protocol, Target};
use crate::node::NodeOptions;
use crate::peers::Peer;
use crate::process::raise_open_files;
use crate::usage::processor_time;

/// Connections of the first table.
const CONNECTIONS: usize = 64;
/// Requests in flight on a connection, in the first table.
const PIPELINES: [usize; 2] = [1, 16];
/// Threads of a server, in the first table.
const THREADS: [usize; 2] = [1, 2];
/// Of the connections of the second table, one of so many is active.
const CONNECTIONS_PER_ACTIVE: usize = 100;
/// Files of this process and of a server besides connections.
const OTHER_FILES: usize = 1000;
/// Keys that have values.
const KEYS: u64 = 100_000;

/// The protocol in which memcached has the best figures of pipelined gets.
const PROTOCOL: Protocol = Protocol::Binary;

const SERVERS: [Server; 2] = [Server::Fonn, Server::Memcached];

/// How long and how often to measure.
#[derive(Clone, Debug, Args)]
pub struct ScaleOptions {
    /// Length of one measurement in seconds.
    #[arg(long = "seconds", value_parser = parse_seconds, default_value = "1")]
    pub duration: Duration,
    /// Measurements of each server; medians count.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Connections, of which one in a hundred is active.
    #[arg(long, default_value_t = 10_000)]
    pub connections: usize,
    /// A look in less than a minute: one round of short measurements.
    #[arg(long)]
    pub quick: bool,
}

/// Measures both tables and returns them in Markdown.
///
/// # Errors
/// When a server does not start, refuses a connection, or gives a wrong byte, a refusal or a miss
/// for a key that was set.
pub fn compare_scale(programs: &Programs, options: &ScaleOptions) -> Result<String> {
    let mut options = options.clone();
    if options.quick {
        options.rounds = 1;
        options.duration = options.duration.min(Duration::from_millis(300));
    }
    let threads = compare_threads(programs, &options)?;
    let idle = compare_idle(programs, &options)?;
    Ok(format!("{threads}\n{idle}"))
}

/// One and two threads of each server, in turn, where the kernel puts them.
fn compare_threads(programs: &Programs, options: &ScaleOptions) -> Result<String> {
    let mut rows = Vec::new();
    let mut servers = Vec::new();
    for kind in SERVERS {
        for threads in THREADS {
            let running = start(kind, programs, threads, CONNECTIONS)?;
            fill(&running)?;
            servers.push((kind, threads, running));
        }
    }
    for pipeline in PIPELINES {
        let mut rounds = vec![Vec::new(); servers.len()];
        for round in 0..options.rounds.max(1) {
            for ((kind, threads, running), rounds) in servers.iter().zip(&mut rounds) {
                let mut load = gets(running, CONNECTIONS, options);
                load.pipeline = at_least_one(pipeline);
                load.client_threads = at_least_one(2);
                let rates = measure(running, &load)?;
                eprintln!(
                    "{kind:?}, {threads} threads, {pipeline} in flight, round {round}: {rates:?}"
                );
                rounds.push(rates);
            }
        }
        for (kind, rounds) in SERVERS.into_iter().zip(rounds.chunks(THREADS.len())) {
            if let [one, two] = rounds {
                rows.push((kind, pipeline, Rounds::new(one, two)));
            }
        }
    }
    Ok(table::threads(CONNECTIONS, &rows))
}

/// Active connections alone and among idle ones, in turn. Servers have the first processor, the
/// client has the second.
fn compare_idle(programs: &Programs, options: &ScaleOptions) -> Result<String> {
    let connections = options.connections.max(CONNECTIONS_PER_ACTIVE);
    let active = connections / CONNECTIONS_PER_ACTIVE;
    // Of this process, and of the servers, which inherit the limit.
    raise_open_files((connections + OTHER_FILES) as u64)?;
    let processors = allowed()?;
    let [servers_on, client_on] = first_two(&processors);
    place(std::process::id(), &only(client_on))?;
    let mut rows = Vec::new();
    for kind in SERVERS {
        let start = || -> Result<Running> {
            let running = start(kind, programs, 1, connections)?;
            place(running.pid()?, &only(servers_on))?;
            fill(&running)?;
            Ok(running)
        };
        let (alone, crowded) = (start()?, start()?);
        let idle = open_idle(crowded.target(), connections - active)
            .with_context(|| format!("{kind:?}"))?;
        let mut rounds = [Vec::new(), Vec::new()];
        for round in 0..options.rounds.max(1) {
            for ((name, running), rounds) in [("alone", &alone), ("among idle", &crowded)]
                .into_iter()
                .zip(&mut rounds)
            {
                let rates = measure(running, &gets(running, active, options))?;
                eprintln!("{kind:?}, {active} connections {name}, round {round}: {rates:?}");
                rounds.push(rates);
            }
        }
        drop(idle);
        let [alone, crowded] = rounds;
        rows.push((kind, Rounds::new(&alone, &crowded)));
    }
    place(std::process::id(), &processors)?;
    Ok(table::idle(active, connections, &rows))
}

fn start(kind: Server, programs: &Programs, threads: usize, connections: usize) -> Result<Running> {
    if kind == Server::Memcached {
        let connections = connections + OTHER_FILES;
        let peer = Peer::memcached_for(&programs.memcached, threads, connections)?;
        return Ok(Running::Peer(peer));
    }
    let mut node = NodeOptions::new()
        .in_memory()
        .flag("--threads", threads.to_string())
        .flag("--ram-budget", "4g");
    for (name, value) in &programs.fonn_flags {
        node = node.flag(name, value);
    }
    Ok(Running::Fonn(node.start()?))
}

fn fill(running: &Running) -> Result<()> {
    let mut load = LoadOptions::new(running.target(), PROTOCOL);
    load.keys = KEYS;
    load.pipeline = at_least_one(16);
    load.fill_only = true;
    load::run(&load).context("setting all keys")?;
    Ok(())
}

/// Gets of 100 B of keys that are set.
fn gets(running: &Running, connections: usize, options: &ScaleOptions) -> LoadOptions {
    let mut load = LoadOptions::new(running.target(), PROTOCOL);
    load.keys = KEYS;
    load.no_fill = true;
    load.connections = at_least_one(connections);
    load.duration = options.duration;
    load
}

fn measure(running: &Running, load: &LoadOptions) -> Result<Rates> {
    let pid = running.pid()?;
    let before = processor_time(pid)?;
    let report = load::run(load)?;
    let cpu = processor_time(pid)?.saturating_sub(before);
    ensure!(
        report.is_clean() && report.unexpected_misses == 0,
        "{report}"
    );
    Ok(Rates {
        per_cpu_second: report.operations as f64 / cpu.as_secs_f64().max(1e-6),
        per_second: report.operations_per_second,
    })
}

/// Opens connections that have spoken once, so that the server has all their state.
fn open_idle(target: Target, count: usize) -> Result<Vec<TcpStream>> {
    let Target::Tcp(addr) = target else {
        anyhow::bail!("{target}: idle connections need a TCP address");
    };
    let connections = (0..count).map(|number| {
        open_one(addr).with_context(|| format!("idle connection {number} of {count}"))
    });
    connections.collect()
}

fn open_one(addr: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(REPLY_LIMIT))?;
    stream.write_all(b"version\r\n")?;
    let mut reply = Vec::new();
    let mut buffer = [0; 256];
    while !reply.ends_with(b"\r\n") {
        let len = stream.read(&mut buffer)?;
        ensure!(len > 0, "the server closed the connection");
        reply.extend_from_slice(&buffer[..len]);
    }
    let reply = String::from_utf8_lossy(&reply);
    ensure!(
        reply.starts_with("VERSION "),
        "unexpected reply: {}",
        reply.trim_end()
    );
    Ok(stream)
}

fn at_least_one(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN)
}
