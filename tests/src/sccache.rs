//! A real sccache server, and what it says about itself.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::process::{Daemon, accepts, free_address, run};
use crate::project::CProject;

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

/// What sccache may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Look up and store.
    ReadWrite,
    /// Look up alone.
    ReadOnly,
}

impl Mode {
    const fn variable(self) -> &'static str {
        match self {
            Self::ReadWrite => "READ_WRITE",
            Self::ReadOnly => "READ_ONLY",
        }
    }
}

/// Where sccache keeps its entries: variables of its environment.
#[derive(Clone, Debug)]
pub struct Storage(Vec<(String, String)>);

impl Storage {
    /// A server that speaks memcached's binary protocol.
    #[must_use]
    pub fn memcached(addr: SocketAddr, mode: Mode) -> Self {
        Self::of([
            ("SCCACHE_MEMCACHED_ENDPOINT", format!("tcp://{addr}")),
            ("SCCACHE_MEMCACHED_RW_MODE", mode.variable().to_owned()),
        ])
    }

    /// A server that speaks RESP.
    #[must_use]
    pub fn redis(addr: SocketAddr, mode: Mode) -> Self {
        Self::of([
            ("SCCACHE_REDIS_ENDPOINT", format!("redis://{addr}")),
            ("SCCACHE_REDIS_RW_MODE", mode.variable().to_owned()),
        ])
    }

    /// A server that speaks WebDAV, below `prefix`.
    #[must_use]
    pub fn webdav(addr: SocketAddr, prefix: &str, mode: Mode) -> Self {
        Self::of([
            ("SCCACHE_WEBDAV_ENDPOINT", format!("http://{addr}/")),
            ("SCCACHE_WEBDAV_KEY_PREFIX", prefix.to_owned()),
            ("SCCACHE_WEBDAV_RW_MODE", mode.variable().to_owned()),
        ])
    }

    /// Puts `prefix` before each key that is stored over RESP.
    #[must_use]
    pub fn with_redis_prefix(mut self, prefix: &str) -> Self {
        let prefix = [("SCCACHE_REDIS_KEY_PREFIX", prefix.to_owned())];
        self.0.extend(Self::of(prefix).0);
        self
    }

    /// Whatever these variables say.
    #[must_use]
    pub const fn of_variables(variables: Vec<(String, String)>) -> Self {
        Self(variables)
    }

    /// Servers of a Redis cluster, which sccache asks for the owner of each key.
    #[must_use]
    pub fn redis_cluster(addrs: &[SocketAddr], mode: Mode) -> Self {
        let urls: Vec<_> = addrs.iter().map(|addr| format!("redis://{addr}")).collect();
        Self::of([
            ("SCCACHE_REDIS_CLUSTER_ENDPOINTS", urls.join(",")),
            ("SCCACHE_REDIS_RW_MODE", mode.variable().to_owned()),
        ])
    }

