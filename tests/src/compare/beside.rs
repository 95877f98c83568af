//! What is measured beside bazel-remote: operations per processor second of the server.
//!
//! Each server has one thread that runs code (`--threads 1`, `GOMAXPROCS=1`) and a directory on the
//! same device. bazel-remote runs twice: as it starts, when it stores blobs compressed, and with
//! blobs uncompressed. Neither checks action results. What a server does behind its clients' backs
//! counts: the time ends when the process is idle again.

#![allow(clippy::print_stderr, reason = "progress of a run of minutes")]

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tempfile::TempDir;

use super::spread::Spread;
use crate::node::{FonnNode, NodeOptions};
use crate::peers::BazelRemote;
use crate::usage::Usage;

/// What Fonn has to reach, as a multiple of bazel-remote.
const BAR: f64 = 1.5;

/// RAM of Fonn for blobs of a length. The default, a quarter of the machine's memory, would be
/// filled for minutes.
const fn ram_len(blob_len: usize) -> usize {
    match 16 * blob_len {
        least if least > 256 << 20 => least,
        _ => 256 << 20,
    }
}

/// Bytes that servers get before writes are measured: the RAM is full then, as it is in all but the
/// first minutes of a server.
pub(super) const fn filling_len(blob_len: usize) -> usize {
    5 * ram_len(blob_len) / 4
}

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

/// How bazel-remote stores blobs.
#[derive(Clone, Copy)]
pub(super) enum Storage {
    /// As it does without a flag.
    Zstd,
    Uncompressed,
}

impl Storage {
    /// What is said to bazel-remote.
    const fn flag(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Uncompressed => "uncompressed",
        }
    }
}

/// A server of a round.
pub(super) enum Server {
    Fonn(FonnNode),
    BazelRemote {
        peer: BazelRemote,
        storage: Storage,
        _dir: TempDir,
    },
}

impl Server {
    /// All, new, for blobs of a length.
    pub(super) fn all(options: &BesideOptions, blob_len: usize) -> Result<[Self; 3]> {
        let peer = |storage: Storage| {
            let dir = tempfile::tempdir()?;
            let flags = [
                "--disable_http_ac_validation",
                "--disable_grpc_ac_deps_check",
                "--storage_mode",
                storage.flag(),
            ];
            let peer = BazelRemote::start(&options.bazel_remote, dir.path(), &flags)?;
            anyhow::Ok(Self::BazelRemote {
                peer,
                storage,
                _dir: dir,
            })
        };
        let mut node = NodeOptions::new().with_http().flag("--threads", "1");
        node = node
            .flag("--ram-budget", ram_len(blob_len).to_string())
            .flag("--disk-budget", "10g");
        for (name, value) in &options.fonn_flags {
            node = node.flag(name, value);
        }
        Ok([
            peer(Storage::Zstd)?,
            peer(Storage::Uncompressed)?,
            Self::Fonn(node.start()?),
        ])
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Fonn(_) => "fonn",
            Self::BazelRemote { storage, .. } => match storage {
                Storage::Zstd => "bazel-remote",
                Storage::Uncompressed => "bazel-remote, uncompressed",
            },
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
            // What a process does for its clocks is less.
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
/// operations as the cheaper bazel-remote Fonn does in a processor second.
pub(super) fn measure<T>(
    table: &mut String,
    cell: &str,
    (servers, rounds): (&[Server; 3], usize),
    mut prepare: impl FnMut() -> T,
    run: impl Fn(&Server, &T) -> Result<u64>,
) -> Result<f64> {
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..rounds.max(1) {
        let prepared = prepare();
        for (server, all) in servers.iter().zip(&mut all) {
            let before = server.settled_cpu()?;
            let operations = run(server, &prepared)?;
            let used = server.settled_cpu()?.saturating_sub(before);
            let figure = operations as f64 / used.as_secs_f64().max(1e-9);
            eprintln!("{cell}, round {round}, {}: {figure:.1}", server.name());
            all.push(figure);
        }
    }
    let [zstd, uncompressed, own] = all.map(Spread::of);
    let beside_zstd = own.median / zstd.median;
    let beside_uncompressed = own.median / uncompressed.median;
    writeln!(
        table,
        "| {cell} | {} | {} | {} | {beside_zstd:.2} | {beside_uncompressed:.2} | {BAR} |",
        shown(zstd),
        shown(uncompressed),
        shown(own),
    )?;
    Ok(beside_zstd.min(beside_uncompressed))
}

/// The head of a table.
pub(super) const TABLE: &str = "\
| operations per server processor second | bazel-remote | bazel-remote, uncompressed | fonn | fonn / bazel-remote | fonn / uncompressed | bar |
|---|---|---|---|---|---|---|
";

/// The median with the quartiles. Of long values there are few in a second.
fn shown(figures: Spread) -> String {
    let Spread {
        median,
        lower,
        upper,
    } = figures;
    let digits = usize::from(median < 100.0);
    format!("{median:.digits$} ({lower:.digits$}–{upper:.digits$})")
}
