//! Threads that serve connections: HTTP/1.1, or HTTP/2 by its preface, under TLS or not.
//!
//! Each thread has a runtime of its own and takes connections from the same socket, and a
//! connection stays on its thread.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fonn_admin::{Streams, is_http2};
use fonn_auth::Source;
use fonn_auth::tls::{self, Link};
use fonn_base::shutdown::{self, Shutdown, ShutdownTrigger};
use fonn_server::{ListenAddr, Listener};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::handler::{Front, Peer};
use crate::leftover::Leftover;
use crate::life::{Life, Watch};
use crate::store::Store;

/// What requests of a connection may hold before they are looked at.
#[derive(Clone, Copy)]
struct Room {
    /// Bytes of a request's line and headers together.
    head_max: usize,
    /// What a client of HTTP/2 may send before it was asked for: in one request, and in all of its
    /// connection.
    stream_window: u32,
    connection_window: u32,
}

impl Room {
    /// A key of the longest kind, escaped, needs most of the head.
    const KNOWN: Self = Self {
        head_max: 128 << 10,
        stream_window: 256 << 10,
        connection_window: 256 << 10,
    };
    /// Windows of the first connections, as far as [`wide_places`] has places: uploads wait for
    /// their client less often, and over a long line their speed is a window for each round trip.
    const fn with_wide_windows(self) -> Self {
        Self {
            stream_window: WIDE_WINDOW,
            connection_window: WIDE_WINDOW,
            ..self
        }
    }

    /// Where clients have to log in, a stranger may hold this much. 64 KiB is the least window that
    /// HTTP/2 has.
    const GUARDED: Self = Self {
        head_max: 48 << 10,
        stream_window: 64 << 10,
        connection_window: 64 << 10,
    };
}

/// The window of a connection that has a place for it.
const WIDE_WINDOW: u32 = 1 << 20;

/// The part of what responses may leave unread that wide windows may hold besides: one of so many.
const WIDE_SHARES: usize = 2;

/// How many connections may have wide windows.
pub(crate) fn wide_places(store: &impl Store) -> usize {
    store.unread_max() / WIDE_SHARES / WIDE_WINDOW as usize
}

/// Requests under way at once in one HTTP/2 connection.
const STREAMS_MAX: u32 = 32;

/// Bytes of a response that HTTP/2 buffers for a reader that is slow.
const SEND_BUFFER_MAX_BYTES: usize = 256 << 10;

/// Polls of tasks after which a reactor looks at its sockets. A poll may hash or compress a step of
/// a value, and those of other connections wait for it.
const EVENT_INTERVAL: u32 = 8;

/// Threads of a reactor for what blocks: long messages, of which few are worked on at once, saves
/// of versions by the store, and files and names of OIDC issuers. No kind waits for another one.
const BLOCKING_THREADS_MAX: usize = 8;

/// Wait after a failed accept, which usually means that file descriptors ran out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// While connections cannot be accepted, each thread says so this often.
const ACCEPT_WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Why the gateway does not serve.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address cannot be had.
    #[error(transparent)]
    Listen(io::Error),
    /// The address is a Unix socket.
    #[error("{0} is a Unix socket: HTTP clients need HOST:PORT")]
    Unix(ListenAddr),
    /// A thread or its runtime cannot be made.
    #[error("cannot start the threads of the HTTP port: {0}")]
    Threads(io::Error),
}

/// The bound socket of a gateway.
#[derive(Debug)]
pub struct Bound {
    listener: std::net::TcpListener,
    address: String,
}

/// The running gateway.
#[derive(Debug)]
pub struct Gateway {
    address: String,
    stop: ShutdownTrigger,
    threads: Vec<JoinHandle<()>>,
}

impl Bound {
    /// Binds `addr`, HOST:PORT.
    ///
    /// # Errors
    /// [`GatewayError::Listen`], with the address in the message.
    pub fn new(addr: &ListenAddr) -> Result<Self, GatewayError> {
        let listener = Listener::bind(addr).map_err(GatewayError::Listen)?;
        let address = listener.local_name();
        match listener {
            Listener::Tcp(listener) => Ok(Self { listener, address }),
            Listener::Unix(..) => {
                listener.close();
                Err(GatewayError::Unix(addr.clone()))
            }
        }
    }

