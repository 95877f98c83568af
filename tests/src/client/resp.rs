//! RESP2 and RESP3 (redis.io, "RESP protocol spec").

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail, ensure};

use super::{Cache, REPLY_LIMIT, Refused};

/// A RESP connection.
#[derive(Debug)]
pub struct RespClient {
    stream: BufReader<TcpStream>,
}

/// One reply.
#[derive(Clone, Debug, PartialEq)]
pub enum RespReply {
    /// `+`
    Simple(String),
    /// `-`
    Error(String),
    /// `:`
    Integer(i64),
    /// `$` and `=`
    Bulk(Vec<u8>),
    /// `$-1`, `*-1` and `_`
    Null,
    /// `*`, `~` and `>`
    Array(Vec<Self>),
    /// `%`
    Map(Vec<(Self, Self)>),
    /// `,`
    Double(f64),
    /// `#`
    Boolean(bool),
}

impl RespReply {
    /// The integer.
    ///
    /// # Errors
    /// [`Refused`] for an error reply.
    pub fn integer(self) -> Result<i64> {
        match self {
            Self::Integer(number) => Ok(number),
            other => Err(other.unexpected()),
        }
    }

    /// The bulk string, `None` for null.
    ///
    /// # Errors
    /// [`Refused`] for an error reply.
    pub fn bulk(self) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Bulk(bytes) => Ok(Some(bytes)),
            Self::Null => Ok(None),
            other => Err(other.unexpected()),
        }
    }

    /// Nothing, for `+OK`.
    ///
    /// # Errors
    /// [`Refused`] for an error reply.
    pub fn ok(self) -> Result<()> {
        match self {
            Self::Simple(text) if text == "OK" => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    /// The elements.
    ///
    /// # Errors
    /// [`Refused`] for an error reply.
    pub fn array(self) -> Result<Vec<Self>> {
        match self {
            Self::Array(elements) => Ok(elements),
            other => Err(other.unexpected()),
        }
    }

    fn unexpected(self) -> anyhow::Error {
        match self {
            Self::Error(text) => Refused(text).into(),
            other => anyhow::anyhow!("unexpected reply {other:?}"),
        }
    }
}

/// The bytes of a request.
#[must_use]
pub fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl RespClient {
    /// Opens a connection.
    ///
    /// # Errors
    /// When the server does not accept it.
    pub fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, REPLY_LIMIT).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        stream.set_write_timeout(Some(REPLY_LIMIT))?;
        Ok(Self::over(stream))
    }

    /// Speaks over a connection that is open, whose timeouts the caller has set.
    #[must_use]
    pub fn over(stream: TcpStream) -> Self {
        Self {
            stream: BufReader::with_capacity(64 << 10, stream),
        }
    }

    /// The socket, for tests that send odd bytes.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.get_mut().write_all(bytes).context("sending")
    }

    /// Sends a command of byte strings and reads its reply.
    ///
    /// # Errors
    /// When the connection is broken; an error reply is a reply.
    pub fn call(&mut self, words: &[&[u8]]) -> Result<RespReply> {
        self.send(&request(words))?;
        self.reply()
    }

    /// Sends a command of words without spaces.
    ///
    /// # Errors
    /// As [`RespClient::call`].
    pub fn command(&mut self, line: &str) -> Result<RespReply> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.call(&words)
    }

    /// Reads one reply.
    ///
    /// # Errors
    /// When the connection ends or the bytes are not RESP.
    pub fn reply(&mut self) -> Result<RespReply> {
        let mut line = Vec::new();
        self.stream
            .read_until(b'\n', &mut line)
            .context("reading a reply")?;
        let line = line.strip_suffix(b"\r\n").with_context(|| {
            format!(
                "the connection ended inside a reply: {:?}",
                String::from_utf8_lossy(&line)
            )
        })?;
        let (&kind, rest) = line.split_first().context("an empty reply line")?;
        let rest = std::str::from_utf8(rest).context("a reply line is not text")?;
        Ok(match kind {
            b'+' => RespReply::Simple(rest.to_owned()),
            b'-' => RespReply::Error(rest.to_owned()),
            b':' => RespReply::Integer(rest.parse()?),
            b',' => RespReply::Double(rest.parse()?),
            b'#' => RespReply::Boolean(rest == "t"),
            b'_' => RespReply::Null,
            b'$' | b'=' | b'*' | b'~' | b'>' if rest == "-1" => RespReply::Null,
            b'$' => RespReply::Bulk(self.blob(rest.parse()?)?),
            b'=' => RespReply::Bulk(self.blob(rest.parse()?)?.split_off(4)),
            b'*' | b'~' | b'>' => {
                let count: usize = rest.parse()?;
                RespReply::Array((0..count).map(|_| self.reply()).collect::<Result<_>>()?)
            }
            b'%' => {
                let count: usize = rest.parse()?;
                let pairs = (0..count).map(|_| Ok((self.reply()?, self.reply()?)));
                RespReply::Map(pairs.collect::<Result<_>>()?)
            }
            other => bail!("unknown reply type {:?}: {rest:?}", char::from(other)),
        })
    }

    fn blob(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream
            .read_exact(&mut bytes)
            .context("reading a bulk string")?;
        let mut end = [0; 2];
        self.stream.read_exact(&mut end)?;
        ensure!(end == *b"\r\n", "a bulk string is longer than it says");
        Ok(bytes)
    }
}

impl Cache for RespClient {
    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        self.call(&[b"GET", key.as_bytes()])?.bulk()
    }

    fn set(&mut self, key: &str, value: &[u8], ttl: Option<u32>) -> Result<()> {
        match ttl {
            Some(ttl) => {
                let ttl = ttl.to_string();
                self.call(&[b"SET", key.as_bytes(), value, b"EX", ttl.as_bytes()])?
                    .ok()
            }
            None => self.call(&[b"SET", key.as_bytes(), value])?.ok(),
        }
    }

    fn delete(&mut self, key: &str) -> Result<bool> {
        Ok(self.command(&format!("DEL {key}"))?.integer()? == 1)
    }

    fn touch(&mut self, key: &str, ttl: u32) -> Result<bool> {
        Ok(self.command(&format!("EXPIRE {key} {ttl}"))?.integer()? == 1)
    }

    fn incr(&mut self, key: &str, by: u64) -> Result<Option<u64>> {
        let number = self.command(&format!("INCRBY {key} {by}"))?.integer()?;
        Ok(Some(
            u64::try_from(number).context("a counter is negative")?,
        ))
    }

    fn flush(&mut self) -> Result<()> {
        self.command("FLUSHALL")?.ok()
    }
}
