//! Whether the certificate of a connection that exists is still good.
//!
//! A handshake judges a certificate once. A [`Standing`] judges it again when the files of [`Tls`]
//! were read anew, and once a minute. So a connection outlives neither its authority nor a
//! revocation, and its expiry by a minute at most.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::TlsStream;
use tokio_stream::Stream as _;
use tokio_stream::wrappers::WatchStream;

use super::Tls;

/// A certificate is judged at least so often, since it may have expired.
const PERIOD: Duration = Duration::from_secs(60);

/// What the other end is, to us.
#[derive(Clone, Debug)]
pub enum Side {
    /// It called us.
    Client,
    /// We called it, by this name.
    Server(ServerName<'static>),
}

/// The certificate of the other end, which was good when this was made.
#[derive(Debug)]
pub struct Standing {
    tls: Arc<Tls>,
    side: Side,
    chain: Vec<CertificateDer<'static>>,
    /// The reading of the files by which it was last judged.
    generation: u64,
    changes: WatchStream<u64>,
    due: Pin<Box<Sleep>>,
}

impl Standing {
    /// Judges the certificate that a handshake took: a session that was resumed may have one that
    /// is no longer good. None if the other end showed none, or if this program asks for none.
    ///
    /// # Errors
    /// If it is not good.
    pub fn of(
        tls: &Arc<Tls>,
        side: Side,
        chain: Option<&[CertificateDer<'static>]>,
    ) -> io::Result<Option<Self>> {
        let Some(chain) = chain else {
            return Ok(None);
        };
        if tls.client().is_none() {
            return Ok(None);
        }
        let mut standing = Self {
            tls: Arc::clone(tls),
            side,
            chain: chain.to_vec(),
            generation: 0,
            changes: WatchStream::from_changes(tls.generations()),
            due: Box::pin(sleep_until(Instant::now())),
        };
        standing.judge()?;
        Ok(Some(standing))
    }

    /// Judges the certificate again, if that is due.
    ///
    /// # Errors
    /// `PermissionDenied` if it is no longer good.
    pub fn check(&mut self) -> io::Result<()> {
        let is_current = self.generation == self.tls.generation();
        match is_current && Instant::now() < self.due.deadline() {
            true => Ok(()),
            false => self.judge().inspect_err(|error| {
                tracing::info!(side = ?self.side, %error, "a connection ends: its certificate is no longer good");
            }),
        }
    }

    /// Ready with an error once the certificate is no longer good.
    pub fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            while let Poll::Ready(Some(_)) = Pin::new(&mut self.changes).poll_next(cx) {}
            if let Err(error) = self.check() {
                return Poll::Ready(error);
            }
            if self.due.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn judge(&mut self) -> io::Result<()> {
        let generation = self.tls.generation();
        self.judge_at(SystemTime::now())?;
        self.generation = generation;
        self.due.as_mut().reset(Instant::now() + PERIOD);
        Ok(())
    }

    fn judge_at(&self, now: SystemTime) -> io::Result<()> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH);
        let now = UnixTime::since_unix_epoch(now.unwrap_or_default());
        let judged = self.tls.judge(&self.side, &self.chain, now);
        judged.map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))
    }
}

/// A TLS stream that ends once the certificate of the other end is no longer good.
///
/// Reads notice it. What is written meanwhile may still be sent, so a protocol on it has to read
/// all the time, as HTTP does.
#[derive(Debug)]
pub struct Watched<S> {
    stream: TlsStream<S>,
    standing: Option<Standing>,
}

impl<S> Watched<S> {
    /// A stream whose handshake was made.
    ///
    /// # Errors
    /// As [`Standing::of`].
    pub fn new(stream: impl Into<TlsStream<S>>, tls: &Arc<Tls>, side: Side) -> io::Result<Self> {
        let stream = stream.into();
        let standing = Standing::of(tls, side, stream.get_ref().1.peer_certificates())?;
        Ok(Self { stream, standing })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, standing } = self.get_mut();
        if let Some(standing) = standing
            && let Poll::Ready(error) = standing.poll_lost(cx)
        {
            return Poll::Ready(Err(error));
        }
        Pin::new(stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
