//! Throughput: what each contender does with one processor second.

#![allow(clippy::print_stderr, reason = "progress of a run of minutes")]

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{CONTENDERS, Contender, Programs, Running, Server};
use crate::load::{self, LoadOptions, Report, Sizes, Verify};

/// How long and how often to measure.
#[derive(Clone, Debug)]
pub struct SpeedOptions {
    /// Length of one measurement.
    pub duration: Duration,
    /// Measurements of each contender.
    pub rounds: usize,
    /// Only scenarios whose name contains this.
    pub only: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Scenario {
    name: &'static str,
    value_len: usize,
    keys: u64,
    get_ratio: f64,
    pipeline: usize,
    /// What Fonn has to reach in each protocol, as a multiple of the best peer.
    bar: f64,
}

impl Scenario {
    const fn get(name: &'static str, value_len: usize, pipeline: usize) -> Self {
        Self {
            name,
            value_len,
            keys: 10_000,
            get_ratio: 1.0,
            pipeline,
            bar: 1.2,
        }
    }

    const fn large(name: &'static str, value_len: usize, keys: u64, get_ratio: f64) -> Self {
        Self {
            name,
            value_len,
            keys,
            get_ratio,
            pipeline: 1,
            bar: 1.0,
        }
    }

    /// Large values are compared in bytes, small ones in operations.
    const fn in_bytes(&self) -> bool {
        self.value_len >= 64 << 10
    }

    fn score(&self, report: &Report) -> f64 {
        if self.in_bytes() {
            report.megabytes_per_server_cpu_second.unwrap_or(0.0) / 1e3
        } else {
            report.operations_per_server_cpu_second.unwrap_or(0.0) / 1e3
        }
    }
}

const SCENARIOS: [Scenario; 10] = [
    Scenario::get("GET 100 B", 100, 1),
    Scenario::get("GET 100 B, pipelined by 16", 100, 16),
    Scenario::get("GET 1 KiB", 1 << 10, 1),
    Scenario::get("GET 1 KiB, pipelined by 16", 1 << 10, 16),
    Scenario::large("GET 64 KiB", 64 << 10, 1000, 1.0),
    Scenario::large("SET 64 KiB", 64 << 10, 1000, 0.0),
    Scenario::large("GET 1 MiB", 1 << 20, 100, 1.0),
    Scenario::large("SET 1 MiB", 1 << 20, 100, 0.0),
    Scenario::large("GET 10 MiB", 10 << 20, 16, 1.0),
    Scenario::large("SET 10 MiB", 10 << 20, 16, 0.0),
];

/// Runs all scenarios against all contenders and returns the tables in Markdown.
///
/// # Errors
/// When a server does not start, or gives a wrong byte, a refusal or a miss for what was set.
pub fn compare_speed(programs: &Programs, options: &SpeedOptions) -> Result<String> {
    let mut speed = String::from(
        "| per server processor second | memcached text | memcached binary | redis | fonn text \
         | fonn binary | fonn RESP | fonn / best peer | bar |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut latency = String::from(
        "| p50 / p99 / p99.9 in µs | memcached text | memcached binary | redis | fonn text \
         | fonn binary | fonn RESP |\n|---|---|---|---|---|---|---|\n",
    );
    let wanted = |name: &str| options.only.as_ref().is_none_or(|only| name.contains(only));
    for scenario in SCENARIOS.iter().filter(|scenario| wanted(scenario.name)) {
        let mut reports: [Vec<Report>; CONTENDERS.len()] = Default::default();
        for round in 0..options.rounds {
            for (contender, reports) in CONTENDERS.iter().zip(&mut reports) {
                let report = measure(*contender, scenario, programs, options.duration)?;
                let score = scenario.score(&report);
                eprintln!("{} round {round} {contender:?}: {score:.2}", scenario.name);
                reports.push(report);
            }
        }
        for reports in &mut reports {
            reports.sort_by(|one, two| scenario.score(one).total_cmp(&scenario.score(two)));
        }
        push_rows(scenario, &reports, &mut speed, &mut latency)?;
    }
    Ok(format!("{speed}\n{latency}"))
}

fn measure(
    (server, protocol): Contender,
    scenario: &Scenario,
    programs: &Programs,
    duration: Duration,
) -> Result<Report> {
    let running = Running::start(server, programs)?;
    let mut options = LoadOptions::new(running.target(), protocol);
    options.server_pid = Some(running.pid()?);
    options.value_size = Sizes::fixed(scenario.value_len);
    options.keys = scenario.keys;
    options.get_ratio = scenario.get_ratio;
    options.pipeline = NonZeroUsize::new(scenario.pipeline).unwrap_or(NonZeroUsize::MIN);
    options.duration = duration;
    // The client must not be slower than the server on values of megabytes.
    options.verify = if scenario.in_bytes() {
        Verify::Sample
    } else {
        Verify::All
    };
    // Without the page faults of memory that the server has for the first time.
    load::run(&options)?;
    let report = load::run(&options)?;
    ensure!(
        report.is_clean() && report.unexpected_misses == 0,
        "{} over {protocol:?} to {server:?}: {report}",
        scenario.name
    );
    Ok(report)
}

fn push_rows(
    scenario: &Scenario,
    reports: &[Vec<Report>; CONTENDERS.len()],
    speed: &mut String,
    latency: &mut String,
) -> Result<()> {
    let unit = if scenario.in_bytes() { "GB" } else { "k" };
    write!(speed, "| {} ({unit}) |", scenario.name)?;
    write!(latency, "| {} |", scenario.name)?;
    let (mut best_peer, mut fonn) = (0.0_f64, Vec::new());
    for ((server, _), reports) in CONTENDERS.iter().zip(reports) {
        let Some(median) = reports.get(reports.len() / 2) else {
            continue;
        };
        let score = scenario.score(median);
        match server {
            Server::Fonn => fonn.push(score),
            Server::Memcached | Server::Redis => best_peer = best_peer.max(score),
        }
        let digits = if scenario.in_bytes() { 2 } else { 0 };
        write!(speed, " {score:.digits$} |")?;
        let times = median.latency;
        write!(
            latency,
            " {:.0} / {:.0} / {:.0} |",
            times.p50_us, times.p99_us, times.p999_us
        )?;
    }
    let ratios: Vec<String> = fonn
        .iter()
        .map(|score| format!("{:.2}", score / best_peer))
        .collect();
    writeln!(speed, " {} | {:.1} |", ratios.join(" / "), scenario.bar)?;
    writeln!(latency)?;
    Ok(())
}
