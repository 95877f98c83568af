//! sccache over both of its protocols that Fonn speaks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use serde_json::Value;

use fonn_tests::component::program;
use fonn_tests::node::FonnNode;
use fonn_tests::process::{Daemon, accepts, free_address, run};

use crate::project::{CProject, RustProject};

const C_FILES: usize = 30;
/// The bar is 1 ms and memcached needs 88 ms; this one has to hold on a machine that compiles on
/// all its cores at the same time.
const READ_HIT_MAX: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
enum Endpoint {
    Memcached,
    Redis,
}

/// A running sccache server with a port of its own.
struct Sccache {
    program: PathBuf,
    environment: Vec<(String, String)>,
    daemon: Daemon,
}

impl Sccache {
    fn start(program: &Path, endpoint: Endpoint, node: &FonnNode, mode: &str) -> Result<Self> {
        let server = free_address()?;
        let addr = node.addr();
        let (variable, url, mode_variable) = match endpoint {
            Endpoint::Memcached => (
                "SCCACHE_MEMCACHED_ENDPOINT",
                format!("tcp://{addr}"),
                "SCCACHE_MEMCACHED_RW_MODE",
            ),
            Endpoint::Redis => (
                "SCCACHE_REDIS_ENDPOINT",
                format!("redis://{addr}"),
                "SCCACHE_REDIS_RW_MODE",
            ),
        };
        let scratch = node.scratch().join("sccache");
        std::fs::create_dir_all(&scratch)?;
        let text = |text: &str| text.to_owned();
        let environment = vec![
            (text(variable), url),
            (text(mode_variable), text(mode)),
            (text("SCCACHE_SERVER_PORT"), server.port().to_string()),
            (
                text("SCCACHE_CONF"),
                scratch.join("none.toml").to_string_lossy().into_owned(),
            ),
            (
                text("SCCACHE_DIR"),
                scratch.join("cache").to_string_lossy().into_owned(),
            ),
            (text("SCCACHE_IDLE_TIMEOUT"), text("0")),
        ];
        let mut command = Self::command(program, &environment);
        command
            .env("SCCACHE_START_SERVER", "1")
            .env("SCCACHE_NO_DAEMON", "1");
        command.env("SCCACHE_LOG", "warn");
        let mut daemon = Daemon::spawn("sccache", &mut command)?;
        daemon.wait_until("listening", Duration::from_secs(30), || accepts(server))?;
        Ok(Self {
            program: program.to_owned(),
            environment,
            daemon,
        })
    }

    /// The program with nothing of the developer's own sccache in its environment.
    fn command(program: &Path, environment: &[(String, String)]) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let name_bytes = name.as_encoded_bytes();
            if name_bytes.starts_with(b"SCCACHE_") || name_bytes.starts_with(b"RUSTC_") {
                command.env_remove(name);
            }
        }
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn stats(&mut self) -> Result<Stats> {
        ensure!(
            self.daemon.exited()?.is_none(),
            "the server is gone\n{}",
            self.daemon.log_end()
        );
        let mut command = Self::command(&self.program, &self.environment);
        let text = run(command.args(["--show-stats", "--stats-format", "json"]))?;
        Ok(Stats(
            serde_json::from_str::<Value>(&text)?["stats"].clone(),
        ))
    }

    fn zero_stats(&mut self) -> Result<()> {
        run(Self::command(&self.program, &self.environment).arg("--zero-stats")).map(drop)
    }

    /// Stores happen behind the compiler's back; waits until `count` have.
    fn wait_for_writes(&mut self, count: u64) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let stats = self.stats()?;
            if stats.number("cache_writes") >= count {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{count} writes expected: {stats:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn build_c(
        &self,
        project: &CProject,
        before: impl Fn(usize) -> Result<()> + Sync,
    ) -> Result<()> {
        let compiler = || {
            let mut command = Self::command(&self.program, &self.environment);
            command.arg("gcc");
            command
        };
        project.build(compiler, before)
    }
}

#[derive(Debug)]
struct Stats(Value);

impl Stats {
    fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or(0)
    }

    fn sum(&self, name: &str) -> u64 {
        let counts = self.0[name]["counts"].as_object();
        counts.map_or(0, |counts| counts.values().filter_map(Value::as_u64).sum())
    }

    fn read_hit(&self) -> Duration {
        let total = &self.0["cache_read_hit_duration"];
        let total = Duration::new(
            total["secs"].as_u64().unwrap_or(0),
            total["nanos"].as_u64().unwrap_or(0) as u32,
        );
        total / u32::try_from(self.sum("cache_hits").max(1)).unwrap_or(u32::MAX)
    }

    fn expect_quiet(&self) -> Result<()> {
        for name in ["cache_timeouts", "cache_read_errors", "cache_write_errors"] {
            ensure!(self.number(name) == 0, "{name}: {self:?}");
        }
        ensure!(self.sum("cache_errors") == 0, "errors: {self:?}");
        Ok(())
    }
}

