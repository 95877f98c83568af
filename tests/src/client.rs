//! Small blocking clients, one per protocol, that show exactly what the server said.

mod binary;
mod http;
mod remote;
mod resp;
mod text;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Result;

pub use self::binary::{BinaryClient, BinaryReply, opcode, request as binary_request, status};
pub use self::http::{HttpAnswer, HttpClient};
pub use self::remote::{RemoteAnswer, RemoteClient, write_messages};
pub use self::resp::{RespClient, RespReply, request as resp_request};
pub use self::text::{MetaClient, TextClient, TextItem};

/// A reply that does not come within this time fails the test: it hangs. A busy machine is slow,
/// and that is no failure.
pub(crate) const REPLY_LIMIT: Duration = Duration::from_secs(60);

/// The server answered with its protocol's error; the connection goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: {}", self.0)
    }
}

impl std::error::Error for Refused {}

/// Whether an error is an answer of the server rather than a broken connection.
#[must_use]
pub fn is_refusal(error: &anyhow::Error) -> bool {
    error.is::<Refused>()
}

/// Opens a connection from an address of its own, for limits that are by source. Waits for replies
/// as the clients do.
///
/// # Errors
/// When the server does not accept it.
pub fn connect_from(source: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((source, 0)).into())?;
    socket.connect_timeout(&to.into(), REPLY_LIMIT)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(REPLY_LIMIT))?;
    stream.set_write_timeout(Some(REPLY_LIMIT))?;
    Ok(stream)
}

/// The encodings of the protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// memcached text.
    Text,
    /// memcached meta.
    Meta,
    /// memcached binary.
    Binary,
    /// Redis, RESP2.
    Resp,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Text, Self::Meta, Self::Binary, Self::Resp];

    /// Opens a connection.
    ///
    /// # Errors
    /// When the server does not accept it.
    pub fn connect(self, addr: SocketAddr) -> Result<Box<dyn Cache>> {
        Ok(match self {
            Self::Text => Box::new(TextClient::connect(addr)?),
            Self::Meta => Box::new(MetaClient::connect(addr)?),
            Self::Binary => Box::new(BinaryClient::connect(addr)?),
            Self::Resp => Box::new(RespClient::connect(addr)?),
        })
    }
}

/// What every protocol can do.
///
/// All methods fail with [`Refused`] when the server answers with an error, and with another
/// error when the connection breaks or the reply is not the protocol.
pub trait Cache: Send {
    /// The value of `key`.
    ///
    /// # Errors
    /// See [`Cache`].
    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>>;

    /// Stores `value`, for `ttl` seconds or for good.
    ///
    /// # Errors
    /// See [`Cache`].
    fn set(&mut self, key: &str, value: &[u8], ttl: Option<u32>) -> Result<()>;

    /// Removes `key`; says whether it was there.
    ///
    /// # Errors
    /// See [`Cache`].
    fn delete(&mut self, key: &str) -> Result<bool>;

    /// Gives `key` another `ttl` in seconds; says whether it was there.
    ///
    /// # Errors
    /// See [`Cache`].
    fn touch(&mut self, key: &str, ttl: u32) -> Result<bool>;

    /// Adds to a number that is there; `None` when it is not. (RESP would create it: callers
    /// use it on existing keys only.)
    ///
    /// # Errors
    /// See [`Cache`].
    fn incr(&mut self, key: &str, by: u64) -> Result<Option<u64>>;

    /// Removes everything.
    ///
    /// # Errors
    /// See [`Cache`].
    fn flush(&mut self) -> Result<()>;
}
