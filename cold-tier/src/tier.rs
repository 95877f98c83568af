//! The cold tier as a node uses it.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fonn_base::boxed::BoxFuture;
use fonn_base::tasks::{OnShutdown, Tasks};
use fonn_codec::CodecSpec;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::checkpoint::{IndexEntry, SegmentState};
use crate::collect::Collector;
use crate::error::ColdError;
use crate::fetch::{self, Fetched, Found, Location, Reading};
use crate::follow::Follower;
use crate::follow::announced::{Announcement, CatchUp};
use crate::follow::reconcile;
use crate::index::{Index, IndexError};
use crate::names::{KeyHash, SegmentName, WriterKey};
use crate::observer::{ColdObserver, CopyRef};
use crate::options::ColdOptions;
use crate::segment::FlushMark;
use crate::shared::{Running, Shared};
use crate::spill;
use crate::spill::source::{Backlog, SpillCursor, SpillSource};
use crate::status::{ColdStatus, Counters, FirstReading, SpillLoad};
use crate::store::ObjectStore;

/// The cold tier; cheap to clone.
#[derive(Clone)]
pub struct ColdTier {
    pub(crate) shared: Arc<Shared>,
}

impl ColdTier {
    /// Opens the local index, or begins a new one. Needs no bucket. Blocks.
    ///
    /// A damaged index is removed: it is built again from the bucket after [`ColdTier::start`].
    ///
    /// # Errors
    /// [`ColdError::Index`]: the directory cannot be read or written, or another release wrote it.
    /// [`ColdError::NoZstd`].
    pub fn open(
        options: ColdOptions,
        store: Arc<dyn ObjectStore>,
        observer: Arc<dyn ColdObserver>,
    ) -> Result<Self, ColdError> {
        if CodecSpec::from_str("zstd").is_err() {
            return Err(ColdError::NoZstd);
        }
        let open = || {
            std::fs::create_dir_all(&options.dir).map_err(IndexError::Io)?;
            Index::open(
                &options.dir,
                options.memtable_bytes(),
                options.cache_bytes(),
            )
        };
        let index = match open() {
            Err(IndexError::Broken(reason)) => {
                tracing::warn!(reason, dir = %options.dir.display(), "the local index of the cold tier is removed and built again");
                std::fs::remove_dir_all(&options.dir).map_err(IndexError::Io)?;
                open()?
            }
            result => result?,
        };
        let shared = Shared::new(options, store, observer, index).map_err(IndexError::Io)?;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Starts spilling, following and collecting, as tasks on the current runtime. Before that
    /// every [`ColdTier::fetch`] is [`Fetched::Unavailable`]. All tasks may be aborted at any
    /// moment; call [`ColdTier::drain`] before, so that little is left to do after the next start.
    /// Only the first call counts.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(&self, source: Arc<dyn SpillSource>, tasks: &Tasks) {
        let (drains, spiller, uploader) = spill::tasks(&self.shared, Arc::clone(&source));
        let running = Running {
            runtime: Handle::current(),
            tasks: tasks.clone(),
            source,
            drains,
        };
        if self.shared.running.set(running).is_err() {
            return;
        }
        tasks.spawn("cold-spill", OnShutdown::Abort, spiller);
        tasks.spawn("cold-upload", OnShutdown::Abort, uploader);
        let follower = Follower::new(Arc::clone(&self.shared));
        tasks.spawn("cold-follow", OnShutdown::Abort, follower.run());
        let compare = reconcile::repeat(Arc::clone(&self.shared));
        tasks.spawn("cold-compare", OnShutdown::Abort, compare);
        let collector = Collector::new(Arc::clone(&self.shared));
        tasks.spawn("cold-collect", OnShutdown::Abort, collector.run());
    }

    /// Looks a key up in the local index: no request to the bucket. Blocks for some microseconds,
    /// or for a read from the local disk. Nothing is there until the index is complete: what has
    /// not been read yet may be newer, or a tombstone.
    #[must_use]
    pub fn find(&self, space: u32, key: &[u8]) -> Found {
        let shared = &self.shared;
        if shared.index_failed() || !shared.is_ready() {
            return Found::Absent;
        }
        let entry = match shared.index.entry(KeyHash::of(space, key)) {
            Ok(Some(entry)) => entry,
            Ok(None) => return Found::Absent,
            Err(error) => {
                shared.watched.note(error.to_string());
                return Found::Absent;
            }
        };
        if !shared.is_visible(space, entry.at) {
            return Found::Absent;
        }
        if entry.tombstone {
            return Found::Tombstone(entry.at);
        }
        if entry.is_expired(shared.wall_ms()) {
            return Found::Absent;
        }
        match shared.index.readable_segment(entry.segment) {
            Some(name) => Found::At(Location { entry, name }),
            None => Found::Absent,
        }
    }

