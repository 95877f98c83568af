//! One connection: which version of HTTP it speaks, and how long it may live.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fonn_auth::tls::{Link, Place};
use fonn_auth::{Refusal, Security};
use fonn_base::shutdown::Shutdown;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tonic::Status;
use tonic::body::Body;

use super::calls::Calls;
use super::frames::FrameLimited;
use super::grpc::{Limited, Source, is_grpc, is_health};
use super::http2::{Streams, is_http2};
use super::login::{Denied, Login};
use super::origin::is_foreign;
use super::places::is_crowded;
use super::routes::Audience;
use super::{HEAD_MAX_BYTES, Options, Routes};

/// How often a peer of HTTP/2 is asked whether it is still there, and how long it may take.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a response that HTTP/2 buffers for a reader that is slow.
const SEND_BUFFER_MAX_BYTES: usize = 256 << 10;

/// What all connections share.
#[derive(Debug)]
pub(super) struct Site {
    routes: Routes,
    grpc: Option<Limited>,
    options: Options,
    security: Security,
    /// Connections that have a place.
    open: AtomicUsize,
}

impl Site {
    pub(super) fn new(mut routes: Routes, options: Options, security: Security) -> Self {
        let grpc = routes.grpc.take();
        Self {
            grpc: grpc.map(|grpc| Limited::new(grpc, &options, security.users.clone())),
            routes,
            options,
            security,
            open: AtomicUsize::new(0),
        }
    }

    /// Says how many connections have a place.
    pub(super) fn set_open(&self, count: usize) {
        self.open.store(count, Ordering::Relaxed);
    }

    async fn answer(&self, request: Request<Incoming>, peer: Peer, calls: Calls) -> Response<Body> {
        let keeps_alive = request.version() <= Version::HTTP_11;
        let mut response = self.respond(request, peer, calls).await;
        let open = self.open.load(Ordering::Relaxed);
        if keeps_alive && is_crowded(open, self.options.connections_max) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        response
    }

    async fn respond(
        &self,
        mut request: Request<Incoming>,
        peer: Peer,
        calls: Calls,
    ) -> Response<Body> {
        let is_grpc = is_grpc(&request);
        let is_probe = self.is_probe(&request, is_grpc);
        if !is_probe && !self.takes(peer) {
            return refusal(StatusCode::FORBIDDEN, NEEDS_TLS);
        }
        if !is_probe
            && !peer.is_encrypted
            && let Err(foreign) = self.routes.hosts.check(&request)
        {
            return match is_grpc {
                true => Status::failed_precondition(foreign.to_string()).into_http(),
                false => refusal(StatusCode::MISDIRECTED_REQUEST, &foreign.to_string()),
            };
        }
        if let Some(grpc) = &self.grpc
            && is_grpc
        {
            if is_foreign(&request) {
                let text = "pages of other sites may not call this port";
                return refusal(StatusCode::FORBIDDEN, text);
            }
            request.extensions_mut().insert(calls);
            return grpc.answer(request, Source(peer.address)).await;
        }
        let request = request.map(drop);
        if let Err(denied) = self.admit(&request, peer.address).await {
            return denied.into();
        }
        let response = self.routes.answer(&request);
        if request.version() == Version::HTTP_2 && request.method() == Method::HEAD {
            // HTTP/1.1 does it by itself.
            let (mut head, body) = response.into_parts();
            head.headers.insert(CONTENT_LENGTH, body.len().into());
            return Response::from_parts(head, Body::empty());
        }
        response.map(|bytes| Body::new(Full::<Bytes>::new(bytes)))
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) address: IpAddr,
    pub(super) is_encrypted: bool,
}

/// For a client that sends a password in the clear: it is not looked at.
const NEEDS_TLS: &str =
    "from other machines this port takes TLS alone: use https (fonnctl: --tls-ca FILE)";

impl Site {
    /// Whether a request is a health probe. Probes need no TLS and may use any host name, because
    /// not every load balancer can do better.
    pub(super) fn is_probe<B>(&self, request: &Request<B>, is_grpc: bool) -> bool {
        match is_grpc {
            true => is_health(request),
            false => self.routes.audience(request.uri().path()) == Audience::Probes,
        }
    }

    /// Whether other requests may come the way they did: where there is a certificate, those of
    /// other machines have to be under TLS.
    pub(super) fn takes(&self, peer: Peer) -> bool {
        peer.is_encrypted || self.security.takes_plaintext_from(peer.address)
    }

