//! The router beside twemproxy: what the hop adds to the median, and what it costs.
//!
//! Three memcached behind twemproxy, three nodes behind the router, one thread each. Costs are
//! measured with twemproxy before three nodes too: what a proxy costs depends on how its servers
//! group their replies, and a node writes to disk. Where the kernel puts processes that wake each
//! other decides more about a hop's time than the proxy does, so it is given for fixed places too.

#![allow(clippy::print_stderr, reason = "progress of a run of minutes")]

mod table;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::thread::CpuSet;
use tempfile::TempDir;

use self::table::Figures;
use super::placed::{allowed, first_two, keep_awake, only, place};
use super::{Programs, Running, Server, parse_seconds};
use crate::cluster::Cluster;
use crate::load::{self, LoadOptions, Protocol, Sizes, Target, Verify, parse_size};
use crate::node::{FonnNode, NodeOptions};
use crate::peers::Peer;
use crate::process::find_program;
use crate::router::FonnRouter;

const SERVERS: usize = 3;

/// How long the connections of a measurement are used before it begins.
const WARM_UP: Duration = Duration::from_millis(30);

/// What to measure.
#[derive(Clone, Debug, Args)]
pub struct RouterOptions {
    /// Lengths of values in bytes, with a suffix k or m, separated by commas.
    #[arg(
        long = "value-len",
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "100"
    )]
    pub value_lens: Vec<usize>,
    /// Shares of gets, separated by commas; the rest are sets.
    #[arg(long = "get-ratio", value_delimiter = ',', default_value = "1.0")]
    pub get_ratios: Vec<f64>,
    /// Gets and sets of 100 B, 16 KiB and 64 KiB. More than one kind of requests has a table of
    /// the proxies' costs only, in two places.
    #[arg(long, conflicts_with_all = ["value_lens", "get_ratios"])]
    pub all: bool,
    /// Connections of the client.
    #[arg(long, default_value = "16")]
    pub connections: NonZeroUsize,
    /// Requests in flight on each connection.
    #[arg(long, default_value_t = NonZeroUsize::MIN)]
    pub pipeline: NonZeroUsize,
    /// Length of one measurement in seconds.
    #[arg(long = "seconds", value_parser = parse_seconds, default_value = "0.15")]
    pub duration: Duration,
    /// Measurements of each in each place, in turn; medians count.
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,
}

/// One kind of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Requests {
    value_len: usize,
    /// Share of gets.
    get_ratio: f64,
}

impl Requests {
    fn name(self) -> String {
        let len = match self.value_len {
            len if len < 1 << 10 => format!("{len} B"),
            len => format!("{} KiB", len >> 10),
        };
        match self.get_ratio {
            1.0.. => format!("GET {len}"),
            ..=0.0 => format!("SET {len}"),
            share => format!("{:.0} % GET {len}", share * 100.0),
        }
    }
}

