//! Whether other load generators find the same as ours: `redis-benchmark` and `memaslap`.
//!
//! Fonn and one peer are measured by both generators in turns. What has to agree is the ratio of
//! the two servers, since each generator has its own keys and its own pace.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::placed::{allowed, first_two, only, place};
use super::{Programs, Running, Server};
use crate::load::{self, LoadOptions, Protocol, Sizes, Target};
use crate::process::find_program;
use crate::usage::thread_times;

/// Keys of both generators.
const KEYS: u64 = 100_000;

/// How much to measure.
#[derive(Clone, Debug)]
pub struct GeneratorsOptions {
    /// Requests of one measurement.
    pub requests: u64,
    /// Measurements of each server by each generator; medians count.
    pub rounds: usize,
}

/// What both generators do.
#[derive(Clone, Copy)]
struct Cell {
    protocol: Protocol,
    is_get: bool,
    value_len: usize,
    connections: usize,
    pipeline: usize,
}

impl Cell {
    const fn new(protocol: Protocol, is_get: bool, value_len: usize, connections: usize) -> Self {
        Self {
            protocol,
            is_get,
            value_len,
            connections,
            pipeline: 1,
        }
    }

    const fn pipelined(mut self) -> Self {
        self.pipeline = 16;
        self
    }

    /// The peer, and the generator that others wrote for its protocol.
    fn peer(self) -> (Server, &'static str) {
        match self.protocol {
            Protocol::Resp => (Server::Redis, "redis-benchmark"),
            Protocol::Text | Protocol::Binary => (Server::Memcached, "memaslap"),
        }
    }

    fn name(self) -> String {
        let pipelined = if self.pipeline > 1 {
            ", pipelined by 16"
        } else {
            ""
        };
        let kind = if self.is_get { "GET" } else { "SET" };
        format!("{kind} {} B{pipelined}", self.value_len)
    }
}

const CELLS: [Cell; 14] = [
    Cell::new(Protocol::Resp, true, 100, 16),
    Cell::new(Protocol::Resp, true, 100, 64),
    Cell::new(Protocol::Resp, false, 100, 16),
    Cell::new(Protocol::Resp, false, 100, 64),
    Cell::new(Protocol::Resp, true, 100, 16).pipelined(),
    Cell::new(Protocol::Resp, false, 100, 16).pipelined(),
    Cell::new(Protocol::Resp, true, 1024, 16),
    Cell::new(Protocol::Resp, false, 1024, 16),
    Cell::new(Protocol::Text, true, 100, 16),
    Cell::new(Protocol::Text, true, 100, 64),
    Cell::new(Protocol::Text, false, 100, 16),
    Cell::new(Protocol::Text, false, 100, 64),
    Cell::new(Protocol::Binary, true, 100, 16),
    Cell::new(Protocol::Binary, false, 100, 16),
];

/// The generators of others.
struct Others {
    redis_benchmark: PathBuf,
    memaslap: PathBuf,
    dir: TempDir,
}

impl Others {
    fn find() -> Result<Self> {
        // The second is Debian's name for it.
        let memaslap = find_program("memaslap").or_else(|| find_program("memcaslap"));
        Ok(Self {
            redis_benchmark: find_program("redis-benchmark")
                .context("redis-benchmark is not installed")?,
            memaslap: memaslap.context("memaslap is not installed")?,
            dir: tempfile::tempdir()?,
        })
    }

    fn command(&self, cell: Cell, addr: SocketAddr, requests: u64) -> Result<Command> {
        Ok(match cell.protocol {
            Protocol::Resp => self.redis_benchmark(cell, addr, requests),
            Protocol::Text | Protocol::Binary => self.memaslap(cell, addr, requests)?,
        })
    }

    fn redis_benchmark(&self, cell: Cell, addr: SocketAddr, requests: u64) -> Command {
        let mut command = Command::new(&self.redis_benchmark);
        command
            .args(["-h", &addr.ip().to_string(), "-p", &addr.port().to_string()])
            .args(["-t", if cell.is_get { "get" } else { "set" }, "-q"])
            .args(["-n", &requests.to_string(), "-r", &KEYS.to_string()])
            .args(["-c", &cell.connections.to_string()])
            .args(["-P", &cell.pipeline.to_string()])
            .args(["-d", &cell.value_len.to_string()]);
        command
    }

