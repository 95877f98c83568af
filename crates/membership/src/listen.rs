//! The connections that are accepted on `--cluster-listen`: so many and no more, and none that is
//! silent.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fonn_auth::Source;
use fonn_auth::tls::{Link, Place, Tls};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, Sleep};
use tonic::transport::server::Connected;

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Of members that have proved to be such, where they have to. One more is refused.
    connections_max: usize,
    /// Those whose handshake is under way. The oldest of them gives way to one more: a member is
    /// done in milliseconds, so silent strangers go first.
    handshakes_max: usize,
    /// Of these, those of one source. A source that floods waits for itself alone.
    by_source_max: usize,
    handshake_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 2048,
            handshakes_max: 256,
            by_source_max: 32,
            handshake_max: Duration::from_secs(10),
        }
    }
}

/// A connection from which nothing comes for so long is closed. Those in use are tested more often
/// ([`TEST_PERIOD`]), so it hits only silent ones.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long a connection is idle before it is tested, and how long the answer may take: a router or
/// a member that lost its link counts as gone after twice this time.
pub(super) const TEST_PERIOD: Duration = Duration::from_secs(1);
/// Wait after the operating system could not give a connection.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);
/// Refused connections are logged so often: a stranger makes as many as it likes.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// Accepts connections until the other end of the channel is gone. With `tls`, no client comes in
/// without a certificate of the members' authority.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    limits: Limits,
    out: mpsc::Sender<io::Result<Guarded>>,
) {
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let mut handshakes = Handshakes::default();
    let (mut refusals, mut failed) = (Refusals::default(), Refusals::default());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    if !handshakes.begin(stream, from, tls.clone(), limits) {
                        refusals.warn(from, &"too many connections that began no TLS");
                    }
                }
                Err(error) => {
                    if let Some(failures) = failed.count(Instant::now()) {
                        tracing::warn!(%error, failures, "accepting a connection of a member");
                    }
                    tokio::time::sleep(ACCEPT_WAIT).await;
                }
            },
            Some(begun) = handshakes.tasks.join_next() => match begun {
                Ok(Ok((link, from))) => match Arc::clone(&places).try_acquire_owned() {
                    Ok(place) => {
                        // Without a receiver no client is served any more.
                        if out.send(Ok(Guarded::new(link, from, place))).await.is_err() {
                            return;
                        }
                    }
                    Err(_) => refusals.warn(from, &"too many connections of members"),
                },
                Ok(Err((error, from))) => refusals.warn(from, &error),
                // It gave way to another one.
                Err(_) => {}
            },
            () = out.closed() => return,
        }
    }
}

/// The connections whose handshake is under way.
#[derive(Default)]
struct Handshakes {
    tasks: JoinSet<Result<(Link, SocketAddr), (io::Error, SocketAddr)>>,
    /// By age, the oldest first.
    order: VecDeque<(Source, AbortHandle)>,
}

impl Handshakes {
    /// Begins one more; false if another one had to give way to it.
    fn begin(
        &mut self,
        stream: TcpStream,
        from: SocketAddr,
        tls: Option<Arc<Tls>>,
        limits: Limits,
    ) -> bool {
        let source = Source::of(Some(from.ip()));
        self.order.retain(|(_, task)| !task.is_finished());
        let is_own = |(of, _): &(Source, AbortHandle)| *of == source;
        let own = self.order.iter().filter(|it| is_own(it)).count();
        let gives_way = match own >= limits.by_source_max {
            true => self.order.iter().position(is_own),
            false => (self.order.len() >= limits.handshakes_max).then_some(0),
        };
        let oldest = gives_way.and_then(|index| self.order.remove(index));
        if let Some((_, task)) = &oldest {
            task.abort();
        }
        let begun = async move {
            let begun = tokio::time::timeout(limits.handshake_max, begin(stream, tls)).await;
            let begun = begun.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            match begun {
                Ok(link) => Ok((link, from)),
                Err(error) => Err((error, from)),
            }
        };
        self.order.push_back((source, self.tasks.spawn(begun)));
        oldest.is_none()
    }
}

/// Makes the handshake, if there is one.
async fn begin(stream: TcpStream, tls: Option<Arc<Tls>>) -> io::Result<Link> {
    // Without it small answers wait for more; with it the worst is a few more packets.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "setting TCP_NODELAY failed");
    }
    let Some(tls) = tls else {
        return Ok(Link::Bare(stream));
    };
    let config = tls.members_server().ok_or_else(|| {
        let what = "--tls-client-ca is missing: it names the authority of the members";
        io::Error::new(io::ErrorKind::PermissionDenied, what)
    })?;
    Link::accept(stream, &tls, config, Place::Apart).await
}