    /// Whether the bucket may have a value of this key, so that a deletion has to be known there.
    /// True also where the index cannot tell, and for a value in a segment that is lost, which may
    /// be there again. Blocks like [`ColdTier::find`].
    #[must_use]
    pub fn may_have(&self, space: u32, key: &[u8]) -> bool {
        let shared = &self.shared;
        if shared.index_failed() || !shared.is_ready() {
            return true;
        }
        match shared.index.entry(KeyHash::of(space, key)) {
            Ok(entry) => entry.is_some_and(|entry| {
                let is_expired = entry.is_expired(shared.wall_ms());
                !entry.tombstone && !is_expired && shared.is_visible(space, entry.at)
            }),
            Err(_) => true,
        }
    }

    /// The newest record of a key by the local index, with the segment that it is in: for the
    /// operator, expired entries and tombstones too. No segment for a tombstone that is in none
    /// yet. Blocks like [`ColdTier::find`].
    ///
    /// # Errors
    /// [`ColdError::Index`].
    pub fn locate(
        &self,
        space: u32,
        key: &[u8],
    ) -> Result<Option<(IndexEntry, Option<SegmentName>)>, ColdError> {
        let index = &self.shared.index;
        let entry = index.entry(KeyHash::of(space, key))?;
        Ok(entry
            .filter(|entry| self.shared.is_visible(space, entry.at))
            .map(|entry| (entry, index.table().name(entry.segment).cloned())))
    }

    /// About how many entries the index has, tombstones included.
    #[must_use]
    pub fn entries_approx(&self) -> u64 {
        self.shared.index.entries_approx()
    }