    /// Lets a request for a page pass, or says why not.
    pub(super) async fn admit(&self, request: &Request<()>, address: IpAddr) -> Result<(), Denied> {
        let is_private = self.routes.audience(request.uri().path()) == Audience::Users;
        match &self.security.users {
            Some(users) if is_private && !self.security.trusts(address) => {
                Login::check(users, request.headers(), Some(address)).await?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// A line of text in the place of what was asked for.
fn refusal(status: StatusCode, line: &str) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::from(format!("{line}\n"))));
    *response.status_mut() = status;
    response
}

impl From<Denied> for Response<Body> {
    fn from(denied: Denied) -> Self {
        let status = match denied {
            Denied::Refused(Refusal::Busy) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::UNAUTHORIZED,
        };
        let mut response = refusal(status, &denied.to_string());
        if status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Basic realm=\"fonn\", charset=\"UTF-8\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// Serves a connection until it ends, has grown old, or `shutdown` is requested.
pub(super) async fn serve(
    stream: TcpStream,
    address: IpAddr,
    calls: Calls,
    site: Arc<Site>,
    shutdown: Shutdown,
) {
    // Without it small answers wait for more; with it the worst is a few more packets.
    let _ = stream.set_nodelay(true);
    let begin = async {
        match (&site.security.tls, site.security.server_config()) {
            (Some(tls), Some(config)) => {
                Link::accept_either(stream, tls, config, Place::Apart).await
            }
            _ => Ok(Link::Bare(stream)),
        }
    };
    let begun = tokio::select! {
        begun = tokio::time::timeout(site.options.header_timeout, begin) => begun,
        () = shutdown.requested() => return,
    };
    match begun {
        Ok(Ok(link)) => {
            let peer = Peer {
                address,
                is_encrypted: link.is_encrypted(),
            };
            serve_http(link, peer, calls, site, shutdown).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, %address, "no TLS on the admin port"),
        Err(_) => tracing::debug!(%address, "no TLS on the admin port in time"),
    }
}

async fn serve_http(
    mut stream: Link,
    peer: Peer,
    calls: Calls,
    site: Arc<Site>,
    shutdown: Shutdown,
) {
    let options = site.options;
    let mut first = Vec::new();
    let is_http2 = tokio::select! {
        detected = tokio::time::timeout(options.header_timeout, is_http2(&mut stream, &mut first)) => {
            match detected {
                Ok(Ok(is_http2)) => is_http2,
                Ok(Err(_)) | Err(_) => return,
            }
        }
        () = shutdown.requested() => return,
    };
    let (reader, writer) = tokio::io::split(stream);
    let stream = tokio::io::join(io::Cursor::new(first).chain(reader), writer);
    let life = Life {
        calls: calls.clone(),
        options,
        shutdown,
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let (site, calls) = (Arc::clone(&site), calls.clone());
        async move { Ok::<_, Infallible>(site.answer(request, peer, calls).await) }
    });
    if is_http2 {
        let connection = http2::Builder::new(Streams::default())
            .timer(TokioTimer::new())
            .max_concurrent_streams(options.streams_max)
            .max_header_list_size(HEAD_MAX_BYTES as u32)
            .max_send_buf_size(SEND_BUFFER_MAX_BYTES)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .serve_connection(TokioIo::new(FrameLimited::new(stream)), service);
        let connection = std::pin::pin!(connection);
        life.run(connection, |it| it.graceful_shutdown()).await;
    } else {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(options.header_timeout)
            .max_buf_size(HEAD_MAX_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let connection = std::pin::pin!(connection);
        life.run(connection, |it| it.graceful_shutdown()).await;
    }
}

/// How long a connection lives.
struct Life {
    calls: Calls,
    options: Options,
    shutdown: Shutdown,
}

impl Life {
    /// Drives a connection; `end` asks it to end after its current responses.
    async fn run<C>(self, mut connection: Pin<&mut C>, end: impl FnOnce(Pin<&mut C>))
    where
        C: Future<Output = hyper::Result<()>>,
    {
        // Clients that break the protocol or leave are their own fault, hence `debug`.
        let ended = |result: hyper::Result<()>| {
            if let Err(error) = result {
                tracing::debug!(%error, "connection on the admin port ended");
            }
        };
        let age_max = self.options.connection_age_max;
        tokio::select! {
            result = &mut connection => return ended(result),
            () = self.shutdown.requested() => {}
            () = tokio::time::sleep(age_max) => {}
        }
        end(connection.as_mut());
        let overdue = async {
            tokio::time::sleep(age_max / 2).await;
            let _ = tokio::time::timeout(self.options.call_age_max, self.calls.none()).await;
        };
        tokio::select! {
            result = &mut connection => ended(result),
            () = overdue => {}
        }
    }
}
