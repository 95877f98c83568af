//! A server of Fonn, with the connections to it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::connection::{Body, ConnectError, Connection};

/// Failures in a row after which the client pauses.
const FAILURES_MAX: u32 = 3;

/// For how long it pauses.
const PAUSE: Duration = Duration::from_secs(10);

/// A connection has to be open within the deadline divided by this.
const CONNECT_SHARE: u32 = 5;

/// Connections that are kept while no request is on them.
const IDLE_MAX: usize = 16;

/// A connection that was idle for longer is not used. Firewalls and balancers forget idle
/// connections and drop what is sent on them.
const IDLE_AGE_MAX: Duration = Duration::from_secs(60);

/// Bytes of a response that is not wanted which are read to keep its connection.
const REST_LEN_MAX: u64 = 64 << 10;

/// Where the server is and how it is called.
#[derive(Clone)]
pub struct Server {
    /// HOST:PORT of its HTTP front.
    pub addr: String,
    /// How it is called with TLS; none without.
    pub tls: Option<Arc<ClientConfig>>,
    /// The token that names the caller; none where the server has no users.
    pub token: Option<String>,
    /// How the caller calls itself.
    pub agent: &'static str,
    /// Beginning of the keys, without the slash behind it; may be empty.
    pub prefix: String,
    /// A request that takes longer has failed.
    pub deadline: Duration,
}

/// Why a server cannot be called.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// The address has no host or no port.
    #[error("malformed server address {0}; expected HOST:PORT, as in 127.0.0.1:11290")]
    Addr(String),
    /// The token has bytes that no header may have.
    #[error("the token has characters that a token cannot have")]
    Token,
    /// The prefix has characters that would have to be escaped.
    #[error("malformed prefix {0}; expected letters, digits, `-`, `_`, `.` and `/`")]
    Prefix(String),
}

/// Why a request had no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The server is unreachable, late, or its response is malformed.
    Away,
    /// The server refuses the request, with this status.
    Refused(u16),
}

impl Failed {
    /// The failure that a response with this status is.
    #[must_use]
    pub fn of(status: StatusCode) -> Self {
        match status.is_client_error() {
            true => Self::Refused(status.as_u16()),
            false => Self::Away,
        }
    }
}

impl From<io::Error> for Failed {
    fn from(_: io::Error) -> Self {
        Self::Away
    }
}

impl From<hyper::Error> for Failed {
    fn from(_: hyper::Error) -> Self {
        Self::Away
    }
}

impl From<ConnectError> for Failed {
    fn from(_: ConnectError) -> Self {
        Self::Away
    }
}

/// The client of a server.
pub struct Client {
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    authorization: Option<HeaderValue>,
    host_header: HeaderValue,
    agent: &'static str,
    prefix: String,
    deadline: Duration,
    idle: Mutex<Vec<Idle>>,
    health: Mutex<Health>,
}

/// A connection without a request.
struct Idle {
    connection: Connection,
    since: Instant,
}

#[derive(Default)]
struct Health {
    failures: u32,
    paused_until: Option<Instant>,
}

