//! Memory that clients make the server hold: requests on their way in, replies on their way out.
//!
//! Both count against the service's [`Budget`]. A request is charged for the bytes that have come,
//! step by step. It waits for its first memory, first come first served, and for more, and is
//! refused as busy if that takes too long. One source address holds no more than its share. A reply
//! is there already when it turns out that its client does not read it; so if too much is unsent,
//! the connection that made no progress for the longest time is cut off. Neither needs more than
//! the budget, however many clients there are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fonn_auth::Source;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::Shared;
use super::arrivals::Arrivals;
use super::budget::Budget;
use super::registry::Connection;
use super::service::{Event, Service};

/// Bytes that requests which wait for memory may hold meanwhile, all together. What comes on top is
/// refused at once.
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What one waiting request holds besides what was received of it.
const WAITING_COST: usize = 2 * 1024;

/// What a TLS session takes besides what a connection takes without: keys, and the buffers for
/// records.
const TLS_COST: usize = 24 * 1024;

/// The part of the budget that the requests of one source address may hold: one of so many.
const SHARES: usize = 2;

/// How often the first in the queue looks whether its memory is there.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What clients make the server hold.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Held by the request that is next to get memory; the mutex is fair.
    turn: tokio::sync::Mutex<()>,
    /// What the requests hold that wait for their first memory; 0 if there are none.
    waiting_bytes: AtomicUsize,
    /// How many of them wait for memory, and not for the share of their source.
    queued: AtomicUsize,
    /// The requests of clients that hold memory.
    arrivals: Arrivals,
    tls_bytes: AtomicUsize,
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
pub struct Reservation<'s, S: Service> {
    shared: &'s Shared<S>,
    bytes: usize,
    /// Its number among those of clients; None for one of a member or router, which are trusted.
    ticket: Option<u64>,
}

impl<S: Service> Drop for Reservation<'_, S> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.memory.arrivals.end(ticket);
        }
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

/// A request that waits for memory and not for its source's share, also if the wait is cancelled.
struct Queued<'s>(&'s Memory);

impl<'s> Queued<'s> {
    fn new(memory: &'s Memory) -> Self {
        memory.queued.fetch_add(1, Ordering::AcqRel);
        Self(memory)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.queued.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request that waits for more memory, also if the wait is cancelled.
struct WaitsForMore<'s> {
    arrivals: &'s Arrivals,
    ticket: u64,
}

impl Drop for WaitsForMore<'_> {
    fn drop(&mut self) {
        self.arrivals.set_waits(self.ticket, false);
    }
}

impl<'s, S: Service> Reservation<'s, S> {
    /// Reserves `bytes` for a request if they are there and no other request waits for any: a later
    /// one does not overtake. `source` is that of the client; None for a member or router.
    pub fn try_make(shared: &'s Shared<S>, source: Option<Source>, bytes: usize) -> Option<Self> {
        match shared.memory.is_contended() {
            true => None,
            false => Self::take(shared, source, bytes),
        }
    }

    fn take(shared: &'s Shared<S>, source: Option<Source>, bytes: usize) -> Option<Self> {
        let memory = &shared.memory;
        let ticket = match source {
            Some(source) => Some(memory.arrivals.begin(source, bytes, share_max(shared))?),
            None => None,
        };
        if !memory.try_reserve(shared, bytes, shared.service.budget().bytes_max()) {
            if let Some(ticket) = ticket {
                memory.arrivals.end(ticket);
            }
            return None;
        }
        Some(Self {
            shared,
            bytes,
            ticket,
        })
    }

