//! Bodies of responses that clients have not read yet.
//!
//! Invariant: together they hold no more than the store allows; one body alone is always admitted.
//! A body waits for room. Meanwhile connections are cut whose bodies have stood still for a while,
//! first the one that stands still for longest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fonn_base::metrics::Snapshot;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::life::Life;
use crate::store::Store;

/// A body without progress for so long gives way to others.
const STILL_MAX: Duration = Duration::from_secs(1);

/// How often a body that waits for room looks whether it is there.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Outstanding(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    last_ticket: u64,
    bytes: usize,
    /// By ticket. A body gets a new ticket with each progress, so the first one stands still for
    /// the longest time.
    bodies: BTreeMap<u64, Body>,
}

#[derive(Debug)]
struct Body {
    bytes: usize,
    life: Arc<Life>,
    progress: Instant,
}

impl Table {
    fn ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    fn remove(&mut self, ticket: u64) -> usize {
        let bytes = self.bodies.remove(&ticket).map_or(0, |body| body.bytes);
        self.bytes -= bytes;
        bytes
    }
}

/// A body that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted<S: Store> {
    store: S,
    all: Arc<Outstanding>,
    ticket: AtomicU64,
}

impl Outstanding {
    /// Counts a body of `bytes` on the connection `life`. Waits for room.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn count<S: Store>(
        self: &Arc<Self>,
        store: &S,
        life: &Arc<Life>,
        bytes: usize,
    ) -> Counted<S> {
        loop {
            if let Some(ticket) = self.try_count(store, life, bytes) {
                return Counted {
                    store: store.clone(),
                    all: Arc::clone(self),
                    ticket: AtomicU64::new(ticket),
                };
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Publishes how much is unread.
    pub(crate) fn publish(&self, snapshot: &mut Snapshot) {
        let bytes = self.0.lock().bytes;
        snapshot.gauge(
            "fonn_http_unread_bytes",
            "Bytes of responses over HTTP that clients have not read yet.",
            &[],
            bytes as f64,
        );
    }

    fn try_count<S: Store>(&self, store: &S, life: &Arc<Life>, bytes: usize) -> Option<u64> {
        let mut table = self.0.lock();
        let (bytes_max, now) = (store.unread_max(), Instant::now());
        let is_full = |table: &Table| {
            !table.bodies.is_empty() && table.bytes.saturating_add(bytes) > bytes_max
        };
        while is_full(&table)
            && let Some(first) = table.bodies.first_entry()
            && now.duration_since(first.get().progress) >= STILL_MAX
        {
            let victim = first.remove();
            table.bytes -= victim.bytes;
            store.let_go(victim.bytes);
            victim.life.cut();
        }
        if is_full(&table) {
            return None;
        }
        let ticket = table.ticket();
        let body = Body {
            bytes,
            life: Arc::clone(life),
            progress: now,
        };
        table.bodies.insert(ticket, body);
        table.bytes += bytes;
        store.hold(bytes);
        Some(ticket)
    }
}

impl<S: Store> Counted<S> {
    /// Notes that the client read something.
    pub(crate) fn progress(&self) {
        let mut table = self.all.0.lock();
        let before = self.ticket.load(Ordering::Relaxed);
        if let Some(mut body) = table.bodies.remove(&before) {
            body.life.touch();
            body.progress = Instant::now();
            let ticket = table.ticket();
            table.bodies.insert(ticket, body);
            self.ticket.store(ticket, Ordering::Relaxed);
        }
    }
}

impl<S: Store> Drop for Counted<S> {
    fn drop(&mut self) {
        // It changes under the lock, and only one thread can be here.
        let ticket = self.ticket.load(Ordering::Relaxed);
        let bytes = self.all.0.lock().remove(ticket);
        self.store.let_go(bytes);
    }
}