impl Client {
    /// A client without a connection yet.
    ///
    /// # Errors
    /// If a setting is malformed.
    pub fn new(server: Server) -> Result<Self, ServerError> {
        let addr = || ServerError::Addr(server.addr.clone());
        let (host, port) = server.addr.rsplit_once(':').ok_or_else(addr)?;
        let port = port.parse().map_err(|_| addr())?;
        if host.is_empty() {
            return Err(addr());
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        let mut parts = server.prefix.split('/');
        let is_whole = parts.all(|part| !matches!(part, "" | "." | ".."));
        let is_valid = is_whole && server.prefix.bytes().all(is_plain);
        if !(server.prefix.is_empty() || is_valid) {
            return Err(ServerError::Prefix(server.prefix));
        }
        let tls = server.tls.as_ref().map(|config| {
            let mut config = ClientConfig::clone(config);
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            TlsConnector::from(Arc::new(config))
        });
        let authorization = match &server.token {
            Some(token) => {
                let value = HeaderValue::try_from(format!("Bearer {token}"));
                let mut value = value.map_err(|_| ServerError::Token)?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Ok(Self {
            host: host.to_owned(),
            port,
            tls,
            authorization,
            host_header: HeaderValue::try_from(&server.addr).map_err(|_| addr())?,
            agent: server.agent,
            prefix: server.prefix,
            deadline: server.deadline,
            idle: Mutex::default(),
            health: Mutex::default(),
        })
    }

    /// Runs an exchange within the deadline, unless the client pauses.
    ///
    /// # Errors
    /// That of the exchange; [`Failed::Away`] after the deadline and in a pause.
    pub async fn within_deadline<T>(
        &self,
        exchange: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let paused_until = self.health.lock().paused_until;
        if paused_until.is_some_and(|until| Instant::now() < until) {
            return Err(Failed::Away);
        }
        let done = timeout(self.deadline, exchange).await;
        let done = done.unwrap_or_else(|_| {
            // The path may be broken for all of them, and each would cost a deadline.
            self.idle.lock().clear();
            Err(Failed::Away)
        });
        let mut health = self.health.lock();
        match done {
            Err(Failed::Away) => {
                health.failures += 1;
                if health.failures >= FAILURES_MAX {
                    health.paused_until = Some(Instant::now() + PAUSE);
                }
            }
            _ => *health = Health::default(),
        }
        done
    }

    /// Sends a request for the key `name` below the prefix, and returns the head of the response.
    /// `body` makes the body of `len` bytes, again if an idle connection turns out to be closed.
    ///
    /// # Errors
    /// If no response comes. A response of any status is none.
    pub async fn call(
        &self,
        method: Method,
        name: &str,
        len: u64,
        body: impl Fn() -> io::Result<Body>,
    ) -> Result<Answer<'_>, Failed> {
        if let Some(mut connection) = self.take_idle()
            && connection.is_ready().await
        {
            let request = self.request(&method, name, len, body()?)?;
            if let Ok(response) = connection.send(request).await {
                return Ok(self.answer(connection, response));
            }
        }
        let open = Connection::open(&self.host, self.port, self.tls.as_ref());
        let opened = timeout(self.deadline / CONNECT_SHARE, open).await;
        let mut connection = opened.map_err(|_| Failed::Away)??;
        let request = self.request(&method, name, len, body()?)?;
        let response = connection.send(request).await?;
        Ok(self.answer(connection, response))
    }

    fn answer(&self, connection: Connection, response: Response<Incoming>) -> Answer<'_> {
        Answer {
            client: self,
            connection,
            response,
        }
    }

    fn request(
        &self,
        method: &Method,
        name: &str,
        len: u64,
        body: Body,
    ) -> Result<Request<Body>, Failed> {
        let path = match self.prefix.as_str() {
            "" => format!("/{name}"),
            prefix => format!("/{prefix}/{name}"),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.host_header)
            .header(USER_AGENT, self.agent);
        if method == Method::PUT {
            request = request.header(CONTENT_LENGTH, len);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(body).map_err(|_| Failed::Away)
    }

    /// The connection that was used last.
    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        idle.retain(|it| it.since.elapsed() < IDLE_AGE_MAX);
        idle.pop().map(|it| it.connection)
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            let since = Instant::now();
            idle.push(Idle { connection, since });
        }
    }
}

/// A response whose body has not been read yet. Its connection closes with it, unless
/// [`Answer::end`] is called.
pub struct Answer<'a> {
    client: &'a Client,
    connection: Connection,
    response: Response<Incoming>,
}

impl Answer<'_> {
    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The length of the body, where the response says it.
    #[must_use]
    pub fn body_len(&self) -> Option<u64> {
        let value = self.response.headers().get(CONTENT_LENGTH)?;
        value.to_str().ok()?.parse().ok()
    }

    /// The next bytes of the body; none at its end.
    ///
    /// # Errors
    /// If the body breaks off.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failed> {
        while let Some(frame) = self.response.body_mut().frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Reads the rest of the body, and keeps the connection for the next request. It closes one
    /// with a long rest instead.
    ///
    /// # Errors
    /// If the body breaks off.
    pub async fn end(mut self) -> Result<(), Failed> {
        let mut rest_len = 0;
        while let Some(data) = self.next().await? {
            rest_len += data.len() as u64;
            if rest_len > REST_LEN_MAX {
                return Ok(());
            }
        }
        self.client.keep(self.connection);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
