//! What is measured beside bazel-remote: operations per processor second of the server.
//!
//! Each server has one thread that runs code (`--threads 1`, `GOMAXPROCS=1`) and a directory on the
//! same device. bazel-remote stores blobs uncompressed, as Fonn does, and checks no action results.
//! What a server does behind its clients' backs counts: the time ends when the process is idle
//! again.

#![allow(clippy::print_stderr, reason = "progress of a run of minutes")]

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tempfile::TempDir;

use crate::node::{FonnNode, NodeOptions};
use crate::peers::BazelRemote;
use crate::usage::Usage;

/// What Fonn has to reach, as a multiple of bazel-remote.
const BAR: f64 = 1.5;

/// RAM of Fonn. Before writes are measured it is filled, as it is in all but the first minutes of
/// a server, with so many bytes; bazel-remote gets them too.
const RAM_LEN: usize = 256 << 20;
pub(super) const FILLING_LEN: usize = 5 * RAM_LEN / 4;

/// A process that uses no processor time for this long has nothing left to do.
const QUIET: Duration = Duration::from_millis(300);
/// It may take this long until it has.
const QUIET_LIMIT: Duration = Duration::from_secs(30);

/// What to measure.
#[derive(Clone, Debug)]
pub struct BesideOptions {
    /// The program bazel-remote.
    pub bazel_remote: PathBuf,
    /// Measurements of each; medians count.
    pub rounds: usize,
    /// More flags for Fonn, each with its value.
    pub fonn_flags: Vec<(String, String)>,
    /// Directory of the plot.
    pub out_dir: PathBuf,
    /// Only cells whose name contains this.
    pub only: Option<String>,
}

impl BesideOptions {
    /// Whether a cell is wanted.
    pub(super) fn wants(&self, cell: &str) -> bool {
        self.only.as_ref().is_none_or(|only| cell.contains(only))
    }
}

/// A server of a round.
pub(super) enum Server {
    Fonn(FonnNode),
    BazelRemote { peer: BazelRemote, _dir: TempDir },
}

impl Server {
    /// Both, new.
    pub(super) fn both(options: &BesideOptions) -> Result<[Self; 2]> {
        let dir = tempfile::tempdir()?;
        let flags = [
            "--disable_http_ac_validation",
            "--disable_grpc_ac_deps_check",
        ];
        let peer = BazelRemote::start(&options.bazel_remote, dir.path(), &flags)?;
        let mut node = NodeOptions::new().with_http().flag("--threads", "1");
        node = node
            .flag("--ram-budget", RAM_LEN.to_string())
            .flag("--disk-budget", "10g");
        for (name, value) in &options.fonn_flags {
            node = node.flag(name, value);
        }
        Ok([
            Self::BazelRemote { peer, _dir: dir },
            Self::Fonn(node.start()?),
        ])
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Fonn(_) => "fonn",
            Self::BazelRemote { .. } => "bazel-remote",
        }
    }

    /// Where it listens for HTTP.
    pub(super) fn http(&self) -> SocketAddr {
        match self {
            Self::Fonn(node) => node.http(),
            Self::BazelRemote { peer, .. } => peer.http,
        }
    }

    /// Where it listens for gRPC.
    pub(super) fn grpc(&self) -> SocketAddr {
        match self {
            Self::Fonn(node) => node.http(),
            Self::BazelRemote { peer, .. } => peer.grpc,
        }
    }

    /// The processor time that it has used, once it uses no more.
    fn settled_cpu(&self) -> Result<Duration> {
        let pid = match self {
            Self::Fonn(node) => node.pid()?,
            Self::BazelRemote { peer, .. } => peer.daemon.pid(),
        };
        let begun = Instant::now();
        let mut last = Usage::of(pid)?.cpu;
        loop {
            thread::sleep(QUIET);
            let cpu = Usage::of(pid)?.cpu;
            // What a process does for its clocks is less than a tick.
            if cpu.saturating_sub(last) <= Duration::from_millis(10)
                || begun.elapsed() > QUIET_LIMIT
            {
                return Ok(cpu);
            }
            last = cpu;
        }
    }
}

/// Runs a task for each connection, all at once.
pub(super) fn over(connections: usize, task: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let task = &task;
        let threads: Vec<_> = (0..connections)
            .map(|index| scope.spawn(move || task(index)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|it| it.join().map_err(|_| anyhow!("a client panicked"))?)
    })
}

/// Measures the servers in turn, and adds a row to the table. `prepare` makes what a round needs,
/// before any server has its turn; `run` makes so many operations. Returns how many times as many
/// operations as bazel-remote Fonn does in a processor second.
pub(super) fn measure<T>(
    table: &mut String,
    cell: &str,
    (servers, rounds): (&[Server; 2], usize),
    mut prepare: impl FnMut() -> T,
    run: impl Fn(&Server, &T) -> Result<u64>,
) -> Result<f64> {
    let mut all = [Vec::new(), Vec::new()];
    for round in 0..rounds.max(1) {
        let prepared = prepare();
        for (server, all) in servers.iter().zip(&mut all) {
            let before = server.settled_cpu()?;
            let operations = run(server, &prepared)?;
            let used = server.settled_cpu()?.saturating_sub(before);
            let figure = operations as f64 / used.as_secs_f64().max(1e-9);
            eprintln!("{cell}, round {round}, {}: {figure:.0}", server.name());
            all.push(figure);
        }
    }
    let [[peer, peer_min, peer_max], [own, own_min, own_max]] = all.map(spread);
    writeln!(
        table,
        "| {cell} | {peer:.0} ({peer_min:.0}–{peer_max:.0}) | {own:.0} ({own_min:.0}–{own_max:.0}) | {:.2} | {BAR} |",
        own / peer
    )?;
    Ok(own / peer)
}

/// The head of a table.
pub(super) const TABLE: &str = "\
| operations per server processor second | bazel-remote (spread) | fonn (spread) | fonn / bazel-remote | bar |
|---|---|---|---|---|
";

/// Median, least and greatest of some figures.
fn spread(mut figures: Vec<f64>) -> [f64; 3] {
    figures.sort_by(f64::total_cmp);
    let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
    [
        at(figures.len() / 2),
        at(0),
        at(figures.len().saturating_sub(1)),
    ]
}
