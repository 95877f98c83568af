//! The admin port: a small HTTP/1.1 server for health, metrics and whatever is mounted.
//!
//! Invariant: it is bounded in connections, header size and time, so that nobody who reaches the
//! port can exhaust the process; and it serves until its own shutdown, which the program requests
//! last, so that health stays visible while everything else drains.
//!
//! Handlers are plain functions from a request without body to a complete response. They run on
//! the runtime that drives the server and must not block.

mod health;
mod routes;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::shutdown::Shutdown;

pub use health::Readiness;
pub use hyper::{HeaderMap, Method, StatusCode, header};
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
    /// From the start of waiting for a request until its headers are complete.
    pub header_timeout: Duration,
    /// Age at which a connection is asked to end after its current response; half as much later it
    /// is cut, which bounds readers that never read.
    pub connection_age_max: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: 64,
            header_timeout: Duration::from_secs(10),
            connection_age_max: Duration::from_secs(60),
        }
    }
}

/// A server that is bound but does not serve yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local_addr: SocketAddr,
    routes: Arc<Routes>,
    options: Options,
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
            routes: Arc::new(routes),
            options,
        })
    }

    /// The address that was bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Serves until `shutdown` is requested; then ends idle connections, finishes current
    /// responses, and cuts what is left at the deadline.
    pub async fn run(self, shutdown: Shutdown) {
        let mut connections = JoinSet::new();
        loop {
            // At the limit only ends of connections are awaited.
            let has_room = connections.len() < self.options.connections_max;
            tokio::select! {
                () = shutdown.requested() => break,
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if has_room => match accepted {
                    Ok((stream, _)) => {
                        let routes = Arc::clone(&self.routes);
                        connections.spawn(serve(stream, routes, self.options, shutdown.clone()));
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

async fn serve(stream: TcpStream, routes: Arc<Routes>, options: Options, shutdown: Shutdown) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let response = routes.answer(&request.map(drop)).map(Full::<Bytes>::new);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .max_buf_size(HEAD_MAX_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // Clients that break the protocol or leave are their own fault, hence `debug`.
    let ended = |result: hyper::Result<()>| {
        if let Err(error) = result {
            tracing::debug!(%error, "connection on the admin port ended");
        }
    };
    tokio::select! {
        result = &mut connection => return ended(result),
        () = shutdown.requested() => {}
        () = tokio::time::sleep(options.connection_age_max) => {}
    }
    connection.as_mut().graceful_shutdown();
    if let Ok(result) = tokio::time::timeout(options.connection_age_max / 2, connection).await {
        ended(result);
    }
}

#[cfg(test)]
mod tests;
