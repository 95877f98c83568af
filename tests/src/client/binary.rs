//! memcached binary (`BinaryProtocolRevamped` wiki page of memcached).

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, ensure};

use super::{Cache, REPLY_LIMIT, Refused};

const HEADER_LEN: usize = 24;

/// Operation codes.
#[allow(missing_docs, reason = "the names are those of the protocol text")]
pub mod opcode {
    pub const GET: u8 = 0x00;
    pub const SET: u8 = 0x01;
    pub const ADD: u8 = 0x02;
    pub const REPLACE: u8 = 0x03;
    pub const DELETE: u8 = 0x04;
    pub const INCREMENT: u8 = 0x05;
    pub const DECREMENT: u8 = 0x06;
    pub const QUIT: u8 = 0x07;
    pub const FLUSH: u8 = 0x08;
    pub const GETQ: u8 = 0x09;
    pub const NOOP: u8 = 0x0a;
    pub const VERSION: u8 = 0x0b;
    pub const GETK: u8 = 0x0c;
    pub const GETKQ: u8 = 0x0d;
    pub const APPEND: u8 = 0x0e;
    pub const PREPEND: u8 = 0x0f;
    pub const STAT: u8 = 0x10;
    pub const SETQ: u8 = 0x11;
    pub const TOUCH: u8 = 0x1c;
    pub const GAT: u8 = 0x1d;
}

/// Reply states.
#[allow(missing_docs, reason = "the names are those of the protocol text")]
pub mod status {
    pub const OK: u16 = 0x00;
    pub const NOT_FOUND: u16 = 0x01;
    pub const EXISTS: u16 = 0x02;
    pub const TOO_LARGE: u16 = 0x03;
    pub const INVALID: u16 = 0x04;
    pub const NOT_STORED: u16 = 0x05;
    pub const NOT_A_NUMBER: u16 = 0x06;
    pub const UNKNOWN_COMMAND: u16 = 0x81;
    pub const OUT_OF_MEMORY: u16 = 0x82;
}

/// A binary connection.
#[derive(Debug)]
pub struct BinaryClient {
    stream: BufReader<TcpStream>,
}

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryReply {
    /// Operation code.
    pub opcode: u8,
    /// State.
    pub status: u16,
    /// What the request carried.
    pub opaque: u32,
    /// CAS token.
    pub cas: u64,
    /// Extras.
    pub extras: Vec<u8>,
    /// Key.
    pub key: Vec<u8>,
    /// Value, or the text of an error.
    pub value: Vec<u8>,
}

impl BinaryReply {
    /// Client flags of a get reply.
    #[must_use]
    pub fn flags(&self) -> Option<u32> {
        Some(u32::from_be_bytes(*self.extras.first_chunk()?))
    }
}

/// The bytes of a request.
#[must_use]
pub fn request(
    opcode: u8,
    key: &[u8],
    extras: &[u8],
    value: &[u8],
    cas: u64,
    opaque: u32,
) -> Vec<u8> {
    let body = extras.len() + key.len() + value.len();
    let mut bytes = Vec::with_capacity(HEADER_LEN + body);
    bytes.extend_from_slice(&[0x80, opcode]);
    bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    bytes.extend_from_slice(&(body as u32).to_be_bytes());
    bytes.extend_from_slice(&opaque.to_be_bytes());
    bytes.extend_from_slice(&cas.to_be_bytes());
    bytes.extend_from_slice(extras);
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    bytes
}

