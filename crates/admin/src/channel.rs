//! A gRPC client's connection: one of HTTP/2.
//!
//! tonic's own channel balances, buffers and reconnects. A command that asks one node once needs
//! none of that, and a component that keeps a connection for long decides about it itself.

use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fonn_auth::tls::{self, Side, Tls, Watched};
use fonn_base::boxed::BoxFuture;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::body::Body;
use tonic::codegen::Service;

use super::MEMBER;

/// How soon a connection ends whose other end has fallen silent.
///
/// A machine that loses power or its link closes no connection, so HTTP/2 pings test each one while
/// it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Within a second: between members and routers, whose links are short.
    Member,
    /// Within 40 seconds: for commands of an operator, over any link.
    Operator,
}

impl Liveness {
    /// How long a connection may be idle before a ping is sent.
    #[must_use]
    pub const fn interval(self) -> Duration {
        match self {
            Self::Member => Duration::from_millis(250),
            Self::Operator => Duration::from_secs(20),
        }
    }

    /// How long the answer to a ping may take.
    #[must_use]
    pub const fn timeout(self) -> Duration {
        match self {
            Self::Member => Duration::from_millis(700),
            Self::Operator => Duration::from_secs(20),
        }
    }
}

/// Longest page in bytes.
const PAGE_LEN_MAX: usize = 16 << 20;

/// What generated clients send their requests through; clones share the connection, which ends with
/// the last of them.
#[derive(Clone, Debug)]
pub struct Channel {
    sender: http2::SendRequest<Body>,
    origin: Uri,
    authorization: Option<HeaderValue>,
    member: Option<HeaderValue>,
}

/// There is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The address is no HOST:PORT.
    #[error("`{0}` is not HOST:PORT")]
    Address(String),
    /// No process accepts there.
    #[error("{0}")]
    Connect(#[source] io::Error),
    /// No process accepts there in time.
    #[error("no connection within {0:?}")]
    Timeout(Duration),
    /// The peer does not speak TLS, has another identity, or does not know ours.
    #[error("{0}")]
    Tls(#[source] io::Error),
    /// The peer does not speak HTTP/2.
    #[error("{0}")]
    Protocol(#[source] hyper::Error),
}

impl Channel {
    /// Connects to `addr`, HOST:PORT.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn connect(addr: &str, timeout: Duration) -> Result<Self, ChannelError> {
        Self::connect_by(addr, None, timeout, Liveness::Operator).await
    }

    /// Connects to `addr`, HOST:PORT, under TLS if there is a configuration for it. The other end
    /// has to have a certificate for HOST.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn connect_by(
        addr: &str,
        tls: Option<Arc<ClientConfig>>,
        timeout: Duration,
        liveness: Liveness,
    ) -> BoxFuture<'_, Result<Self, ChannelError>> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let connect = async move {
            let stream = reach(addr).await?;
            let stream: Box<dyn Stream> = match tls {
                None => Box::new(stream),
                Some(config) => Box::new(shake_hands(addr, stream, &config).await?),
            };
            begin(stream, liveness).await
        };
        Box::pin(Self::by(addr, scheme, timeout, connect))
    }

    /// Connects to a member of the cluster at `addr`, HOST:PORT, under TLS if members have an
    /// authority. The connection ends when the certificate of the member expires or is revoked.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn connect_to_member<'a>(
        addr: &'a str,
        tls: Option<&'a Arc<Tls>>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Self, ChannelError>> {
        let tls = tls.filter(|tls| tls.client().is_some());
        let scheme = if tls.is_some() { "https" } else { "http" };
        let connect = async move {
            let stream: Box<dyn Stream> = match tls {
                None => Box::new(reach(addr).await?),
                Some(tls) => Box::new(member_stream(addr, tls).await?),
            };
            begin(stream, Liveness::Member).await
        };
        Box::pin(Self::by(addr, scheme, timeout, connect))
    }

    /// The connection that `connect` makes in time.
    async fn by(
        addr: &str,
        scheme: &str,
        timeout: Duration,
        connect: impl Future<Output = Result<http2::SendRequest<Body>, ChannelError>> + Send,
    ) -> Result<Self, ChannelError> {
        let origin = Uri::builder()
            .scheme(scheme)
            .authority(addr)
            .path_and_query("/")
            .build()
            .map_err(|_| ChannelError::Address(addr.to_owned()))?;
        let connected = tokio::time::timeout(timeout, connect).await;
        let sender = connected.map_err(|_| ChannelError::Timeout(timeout))??;
        Ok(Self {
            sender,
            origin,
            authorization: None,
            member: None,
        })
    }

    /// Logs in with every call. An eavesdropper reads the password, unless the connection is
    /// under TLS.
    #[must_use]
    pub fn with_login(self, user: &str, password: &[u8]) -> Self {
        let pair = [user.as_bytes(), b":", password].concat();
        let value = format!("Basic {}", STANDARD.encode(pair));
        let authorization = HeaderValue::try_from(value).ok().map(|mut value| {
            // Never in a log or in HTTP/2's table of headers.
            value.set_sensitive(true);
            value
        });
        Self {
            authorization,
            ..self
        }
    }

    /// Has every call answered by that member of the cluster, whichever is at the other end. None
    /// if that is no name.
    #[must_use]
    pub fn for_member(self, name: &str) -> Option<Self> {
        let member = HeaderValue::try_from(name).ok()?;
        Some(Self {
            member: Some(member),
            ..self
        })
    }

    /// A page of the port, if it is one of text that is shown; with the login of calls.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn get(mut self, path: &str) -> Option<String> {
        let mut target = self.origin().into_parts();
        target.path_and_query = Some(path.parse().ok()?);
        let request = Request::get(Uri::from_parts(target).ok()?);
        let request = request.body(Body::empty()).ok()?;
        poll_fn(|cx| self.poll_ready(cx)).await.ok()?;
        let response = self.call(request).await.ok()?;
        if response.status() != StatusCode::OK {
            return None;
        }
        let body = Limited::new(response.into_body(), PAGE_LEN_MAX);
        String::from_utf8(body.collect().await.ok()?.to_bytes().into()).ok()
    }

    /// For generated clients: `Client::with_origin(channel.clone(), channel.origin())`.
    #[must_use]
    pub fn origin(&self) -> Uri {
        self.origin.clone()
    }
}

