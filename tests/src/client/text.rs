//! memcached text and meta (`doc/protocol.txt`).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail, ensure};

use super::{Cache, REPLY_LIMIT, Refused};

/// A text connection.
#[derive(Debug)]
pub struct TextClient {
    stream: BufReader<TcpStream>,
}

/// One `VALUE` of a get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextItem {
    /// Key.
    pub key: String,
    /// Client flags.
    pub flags: u32,
    /// CAS token, when `gets` or `gats` asked.
    pub cas: Option<u64>,
    /// Value.
    pub value: Vec<u8>,
}

impl TextClient {
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

    /// Reads one line without its end.
    ///
    /// # Errors
    /// When the connection ends or nothing comes.
    pub fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        self.stream
            .read_until(b'\n', &mut line)
            .context("reading a line")?;
        let text = line.strip_suffix(b"\r\n").with_context(|| {
            format!(
                "the connection ended inside a line: {:?}",
                String::from_utf8_lossy(&line)
            )
        })?;
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Reads exactly `len` bytes.
    ///
    /// # Errors
    /// When the connection ends first.
    pub fn bytes(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream
            .read_exact(&mut bytes)
            .context("reading a value")?;
        Ok(bytes)
    }

    /// Whether the server closed the connection and sent nothing more.
    ///
    /// # Errors
    /// When nothing happens for a minute.
    pub fn at_end(&mut self) -> Result<bool> {
        match self.stream.fill_buf() {
            Ok(buffer) => Ok(buffer.is_empty()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a command line and reads one line.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn command(&mut self, command: &str) -> Result<String> {
        self.send(format!("{command}\r\n").as_bytes())?;
        self.line()
    }

    /// Sends a command line with a data block and reads one line.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn store(&mut self, command: &str, value: &[u8]) -> Result<String> {
        let mut request = Vec::with_capacity(command.len() + value.len() + 4);
        request.extend_from_slice(command.as_bytes());
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(value);
        request.extend_from_slice(b"\r\n");
        self.send(&request)?;
        self.line()
    }

    /// Sends a retrieval command (`get`, `gets`, `gat`, `gats`) and reads its items.
    ///
    /// # Errors
    /// [`Refused`] for an error line.
    pub fn items(&mut self, command: &str) -> Result<Vec<TextItem>> {
        self.send(format!("{command}\r\n").as_bytes())?;
        self.read_items()
    }

    /// Reads items up to `END`.
    ///
    /// # Errors
    /// [`Refused`] for an error line.
    pub fn read_items(&mut self) -> Result<Vec<TextItem>> {
        let mut items = Vec::new();
        loop {
            let line = self.line()?;
            let mut words = line.split(' ');
            match words.next() {
                Some("END") => return Ok(items),
                Some("VALUE") => {}
                _ => return Err(refusal(line)),
            }
            let (Some(key), Some(flags), Some(len)) = (words.next(), words.next(), words.next())
            else {
                bail!("a VALUE line lacks words: {line:?}");
            };
            let item = TextItem {
                key: key.to_owned(),
                flags: flags.parse()?,
                cas: words.next().map(str::parse).transpose()?,
                value: self.bytes(len.parse()?)?,
            };
            ensure!(
                self.bytes(2)? == b"\r\n",
                "a value is longer than its line says"
            );
            items.push(item);
        }
    }

    /// Reads a `stats` reply.
    ///
    /// # Errors
    /// [`Refused`] for an error line.
    pub fn stats(&mut self, command: &str) -> Result<Vec<(String, String)>> {
        let mut line = self.command(command)?;
        let mut stats = Vec::new();
        while line != "END" {
            let stat = line
                .strip_prefix("STAT ")
                .and_then(|stat| stat.split_once(' '));
            let Some((name, value)) = stat else {
                return Err(refusal(line));
            };
            stats.push((name.to_owned(), value.to_owned()));
            line = self.line()?;
        }
        Ok(stats)
    }
}

/// The error for a line that says no, or that says nothing that is known.
fn refusal(line: String) -> anyhow::Error {
    if ["ERROR", "CLIENT_ERROR ", "SERVER_ERROR "]
        .iter()
        .any(|start| line.starts_with(start))
    {
        Refused(line).into()
    } else {
        anyhow::anyhow!("unexpected reply {line:?}")
    }
}

fn expect(line: String, wanted: &str) -> Result<()> {
    if line == wanted {
        Ok(())
    } else {
        Err(refusal(line))
    }
}

fn one_of(line: String, yes: &str, no: &str) -> Result<bool> {
    match line {
        line if line == yes => Ok(true),
        line if line == no => Ok(false),
        line => Err(refusal(line)),
    }
}

impl Cache for TextClient {
    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self
            .items(&format!("get {key}"))?
            .pop()
            .map(|item| item.value))
    }

