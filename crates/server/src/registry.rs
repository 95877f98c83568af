//! The connections that there are: for the limit, for balance, for `stats conns` and for draining.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fonn_auth::Source;
use fonn_proto::ServerCommand;
use fonn_proto::session::Dialect;
use parking_lot::Mutex;

use super::Shared;
use super::service::{Event, Service};
use super::socket::Socket;

/// Reactors that are told apart for balance; far more than a machine has cores.
const REACTORS_MAX: usize = 1024;

/// How far the start-up of a connection is: the TLS handshake, and the login where there are users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum StartupState {
    /// The client may send requests, or there was no start-up.
    Over,
    /// The client has to do something.
    UnderWay,
    /// The server keeps the client waiting: it checks a password, or delays an answer.
    Held,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    /// A number that no other connection had.
    pub id: u64,
    /// Its socket.
    pub socket: Socket,
    /// The other end.
    pub peer: String,
    /// Where it comes from.
    pub(crate) source: Source,
    reactor: usize,
    opened: Instant,
    startup: AtomicU8,
    /// Whether its TLS session counts against the budget.
    pub(super) holds_tls: AtomicBool,
    /// 0 until the dialect is known, then its place in [`Dialect::ALL`], counted from 1.
    pub(super) dialect: AtomicU8,
    /// Whether it waits for the first byte of a request.
    pub(super) at_boundary: AtomicBool,
    /// Seconds after `opened` of its last request, or up to a second before it.
    last_request_s: AtomicU32,
}

impl Connection {
    /// The place of its dialect in [`Dialect::ALL`]; out of range until it is known.
    pub(super) fn dialect_index(&self) -> usize {
        usize::from(self.dialect.load(Ordering::Relaxed).wrapping_sub(1))
    }

    /// The address that its client reached, if the command is one about addresses.
    pub(super) fn local_for(&self, command: &ServerCommand<'_>) -> Option<SocketAddr> {
        match command {
            ServerCommand::ClusterView => self.socket.local_addr(),
            _ => None,
        }
    }

    pub(super) fn startup(&self) -> StartupState {
        match self.startup.load(Ordering::Relaxed) {
            0 => StartupState::Over,
            1 => StartupState::UnderWay,
            _ => StartupState::Held,
        }
    }

    pub(super) fn set_startup(&self, state: StartupState) {
        self.startup.store(state as u8, Ordering::Relaxed);
    }

    /// How long ago it was opened.
    pub(super) fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// Notes that a request has arrived.
    pub(super) fn touch(&self, now: Instant) {
        let seconds = now.saturating_duration_since(self.opened).as_secs() as u32;
        self.last_request_s.store(seconds, Ordering::Relaxed);
    }
}

/// What is told about a connection.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Its number.
    pub id: u64,
    /// The other end.
    pub peer: String,
    /// `unknown`, `text`, `binary` or `resp`.
    pub dialect: &'static str,
    /// Whether it waits for a request.
    pub idle: bool,
    /// Seconds since it was opened.
    pub age_s: u64,
    /// Seconds since its last request.
    pub idle_s: u64,
}

/// A connection in the registry. It is taken out when this is dropped, also if its task panics or
/// is dropped with its reactor.
pub(super) struct Registered<S: Service> {
    pub shared: Arc<Shared<S>>,
    pub connection: Arc<Connection>,
}

impl<S: Service> Drop for Registered<S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.service.count(Event::Panicked, 1);
            tracing::error!(
                id = self.connection.id,
                "serving a connection panicked; it is closed, and the process goes on"
            );
        }
        if self.connection.startup() != StartupState::Over {
            self.shared.startups.end(self.connection.id);
        }
        self.shared
            .memory
            .release_tls(&self.shared, &self.connection);
        self.shared.registry.remove(&self.connection);
    }
}

