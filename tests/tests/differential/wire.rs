//! Connections that return replies as the bytes that they are.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// A server that stands still for so long has hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// One connection to one of the two servers.
pub struct Wire {
    stream: BufReader<TcpStream>,
}

impl Wire {
    pub fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
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
        self.stream.read_until(b'\n', out)?;
        ensure!(out.ends_with(b"\r\n"), "the connection ended within a line");
        Ok(before)
    }

    fn bytes(&mut self, count: usize, out: &mut Vec<u8>) -> Result<()> {
        let before = out.len();
        out.resize(before + count, 0);
        self.stream.read_exact(&mut out[before..])?;
        Ok(())
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
                b'*' | b'~' => left += usize::try_from(count()?).unwrap_or(0),
                b'%' => left += 2 * usize::try_from(count()?).unwrap_or(0),
                _ => {}
            }
        }
        Ok(out)
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
}
