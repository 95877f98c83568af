//! A `fonn-router` process with ports and a log of its own.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::client::RespClient;
use crate::node::{http_get, router_program};
use crate::process::{Daemon, free_address};

/// A router is ready when a member has told it the map.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A router process; killed when dropped.
#[derive(Debug)]
pub struct FonnRouter {
    addr: SocketAddr,
    admin: SocketAddr,
    daemon: Daemon,
}

impl FonnRouter {
    /// Starts a router in front of the cluster that the member at `member` (the address of its cluster
    /// listener) is in.
    ///
    /// # Errors
    /// With the log, when it does not become ready.
    pub fn start(member: &str) -> Result<Self> {
        let (addr, admin) = (free_address()?, free_address()?);
        let mut command = Command::new(router_program()?);
        // The developer's own settings must not reach the router under test.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"FONN_") {
                command.env_remove(name);
            }
        }
        command.arg("--listen").arg(addr.to_string());
        command.arg("--admin-listen").arg(admin.to_string());
        command.args(["--cluster", member, "--threads", "2"]);
        let mut daemon = Daemon::spawn("fonn-router", &mut command)?;
        daemon.wait_until("readiness", START_LIMIT, || {
            http_get(admin, "/readyz").is_ok_and(|reply| reply.status == 200)
        })?;
        Ok(Self {
            addr,
            admin,
            daemon,
        })
    }

    /// Address of the client protocols.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Address of the admin port.
    #[must_use]
    pub const fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The process.
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// A RESP connection.
    ///
    /// # Errors
    /// When the router does not accept it.
    pub fn resp(&self) -> Result<RespClient> {
        RespClient::connect(self.addr)
    }
}
