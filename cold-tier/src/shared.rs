//! What the parts of the cold tier share.

use std::collections::{BTreeSet, HashSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fonn_base::backoff::Backoff;
use fonn_base::breaker::{self, Breaker};
use fonn_base::pool::{BlockingPool, run_blocking};
use fonn_base::random::SplitMix64;
use fonn_base::tasks::Tasks;
use fonn_codec::FrameError;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};

use crate::error::ColdError;
use crate::fetch::Landed;
use crate::flight::Flights;
use crate::follow::announced::{Announced, Announcement};
use crate::index::{Index, IndexError};
use crate::memory::MemoryGate;
use crate::names::{KeyHash, SegmentName, WriterId, WriterKey};
use crate::observer::ColdObserver;
use crate::options::ColdOptions;
use crate::plan::{OldestValues, part_of_budget};
use crate::recent::Recent;
use crate::spill::source::SpillSource;
use crate::spill::{Drain, Wishes};
use crate::status::{Counters, RefusedFooter};
use crate::store::{
    ObjectKey, ObjectMeta, ObjectStore, PAGE_MAX, StoreError, StoreErrorKind, WatchedStore,
};

/// Threads for calls that block: the index and the queue of the node.
const BLOCKING_THREADS: usize = 2;
/// Calls that wait for a thread.
const BLOCKING_QUEUE_MAX: usize = 256;

/// How far the tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The index is complete: what it does not have was not in the bucket when it was last
    /// followed.
    pub(crate) is_ready: bool,
    /// Every writer was followed to its end at least once in this run.
    pub(crate) is_caught_up: bool,
    /// The whole bucket was compared with the index at least once in this run.
    pub(crate) is_compared: bool,
}

/// What there is once the tier was started.
pub(crate) struct Running {
    pub(crate) runtime: Handle,
    pub(crate) tasks: Tasks,
    pub(crate) source: Arc<dyn SpillSource>,
    pub(crate) drains: mpsc::Sender<Drain>,
}

/// The shared part.
pub(crate) struct Shared {
    pub(crate) options: ColdOptions,
    /// The bucket as clients' reads ask it: they have a deadline of their own.
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) watched: WatchedStore,
    pub(crate) observer: Arc<dyn ColdObserver>,
    pub(crate) index: Index,
    pub(crate) breaker: Mutex<Breaker<Duration>>,
    pub(crate) flights: Flights<(u32, u64), Landed>,
    pub(crate) uploads: MemoryGate,
    pub(crate) reads: MemoryGate,
    pub(crate) counters: Counters,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) recent: Mutex<Recent<KeyHash>>,
    /// Of the segments of all regions, in bytes. None: no bound.
    pub(crate) budget: Mutex<Option<u64>>,
    /// Whether this node holds the lease of its region's collector.
    pub(crate) is_collector: AtomicBool,
    /// Whether it held the lease during all of the last comparison with the bucket. What has
    /// vanished from its region since then, no node has deleted.
    pub(crate) compared_as_collector: AtomicBool,
    /// What the spiller is to do.
    pub(crate) wishes: Wishes,
    /// Uploads that the bucket has refused for longer than the grace.
    pub(crate) late_uploads: AtomicU64,
    /// What this node tells the other members of its cluster: its writers of this run.
    pub(crate) announcement: watch::Sender<Announcement>,
    /// What they tell.
    pub(crate) announced: Mutex<Announced>,
    /// They have told something new, or one of them is lost.
    pub(crate) has_news: Notify,
    /// Segments that were listed and could not be read. As long as there are any, it is unknown
    /// which versions are in the bucket.
    pub(crate) unreadable: Mutex<HashSet<SegmentName>>,
    /// The segment whose footer the bucket refuses, and that is waited for.
    pub(crate) refused: Mutex<Option<RefusedFooter>>,
    /// Why values could not be decoded that are in order: said once each.
    unsupported: Mutex<Vec<FrameError>>,
    pub(crate) random: Mutex<SplitMix64>,
    pub(crate) running: OnceLock<Running>,
    index_failed: AtomicBool,
    pool: Option<BlockingPool>,
}

