//! `fonn-compare`: Fonn beside memcached, Redis, twemproxy and bazel-remote; prints the tables of
//! docs/benchmarks.md.

#![allow(clippy::print_stdout, reason = "the tables are this program's output")]

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use fonn_tests::compare::{
    BesideOptions, BuildOptions, CodecOptions, ColdOptions, DiskOptions, GeneratorsOptions,
    GoOptions, LimitOptions, MemoryOptions, MovesOptions, OwnersOptions, Programs, RouterOptions,
    ScaleOptions, SpeedOptions, compare_build, compare_codecs, compare_cold, compare_disk,
    compare_generators, compare_go, compare_http, compare_memory, compare_moves, compare_owners,
    compare_remote, compare_router, compare_scale, compare_speed, serve_limit,
};
use fonn_tests::load::parse_size;
use fonn_tests::values::Content;

/// Measures Fonn beside memcached and redis-server, each with one serving thread.
///
/// The fonn-node that is measured: the variable FONN_NODE_BIN, or the one built beside this
/// program.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// A flag for fonn-node as NAME=VALUE (repeatable), for example --codec=ram=lz4.
    #[arg(long, global = true)]
    fonn_flag: Vec<String>,
    /// Gives fonn-node a data directory instead of `--data-dir none`.
    #[arg(long, global = true)]
    fonn_on_disk: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Gets and sets per processor second of the server.
    Speed {
        /// Length of one measurement in seconds.
        #[arg(long, default_value_t = 0.1)]
        seconds: f64,
        /// Measurements of each contender, in turn; medians count.
        #[arg(long, default_value_t = 15)]
        rounds: usize,
        /// Only kinds of work whose name contains this, for example `SET 100 B`.
        #[arg(long)]
        only: Option<String>,
        /// A look in less than three minutes: a few rounds over 16 connections.
        #[arg(long)]
        quick: bool,
        /// Directory of speed.csv and speed.svg.
        #[arg(long, default_value = "docs/plots")]
        out_dir: PathBuf,
    },
    /// The server that does nothing, which `speed` starts for itself.
    #[command(hide = true)]
    Limit {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        request_len: usize,
        #[arg(long)]
        value_len: Option<usize>,
    },
    /// The ratios by redis-benchmark and memcaslap beside those by our own load generator.
    Generators(GeneratorsOptions),
    /// A second serving thread, and 10,000 connections of which one in a hundred is active.
    Scale(ScaleOptions),
    /// Resident memory while many small entries are set.
    Memory {
        /// Number of entries.
        #[arg(long, default_value_t = 100_000)]
        entries: u64,
        /// Length of values in bytes.
        #[arg(long, default_value_t = 100)]
        value_len: usize,
        /// Directory of memory-fill.csv and memory-fill.svg.
        #[arg(long, default_value = "docs/plots")]
        out_dir: PathBuf,
    },
    /// Wall time of a build through sccache, straight to a far bucket and through fonn-node.
    Build {
        /// Sources of the project.
        #[arg(long, default_value_t = 60)]
        files: usize,
        /// Milliseconds that a round trip to the bucket takes longer.
        #[arg(long, default_value_t = 50)]
        latency_ms: u64,
        /// Builds of each kind; the fastest counts.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// Processor time of a set under one codec and under another, changed live in one node.
    Codec {
        /// Length of values in bytes, with a suffix k or m.
        #[arg(long, default_value = "1k")]
        value_len: String,
        /// What values look like.
        #[arg(long, value_enum, default_value = "random")]
        content: Content,
        /// The codec that is measured.
        #[arg(long, default_value = "lz4")]
        codec: String,
        /// The codec that it is measured beside.
        #[arg(long, default_value = "none")]
        beside: String,
        /// The level that has them.
        #[arg(long, default_value = "fresh")]
        level: String,
        /// About how long each is in force at a time, in seconds.
        #[arg(long, default_value_t = 0.7)]
        seconds: f64,
        /// Turns of each.
        #[arg(long, default_value_t = 200)]
        pairs: usize,
    },
    /// Sets and gets of a working set of four times the RAM, beside memcached with extstore.
    Disk(DiskOptions),
    /// GET and PUT of blobs over HTTP beside bazel-remote.
    Http(Beside),
    /// A build of a Go project with the go command's own cache, and with Fonn.
    Go {
        /// Directory of its module.
        #[arg(long)]
        module: PathBuf,
        /// The package that is built.
        #[arg(long, default_value = ".")]
        package: String,
        /// How much longer a round trip to the far node takes, in milliseconds.
        #[arg(long, default_value_t = 2)]
        latency_ms: u64,
        /// Builds of each kind; the fastest counts.
        #[arg(long, default_value_t = 2)]
        rounds: usize,
    },
    /// Calls of the Remote Execution API beside bazel-remote.
    Remote(Beside),
    /// fonn-router in front of three nodes beside twemproxy in front of three memcached.
    Router(RouterOptions),
    /// What a set through a router costs, with one owner a slot and with two.
    Owners {
        /// Keys that are set.
        #[arg(long, default_value_t = 100_000)]
        keys: u64,
        /// Length of values in bytes, with a suffix k or m.
        #[arg(long, default_value = "1k")]
        value_len: String,
        /// Requests in flight on each of 16 connections.
        #[arg(long, default_value_t = NonZeroUsize::MIN)]
        pipeline: NonZeroUsize,
        /// Clusters of each kind; medians count.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// What clients notice while a member joins, changes its weight, and drains.
    Moves {
        /// Keys that are there before.
        #[arg(long, default_value_t = 50_000)]
        keys: u64,
        /// Length of values in bytes, with a suffix k or m.
        #[arg(long, default_value = "4k")]
        value_len: String,
        /// Owners of a slot.
        #[arg(long, default_value_t = 1)]
        replicas: u8,
    },
    /// Spilling and reading beside the bare SDK on the same S3 server.
    Cold {
        /// Entries of a round.
        #[arg(long, default_value_t = 2000)]
        entries: u64,
        /// Length of values in bytes.
        #[arg(long, default_value_t = 128 << 10)]
        value_len: usize,
        /// Length of the bare uploader's objects in bytes; by default that of the node's segments.
        #[arg(long, default_value_t = 16 << 20)]
        object_len: usize,
        /// RAM budget of the node; by default that of a machine with 16 GiB.
        #[arg(long, default_value = "4g")]
        ram_budget: String,
        /// Measurements of each; medians count.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
}

#[derive(Debug, Args)]
struct Beside {
    /// The program bazel-remote.
    #[arg(long)]
    bazel_remote: PathBuf,
    /// Measurements of each; medians count.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Directory of the plot.
    #[arg(long, default_value = "docs/plots")]
    out_dir: PathBuf,
    /// Only cells whose name contains this, for example `GET 4 KiB`.
    #[arg(long)]
    only: Option<String>,
}

impl Beside {
    fn options(self, fonn_flags: &[String]) -> Result<BesideOptions> {
        Ok(BesideOptions {
            bazel_remote: self.bazel_remote,
            rounds: self.rounds,
            fonn_flags: flags(fonn_flags)?,
            out_dir: self.out_dir,
            only: self.only,
        })
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let table = match arguments.command {
        Command::Speed {
            seconds,
            rounds,
            only,
            quick,
            out_dir,
        } => {
            let duration = Duration::try_from_secs_f64(seconds)
                .with_context(|| format!("--seconds {seconds}: expected a duration"))?;
            compare_speed(
                &programs(&arguments.fonn_flag, arguments.fonn_on_disk)?,
                &SpeedOptions {
                    duration,
                    rounds: rounds.max(1),
                    only,
                    quick,
                    out_dir,
                },
            )?
        }
        Command::Limit {
            listen,
            request_len,
            value_len,
        } => {
            return serve_limit(&LimitOptions {
                addr: listen,
                request_len,
                value_len,
            });
        }
        Command::Generators(options) => compare_generators(
            &programs(&arguments.fonn_flag, arguments.fonn_on_disk)?,
            &options,
        )?,
        Command::Scale(options) => {
            compare_scale(&programs(&arguments.fonn_flag, false)?, &options)?
        }
        Command::Memory {
            entries,
            value_len,
            out_dir,
        } => compare_memory(
            &programs(&arguments.fonn_flag, arguments.fonn_on_disk)?,
            &MemoryOptions {
                entries,
                value_len,
                out_dir,
            },
        )?,
        Command::Build {
            files,
            latency_ms,
            rounds,
        } => compare_build(&BuildOptions {
            files,
            round_trip: Duration::from_millis(latency_ms),
            rounds,
        })?,
        Command::Codec {
            value_len,
            content,
            codec,
            beside,
            level,
            seconds,
            pairs,
        } => compare_codecs(&CodecOptions {
            value_len: parse_size(&value_len)?,
            content,
            codec,
            beside,
            level,
            turn: Duration::try_from_secs_f64(seconds)
                .with_context(|| format!("--seconds {seconds}: expected a duration"))?,
            pairs,
            fonn_flags: flags(&arguments.fonn_flag)?,
        })?,
        Command::Disk(options) => compare_disk(&programs(&arguments.fonn_flag, false)?, &options)?,
        Command::Go {
            module,
            package,
            latency_ms,
            rounds,
        } => compare_go(&GoOptions {
            module,
            package,
            round_trip: Duration::from_millis(latency_ms),
            rounds,
        })?,
        Command::Http(beside) => compare_http(&beside.options(&arguments.fonn_flag)?)?,
        Command::Remote(beside) => compare_remote(&beside.options(&arguments.fonn_flag)?)?,
        Command::Router(options) => {
            compare_router(&programs(&arguments.fonn_flag, false)?, &options)?
        }
        Command::Owners {
            keys,
            value_len,
            pipeline,
            rounds,
        } => compare_owners(&OwnersOptions {
            keys,
            value_len: parse_size(&value_len)?,
            pipeline,
            rounds,
            fonn_flags: flags(&arguments.fonn_flag)?,
        })?,
        Command::Moves {
            keys,
            value_len,
            replicas,
        } => compare_moves(MovesOptions {
            keys,
            value_len: parse_size(&value_len)?,
            replicas,
        })?,
        Command::Cold {
            entries,
            value_len,
            object_len,
            ram_budget,
            rounds,
        } => compare_cold(&ColdOptions {
            entries,
            value_len,
            object_len,
            ram_budget,
            rounds,
        })?,
    };
    println!("{table}");
    Ok(())
}

fn programs(fonn_flags: &[String], fonn_on_disk: bool) -> Result<Programs> {
    let mut programs = Programs::find()?;
    programs.fonn_on_disk = fonn_on_disk;
    programs.fonn_flags = flags(fonn_flags)?;
    Ok(programs)
}

fn flags(given: &[String]) -> Result<Vec<(String, String)>> {
    let split = |flag: &String| {
        let (name, value) = flag.split_once('=').with_context(|| {
            format!("--fonn-flag {flag}: expected a flag and its value, NAME=VALUE")
        })?;
        let name = format!("--{}", name.trim_start_matches('-'));
        Ok((name, value.to_owned()))
    };
    given.iter().map(split).collect()
}
