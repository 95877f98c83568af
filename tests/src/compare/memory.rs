//! Memory per entry: a fill of many small entries, watched from outside. Pages of the program, of
//! which some are run for the first time meanwhile, do not count.

use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::{Chart, Programs, Running, Series, Server};
use crate::load::{self, LoadOptions, Protocol, Sizes};
use crate::usage::allocated_bytes;
use crate::values::Content;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// Before the fill, so that the plot shows where each server starts, and after it.
const MARGIN: Duration = Duration::from_millis(500);

/// What to fill with.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Entries.
    pub entries: u64,
    /// Length of values in bytes; keys have 16.
    pub value_len: usize,
    /// Where `memory-fill.csv` and `memory-fill.svg` go.
    pub out_dir: PathBuf,
}

/// Fills each contender and returns a table in Markdown; the samples go to a file and a plot.
///
/// # Errors
/// When a server does not start or refuses a set, or the files cannot be written.
pub fn compare_memory(programs: &Programs, options: &MemoryOptions) -> Result<String> {
    let with_codec = |codec: &str| {
        let mut programs = programs.clone();
        programs
            .fonn_flags
            .push(("--codec".to_owned(), format!("ram={codec}")));
        programs
            .fonn_flags
            .push(("--codec-min-bytes".to_owned(), "64".to_owned()));
        programs
    };
    let contenders = [
        (
            "memcached",
            Server::Memcached,
            Protocol::Binary,
            programs.clone(),
        ),
        ("redis", Server::Redis, Protocol::Resp, programs.clone()),
        (
            "fonn ram=none",
            Server::Fonn,
            Protocol::Binary,
            with_codec("none"),
        ),
        (
            "fonn ram=lz4",
            Server::Fonn,
            Protocol::Binary,
            with_codec("lz4"),
        ),
    ];
    let mut csv = String::from("server,seconds,allocated_bytes\n");
    let mut chart = Chart::new(
        &format!(
            "{} entries of 16 + {} bytes",
            options.entries, options.value_len
        ),
        "seconds",
        "allocated memory that is resident, MiB",
    );
    let mut table = String::from(
        "| server | before, MiB | after, MiB | bytes per entry |\n|---|---|---|---|\n",
    );
    for (name, server, protocol, programs) in contenders {
        let samples = fill(server, protocol, &programs, options).context(name)?;
        let first = samples.first().map_or(0, |sample| sample.1);
        let last = samples.last().map_or(0, |sample| sample.1);
        for (at, rss) in &samples {
            writeln!(csv, "{name},{:.3},{rss}", at.as_secs_f64())?;
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let per_entry = last.saturating_sub(first) as f64 / options.entries as f64;
        writeln!(
            table,
            "| {name} | {:.1} | {:.1} | {per_entry:.0} |",
            mib(first),
            mib(last)
        )?;
        let points = samples
            .iter()
            .map(|(at, rss)| (at.as_secs_f64(), mib(*rss)))
            .collect();
        chart.series.push(Series {
            name: name.to_owned(),
            points,
        });
    }
    fs::create_dir_all(&options.out_dir)?;
    fs::write(options.out_dir.join("memory-fill.csv"), csv)?;
    fs::write(options.out_dir.join("memory-fill.svg"), chart.to_svg())?;
    Ok(table)
}

/// Fills a server from eight connections; returns (time, allocated bytes) over the time of it.
fn fill(
    server: Server,
    protocol: Protocol,
    programs: &Programs,
    options: &MemoryOptions,
) -> Result<Vec<(Duration, u64)>> {
    let running = Running::start(server, programs)?;
    let pid = running.pid()?;
    let mut load = LoadOptions::new(running.target(), protocol);
    load.connections = NonZeroUsize::new(8).unwrap_or(NonZeroUsize::MIN);
    load.keys = options.entries;
    load.value_size = Sizes::fixed(options.value_len);
    load.content = Content::Text;
    load.fill_only = true;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let started = Instant::now();
            let mut samples = Vec::new();
            while !done.load(Ordering::Acquire) {
                samples.push((started.elapsed(), allocated_bytes(pid)?));
                thread::sleep(SAMPLE_INTERVAL);
            }
            Ok(samples)
        });
        thread::sleep(MARGIN);
        let filled = load::run(&load);
        thread::sleep(MARGIN);
        done.store(true, Ordering::Release);
        let samples = sampler
            .join()
            .map_err(|_| anyhow!("the sampler panicked"))?;
        filled?;
        samples
    })
}
