//! Memory that clients make the server hold: requests on their way in, replies on their way out.
//!
//! Both count against the service's [`Budget`]. A request is charged for the bytes that have come,
//! step by step. It waits for its first memory, first come first served, and for more, and is
//! refused as busy if that takes too long. One source address holds no more than its share. A reply
//! is there already when it turns out that its client does not read it; so if too much is unsent,
//! the connection that made no progress for the longest time is cut off, first among those of
//! sources with more than a quarter of the budget. Neither needs more than the budget, however many
//! clients there are. Unread replies leave a quarter of it to requests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fonn_auth::Source;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::Shared;
use super::arrivals::Arrivals;
use super::budget::Budget;
use super::kept::Kept;
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

/// Of the sources that have more than one of so many parts of the budget in unsent replies, the
/// connections are cut off first.
const UNSENT_SHARES: usize = 4;

/// Requests have one of so many parts of the budget, however much is unsent.
const REQUEST_SHARES: usize = 4;

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
    /// Reserved for requests that are arriving.
    reserved_bytes: AtomicUsize,
    tls_bytes: AtomicUsize,
    unsent_bytes: AtomicUsize,
    unsent: Mutex<Unsent>,
    /// What connections keep between requests.
    pub(super) kept: Kept,
}

#[derive(Debug, Default)]
struct Unsent {
    last_ticket: u64,
    /// By ticket, so that the first one made no progress for the longest time.
    blocked: BTreeMap<u64, Blocked>,
    bytes_by_source: HashMap<Source, usize>,
}

#[derive(Debug)]
struct Blocked {
    bytes: usize,
    connection: Arc<Connection>,
    /// The task of the connection, if it waits for something else than its socket.
    waker: Option<Waker>,
}

impl Unsent {
    /// The ticket of the connection that is cut off next: the first one of a source that holds more
    /// than `share_max`, or else the first one of all.
    fn next_victim(&self, share_max: usize) -> Option<u64> {
        let holds_too_much = |blocked: &Blocked| {
            let held = self.bytes_by_source.get(&blocked.connection.source);
            held.is_some_and(|held| *held > share_max)
        };
        let of_sources = self.blocked.iter().find(|(_, it)| holds_too_much(it));
        let victim = of_sources.or_else(|| self.blocked.first_key_value());
        victim.map(|(ticket, _)| *ticket)
    }

    /// Counts bytes besides for a ticket. False if its connection was cut off.
    fn grow(&mut self, ticket: u64, more: usize) -> bool {
        let Some(blocked) = self.blocked.get_mut(&ticket) else {
            return false;
        };
        blocked.bytes += more;
        let source = blocked.connection.source;
        *self.bytes_by_source.entry(source).or_default() += more;
        true
    }

    fn remove(&mut self, ticket: u64) -> Option<Blocked> {
        let blocked = self.blocked.remove(&ticket)?;
        let source = blocked.connection.source;
        if let Some(held) = self.bytes_by_source.get_mut(&source) {
            *held = held.saturating_sub(blocked.bytes);
            if *held == 0 {
                self.bytes_by_source.remove(&source);
            }
        }
        Some(blocked)
    }
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
        self.shared.memory.unreserve(self.bytes);
        self.shared.service.budget().let_go(self.bytes);
    }
}

/// Replies that a client does not read yet; they count until this is dropped.
pub(super) struct UnsentGuard<'s, S: Service> {
    shared: &'s Shared<S>,
    ticket: u64,
}

