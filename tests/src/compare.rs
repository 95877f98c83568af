//! Side-by-side measurements of Fonn, memcached and Redis in one run on one machine, and of sccache
//! with a bucket and with Fonn; and of the router beside twemproxy.
//!
//! Each contender has one serving thread. The rounds go over all contenders in turn, so that a slow
//! minute of the machine hits all of them. What is compared is the median over the rounds of
//! operations (or bytes) per processor second of the server.

mod beside;
mod build;
mod codec;
mod cold;
mod disk;
mod generators;
mod go;
mod http;
mod memory;
mod moves;
mod owners;
mod placed;
mod plot;
mod remote;
mod router;
mod scale;
mod speed;
mod spread;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

pub use self::beside::BesideOptions;
pub use self::build::{BuildOptions, compare_build};
pub use self::codec::{CodecOptions, compare_codecs};
pub use self::cold::{ColdOptions, compare_cold};
pub use self::disk::{DiskOptions, compare_disk};
pub use self::generators::{GeneratorsOptions, compare_generators};
pub use self::go::{GoOptions, compare_go};
pub use self::http::compare_http;
pub use self::memory::{MemoryOptions, compare_memory};
pub use self::moves::{MovesOptions, compare_moves};
pub use self::owners::{OwnersOptions, compare_owners};
pub use self::plot::{Chart, Series};
pub use self::remote::compare_remote;
pub use self::router::{RouterOptions, compare_router};
pub use self::scale::{ScaleOptions, compare_scale};
pub use self::speed::{LimitOptions, SpeedOptions, compare_speed, serve_limit};
use crate::load::{Protocol, Target};
use crate::node::{FonnNode, NodeOptions};
use crate::peers::Peer;
use crate::process::find_program;

/// The programs that take part.
#[derive(Clone, Debug)]
pub struct Programs {
    /// memcached.
    pub memcached: PathBuf,
    /// redis-server.
    pub redis: PathBuf,
    /// More flags for Fonn, each with its value.
    pub fonn_flags: Vec<(String, String)>,
    /// Gives Fonn a data directory instead of keeping values in memory only.
    pub fonn_on_disk: bool,
}

impl Programs {
    /// Finds memcached and redis-server by the search path. Fonn is found as by
    /// [`crate::node::node_program`].
    ///
    /// # Errors
    /// When one is missing.
    pub fn find() -> Result<Self> {
        let find = |name| find_program(name).with_context(|| format!("{name} is not installed"));
        Ok(Self {
            memcached: find("memcached")?,
            redis: find("redis-server")?,
            fonn_flags: Vec::new(),
            fonn_on_disk: false,
        })
    }
}

/// Reads a duration in seconds, for example `0.3`.
///
/// # Errors
/// When it is no number, or negative.
fn parse_seconds(text: &str) -> Result<Duration> {
    let seconds: f64 = text
        .parse()
        .with_context(|| format!("{text:?} is no number"))?;
    Duration::try_from_secs_f64(seconds).with_context(|| format!("{text}: expected a duration"))
}

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Memcached,
    Redis,
    Fonn,
}

/// A server with the protocol it is driven by.
pub(crate) type Contender = (Server, Protocol);

/// Everything that is compared.
pub(crate) const CONTENDERS: [Contender; 6] = [
    (Server::Memcached, Protocol::Text),
    (Server::Memcached, Protocol::Binary),
    (Server::Redis, Protocol::Resp),
    (Server::Fonn, Protocol::Text),
    (Server::Fonn, Protocol::Binary),
    (Server::Fonn, Protocol::Resp),
];

/// A started server; stopped when dropped.
#[derive(Debug)]
pub(crate) enum Running {
    Peer(Peer),
    Fonn(FonnNode),
}

impl Running {
    pub(crate) fn start(server: Server, programs: &Programs) -> Result<Self> {
        Ok(match server {
            Server::Memcached => Self::Peer(Peer::memcached(&programs.memcached, 1)?),
            Server::Redis => Self::Peer(Peer::redis(&programs.redis)?),
            Server::Fonn => {
                let mut options = NodeOptions::new().flag("--threads", "1");
                options = options
                    .flag("--ram-budget", "4g")
                    .flag("--disk-budget", "20g");
                if !programs.fonn_on_disk {
                    options = options.in_memory();
                }
                for (name, value) in &programs.fonn_flags {
                    options = options.flag(name, value);
                }
                Self::Fonn(options.start()?)
            }
        })
    }

    pub(crate) fn target(&self) -> Target {
        Target::Tcp(match self {
            Self::Peer(peer) => peer.addr,
            Self::Fonn(node) => node.addr(),
        })
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        match self {
            Self::Peer(peer) => Ok(peer.daemon.pid()),
            Self::Fonn(node) => node.pid(),
        }
    }
}
