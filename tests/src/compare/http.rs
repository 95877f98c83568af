//! The HTTP port beside bazel-remote: blobs of the content-addressed store, which both verify.
//!
//! Each server has one thread that runs code (`--threads 1`, `GOMAXPROCS=1`) and a directory on the
//! same device. bazel-remote stores blobs uncompressed, as Fonn does, and checks no action results.
//! What is compared is operations per processor second of the server, with what it does behind its
//! clients' backs: time counts until the process is idle again.

#![allow(clippy::print_stderr, reason = "progress of a run of minutes")]

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use tempfile::TempDir;

use super::plot::{Chart, Series};
use crate::client::HttpClient;
use crate::node::{FonnNode, NodeOptions};
use crate::peers::Peer;
use crate::usage::Usage;
use crate::values::{Content, ValuePool};

/// Length of values, how many a server has for gets, and operations of a measurement at least.
const SIZES: [(&str, usize, u64, u64); 3] = [
    ("4 KiB", 4 << 10, 2000, 24_000),
    ("64 KiB", 64 << 10, 500, 6000),
    ("1 MiB", 1 << 20, 64, 600),
];

const CONNECTIONS: [usize; 2] = [1, 16];

/// What Fonn has to reach, as a multiple of bazel-remote.
const BAR: f64 = 1.5;

/// A process that uses no processor time for this long has nothing left to do.
const QUIET: Duration = Duration::from_millis(300);
/// It may take this long until it has.
const QUIET_LIMIT: Duration = Duration::from_secs(30);

/// What to measure.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The program bazel-remote.
    pub bazel_remote: PathBuf,
    /// Measurements of each; medians count.
    pub rounds: usize,
    /// More flags for Fonn, each with its value.
    pub fonn_flags: Vec<(String, String)>,
    /// Directory of http.svg.
    pub out_dir: PathBuf,
    /// Only cells whose name contains this.
    pub only: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Get,
    Put,
}

/// A server of a round.
enum Server {
    Fonn(FonnNode),
    BazelRemote { peer: Peer, _dir: TempDir },
}

impl Server {
    fn fonn(options: &HttpOptions) -> Result<Self> {
        let mut node = NodeOptions::new().with_http().flag("--threads", "1");
        node = node.flag("--ram-budget", "2g").flag("--disk-budget", "10g");
        for (name, value) in &options.fonn_flags {
            node = node.flag(name, value);
        }
        Ok(Self::Fonn(node.start()?))
    }

    fn bazel_remote(options: &HttpOptions) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = Peer::bazel_remote(&options.bazel_remote, dir.path())?;
        Ok(Self::BazelRemote { peer, _dir: dir })
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Fonn(_) => "fonn",
            Self::BazelRemote { .. } => "bazel-remote",
        }
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Fonn(node) => node.http(),
            Self::BazelRemote { peer, .. } => peer.addr,
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

/// A blob and the path of it.
fn blob(pool: &ValuePool, number: u64, len: usize) -> (String, Vec<u8>) {
    let value = pool.value(number, len).to_vec();
    let hash = digest(&SHA256, &value);
    let mut path = String::from("/cas/");
    for byte in hash.as_ref() {
        let _ = write!(path, "{byte:02x}");
    }
    (path, value)
}

/// Puts blobs over so many connections; each is another one.
fn put(address: SocketAddr, connections: usize, blobs: &[(String, Vec<u8>)]) -> Result<()> {
    over(connections, |index| {
        let mut client = HttpClient::connect(address)?;
        for (path, value) in blobs.iter().skip(index).step_by(connections) {
            let status = client.put(path, value)?;
            ensure!(matches!(status, 200..=204), "PUT {path}: {status}");
        }
        Ok(())
    })
}

/// Gets `count` blobs over so many connections, and compares each with what was put.
fn get(
    address: SocketAddr,
    connections: usize,
    blobs: &[(String, Vec<u8>)],
    count: u64,
) -> Result<()> {
    over(connections, |index| {
        let mut client = HttpClient::connect(address)?;
        for (number, (path, value)) in (0..count).zip(blobs.iter().cycle()) {
            if number % connections as u64 == index as u64 {
                let got = client.get(path)?;
                ensure!(got.as_ref() == Some(value), "GET {path}: another value");
            }
        }
        Ok(())
    })
}

