//! The disk tier beside memcached's extstore: a working set of four times the RAM.
//!
//! What a server has lost costs it little to look for, so gets are given twice: per get, and per
//! get that found its value. Sets count with the second that follows them: what they left to be
//! done in the background belongs to them.

#![allow(clippy::print_stderr, reason = "progress of a run of minutes")]

mod table;

use std::fs::{self, Permissions};
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use self::table::{Figures, Results};
use super::{Programs, Running};
use crate::load::{self, LoadOptions, Protocol, Sizes, parse_size};
use crate::node::NodeOptions;
use crate::peers::Peer;
use crate::usage::{Usage, disk_bytes};
use crate::values::Content;

/// What is left to be done in the background counts for so long.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// The working set, in multiples of the RAM.
const TIMES_RAM: u64 = 4;

/// Gets that are measured read at most so many bytes of values.
const GETS_LEN_MAX: u64 = 8 << 30;

/// What to measure.
#[derive(Clone, Debug, Args)]
pub struct DiskOptions {
    /// Lengths of values in bytes, with a suffix k or m, separated by commas.
    #[arg(
        long = "value-len",
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "16k"
    )]
    pub value_lens: Vec<usize>,
    /// What values look like, separated by commas.
    #[arg(
        long = "content",
        value_enum,
        value_delimiter = ',',
        default_value = "text"
    )]
    pub contents: Vec<Content>,
    /// Values of 16 KiB and 256 KiB, each of text and of random bytes.
    #[arg(long, conflicts_with_all = ["value_lens", "contents"])]
    pub all: bool,
    /// RAM of each server in MiB; values take four times as much.
    #[arg(long, default_value_t = 128)]
    pub ram_mib: u64,
    /// Gets that are measured, but no more than read 8 GiB.
    #[arg(long, default_value_t = 100_000)]
    pub gets: u64,
    /// A codec of fonn's disk tier, for fresh and compacted values (repeatable).
    #[arg(long = "codec", default_values = ["none", "lz4", "zstd:3", "auto"])]
    pub codecs: Vec<String>,
    /// Requests in flight on each of the 16 connections.
    #[arg(long, default_value_t = NonZeroUsize::MIN)]
    pub pipeline: NonZeroUsize,
    /// Measurements of each; medians count.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Directory on the device that is measured, instead of that for temporary files.
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// Values of one length and content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    value_len: usize,
    content: Content,
}

impl DiskOptions {
    fn kinds(&self) -> Vec<Kind> {
        let (lens, contents) = match self.all {
            true => (
                vec![16 << 10, 256 << 10],
                vec![Content::Text, Content::Random],
            ),
            false => (self.value_lens.clone(), self.contents.clone()),
        };
        let of_len = |value_len| {
            let kind = move |content| Kind { value_len, content };
            contents.iter().copied().map(kind)
        };
        lens.into_iter().flat_map(of_len).collect()
    }
}

/// Measures Fonn with each codec and memcached with extstore in turn; returns a table in Markdown
/// for each kind of values.
///
/// # Errors
/// When a server does not start, refuses a set or returns a wrong byte.
pub fn compare_disk(programs: &Programs, options: &DiskOptions) -> Result<String> {
    let mut tables = Vec::new();
    for kind in options.kinds() {
        let results = measure_kind(programs, options, kind)
            .with_context(|| format!("{} bytes of {:?}", kind.value_len, kind.content))?;
        tables.push(table::markdown(kind, &results));
    }
    Ok(tables.join("\n"))
}

fn measure_kind(programs: &Programs, options: &DiskOptions, kind: Kind) -> Result<Results> {
    let mut results = Results::new(&options.codecs);
    for round in 0..options.rounds.max(1) {
        for contender in &mut results.contenders {
            let dir = match &options.dir {
                Some(dir) => tempfile::tempdir_in(dir),
                None => tempfile::tempdir(),
            }
            .context("making a directory for the data")?;
            let running = match &contender.codec {
                Some(codec) => start_fonn(programs, options, codec, dir.path())?,
                None => start_extstore(programs, options, dir.path())?,
            };
            let figures = measure(&running, options, kind, dir.path());
            let figures = figures.with_context(|| contender.name())?;
            eprintln!("{kind:?}, round {round}, {}: {figures:?}", contender.name());
            contender.rounds.push(figures);
        }
    }
    Ok(results)
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

fn measure(running: &Running, options: &DiskOptions, kind: Kind, dir: &Path) -> Result<Figures> {
    let pid = running.pid()?;
    let value_len = kind.value_len.max(1) as u64;
    let keys = TIMES_RAM * (options.ram_mib << 20) / value_len;
    let mut load = LoadOptions::new(running.target(), Protocol::Binary);
    load.server_pid = Some(pid);
    load.value_size = Sizes::fixed(kind.value_len);
    load.content = kind.content;
    load.keys = keys;
    load.pipeline = options.pipeline;
    load.fill_only = true;
    let before = Usage::of(pid)?;
    let sets = load::run(&load)?;
    thread::sleep(AFTERWARDS);
    let sets_cpu = Usage::of(pid)?.cpu.saturating_sub(before.cpu);
    load.fill_only = false;
    load.no_fill = true;
    load.operations = Some(options.gets.min(GETS_LEN_MAX / value_len).max(1));
    let report = load::run(&load)?;
    ensure!(report.is_clean(), "{report}");
    let gets_per_second = report.operations_per_server_cpu_second.unwrap_or(0.0);
    let disk_bytes = disk_bytes(dir)? as f64;
    let found_bytes = (keys * value_len) as f64 * report.hit_ratio;
    Ok(Figures {
        sets_per_second: keys as f64 / sets_cpu.as_secs_f64().max(0.001),
        gets_per_second,
        hits_per_second: gets_per_second * report.hit_ratio,
        hit_ratio: report.hit_ratio,
        tails_ms: [sets.latency.p999_us, report.latency.p999_us].map(|us| us / 1e3),
        disk_mib: disk_bytes / f64::from(1 << 20),
        disk_bytes_per_byte: disk_bytes / found_bytes.max(1.0),
    })
}
