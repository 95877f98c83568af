//! A client's socket: TCP or Unix.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use fonn_auth::Security;
use fonn_auth::encrypted::{Encrypted, SLICES_MAX, Stage};
use fonn_proto::Out;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use super::low_water;

/// A peer that vanished without a word is noticed after about this time.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A connection as the acceptor got it, not yet on a reactor.
#[derive(Debug)]
pub enum Accepted {
    /// By TCP.
    Tcp(StdTcpStream, SocketAddr),
    /// By Unix socket.
    Unix(StdUnixStream),
}

/// A socket on a reactor.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// TCP, and perhaps TLS on it.
    Encrypted(Encrypted),
    /// Unix.
    Unix(UnixStream),
}

impl Accepted {
    /// Puts the socket onto the reactor of the calling thread; returns the peer's name too.
    ///
    /// # Errors
    /// What the kernel says, mostly because the peer is gone.
    pub fn into_socket(self, security: &Security) -> io::Result<(Socket, String)> {
        match self {
            Self::Tcp(stream, peer) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                let stream = TcpStream::from_std(stream)?;
                let socket = match (&security.tls, security.server_config()) {
                    (Some(tls), Some(config)) => {
                        let takes_plaintext = security.takes_plaintext_from(peer.ip());
                        let tls = Arc::clone(tls);
                        Socket::Encrypted(Encrypted::new(stream, tls, config, takes_plaintext))
                    }
                    _ => Socket::Tcp(stream),
                };
                Ok((socket, peer.to_string()))
            }
            Self::Unix(stream) => {
                stream.set_nonblocking(true)?;
                Ok((
                    Socket::Unix(UnixStream::from_std(stream)?),
                    "unix".to_owned(),
                ))
            }
        }
    }
}

impl Socket {
    /// Whether the peer showed a certificate of an authority that is trusted.
    pub fn is_certified(&self) -> bool {
        match self {
            Self::Encrypted(stream) => stream.is_certified(),
            Self::Tcp(_) | Self::Unix(_) => false,
        }
    }

    /// How far the connection is.
    pub fn stage(&self) -> Stage {
        match self {
            Self::Encrypted(stream) => stream.stage(),
            Self::Tcp(_) | Self::Unix(_) => Stage::Ready,
        }
    }

    /// Whether it is under TLS.
    pub fn is_encrypted(&self) -> bool {
        match self {
            Self::Encrypted(stream) => stream.is_encrypted(),
            Self::Tcp(_) | Self::Unix(_) => false,
        }
    }

    /// Waits until there is something to read, or the peer has closed. Only the task of the
    /// connection may wait: of several the last one is woken, which spares a list of tasks that
    /// wait.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_readable(cx)).await
    }

    /// As [`Socket::readable`], for a task that waits for something else too.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Encrypted(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    /// Waits until there is room to write; see [`Socket::readable`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Encrypted(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
        })
        .await
    }

    /// Waits until the connection is broken: the peer reset it, which tells that the client does
    /// not read replies any more. One that has only stopped sending may still read.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn broken(&self) {
        let ready = match self {
            Self::Tcp(stream) => stream.ready(Interest::ERROR).await,
            Self::Encrypted(stream) => stream.stream().ready(Interest::ERROR).await,
            Self::Unix(stream) => stream.ready(Interest::ERROR).await,
        };
        // An error here is one of the connection too.
        drop(ready);
    }

    /// Reads what there is into the spare capacity of `buf`, up to `len_max` bytes. 0 means that
    /// the peer closed.
    ///
    /// A read that leaves room has emptied the socket: the readiness is taken back at once, so that
    /// the next read waits for the kernel's word instead of asking in vain. Polling is
    /// edge-triggered and on the same thread, so nothing that arrives from here on is missed.
    pub fn try_read(&self, buf: &mut BytesMut, len_max: usize) -> io::Result<usize> {
        let room = (buf.capacity() - buf.len()).min(len_max);
        let read = match self {
            Self::Tcp(stream) => stream.try_read_buf(&mut buf.limit(room)),
            Self::Encrypted(stream) => return stream.try_read(buf, room),
            Self::Unix(stream) => stream.try_read_buf(&mut buf.limit(room)),
        };
        if let Ok(count) = read
            && 0 < count
            && count < room
        {
            let emptied = || Err::<(), _>(io::Error::from(io::ErrorKind::WouldBlock));
            let _ = match self {
                Self::Tcp(stream) => stream.try_io(Interest::READABLE, emptied),
                Self::Encrypted(_) => Ok(()),
                Self::Unix(stream) => stream.try_io(Interest::READABLE, emptied),
            };
        }
        read
    }

    /// Sends what the kernel takes now.
    pub fn try_write(&self, out: &Out) -> io::Result<usize> {
        if let Some(bytes) = out.single() {
            return match self {
                Self::Tcp(stream) => stream.try_write(bytes),
                Self::Encrypted(stream) => stream.try_write(out),
                Self::Unix(stream) => stream.try_write(bytes),
            };
        }
        let mut slices = [io::IoSlice::new(&[]); SLICES_MAX];
        let count = out.io_slices(&mut slices);
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(&slices[..count]),
            Self::Encrypted(stream) => stream.try_write(out),
            Self::Unix(stream) => stream.try_write_vectored(&slices[..count]),
        }
    }

    /// Has the kernel acknowledge at once what it received.
    ///
    /// A client that writes a request in several small pieces without `TCP_NODELAY` gets the second
    /// piece out only when the first was acknowledged, which the kernel delays by 40 ms (sccache's
    /// memcached client does just that). The flag does not stick: it holds until the kernel's next
    /// change of mind (tcp(7)), so it is set again whenever a read ends inside a request.
    pub fn acknowledge_now(&self) {
        let stream = match self {
            Self::Tcp(stream) => stream,
            Self::Encrypted(stream) => stream.stream(),
            Self::Unix(_) => return,
        };
        // Only speed is lost where it fails.
        let _ = SockRef::from(stream).set_tcp_quickack(true);
    }

    /// Has the kernel wake the task when so many bytes are there to read. Only where all of them
    /// are sure to come in this form, that is without TLS, which may have taken in the first part
    /// of a record before.
    pub fn wake_from(&self, bytes: usize) {
        if let Self::Tcp(stream) = self {
            // Only speed is lost where it fails.
            let _ = low_water::set(stream.as_fd(), bytes);
        }
    }

    /// The address at this end; None for a Unix socket, or if the kernel has forgotten it.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let address = match self {
            Self::Tcp(stream) => stream.local_addr(),
            Self::Encrypted(stream) => stream.stream().local_addr(),
            Self::Unix(_) => return None,
        };
        address.ok()
    }

    /// Ends reading: a task that waits in [`Socket::readable`] sees the end of the stream.
    pub fn end_reading(&self) {
        self.shutdown(std::net::Shutdown::Read);
    }

    /// Tells the peer that nothing more comes.
    pub fn end_writing(&self) {
        if let Self::Encrypted(stream) = self {
            stream.close();
        }
        self.shutdown(std::net::Shutdown::Write);
    }

    /// Ends both directions: a task that waits for either wakes up and fails.
    pub fn abort(&self) {
        self.shutdown(std::net::Shutdown::Both);
    }

    fn shutdown(&self, how: std::net::Shutdown) {
        // A socket that is closed already needs no more.
        let _ = match self {
            Self::Tcp(stream) => SockRef::from(stream).shutdown(how),
            Self::Encrypted(stream) => SockRef::from(stream.stream()).shutdown(how),
            Self::Unix(stream) => SockRef::from(stream).shutdown(how),
        };
    }
}
