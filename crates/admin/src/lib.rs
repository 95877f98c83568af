//! The admin port: a small server of HTTP/1.1 and HTTP/2 (without TLS: by prior knowledge, RFC
//! 9113, section 3.3) for health, metrics, gRPC and whatever else is mounted. Whether a connection
//! is under TLS its first byte tells, as on the client port.
//!
//! Invariant: it is bounded in connections, calls, header size and time, so that no client can
//! exhaust the process. It accepts every connection: when all places are taken, the source with the
//! most connections loses one (`places`), so that health checks and administrators get in. It
//! serves until its own shutdown, which the program requests last, so that health stays visible
//! while everything else drains.
//!
//! Where there are users a call needs a login (`login`), and a role that its method asks for; a
//! method for which no role was said is for admins.
//!
//! Pages are plain functions from a request without body to a complete response; gRPC services
//! ([`Grpc`]) get whatever else has a content type of gRPC or gRPC-web. Both run on the runtime
//! that drives the server and must not block.

mod body;
mod calls;
mod channel;
mod connection;
mod frames;
#[doc(hidden)]
pub mod fuzzing;
mod grpc;
mod health;
mod hosts;
mod http2;
mod login;
mod origin;
mod places;
mod relay;
mod routes;
mod settings;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_auth::Security;
use fonn_base::boxed::BoxFuture;
use fonn_base::listen::cannot_listen;
use fonn_base::shutdown::Shutdown;
use fonn_base::tasks::{OnShutdown, Tasks};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

use self::calls::Calls;
use self::connection::Site;
use self::places::{Full, Places};

pub use calls::CallLimits;
pub use channel::{Channel, ChannelError, Liveness, member_stream};
pub use frames::Frames;
pub use grpc::{Bounded, Grpc, GrpcError, GrpcService, WATCHES};
pub use health::Readiness;
pub use hosts::{ForeignHost, HostName, HostNames};
pub use http2::{Streams, is_http2};
pub use hyper::{HeaderMap, Method, StatusCode, header};
pub use login::{Credentials, Denied};
pub use origin::is_foreign;
pub use relay::{MEMBER, ROUTER, Relay, Relayed, ask, sign};
pub use routes::{Request, Response, Routes, dashboard};
pub use settings::SettingsService;

/// Most bytes of a request's line and headers together.
const HEAD_MAX_BYTES: usize = 16 << 10;
/// Wait after a failed accept, which usually means that file descriptors ran out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// While connections cannot be accepted, it is said this often.
const ACCEPT_WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// From the headers of a gRPC call until its response begins, at the server and at its callers. A
/// change of the cluster takes longer than a member may be silent, which is a minute at most.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// Limits of the server.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Connections served at once; one more ends the oldest connection without calls of the source
    /// that has most. Above the calls of both kinds together, since a call may hold its connection
    /// as long as it lasts.
    pub connections_max: usize,
    /// From the start of waiting for a request until its headers are complete. (HTTP/2: for the
    /// beginning of the connection; afterwards its age counts.)
    pub header_timeout: Duration,
    /// Age at which a connection is asked to end after its current responses; half as much later it
    /// is cut, which bounds readers that never read, unless it has gRPC calls.
    pub connection_age_max: Duration,
    /// Requests under way at once in one HTTP/2 connection.
    pub streams_max: u32,
    /// gRPC calls under way at once in all connections; more are refused as RESOURCE_EXHAUSTED.
    pub calls: CallLimits,
    /// The same of those whose streams have no end ([`WATCHES`]).
    pub watches: CallLimits,
    /// From the headers of a gRPC call until its response begins.
    pub answer_timeout: Duration,
    /// How long a gRPC call keeps an aged connection from being cut.
    pub call_age_max: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: 128,
            header_timeout: Duration::from_secs(10),
            connection_age_max: Duration::from_secs(60),
            streams_max: 32,
            calls: CallLimits {
                most: 16,
                for_admins: 4,
                by_caller: 8,
            },
            watches: CallLimits {
                most: 32,
                for_admins: 8,
                by_caller: 16,
            },
            answer_timeout: ANSWER_TIMEOUT,
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

    /// Asks for the caller.
    #[must_use]
    pub fn with_security(self, security: Security) -> Self {
        Self { security, ..self }
    }

    /// Binds `addr`, HOST:PORT, and serves it in a task that ends when `stopped` is requested.
    /// Returns the address that was bound.
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
        let named = |error: io::Error| cannot_listen(addr, &error);
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
    pub fn run(self, shutdown: Shutdown) -> BoxFuture<'static, ()> {
        Box::pin(self.serve(shutdown))
    }

    async fn serve(self, shutdown: Shutdown) {
        let (routes, options) = (self.routes, self.options);
        let site = Arc::new(Site::new(routes, options, self.security));
        let mut connections = JoinSet::new();
        let mut places: Places<AbortHandle> = Places::new(options.connections_max);
        let mut warned: Option<Instant> = None;
        loop {
            let wait = places.wait(Instant::now());
            tokio::select! {
                () = shutdown.requested() => break,
                Some(ended) = connections.join_next_with_id() => {
                    let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                    places.free(|connection| connection.id() == id);
                }
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
                accepted = self.listener.accept(), if wait.is_none() => match accepted {
                    Ok((stream, peer)) => match places.make_room() {
                        Ok(victim) => {
                            if let Some(connection) = victim {
                                connection.abort();
                            }
                            let (calls, site) = (Calls::new(), Arc::clone(&site));
                            let (address, shutdown) = (peer.ip(), shutdown.clone());
                            let served = connection::serve(stream, address, calls.clone(), site, shutdown);
                            places.take(address, calls, Instant::now(), connections.spawn(served));
                        }
                        Err(Full) => tracing::debug!(%peer, "every connection of the admin port has calls"),
                    },
                    Err(error) => {
                        if warned.is_none_or(|at| at.elapsed() >= ACCEPT_WARNING_INTERVAL) {
                            tracing::warn!(%error, "accepting a connection on the admin port");
                            warned = Some(Instant::now());
                        }
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
            }
            site.set_open(places.len());
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
