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
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Most connections at a time. More wait in the backlog of the operating system.
const CONNECTIONS_MAX: usize = 2048;
/// A connection from which nothing comes for so long is closed. Those in use are tested more often
/// ([`TEST_PERIOD`]), so it hits who says nothing at all.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How often a connection is tested.
pub(super) const TEST_PERIOD: Duration = Duration::from_secs(10);
/// Wait after the operating system could not give a connection.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);

/// Accepts connections until the other end of the channel is gone.
pub(super) async fn accept(listener: TcpListener, out: mpsc::Sender<io::Result<Guarded>>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if out.send(Ok(Guarded::new(stream, place))).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection of a member failed");
                    tokio::time::sleep(ACCEPT_WAIT).await;
                }
            },
            () = out.closed() => return,
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

/// A connection with its place among all, and its time to say something.
#[derive(Debug)]
pub(super) struct Guarded {
    stream: TcpStream,
    silence: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Guarded {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Self {
        // Without it small answers wait for more; with it the worst is a few more packets.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "setting TCP_NODELAY failed");
        }
        Self {
            stream,
            silence: Box::pin(tokio::time::sleep(SILENCE_MAX)),
            _place: place,
        }
    }
}

impl Connected for Guarded {
    type ConnectInfo = Option<SocketAddr>;

    fn connect_info(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(ctx, buf) {
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
        Pin::new(&mut self.get_mut().stream).poll_write(ctx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(ctx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(ctx)
    }
}