    fn set(&mut self, key: &str, value: &[u8], ttl: Option<u32>) -> Result<()> {
        let ttl = ttl.unwrap_or(0);
        expect(
            self.store(&format!("set {key} 0 {ttl} {}", value.len()), value)?,
            "STORED",
        )
    }

    fn delete(&mut self, key: &str) -> Result<bool> {
        one_of(
            self.command(&format!("delete {key}"))?,
            "DELETED",
            "NOT_FOUND",
        )
    }

    fn touch(&mut self, key: &str, ttl: u32) -> Result<bool> {
        one_of(
            self.command(&format!("touch {key} {ttl}"))?,
            "TOUCHED",
            "NOT_FOUND",
        )
    }

    fn incr(&mut self, key: &str, by: u64) -> Result<Option<u64>> {
        let line = self.command(&format!("incr {key} {by}"))?;
        if line == "NOT_FOUND" {
            return Ok(None);
        }
        line.parse().map(Some).map_err(|_| refusal(line))
    }

    fn flush(&mut self) -> Result<()> {
        expect(self.command("flush_all")?, "OK")
    }
}

/// A text connection that speaks meta commands.
#[derive(Debug)]
pub struct MetaClient {
    text: TextClient,
}

impl MetaClient {
    /// Opens a connection.
    ///
    /// # Errors
    /// When the server does not accept it.
    pub fn connect(addr: SocketAddr) -> Result<Self> {
        Ok(Self {
            text: TextClient::connect(addr)?,
        })
    }

    /// Sends a meta get and reads the reply: its line, and the value of a `VA`.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn meta_get(&mut self, command: &str) -> Result<(String, Option<Vec<u8>>)> {
        let line = self.text.command(command)?;
        let Some(rest) = line.strip_prefix("VA ") else {
            return Ok((line, None));
        };
        let len = rest.split(' ').next().unwrap_or_default().parse()?;
        let value = self.text.bytes(len)?;
        ensure!(
            self.text.bytes(2)? == b"\r\n",
            "a value is longer than its line says"
        );
        Ok((line, Some(value)))
    }

    /// The connection for everything else.
    pub const fn text(&mut self) -> &mut TextClient {
        &mut self.text
    }
}

fn meta_flag(line: &str, wanted: &str) -> Result<bool> {
    match line.split(' ').next() {
        Some(word) if word == wanted => Ok(true),
        Some("NF" | "EN") => Ok(false),
        _ => Err(refusal(line.to_owned())),
    }
}

impl Cache for MetaClient {
    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        let (line, value) = self.meta_get(&format!("mg {key} v"))?;
        meta_flag(&line, "VA")?;
        Ok(value)
    }

    fn set(&mut self, key: &str, value: &[u8], ttl: Option<u32>) -> Result<()> {
        let ttl = ttl.unwrap_or(0);
        let line = self
            .text
            .store(&format!("ms {key} {} T{ttl}", value.len()), value)?;
        expect(line, "HD")
    }

    fn delete(&mut self, key: &str) -> Result<bool> {
        meta_flag(&self.text.command(&format!("md {key}"))?, "HD")
    }

    fn touch(&mut self, key: &str, ttl: u32) -> Result<bool> {
        meta_flag(&self.text.command(&format!("mg {key} T{ttl}"))?, "HD")
    }

    fn incr(&mut self, key: &str, by: u64) -> Result<Option<u64>> {
        let (line, value) = self.meta_get(&format!("ma {key} v D{by}"))?;
        meta_flag(&line, "VA")?;
        value
            .map(|digits| Ok(String::from_utf8(digits)?.trim().parse()?))
            .transpose()
    }

    fn flush(&mut self) -> Result<()> {
        self.text.flush()
    }
}
