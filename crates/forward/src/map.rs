//! The topology in force, for all reactors of a process.
//!
//! The map also ends the connections to members that a new topology declares down. A member that
//! lost power or its link never closes a connection, so requests under way would wait for their own
//! timeouts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fonn_rpc::{CallError, Client, WeakClient};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::topology::Topology;

/// The topology in force, for all reactors of a process.
#[derive(Debug)]
pub struct Map {
    topology: watch::Sender<Option<Arc<Topology>>>,
    /// That of the topology, so that looking whether there is another one costs a load.
    epoch: AtomicU64,
    /// The highest epoch that some member was seen to apply, and since when members apply a newer
    /// one than the topology in force.
    wanted: watch::Sender<(u64, Option<Instant>)>,
    applied_at: Mutex<Option<SystemTime>>,
    /// Clients of members by member id, on all reactors.
    clients: Mutex<Vec<(String, WeakClient)>>,
}

impl Default for Map {
    fn default() -> Self {
        Self {
            topology: watch::Sender::new(None),
            epoch: AtomicU64::new(0),
            wanted: watch::Sender::new((0, None)),
            applied_at: Mutex::default(),
            clients: Mutex::default(),
        }
    }
}

impl Map {
    /// The map, once there is one.
    #[must_use]
    pub fn topology(&self) -> Option<Arc<Topology>> {
        self.topology.borrow().clone()
    }

    /// The epoch of the topology in force; 0 before there is one.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Replaces the topology if `new` is newer, and returns whether it was. Requests under way to
    /// members that do not serve by it are resolved at once with [`CallError::Down`].
    pub fn offer(&self, new: Topology) -> bool {
        let is_newer = self.replace(new);
        if is_newer {
            let topology = self.topology();
            *self.applied_at.lock() = Some(SystemTime::now());
            self.wanted.send_if_modified(|(wanted, lags_since)| {
                if self.epoch() >= *wanted {
                    *lags_since = None;
                }
                false
            });
            let serves = |id: &str| topology.as_deref().is_some_and(|it| serves(it, id));
            // A client that is registered from here on finds the new topology: see `register`.
            self.clients.lock().retain(|(id, client)| {
                let is_kept = serves(id);
                if !is_kept {
                    client.close(CallError::Down);
                }
                is_kept && !client.is_gone()
            });
        }
        is_newer
    }

    /// Has a client closed when a topology comes by which its member `id` does not serve.
    pub(super) fn register(&self, id: &str, client: &Client) {
        let mut clients = self.clients.lock();
        clients.push((id.to_owned(), client.downgrade()));
        // The topology may have been replaced since the caller looked at it.
        if !self.topology().is_some_and(|it| serves(&it, id)) {
            client.close(CallError::Down);
        }
    }

    fn replace(&self, new: Topology) -> bool {
        self.topology.send_if_modified(|topology| {
            let is_newer = topology
                .as_deref()
                .is_none_or(|current| new.epoch() > current.epoch());
            if is_newer {
                // Before waiting tasks are woken, which would look at the old one.
                self.epoch.store(new.epoch(), Ordering::Release);
                *topology = Some(Arc::new(new));
            }
            is_newer
        })
    }

    /// Waits until there is a map of at least this epoch; false if none comes in time.
    pub async fn wait_for(&self, epoch: u64, timeout: Duration) -> bool {
        let mut changes = self.topology.subscribe();
        let wait = changes.wait_for(|topology| {
            topology
                .as_deref()
                .is_some_and(|topology| topology.epoch() >= epoch)
        });
        matches!(tokio::time::timeout(timeout, wait).await, Ok(Ok(_)))
    }

    /// A member was seen that applies the topology of this epoch.
    pub fn want(&self, epoch: u64) {
        self.wanted.send_if_modified(|(wanted, lags_since)| {
            // The epoch is looked at under the lock: `offer` replaces it first, and then clears the
            // time.
            if epoch > self.epoch() {
                lags_since.get_or_insert_with(Instant::now);
            }
            let is_more = epoch > *wanted;
            *wanted = epoch.max(*wanted);
            is_more
        });
    }

    /// How long ago a member was first seen that applies a newer topology; zero if none does.
    #[must_use]
    pub fn lag(&self, now: Instant) -> Duration {
        let (_, since) = *self.wanted.borrow();
        since.map_or(Duration::ZERO, |at| now.saturating_duration_since(at))
    }

    /// When the topology in force was taken; `None` before there is one.
    #[must_use]
    pub fn applied_at(&self) -> Option<SystemTime> {
        *self.applied_at.lock()
    }

    /// Waits until a map is wanted that does not come for so long: the source of the map is behind.
    pub async fn behind(&self, patience: Duration) {
        let mut wanted = self.wanted.subscribe();
        let mut told = self.topology.subscribe();
        let epoch = |it: &Option<Arc<Topology>>| it.as_deref().map_or(0, Topology::epoch);
        loop {
            let known = epoch(&told.borrow_and_update());
            // The sender is here.
            let (newest, _) = *wanted.borrow_and_update();
            if newest <= known {
                let _ = wanted.changed().await;
                continue;
            }
            let comes = told.wait_for(|it| epoch(it) >= newest);
            if tokio::time::timeout(patience, comes).await.is_err() {
                return;
            }
        }
    }
}

/// Whether the member `id` serves by a topology.
fn serves(topology: &Topology, id: &str) -> bool {
    topology
        .member(id)
        .is_some_and(|member| member.state.is_serving())
}
