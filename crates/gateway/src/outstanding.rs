//! Bodies of responses that clients have not read yet.
//!
//! Invariant: together they hold no more than the store allows, and those of one source address no
//! more than half of that; one body alone, or alone of its source, has the rest. A body waits for
//! room. Meanwhile connections are cut whose bodies have stood still for a while,
//! first the one that stands still for longest. A body that is made while it is sent grows and
//! shrinks, and is one body all the same.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fonn_auth::Source;
use fonn_base::metrics::Snapshot;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::life::Life;
use crate::store::Store;

/// A body without progress for so long gives way to others.
const STILL_MAX: Duration = Duration::from_secs(1);

/// The bodies of one source address take one of so many parts of the room.
const SOURCE_SHARES: usize = 2;

/// How often a body that waits for room looks whether it is there.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// All of them.
#[derive(Debug)]
pub(crate) struct Outstanding {
    table: Mutex<Table>,
    /// They take one of so many parts of what the store allows.
    shares: usize,
}

#[derive(Debug, Default)]
struct Table {
    last_ticket: u64,
    bytes: usize,
    bytes_by_source: HashMap<Source, usize>,
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
    fn insert(&mut self, body: Body) -> u64 {
        self.last_ticket += 1;
        self.bodies.insert(self.last_ticket, body);
        self.last_ticket
    }

    /// Bytes of the bodies of a source.
    fn of_source(&self, source: Source) -> usize {
        self.bytes_by_source.get(&source).copied().unwrap_or(0)
    }

    fn add(&mut self, source: Source, bytes: usize) {
        self.bytes += bytes;
        *self.bytes_by_source.entry(source).or_default() += bytes;
    }

    fn remove(&mut self, source: Source, bytes: usize) {
        self.bytes -= bytes;
        if let Some(held) = self.bytes_by_source.get_mut(&source) {
            *held -= bytes;
            if *held == 0 {
                self.bytes_by_source.remove(&source);
            }
        }
    }

    /// Cuts a body that has stood still for a while, if there is one: of `source`, if its share is
    /// what is short. Returns how many bytes it held.
    fn cut_still(&mut self, of: Option<Source>, now: Instant) -> Option<usize> {
        let is_of = |body: &Body| of.is_none_or(|source| body.life.source() == source);
        let (&ticket, body) = self.bodies.iter().find(|(_, body)| is_of(body))?;
        if now.duration_since(body.progress) < STILL_MAX {
            return None;
        }
        let victim = self.bodies.remove(&ticket)?;
        self.remove(victim.life.source(), victim.bytes);
        victim.life.cut();
        Some(victim.bytes)
    }
}

/// The client that reads one response.
#[derive(Debug)]
pub(crate) struct Reader<S: Store> {
    store: S,
    all: Arc<Outstanding>,
    life: Arc<Life>,
    /// Of the body in the table. It changes under the lock.
    ticket: AtomicU64,
}

/// Bytes of a response, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted<S: Store> {
    reader: Arc<Reader<S>>,
    bytes: usize,
}

impl Outstanding {
    /// Nothing is unread. It may take one of `shares` parts of what the store allows.
    pub(crate) fn new(shares: usize) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            shares,
        })
    }

    /// The reader of a response on the connection `life`.
    pub(crate) fn reader<S: Store>(
        self: &Arc<Self>,
        store: &S,
        life: &Arc<Life>,
    ) -> Arc<Reader<S>> {
        Arc::new(Reader {
            store: store.clone(),
            all: Arc::clone(self),
            life: Arc::clone(life),
            ticket: AtomicU64::new(0),
        })
    }

    /// Publishes how much is unread.
    pub(crate) fn publish(&self, snapshot: &mut Snapshot) {
        let bytes = self.table.lock().bytes;
        snapshot.gauge(
            "fonn_http_unread_bytes",
            "Bytes of responses over HTTP that clients have not read yet.",
            &[],
            bytes as f64,
        );
    }
}

impl<S: Store> Reader<S> {
    /// Counts `bytes` more of the response. Waits for room.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn count(self: &Arc<Self>, bytes: usize) -> Counted<S> {
        loop {
            match self.try_count(bytes) {
                Some(counted) => return counted,
                None => sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// As [`Reader::count`]; `None` if there is no room now.
    pub(crate) fn try_count(self: &Arc<Self>, bytes: usize) -> Option<Counted<S>> {
        self.take_room(bytes).then(|| Counted {
            reader: Arc::clone(self),
            bytes,
        })
    }

    fn take_room(&self, bytes: usize) -> bool {
        let mut table = self.all.table.lock();
        let bytes_max = self.store.unread_max() / self.all.shares.max(1);
        let (now, source) = (Instant::now(), self.life.source());
        let is_over = |held: usize, max: usize| held > 0 && held.saturating_add(bytes) > max;
        loop {
            let short_of = if is_over(table.of_source(source), bytes_max / SOURCE_SHARES) {
                Some(source)
            } else if is_over(table.bytes, bytes_max) {
                None
            } else {
                break;
            };
            let Some(cut) = table.cut_still(short_of, now) else {
                return false;
            };
            self.store.let_go(cut);
        }
        let ticket = self.ticket.load(Ordering::Relaxed);
        if let Some(body) = table.bodies.get_mut(&ticket) {
            body.bytes += bytes;
        } else {
            let ticket = table.insert(Body {
                bytes,
                life: Arc::clone(&self.life),
                progress: now,
            });
            self.ticket.store(ticket, Ordering::Relaxed);
        }
        table.add(source, bytes);
        self.store.hold(bytes);
        true
    }

    /// Notes that the client read something, or that the server works on what it reads next.
    pub(crate) fn progress(&self) {
        self.life.touch();
        let mut table = self.all.table.lock();
        let before = self.ticket.load(Ordering::Relaxed);
        if let Some(mut body) = table.bodies.remove(&before) {
            body.progress = Instant::now();
            self.ticket.store(table.insert(body), Ordering::Relaxed);
        }
    }

    /// Carries out work of the server, during which the client has nothing to read.
    ///
    /// # Cancel safety
    /// That of `work`.
    pub(crate) async fn working<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep(STILL_MAX / 2) => self.progress(),
            }
        }
    }

    /// Counts `bytes` of the response no longer.
    fn let_go(&self, bytes: usize) {
        let mut table = self.all.table.lock();
        let ticket = self.ticket.load(Ordering::Relaxed);
        // It is not there any more if the connection was cut.
        let Some(body) = table.bodies.get_mut(&ticket) else {
            return;
        };
        let bytes = bytes.min(body.bytes);
        body.bytes -= bytes;
        if body.bytes == 0 {
            table.bodies.remove(&ticket);
        }
        table.remove(self.life.source(), bytes);
        self.store.let_go(bytes);
    }
}

impl<S: Store> Counted<S> {
    /// Bytes that are counted.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// As [`Reader::progress`].
    pub(crate) fn progress(&self) {
        self.reader.progress();
    }
}

impl<S: Store> Drop for Counted<S> {
    fn drop(&mut self) {
        self.reader.let_go(self.bytes);
    }
}
