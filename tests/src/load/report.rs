//! What a run found.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::{LoadOptions, Protocol};
use crate::usage::Usage;

/// Latencies above this are recorded as this.
const LATENCY_MAX: Duration = Duration::from_secs(100);

/// Counts of one client thread, or of several merged.
#[derive(Debug)]
pub struct Tally {
    /// Gets that were answered.
    pub gets: u64,
    /// Sets that were answered.
    pub sets: u64,
    /// Gets that found a value.
    pub hits: u64,
    /// Gets of keys that were set which found nothing: lost, evicted or not filled.
    pub unexpected_misses: u64,
    /// Replies with wrong bytes, a wrong length, or a value for a key that was never set.
    pub wrong: u64,
    /// Operations that the server refused with an error.
    pub refused: u64,
    /// Bytes of values read and written.
    pub value_bytes: u64,
    /// What the first wrong or refused reply said.
    pub first_problem: Option<String>,
    latencies: Histogram<u64>,
}

impl Tally {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        let mut latencies = Histogram::new_with_bounds(1, LATENCY_MAX.as_nanos() as u64, 3)
            .expect("the bounds are constants that the histogram accepts");
        latencies.auto(false);
        Self {
            gets: 0,
            sets: 0,
            hits: 0,
            unexpected_misses: 0,
            wrong: 0,
            refused: 0,
            value_bytes: 0,
            first_problem: None,
            latencies,
        }
    }

    /// Notes how long one operation took.
    pub fn record(&mut self, latency: Duration) {
        self.latencies.saturating_record(latency.as_nanos() as u64);
    }

    /// Forgets what was done, but not what went wrong.
    pub(super) fn begin(&mut self) {
        (self.gets, self.sets, self.hits, self.value_bytes) = (0, 0, 0, 0);
        self.latencies.reset();
    }

    /// Keeps the first problem.
    pub fn note(&mut self, problem: impl FnOnce() -> String) {
        if self.first_problem.is_none() {
            self.first_problem = Some(problem());
        }
    }

    /// Adds what another thread counted.
    pub fn merge(&mut self, other: Self) {
        self.gets += other.gets;
        self.sets += other.sets;
        self.hits += other.hits;
        self.unexpected_misses += other.unexpected_misses;
        self.wrong += other.wrong;
        self.refused += other.refused;
        self.value_bytes += other.value_bytes;
        self.first_problem = self.first_problem.take().or(other.first_problem);
        self.latencies
            .add(&other.latencies)
            .expect("both histograms have the same bounds");
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

/// Quantiles of the time from sending a batch to the end of a reply, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LatencySummary {
    /// Half of the operations were faster.
    pub p50_us: f64,
    /// 99 % were faster.
    pub p99_us: f64,
    /// 99.9 % were faster.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
}

/// Result of one run, printable as a table and as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Protocol of the run.
    pub protocol: Protocol,
    /// Operations that were answered.
    pub operations: u64,
    /// Length of the measured phase in seconds.
    pub seconds: f64,
    /// Operations per second of wall time.
    pub operations_per_second: f64,
    /// Megabytes (10^6) of values per second of wall time, both directions.
    pub megabytes_per_second: f64,
    /// Gets among the operations.
    pub gets: u64,
    /// Sets among the operations.
    pub sets: u64,
    /// Share of gets that found a value.
    pub hit_ratio: f64,
    /// Gets of keys that were set which found nothing.
    pub unexpected_misses: u64,
    /// Replies with wrong bytes.
    pub wrong: u64,
    /// Operations that were refused.
    pub refused: u64,
    /// What the first wrong or refused reply said.
    pub first_problem: Option<String>,
    /// Latency.
    pub latency: LatencySummary,
    /// Processor seconds of the client; near `seconds` × threads means that it was the bottleneck.
    pub client_cpu_seconds: f64,
    /// Processor seconds of the server, when its process is known.
    pub server_cpu_seconds: Option<f64>,
    /// Operations per processor second of the server.
    pub operations_per_server_cpu_second: Option<f64>,
    /// Megabytes of values per processor second of the server.
    pub megabytes_per_server_cpu_second: Option<f64>,
    /// Resident memory of the server after the run, in bytes.
    pub server_rss_bytes: Option<u64>,
}

