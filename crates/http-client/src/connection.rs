//! One connection: TCP, TLS if it is wanted, and HTTP/1.1 on it.

use std::io;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// The body of a request.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body without bytes.
#[must_use]
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body of these bytes.
#[must_use]
pub fn whole(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host is neither a name nor an address.
    #[error("malformed host name {0}")]
    Host(String),
    /// TCP or TLS failed.
    #[error(transparent)]
    Stream(#[from] io::Error),
    /// HTTP cannot begin.
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// A connection, and the task that carries its bytes. The task ends with it.
pub struct Connection {
    sender: SendRequest<Body>,
    _carrier: JoinSet<()>,
}

impl Connection {
    /// Connects to a host, an IPv6 address in brackets or without. It has no deadline of its own.
    ///
    /// # Errors
    /// If the host cannot be reached, or TLS does not trust it.
    pub async fn open(
        host: &str,
        port: u16,
        tls: Option<&TlsConnector>,
    ) -> Result<Self, ConnectError> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| ConnectError::Host(host.to_owned()))?;
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        match tls {
            Some(tls) => Self::over(tls.connect(name, stream).await?).await,
            None => Self::over(stream).await,
        }
    }

    async fn over<S>(stream: S) -> Result<Self, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut carrier = JoinSet::new();
        carrier.spawn(async move {
            // Requests on the connection report its failures.
            let _ = connection.await;
        });
        Ok(Self {
            sender,
            _carrier: carrier,
        })
    }

    /// Waits until a request can be sent. False if the connection is closed.
    pub async fn is_ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    /// Sends a request, and returns the head of the response.
    ///
    /// # Errors
    /// If the connection breaks, or what comes back is not HTTP.
    pub async fn send(&mut self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        self.sender.send_request(request).await
    }
}