/// The connections that were refused, for the log.
#[derive(Default)]
struct Refusals {
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl Refusals {
    fn warn(&mut self, from: SocketAddr, why: &dyn fmt::Display) {
        if let Some(connections) = self.count(Instant::now()) {
            tracing::warn!(%from, %why, connections, "connections to the cluster port were refused");
        }
    }

    /// Counts one. Returns how many were since the last line of the log, if it is time for one.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.unlogged += 1;
        if self
            .logged_at
            .is_some_and(|at| now.duration_since(at) < LOG_PERIOD)
        {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// A connection with its place among all, and its time to say something.
#[derive(Debug)]
pub(super) struct Guarded {
    link: Link,
    from: SocketAddr,
    silence: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Guarded {
    fn new(link: Link, from: SocketAddr, place: OwnedSemaphorePermit) -> Self {
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
        Some(self.from)
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(read) = Pin::new(&mut this.link).poll_read(ctx, buf) {
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
        Pin::new(&mut self.get_mut().link).poll_write(ctx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().link).poll_flush(ctx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().link).poll_shutdown(ctx)
    }
}

#[cfg(test)]
mod tests {
    use fonn_auth::tls::{Side, Watched};

    use super::*;
    use crate::tests::encrypted::Authority;

    fn limits(handshakes_max: usize) -> Limits {
        Limits {
            connections_max: 4,
            handshakes_max,
            by_source_max: handshakes_max,
            // Past the end of the test.
            handshake_max: Duration::from_secs(3600),
        }
    }

    /// A cluster port of a member with a certificate.
    struct Port {
        tls: Arc<Tls>,
        address: SocketAddr,
        accepted: mpsc::Receiver<io::Result<Guarded>>,
        _server: JoinSet<()>,
        _dir: tempfile::TempDir,
    }

    impl Port {
        async fn open(limits: Limits) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let tls = Authority::new().member(dir.path());
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (sender, accepted) = mpsc::channel(1);
            let mut server = JoinSet::new();
            server.spawn(accept(listener, Some(Arc::clone(&tls)), limits, sender));
            Self {
                tls,
                address,
                accepted,
                _server: server,
                _dir: dir,
            }
        }

        /// So many connections that say nothing.
        async fn strangers(&self, count: usize) -> Vec<TcpStream> {
            let mut strangers = Vec::new();
            for _ in 0..count {
                strangers.push(TcpStream::connect(self.address).await.unwrap());
            }
            strangers
        }

        /// Makes a member's handshake on a connection. It is served, too.
        async fn serve(&mut self, stream: TcpStream) -> Watched<TcpStream> {
            let name = fonn_auth::tls::server_name("127.0.0.1:1").unwrap();
            let connector = tokio_rustls::TlsConnector::from(self.tls.client().unwrap());
            let shakes = connector.connect(name.clone(), stream);
            let both = async { tokio::join!(shakes, self.accepted.recv()) };
            let both = tokio::time::timeout(Duration::from_secs(60), both).await;
            let (member, served) = both.expect("no place for a member");
            assert!(served.unwrap().is_ok());
            Watched::new(member.unwrap(), &self.tls, Side::Server(name)).unwrap()
        }
    }

    #[tokio::test]
    async fn strangers_that_begin_no_tls_keep_no_member_out() {
        let mut port = Port::open(limits(3)).await;
        let (mut strangers, mut members) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            // More than there are places of either kind.
            strangers.push(port.strangers(10).await);
            let stream = TcpStream::connect(port.address).await.unwrap();
            members.push(port.serve(stream).await);
        }
    }

    #[tokio::test]
    async fn a_source_that_floods_gives_way_to_itself_and_keeps_no_other_out() {
        let limits = Limits {
            by_source_max: 2,
            ..limits(3)
        };
        let mut port = Port::open(limits).await;
        // Its handshake began first, and would be the oldest.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let first = socket.connect(port.address).await.unwrap();
        let _strangers = port.strangers(10).await;
        port.serve(first).await;
    }

    #[test]
    fn refusals_are_logged_once_in_ten_seconds_with_their_number() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        assert_eq!(refusals.count(start), Some(1));
        for second in 1..10 {
            assert_eq!(refusals.count(start + Duration::from_secs(second)), None);
        }
        assert_eq!(refusals.count(start + LOG_PERIOD), Some(10));
    }
}