impl RouterOptions {
    fn requests(&self) -> Vec<Requests> {
        let (ratios, lens) = match self.all {
            true => (vec![1.0, 0.0], vec![100, 16 << 10, 64 << 10]),
            false => (self.get_ratios.clone(), self.value_lens.clone()),
        };
        let of_ratio = |get_ratio| {
            let requests = move |value_len| Requests {
                value_len,
                get_ratio,
            };
            lens.iter().copied().map(requests)
        };
        ratios.into_iter().flat_map(of_ratio).collect()
    }
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
const PATHS: [&str; 5] = [
    "memcached",
    "twemproxy",
    "a node",
    "fonn-router",
    "twemproxy before nodes",
];

struct World {
    memcached: Vec<Peer>,
    twemproxy: Peer,
    alone: Running,
    /// In no cluster, behind a twemproxy.
    nodes: Vec<FonnNode>,
    before_nodes: Peer,
    cluster: Cluster,
    router: FonnRouter,
    _dir: TempDir,
}

/// Measures all paths in turn in each place, or the proxies in two places for more than one kind of
/// requests; returns a table in Markdown.
///
/// # Errors
/// When a server does not start, refuses something or returns a wrong byte.
pub fn compare_router(programs: &Programs, options: &RouterOptions) -> Result<String> {
    let world = World::start(programs)?;
    let everywhere = allowed()?;
    let kinds = options.requests();
    let table = match kinds.as_slice() {
        [requests] => detail(&world, &everywhere, options, *requests)?,
        _ => costs(&world, &everywhere, options, &kinds)?,
    };
    world.place(&PLACES[0], &everywhere)?;
    Ok(table)
}

/// All paths in all places.
fn detail(
    world: &World,
    everywhere: &CpuSet,
    options: &RouterOptions,
    requests: Requests,
) -> Result<String> {
    let mut table = table::DETAIL_HEAD.to_owned();
    for places in &PLACES {
        let paths = &PATHS[..4];
        let [memcached, twemproxy, node, router, _] =
            measure_in(world, everywhere, places, options, requests, paths)?;
        let rounds = [memcached, twemproxy, node, router];
        table.push_str(&table::detail(places.name, &rounds));
    }
    Ok(table)
}

/// The proxies for each kind of requests, where the kernel puts them and on one processor.
fn costs(
    world: &World,
    everywhere: &CpuSet,
    options: &RouterOptions,
    kinds: &[Requests],
) -> Result<String> {
    let mut table = table::COSTS_HEAD.to_owned();
    let [by_kernel, on_one, ..] = &PLACES;
    for requests in kinds {
        for places in [on_one, by_kernel] {
            let proxies = ["twemproxy", "fonn-router", "twemproxy before nodes"];
            let [_, twemproxy, _, router, before_nodes] =
                measure_in(world, everywhere, places, options, *requests, &proxies)?;
            let peers = [twemproxy.as_slice(), before_nodes.as_slice()];
            table.push_str(&table::costs(*requests, places.name, peers, &router));
        }
    }
    Ok(table)
}

/// The rounds of the paths with these names, in one place; none for other paths.
fn measure_in(
    world: &World,
    everywhere: &CpuSet,
    places: &Places,
    options: &RouterOptions,
    requests: Requests,
    names: &[&str],
) -> Result<[Vec<Figures>; PATHS.len()]> {
    let _awake = match places.of {
        None => Vec::new(),
        Some(_) => {
            let mut cpus = first_two(everywhere).to_vec();
            cpus.dedup();
            cpus.into_iter()
                .map(keep_awake)
                .collect::<Result<Vec<_>>>()?
        }
    };
    world.place(places, everywhere)?;
    let paths = world.paths()?.into_iter().zip(PATHS).enumerate();
    let paths: Vec<_> = paths
        .filter(|(_, (_, name))| names.contains(name))
        .collect();
    let failed = |name| format!("{} through {name}", requests.name());
    for (_, (path, name)) in &paths {
        fill(path.clone(), options, requests).with_context(|| failed(name))?;
    }
    let mut rounds: [Vec<Figures>; PATHS.len()] = Default::default();
    for _ in 0..options.rounds.max(1) {
        for (at, (path, name)) in &paths {
            let figures = measure(path.clone(), options, requests).with_context(|| failed(name))?;
            rounds[*at].push(figures);
        }
    }
    eprintln!("{}, {}", requests.name(), places.name);
    Ok(rounds)
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
        let nodes = (0..SERVERS)
            .map(|_| node.clone().start())
            .collect::<Result<Vec<_>>>()?;
        let node_addrs: Vec<SocketAddr> = nodes.iter().map(FonnNode::addr).collect();
        let cluster = Cluster::form_of(SERVERS, node)?;
        Ok(Self {
            twemproxy: Peer::twemproxy(&twemproxy, &servers, dir.path())?,
            before_nodes: Peer::twemproxy(&twemproxy, &node_addrs, dir.path())?,
            nodes,
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
            (
                Target::Tcp(self.before_nodes.addr),
                self.before_nodes.daemon.pid(),
            ),
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
        place(self.before_nodes.daemon.pid(), &proxy)?;
        place(self.router.pid()?, &proxy)?;
        place(self.alone.pid()?, &server)?;
        for memcached in &self.memcached {
            place(memcached.daemon.pid(), &server)?;
        }
        for node in self.nodes.iter().chain(&self.cluster.nodes) {
            place(node.pid()?, &server)?;
        }
        Ok(())
    }
}

fn load_options(
    (target, pid): (Target, u32),
    options: &RouterOptions,
    requests: Requests,
) -> LoadOptions {
    let mut load = LoadOptions::new(target, Protocol::Text);
    load.connections = options.connections;
    load.pipeline = options.pipeline;
    load.keys = 2000;
    load.value_size = Sizes::fixed(requests.value_len);
    load.get_ratio = requests.get_ratio;
    load.verify = Verify::Sample;
    load.no_fill = true;
    load.warm_up = WARM_UP;
    load.duration = options.duration;
    load.server_pid = Some(pid);
    load
}

fn fill(path: (Target, u32), options: &RouterOptions, requests: Requests) -> Result<()> {
    let mut load = load_options(path, options, requests);
    (load.no_fill, load.fill_only) = (false, true);
    load::run(&load).map(drop)
}

fn measure(path: (Target, u32), options: &RouterOptions, requests: Requests) -> Result<Figures> {
    let report = load::run(&load_options(path, options, requests))?;
    ensure!(
        report.is_clean() && report.unexpected_misses == 0,
        "{report}"
    );
    let cpu_seconds = report.server_cpu_seconds.unwrap_or_default();
    Ok(Figures {
        p50_us: report.latency.p50_us,
        operations_per_second: report.operations_per_second,
        cpu_us: cpu_seconds * 1e6 / (report.operations as f64).max(1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_name_of_their_operation_and_length() {
        let name = |get_ratio, value_len| {
            let requests = Requests {
                value_len,
                get_ratio,
            };
            requests.name()
        };
        assert_eq!(name(1.0, 100), "GET 100 B");
        assert_eq!(name(0.0, 64 << 10), "SET 64 KiB");
        assert_eq!(name(0.9, 1 << 10), "90 % GET 1 KiB");
    }
}
