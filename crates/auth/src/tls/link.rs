//! A socket, bare or under TLS, as one type: what is generic over streams is compiled once, not for
//! each of both.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::{Side, Tls, Watched};
use crate::encrypted::HANDSHAKE;

/// The accepted connection of a client.
#[derive(Debug)]
pub enum Link {
    /// Without TLS.
    Bare(TcpStream),
    /// Under TLS, for as long as the client's certificate is good.
    Encrypted(Box<Watched<TcpStream>>),
}

/// Where handshakes are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where the connection is served.
    Here,
    /// On a thread of their own: the thread that serves the connection has other work, which must
    /// not wait for strangers.
    Apart,
}

impl Link {
    /// Makes the handshake.
    ///
    /// # Errors
    /// If the client does not speak TLS, or has no certificate that is good where it needs one.
    pub async fn accept(
        stream: TcpStream,
        tls: &Arc<Tls>,
        config: Arc<ServerConfig>,
        place: Place,
    ) -> io::Result<Self> {
        let handshake = TlsAcceptor::from(config).accept(stream);
        let stream = match tls.handshakes().filter(|_| place == Place::Apart) {
            Some(handshakes) => handshakes.make(handshake).await?,
            None => handshake.await?,
        };
        let stream = Watched::new(stream, tls, Side::Client)?;
        Ok(Self::Encrypted(Box::new(stream)))
    }

    /// Makes the handshake if the client's first byte begins one.
    ///
    /// # Errors
    /// As [`Link::accept`]; `UnexpectedEof` if the client says nothing.
    pub async fn accept_either(
        stream: TcpStream,
        tls: &Arc<Tls>,
        config: Arc<ServerConfig>,
        place: Place,
    ) -> io::Result<Self> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match first == [HANDSHAKE] {
            true => Self::accept(stream, tls, config, place).await,
            false => Ok(Self::Bare(stream)),
        }
    }

    /// Whether it is under TLS.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        matches!(self, Self::Encrypted(_))
    }
}

impl AsyncRead for Link {
    fn poll_read(
        self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Bare(stream) => Pin::new(stream).poll_read(ctx, buf),
            Self::Encrypted(stream) => Pin::new(stream).poll_read(ctx, buf),
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Bare(stream) => Pin::new(stream).poll_write(ctx, buf),
            Self::Encrypted(stream) => Pin::new(stream).poll_write(ctx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Bare(stream) => Pin::new(stream).poll_write_vectored(ctx, bufs),
            Self::Encrypted(stream) => Pin::new(stream).poll_write_vectored(ctx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Bare(stream) => stream.is_write_vectored(),
            Self::Encrypted(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Bare(stream) => Pin::new(stream).poll_flush(ctx),
            Self::Encrypted(stream) => Pin::new(stream).poll_flush(ctx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Bare(stream) => Pin::new(stream).poll_shutdown(ctx),
            Self::Encrypted(stream) => Pin::new(stream).poll_shutdown(ctx),
        }
    }
}
