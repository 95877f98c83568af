//! Memory that clients make the server hold: requests on their way in, replies on their way out.
//!
//! Both count against the service's [`Budget`]. A request waits for its memory, first come first served, and is
//! refused as busy if that takes too long. A reply is there already when it turns out that its client
//! does not read it; so if too much is unsent, the connection that made no progress for the longest
//! time is cut off. Neither needs more than the budget, however many clients there are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::timeout;

use super::Shared;
use super::budget::Budget;
use super::registry::Connection;
use super::service::{Event, Service};

/// Bytes that requests which wait for memory may hold meanwhile, all together. What comes on top is
/// refused at once.
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What one waiting request holds besides what was received of it.
const WAITING_COST: usize = 2 * 1024;

/// How often the first in the queue looks whether its memory is there.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What clients make the server hold.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Held by the request that is next to get memory; the mutex is fair.
    turn: tokio::sync::Mutex<()>,
    /// What the requests in the queue hold; 0 if there are none.
    waiting_bytes: AtomicUsize,
    unsent_bytes: AtomicUsize,
    unsent: Mutex<Unsent>,
}

#[derive(Debug, Default)]
struct Unsent {
    last_ticket: u64,
    /// By ticket, so that the first one made no progress for the longest time.
    blocked: BTreeMap<u64, Blocked>,
}

#[derive(Debug)]
struct Blocked {
    bytes: usize,
    connection: Arc<Connection>,
}

/// Memory reserved for a request that is arriving.
pub(super) struct Reservation<'s, S: Service> {
    shared: &'s Shared<S>,
    bytes: usize,
}

impl<S: Service> Drop for Reservation<'_, S> {
    fn drop(&mut self) {
        self.shared.service.budget().release(self.bytes);
    }
}

/// Replies that a client does not read yet; they count until this is dropped.
pub(super) struct UnsentGuard<'s, S: Service> {
    shared: &'s Shared<S>,
    ticket: u64,
}

impl<S: Service> Drop for UnsentGuard<'_, S> {
    fn drop(&mut self) {
        self.shared.memory.forget(self.shared, self.ticket);
    }
}

/// A place in the queue, also if the wait is cancelled.
struct Waiting<'s> {
    memory: &'s Memory,
    bytes: usize,
}

impl<'s> Waiting<'s> {
    /// None if the queue is full.
    fn new(memory: &'s Memory, bytes: usize) -> Option<Self> {
        let before = memory.waiting_bytes.fetch_add(bytes, Ordering::AcqRel);
        let waiting = Self { memory, bytes };
        (before.saturating_add(bytes) <= WAITING_BYTES_MAX).then_some(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.memory
            .waiting_bytes
            .fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl<'s, S: Service> Reservation<'s, S> {
    /// Reserves `bytes` for a request if they are there and nobody waits for any: whoever comes later
    /// does not overtake.
    pub fn try_make(shared: &'s Shared<S>, bytes: usize) -> Option<Self> {
        let memory = &shared.memory;
        (!memory.is_contended() && memory.try_reserve(shared, bytes))
            .then(|| Self { shared, bytes })
    }

    /// Reserves `bytes` for a request that holds `received` bytes already; waits for its turn and for
    /// the memory. None if that takes longer than [`super::Tuning::memory_wait`], or if too many wait.
    pub async fn make(shared: &'s Shared<S>, bytes: usize, received: usize) -> Option<Self> {
        let memory = &shared.memory;
        let _waiting = Waiting::new(memory, received.saturating_add(WAITING_COST))?;
        let reserved = timeout(shared.tuning.memory_wait, async {
            let _turn = memory.turn.lock().await;
            while !memory.try_reserve(shared, bytes) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
        reserved.await.is_ok().then(|| Self { shared, bytes })
    }

    /// Bytes that are reserved.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes over what another one reserved.
    pub fn merge(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Memory {
    fn try_reserve<S: Service>(&self, shared: &Shared<S>, bytes: usize) -> bool {
        let budget = shared.service.budget();
        // One request always goes, however small the budget is.
        let held = budget.reserved();
        let all = held.saturating_add(self.unsent_bytes.load(Ordering::Relaxed));
        (held == 0 || all.saturating_add(bytes) <= budget.bytes_max()) && budget.reserve(bytes)
    }

    /// Whether requests wait for memory.
    pub fn is_contended(&self) -> bool {
        self.waiting_bytes.load(Ordering::Acquire) > 0
    }

    /// Whether so much is unsent that replies should gather less before they are sent.
    pub fn is_crowded<S: Service>(&self, shared: &Shared<S>) -> bool {
        self.unsent_bytes() > shared.service.budget().bytes_max() / 4
    }

    /// Bytes of replies that clients do not read yet.
    pub fn unsent_bytes(&self) -> usize {
        self.unsent_bytes.load(Ordering::Relaxed)
    }

    /// Counts `bytes` of replies that the kernel did not take, and cuts off whoever made no progress
    /// for the longest time while that is too much. The connection itself stays.
    pub fn hold_unsent<'s, S: Service>(
        &self,
        shared: &'s Shared<S>,
        connection: &Arc<Connection>,
        bytes: usize,
    ) -> UnsentGuard<'s, S> {
        let bytes_max = shared.service.budget().bytes_max();
        let mut unsent = self.unsent.lock();
        unsent.last_ticket += 1;
        let ticket = unsent.last_ticket;
        let connection = Arc::clone(connection);
        unsent.blocked.insert(ticket, Blocked { bytes, connection });
        shared.service.budget().hold(bytes);
        let mut total = self.unsent_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        while total > bytes_max && unsent.blocked.len() > 1 {
            let Some((_, victim)) = unsent.blocked.pop_first() else {
                break;
            };
            total -= victim.bytes;
            self.release(shared, victim.bytes);
            // Its task wakes up, finds the socket broken, and ends.
            victim.connection.socket.abort();
            shared.service.count(Event::Stalled, 1);
            tracing::debug!(
                id = victim.connection.id,
                bytes = victim.bytes,
                "cut off: too much is unsent, and this client read nothing for the longest time"
            );
        }
        UnsentGuard { shared, ticket }
    }

    fn forget<S: Service>(&self, shared: &Shared<S>, ticket: u64) {
        let blocked = self.unsent.lock().blocked.remove(&ticket);
        if let Some(blocked) = blocked {
            self.release(shared, blocked.bytes);
        }
    }

    fn release<S: Service>(&self, shared: &Shared<S>, bytes: usize) {
        self.unsent_bytes.fetch_sub(bytes, Ordering::Relaxed);
        shared.service.budget().let_go(bytes);
    }
}
