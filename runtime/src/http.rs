//! The admin port: a small server of HTTP/1.1 and HTTP/2 (without TLS: by prior knowledge, RFC 9113,
//! section 3.3) for health, metrics, gRPC and whatever else is mounted. Whether a connection is under TLS its
//! first byte tells, as on the client port.
//!
//! Invariant: it is bounded in connections, calls, header size and time, so that nobody who reaches the
//! port can exhaust the process; and it serves until its own shutdown, which the program requests
//! last, so that health stays visible while everything else drains.
//!
//! Where there are users a call needs a login (`login`), and a role that its method asks for; a method for
//! which no role was said is for admins.
//!
//! Pages are plain functions from a request without body to a complete response; gRPC services
//! ([`Grpc`]) get whatever else has a content type of gRPC or gRPC-web. Both run on the runtime that
//! drives the server and must not block.

mod base64;
mod body;
mod channel;
mod connection;
mod grpc;
mod health;
mod login;
mod origin;
mod relay;
mod routes;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use self::connection::Site;
use crate::serve::Security;
use crate::shutdown::Shutdown;
use crate::tasks::{OnShutdown, Tasks};

pub use channel::{Channel, ChannelError, Liveness};
pub use grpc::{Bounded, Grpc, GrpcError, GrpcService, Mounted};
pub use health::Readiness;
pub use hyper::{HeaderMap, Method, StatusCode, header};
pub use relay::{MEMBER, ROUTER, Relay, Relayed, ask, sign};
pub use routes::{Request, Response, Routes};

/// Most bytes of a request's line and headers together.
const HEAD_MAX_BYTES: usize = 16 << 10;
/// Wait after a failed accept, which usually means that file descriptors ran out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Limits of the server.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Connections served at once; more wait in the kernel's queue.
    pub connections_max: usize,
    /// From the start of waiting for a request until its headers are complete. (HTTP/2: for the
    /// beginning of the connection; afterwards its age counts.)
    pub header_timeout: Duration,
    /// Age at which a connection is asked to end after its current responses; half as much later it
    /// is cut, which bounds readers that never read, unless it has gRPC calls.
    pub connection_age_max: Duration,
    /// Requests under way at once in one HTTP/2 connection.
    pub streams_max: u32,
    /// gRPC calls under way at once in all connections; more are refused as RESOURCE_EXHAUSTED. Below
    /// `connections_max`, for a call may hold its connection as long as it lasts.
    pub calls_max: usize,
    /// From the headers of a gRPC call until its response begins.
    pub answer_timeout: Duration,
    /// How long a gRPC call keeps an aged connection from being cut.
    pub call_age_max: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: 64,
            header_timeout: Duration::from_secs(10),
            connection_age_max: Duration::from_secs(60),
            streams_max: 32,
            calls_max: 32,
            answer_timeout: Duration::from_secs(60),
            call_age_max: Duration::from_secs(12 * 60 * 60),
        }
    }
}

/// A server that is bound but does not serve yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local_addr: SocketAddr,
    routes: Routes,
    options: Options,
    security: Security,
}

impl Server {
    /// Binds the address; port 0 takes any free port.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn bind(addr: SocketAddr, routes: Routes, options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(addr).await?;
        let local_addr = listener.local_addr()?;
        Ok(Self {
            listener,
            local_addr,
            routes,
            options,
            security: Security::default(),
        })
    }

    /// Asks who calls.
    #[must_use]
    pub fn with_security(self, security: Security) -> Self {
        Self { security, ..self }
    }

    /// Binds `addr`, HOST:PORT, and serves it in a task that ends when `stopped` is requested. Returns
    /// the address that was bound.
    ///
    /// # Errors
    /// If the address cannot be resolved or bound, with the address in the message.
    pub async fn start(
        addr: &str,
        routes: Routes,
        security: Security,
        tasks: &Tasks,
        stopped: Shutdown,
    ) -> io::Result<String> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot listen on {addr}: {error}"))
        };
        let resolved = addr.to_socket_addrs().map_err(named)?.next();
        let resolved =
            resolved.ok_or_else(|| named(io::Error::other("the name has no address")))?;
        let server = Self::bind(resolved, routes, Options::default())
            .await
            .map_err(named)?;
        let local = server.local_addr().to_string();
        let server = server.with_security(security);
        tasks.spawn("admin", OnShutdown::Wait, server.run(stopped));
        Ok(local)
    }

    /// The address that was bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Serves until `shutdown` is requested; then ends idle connections, finishes current
    /// responses, and cuts what is left at the deadline.
    pub async fn run(self, shutdown: Shutdown) {
        let (routes, options) = (self.routes, self.options);
        let site = Arc::new(Site::new(routes, options, self.security, self.local_addr));
        let mut connections = JoinSet::new();
        loop {
            // At the limit only ends of connections are awaited.
            let has_room = connections.len() < options.connections_max;
            tokio::select! {
                () = shutdown.requested() => break,
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if has_room => match accepted {
                    Ok((stream, peer)) => {
                        let site = Arc::clone(&site);
                        connections.spawn(connection::serve(stream, peer.ip(), site, shutdown.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accepting a connection on the admin port");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
        drop(self.listener);
        let drained = async { while connections.join_next().await.is_some() {} };
        tokio::select! {
            () = drained => {}
            // Dropping the set cuts the rest.
            () = shutdown.overdue() => {}
        }
    }
}

#[cfg(test)]
mod tests;