impl BinaryClient {
    /// Opens a connection.
    ///
    /// # Errors
    /// When the server does not accept it.
    pub fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, REPLY_LIMIT).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        stream.set_write_timeout(Some(REPLY_LIMIT))?;
        Ok(Self {
            stream: BufReader::with_capacity(64 << 10, stream),
        })
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

    /// Reads one reply.
    ///
    /// # Errors
    /// When the connection ends, or the bytes contradict themselves.
    pub fn reply(&mut self) -> Result<BinaryReply> {
        let mut header = [0; HEADER_LEN];
        self.stream
            .read_exact(&mut header)
            .context("reading a header")?;
        ensure!(header[0] == 0x81, "not a reply header: {header:02x?}");
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let long = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (key_len, extras_len, body_len) = (
            usize::from(word(2)),
            usize::from(header[4]),
            long(8) as usize,
        );
        ensure!(
            key_len + extras_len <= body_len,
            "lengths contradict each other: {header:02x?}"
        );
        let mut extras = vec![0; body_len];
        self.stream
            .read_exact(&mut extras)
            .context("reading a body")?;
        let mut key = extras.split_off(extras_len);
        let value = key.split_off(key_len);
        let cas = (u64::from(long(16)) << 32) | u64::from(long(20));
        Ok(BinaryReply {
            opcode: header[1],
            status: word(6),
            opaque: long(12),
            cas,
            extras,
            key,
            value,
        })
    }

    /// Sends a request and reads its reply.
    ///
    /// # Errors
    /// When the connection is broken or the reply belongs to another request.
    pub fn call(
        &mut self,
        opcode: u8,
        key: &str,
        extras: &[u8],
        value: &[u8],
        cas: u64,
    ) -> Result<BinaryReply> {
        const OPAQUE: u32 = 0x0bad_cafe;
        self.send(&request(opcode, key.as_bytes(), extras, value, cas, OPAQUE))?;
        let reply = self.reply()?;
        ensure!(
            reply.opcode == opcode && reply.opaque == OPAQUE,
            "the reply belongs to another request: {reply:?}"
        );
        Ok(reply)
    }

    /// Sends a request, quiet or not, and reads all that is said to it.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn answers(
        &mut self,
        opcode: u8,
        key: &str,
        extras: &[u8],
        value: &[u8],
    ) -> Result<Vec<BinaryReply>> {
        /// Of the request behind it, which is always answered.
        const END: u32 = 0x0e0d;
        let mut both = request(opcode, key.as_bytes(), extras, value, 0, 0);
        both.extend(request(opcode::NOOP, b"", &[], &[], 0, END));
        self.send(&both)?;
        let mut answers = Vec::new();
        loop {
            match self.reply()? {
                end if end.opaque == END => return Ok(answers),
                answer => answers.push(answer),
            }
        }
    }

    /// Stores a value with flags; `cas` 0 means unconditionally.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn store(
        &mut self,
        opcode: u8,
        key: &str,
        value: &[u8],
        flags: u32,
        expiry: u32,
        cas: u64,
    ) -> Result<BinaryReply> {
        let mut extras = flags.to_be_bytes().to_vec();
        extras.extend_from_slice(&expiry.to_be_bytes());
        self.call(opcode, key, &extras, value, cas)
    }

    fn found(reply: BinaryReply) -> Result<Option<BinaryReply>> {
        match reply.status {
            status::OK => Ok(Some(reply)),
            status::NOT_FOUND => Ok(None),
            status => {
                let text = String::from_utf8_lossy(&reply.value);
                Err(Refused(format!("status {status:#06x} {text}")).into())
            }
        }
    }

    fn done(reply: BinaryReply) -> Result<()> {
        match Self::found(reply)? {
            Some(_) => Ok(()),
            None => Err(Refused("not found".to_owned()).into()),
        }
    }
}

impl Cache for BinaryClient {
    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        let reply = self.call(opcode::GET, key, &[], &[], 0)?;
        Ok(Self::found(reply)?.map(|reply| reply.value))
    }

    fn set(&mut self, key: &str, value: &[u8], ttl: Option<u32>) -> Result<()> {
        Self::done(self.store(opcode::SET, key, value, 0, ttl.unwrap_or(0), 0)?)
    }

    fn delete(&mut self, key: &str) -> Result<bool> {
        let reply = self.call(opcode::DELETE, key, &[], &[], 0)?;
        Ok(Self::found(reply)?.is_some())
    }

    fn touch(&mut self, key: &str, ttl: u32) -> Result<bool> {
        let reply = self.call(opcode::TOUCH, key, &ttl.to_be_bytes(), &[], 0)?;
        Ok(Self::found(reply)?.is_some())
    }

    fn incr(&mut self, key: &str, by: u64) -> Result<Option<u64>> {
        // Expiry 0xffffffff: do not create.
        let mut extras = by.to_be_bytes().to_vec();
        extras.extend_from_slice(&[0; 8]);
        extras.extend_from_slice(&[0xff; 4]);
        let reply = self.call(opcode::INCREMENT, key, &extras, &[], 0)?;
        let Some(reply) = Self::found(reply)? else {
            return Ok(None);
        };
        let number = reply
            .value
            .first_chunk()
            .context("a counter reply has eight bytes")?;
        Ok(Some(u64::from_be_bytes(*number)))
    }

    fn flush(&mut self) -> Result<()> {
        Self::done(self.call(opcode::FLUSH, "", &[], &[], 0)?)
    }
}
