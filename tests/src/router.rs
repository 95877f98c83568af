//! A router process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fonn_node::cli::Release;
use rustix::process::Signal;

use crate::node::{HttpReply, http_get};
use crate::process::{Daemon, Log, free_address};
use crate::program::Program;
use crate::release;

const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The program under test: `FONN_ROUTER_BIN`, or the one built with this package.
///
/// # Errors
/// When there is none.
pub fn router_program() -> Result<PathBuf> {
    Program::ROUTER.path()
}

/// A router process; killed when dropped.
#[derive(Debug)]
pub struct FonnRouter {
    addr: SocketAddr,
    admin: SocketAddr,
    cluster: Vec<SocketAddr>,
    flags: Vec<(&'static str, String)>,
    release: Release,
    daemon: Option<Daemon>,
}

impl FonnRouter {
    /// Starts a router in front of the members at `cluster`, and waits until it has a map.
    ///
    /// # Errors
    /// With its log, when it ends or is not ready within a minute.
    pub fn start(cluster: &[SocketAddr]) -> Result<Self> {
        Self::start_with(cluster, Vec::new())
    }

    /// The same, with further flags and their values.
    ///
    /// # Errors
    /// As [`FonnRouter::start`].
    pub fn start_with(cluster: &[SocketAddr], flags: Vec<(&'static str, String)>) -> Result<Self> {
        Self::start_in(cluster, flags, &Release::this())
    }

    /// One that says it is of another release.
    ///
    /// # Errors
    /// As [`FonnRouter::start`].
    pub fn start_as(cluster: &[SocketAddr], release: &Release) -> Result<Self> {
        Self::start_in(cluster, Vec::new(), release)
    }

    fn start_in(
        cluster: &[SocketAddr],
        flags: Vec<(&'static str, String)>,
        release: &Release,
    ) -> Result<Self> {
        let mut router = Self {
            addr: free_address()?,
            admin: free_address()?,
            cluster: cluster.to_vec(),
            flags,
            release: release.clone(),
            daemon: None,
        };
        router.start_again()?;
        Ok(router)
    }

    /// Starts it again on the same ports.
    ///
    /// # Errors
    /// As [`FonnRouter::start`].
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.daemon.is_none(), "the router still runs");
        let is_other_release = self.release != Release::this();
        let mut command = Program::ROUTER.command(is_other_release)?;
        let members: Vec<String> = self.cluster.iter().map(ToString::to_string).collect();
        command.args(["--listen", &self.addr.to_string()]);
        command.args(["--admin-listen", &self.admin.to_string()]);
        command.args(["--cluster", &members.join(",")]);
        if !self.flags.iter().any(|(name, _)| *name == "--threads") {
            command.args(["--threads", "2"]);
        }
        for (name, value) in &self.flags {
            command.args([name, value.as_str()]);
        }
        command.env(release::VARIABLE, release::value(&self.release));
        let mut daemon = Daemon::spawn("fonn-router", &mut command)?;
        let admin = self.admin;
        daemon.wait_until("readiness", START_LIMIT, || {
            http_get(admin, "/readyz").is_ok_and(|reply| reply.status == 200)
        })?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Address of the client protocols.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The number of the process.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<u32> {
        let daemon = self.daemon.as_ref();
        Ok(daemon.context("the router is not running")?.pid())
    }

    /// The value of a metric with its labels, as it is printed.
    ///
    /// # Errors
    /// When there is none.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let page = self.http_get("/metrics")?.body;
        let mut values = page
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = values.next().with_context(|| format!("no metric {name}"))?;
        Ok(value.parse()?)
    }

    /// Its admin port.
    #[must_use]
    pub const fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// A page of the admin port.
    ///
    /// # Errors
    /// When there is no HTTP reply.
    pub fn http_get(&self, path: &str) -> Result<HttpReply> {
        http_get(self.admin, path)
    }

    /// What the process has written.
    ///
    /// # Errors
    /// When it does not run.
    pub fn log(&self) -> Result<Log> {
        let daemon = self.daemon.as_ref();
        Ok(daemon.context("the router is not running")?.log())
    }

    fn daemon(&mut self) -> Result<&mut Daemon> {
        self.daemon.as_mut().context("the router is not running")
    }

    /// Kills the process as `kill -9` does.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill9(&mut self) -> Result<()> {
        self.daemon()?.kill9()?;
        self.daemon = None;
        Ok(())
    }

    /// Stops the process by SIGTERM and expects a clean end.
    ///
    /// # Errors
    /// With the log, when the exit code is not 0 or the end takes too long.
    pub fn stop(&mut self) -> Result<()> {
        let daemon = self.daemon()?;
        daemon.signal(Signal::TERM)?;
        let status = daemon.wait_exit(STOP_LIMIT)?;
        ensure!(
            status.success(),
            "SIGTERM ended in {status}\n{}",
            daemon.log_end()
        );
        self.daemon = None;
        Ok(())
    }
}