/// Runs a task for each connection.
fn over(connections: usize, task: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
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

/// Operations per processor second of the server.
fn measure(
    server: &Server,
    method: Method,
    connections: usize,
    (blobs, count): (&[(String, Vec<u8>)], u64),
) -> Result<f64> {
    let before = server.settled_cpu()?;
    match method {
        Method::Get => get(server.address(), connections, blobs, count)?,
        Method::Put => put(server.address(), connections, blobs)?,
    }
    let used = server.settled_cpu()?.saturating_sub(before);
    let operations = match method {
        Method::Get => count,
        Method::Put => blobs.len() as u64,
    };
    Ok(operations as f64 / used.as_secs_f64().max(1e-9))
}

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

/// Measures both servers in turn; returns a table in Markdown.
///
/// # Errors
/// When a server does not start, refuses something or returns a wrong byte.
pub fn compare_http(options: &HttpOptions) -> Result<String> {
    let mut table = String::from(
        "| operations per server processor second | bazel-remote (spread) | fonn (spread) | fonn / bazel-remote | bar |\n\
         |---|---|---|---|---|\n",
    );
    let mut chart = Chart::new(
        "GET and PUT over HTTP beside bazel-remote, per server processor second",
        "length of the value, log2 of KiB",
        "fonn / bazel-remote",
    );
    let pool = ValuePool::new(Content::Random, 1 << 20);
    // A blob that a server has is not put again.
    let mut fresh = 0_u64;
    for method in [Method::Get, Method::Put] {
        for connections in CONNECTIONS {
            let over = match connections {
                1 => "1 connection".to_owned(),
                count => format!("{count} connections"),
            };
            let mut series = Series {
                name: format!("{method:?}").to_uppercase() + ", " + &over,
                points: Vec::new(),
            };
            for (name, len, keys, count) in SIZES {
                let cell = format!("{method:?} {name}, {over}");
                let is_wanted = options.only.as_ref();
                if !is_wanted.is_none_or(|only| cell.contains(only)) {
                    continue;
                }
                let cell = cell.replace("Get", "GET").replace("Put", "PUT");
                let servers = [Server::bazel_remote(options)?, Server::fonn(options)?];
                let make = |from: u64, count: u64| -> Vec<_> {
                    (from..from + count)
                        .map(|number| blob(&pool, number, len))
                        .collect()
                };
                if method == Method::Get {
                    let blobs = make(fresh, keys);
                    fresh += keys;
                    for server in &servers {
                        put(server.address(), 4, &blobs)?;
                        get(server.address(), connections, &blobs, keys)?;
                    }
                    let figures = rounds(options, &cell, &servers, |server| {
                        measure(server, method, connections, (&blobs, count))
                    })?;
                    push(&mut table, &mut series, &cell, len, figures)?;
                } else {
                    // The first blobs warm the servers up.
                    for server in &servers {
                        put(server.address(), connections, &make(fresh, count / 10))?;
                    }
                    fresh += count / 10;
                    let mut all = [Vec::new(), Vec::new()];
                    for round in 0..options.rounds.max(1) {
                        let blobs = make(fresh, count / 2);
                        fresh += count / 2;
                        for (server, all) in servers.iter().zip(&mut all) {
                            let figure = measure(server, method, connections, (&blobs, 0))?;
                            eprintln!("{cell}, round {round}, {}: {figure:.0}", server.name());
                            all.push(figure);
                        }
                    }
                    push(&mut table, &mut series, &cell, len, all)?;
                }
            }
            chart.series.push(series);
        }
    }
    if options.only.is_none() {
        fs::create_dir_all(&options.out_dir)?;
        let file = options.out_dir.join("http.svg");
        fs::write(&file, chart.to_svg()).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(table)
}

/// Measures the servers in turn.
fn rounds(
    options: &HttpOptions,
    cell: &str,
    servers: &[Server; 2],
    measure: impl Fn(&Server) -> Result<f64>,
) -> Result<[Vec<f64>; 2]> {
    let mut all = [Vec::new(), Vec::new()];
    for round in 0..options.rounds.max(1) {
        for (server, all) in servers.iter().zip(&mut all) {
            let figure = measure(server)?;
            eprintln!("{cell}, round {round}, {}: {figure:.0}", server.name());
            all.push(figure);
        }
    }
    Ok(all)
}

fn push(
    table: &mut String,
    series: &mut Series,
    cell: &str,
    len: usize,
    [bazel_remote, fonn]: [Vec<f64>; 2],
) -> Result<()> {
    let [peer, peer_min, peer_max] = spread(bazel_remote);
    let [own, own_min, own_max] = spread(fonn);
    writeln!(
        table,
        "| {cell} | {peer:.0} ({peer_min:.0}–{peer_max:.0}) | {own:.0} ({own_min:.0}–{own_max:.0}) | {:.2} | {BAR} |",
        own / peer
    )?;
    let kib = (len >> 10).max(1) as f64;
    series.points.push((kib.log2(), own / peer));
    Ok(())
}
