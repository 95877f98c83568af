//! What a set through a router costs all processes together, with one owner a slot and with two.
//!
//! Each key is set for the first time, as the artifacts of a build are, and then once more.

#![allow(clippy::print_stderr, reason = "progress of a run of a minute")]

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::cluster::Cluster;
use crate::load::{self, LoadOptions, Protocol, Sizes, Target};
use crate::node::NodeOptions;
use crate::router::FonnRouter;
use crate::usage::Usage;

const MEMBERS: usize = 3;

/// What to measure.
#[derive(Clone, Debug)]
pub struct OwnersOptions {
    /// Keys that are set.
    pub keys: u64,
    /// Length of values in bytes.
    pub value_len: usize,
    /// Requests in flight on each of 16 connections.
    pub pipeline: NonZeroUsize,
    /// Clusters of each kind; medians count.
    pub rounds: usize,
    /// More flags for the members, each with its value.
    pub fonn_flags: Vec<(String, String)>,
}

/// Microseconds of processor time of a set: of the router, and of all members.
#[derive(Clone, Copy, Debug)]
struct Cost {
    router: f64,
    members: f64,
}

/// Measures clusters of three members; returns a table in Markdown.
///
/// # Errors
/// When a process does not start, or refuses a set.
pub fn compare_owners(options: &OwnersOptions) -> Result<String> {
    let mut table = String::from(
        "\
| owners | keys | router, µs of processor time a set | members | together (spread) |
|---|---|---|---|---|
",
    );
    for owners in ["1", "2"] {
        let mut costs = [Vec::new(), Vec::new()];
        for round in 0..options.rounds.max(1) {
            for (costs, cost) in costs.iter_mut().zip(measure(owners, options)?) {
                eprintln!("{owners} owners, round {round}: {cost:?}");
                costs.push(cost);
            }
        }
        for (keys, mut costs) in ["new", "known"].into_iter().zip(costs) {
            let sum = |cost: &Cost| cost.router + cost.members;
            costs.sort_by(|a, b| sum(a).total_cmp(&sum(b)));
            let (Some(least), Some(greatest)) = (costs.first(), costs.last()) else {
                continue;
            };
            let median = costs.get(costs.len() / 2).unwrap_or(least);
            writeln!(
                table,
                "| {owners} | {keys} | {:.1} | {:.1} | {:.1} ({:.1}–{:.1}) |",
                median.router,
                median.members,
                sum(median),
                sum(least),
                sum(greatest),
            )?;
        }
    }
    Ok(table)
}

/// The cost of the first set of each key, and of the second.
fn measure(owners: &str, options: &OwnersOptions) -> Result<[Cost; 2]> {
    let mut node = NodeOptions::new().flag("--threads", "1");
    node = node
        .flag("--ram-budget", "256m")
        .flag("--disk-budget", "2g");
    for (name, value) in &options.fonn_flags {
        node = node.flag(name, value);
    }
    let cluster = Cluster::form_of(MEMBERS, node)?;
    cluster.ctl(0, &["replicas", owners])?;
    cluster.wait_settled(&[])?;
    let router = cluster.router_with(vec![("--threads", "1".to_owned())])?;
    let mut load = LoadOptions::new(Target::Tcp(router.addr()), Protocol::Text);
    load.pipeline = options.pipeline;
    load.keys = options.keys;
    load.value_size = Sizes::fixed(options.value_len);
    load.fill_only = true;
    let mut costs = [Cost {
        router: 0.0,
        members: 0.0,
    }; 2];
    for cost in &mut costs {
        let before = used(&cluster, &router)?;
        let report = load::run(&load)?;
        ensure!(report.is_clean(), "{report}");
        let after = used(&cluster, &router)?;
        let of = |before: Duration, after: Duration| {
            (after - before).as_secs_f64() * 1e6 / options.keys.max(1) as f64
        };
        *cost = Cost {
            router: of(before[0], after[0]),
            members: of(before[1], after[1]),
        };
    }
    Ok(costs)
}

/// Processor time of the router and of all members so far.
fn used(cluster: &Cluster, router: &FonnRouter) -> Result<[Duration; 2]> {
    let mut members = Duration::ZERO;
    for node in &cluster.nodes {
        members += Usage::of(node.pid()?)?.cpu;
    }
    Ok([Usage::of(router.pid()?)?.cpu, members])
}