    /// As [`Reservation::try_make`], for a request that holds `received` bytes already; waits for
    /// its turn and for the memory. None if that takes longer than [`super::Tuning::memory_wait`],
    /// or if too many wait.
    pub async fn make(
        shared: &'s Shared<S>,
        source: Option<Source>,
        bytes: usize,
        received: usize,
    ) -> Option<Self> {
        let memory = &shared.memory;
        let _waiting = Waiting::new(memory, received.saturating_add(WAITING_COST))?;
        let is_share_held = || {
            source.is_some_and(|source| {
                let share_max = share_max(shared);
                memory.arrivals.is_share_held(source, bytes, share_max)
            })
        };
        let made = timeout(shared.tuning.memory_wait, async {
            loop {
                // Not in the way of other sources.
                while is_share_held() {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                let _queued = Queued::new(memory);
                let _turn = memory.turn.lock().await;
                while !is_share_held() {
                    // What has begun to arrive comes first.
                    if !memory.arrivals.wait()
                        && let Some(made) = Self::take(shared, source, bytes)
                    {
                        return made;
                    }
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        });
        made.await.ok()
    }

    /// Reserves `more` bytes besides, if they are there.
    pub fn try_grow(&mut self, more: usize) -> bool {
        let shared = self.shared;
        let (memory, share_max) = (&shared.memory, share_max(shared));
        if let Some(ticket) = self.ticket
            && !memory.arrivals.grow(ticket, more, share_max)
        {
            return false;
        }
        let is_oldest = |ticket| memory.arrivals.is_oldest(ticket);
        let bytes_max = match self.ticket.is_some_and(is_oldest) && self.may_have(more) {
            true => usize::MAX,
            false => shared.service.budget().bytes_max(),
        };
        let is_reserved = memory.try_reserve(shared, more, bytes_max);
        if is_reserved {
            self.bytes += more;
        } else if let Some(ticket) = self.ticket {
            memory.arrivals.shrink(ticket, more);
        }
        is_reserved
    }

    /// As [`Reservation::try_grow`]; waits for the memory. False if that takes longer than
    /// [`super::Tuning::memory_wait`], or at once if the request does not fit the budget by itself.
    pub async fn grow(&mut self, more: usize) -> bool {
        let shared = self.shared;
        let memory = &shared.memory;
        let Some(ticket) = self.ticket.filter(|_| self.may_have(more)) else {
            return self.try_grow(more);
        };
        memory.arrivals.set_waits(ticket, true);
        let _waits = WaitsForMore {
            arrivals: &memory.arrivals,
            ticket,
        };
        let grown = timeout(shared.tuning.memory_wait, async {
            loop {
                if self.try_grow(more) {
                    return;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
        grown.await.is_ok()
    }

    /// Whether the request fits the budget by itself with `more` bytes besides.
    fn may_have(&self, more: usize) -> bool {
        self.bytes.saturating_add(more) <= self.shared.service.budget().bytes_max()
    }

    /// Bytes that are reserved.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Bytes that the requests of one source may hold.
fn share_max<S: Service>(shared: &Shared<S>) -> usize {
    shared.service.budget().bytes_max() / SHARES
}

impl Memory {
    /// Reserves bytes. False if requests and unsent replies would have more than `bytes_max` then.
    fn try_reserve<S: Service>(&self, shared: &Shared<S>, bytes: usize, bytes_max: usize) -> bool {
        let budget = shared.service.budget();
        // One request always goes, however small the budget is.
        let held = budget.reserved();
        let all = held.saturating_add(self.unsent_bytes.load(Ordering::Relaxed));
        (held == 0 || all.saturating_add(bytes) <= bytes_max) && budget.reserve(bytes, bytes_max)
    }

    /// Whether requests wait for memory.
    pub fn is_contended(&self) -> bool {
        self.queued.load(Ordering::Acquire) > 0 || self.arrivals.wait()
    }

    /// Counts the TLS session of a connection until [`Memory::release_tls`]. False if those that
    /// there are take all of the budget.
    pub fn hold_tls<S: Service>(&self, shared: &Shared<S>, connection: &Connection) -> bool {
        let budget = shared.service.budget();
        let before = self.tls_bytes.fetch_add(TLS_COST, Ordering::Relaxed);
        if before > 0 && before.saturating_add(TLS_COST) > budget.bytes_max() {
            self.tls_bytes.fetch_sub(TLS_COST, Ordering::Relaxed);
            return false;
        }
        budget.hold(TLS_COST);
        connection.holds_tls.store(true, Ordering::Relaxed);
        true
    }

    /// Takes back what [`Memory::hold_tls`] counted for a connection, if it did.
    pub fn release_tls<S: Service>(&self, shared: &Shared<S>, connection: &Connection) {
        if connection.holds_tls.swap(false, Ordering::Relaxed) {
            self.tls_bytes.fetch_sub(TLS_COST, Ordering::Relaxed);
            shared.service.budget().let_go(TLS_COST);
        }
    }

    /// Whether so much is unsent that replies should gather less before they are sent.
    pub fn is_crowded<S: Service>(&self, shared: &Shared<S>) -> bool {
        self.unsent_bytes() > shared.service.budget().bytes_max() / 4
    }

    /// Bytes of replies that clients do not read yet.
    pub fn unsent_bytes(&self) -> usize {
        self.unsent_bytes.load(Ordering::Relaxed)
    }

    /// Counts `bytes` of replies that the kernel did not take. While that would be too much, the
    /// connection that made no progress for the longest time is cut off first. `connection` itself
    /// stays.
    pub fn hold_unsent<'s, S: Service>(
        &self,
        shared: &'s Shared<S>,
        connection: &Arc<Connection>,
        bytes: usize,
    ) -> UnsentGuard<'s, S> {
        let bytes_max = shared.service.budget().bytes_max();
        let mut unsent = self.unsent.lock();
        // Room is made first, so that the limit holds at every moment. Only this adds, under the
        // lock.
        while self.unsent_bytes() + bytes > bytes_max {
            let Some((_, victim)) = unsent.blocked.pop_first() else {
                break;
            };
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
        unsent.last_ticket += 1;
        let ticket = unsent.last_ticket;
        let connection = Arc::clone(connection);
        unsent.blocked.insert(ticket, Blocked { bytes, connection });
        shared.service.budget().hold(bytes);
        self.unsent_bytes.fetch_add(bytes, Ordering::Relaxed);
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