    fn memaslap(&self, cell: Cell, addr: SocketAddr, requests: u64) -> Result<Command> {
        let file = self.dir.path().join("memaslap.cnf");
        let (key, value, get) = (16, cell.value_len, u8::from(cell.is_get));
        let text = format!(
            "key\n{key} {key} 1\nvalue\n{value} {value} 1\ncmd\n0 {}\n1 {get}\n",
            1 - get
        );
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        let mut command = Command::new(&self.memaslap);
        // The window is how many keys a connection has.
        let window = KEYS / cell.connections as u64;
        command
            .args(["-s", &addr.to_string(), "-T", "1"])
            .args(["-c", &cell.connections.to_string()])
            .args(["-x", &requests.to_string(), "-w", &window.to_string()])
            .arg("-F")
            .arg(&file);
        if cell.protocol == Protocol::Binary {
            command.arg("-B");
        }
        Ok(command)
    }

    /// Requests per processor second of the server, without the fill that `memaslap` begins with.
    fn measure(&self, cell: Cell, server: &Running, requests: u64) -> Result<f64> {
        let Target::Tcp(addr) = server.target() else {
            anyhow::bail!("the servers listen on TCP");
        };
        let used = |requests| {
            let before = processor_seconds(server.pid()?)?;
            let output = self.command(cell, addr, requests)?.output()?;
            ensure!(
                output.status.success(),
                "{}: {}",
                cell.peer().1,
                String::from_utf8_lossy(&output.stderr)
            );
            Ok(processor_seconds(server.pid()?)? - before)
        };
        // Both runs begin with the same fill, so the difference is the requests alone.
        let long = used(2 * requests)?;
        let short = used(requests)?;
        Ok(requests as f64 / (long - short))
    }
}

fn processor_seconds(pid: u32) -> Result<f64> {
    let times = thread_times(pid)?.into_iter();
    Ok(times.map(|(_, time)| time.as_secs_f64()).sum())
}

fn of_ours(cell: Cell, server: &Running, requests: u64) -> Result<f64> {
    let at_least_one = |count| NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN);
    let mut options = LoadOptions::new(server.target(), cell.protocol);
    options.server_pid = Some(server.pid()?);
    options.value_size = Sizes::fixed(cell.value_len);
    options.keys = KEYS;
    options.get_ratio = f64::from(u8::from(cell.is_get));
    options.pipeline = at_least_one(cell.pipeline);
    options.connections = at_least_one(cell.connections);
    options.operations = Some(requests);
    let report = load::run(&options)?;
    ensure!(report.is_clean(), "{report}");
    let found = report.operations_per_server_cpu_second;
    found.context("the processor time of the server is not known")
}

/// Measures all cells and returns the table in Markdown.
///
/// # Errors
/// When a program is missing, a server does not start, or a generator fails.
pub fn compare_generators(programs: &Programs, options: &GeneratorsOptions) -> Result<String> {
    let others = Others::find()?;
    let processors = allowed()?;
    let [servers_on, client_on] = first_two(&processors);
    let mut table = String::from(
        "| work | connections | protocol | peer | Fonn ÷ peer by `fonn-load` | by the other | other generator |\n\
         |---|---|---|---|---|---|---|\n",
    );
    place(std::process::id(), &only(client_on))?;
    for cell in CELLS {
        let (peer, generator) = cell.peer();
        let servers = [Server::Fonn, peer].map(|kind| Running::start(kind, programs));
        let [fonn, peer_server] = servers;
        let servers = [fonn?, peer_server?];
        for server in &servers {
            place(server.pid()?, &only(servers_on))?;
            // Memory that is touched for the first time is dear, and gets have to find something.
            let fill = Cell {
                is_get: false,
                ..cell
            };
            others.measure(fill, server, options.requests)?;
            of_ours(fill, server, options.requests)?;
        }
        let (mut by_ours, mut by_other) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds.max(1) {
            let ours = of_both(&servers, |it| of_ours(cell, it, options.requests))?;
            let other = of_both(&servers, |it| others.measure(cell, it, options.requests))?;
            by_ours.push(ours);
            by_other.push(other);
        }
        let (ours, other) = (median(by_ours), median(by_other));
        let (name, connections, protocol) = (cell.name(), cell.connections, cell.protocol);
        writeln!(
            table,
            "| {name} | {connections} | {protocol:?} | {peer:?} | {ours:.2} | {other:.2} | `{generator}` |"
        )?;
    }
    place(std::process::id(), &processors)?;
    Ok(table)
}

/// The ratio of the first server to the second.
fn of_both(servers: &[Running; 2], measure: impl Fn(&Running) -> Result<f64>) -> Result<f64> {
    let [first, second] = servers;
    Ok(measure(first)? / measure(second)?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
