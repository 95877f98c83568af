//! The router beside twemproxy: what the hop adds to the median, and what it costs.
//!
//! Three memcached behind twemproxy, three nodes behind the router, one thread each. Where the
//! kernel puts processes that wake each other decides more about a hop's time than the proxy does,
//! so it is given for fixed places too.

#![allow(clippy::print_stderr, reason = "progress of a run of minutes")]

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::thread::CpuSet;
use tempfile::TempDir;

use super::placed::{allowed, first_two, keep_awake, only, place};
use super::{Programs, Running, Server};
use crate::cluster::Cluster;
use crate::load::{self, LoadOptions, Protocol, Sizes, Target, Verify};
use crate::node::NodeOptions;
use crate::peers::Peer;
use crate::process::find_program;
use crate::router::FonnRouter;
use crate::usage::processor_time;

const SERVERS: usize = 3;

/// What to measure.
#[derive(Clone, Debug)]
pub struct RouterOptions {
    /// Length of values in bytes.
    pub value_len: usize,
    /// Connections of the client.
    pub connections: NonZeroUsize,
    /// Requests in flight on each.
    pub pipeline: NonZeroUsize,
    /// Share of gets.
    pub get_ratio: f64,
    /// Length of one measurement.
    pub duration: Duration,
    /// Measurements of each in each place; medians count.
    pub rounds: usize,
}

/// Which of two processors client, proxy and servers run on; anywhere if it is not said.
struct Places {
    name: &'static str,
    of: Option<[usize; 3]>,
}

const PLACES: [Places; 5] = [
    Places {
        name: "where the kernel puts them",
        of: None,
    },
    Places {
        name: "all on one processor",
        of: Some([0, 0, 0]),
    },
    Places {
        name: "the client apart",
        of: Some([0, 1, 1]),
    },
    Places {
        name: "the servers apart",
        of: Some([0, 0, 1]),
    },
    Places {
        name: "the proxy apart",
        of: Some([0, 1, 0]),
    },
];

/// The servers of the client, in the order of [`World::paths`].
const PATHS: [&str; 4] = ["memcached", "twemproxy", "a node", "fonn-router"];

struct World {
    memcached: Vec<Peer>,
    twemproxy: Peer,
    alone: Running,
    cluster: Cluster,
    router: FonnRouter,
    _dir: TempDir,
}

/// What one path did in one round.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    p50_us: f64,
    operations_per_second: f64,
    /// Processor time of the process that the client talks to.
    cpu_us: f64,
}

/// Measures all paths in turn in each place; returns a table in Markdown.
///
/// # Errors
/// When a server does not start, refuses something or returns a wrong byte.
pub fn compare_router(programs: &Programs, options: &RouterOptions) -> Result<String> {
    let world = World::start(programs)?;
    let everywhere = allowed()?;
    let mut table = String::from(
        "| where they run | p50 memcached | through twemproxy | p50 a node | through fonn-router \
         | the router adds / twemproxy adds | operations/s, twemproxy | fonn-router \
         | operations per processor second, twemproxy | fonn-router | ratio |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for places in &PLACES {
        let awake = match places.of {
            None => Vec::new(),
            Some(_) => {
                let mut cpus = first_two(&everywhere).to_vec();
                cpus.dedup();
                cpus.into_iter()
                    .map(keep_awake)
                    .collect::<Result<Vec<_>>>()?
            }
        };
        world.place(places, &everywhere)?;
        let mut rounds: [Vec<Figures>; PATHS.len()] = Default::default();
        for round in 0..options.rounds.max(1) {
            for ((path, rounds), name) in world.paths()?.into_iter().zip(&mut rounds).zip(PATHS) {
                let figures = measure(path, options)?;
                eprintln!("{}, round {round}, {name}: {figures:?}", places.name);
                rounds.push(figures);
            }
        }
        drop(awake);
        let [memcached, twemproxy, node, router] = rounds.map(median);
        let added = [
            twemproxy.p50_us - memcached.p50_us,
            router.p50_us - node.p50_us,
        ];
        writeln!(
            table,
            "| {} | {:.1} µs | {:.1} µs | {:.1} µs | {:.1} µs | {:.1} / {:.1} µs = {:.2} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} |",
            places.name,
            memcached.p50_us,
            twemproxy.p50_us,
            node.p50_us,
            router.p50_us,
            added[1],
            added[0],
            added[1] / added[0],
            twemproxy.operations_per_second,
            router.operations_per_second,
            1e6 / twemproxy.cpu_us,
            1e6 / router.cpu_us,
            twemproxy.cpu_us / router.cpu_us,
        )?;
    }
    world.place(&PLACES[0], &everywhere)?;
    Ok(table)
}

