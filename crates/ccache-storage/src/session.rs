//! One connection of a ccache process: requests and replies in turn.

use std::io;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::clock::Clock;
use crate::protocol::{self, GREETING, HEAD_LEN_MAX, NOOP, OK, Request};
use crate::service::{Refused, Service};

/// For how long ccache may pause within a request, and leave a reply unread. ccache itself waits
/// for ten seconds.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);

/// For how long a value waits for memory before it is dropped.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(5);

/// For how long a connection may have no request. A compilation lies between a get and its put.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Bytes that are read at a time.
const PIECE_LEN: usize = 16 << 10;

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// ccache is done with the connection.
    Closed,
    /// ccache wants the helper to end.
    Stop,
}

/// A connection, and what was read from it ahead.
struct Wire<S> {
    stream: S,
    buffer: BytesMut,
}

/// Serves a connection until ccache closes it. Its requests begin and end by `clock`.
///
/// # Errors
/// If the connection breaks, stalls, or has what is no request.
pub(crate) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    service: &Service,
    clock: &Clock,
) -> io::Result<Ended> {
    let mut wire = Wire {
        stream,
        buffer: BytesMut::with_capacity(HEAD_LEN_MAX),
    };
    wire.write(&GREETING).await?;
    while let Some(request) = wire.request().await? {
        clock.begin();
        let replied = wire.reply(request, service).await;
        clock.end();
        if replied? == Ended::Stop {
            return Ok(Ended::Stop);
        }
    }
    Ok(Ended::Closed)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// The next request without its value. None at the end of the input between two requests.
    async fn request(&mut self) -> io::Result<Option<Request>> {
        loop {
            match Request::parse(&self.buffer) {
                Ok(Some((request, len))) => {
                    self.buffer.advance(len);
                    return Ok(Some(request));
                }
                Ok(None) => (),
                Err(malformed) => {
                    self.write(&protocol::error(&malformed.to_string())).await?;
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
            let limit = match self.buffer.is_empty() {
                true => IDLE_TIMEOUT,
                false => PROGRESS_TIMEOUT,
            };
            if self.read(limit).await? == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    async fn reply(&mut self, request: Request, service: &Service) -> io::Result<Ended> {
        match request {
            Request::Get { key } => match service.get(&key).await {
                Ok(Some((value, _charge))) => {
                    self.write(&protocol::value_head(value.len())).await?;
                    self.write(&value).await?;
                }
                Ok(None) => self.write(&[NOOP]).await?,
                Err(error) => self.refuse(error).await?,
            },
            Request::Put {
                key,
                mode,
                value_len,
            } => {
                let charge = timeout(MEMORY_TIMEOUT, service.charge(value_len)).await;
                let Some(_charge) = charge.ok().flatten() else {
                    self.discard(value_len).await?;
                    self.write(&[NOOP]).await?;
                    return Ok(Ended::Closed);
                };
                let value = self.value(value_len).await?;
                let stored = service.put(&key, mode, value).await;
                self.write_done(stored).await?;
            }
            Request::Remove { key } => {
                let removed = service.remove(&key).await;
                self.write_done(removed).await?;
            }
            Request::Exists { key } => match service.exists(&key).await {
                Ok(exists) => self.write(&[OK, exists.into()]).await?,
                Err(error) => self.refuse(error).await?,
            },
            Request::Info => {
                let identity = concat!("ccache-storage-fonn ", env!("CARGO_PKG_VERSION"));
                let reply = protocol::info(identity, &service.diagnostics());
                self.write(&reply).await?;
            }
            Request::Stop => {
                // ccache may be gone already. The helper ends all the same.
                let _ = self.write(&[OK]).await;
                return Ok(Ended::Stop);
            }
        }
        Ok(Ended::Closed)
    }

    async fn write_done(&mut self, done: Result<bool, Refused<'_>>) -> io::Result<()> {
        match done {
            Ok(true) => self.write(&[OK]).await,
            Ok(false) => self.write(&[NOOP]).await,
            Err(error) => self.refuse(error).await,
        }
    }

    async fn refuse(&mut self, error: Refused<'_>) -> io::Result<()> {
        self.write(&protocol::error(&error.to_string())).await
    }

    /// Reads more into the buffer; 0 at the end of the input.
    async fn read(&mut self, limit: Duration) -> io::Result<usize> {
        self.buffer.reserve(PIECE_LEN);
        timeout(limit, self.stream.read_buf(&mut self.buffer)).await?
    }

    /// Reads a value that is charged already. Its memory is its own, so that the buffer stays
    /// small.
    async fn value(&mut self, value_len: u64) -> io::Result<Bytes> {
        let len = usize::try_from(value_len).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut value = BytesMut::with_capacity(len);
        let here = len.min(self.buffer.len());
        value.extend_from_slice(&self.buffer[..here]);
        self.buffer.advance(here);
        while value.len() < len {
            let left = len - value.len();
            let mut rest = (&mut value).limit(left);
            let read = timeout(PROGRESS_TIMEOUT, self.stream.read_buf(&mut rest)).await??;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(value.freeze())
    }

    /// Reads a value and drops it, so that the next request can be read.
    async fn discard(&mut self, value_len: u64) -> io::Result<()> {
        let mut left = value_len;
        loop {
            let here = usize::try_from(left).unwrap_or(usize::MAX);
            let here = here.min(self.buffer.len());
            self.buffer.advance(here);
            left -= here as u64;
            if left == 0 {
                return Ok(());
            }
            if self.read(PROGRESS_TIMEOUT).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = timeout(PROGRESS_TIMEOUT, self.stream.write(bytes)).await??;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[written..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
