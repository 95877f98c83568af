//! The disk tier beside memcached's extstore: a working set of four times the RAM.
//!
//! What a server has lost costs it little to look for, so gets are given twice: per get, and per
//! get that found its value. Sets count with the second that follows them: what they left to be
//! done in the background belongs to them.

#![allow(clippy::print_stderr, reason = "progress of a run of minutes")]

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Programs, Running};
use crate::load::{self, LoadOptions, Protocol, Sizes};
use crate::node::NodeOptions;
use crate::peers::Peer;
use crate::usage::{Usage, disk_bytes};
use crate::values::Content;

/// What is left to be done in the background counts for so long.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// The working set, in multiples of the RAM.
const TIMES_RAM: u64 = 4;

/// What to measure.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Length of values in bytes.
    pub value_len: usize,
    /// What values look like.
    pub content: Content,
    /// RAM of each server in MiB.
    pub ram_mib: u64,
    /// Gets that are measured.
    pub gets: u64,
    /// Codecs of Fonn, for fresh and compacted values alike.
    pub codecs: Vec<String>,
    /// Requests in flight on each of the 16 connections.
    pub pipeline: NonZeroUsize,
    /// Measurements of each; medians count.
    pub rounds: usize,
    /// Where the data go, on the device that is measured; a temporary directory if there is none.
    pub dir: Option<PathBuf>,
}

/// What one contender did in one round.
#[derive(Clone, Copy, Debug)]
struct Figures {
    sets_per_second: f64,
    gets_per_second: f64,
    hits_per_second: f64,
    hit_ratio: f64,
    /// Times in milliseconds that 99.9 % of the sets and of the gets took at most.
    tails_ms: [f64; 2],
    /// Bytes on disk for each byte of values that is found.
    bytes_on_disk: f64,
}

/// Measures Fonn with each codec and memcached with extstore in turn; returns a table in Markdown.
///
/// # Errors
/// When a server does not start, refuses a set or returns a wrong byte.
pub fn compare_disk(programs: &Programs, options: &DiskOptions) -> Result<String> {
    let mut names: Vec<String> = options
        .codecs
        .iter()
        .map(|it| format!("fonn {it}"))
        .collect();
    names.push("memcached, extstore".to_owned());
    let mut rounds: Vec<Vec<Figures>> = vec![Vec::new(); names.len()];
    for round in 0..options.rounds.max(1) {
        for (at, (name, figures)) in names.iter().zip(&mut rounds).enumerate() {
            let dir = match &options.dir {
                Some(dir) => tempfile::tempdir_in(dir),
                None => tempfile::tempdir(),
            }
            .context("making a directory for the data")?;
            let running = match options.codecs.get(at) {
                Some(codec) => start_fonn(programs, options, codec, dir.path())?,
                None => start_extstore(programs, options, dir.path())?,
            };
            let found = measure(&running, options, dir.path()).with_context(|| name.clone())?;
            eprintln!("round {round} {name}: {found:?}");
            figures.push(found);
        }
    }
    let mut table = String::from(
        "| per second of the server's processor time | sets | gets | gets that found | found \
         | bytes on disk per byte found | p99.9 of sets / gets, ms |\n|---|---|---|---|---|---|---|\n",
    );
    for (name, figures) in names.iter().zip(&rounds) {
        let median = |of: fn(&Figures) -> f64| {
            let mut all: Vec<f64> = figures.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or(0.0)
        };
        writeln!(
            table,
            "| {name} | {:.1}k | {:.1}k | {:.1}k | {:.0} % | {:.3} | {:.1} / {:.1} |",
            median(|it| it.sets_per_second) / 1e3,
            median(|it| it.gets_per_second) / 1e3,
            median(|it| it.hits_per_second) / 1e3,
            median(|it| it.hit_ratio) * 100.0,
            median(|it| it.bytes_on_disk),
            median(|it| it.tails_ms[0]),
            median(|it| it.tails_ms[1]),
        )?;
    }
    Ok(table)
}

fn start_fonn(
    programs: &Programs,
    options: &DiskOptions,
    codec: &str,
    dir: &Path,
) -> Result<Running> {
    let mut node = NodeOptions::new()
        .data_dir(&dir.join("data"))
        .flag("--threads", "1")
        .flag("--ram-budget", format!("{}m", options.ram_mib))
        .flag("--disk-budget", "8g")
        .flag("--codec", format!("fresh={codec},compacted={codec}"));
    for (name, value) in &programs.fonn_flags {
        node = node.flag(name, value);
    }
    Ok(Running::Fonn(node.start()?))
}

fn start_extstore(programs: &Programs, options: &DiskOptions, dir: &Path) -> Result<Running> {
    // As root it runs as the user `nobody`.
    fs::set_permissions(dir, Permissions::from_mode(0o777))?;
    let file = dir.join("extstore");
    Ok(Running::Peer(Peer::extstore(
        &programs.memcached,
        options.ram_mib,
        &file,
    )?))
}

fn measure(running: &Running, options: &DiskOptions, dir: &Path) -> Result<Figures> {
    let pid = running.pid()?;
    let keys = TIMES_RAM * (options.ram_mib << 20) / options.value_len.max(1) as u64;
    let mut load = LoadOptions::new(running.target(), Protocol::Binary);
    load.server_pid = Some(pid);
    load.value_size = Sizes::fixed(options.value_len);
    load.content = options.content;
    load.keys = keys;
    load.pipeline = options.pipeline;
    load.fill_only = true;
    let before = Usage::of(pid)?;
    let sets = load::run(&load)?;
    thread::sleep(AFTERWARDS);
    let sets_cpu = Usage::of(pid)?.cpu.saturating_sub(before.cpu);
    load.fill_only = false;
    load.no_fill = true;
    load.operations = Some(options.gets);
    let report = load::run(&load)?;
    ensure!(report.is_clean(), "{report}");
    let gets_per_second = report.operations_per_server_cpu_second.unwrap_or(0.0);
    let found_bytes = keys as f64 * options.value_len as f64 * report.hit_ratio;
    Ok(Figures {
        sets_per_second: keys as f64 / sets_cpu.as_secs_f64().max(0.001),
        gets_per_second,
        hits_per_second: gets_per_second * report.hit_ratio,
        hit_ratio: report.hit_ratio,
        tails_ms: [sets.latency.p999_us, report.latency.p999_us].map(|us| us / 1e3),
        bytes_on_disk: disk_bytes(dir)? as f64 / found_bytes.max(1.0),
    })
}