impl Shared {
    pub(crate) fn new(
        options: ColdOptions,
        store: Arc<dyn ObjectStore>,
        observer: Arc<dyn ColdObserver>,
        index: Index,
    ) -> std::io::Result<Self> {
        #[cfg(any(test, feature = "test-util"))]
        let inline = options.inline_blocking;
        #[cfg(not(any(test, feature = "test-util")))]
        let inline = false;
        let threads = NonZeroUsize::new(BLOCKING_THREADS).unwrap_or(NonZeroUsize::MIN);
        let pool = if inline {
            None
        } else {
            Some(BlockingPool::new("cold", threads, BLOCKING_QUEUE_MAX)?)
        };
        let wishes = Wishes::default();
        // The last run may have ended before these were in a segment.
        wishes.carry_lost();
        if !index.marks().is_empty() {
            wishes.carry_marks();
        }
        let transfer = options.transfer_bytes();
        let is_ready = index.is_complete();
        Ok(Self {
            breaker: Mutex::new(Breaker::new(breaker::Options {
                failures_max: 5,
                wait: Backoff {
                    base: Duration::from_secs(1),
                    cap: Duration::from_secs(30),
                    attempts_max: u32::MAX,
                },
                // A read ends within its own timeout.
                probe_timeout: options.read_timeout.max(Duration::from_secs(1)),
            })),
            flights: Flights::default(),
            uploads: MemoryGate::new(transfer / 4 * 3),
            reads: MemoryGate::new(transfer / 4),
            counters: Counters::default(),
            progress: watch::Sender::new(Progress {
                is_ready,
                is_caught_up: false,
                is_compared: false,
            }),
            recent: Mutex::new(Recent::new(256 << 10)),
            budget: Mutex::new(options.budget_bytes),
            is_collector: AtomicBool::new(false),
            compared_as_collector: AtomicBool::new(false),
            wishes,
            late_uploads: AtomicU64::new(0),
            announcement: watch::Sender::new(Announcement {
                region: options.region.clone(),
                ..Announcement::default()
            }),
            announced: Mutex::default(),
            has_news: Notify::new(),
            unreadable: Mutex::default(),
            refused: Mutex::default(),
            unsupported: Mutex::default(),
            random: Mutex::new(SplitMix64::from_entropy()),
            running: OnceLock::new(),
            index_failed: AtomicBool::new(false),
            pool,
            watched: WatchedStore::new(
                Arc::clone(&store),
                options.clock.clone(),
                Arc::clone(&options.health),
            ),
            options,
            store,
            observer,
            index,
        })
    }

    /// Says once for each reason that the bucket has entries which this build cannot decode.
    pub(crate) fn warn_of_unsupported(&self, reason: FrameError) {
        let mut told = self.unsupported.lock();
        if !told.contains(&reason) {
            told.push(reason);
            tracing::warn!(
                %reason,
                "entries in the bucket cannot be read by this build: they are misses until they are \
                 written again, or a build that can read them is started"
            );
        }
    }

    /// Notes whether the bucket gives the footer of a segment. One of those that it refuses is told
    /// of, and the log names it once.
    pub(crate) fn note_footer<T>(&self, name: &SegmentName, read: &Result<T, ColdError>) {
        let mut refused = self.refused.lock();
        match read {
            Err(ColdError::Store(error)) if is_refusal(error) => {
                if refused.is_none() {
                    tracing::warn!(
                        %name, %error,
                        "the bucket refuses the footer of a segment: until it gives it, or the segment is deleted, nothing is spilled"
                    );
                    *refused = Some(RefusedFooter {
                        name: name.clone(),
                        is_denied: error.kind == StoreErrorKind::Denied,
                        message: error.to_string(),
                    });
                }
            }
            // A failure of the bucket as a whole says nothing of this object.
            Err(ColdError::Store(error)) if error.is_retryable() => {}
            _ => {
                if refused
                    .as_ref()
                    .is_some_and(|refused| refused.name == *name)
                {
                    *refused = None;
                }
            }
        }
    }

    /// The time of a clock that never goes back.
    pub(crate) fn monotonic(&self) -> Duration {
        Duration::from_millis(self.options.clock.monotonic_ms())
    }

    pub(crate) fn wall_ms(&self) -> u64 {
        self.options.clock.wall_ms()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.progress.borrow().is_ready
    }

    /// Whether a copy of that version was flushed neither here nor elsewhere. The node was told of
    /// every flush in the bucket that it believes.
    pub(crate) fn is_visible(&self, space: u32, version: u64) -> bool {
        self.observer.is_visible(space, version)
    }

    /// The oldest values in segments that may exist, but for `missing` ones: also in those that
    /// could not be read, in which any version may be.
    pub(crate) fn oldest_values(&self, missing: &BTreeSet<u32>) -> OldestValues {
        if !self.unreadable.lock().is_empty() {
            return OldestValues::UNKNOWN;
        }
        let mut segments = self.index.table().all();
        segments.retain(|(id, _)| !missing.contains(id));
        OldestValues::of(segments.iter().map(|(id, facts)| (*id, facts)))
    }

    pub(crate) fn random_u64(&self) -> u64 {
        self.random.lock().next_u64()
    }

