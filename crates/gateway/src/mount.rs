//! The HTTP port as a node or a router mounts it.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use fonn_base::config::{Origin, Origins};
use fonn_base::metrics::Metrics;
use fonn_program::{CommonConfig, HttpConfig};
use fonn_server::{ListenAddr, Server, Service, Shared};

use crate::handler::{Front, Options};
use crate::life::Times;
use crate::report::ToolsReport;
use crate::server::{Bound, Gateway, GatewayError};
use crate::service::Served;

/// The part of all connections of the process that is kept for the client port: one of so many.
const CLIENT_SHARES: usize = 4;

/// The setting of the address.
const KEY: &str = "http_listen";

/// Binds the address that was asked for, if one was.
///
/// # Errors
/// If it cannot be had.
pub fn bind_given(config: &HttpConfig, origins: &Origins) -> Result<Option<Bound>, GatewayError> {
    match config.address() {
        Some(address) if origins.of(KEY) != Origin::Default => {
            Bound::new(&ListenAddr::Tcp(address.to_owned())).map(Some)
        }
        _ => Ok(None),
    }
}

/// Binds the default address. If it is taken, there is no HTTP port: several nodes may share a
/// host.
///
/// # Errors
/// If it cannot be had for another reason.
pub fn bind_default(config: &HttpConfig, origins: &Origins) -> Result<Option<Bound>, GatewayError> {
    let Some(address) = config.address() else {
        return Ok(None);
    };
    if origins.of(KEY) != Origin::Default {
        return Ok(None);
    }
    match Bound::new(&ListenAddr::Tcp(address.to_owned())) {
        Ok(bound) => Ok(Some(bound)),
        Err(GatewayError::Listen(error)) if error.kind() == io::ErrorKind::AddrInUse => {
            tracing::warn!(
                address,
                "the default address of the HTTP port is taken: HTTP is not served; choose another --http-listen, or none"
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The front of what `shared` serves. What it counts is in `metrics` and told by `tools`.
pub fn front<S: Service>(
    shared: &Arc<Shared<S>>,
    common: &CommonConfig,
    metrics: &Metrics,
    tools: &ToolsReport,
) -> Front<Served<S>> {
    let options = Options {
        deadline: common.http.deadline,
        hosts: common.http_hosts(),
        connections_max: shared.connections_max - shared.connections_max / CLIENT_SHARES,
        times: Times {
            stall_max: shared.tuning().stall_max,
            linger: shared.tuning().linger,
            ..Times::default()
        },
    };
    let served = Served::new(Arc::clone(shared));
    let front = Front::new(served, shared.security.clone(), options);
    front.register(metrics);
    let counted = front.clone();
    tools.open(move || counted.tool_uses());
    front
}

/// Lets requests that are under way on both ports finish until `end`, and ends the threads of the
/// ports. Blocks.
pub fn drain<S: Service>(gateway: Option<Gateway>, server: Server<S>, end: Instant) {
    let grace = || end.saturating_duration_since(Instant::now());
    if let Some(gateway) = &gateway {
        gateway.stop(grace());
    }
    server.drain(grace());
    if let Some(gateway) = gateway {
        gateway.join();
    }
}
