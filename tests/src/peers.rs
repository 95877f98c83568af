//! The servers that Fonn is compared with and that keep the test clients honest.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::{Daemon, answers, free_address};

const START_LIMIT: Duration = Duration::from_secs(60);

/// A running memcached, Redis or twemproxy.
#[derive(Debug)]
pub struct Peer {
    /// The process.
    pub daemon: Daemon,
    /// Where it listens.
    pub addr: SocketAddr,
}

impl Peer {
    /// Starts memcached with `threads` threads, 4 GiB of memory and values of up to 128 MiB.
    ///
    /// # Errors
    /// When it does not answer within a minute.
    pub fn memcached(program: &Path, threads: usize) -> Result<Self> {
        Self::memcached_for(program, threads, 4096)
    }

    /// The same, for up to `connections` connections.
    ///
    /// # Errors
    /// As [`Peer::memcached`].
    pub fn memcached_for(program: &Path, threads: usize, connections: usize) -> Result<Self> {
        let addr = free_address()?;
        let mut command = Command::new(program);
        command.args(["-U", "0", "-m", "4096", "-I", "128m"]);
        command.arg("-c").arg(connections.to_string());
        command
            .arg("-l")
            .arg(addr.ip().to_string())
            .arg("-p")
            .arg(addr.port().to_string());
        command.arg("-t").arg(threads.to_string());
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "nobody"]);
        }
        Self::start("memcached", command, addr, (b"version\r\n", b"VERSION "))
    }

    /// Starts memcached with one thread and `ram_mib` MiB of memory over `file` of 8 GiB.
    ///
    /// # Errors
    /// When it does not answer within a minute.
    pub fn extstore(program: &Path, ram_mib: u64, file: &Path) -> Result<Self> {
        let addr = free_address()?;
        let mut command = Command::new(program);
        command.args(["-U", "0", "-c", "4096", "-t", "1"]);
        command.arg("-m").arg(ram_mib.to_string());
        command
            .arg("-o")
            .arg(format!("ext_path={}:8g", file.display()));
        command
            .arg("-l")
            .arg(addr.ip().to_string())
            .arg("-p")
            .arg(addr.port().to_string());
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "nobody"]);
        }
        Self::start("memcached", command, addr, (b"version\r\n", b"VERSION "))
    }

    /// Starts Redis without persistence.
    ///
    /// # Errors
    /// When it does not answer within a minute.
    pub fn redis(program: &Path) -> Result<Self> {
        let addr = free_address()?;
        let mut command = Command::new(program);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.arg("--bind").arg(addr.ip().to_string());
        command.arg("--port").arg(addr.port().to_string());
        Self::start("redis-server", command, addr, (b"PING\r\n", b"+PONG\r\n"))
    }

    /// Starts twemproxy in front of some memcached; its configuration goes to `dir`.
    ///
    /// # Errors
    /// When it does not answer within a minute.
    pub fn twemproxy(program: &Path, servers: &[SocketAddr], dir: &Path) -> Result<Self> {
        let (addr, stats) = (free_address()?, free_address()?);
        let servers: String = servers.iter().map(|it| format!("   - {it}:1\n")).collect();
        let file = dir.join("twemproxy.yml");
        let text = format!(
            "alpha:\n  listen: {addr}\n  hash: fnv1a_64\n  distribution: ketama\n  \
             auto_eject_hosts: false\n  servers:\n{servers}"
        );
        std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        let mut command = Command::new(program);
        command.arg("-c").arg(&file).args(["-m", "65536"]);
        command.arg("-a").arg(stats.ip().to_string());
        command.arg("-s").arg(stats.port().to_string());
        Self::start("twemproxy", command, addr, (b"get none\r\n", b"END\r\n"))
    }

    fn start(
        name: &str,
        mut command: Command,
        addr: SocketAddr,
        (request, reply): (&[u8], &[u8]),
    ) -> Result<Self> {
        let mut daemon = Daemon::spawn(name, &mut command)?;
        daemon.wait_until("answer", START_LIMIT, || answers(addr, request, reply))?;
        Ok(Self { daemon, addr })
    }
}

/// A running bazel-remote.
#[derive(Debug)]
pub struct BazelRemote {
    /// The process.
    pub daemon: Daemon,
    /// Where it listens for HTTP.
    pub http: SocketAddr,
    /// Where it listens for gRPC.
    pub grpc: SocketAddr,
}

impl BazelRemote {
    /// Starts it with one thread that runs code, a directory for its blobs, and without a log of
    /// requests. `flags` come behind.
    ///
    /// # Errors
    /// When it does not answer within a minute.
    pub fn start(program: &Path, dir: &Path, flags: &[&str]) -> Result<Self> {
        let (http, grpc) = (free_address()?, free_address()?);
        let mut command = Command::new(program);
        command.env("GOMAXPROCS", "1");
        command.arg("--dir").arg(dir).args(["--max_size", "10"]);
        command.args(["--http_address", &http.to_string()]);
        command.args(["--grpc_address", &grpc.to_string()]);
        command.args(["--access_log_level", "none"]);
        command.args(flags);
        let mut daemon = Daemon::spawn("bazel-remote", &mut command)?;
        let request = b"GET /status HTTP/1.1\r\nHost: bazel-remote\r\n\r\n";
        daemon.wait_until("answer", START_LIMIT, || {
            answers(http, request, b"HTTP/1.1 200")
        })?;
        Ok(Self { daemon, http, grpc })
    }
}
