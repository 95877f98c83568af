//! `fonn-load`: drives one cache server and prints what it did.

#![allow(clippy::print_stdout, reason = "the report is this program's output")]

use std::net::ToSocketAddrs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;

use fonn_tests::load::{self, KeyDistribution, LoadOptions, Protocol, Sizes, Target, Verify};
use fonn_tests::values::Content;

/// Drives a memcached- or Redis-compatible server and reports throughput, latency, wrong bytes
/// and operations per second of the server's processor time.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Address of the server, HOST:PORT.
    #[arg(long, default_value = "127.0.0.1:11211")]
    server: String,
    /// Path of the server's Unix domain socket, instead of --server.
    #[arg(long)]
    unix: Option<PathBuf>,
    /// Protocol to speak.
    #[arg(long, value_enum, default_value = "text")]
    protocol: Protocol,
    /// Connections.
    #[arg(long, default_value = "16")]
    connections: NonZeroUsize,
    /// Requests in flight per connection, sent as one batch.
    #[arg(long, default_value = "1")]
    pipeline: NonZeroUsize,
    /// Threads of the client.
    #[arg(long, default_value = "1")]
    client_threads: NonZeroUsize,
    /// Number of keys that are set before the measurement.
    #[arg(long, default_value_t = 10_000)]
    keys: u64,
    /// Length of keys in bytes.
    #[arg(long, default_value_t = 16)]
    key_size: usize,
    /// Length of values, or a range MIN-MAX in which each key has its own; suffixes k, m, g.
    #[arg(long, default_value = "100")]
    value_size: Sizes,
    /// What values look like to a compressor.
    #[arg(long, value_enum, default_value = "random")]
    content: Content,
    /// Share of gets, the rest are sets.
    #[arg(long, default_value_t = 1.0)]
    get_ratio: f64,
    /// Share of gets that ask for a key that was set.
    #[arg(long, default_value_t = 1.0)]
    hit_ratio: f64,
    /// Choice of keys: uniform, zipf or zipf:EXPONENT.
    #[arg(long, default_value = "uniform")]
    distribution: KeyDistribution,
    /// Comparison of returned values.
    #[arg(long, value_enum, default_value = "all")]
    verify: Verify,
    /// Length of the measurement in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Number of operations, instead of --seconds.
    #[arg(long)]
    operations: Option<u64>,
    /// Uses the keys that an earlier run has set.
    #[arg(long)]
    no_fill: bool,
    /// Sets the keys and stops.
    #[arg(long)]
    fill_only: bool,
    /// Start of the pseudo-random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Process whose processor time and memory are read.
    #[arg(long)]
    server_pid: Option<u32>,
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let json = arguments.json;
    let report = load::run(&arguments.into_options()?)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Arguments {
    fn into_options(self) -> Result<LoadOptions> {
        let target = match self.unix {
            Some(path) => Target::Unix(path),
            None => Target::Tcp(
                self.server
                    .to_socket_addrs()
                    .with_context(|| format!("--server {}: expected HOST:PORT", self.server))?
                    .next()
                    .with_context(|| format!("--server {}: no such host", self.server))?,
            ),
        };
        let duration = Duration::try_from_secs_f64(self.seconds)
            .with_context(|| format!("--seconds {}: expected a duration", self.seconds))?;
        Ok(LoadOptions {
            target,
            protocol: self.protocol,
            connections: self.connections,
            pipeline: self.pipeline,
            client_threads: self.client_threads,
            keys: self.keys,
            key_size: self.key_size,
            value_size: self.value_size,
            content: self.content,
            get_ratio: self.get_ratio,
            hit_ratio: self.hit_ratio,
            distribution: self.distribution,
            verify: self.verify,
            warm_up: Duration::ZERO,
            duration,
            operations: self.operations,
            no_fill: self.no_fill,
            fill_only: self.fill_only,
            seed: self.seed,
            server_pid: self.server_pid,
        })
    }
}
