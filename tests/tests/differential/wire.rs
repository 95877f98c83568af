//! Connections that return replies as the bytes that they are.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::packet::HEADER_LEN;

/// A server that does not send a byte for so long has hung.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a read that failed or timed out is reported with.
fn no_answer(read: &[u8]) -> String {
    let read = read.escape_ascii();
    format!("no complete reply within {PATIENCE:?}; it begins with \"{read}\"")
}

/// One connection to one of the two servers.
pub struct Wire {
    stream: BufReader<TcpStream>,
}

impl Wire {
    pub fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// A connection that has said which protocol it speaks.
    pub fn connect_text(addr: SocketAddr) -> Result<Self> {
        let mut wire = Self::connect(addr)?;
        wire.send(b"mn\r\n")?;
        wire.until_no_op()?;
        Ok(wire)
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.get_mut().write_all(bytes)?;
        Ok(())
    }

    fn line(&mut self, out: &mut Vec<u8>) -> Result<usize> {
        let before = out.len();
        let read = self.stream.read_until(b'\n', out);
        read.with_context(|| no_answer(out))?;
        ensure!(
            out.ends_with(b"\r\n"),
            "the connection ended within a line, after {}",
            out.escape_ascii()
        );
        Ok(before)
    }

    fn bytes(&mut self, count: usize, out: &mut Vec<u8>) -> Result<()> {
        let before = out.len();
        out.resize(before + count, 0);
        let read = self.stream.read_exact(&mut out[before..]);
        read.with_context(|| no_answer(&out[..before]))
    }

    /// One RESP reply.
    pub fn resp(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut left = 1_usize;
        while left > 0 {
            left -= 1;
            let start = self.line(&mut out)?;
            let sigil = out[start];
            let text = std::str::from_utf8(&out[start + 1..out.len() - 2])?;
            let count = || text.parse::<i64>().context("a count in a reply");
            match sigil {
                b'$' | b'=' => {
                    if let Ok(len) = usize::try_from(count()?) {
                        self.bytes(len + 2, &mut out)?;
                    }
                }
                b'*' | b'~' | b'>' => left += usize::try_from(count()?).unwrap_or(0),
                b'%' => left += 2 * usize::try_from(count()?).unwrap_or(0),
                _ => {}
            }
        }
        Ok(out)
    }

    /// Everything up to the end of the connection.
    pub fn until_end(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        match self.stream.read_to_end(&mut out) {
            Ok(_) => Ok(out),
            // The server closed the connection without reading all that was sent.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(out),
            Err(error) => Err(error).with_context(|| no_answer(&out)),
        }
    }

    /// Everything up to the answer of `mn`, which the caller has sent behind its command.
    pub fn until_no_op(&mut self) -> Result<Vec<u8>> {
        const NO_OP: &[u8] = b"MN\r\n";
        let mut out = Vec::new();
        loop {
            let start = self.line(&mut out)?;
            if &out[start..] == NO_OP {
                out.truncate(start);
                return Ok(out);
            }
            let words: Vec<&[u8]> = out[start..out.len() - 2]
                .split(|byte| *byte == b' ')
                .collect();
            let len = match words.as_slice() {
                [b"VALUE", _, _, len, ..] | [b"VA", len, ..] => Some(std::str::from_utf8(len)?),
                _ => None,
            };
            if let Some(len) = len {
                self.bytes(len.parse::<usize>()? + 2, &mut out)?;
            }
        }
    }

    /// Waits for more bytes or the end of the connection. Whether it is the end.
    pub fn is_at_end(&mut self) -> Result<bool> {
        let read = self.stream.fill_buf();
        Ok(read.with_context(|| no_answer(b""))?.is_empty())
    }

    /// One packet of the binary protocol.
    pub fn packet(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.bytes(HEADER_LEN, &mut out)?;
        let len = u32::from_be_bytes([out[8], out[9], out[10], out[11]]);
        self.bytes(len as usize, &mut out)?;
        Ok(out)
    }
}
