//! Command line tools: memcapable, redis-cli, redis-benchmark.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use fonn_tests::cluster::Cluster;
use fonn_tests::component::{present, program};
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::{find_program, run};

/// Tests of memcapable: 27 of each protocol.
const MEMCAPABLE_TESTS: usize = 54;

#[test]
fn memcapable_passes_every_test() -> Result<()> {
    // Debian has it under another name.
    let found = find_program("memcapable").or_else(|| find_program("memccapable"));
    let Some(memcapable) = present("memcapable", found)? else {
        return Ok(());
    };
    for options in [NodeOptions::new(), NodeOptions::new().in_memory()] {
        memcapable_passes(&memcapable, options.start()?.addr())?;
    }
    let cluster = Cluster::form_patient(3)?;
    memcapable_passes(&memcapable, cluster.router()?.addr())
}

fn memcapable_passes(program: &Path, addr: SocketAddr) -> Result<()> {
    let (host, port) = (addr.ip().to_string(), addr.port().to_string());
    let output = Command::new(program)
        .args(["-h", &host, "-p", &port, "-t", "60"])
        .output()
        .context("starting memcapable")?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let passed = text.matches("[pass]").count();
    ensure!(
        output.status.success() && passed == MEMCAPABLE_TESTS,
        "{passed} passed:\n{text}"
    );
    Ok(())
}

struct RedisCli {
    base: Vec<String>,
    program: PathBuf,
}

impl RedisCli {
    fn new(program: PathBuf, addr: SocketAddr) -> Self {
        let base = [
            "-h".to_owned(),
            addr.ip().to_string(),
            "-p".to_owned(),
            addr.port().to_string(),
        ];
        Self {
            base: base.to_vec(),
            program,
        }
    }

    fn run(&self, line: &str) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(&self.base).args(line.split(' '));
        Ok(run(&mut command)?.trim_end().to_owned())
    }
}

#[test]
fn redis_cli_runs_the_supported_commands() -> Result<()> {
    let Some(program) = program("redis-cli")? else {
        return Ok(());
    };
    let node = FonnNode::start()?;
    redis_cli_runs_the_session(&RedisCli::new(program.clone(), node.addr()), "b")?;
    drop(node);
    let cluster = Cluster::form_patient(3)?;
    let router = cluster.router()?;
    // All or nothing is for keys of one slot there.
    redis_cli_runs_the_session(&RedisCli::new(program, router.addr()), "{b}")
}

/// `tag` begins keys that are stored all or none.
fn redis_cli_runs_the_session(cli: &RedisCli, tag: &str) -> Result<()> {
    let both = format!("MSETNX b 3 {tag}c 3");
    let session = [
        ("PING", "PONG"),
        ("ECHO hello", "hello"),
        ("SET k v", "OK"),
        ("GET k", "v"),
        ("SET k w XX GET", "v"),
        ("SET k x NX", ""),
        ("SETNX k x", "0"),
        ("SETEX e 100 v", "OK"),
        ("PSETEX e 90000 v", "OK"),
        ("PERSIST e", "1"),
        ("EXPIRE e 50", "1"),
        ("EXPIREAT e 4000000000", "1"),
        ("EXPIRETIME e", "4000000000"),
        ("PEXPIRETIME e", "4000000000000"),
        ("PEXPIREAT e 4000000001000", "1"),
        ("PEXPIRE e 50000", "1"),
        ("SET e v EXAT 4000000000", "OK"),
        ("SET e w KEEPTTL", "OK"),
        ("EXPIRETIME e", "4000000000"),
        ("GETEX e PERSIST", "w"),
        ("TTL e", "-1"),
        ("GETSET k y", "w"),
        ("GETDEL k", "y"),
        ("MSET a 1 b 2", "OK"),
        ("MGET a b none", "1\n2\n"),
        (both.as_str(), "0"),
        ("APPEND a 23", "3"),
        ("STRLEN a", "3"),
        ("GETRANGE a 1 -1", "23"),
        ("SETRANGE a 5 x", "6"),
        ("INCR n", "1"),
        ("INCRBY n 10", "11"),
        ("DECR n", "10"),
        ("DECRBY n 20", "-10"),
        ("INCRBYFLOAT n 0.25", "-9.75"),
        ("EXISTS a b none", "2"),
        ("TOUCH a b", "2"),
        ("TYPE a", "string"),
        ("TYPE none", "none"),
        ("DEL a none", "1"),
        ("UNLINK b", "1"),
        ("DBSIZE", "2"),
        ("-n 3 SET other 1", "OK"),
        ("-n 3 DBSIZE", "1"),
        ("-n 3 RANDOMKEY", "other"),
        ("-n 3 FLUSHDB", "OK"),
        ("DBSIZE", "2"),
        ("-3 GET n", "-9.75"),
        ("FLUSHALL", "OK"),
        ("DBSIZE", "0"),
    ];
    for (line, expected) in session {
        let got = cli.run(line)?;
        assert_eq!(got, expected.trim_end(), "{line}");
    }
    ensure!(cli.run("INFO")?.contains("redis_version:"));
    ensure!(cli.run("INFO stats")?.contains("keyspace_hits:"));
    ensure!(cli.run("COMMAND COUNT")?.parse::<u32>()? > 50);
    ensure!(cli.run("COMMAND INFO get")?.contains("get"));
    ensure!(cli.run("CONFIG GET maxmemory")?.starts_with("maxmemory"));
    ensure!(cli.run("CLIENT ID")?.parse::<u64>().is_ok());
    ensure!(cli.run("LPUSH list 1")?.contains("ERR unknown command"));
    ensure!(cli.run("SELECT 99")?.contains("ERR"));
    for number in 0..30 {
        cli.run(&format!("SET scan-{number} v"))?;
    }
    let scanned = cli.run("--scan --pattern scan-*")?;
    assert_eq!(scanned.lines().count(), 30, "{scanned}");
    Ok(())
}

#[test]
fn redis_benchmark_runs_the_supported_commands() -> Result<()> {
    let Some(benchmark) = program("redis-benchmark")? else {
        return Ok(());
    };
    let node = FonnNode::start()?;
    redis_benchmark_runs(&benchmark, node.addr())?;
    drop(node);
    let cluster = Cluster::form_patient(3)?;
    redis_benchmark_runs(&benchmark, cluster.router()?.addr())
}

fn redis_benchmark_runs(benchmark: &Path, addr: SocketAddr) -> Result<()> {
    let (host, port) = (addr.ip().to_string(), addr.port().to_string());
    for pipeline in ["1", "16"] {
        let tests = "ping_inline,ping_mbulk,set,get,incr,mset";
        let mut command = Command::new(benchmark);
        command.args([
            "-h", &host, "-p", &port, "-n", "5000", "-c", "20", "-d", "1000",
        ]);
        command.args(["-r", "1000", "-q", "-P", pipeline, "-t", tests]);
        let text = run(&mut command)?;
        let done = text.matches("requests per second").count();
        assert_eq!(done, 6, "{text}");
        assert!(!text.contains("rror"), "{text}");
    }
    Ok(())
}