fn builds_hit_the_cache(endpoint: Endpoint) -> Result<()> {
    let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
        return Ok(());
    };
    let mut node = FonnNode::start()?;
    let c = CProject::generate(&node.scratch().join("c"), C_FILES)?;
    let rust = RustProject::generate(&node.scratch().join("rust"))?;
    let units = (c.files() + RustProject::LIBRARIES) as u64;
    let build = |server: &mut Sccache| -> Result<Stats> {
        server.zero_stats()?;
        c.clean()?;
        rust.clean()?;
        server.build_c(&c, |_| Ok(()))?;
        rust.build(&sccache, &server.environment)?;
        server.stats()
    };

    let mut server = Sccache::start(&sccache, endpoint, &node, "READ_WRITE")?;
    let first = build(&mut server)?;
    assert_eq!(
        (first.sum("cache_hits"), first.sum("cache_misses")),
        (0, units),
        "{first:?}"
    );
    server.wait_for_writes(units)?;
    server.stats()?.expect_quiet()?;

    let second = build(&mut server)?;
    assert_eq!(
        (second.sum("cache_hits"), second.sum("cache_misses")),
        (units, 0),
        "{second:?}"
    );
    second.expect_quiet()?;
    let took = second.read_hit();
    assert!(took < READ_HIT_MAX, "a read hit takes {took:?} on average");

    node.kill9()?;
    node.start_again()?;
    let mut server = Sccache::start(&sccache, endpoint, &node, "READ_WRITE")?;
    let third = build(&mut server)?;
    assert_eq!(
        (third.sum("cache_hits"), third.sum("cache_misses")),
        (units, 0),
        "{third:?}"
    );
    third.expect_quiet()
}

#[test]
fn sccache_over_memcached_hits_on_the_second_build_and_after_a_kill() -> Result<()> {
    builds_hit_the_cache(Endpoint::Memcached)
}

#[test]
fn sccache_over_redis_hits_on_the_second_build_and_after_a_kill() -> Result<()> {
    builds_hit_the_cache(Endpoint::Redis)
}

/// The node dies in the middle. Few files: sccache's Redis client tries for some ten seconds to
/// reach a server that is gone, for each of them.
fn a_build_goes_on(endpoint: Endpoint) -> Result<()> {
    const FILES: usize = 6;
    let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
        return Ok(());
    };
    let node = FonnNode::start()?;
    let c = CProject::generate(&node.scratch().join("c"), FILES)?;
    let server = Sccache::start(&sccache, endpoint, &node, "READ_WRITE")?;
    let node = Mutex::new(node);
    server.build_c(&c, |begun| {
        if begun == FILES / 2 {
            node.lock()
                .map_err(|_| anyhow!("a job panicked"))?
                .kill9()?;
        }
        Ok(())
    })
}

#[test]
fn a_build_over_memcached_goes_on_when_the_node_is_killed() -> Result<()> {
    a_build_goes_on(Endpoint::Memcached)
}

#[test]
fn a_build_over_redis_goes_on_when_the_node_is_killed() -> Result<()> {
    a_build_goes_on(Endpoint::Redis)
}

#[test]
fn a_read_only_sccache_reads_and_writes_nothing() -> Result<()> {
    let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
        return Ok(());
    };
    for endpoint in [Endpoint::Memcached, Endpoint::Redis] {
        let node = FonnNode::start()?;
        let c = CProject::generate(&node.scratch().join("c"), 6)?;
        let mut writer = Sccache::start(&sccache, endpoint, &node, "READ_WRITE")?;
        writer.build_c(&c, |_| Ok(()))?;
        writer.wait_for_writes(6)?;
        drop(writer);
        let mut reader = Sccache::start(&sccache, endpoint, &node, "READ_ONLY")?;
        c.clean()?;
        reader.build_c(&c, |_| Ok(()))?;
        let stats = reader.stats()?;
        assert_eq!(stats.sum("cache_hits"), 6, "{endpoint:?}: {stats:?}");
        let entries = node.resp()?.command("DBSIZE")?.integer()?;
        let other = CProject::generate(&node.scratch().join("other"), 7)?;
        reader.build_c(&other, |_| Ok(()))?;
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(
            node.resp()?.command("DBSIZE")?.integer()?,
            entries,
            "{endpoint:?} wrote"
        );
    }
    Ok(())
}