    /// The address that was bound, with the port that the kernel chose for port 0.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Gateway {
    /// Serves `front` on `bound` with so many threads.
    ///
    /// # Errors
    /// If a thread or its runtime cannot be made.
    pub fn start<S: Store + Unpin>(
        front: &Front<S>,
        bound: Bound,
        threads: usize,
    ) -> Result<Self, GatewayError> {
        let Bound { listener, address } = bound;
        let (stop, stopped) = shutdown::channel();
        let mut started = Vec::new();
        listener
            .set_nonblocking(true)
            .map_err(GatewayError::Threads)?;
        for index in 0..threads.max(1) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .event_interval(EVENT_INTERVAL)
                .max_blocking_threads(BLOCKING_THREADS_MAX)
                .build()
                .map_err(GatewayError::Threads)?;
            let listener = listener.try_clone().map_err(GatewayError::Threads)?;
            let (front, stopped) = (front.clone(), stopped.clone());
            let thread = std::thread::Builder::new().name(format!("http-{index}"));
            let run = move || runtime.block_on(accept(front, listener, stopped));
            started.push(thread.spawn(run).map_err(GatewayError::Threads)?);
        }
        Ok(Self {
            address,
            stop,
            threads: started,
        })
    }

    /// The address that was bound.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Stops accepting, and ends each connection after its current responses, at the latest in
    /// `grace`.
    pub fn stop(&self, grace: Duration) {
        self.stop.request(grace);
    }

    /// Waits until all threads have ended, which [`Gateway::stop`] makes them do. Blocks.
    pub fn join(self) {
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the HTTP port panicked");
            }
        }
    }
}

/// Accepts connections, and serves them until they end.
async fn accept<S: Store + Unpin>(
    front: Front<S>,
    listener: std::net::TcpListener,
    stopped: Shutdown,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the HTTP port does not serve");
            return;
        }
    };
    let mut connections = JoinSet::new();
    let mut warned: Option<Instant> = None;
    loop {
        tokio::select! {
            () = stopped.requested() => break,
            Some(ended) = connections.join_next() => note_end(ended),
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    if let Some(place) = Place::take(&front) {
                        let entered = Entered::new(place, peer.ip());
                        connections.spawn(serve(stream, entered, stopped.clone()));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if warned.is_none_or(|at| at.elapsed() >= ACCEPT_WARNING_INTERVAL) {
                        tracing::warn!(%error, "accepting a connection on the HTTP port");
                        warned = Some(Instant::now());
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            },
        }
    }
    drop(listener);
    let drained = async {
        while let Some(ended) = connections.join_next().await {
            note_end(ended);
        }
    };
    tokio::select! {
        () = drained => {}
        // Dropping the set cuts the rest.
        () = stopped.overdue() => {}
    }
}

fn note_end(ended: Result<(), tokio::task::JoinError>) {
    if ended.is_err_and(|error| error.is_panic()) {
        tracing::error!(
            "serving an HTTP connection panicked; it is closed, and the process goes on"
        );
    }
}

/// A connection that counts until this is dropped.
struct Place<S: Store>(Front<S>);

impl<S: Store> Place<S> {
    fn take(front: &Front<S>) -> Option<Self> {
        front.take_place().then(|| Self(front.clone()))
    }
}

impl<S: Store> Drop for Place<S> {
    fn drop(&mut self) {
        self.0.give_back_place();
    }
}

/// A connection that was accepted. It is on probation, where there is any, until its client is let
/// in or this is dropped.
struct Entered<S: Store> {
    place: Place<S>,
    life: Arc<Life>,
    address: IpAddr,
}

impl<S: Store> Entered<S> {
    /// Connections are numbered as they are accepted: their tasks may begin in another order.
    fn new(place: Place<S>, address: IpAddr) -> Self {
        let front = &place.0;
        let security = front.security();
        let is_on_probation = security.users.is_some() || security.tls.is_some();
        let life = Life::new(
            front.options().times.clone(),
            Source::of(Some(address)),
            is_on_probation,
        );
        if is_on_probation {
            front.suspect(address, &life);
        }
        Self {
            place,
            life,
            address,
        }
    }
}

impl<S: Store> Drop for Entered<S> {
    fn drop(&mut self) {
        self.place.0.forget(&self.life);
    }
}

