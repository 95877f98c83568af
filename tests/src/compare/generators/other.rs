//! `redis-benchmark` and `memcaslap` as drivers of a server.
//!
//! The generator runs without an end of its own. A signal stops it between measurements and another
//! lets it go on, so many short measurements of two servers and two generators can take turns.
//! Operations are the difference of the server's own counters. So neither the fill nor the start of
//! the generator counts.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::NamedTempFile;

use super::{Cell, Operation, SETS_PER_KEY, WARM_UP, Work};
use crate::client::{Cache as _, RespClient, TextClient};
use crate::compare::{Running, Server};
use crate::load::{Protocol, Target};
use crate::process::{self, Daemon, Signal, find_program};
use crate::usage::processor_time;

/// The fill of a generator ends within this time.
const FILL_LIMIT: Duration = Duration::from_secs(120);
/// memcaslap sets this many keys a connection, or a multiple; it accepts no fewer.
const WINDOW_MIN: u64 = 1024;
/// Keys of gets, where a connection needs no more by itself.
const KEYS: u64 = 16 * WINDOW_MIN;
/// More requests than redis-benchmark sends in the time of a measurement.
const REQUESTS_MAX: u64 = 1_000_000_000;
/// Gets that find a value, as a share of all gets, where every key was set.
const HIT_RATIO_MIN: f64 = 0.99;

/// A load generator of another project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generator {
    RedisBenchmark,
    Memcaslap,
}

/// Operations that a server has counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    gets: u64,
    hits: u64,
    sets: u64,
}

impl Generator {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::RedisBenchmark => "redis-benchmark",
            Self::Memcaslap => "memcaslap",
        }
    }

    /// Whether the generator has an option for such work.
    pub(super) const fn can_do(self, work: &Work) -> bool {
        matches!(self, Self::RedisBenchmark) || work.pipeline == 1
    }

    /// Whether it sets its keys in no order, some of them more than once. Their values then lie
    /// apart in the memory of a server.
    pub(super) const fn fills_at_random(self) -> bool {
        matches!(self, Self::RedisBenchmark)
    }

    /// How many keys the generator uses. memcaslap overwrites one key a connection.
    pub(super) fn keys(self, work: &Work, connections: usize) -> u64 {
        let connections = connections as u64;
        match (self, work.operation) {
            (Self::RedisBenchmark, _) => KEYS,
            (Self::Memcaslap, Operation::Get) => KEYS.max(connections * WINDOW_MIN),
            (Self::Memcaslap, Operation::Set) => connections,
        }
    }

    /// Sets the keys of redis-benchmark, once for all numbers of connections. It chooses keys at
    /// random, so one key of 3,000 stays absent. memcaslap sets the
    /// keys of each of its runs by itself.
    pub(super) fn prepare(self, running: &Running, work: Work) -> Result<()> {
        if self != Self::RedisBenchmark {
            return Ok(());
        }
        let fill = Cell {
            work: Work {
                operation: Operation::Set,
                pipeline: 16,
                ..work
            },
            connections: 16,
            keys: self.keys(&work, 16),
        };
        let mut command = redis_benchmark(address(running)?, &fill, fill.keys * SETS_PER_KEY)?;
        process::run(&mut command).context("setting the keys of redis-benchmark")?;
        Ok(())
    }

    /// Removes the keys of earlier runs of memcaslap, which has new ones in each run.
    pub(super) fn clear(self, running: &Running) -> Result<()> {
        if self == Self::Memcaslap {
            let mut client = TextClient::connect(address(running)?)?;
            client.flush().context("flush_all")?;
        }
        Ok(())
    }

    /// Starts the generator, and stops it when it has set its keys.
    ///
    /// # Errors
    /// When it does not start, or sets no keys within [`FILL_LIMIT`].
    pub(super) fn start(
        self,
        (kind, running): (Server, &Running),
        protocol: Protocol,
        cell: &Cell,
    ) -> Result<Driver> {
        let addr = address(running)?;
        let mut counter = Counter::connect(kind, addr)?;
        let before = counter.read()?;
        let config = NamedTempFile::new().context("making a file for memcaslap")?;
        std::fs::write(config.path(), memcaslap_config(cell))?;
        let mut command = match self {
            Self::RedisBenchmark => redis_benchmark(addr, cell, REQUESTS_MAX)?,
            Self::Memcaslap => memcaslap(addr, protocol, cell, config.path())?,
        };
        let mut daemon = Daemon::spawn(self.name(), &mut command)?;
        let fill = match (self, cell.work.operation) {
            (Self::Memcaslap, Operation::Get) => cell.keys,
            _ => 0,
        };
        let mut problem = None;
        daemon.wait_until("request", FILL_LIMIT, || match counter.read() {
            Ok(now) => {
                let is_filled = now.sets - before.sets >= fill;
                is_filled && now.of(cell.work.operation) > before.of(cell.work.operation)
            }
            Err(error) => {
                problem = Some(error);
                true
            }
        })?;
        if let Some(problem) = problem {
            return Err(problem).context("reading the counters of the server");
        }
        daemon.signal(Signal::STOP)?;
        Ok(Driver {
            daemon,
            counter,
            operation: cell.work.operation,
            server: running.pid()?,
            _config: config,
        })
    }
}