    /// A bucket, below `prefix`; `environment` has the AWS variables with region and credentials.
    #[must_use]
    pub fn s3(
        endpoint: &str,
        bucket: &str,
        prefix: &str,
        environment: Vec<(&'static str, String)>,
    ) -> Self {
        let mut storage = Self::of(environment);
        storage.0.extend(
            Self::of([
                ("SCCACHE_BUCKET", bucket.to_owned()),
                ("SCCACHE_ENDPOINT", endpoint.to_owned()),
                ("SCCACHE_REGION", "us-east-1".to_owned()),
                ("SCCACHE_S3_USE_SSL", "false".to_owned()),
                ("SCCACHE_S3_KEY_PREFIX", prefix.to_owned()),
            ])
            .0,
        );
        storage
    }

    /// RESP over TLS, with a certificate of the authority in the file `authority`.
    #[must_use]
    pub fn encrypted(mut self, authority: &str) -> Self {
        for (_, value) in &mut self.0 {
            *value = value.replace("redis://", "rediss://");
        }
        let trusted = [("SSL_CERT_FILE", authority.to_owned())];
        self.0.extend(Self::of(trusted).0);
        self
    }

    /// Logs in, over either protocol.
    #[must_use]
    pub fn with_login(mut self, user: &str, password: &str) -> Self {
        for protocol in ["REDIS", "MEMCACHED", "WEBDAV"] {
            self.0.extend([
                (format!("SCCACHE_{protocol}_USERNAME"), user.to_owned()),
                (format!("SCCACHE_{protocol}_PASSWORD"), password.to_owned()),
            ]);
        }
        self
    }

    fn of(variables: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let named = |(name, value): (&str, String)| (name.to_owned(), value);
        Self(variables.into_iter().map(named).collect())
    }
}

/// A running sccache server with a port of its own.
#[derive(Debug)]
pub struct Sccache {
    program: PathBuf,
    environment: Vec<(String, String)>,
    daemon: Daemon,
}

impl Sccache {
    /// Starts `program` over `storage`; what it needs besides is in `scratch`.
    ///
    /// # Errors
    /// With its log, when it does not listen within a minute.
    pub fn start(program: &Path, scratch: &Path, storage: Storage) -> Result<Self> {
        let server = free_address()?;
        std::fs::create_dir_all(scratch)?;
        let below = |name: &str| scratch.join(name).to_string_lossy().into_owned();
        let mut environment = storage.0;
        environment.extend(
            Storage::of([
                ("SCCACHE_SERVER_PORT", server.port().to_string()),
                ("SCCACHE_CONF", below("none.toml")),
                ("SCCACHE_DIR", below("cache")),
                ("SCCACHE_IDLE_TIMEOUT", "0".to_owned()),
            ])
            .0,
        );
        let mut command = Self::command(program, &environment);
        command
            .env("SCCACHE_START_SERVER", "1")
            .env("SCCACHE_NO_DAEMON", "1");
        command.env("SCCACHE_LOG", "warn");
        // Backtraces would hide in the log what sccache says.
        command.env("RUST_BACKTRACE", "0");
        let mut daemon = Daemon::spawn("sccache", &mut command)?;
        daemon.wait_until("listening", LIMIT, || accepts(server))?;
        Ok(Self {
            program: program.to_owned(),
            environment,
            daemon,
        })
    }

    /// What a client of this server needs in its environment.
    #[must_use]
    pub fn environment(&self) -> &[(String, String)] {
        &self.environment
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

    /// Its figures.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn stats(&mut self) -> Result<Stats> {
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

    /// Sets its figures to zero.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn zero_stats(&mut self) -> Result<()> {
        run(Self::command(&self.program, &self.environment).arg("--zero-stats")).map(drop)
    }

    /// Stores happen behind the compiler's back; waits until `count` have.
    ///
    /// # Errors
    /// When they have not within a minute.
    pub fn wait_for_writes(&mut self, count: u64) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
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

    /// Compiles a project through it; `before` is called with how many files were begun before
    /// each one.
    ///
    /// # Errors
    /// As [`CProject::build`].
    pub fn build_c(
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

/// Figures of a server.
#[derive(Debug)]
pub struct Stats(Value);

impl Stats {
    fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or(0)
    }

    fn sum(&self, name: &str) -> u64 {
        let counts = self.0[name]["counts"].as_object();
        counts.map_or(0, |counts| counts.values().filter_map(Value::as_u64).sum())
    }

    /// Compilations that were found.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.sum("cache_hits")
    }

    /// Compilations that were not.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.sum("cache_misses")
    }

    /// How long a hit took to read, on average.
    #[must_use]
    pub fn read_hit(&self) -> Duration {
        let total = &self.0["cache_read_hit_duration"];
        let total = Duration::new(
            total["secs"].as_u64().unwrap_or(0),
            total["nanos"].as_u64().unwrap_or(0) as u32,
        );
        total / u32::try_from(self.hits().max(1)).unwrap_or(u32::MAX)
    }

    /// That nothing went wrong.
    ///
    /// # Errors
    /// With what did.
    pub fn expect_quiet(&self) -> Result<()> {
        ensure!(self.number("cache_write_errors") == 0, "{self:?}");
        self.expect_quiet_reads()
    }

    /// That nothing went wrong but stores.
    ///
    /// # Errors
    /// With what did.
    pub fn expect_quiet_reads(&self) -> Result<()> {
        for name in ["cache_timeouts", "cache_read_errors"] {
            ensure!(self.number(name) == 0, "{name}: {self:?}");
        }
        ensure!(self.sum("cache_errors") == 0, "errors: {self:?}");
        Ok(())
    }
}