/// All connections.
#[derive(Debug)]
pub struct Registry {
    last_id: AtomicU64,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    count: AtomicUsize,
    by_reactor: Box<[AtomicUsize]>,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            last_id: AtomicU64::new(0),
            connections: Mutex::default(),
            count: AtomicUsize::new(0),
            by_reactor: (0..REACTORS_MAX).map(|_| AtomicUsize::new(0)).collect(),
        }
    }
}

impl Registry {
    /// How many connections there are, those on their way to a reactor included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The reactor, of `reactors`, that has the fewest connections.
    pub(super) fn least_loaded(&self, reactors: usize) -> usize {
        let load = |index: &usize| self.by_reactor[*index].load(Ordering::Relaxed);
        (0..reactors.min(REACTORS_MAX))
            .min_by_key(load)
            .unwrap_or(0)
    }

    /// Counts a connection that no reactor serves, unless there are `max` connections.
    pub(super) fn take_place(&self, max: usize) -> bool {
        let take = |count: usize| (count < max).then_some(count + 1);
        let taken = self
            .count
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        taken.is_ok()
    }

    /// A connection that no reactor served has ended.
    pub(super) fn give_back_place(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// A connection is on its way to a reactor.
    pub(super) fn pending(&self, reactor: usize) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.by_reactor[reactor % REACTORS_MAX].fetch_add(1, Ordering::Relaxed);
    }

    /// A connection that was on its way is gone.
    pub(super) fn forget_pending(&self, reactor: usize) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        self.by_reactor[reactor % REACTORS_MAX].fetch_sub(1, Ordering::Relaxed);
    }

    /// A connection has arrived at its reactor.
    pub(super) fn add(&self, socket: Socket, peer: String, reactor: usize) -> Arc<Connection> {
        let address = peer.parse().ok().map(|peer: SocketAddr| peer.ip());
        let connection = Arc::new(Connection {
            id: self.last_id.fetch_add(1, Ordering::Relaxed) + 1,
            socket,
            source: Source::of(address),
            peer,
            reactor,
            opened: Instant::now(),
            startup: AtomicU8::new(StartupState::Over as u8),
            holds_tls: AtomicBool::new(false),
            dialect: AtomicU8::new(0),
            at_boundary: AtomicBool::new(false),
            last_request_s: AtomicU32::new(0),
        });
        self.connections
            .lock()
            .insert(connection.id, Arc::clone(&connection));
        connection
    }

    /// The connection of a number, if it is still there.
    pub(super) fn get(&self, id: u64) -> Option<Arc<Connection>> {
        self.connections.lock().get(&id).map(Arc::clone)
    }

    /// A connection has ended.
    fn remove(&self, connection: &Connection) {
        self.connections.lock().remove(&connection.id);
        self.forget_pending(connection.reactor);
    }

    /// Ends the connections that wait for a request.
    pub(super) fn close_idle(&self) {
        for connection in self.connections.lock().values() {
            if connection.at_boundary.load(Ordering::SeqCst) {
                connection.socket.end_reading();
            }
        }
    }

    /// What is told about each connection, in the order in which they came.
    #[must_use]
    pub fn list(&self) -> Vec<ConnectionInfo> {
        let connections = self.connections.lock();
        let mut list: Vec<_> = connections.values().map(|it| info(it)).collect();
        drop(connections);
        list.sort_by_key(|it| it.id);
        list
    }
}

fn info(connection: &Connection) -> ConnectionInfo {
    let age_s = connection.opened.elapsed().as_secs();
    let last_s = u64::from(connection.last_request_s.load(Ordering::Relaxed));
    ConnectionInfo {
        id: connection.id,
        peer: connection.peer.clone(),
        dialect: Dialect::ALL
            .get(connection.dialect_index())
            .map_or("unknown", |dialect| dialect.name()),
        idle: connection.at_boundary.load(Ordering::Relaxed),
        age_s,
        idle_s: age_s.saturating_sub(last_s),
    }
}