/// Serves one connection.
async fn serve<S: Store + Unpin>(stream: TcpStream, entered: Entered<S>, stopped: Shutdown) {
    let front = &entered.place.0;
    // Without it small answers wait for more; with it the worst is a few more packets.
    let _ = stream.set_nodelay(true);
    let security = front.security();
    let life = Arc::clone(&entered.life);
    let begin = async {
        match (&security.tls, security.server_config()) {
            (Some(tls), Some(config)) => {
                Link::accept_either(stream, tls, config, tls::Place::Here).await
            }
            _ => Ok(Link::Bare(stream)),
        }
    };
    let begun = tokio::select! {
        begun = begin => begun,
        // It is on probation, which has a deadline, or it gives way to a newer one.
        () = life.over() => {
            front.figures().stalled.fetch_add(1, Ordering::Relaxed);
            return;
        }
        () = stopped.requested() => return,
    };
    match begun {
        Ok(link) => {
            let peer = Peer {
                address: entered.address,
                is_encrypted: link.is_encrypted(),
            };
            serve_http(link, peer, front, life, stopped).await;
        }
        Err(error) => tracing::debug!(%error, "no TLS on the HTTP port"),
    }
}

async fn serve_http<S: Store + Unpin>(
    mut stream: Link,
    peer: Peer,
    front: &Front<S>,
    life: Arc<Life>,
    stopped: Shutdown,
) {
    let mut first = Vec::new();
    let is_http2 = tokio::select! {
        detected = is_http2(&mut stream, &mut first) => match detected {
            Ok(is_http2) => is_http2,
            Err(_) => return,
        },
        () = life.over() => {
            front.figures().stalled.fetch_add(1, Ordering::Relaxed);
            return;
        }
        () = stopped.requested() => return,
    };
    let watch = Watch::new(first, stream, Arc::clone(&life), is_http2);
    let io = TokioIo::new(watch);
    // Over HTTP/1 the connection lingers as a whole.
    let linger = match is_http2 {
        true => front.options().times.linger,
        false => Duration::ZERO,
    };
    let service = {
        let (front, life) = (front.clone(), Arc::clone(&life));
        service_fn(move |request: Request<Incoming>| {
            let (front, life) = (front.clone(), Arc::clone(&life));
            let request = request.map(|body| Leftover::new(body, linger));
            // hyper keeps room for a future while the connection is idle: here that of a pointer
            // instead of 9 KB.
            Box::pin(async move { Ok::<_, Infallible>(front.answer(request, peer, &life).await) })
        })
    };
    let course = Course {
        front,
        address: peer.address,
        life: &life,
        stopped,
    };
    let mut room = match front.security().users {
        Some(_) => Room::GUARDED,
        None => Room::KNOWN,
    };
    if is_http2 {
        let place = front.wide_windows().try_acquire();
        if place.is_ok() {
            room = room.with_wide_windows();
        }
        let connection = http2::Builder::new(Streams::default())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(room.head_max as u32)
            .max_send_buf_size(SEND_BUFFER_MAX_BYTES)
            .initial_stream_window_size(room.stream_window)
            .initial_connection_window_size(room.connection_window)
            .serve_connection(io, service);
        let connection = std::pin::pin!(connection);
        course.run(connection, |it| it.graceful_shutdown()).await;
    } else {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // The life of the connection knows it better: an idle connection may wait for longer.
            .header_read_timeout(None)
            .max_buf_size(room.head_max)
            .serve_connection(io, service);
        let connection = std::pin::pin!(connection);
        course.run(connection, |it| it.graceful_shutdown()).await;
    }
}

/// The course of a connection.
struct Course<'c, S: Store> {
    front: &'c Front<S>,
    address: IpAddr,
    life: &'c Life,
    stopped: Shutdown,
}

impl<S: Store> Course<'_, S> {
    /// Drives a connection; `end` asks it to end after its current responses.
    async fn run<C>(self, mut connection: Pin<&mut C>, end: impl FnOnce(Pin<&mut C>))
    where
        C: Future<Output = hyper::Result<()>>,
    {
        let over = async {
            self.life.over().await;
            self.front.figures().stalled.fetch_add(1, Ordering::Relaxed);
        };
        let mut over = std::pin::pin!(over);
        let result = tokio::select! {
            result = &mut connection => Some(result),
            () = &mut over => return,
            () = self.stopped.requested() => None,
        };
        let result = match result {
            Some(result) => result,
            None => {
                end(connection.as_mut());
                tokio::select! {
                    result = &mut connection => result,
                    () = &mut over => return,
                }
            }
        };
        if let Err(error) = result {
            // Clients that break the protocol or leave are their own fault.
            tracing::debug!(%error, address = %self.address, "an HTTP connection ended");
        }
    }
}
