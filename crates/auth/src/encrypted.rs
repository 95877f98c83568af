//! A TCP connection that may be under TLS, with the same non-blocking calls as a bare one.
//!
//! Whether it is tells its first byte. rustls does the protocol without I/O; here its records go to
//! and from the socket. Replies are copied once more than on a bare connection, into the records.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{BufMut, BytesMut};
use fonn_proto::Out;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use tokio::io::ReadBuf;
use tokio::net::TcpStream;

use crate::tls::{Side, Standing, Tls};

/// Bytes that wait in one connection to be encrypted or sent, at most.
const BUFFER_LEN: usize = 64 * 1024;

/// Parts of one vectored write.
pub const SLICES_MAX: usize = 64;

/// Bytes of a handshake that are taken from a client, its certificates among them: several times
/// what one needs.
const HANDSHAKE_LEN_MAX: usize = 16 * 1024;

/// First byte of a TLS record with a handshake in it (RFC 8446, section 5.1). No dialect begins
/// with it.
pub const HANDSHAKE: u8 = 0x16;

/// How far a connection is before its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing has come yet, and it need not be TLS.
    Undecided,
    /// It has to be TLS, or is, and the handshake is not over.
    Handshake,
    /// Requests can be read.
    Ready,
}

/// The server's end of a connection whose client may speak TLS, or the client's end of one that
/// does.
#[derive(Debug)]
pub struct Encrypted {
    stream: TcpStream,
    /// What judges the certificate of the other end.
    tls: Arc<Tls>,
    side: Side,
    // Only the connection's own task uses it; others shut the socket itself down.
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Nothing has come yet.
    Unknown {
        config: Arc<ServerConfig>,
        takes_plaintext: bool,
    },
    Plain,
    Tls {
        session: Box<Connection>,
        peer: Peer,
        /// Bytes that are still taken for the handshake.
        handshake_left: usize,
    },
}

impl State {
    fn tls(session: impl Into<Connection>, handshake_len_max: usize) -> Self {
        Self::Tls {
            session: Box::new(session.into()),
            peer: Peer::Greeting,
            handshake_left: handshake_len_max,
        }
    }
}

/// What is known of the other end.
#[derive(Debug)]
enum Peer {
    /// The handshake is under way.
    Greeting,
    /// It showed no certificate that could cease to be good.
    Bare,
    /// It showed one.
    Certified(Box<Standing>),
}

impl Encrypted {
    /// A connection of which nothing was read. Without `takes_plaintext` it has to be TLS, as
    /// `config`, which is of `tls`, says.
    pub fn new(
        stream: TcpStream,
        tls: Arc<Tls>,
        config: Arc<ServerConfig>,
        takes_plaintext: bool,
    ) -> Self {
        let state = State::Unknown {
            config,
            takes_plaintext,
        };
        Self {
            stream,
            tls,
            side: Side::Client,
            state: Mutex::new(state),
        }
    }

    /// The client's end of a connection to `name`, which has to be TLS.
    ///
    /// # Errors
    /// If the configuration cannot be used.
    pub fn client(
        stream: TcpStream,
        tls: Arc<Tls>,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, rustls::Error> {
        let mut session = ClientConnection::new(config, name.clone())?;
        session.set_buffer_limit(Some(BUFFER_LEN));
        Ok(Self {
            stream,
            tls,
            side: Side::Server(name),
            // The server is trusted with more, and is the one that was asked for.
            state: Mutex::new(State::tls(session, usize::MAX)),
        })
    }

    /// Whether the other end showed a certificate, which then is of an authority that is trusted: a
    /// wrong one ends the handshake.
    pub fn is_certified(&self) -> bool {
        match &*self.state.lock() {
            State::Tls { session, .. } => session.peer_certificates().is_some(),
            State::Unknown { .. } | State::Plain => false,
        }
    }

    /// How far the connection is.
    pub fn stage(&self) -> Stage {
        match &*self.state.lock() {
            State::Unknown {
                takes_plaintext: true,
                ..
            } => Stage::Undecided,
            State::Unknown { .. } => Stage::Handshake,
            State::Tls { session, .. } if session.is_handshaking() => Stage::Handshake,
            State::Tls { .. } | State::Plain => Stage::Ready,
        }
    }

    /// Whether it turned out to be TLS.
    pub fn is_encrypted(&self) -> bool {
        matches!(&*self.state.lock(), State::Tls { .. })
    }

    /// The socket below.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Ready when there may be something to read. Meanwhile what waits to be sent is sent: the
    /// answers of the handshake, and the end of replies that the socket had no room for.
    ///
    /// # Errors
    /// Of the socket; `PermissionDenied` once the certificate of the other end is no longer good.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let State::Tls { session, peer, .. } = &mut *self.state.lock() {
            if let Peer::Certified(standing) = peer
                && let Poll::Ready(error) = standing.poll_lost(cx)
            {
                return Poll::Ready(Err(error));
            }
            match self.poll_flush(session, cx) {
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                // The peer may have to be read from before it takes more.
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            let state = session.process_new_packets().map_err(broken)?;
            if state.plaintext_bytes_to_read() > 0 {
                return Poll::Ready(Ok(()));
            }
        }
        self.stream.poll_read_ready(cx)
    }

