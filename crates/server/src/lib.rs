//! The socket server of node and router: listeners, reactors, connections.
//!
//! It speaks the dialects of `fonn_proto` and has a [`Service`] execute what clients ask for.
//!
//! One thread accepts for each listener and hands a connection to the reactor that has the fewest.
//! A reactor is a thread with a runtime of its own, and a connection stays on it for life, so its
//! buffers and its work never cross a core. Blocking work is done elsewhere: a reactor only parses,
//! asks the service, and moves bytes.

mod arrivals;
mod budget;
mod connection;
mod input;
mod kept;
mod keys;
mod limits;
mod listener;
mod low_water;
mod memory;
mod overlay;
mod peer;
mod pool;
mod registry;
pub mod report;
mod scope;
mod security;
mod service;
mod settings;
mod socket;
mod startups;
mod strangers;
mod tuning;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fonn_auth::Security;
use fonn_base::config::InForce;
use fonn_base::metrics::striped::Latency;
use fonn_proto::Limits;
use tokio::sync::{mpsc, watch};

pub use self::budget::{Budget, FixedBudget};
pub use self::connection::task_len;
pub use self::keys::{KEYS_PAGE, KeyGatherer};
pub use self::limits::connections_max;
pub use self::listener::{ListenAddr, Listener};
use self::memory::Memory;
pub use self::memory::Reservation;
pub use self::overlay::{carry_out_in, hits_in};
use self::registry::Registered;
pub use self::registry::{ConnectionInfo, Registry};
pub use self::scope::Scope;
pub use self::service::{
    Acks, Answered, Client, Event, Execution, Job, Later, NoAcks, Service, Stored, carry_out,
};
pub use self::settings::{IMMUTABLE, all_immutable, refused_setting, unknown_setting};
use self::socket::Accepted;
use self::startups::{Deadlines, STARTUPS_MAX};
pub use self::strangers::{Strangers, StrangersMax};
pub use self::tuning::Tuning;

/// Accepted connections that may wait for their reactor to take them.
const HANDOVER_QUEUE: usize = 1024;

/// What a request takes beside its value, in bytes: its key, and the step in which its buffer
/// grows.
const KEY_ROOM: usize = 32 * 1024;

/// While connections cannot be accepted, it is said this often.
const ACCEPT_WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// What all reactors share.
pub struct Shared<S> {
    /// The executor of commands.
    pub service: Arc<S>,
    /// What `stats settings` and `CONFIG GET` tell.
    pub settings: InForce,
    /// Connections that live at the same time at most.
    pub connections_max: usize,
    /// The connections there are.
    pub registry: Registry,
    /// Latency of requests by dialect: text and meta, binary, RESP. Requests that arrived in one
    /// read count with the mean of their batch.
    pub latency: [Latency; 3],
    /// When the server started.
    pub started: Instant,
    /// The users.
    pub security: Security,
    tuning: Tuning,
    memory: Memory,
    startups: Strangers<()>,
    draining_since: OnceLock<Instant>,
}

impl<S: Service> Shared<S> {
    /// The shared part of a server.
    #[must_use]
    pub fn new(service: Arc<S>, settings: impl Into<InForce>, connections_max: usize) -> Arc<Self> {
        let tuning = Tuning::default();
        Self::with_tuning(
            service,
            settings,
            connections_max,
            tuning,
            Security::default(),
        )
    }

    /// As [`Shared::new`], with other bounds, and protected.
    #[must_use]
    pub fn with_tuning(
        service: Arc<S>,
        settings: impl Into<InForce>,
        connections_max: usize,
        tuning: Tuning,
        security: Security,
    ) -> Arc<Self> {
        Arc::new(Self {
            service,
            settings: settings.into(),
            connections_max,
            registry: Registry::default(),
            latency: Default::default(),
            started: Instant::now(),
            security,
            tuning,
            memory: Memory::default(),
            startups: Strangers::new(STARTUPS_MAX),
            draining_since: OnceLock::new(),
        })
    }

    /// The longest value in bytes that a client may send: one that the service takes, and that fits
    /// the memory for requests beside its key.
    #[must_use]
    pub fn value_len_max(&self) -> usize {
        let received_max = self.service.budget().bytes_max();
        let fitting = received_max.saturating_sub(KEY_ROOM);
        self.service.value_len_max().min(fitting)
    }

    fn limits(&self) -> Limits {
        Limits {
            value_len_max: self.value_len_max(),
        }
    }

    /// How patient the server is with its clients.
    #[must_use]
    pub const fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Whether requests wait for memory.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.memory.is_contended()
    }

    /// Counts a connection that another server of the process serves, until
    /// [`Shared::give_back_place`]. False if there are as many connections as there may be.
    #[must_use]
    pub fn take_place(&self) -> bool {
        self.registry.take_place(self.connections_max)
    }

    /// Takes back what [`Shared::take_place`] counted.
    pub fn give_back_place(&self) {
        self.registry.give_back_place();
    }

    /// Whether the server is shutting down.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining_since.get().is_some()
    }

    fn drains_longer_than(&self, time: Duration) -> bool {
        self.draining_since
            .get()
            .is_some_and(|since| since.elapsed() >= time)
    }

    /// Bytes reserved for requests that are arriving.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        self.memory.reserved_bytes()
    }

    /// Bytes of replies that clients do not read yet.
    #[must_use]
    pub fn unsent_bytes(&self) -> usize {
        self.memory.unsent_bytes()
    }
}

