//! The limit of a server with one `epoll` loop: a server that does nothing with a request.
//!
//! It counts the bytes that come, and sends as many fixed replies as whole requests came. Each wake
//! costs one `recv` and one `send`, as with Redis. What it needs is needed by the kernel.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::cells::Work;
use crate::load::LoadOptions;
use crate::process::{Daemon, answers, free_address};

const LISTENER: Token = Token(usize::MAX);
/// Bytes that a `recv` takes at most.
const READ_LEN: usize = 1 << 20;
const START_LIMIT: Duration = Duration::from_secs(60);

/// What the server takes for a request, and what it answers.
#[derive(Clone, Copy, Debug)]
pub struct LimitOptions {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Length of a request in bytes.
    pub request_len: usize,
    /// Length of the value in each reply in bytes; `None` for sets.
    pub value_len: Option<usize>,
}

/// A running server that does nothing.
#[derive(Debug)]
pub(super) struct Limit {
    pub(super) daemon: Daemon,
    pub(super) addr: SocketAddr,
}

impl Limit {
    /// Starts this program as such a server.
    ///
    /// # Errors
    /// When it does not answer within a minute.
    pub(super) fn start(work: &Work) -> Result<Self> {
        let addr = free_address()?;
        let is_get = work.get_ratio > 0.0;
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.args(["limit", "--listen", &addr.to_string(), "--request-len"]);
        command.arg(request_len(work).to_string());
        if is_get {
            command.args(["--value-len", &work.value_len.to_string()]);
        }
        let mut daemon = Daemon::spawn("limit", &mut command)?;
        let request = vec![b'x'; request_len(work)];
        let reply: &[u8] = if is_get { b"$" } else { b"+" };
        daemon.wait_until("answer", START_LIMIT, || answers(addr, &request, reply))?;
        Ok(Self { daemon, addr })
    }
}

/// Length in bytes of a request of the load generator over RESP.
fn request_len(work: &Work) -> usize {
    let key_len = LoadOptions::KEY_LEN;
    let key = format!("${key_len}\r\n\r\n").len() + key_len;
    if work.get_ratio > 0.0 {
        return "*2\r\n$3\r\nGET\r\n".len() + key;
    }
    let value = format!("${}\r\n\r\n", work.value_len).len() + work.value_len;
    "*3\r\n$3\r\nSET\r\n".len() + key + value
}

struct Connection {
    stream: TcpStream,
    /// Bytes of a request that is not whole yet.
    read_len: usize,
    /// Bytes of replies that are not sent yet.
    unsent_len: usize,
}

/// Serves until the process is killed.
///
/// # Errors
/// When it cannot listen or wait.
pub fn serve_limit(options: &LimitOptions) -> Result<()> {
    let reply = options.value_len.map_or_else(
        || b"+OK\r\n".to_vec(),
        |len| {
            let mut reply = format!("${len}\r\n").into_bytes();
            reply.resize(reply.len() + len, b'v');
            reply.extend_from_slice(b"\r\n");
            reply
        },
    );
    // Of pipelined short replies, as many as one `send` takes.
    let replies = reply.repeat((READ_LEN / reply.len()).clamp(1, 1024));
    let mut listener = TcpListener::bind(options.addr).context("listening")?;
    let mut poll = Poll::new()?;
    let interest = Interest::READABLE;
    poll.registry()
        .register(&mut listener, LISTENER, interest)?;
    let (mut connections, mut buffer) = (Vec::new(), vec![0; READ_LEN]);
    let mut events = Events::with_capacity(256);
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    let token = Token(connections.len());
                    let both = Interest::READABLE | Interest::WRITABLE;
                    poll.registry().register(&mut stream, token, both)?;
                    connections.push(Some(Connection {
                        stream,
                        read_len: 0,
                        unsent_len: 0,
                    }));
                }
                continue;
            }
            let Some(slot) = connections.get_mut(event.token().0) else {
                continue;
            };
            let lives = slot.as_mut().is_some_and(|connection| {
                let done = connection.serve(options.request_len, &reply, &replies, &mut buffer);
                done.unwrap_or(false)
            });
            if !lives {
                *slot = None;
            }
        }
    }
}

impl Connection {
    /// Reads what came and answers it; whether the connection lives on.
    fn serve(
        &mut self,
        request_len: usize,
        reply: &[u8],
        replies: &[u8],
        buffer: &mut [u8],
    ) -> std::io::Result<bool> {
        loop {
            self.send(reply, replies)?;
            match self.stream.read(buffer) {
                Ok(0) => return Ok(false),
                Ok(len) => {
                    self.read_len += len;
                    self.unsent_len += self.read_len / request_len * reply.len();
                    self.read_len %= request_len;
                    self.send(reply, replies)?;
                    // A short read has emptied the socket; the next event comes with new bytes.
                    if len < buffer.len() {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&mut self, reply: &[u8], replies: &[u8]) -> std::io::Result<()> {
        while self.unsent_len > 0 {
            // Replies repeat, so what is left begins at the same place of one of them.
            let from = (reply.len() - self.unsent_len % reply.len()) % reply.len();
            let until = replies.len().min(from + self.unsent_len);
            match self
                .stream
                .write(replies.get(from..until).unwrap_or_default())
            {
                Ok(len) => self.unsent_len -= len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