    /// Ready when there may be room to write.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.state.lock() {
            State::Tls { session, .. } => self.poll_flush(session, cx),
            State::Unknown { .. } | State::Plain => self.stream.poll_write_ready(cx),
        }
    }

    /// Reads what there is into the spare capacity of `buf`, up to `len_max` bytes. 0 means that
    /// the peer closed.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing yet; `InvalidData` if the peer does not speak TLS where it
    /// has to, or not as we do, or has no certificate where one is asked for; `PermissionDenied` if
    /// it is no longer good.
    pub fn try_read(&self, buf: &mut BytesMut, len_max: usize) -> io::Result<usize> {
        let room = (buf.capacity() - buf.len()).min(len_max);
        let mut state = self.state.lock();
        if let State::Unknown {
            config,
            takes_plaintext,
        } = &*state
        {
            *state = match self.peek()? {
                None => return Ok(0),
                Some(HANDSHAKE) => {
                    let mut session =
                        ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
                    session.set_buffer_limit(Some(BUFFER_LEN));
                    State::tls(session, HANDSHAKE_LEN_MAX)
                }
                Some(_) if *takes_plaintext => State::Plain,
                Some(_) => {
                    let what = "the client does not speak TLS, and no other is taken from there";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
            };
        }
        match &mut *state {
            State::Tls {
                session,
                peer,
                handshake_left,
            } => {
                if let Peer::Certified(standing) = peer {
                    standing.check()?;
                }
                self.receive(session, (peer, handshake_left), buf, room)
            }
            State::Unknown { .. } | State::Plain => self.stream.try_read_buf(&mut buf.limit(room)),
        }
    }

    /// Takes as much of `out` as there is room for, and sends it as far as the kernel takes it.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room.
    pub fn try_write(&self, out: &Out) -> io::Result<usize> {
        let mut slices = [io::IoSlice::new(&[]); SLICES_MAX];
        let count = out.io_slices(&mut slices);
        let slices = &slices[..count];
        match &mut *self.state.lock() {
            State::Tls { session, .. } => {
                self.flush(session)?;
                let taken = session.writer().write_vectored(slices)?;
                match self.flush(session) {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
                    _ if taken == 0 => Err(io::ErrorKind::WouldBlock.into()),
                    _ => Ok(taken),
                }
            }
            State::Unknown { .. } | State::Plain => self.stream.try_write_vectored(slices),
        }
    }

    /// Says goodbye, so that the peer knows that nothing was cut off.
    pub fn close(&self) {
        if let State::Tls { session, .. } = &mut *self.state.lock() {
            session.send_close_notify();
            // A peer that reads nothing gets none.
            let _ = self.flush(session);
        }
    }

    /// The first byte, which stays; none if the peer closed.
    fn peek(&self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let mut buf = ReadBuf::new(&mut byte);
        // A reader waits in `poll_read_ready`, which has its own waker.
        match self
            .stream
            .poll_peek(&mut Context::from_waker(Waker::noop()), &mut buf)?
        {
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            Poll::Ready(0) => Ok(None),
            Poll::Ready(_) => Ok(Some(byte[0])),
        }
    }

    fn receive(
        &self,
        session: &mut Connection,
        (peer, handshake_left): (&mut Peer, &mut usize),
        buf: &mut BytesMut,
        room: usize,
    ) -> io::Result<usize> {
        loop {
            // Before the first byte that such a peer sends is believed.
            if matches!(peer, Peer::Greeting) && !session.is_handshaking() {
                let shown = session.peer_certificates();
                *peer = match Standing::of(&self.tls, self.side.clone(), shown)? {
                    Some(standing) => Peer::Certified(Box::new(standing)),
                    None => Peer::Bare,
                };
            }
            match read_plaintext(session, buf, room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Cut off without a goodbye: what is complete was read, and a request that is not
                // complete is not executed.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                other => return other,
            }
            let received = session.read_tls(&mut Incoming(&self.stream))?;
            if session.is_handshaking() {
                *handshake_left = handshake_left.checked_sub(received).ok_or_else(|| {
                    let what = "the client's TLS handshake is too long";
                    io::Error::new(io::ErrorKind::InvalidData, what)
                })?;
            }
            let state = session.process_new_packets();
            match self.flush(session) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // An alert need not arrive.
                Err(_) if state.is_err() => {}
                other => other?,
            }
            state.map_err(broken)?;
            if received == 0 {
                return match read_plaintext(session, buf, room) {
                    Err(_) => Ok(0),
                    read => read,
                };
            }
        }
    }

    fn poll_flush(&self, session: &mut Connection, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.flush(session) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.stream.poll_write_ready(cx))?;
                }
                other => return Poll::Ready(other),
            }
        }
    }

    fn flush(&self, session: &mut Connection) -> io::Result<()> {
        while session.wants_write() {
            if session.write_tls(&mut Outgoing(&self.stream))? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

fn read_plaintext(session: &mut Connection, buf: &mut BytesMut, room: usize) -> io::Result<usize> {
    let mut reader = session.reader();
    let mut total = 0;
    let mut piece = [0; 4096];
    while total < room {
        let len = piece.len().min(room - total);
        match reader.read(&mut piece[..len]) {
            Ok(0) => break,
            Ok(count) => {
                buf.put_slice(&piece[..count]);
                total += count;
            }
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

fn broken(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The socket as rustls reads from it.
struct Incoming<'s>(&'s TcpStream);

impl Read for Incoming<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buf)
    }
}

/// The socket as rustls writes to it.
struct Outgoing<'s>(&'s TcpStream);

impl Write for Outgoing<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.try_write(buf)
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
