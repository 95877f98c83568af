//! HTTP/2 frame by frame (RFC 9113), for clients that a library would not be.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// A busy machine needs its time, and some connections end after a minute.
const READ_LIMIT: Duration = Duration::from_secs(180);

/// The beginning of a connection, without the settings that have to follow.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The longest payload that a server takes without another setting.
pub(crate) const FRAME_LEN_MAX: usize = 16 << 10;

/// Kinds of frames.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const CONTINUATION: u8 = 9;

/// Flags of frames.
pub(crate) const NONE: u8 = 0;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// What the server sent.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// A connection. It sends no `WINDOW_UPDATE` by itself.
#[derive(Debug)]
pub(crate) struct Frames {
    stream: TcpStream,
    /// What was read and is no whole frame yet.
    read: Vec<u8>,
}

impl Frames {
    /// Connects, and sends the preface with settings that change nothing.
    pub(crate) fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_LIMIT))?;
        stream.set_write_timeout(Some(READ_LIMIT))?;
        let mut frames = Self {
            stream,
            read: Vec::new(),
        };
        frames.stream.write_all(PREFACE)?;
        frames.send(SETTINGS, NONE, 0, &[])?;
        Ok(frames)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// When the connection is gone.
    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        let len = u32::try_from(payload.len())?.to_be_bytes();
        let mut frame = len[1..].to_vec();
        frame.extend_from_slice(&[kind, flags]);
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        Ok(self.stream.write_all(&frame)?)
    }

    /// The next frame; `None` once the server has closed the connection.
    ///
    /// # Errors
    /// When the server neither sends one nor closes the connection.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take() {
                return Ok(Some(frame));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// The next frame of a kind in a stream.
    ///
    /// # Errors
    /// When the connection ends before.
    pub(crate) fn next_of(&mut self, kind: u8, stream: u32) -> Result<Frame> {
        while let Some(frame) = self.next()? {
            if (frame.kind, frame.stream) == (kind, stream) {
                return Ok(frame);
            }
        }
        bail!("the connection ended")
    }

    /// The frames that have arrived. Waits for none.
    ///
    /// # Errors
    /// When the connection has ended.
    pub(crate) fn arrived(&mut self) -> Result<Vec<Frame>> {
        self.stream.set_nonblocking(true)?;
        let filled = self.fill();
        self.stream.set_nonblocking(false)?;
        match filled {
            Ok(true) => {}
            Ok(false) => bail!("the connection ended"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        Ok(std::iter::from_fn(|| self.take()).collect())
    }

    /// Reads until the server closes the connection.
    ///
    /// # Errors
    /// When it does not.
    pub(crate) fn rest(&mut self) -> Result<Vec<Frame>> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().context("the connection is not closed")? {
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Reads more; false at the end.
    fn fill(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 64 << 10];
        let count = match self.stream.read(&mut bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => return Err(error),
        };
        self.read.extend_from_slice(&bytes[..count]);
        Ok(count > 0)
    }

    /// The first frame of what was read.
    fn take(&mut self) -> Option<Frame> {
        let head: [u8; 9] = self.read.get(..9)?.try_into().ok()?;
        let [a, b, c, kind, _, stream @ ..] = head;
        let end = 9 + u32::from_be_bytes([0, a, b, c]) as usize;
        let payload = self.read.get(9..end)?.to_vec();
        self.read.drain(..end);
        Some(Frame {
            kind,
            stream: u32::from_be_bytes(stream),
            payload,
        })
    }
}

/// Header fields in HPACK, each as a literal with a literal name (RFC 7541, section 6.2.2). Names
/// and values have fewer than 127 bytes.
pub(crate) fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            bytes.push(u8::try_from(text.len()).unwrap_or(0) & 0x7f);
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    bytes
}

/// The fields of a request.
pub(crate) fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    more: &[(&str, &str)],
) -> Vec<u8> {
    let authority = addr.to_string();
    let first = [
        (":method", method),
        (":scheme", "http"),
        (":authority", &authority),
        (":path", path),
    ];
    fields(&[&first, more].concat())
}