/// The running server.
pub struct Server<S> {
    shared: Arc<Shared<S>>,
    listeners: Vec<Listener>,
    acceptors: Vec<JoinHandle<()>>,
    reactors: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
}

impl<S: Service> Server<S> {
    /// Starts `threads` reactors and accepts on all listeners.
    ///
    /// # Errors
    /// If a thread or its runtime cannot be made.
    pub fn start(
        shared: Arc<Shared<S>>,
        listeners: Vec<Listener>,
        threads: usize,
    ) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let mut reactors = Vec::new();
        let mut inboxes = Vec::new();
        for index in 0..threads.max(1) {
            let (inbox, accepted) = mpsc::channel(HANDOVER_QUEUE);
            inboxes.push(inbox);
            let (shared, stopped) = (Arc::clone(&shared), stopped.clone());
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            reactors.push(
                std::thread::Builder::new()
                    .name(format!("reactor-{index}"))
                    .spawn(move || runtime.block_on(react(shared, index, accepted, stopped)))?,
            );
        }
        let mut acceptors = Vec::new();
        for (index, listener) in listeners.iter().enumerate() {
            let acceptor = listener.try_clone()?;
            let (shared, inboxes) = (Arc::clone(&shared), inboxes.clone());
            acceptors.push(
                std::thread::Builder::new()
                    .name(format!("accept-{index}"))
                    .spawn(move || accept(&shared, &acceptor, &inboxes))?,
            );
        }
        Ok(Self {
            shared,
            listeners,
            acceptors,
            reactors,
            stop,
        })
    }

    /// Stops accepting, lets requests that are under way finish until `deadline`, and ends the
    /// reactors. Blocks.
    pub fn drain(self, deadline: Duration) {
        let end = Instant::now() + deadline;
        let _ = self.shared.draining_since.set(Instant::now());
        // Orders the mark before the look at idle connections, as the connection does the other way
        // round.
        fence(Ordering::SeqCst);
        self.listeners.iter().for_each(Listener::close);
        for acceptor in self.acceptors {
            let _ = acceptor.join();
        }
        self.shared.registry.close_idle();
        while !self.shared.registry.is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
            self.shared.registry.close_idle();
        }
        let left = self.shared.registry.len();
        if left > 0 {
            tracing::warn!(
                connections = left,
                "closing connections in the middle of a request"
            );
        }
        // The receivers live as long as their reactors; if all are gone there is no receiver.
        let _ = self.stop.send(true);
        for reactor in self.reactors {
            let _ = reactor.join();
        }
    }
}

/// The life of one reactor.
async fn react<S: Service>(
    shared: Arc<Shared<S>>,
    index: usize,
    mut accepted: mpsc::Receiver<Accepted>,
    mut stop: watch::Receiver<bool>,
) {
    let mut deadlines = Deadlines::default();
    let mut accepts = true;
    loop {
        tokio::select! {
            connection = accepted.recv(), if accepts => match connection {
                Some(connection) => spawn_connection(&shared, index, connection, &mut deadlines),
                // All acceptors have ended: only the connections that there are go on.
                None => accepts = false,
            },
            () = deadlines.due() => deadlines.expire(&shared),
            _ = stop.changed() => return,
        }
    }
}

fn spawn_connection<S: Service>(
    shared: &Arc<Shared<S>>,
    reactor: usize,
    accepted: Accepted,
    deadlines: &mut Deadlines,
) {
    match accepted.into_socket(&shared.security) {
        Ok((socket, peer)) => {
            let connection = shared.registry.add(socket, peer, reactor);
            if shared.begin_startup(&connection) {
                deadlines.add(Instant::now() + shared.tuning.startup_max, connection.id);
            }
            tokio::spawn(connection::serve(Registered {
                shared: Arc::clone(shared),
                connection,
            }));
        }
        Err(error) => {
            shared.registry.forget_pending(reactor);
            tracing::debug!(%error, "a connection was gone before it was served");
        }
    }
}

/// Accepts until the listener is closed.
fn accept<S: Service>(shared: &Shared<S>, listener: &Listener, inboxes: &[mpsc::Sender<Accepted>]) {
    let service = &*shared.service;
    let mut warned: Option<Instant> = None;
    loop {
        match listener.accept() {
            Ok(accepted) => {
                if shared.is_draining() {
                    return;
                }
                if shared.registry.len() >= shared.connections_max {
                    service.count(Event::Rejected, 1);
                    continue;
                }
                service.count(Event::Accepted, 1);
                let reactor = shared.registry.least_loaded(inboxes.len());
                shared.registry.pending(reactor);
                if inboxes[reactor].blocking_send(accepted).is_err() {
                    return;
                }
            }
            Err(_) if shared.is_draining() => return,
            // A client that left at once.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Out of descriptors, most likely: not cured by haste, and not by a flood of log
                // lines.
                if warned.is_none_or(|at| at.elapsed() >= ACCEPT_WARNING_INTERVAL) {
                    tracing::warn!(%error, "cannot accept connections");
                    warned = Some(Instant::now());
                }
                service.count(Event::Rejected, 1);
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