/// A generator of another project, stopped between measurements.
pub(super) struct Driver {
    daemon: Daemon,
    counter: Counter,
    operation: Operation,
    /// The process of the server.
    server: u32,
    /// memcaslap reads its configuration while it runs.
    _config: NamedTempFile,
}

impl Driver {
    /// Operations of one second of the server's processor time, while the generator goes on.
    ///
    /// # Errors
    /// When it has ended, or did something else than the operation of its cell.
    pub(super) fn measure(&mut self, duration: Duration) -> Result<f64> {
        self.daemon.signal(Signal::CONT)?;
        thread::sleep(WARM_UP);
        let (from, cpu_from) = (self.counter.read()?, processor_time(self.server)?);
        thread::sleep(duration);
        let (to, cpu_to) = (self.counter.read()?, processor_time(self.server)?);
        let exit = self.daemon.exited()?;
        ensure!(exit.is_none(), "ended early: {}", self.daemon.log_end());
        self.daemon.signal(Signal::STOP)?;
        let operations = operations(self.operation, from, to)?;
        let cpu = cpu_to.saturating_sub(cpu_from);
        Ok(operations as f64 / cpu.as_secs_f64().max(1e-6))
    }
}

fn address(running: &Running) -> Result<SocketAddr> {
    match running.target() {
        Target::Tcp(addr) => Ok(addr),
        target @ Target::Unix(_) => bail!("{target}: the generator needs a TCP address"),
    }
}

/// The operations between two readings.
///
/// # Errors
/// When operations of the other kind are among them, or gets that found nothing.
fn operations(operation: Operation, from: Counts, to: Counts) -> Result<u64> {
    let (gets, sets) = (to.gets - from.gets, to.sets - from.sets);
    let (hits, wanted, others) = match operation {
        Operation::Get => (to.hits - from.hits, gets, sets),
        Operation::Set => (0, sets, gets),
    };
    ensure!(wanted > 0, "no {operation:?} within the measurement");
    ensure!(
        others == 0,
        "{others} other operations beside {operation:?}"
    );
    if operation == Operation::Get {
        let hit_ratio = hits as f64 / gets as f64;
        ensure!(
            hit_ratio >= HIT_RATIO_MIN,
            "hit ratio {hit_ratio:.4}: expected at least {HIT_RATIO_MIN}"
        );
    }
    Ok(wanted)
}

/// The command that sends `count` requests like those of the cell.
fn redis_benchmark(addr: SocketAddr, cell: &Cell, count: u64) -> Result<Command> {
    let program = find_program("redis-benchmark").context("redis-benchmark is not installed")?;
    let mut command = Command::new(&program);
    command.arg("-h").arg(addr.ip().to_string());
    command.arg("-p").arg(addr.port().to_string()).arg("-q");
    command.arg("-t").arg(match cell.work.operation {
        Operation::Get => "get",
        Operation::Set => "set",
    });
    for (flag, value) in [
        ("-n", count),
        ("-r", cell.keys),
        ("-d", cell.work.value_len as u64),
        ("-c", cell.connections as u64),
        ("-P", cell.work.pipeline as u64),
    ] {
        command.arg(flag).arg(value.to_string());
    }
    Ok(command)
}

fn memcaslap(
    addr: SocketAddr,
    protocol: Protocol,
    cell: &Cell,
    config: &std::path::Path,
) -> Result<Command> {
    let program = find_program("memcaslap").context("memcaslap is not installed")?;
    let mut command = Command::new(program);
    command.arg("-s").arg(addr.to_string()).args(["-T", "1"]);
    command.arg("-c").arg(cell.connections.to_string());
    command.args(["-t", "1h"]).arg("-F").arg(config);
    // Keys of a connection, in units of 1024.
    let window = (cell.keys / cell.connections as u64 / WINDOW_MIN).max(1);
    command.arg("-w").arg(format!("{window}k"));
    if cell.work.operation == Operation::Set {
        // Without it, each set has a new key and takes new memory.
        command.args(["-o", "1"]);
    }
    if protocol == Protocol::Binary {
        command.arg("-B");
    }
    Ok(command)
}