/// Connects to a member of the cluster at `addr`, HOST:PORT, under TLS. The connection ends when
/// the certificate of the member expires or is revoked.
///
/// # Errors
/// [`ChannelError`]; [`ChannelError::Tls`] if members have no authority.
pub fn member_stream<'a>(
    addr: &'a str,
    tls: &'a Arc<Tls>,
) -> BoxFuture<'a, Result<Watched<TcpStream>, ChannelError>> {
    Box::pin(async move {
        // Loaded for each connection: the certificate may have been renewed.
        let config = tls.client().ok_or_else(|| {
            ChannelError::Tls(io::Error::other(
                "members have no authority of certificates",
            ))
        })?;
        let stream = shake_hands(addr, reach(addr).await?, &config).await?;
        Watched::new(stream, tls, Side::Server(name(addr)?)).map_err(ChannelError::Tls)
    })
}

async fn reach(addr: &str) -> Result<TcpStream, ChannelError> {
    let stream = TcpStream::connect(addr)
        .await
        .map_err(ChannelError::Connect)?;
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// The name that the certificate of the other end has to be for.
fn name(addr: &str) -> Result<ServerName<'static>, ChannelError> {
    tls::server_name(addr).ok_or_else(|| ChannelError::Address(addr.to_owned()))
}

async fn shake_hands(
    addr: &str,
    stream: TcpStream,
    config: &ClientConfig,
) -> Result<TlsStream<TcpStream>, ChannelError> {
    let mut config = config.clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name(addr)?, stream).await;
    stream.map_err(ChannelError::Tls)
}

/// A socket, whatever protects it.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Speaks HTTP/2 on a connection.
async fn begin(
    stream: Box<dyn Stream>,
    liveness: Liveness,
) -> Result<http2::SendRequest<Body>, ChannelError> {
    let (sender, driver) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(liveness.interval())
        .keep_alive_timeout(liveness.timeout())
        .handshake(TokioIo::new(stream))
        .await
        .map_err(ChannelError::Protocol)?;
    // It ends when the last clone of the sender is dropped, or the peer closes.
    tokio::spawn(driver);
    Ok(sender)
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, hyper::Result<Response<Incoming>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.sender.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let headers = request.headers_mut();
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        if let Some(member) = &self.member {
            headers.insert(MEMBER, member.clone());
        }
        Box::pin(self.sender.send_request(request))
    }
}