    /// An id that no other name has, of a start at `at_ms` (Unix time in milliseconds).
    pub(crate) fn mint_id(&self, at_ms: u64) -> WriterId {
        let random = u128::from(self.random_u64()) << 64 | u128::from(self.random_u64());
        WriterId::mint(at_ms, random)
    }

    /// A new writer of this run. Other members are told of it before it has its first segment, so
    /// that they know of it should this node be lost a moment after.
    pub(crate) fn begin_writer(&self) -> WriterId {
        let writer = self.mint_id(self.wall_ms());
        self.announcement.send_modify(|told| {
            told.writers.insert(writer, 0);
        });
        writer
    }

    /// Whether it is a writer of this run: this node does not follow it, since its segments are
    /// merged when they are written.
    pub(crate) fn is_own(&self, key: &WriterKey) -> bool {
        let told = self.announcement.borrow();
        key.region == told.region && told.writers.contains_key(&key.writer)
    }

    /// Tells them that a segment is in the bucket.
    pub(crate) fn announce_segment(&self, name: &SegmentName) {
        self.announcement.send_modify(|told| {
            let segments = told.writers.entry(name.writer).or_insert(0);
            *segments = name.seq.saturating_add(1).max(*segments);
        });
    }

    /// Tells them no more of a writer that will have no further segment. From now on it is followed
    /// like any other: a segment of it may be in the bucket all the same.
    pub(crate) fn withdraw_writer(&self, writer: WriterId) {
        self.announcement.send_modify(|told| {
            told.writers.remove(&writer);
        });
    }

    /// Runs work on the index or the queue of the node where it may block.
    pub(crate) async fn blocking<T, F>(self: &Arc<Self>, work: F) -> Result<T, ColdError>
    where
        T: Send + 'static,
        F: FnOnce(&Self) -> Result<T, ColdError> + Send + 'static,
    {
        if self.index_failed() {
            return Err(ColdError::IndexFailed);
        }
        let result = match &self.pool {
            None => work(self),
            Some(pool) => {
                while pool.depth() >= pool.capacity() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                let shared = Arc::clone(self);
                match run_blocking(pool, move || work(&shared)).await {
                    Ok(result) => result,
                    Err(_) => Err(ColdError::Stopping),
                }
            }
        };
        if let Err(ColdError::Index(error)) = &result {
            // A batch that failed may be half in RAM: nothing is written on top of it.
            self.fail_index(error);
        }
        result
    }

    pub(crate) fn index_failed(&self) -> bool {
        self.index_failed.load(Ordering::Acquire)
    }

    /// The bucket for everything but clients' reads.
    pub(crate) fn bucket(&self) -> &dyn ObjectStore {
        &self.watched
    }

    /// What `pick` takes of all objects below a prefix, in the order of their keys.
    pub(crate) async fn list_all<T>(
        &self,
        prefix: &str,
        pick: impl Fn(ObjectMeta) -> Option<T>,
    ) -> Result<Vec<T>, StoreError> {
        let mut found = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let list = self.bucket().list(prefix, after.as_deref(), PAGE_MAX);
            let page = list.await?;
            found.extend(page.objects.into_iter().filter_map(&pick));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Whether there is an object of that key; the answer for the object itself counts more than a
    /// list.
    pub(crate) async fn exists(&self, key: &ObjectKey) -> Result<bool, StoreError> {
        match self.bucket().head(key).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind == StoreErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Nothing is written to the index from now on.
    pub(crate) fn fail_index(&self, error: &IndexError) {
        if !self.index_failed.swap(true, Ordering::AcqRel) {
            tracing::error!(%error, "the local index of the cold tier failed: reads miss, and nothing is written to it until the next start");
        }
    }

    /// Bytes of this region's segments, and how many it may have: its part of the budget.
    pub(crate) fn budget_part(&self) -> (u64, Option<u64>) {
        let mut sizes = self.index.table().region_bytes(&self.options.region);
        let own = sizes.remove(&self.options.region).unwrap_or(0);
        let others = sizes.into_values().collect();
        let budget = *self.budget.lock();
        let part = budget.map(|budget| part_of_budget(budget, own, others));
        (own, part)
    }

    /// A crash made by a test, if it is due here.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) async fn crash_point(&self, name: &'static str) {
        if let Some(points) = &self.options.crash {
            points.reached(name).await;
        }
    }

    /// Nothing, outside of tests.
    #[cfg(not(any(test, feature = "test-util")))]
    #[allow(clippy::unused_async)]
    pub(crate) async fn crash_point(&self, _name: &'static str) {}
}

/// Whether the bucket answers, and the answer is no.
fn is_refusal(error: &StoreError) -> bool {
    !error.is_retryable() && !error.kind.is_answer()
}