impl World {
    fn start(programs: &Programs) -> Result<Self> {
        let twemproxy: PathBuf =
            find_program("nutcracker").context("nutcracker (twemproxy) is not installed")?;
        let dir = tempfile::tempdir()?;
        let memcached = (0..SERVERS)
            .map(|_| Peer::memcached(&programs.memcached, 1))
            .collect::<Result<Vec<_>>>()?;
        let servers: Vec<SocketAddr> = memcached.iter().map(|it| it.addr).collect();
        let mut node = NodeOptions::new().flag("--threads", "1");
        for (name, value) in &programs.fonn_flags {
            node = node.flag(name, value);
        }
        let cluster = Cluster::form_of(SERVERS, node)?;
        Ok(Self {
            twemproxy: Peer::twemproxy(&twemproxy, &servers, dir.path())?,
            alone: Running::start(Server::Fonn, programs)?,
            router: cluster.router_with(vec![("--threads", "1".to_owned())])?,
            memcached,
            cluster,
            _dir: dir,
        })
    }

    /// Address and process of the client's server: a server, the proxy before three, and the
    /// same of Fonn.
    fn paths(&self) -> Result<[(Target, u32); PATHS.len()]> {
        let memcached = self.memcached.first().context("no memcached")?;
        let twemproxy = &self.twemproxy;
        Ok([
            (Target::Tcp(memcached.addr), memcached.daemon.pid()),
            (Target::Tcp(twemproxy.addr), twemproxy.daemon.pid()),
            (self.alone.target(), self.alone.pid()?),
            (Target::Tcp(self.router.addr()), self.router.pid()?),
        ])
    }

    fn place(&self, places: &Places, everywhere: &CpuSet) -> Result<()> {
        let cpus = first_two(everywhere);
        let [client, proxy, server] = match places.of {
            None => [*everywhere; 3],
            Some(of) => of.map(|at| only(cpus[at])),
        };
        place(std::process::id(), &client)?;
        place(self.twemproxy.daemon.pid(), &proxy)?;
        place(self.router.pid()?, &proxy)?;
        place(self.alone.pid()?, &server)?;
        for memcached in &self.memcached {
            place(memcached.daemon.pid(), &server)?;
        }
        for node in &self.cluster.nodes {
            place(node.pid()?, &server)?;
        }
        Ok(())
    }
}

fn measure((target, pid): (Target, u32), options: &RouterOptions) -> Result<Figures> {
    let mut load = LoadOptions::new(target, Protocol::Text);
    load.connections = options.connections;
    load.pipeline = options.pipeline;
    load.keys = 2000;
    load.value_size = Sizes::fixed(options.value_len);
    load.get_ratio = options.get_ratio;
    load.verify = Verify::Sample;
    load.fill_only = true;
    load::run(&load)?;
    (load.fill_only, load.no_fill) = (false, true);
    load.duration = options.duration;
    let before = processor_time(pid)?;
    let report = load::run(&load)?;
    let cpu = processor_time(pid)?.saturating_sub(before);
    ensure!(
        report.is_clean() && report.unexpected_misses == 0,
        "{report}"
    );
    Ok(Figures {
        p50_us: report.latency.p50_us,
        operations_per_second: report.operations_per_second,
        cpu_us: cpu.as_secs_f64() * 1e6 / (report.operations as f64).max(1.0),
    })
}

/// Of each figure by itself.
fn median(rounds: Vec<Figures>) -> Figures {
    let of = |figure: fn(&Figures) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    Figures {
        p50_us: of(|it| it.p50_us),
        operations_per_second: of(|it| it.operations_per_second),
        cpu_us: of(|it| it.cpu_us),
    }
}