    /// Reads what [`ColdTier::find`] found, within the read timeout. Never an error: whatever is
    /// not a hit is a miss. A caller that comes while the [`Reading`] is kept gets the same bytes
    /// without another request. It is kept until the entry is in another tier.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing; the read goes on for other callers.
    pub fn fetch<'a>(
        &'a self,
        space: u32,
        key: &'a [u8],
        location: &'a Location,
    ) -> BoxFuture<'a, (Fetched, Reading)> {
        Box::pin(fetch::fetch(&self.shared, space, key, location))
    }

    /// Notes that copies of this node are about to go, in case the bucket lacks them: from now on
    /// older ones in the bucket do not count, and as soon as possible the bucket says so itself.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// [`ColdError`]: the index failed. The copies must stay: otherwise the next start would find
    /// older ones in the bucket, and nothing that hides them.
    pub fn lost(&self, copies: &[CopyRef<'_>]) -> Result<(), ColdError> {
        let shared = &self.shared;
        if shared.index_failed() {
            return Err(ColdError::IndexFailed);
        }
        let lost = shared.index.lose(copies);
        let count = lost.inspect_err(|error| shared.fail_index(error))?;
        if count > 0 {
            Counters::add(&shared.counters.lost_entries, count);
            shared.wishes.carry_lost();
        }
        Ok(())
    }

    /// Whether the index is complete, so that what it lacks is not in the bucket.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.is_ready()
    }

    /// Waits until the index is complete.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub async fn ready(&self) {
        let mut progress = self.shared.progress.subscribe();
        // The teller lives as long as this.
        let _ = progress.wait_for(|progress| progress.is_ready).await;
    }

    /// How far a node is that has to make its index out of the bucket, and what it waits for.
    #[must_use]
    pub fn first_reading(&self) -> FirstReading {
        let shared = &self.shared;
        let others = &shared.options.health.others;
        if shared.is_ready() {
            FirstReading::Done
        } else if shared.index_failed() {
            FirstReading::IndexFailed
        } else if shared.refused.lock().is_some() {
            FirstReading::Refused
        } else if others.is_failing() {
            FirstReading::Failing
        } else {
            FirstReading::UnderWay {
                is_answered: others.has_worked(),
            }
        }
    }

    /// Whether the bucket takes nothing at present: for some seconds every attempt has failed.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        let health = &self.shared.options.health;
        // Before everything was followed nothing is put.
        let is_waiting = !self.shared.progress.borrow().is_caught_up;
        health.puts.is_failing() || (is_waiting && health.others.is_failing())
    }

    /// Has what is in the queue uploaded without waiting for a segment to fill or to become old.
    pub fn hurry(&self) {
        self.shared.wishes.hurry();
    }

    /// How far the queue was brought into the bucket.
    #[must_use]
    pub fn spill_cursor(&self) -> SpillCursor {
        self.shared.index.spilled()
    }

    /// Everything that was flushed, here or elsewhere, as far as the index knows.
    #[must_use]
    pub fn flush_marks(&self) -> Vec<FlushMark> {
        self.shared.index.marks()
    }

    /// The highest version of any copy in the bucket that the index knows; 0 if it knows none.
    #[must_use]
    pub fn version_max(&self) -> u64 {
        let segments = self.shared.index.table().all();
        let versions = segments.iter().map(|(_, facts)| facts.max_version);
        versions.max().unwrap_or(0)
    }

    /// What this node tells the other members of its cluster, and each change of it.
    #[must_use]
    pub fn announcement(&self) -> watch::Receiver<Announcement> {
        self.shared.announcement.subscribe()
    }

    /// Takes what a member of the cluster tells. Segments that are new are read at once.
    pub fn hear(&self, member: &str, told: &Announcement) {
        let is_news = self
            .shared
            .announced
            .lock()
            .hear(member, told, Instant::now());
        if is_news {
            self.shared.has_news.notify_one();
        }
    }

    /// Forgets what others told than the members of the cluster.
    pub fn retain_members(&self, is_member: impl Fn(&str) -> bool) {
        self.shared.announced.lock().retain(is_member);
    }

    /// A member of the cluster is lost: its segments are followed to their end at once, whether it
    /// had announced them or not. Costs a list, and a request for each of its writers.
    #[must_use]
    pub fn take_over(&self, member: &str) -> CatchUp {
        let shared = &self.shared;
        let mut others: BTreeSet<WriterKey> = shared.index.cursors().into_keys().collect();
        others.retain(|key| key.region == shared.options.region && !shared.is_own(key));
        let mut announced = shared.announced.lock();
        let caught_up = announced.take_over(member, || others, Instant::now());
        drop(announced);
        shared.has_news.notify_one();
        caught_up
    }

    /// Tells the other nodes of a flush or purge: copies that it is about are gone. To be called
    /// for every one known after each start, and at each new one. Blocks.
    ///
    /// # Errors
    /// [`ColdError::Index`].
    pub fn flush(&self, mark: FlushMark) -> Result<(), ColdError> {
        if self.shared.index.raise_cutoff(mark)? {
            self.shared.wishes.carry_marks();
        }
        Ok(())
    }

    /// Brings what is in the queue into the bucket, for a clean stop. Returns whether everything
    /// was done before the deadline; the rest is done after the next start.
    ///
    /// # Cancel safety
    /// Cancelling it leaves what was done.
    pub fn drain(&self, deadline: Instant) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let Some(running) = self.shared.running.get() else {
                return false;
            };
            let work = async {
                let (done, is_done) = oneshot::channel();
                let asked = running.drains.send(done).await;
                asked.is_ok() && is_done.await.is_ok()
            };
            tokio::time::timeout_at(deadline, work)
                .await
                .unwrap_or(false)
        })
    }

    /// Changes the budget of all segments in bytes; None: no bound. It takes effect with the next
    /// collection.
    pub fn set_budget(&self, bytes: Option<u64>) {
        *self.shared.budget.lock() = bytes;
    }

    /// How it is doing. Blocks for as long as the source takes to tell its backlog.
    #[must_use]
    pub fn status(&self) -> ColdStatus {
        let shared = &self.shared;
        let now_ms = shared.wall_ms();
        let progress = *shared.progress.borrow();
        let segments = shared.index.table().all();
        let present = || {
            let facts = segments.iter().map(|(_, facts)| facts);
            facts.filter(|facts| !matches!(facts.state, SegmentState::Lost { .. }))
        };
        let backlog = self.backlog();
        let (region_bytes, region_budget) = shared.budget_part();
        ColdStatus {
            ready: progress.is_ready,
            caught_up: progress.is_caught_up,
            refused: shared.refused.lock().clone(),
            index_failed: shared.index_failed(),
            entries: shared.index.entries_approx(),
            segments: segments.len() as u64,
            lost_segments: (segments.len() - present().count()) as u64,
            bytes: present().map(|facts| facts.size).sum(),
            live_bytes: present().map(|facts| facts.live_bytes).sum(),
            region_bytes,
            budget_bytes: *shared.budget.lock(),
            region_budget_bytes: region_budget,
            backlog,
            backlog_age: backlog.age(now_ms),
            breaker: shared.breaker.lock().position(),
            last_error: shared.watched.last_error(),
            is_collector: shared.is_collector.load(Ordering::Relaxed),
            upload_memory_bytes: shared.uploads.used_bytes(),
            read_memory_bytes: shared.reads.used_bytes(),
            counts: shared.counters.counts(),
        }
    }

    /// What the way into the bucket has to do. Blocks like [`ColdTier::status`], and costs less.
    #[must_use]
    pub fn spill_load(&self) -> SpillLoad {
        let counts = self.shared.counters.counts();
        let now_ms = self.shared.wall_ms();
        SpillLoad {
            uploaded_bytes: counts.spilled_bytes,
            waited: Duration::from_micros(counts.upload_wait_us),
            backlog_age: self.backlog().age(now_ms),
        }
    }

    fn backlog(&self) -> Backlog {
        let cursor = self.shared.index.spilled();
        let running = self.shared.running.get();
        running.map_or_else(Backlog::default, |running| running.source.backlog(&cursor))
    }
}

impl std::fmt::Debug for ColdTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ColdTier")
            .field("store", &self.shared.store)
            .field("progress", &*self.shared.progress.borrow())
            .finish_non_exhaustive()
    }
}