/// Keys of 16 bytes, values of one length, and one kind of operation: 0 is set, 1 is get.
fn memcaslap_config(cell: &Cell) -> String {
    let (len, key_len) = (cell.work.value_len, crate::load::LoadOptions::KEY_LEN);
    let (sets, gets) = match cell.work.operation {
        Operation::Get => ("0.0", "1.0"),
        Operation::Set => ("1.0", "0.0"),
    };
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = write!(
        text,
        "key\n{key_len} {key_len} 1\nvalue\n{len} {len} 1\ncmd\n0 {sets}\n1 {gets}\n"
    );
    text
}

/// A connection that reads the counters of a server.
enum Counter {
    Stats(TextClient),
    Info(RespClient),
}

impl Counter {
    fn connect(kind: Server, addr: SocketAddr) -> Result<Self> {
        Ok(match kind {
            Server::Redis => Self::Info(RespClient::connect(addr)?),
            Server::Memcached | Server::Fonn => Self::Stats(TextClient::connect(addr)?),
        })
    }

    fn read(&mut self) -> Result<Counts> {
        match self {
            Self::Stats(client) => Counts::of_stats(&client.stats("stats")?),
            Self::Info(client) => {
                let info = client.command("INFO all")?.bulk()?.unwrap_or_default();
                Counts::of_info(&String::from_utf8_lossy(&info))
            }
        }
    }
}

impl Counts {
    const fn of(self, operation: Operation) -> u64 {
        match operation {
            Operation::Get => self.gets,
            Operation::Set => self.sets,
        }
    }

    /// From the reply to `stats` of memcached.
    fn of_stats(stats: &[(String, String)]) -> Result<Self> {
        let of = |wanted: &str| -> Result<u64> {
            let found = stats.iter().find(|(name, _)| name == wanted);
            let (_, value) = found.with_context(|| format!("no {wanted} in the statistics"))?;
            value.parse().with_context(|| format!("{wanted} {value}"))
        };
        Ok(Self {
            gets: of("cmd_get")?,
            hits: of("get_hits")?,
            sets: of("cmd_set")?,
        })
    }

    /// From the reply to `INFO all` of Redis. A command that was never called has no line.
    fn of_info(info: &str) -> Result<Self> {
        let of = |start: &str| -> Result<u64> {
            let Some(rest) = info.lines().find_map(|line| line.strip_prefix(start)) else {
                return Ok(0);
            };
            let count = rest.split(',').next().unwrap_or_default();
            count.parse().with_context(|| format!("{start}{rest}"))
        };
        Ok(Self {
            gets: of("cmdstat_get:calls=")?,
            hits: of("keyspace_hits:")?,
            sets: of("cmdstat_set:calls=")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(gets: u64, hits: u64, sets: u64) -> Counts {
        Counts { gets, hits, sets }
    }

    #[test]
    fn counters_of_both_protocols_are_read() {
        let stats = [("cmd_get", "7"), ("get_hits", "6"), ("cmd_set", "5")];
        let stats = stats.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(Counts::of_stats(&stats).unwrap(), counts(7, 6, 5));
        assert!(Counts::of_stats(&stats[..1]).is_err());
        let info = "# Stats\r\nkeyspace_hits:6\r\n# Commandstats\r\n\
                    cmdstat_get:calls=7,usec=9,usec_per_call=1.29\r\n";
        assert_eq!(Counts::of_info(info).unwrap(), counts(7, 6, 0));
        assert!(Counts::of_info("cmdstat_set:calls=x,usec=1").is_err());
    }

    #[test]
    fn a_measurement_with_misses_or_other_operations_is_refused() {
        let from = counts(10, 10, 10);
        assert_eq!(
            operations(Operation::Get, from, counts(110, 110, 10)).unwrap(),
            100
        );
        assert_eq!(
            operations(Operation::Set, from, counts(10, 10, 60)).unwrap(),
            50
        );
        assert!(operations(Operation::Get, from, counts(110, 100, 10)).is_err());
        assert!(operations(Operation::Get, from, counts(110, 110, 11)).is_err());
        assert!(operations(Operation::Set, from, from).is_err());
    }

    #[test]
    fn windows_of_all_connections_hold_the_keys_of_the_cell() {
        for work in super::super::WORKS {
            for connections in super::super::CONNECTIONS {
                let keys = Generator::Memcaslap.keys(&work, connections);
                let each = keys / connections as u64;
                let is_whole = each.is_multiple_of(WINDOW_MIN) && each >= WINDOW_MIN;
                assert!(is_whole || work.operation == Operation::Set && each == 1);
            }
        }
    }
}
