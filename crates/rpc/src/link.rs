//! The socket of a connection to a member: bare, or under TLS.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut as _, BytesMut};
use fonn_auth::encrypted::{Encrypted, SLICES_MAX};
use fonn_auth::tls;
use fonn_proto::Out;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::Options;

/// A member that vanished without a word is noticed after about this time, even without requests.
const KEEPALIVE: std::time::Duration = std::time::Duration::from_secs(30);

/// A connection.
#[derive(Debug)]
pub(super) enum Link {
    Bare(TcpStream),
    Encrypted(Encrypted),
}

impl Link {
    /// Connects; a handshake is made with the first bytes.
    pub(super) async fn connect(options: &Options) -> io::Result<Self> {
        let stream = TcpStream::connect(&options.address).await?;
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        // Each time anew: the certificate may have been renewed.
        let Some(tls) = &options.tls else {
            return Ok(Self::Bare(stream));
        };
        let Some(config) = tls.client() else {
            return Ok(Self::Bare(stream));
        };
        let name = tls::server_name(&options.address).ok_or_else(|| {
            let what = "the address of the member is none that a certificate can be for";
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        let encrypted =
            Encrypted::client(stream, Arc::clone(tls), config, name).map_err(io::Error::other)?;
        Ok(Self::Encrypted(encrypted))
    }

    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Bare(stream) => stream.poll_read_ready(cx),
            Self::Encrypted(stream) => stream.poll_read_ready(cx),
        }
    }

    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Bare(stream) => stream.poll_write_ready(cx),
            Self::Encrypted(stream) => stream.poll_write_ready(cx),
        }
    }

    /// Waits until there may be something to read.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_read_ready(cx)).await
    }

    /// Waits until there may be room to write.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_write_ready(cx)).await
    }

    /// Reads what there is into the spare capacity of `buf`, up to `len_max` bytes. 0 means that
    /// the member closed.
    pub(super) fn try_read(&self, buf: &mut BytesMut, len_max: usize) -> io::Result<usize> {
        let room = (buf.capacity() - buf.len()).min(len_max);
        match self {
            Self::Bare(stream) => {
                let read = stream.try_read_buf(&mut buf.limit(room));
                if let Ok(count) = read
                    && 0 < count
                    && count < room
                {
                    // The socket is empty: the next look asks the kernel's events, not the kernel.
                    let _ = stream.try_io(Interest::READABLE, || {
                        Err::<(), _>(io::Error::from(io::ErrorKind::WouldBlock))
                    });
                }
                read
            }
            Self::Encrypted(stream) => stream.try_read(buf, room),
        }
    }

    /// Sends what the kernel takes now.
    pub(super) fn try_write(&self, out: &Out) -> io::Result<usize> {
        let stream = match self {
            Self::Bare(stream) => stream,
            Self::Encrypted(stream) => return stream.try_write(out),
        };
        match out.single() {
            Some(bytes) => stream.try_write(bytes),
            None => {
                let mut slices = [io::IoSlice::new(&[]); SLICES_MAX];
                let count = out.io_slices(&mut slices);
                stream.try_write_vectored(slices.get(..count).unwrap_or_default())
            }
        }
    }
}
