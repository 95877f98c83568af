//! The connections that are accepted on `--cluster-listen`: so many and no more, and none that is silent.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use fonn_runtime::tls::{Peers, Tls};

/// Most connections at a time. More wait in the backlog of the operating system.
const CONNECTIONS_MAX: usize = 2048;
/// A connection from which nothing comes for so long is closed. Those in use are tested more often
/// ([`TEST_PERIOD`]), so it hits who says nothing at all.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long a connection is idle before it is tested, and how long the answer may take: a router or a member that lost its
/// link counts as gone after twice this time.
pub(super) const TEST_PERIOD: Duration = Duration::from_secs(1);
/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Wait after the operating system could not give a connection.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);

/// Accepts connections until the other end of the channel is gone. With `tls`, nobody comes in without a
/// certificate of the members' authority.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    out: mpsc::Sender<io::Result<Guarded>>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // As many as there are places at most: each has one.
    let mut handshakes = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (tls, out) = (tls.clone(), out.clone());
                    handshakes.spawn(async move {
                        if let Some(guarded) = begin(stream, tls, place).await {
                            // Without a receiver nobody is served any more.
                            let _ = out.send(Ok(guarded)).await;
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection of a member failed");
                    tokio::time::sleep(ACCEPT_WAIT).await;
                }
            },
            Some(_) = handshakes.join_next() => {}
            () = out.closed() => return,
        }
    }
}

/// Makes the handshake, if there is one; None if the other end is no member.
async fn begin(
    stream: TcpStream,
    tls: Option<Arc<Tls>>,
    place: OwnedSemaphorePermit,
) -> Option<Guarded> {
    // Without it small answers wait for more; with it the worst is a few more packets.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "setting TCP_NODELAY failed");
    }
    let from = stream.peer_addr().ok();
    let Some(tls) = tls else {
        return Some(Guarded::new(Link::Bare(stream), from, place));
    };
    let acceptor = TlsAcceptor::from(tls.server(Peers::Certified));
    match tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(Guarded::new(Link::Encrypted(Box::new(stream)), from, place)),
        Ok(Err(error)) => {
            tracing::warn!(?from, %error, "a connection to the cluster port was refused");
            None
        }
        Err(_) => {
            tracing::debug!(
                ?from,
                "a connection to the cluster port began no TLS in time"
            );
            None
        }
    }
}

/// The connections as a server takes them.
pub(super) fn channel() -> (
    mpsc::Sender<io::Result<Guarded>>,
    ReceiverStream<io::Result<Guarded>>,
) {
    let (tx, rx) = mpsc::channel(1);
    (tx, ReceiverStream::new(rx))
}

/// A socket, bare or under TLS.
#[derive(Debug)]
enum Link {
    Bare(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

/// A connection with its place among all, and its time to say something.
#[derive(Debug)]
pub(super) struct Guarded {
    link: Link,
    from: Option<SocketAddr>,
    silence: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Guarded {
    fn new(link: Link, from: Option<SocketAddr>, place: OwnedSemaphorePermit) -> Self {
        Self {
            link,
            from,
            silence: Box::pin(tokio::time::sleep(SILENCE_MAX)),
            _place: place,
        }
    }
}

impl Connected for Guarded {
    type ConnectInfo = Option<SocketAddr>;

    fn connect_info(&self) -> Option<SocketAddr> {
        self.from
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = match &mut this.link {
            Link::Bare(stream) => Pin::new(stream).poll_read(ctx, buf),
            Link::Encrypted(stream) => Pin::new(stream).poll_read(ctx, buf),
        };
        if let Poll::Ready(read) = read {
            this.silence.as_mut().reset(Instant::now() + SILENCE_MAX);
            return Poll::Ready(read);
        }
        ready!(this.silence.as_mut().poll(ctx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().link {
            Link::Bare(stream) => Pin::new(stream).poll_write(ctx, buf),
            Link::Encrypted(stream) => Pin::new(stream).poll_write(ctx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().link {
            Link::Bare(stream) => Pin::new(stream).poll_flush(ctx),
            Link::Encrypted(stream) => Pin::new(stream).poll_flush(ctx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().link {
            Link::Bare(stream) => Pin::new(stream).poll_shutdown(ctx),
            Link::Encrypted(stream) => Pin::new(stream).poll_shutdown(ctx),
        }
    }
}