impl Report {
    pub(super) fn new(
        options: &LoadOptions,
        tally: &Tally,
        elapsed: Duration,
        client: Duration,
        server: Option<(Usage, Usage)>,
    ) -> Self {
        let operations = tally.gets + tally.sets;
        let seconds = elapsed.as_secs_f64();
        let megabytes = tally.value_bytes as f64 / 1e6;
        let us = |nanos: u64| nanos as f64 / 1e3;
        let quantile = |q| us(tally.latencies.value_at_quantile(q));
        let cpu = server.map(|(before, after)| after.cpu.saturating_sub(before.cpu).as_secs_f64());
        Self {
            protocol: options.protocol,
            operations,
            seconds,
            operations_per_second: per(operations as f64, seconds),
            megabytes_per_second: per(megabytes, seconds),
            gets: tally.gets,
            sets: tally.sets,
            hit_ratio: per(tally.hits as f64, tally.gets as f64),
            unexpected_misses: tally.unexpected_misses,
            wrong: tally.wrong,
            refused: tally.refused,
            first_problem: tally.first_problem.clone(),
            latency: LatencySummary {
                p50_us: quantile(0.5),
                p99_us: quantile(0.99),
                p999_us: quantile(0.999),
                max_us: us(tally.latencies.max()),
            },
            client_cpu_seconds: client.as_secs_f64(),
            server_cpu_seconds: cpu,
            operations_per_server_cpu_second: cpu.map(|cpu| per(operations as f64, cpu)),
            megabytes_per_server_cpu_second: cpu.map(|cpu| per(megabytes, cpu)),
            server_rss_bytes: server.map(|(_, after)| after.rss_bytes),
        }
    }

    /// Whether every reply was right: no wrong byte, nothing refused.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.wrong == 0 && self.refused == 0
    }
}

fn per(amount: f64, divisor: f64) -> f64 {
    if divisor > 0.0 { amount / divisor } else { 0.0 }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gets,
            sets,
            seconds,
            ..
        } = self;
        writeln!(
            f,
            "operations           {} ({gets} get, {sets} set) in {seconds:.2} s",
            self.operations
        )?;
        writeln!(f, "operations/s         {:.0}", self.operations_per_second)?;
        writeln!(f, "values MB/s          {:.1}", self.megabytes_per_second)?;
        let LatencySummary {
            p50_us,
            p99_us,
            p999_us,
            max_us,
        } = self.latency;
        writeln!(
            f,
            "latency us           p50 {p50_us:.1}  p99 {p99_us:.1}  p99.9 {p999_us:.1}  max {max_us:.1}"
        )?;
        writeln!(
            f,
            "hit ratio            {:.4}, {} unexpected misses",
            self.hit_ratio, self.unexpected_misses
        )?;
        writeln!(f, "wrong, refused       {}, {}", self.wrong, self.refused)?;
        if let Some(problem) = &self.first_problem {
            writeln!(f, "first problem        {problem}")?;
        }
        writeln!(f, "client cpu           {:.2} s", self.client_cpu_seconds)?;
        if let (Some(cpu), Some(operations), Some(megabytes), Some(rss)) = (
            self.server_cpu_seconds,
            self.operations_per_server_cpu_second,
            self.megabytes_per_server_cpu_second,
            self.server_rss_bytes,
        ) {
            writeln!(f, "server cpu           {cpu:.2} s")?;
            writeln!(f, "operations/cpu-s     {operations:.0}")?;
            writeln!(f, "values MB/cpu-s      {megabytes:.1}")?;
            writeln!(
                f,
                "server rss           {:.1} MiB",
                rss as f64 / 1_048_576.0
            )?;
        }
        Ok(())
    }
}
