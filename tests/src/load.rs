//! The load generator: drives one server with one kind of traffic and says what it did.
//!
//! A run has two phases, a fill that sets every key once and a measured phase. Each client
//! thread owns its connections and an epoll loop; requests are written in batches of the
//! pipelining depth, replies are parsed no further than needed and compared with the expected
//! bytes where they lie in the read buffer, so that one client core keeps one server core busy.
//! Operations are counted per second of wall time and per second of the **server's** processor
//! time, which is what can be compared on a machine that is shared.

mod connection;
mod dialect;
mod options;
mod report;
mod worker;
mod workload;

use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};

pub use self::dialect::Protocol;
pub use self::options::{KeyDistribution, LoadOptions, Sizes, Target, Verify, parse_size};
pub use self::report::{LatencySummary, Report, Tally};
use self::worker::Worker;
use self::workload::{Phase, Workload};
use crate::usage::Usage;
use crate::values::ValuePool;

/// The key that the load generator uses for key number `number`, `len` bytes long.
#[must_use]
pub fn key_of(number: u64, len: usize) -> String {
    let mut key = Vec::with_capacity(len);
    workload::push_key(number, len, &mut key);
    key.into_iter().map(char::from).collect()
}

/// Fills the keys (unless told not to) and runs the measured phase. The report is that of the
/// measured phase, or of the fill if there is nothing else.
///
/// # Errors
/// When the server cannot be reached, closes a connection, stops answering for 60 seconds, or
/// sends something that is not the protocol. Refused operations, misses and wrong bytes are no
/// errors of the run: they are in the report.
pub fn run(options: &LoadOptions) -> Result<Report> {
    options.validate()?;
    let pool = ValuePool::new(options.content, options.value_size.max);
    run_with_pool(options, &pool)
        .with_context(|| format!("{} over {:?}", options.target, options.protocol))
}

fn run_with_pool(options: &LoadOptions, pool: &ValuePool) -> Result<Report> {
    if !options.no_fill {
        let (filled, report) = measured(options, pool, Phase::Fill)?;
        ensure!(
            filled.refused == 0,
            "{} sets of the fill were refused: {}",
            filled.refused,
            filled.first_problem.unwrap_or_default(),
        );
        if options.fill_only {
            return Ok(report);
        }
    }
    Ok(measured(options, pool, Phase::Measure)?.1)
}

/// What had been used at one moment.
struct Moment {
    at: Instant,
    client: Usage,
    server: Option<Usage>,
}

impl Moment {
    fn now(options: &LoadOptions) -> Result<Self> {
        Ok(Self {
            client: Usage::of(std::process::id())?,
            server: options.server_pid.map(Usage::of).transpose()?,
            at: Instant::now(),
        })
    }
}

/// Runs one phase, and says what it did and what it cost.
fn measured(options: &LoadOptions, pool: &ValuePool, phase: Phase) -> Result<(Tally, Report)> {
    let workers = connect(options, pool, phase)?;
    let (before, tally) = run_workers(workers, options, phase)?;
    let after = Moment::now(options)?;
    let elapsed = after.at.saturating_duration_since(before.at);
    let client = after.client.cpu.saturating_sub(before.client.cpu);
    let server = before.server.zip(after.server);
    let report = Report::new(options, &tally, elapsed, client, server);
    Ok((tally, report))
}

fn connect<'run>(
    options: &'run LoadOptions,
    pool: &'run ValuePool,
    phase: Phase,
) -> Result<Vec<Worker<'run>>> {
    (0..options.client_threads.get())
        .map(|index| Worker::connect(options, pool, Workload::new(options, phase, index), index))
        .collect()
}

/// Runs the workers to their end. Returns what had been used when the warm-up was over, and what
/// the workers did since.
fn run_workers(
    workers: Vec<Worker<'_>>,
    options: &LoadOptions,
    phase: Phase,
) -> Result<(Moment, Tally)> {
    let mut before = Moment::now(options)?;
    let tallies = std::thread::scope(|scope| {
        let handles: Vec<_> = workers
            .into_iter()
            .map(|worker| scope.spawn(|| worker.run()))
            .collect();
        if phase == Phase::Measure && !options.warm_up.is_zero() {
            std::thread::sleep(options.warm_up);
            before = Moment::now(options)?;
        }
        handles
            .into_iter()
            .map(|handle| {
                handle
                    .join()
                    .map_err(|_| anyhow!("a client thread panicked"))?
            })
            .collect::<Result<Vec<Tally>>>()
    })?;
    let mut total = Tally::new();
    for tally in tallies {
        total.merge(tally);
    }
    Ok((before, total))
}