impl<S: Service> UnsentGuard<'_, S> {
    /// Counts `more` bytes besides. The connection itself is cut off for them if all others that
    /// come first are.
    pub fn grow(&self, more: usize) {
        let memory = &self.shared.memory;
        let mut unsent = memory.unsent.lock();
        memory.make_room(self.shared, &mut unsent, more);
        if unsent.grow(self.ticket, more) {
            memory.hold(self.shared, more);
        }
    }

    /// Ready once the connection was cut off. A task that waits for its socket sees that there.
    pub fn poll_cut_off(&self, cx: &Context<'_>) -> Poll<()> {
        let mut unsent = self.shared.memory.unsent.lock();
        match unsent.blocked.get_mut(&self.ticket) {
            Some(blocked) => {
                blocked.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
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
        let _waits = WaitsForMore {
            arrivals: &memory.arrivals,
            ticket,
        };
        let grown = timeout(shared.tuning.memory_wait, async {
            loop {
                if self.try_grow(more) {
                    return;
                }
                // A request that waits for the share of its source is not in the way of others.
                let lacks_share = memory.arrivals.lacks_share(ticket, more, share_max(shared));
                memory.arrivals.set_waits(ticket, !lacks_share);
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
    /// Reserves bytes. False if requests would have more than their part of `bytes_max` then, and
    /// more than all of it together with unsent replies, or if the memory is not there yet.
    fn try_reserve<S: Service>(&self, shared: &Shared<S>, bytes: usize, bytes_max: usize) -> bool {
        let unsent = self.unsent_bytes();
        let reserve = |held: usize| {
            let all = held.saturating_add(bytes);
            let fits = all <= bytes_max / REQUEST_SHARES || all.saturating_add(unsent) <= bytes_max;
            // One request always goes, however small the budget is.
            (held == 0 || fits).then_some(all)
        };
        let reserved = &self.reserved_bytes;
        let updated = reserved.fetch_update(Ordering::AcqRel, Ordering::Acquire, reserve);
        if updated.is_err() {
            return false;
        }
        let is_there = shared.service.budget().try_hold(bytes);
        if !is_there {
            self.unreserve(bytes);
        }
        is_there
    }

    fn unreserve(&self, bytes: usize) {
        self.reserved_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Bytes reserved for requests that are arriving.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes.load(Ordering::Acquire)
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
        let mut unsent = self.unsent.lock();
        self.make_room(shared, &mut unsent, bytes);
        unsent.last_ticket += 1;
        let ticket = unsent.last_ticket;
        let blocked = Blocked {
            bytes: 0,
            connection: Arc::clone(connection),
            waker: None,
        };
        unsent.blocked.insert(ticket, blocked);
        unsent.grow(ticket, bytes);
        self.hold(shared, bytes);
        UnsentGuard { shared, ticket }
    }

    /// Cuts connections off until `bytes` more may be unsent. Room is made first, so that the limit
    /// holds at every moment: bytes are added under the lock alone.
    fn make_room<S: Service>(&self, shared: &Shared<S>, unsent: &mut Unsent, bytes: usize) {
        let bytes_max = shared.service.budget().bytes_max();
        while self.unsent_bytes().saturating_add(bytes) > bytes_max {
            let victim = unsent.next_victim(bytes_max / UNSENT_SHARES);
            let Some(victim) = victim.and_then(|ticket| unsent.remove(ticket)) else {
                return;
            };
            self.release(shared, victim.bytes);
            // Its task wakes up, finds the socket broken, and ends.
            victim.connection.socket.abort();
            if let Some(waker) = victim.waker {
                waker.wake();
            }
            shared.service.count(Event::Stalled, 1);
            tracing::debug!(
                id = victim.connection.id,
                bytes = victim.bytes,
                "cut off: too much is unsent, and this client read nothing for the longest time"
            );
        }
    }

    fn forget<S: Service>(&self, shared: &Shared<S>, ticket: u64) {
        let blocked = self.unsent.lock().remove(ticket);
        if let Some(blocked) = blocked {
            self.release(shared, blocked.bytes);
        }
    }

    fn hold<S: Service>(&self, shared: &Shared<S>, bytes: usize) {
        shared.service.budget().hold(bytes);
        self.unsent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn release<S: Service>(&self, shared: &Shared<S>, bytes: usize) {
        self.unsent_bytes.fetch_sub(bytes, Ordering::Relaxed);
        shared.service.budget().let_go(bytes);
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;
    use crate::kept::KeptMemory;
    use crate::socket::Socket;
    use crate::tests::fake::{Fake, Manner};

    const MIB: usize = 1 << 20;

    /// A connection that seems to come from `peer`.
    fn connect(shared: &Shared<Fake>, peer: &str) -> Arc<Connection> {
        let (ours, _) = UnixStream::pair().unwrap();
        shared.registry.add(Socket::Unix(ours), peer.to_owned(), 0)
    }

    fn shared() -> Arc<Shared<Fake>> {
        let shared = Shared::new(Arc::new(Fake::new(Manner::AtOnce)), Vec::new(), 10);
        assert_eq!(shared.service.budget().bytes_max(), 64 * MIB);
        shared
    }

    fn is_cut_off(guard: &UnsentGuard<'_, Fake>) -> bool {
        guard
            .poll_cut_off(&Context::from_waker(Waker::noop()))
            .is_ready()
    }

    #[tokio::test]
    async fn a_source_with_more_than_a_quarter_of_the_budget_is_cut_off_first() {
        let shared = shared();
        let (slow, greedy) = (
            connect(&shared, "192.0.2.1:1"),
            connect(&shared, "192.0.2.2:1"),
        );
        let hold = |connection: &Arc<Connection>, bytes| {
            shared.memory.hold_unsent(&shared, connection, bytes)
        };
        let slow = hold(&slow, 10 * MIB);
        let first = hold(&greedy, 25 * MIB);
        let second = hold(&greedy, 25 * MIB);
        let third = hold(&greedy, 25 * MIB);
        let cut_off = [&slow, &first, &second, &third].map(is_cut_off);
        assert_eq!(cut_off, [false, true, false, false]);
        assert_eq!(shared.unsent_bytes(), 60 * MIB);
        drop((second, third));
        // No source has too much: the oldest one is cut off.
        let others = ["192.0.2.3:1", "192.0.2.4:1", "192.0.2.5:1", "192.0.2.6:1"];
        let others = others.map(|peer| hold(&connect(&shared, peer), 15 * MIB));
        assert!(is_cut_off(&slow) && !others.iter().any(is_cut_off));
        drop(others);
        assert_eq!(shared.unsent_bytes(), 0);
        assert!(shared.memory.unsent.lock().bytes_by_source.is_empty());
    }

    #[tokio::test]
    async fn one_request_always_goes_and_others_while_they_fit_beside_unsent_replies() {
        let shared = shared();
        let shared: &Shared<Fake> = &shared;
        let slow = connect(shared, "192.0.2.1:1");
        let _unsent = shared.memory.hold_unsent(shared, &slow, 10 * MIB);
        let reserve = |bytes| Reservation::try_make(shared, None, bytes);
        let alone = reserve(100 * MIB);
        assert!(alone.is_some() && reserve(1).is_none());
        drop(alone);
        let first = reserve(50 * MIB);
        assert!(first.is_some() && reserve(4 * MIB + 1).is_none());
        let second = reserve(4 * MIB);
        assert!(second.is_some());
        assert_eq!(shared.reserved_bytes(), 54 * MIB);
        drop((first, second));
        assert_eq!(shared.reserved_bytes(), 0);
    }

    #[tokio::test]
    async fn unread_replies_leave_a_quarter_of_the_budget_to_requests() {
        let shared = shared();
        let shared: &Shared<Fake> = &shared;
        let slow = connect(shared, "192.0.2.1:1");
        let _unsent = shared.memory.hold_unsent(shared, &slow, 64 * MIB);
        let reserve = |bytes| Reservation::try_make(shared, None, bytes);
        let requests = [reserve(MIB), reserve(14 * MIB), reserve(MIB)];
        assert!(requests.iter().all(Option::is_some) && reserve(1).is_none());
    }

    #[tokio::test]
    async fn what_is_kept_between_requests_is_in_the_way_of_none_and_waits_for_none() {
        let shared = shared();
        let shared: &Shared<Fake> = &shared;
        let (idle, other) = (
            connect(shared, "192.0.2.1:1").source,
            connect(shared, "192.0.2.2:1").source,
        );
        let kept = KeptMemory::try_hold(shared, idle, 1);
        assert!(kept.is_some() && shared.reserved_bytes() == 0);
        // The upload of either source is the oldest.
        for source in [idle, other] {
            let mut upload = Reservation::try_make(shared, Some(source), MIB).unwrap();
            assert!(upload.try_grow(60 * MIB));
        }
        let _waits = Queued::new(&shared.memory);
        assert!(shared.memory.is_contended());
        assert!(KeptMemory::try_hold(shared, other, MIB).is_some());
        // What it may not keep concerns no request.
        assert!(KeptMemory::try_hold(shared, idle, 5 * MIB).is_none());
    }

    #[tokio::test]
    async fn a_request_that_waits_for_the_share_of_its_source_is_not_in_the_way_of_others() {
        let shared = shared();
        let shared: &Shared<Fake> = &shared;
        let (greedy, other) = (
            connect(shared, "192.0.2.1:1").source,
            connect(shared, "192.0.2.2:1").source,
        );
        let _oldest = Reservation::try_make(shared, Some(other), MIB).unwrap();
        let first = Reservation::try_make(shared, Some(greedy), 30 * MIB).unwrap();
        let mut second = Reservation::try_make(shared, Some(greedy), MIB).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let mut waits = Box::pin(second.grow(2 * MIB));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        assert!(!shared.memory.is_contended());
        let much = Reservation::try_make(shared, Some(other), 31 * MIB);
        assert!(much.is_some());
        drop(waits);
        drop(first);
        // The share is there now, and 1 MiB of memory.
        let more = Reservation::try_make(shared, None, 30 * MIB);
        assert!(more.is_some());
        let mut waits = Box::pin(second.grow(2 * MIB));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        assert!(shared.memory.is_contended());
        drop(waits);
        assert!(!shared.memory.is_contended());
    }

    #[tokio::test]
    async fn a_connection_that_holds_ever_more_is_cut_off_itself() {
        let shared = shared();
        let (slow, greedy) = (
            connect(&shared, "192.0.2.1:1"),
            connect(&shared, "192.0.2.2:1"),
        );
        let slow = shared.memory.hold_unsent(&shared, &slow, 10 * MIB);
        let greedy = shared.memory.hold_unsent(&shared, &greedy, MIB);
        greedy.grow(53 * MIB);
        assert!(!is_cut_off(&greedy) && shared.unsent_bytes() == 64 * MIB);
        greedy.grow(1);
        assert!(is_cut_off(&greedy) && !is_cut_off(&slow));
        greedy.grow(MIB);
        assert_eq!(shared.unsent_bytes(), 10 * MIB);
    }
}
