//! HTTP/1.1 as a build tool speaks it: one connection, request after request.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};

use anyhow::{Context, Result, bail};

use super::REPLY_LIMIT;

/// A connection to the HTTP port for build tools.
#[derive(Debug)]
pub struct HttpClient {
    stream: BufReader<TcpStream>,
    host: String,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Status code.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

impl HttpAnswer {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl HttpClient {
    /// Connects.
    ///
    /// # Errors
    /// When the server does not accept it.
    pub fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, REPLY_LIMIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        stream.set_write_timeout(Some(REPLY_LIMIT))?;
        Ok(Self {
            stream: BufReader::new(stream),
            host: addr.to_string(),
        })
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.get_mut().write_all(bytes)?)
    }

    /// Sends the head of a request, with a `Host` if none is given.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn send_head(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) -> Result<()> {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"))
        {
            head.push_str(&format!("host: {}\r\n", self.host));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.send(format!("{head}\r\n").as_bytes())
    }

    /// Reads a response; that to a HEAD has no body.
    ///
    /// # Errors
    /// When it is malformed or does not come.
    pub fn answer(&mut self, has_body: bool) -> Result<HttpAnswer> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|it| it.parse().ok());
        let status = status.with_context(|| format!("no status in {line:?}"))?;
        let mut headers = Vec::new();
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut answer = HttpAnswer {
            status,
            headers,
            body: Vec::new(),
        };
        let is_bare = status < 200 || status == 204 || !has_body;
        match answer.header("content-length") {
            _ if is_bare => {}
            Some(len) => {
                answer.body = vec![0; len.parse()?];
                self.stream.read_exact(&mut answer.body)?;
            }
            None => bail!("a response of unknown length: {answer:?}"),
        }
        Ok(answer)
    }

    /// One request and its response.
    ///
    /// # Errors
    /// As [`HttpClient::answer`].
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<HttpAnswer> {
        let len = body.len().to_string();
        let headers = match body.is_empty() && method != "PUT" {
            true => headers.to_vec(),
            false => [headers, &[("content-length", &*len)]].concat(),
        };
        self.send_head(method, path, &headers)?;
        self.send(body)?;
        self.answer(method != "HEAD")
    }

    /// The status of a PUT.
    ///
    /// # Errors
    /// As [`HttpClient::answer`].
    pub fn put(&mut self, path: &str, value: &[u8]) -> Result<u16> {
        Ok(self.request("PUT", path, &[], value)?.status)
    }

    /// The value at a path; `None` where a GET is a 404.
    ///
    /// # Errors
    /// As [`HttpClient::answer`], and for any other status.
    pub fn get(&mut self, path: &str) -> Result<Option<Vec<u8>>> {
        let answer = self.request("GET", path, &[], b"")?;
        match answer.status {
            200 => Ok(Some(answer.body)),
            404 => Ok(None),
            status => bail!("GET {path}: {status}"),
        }
    }

    /// Says that nothing more comes.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn end_writing(&mut self) -> Result<()> {
        Ok(self.stream.get_ref().shutdown(Shutdown::Write)?)
    }

    /// Whether the server has closed the connection.
    ///
    /// # Errors
    /// When it neither closes it nor sends anything.
    pub fn at_end(&mut self) -> Result<bool> {
        match self.stream.fill_buf() {
            Ok(rest) => Ok(rest.is_empty()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}
