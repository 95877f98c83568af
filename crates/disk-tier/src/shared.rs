//! What the threads of the disk tier share, and how they wake each other.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use fonn_base::device::DeviceWatch;
use fonn_base::entry::{Meta, Space};
use fonn_base::reactor::TurnEnd;
use fonn_codec::FrameError;
use fonn_proto::Version;

use super::below::Below;
use super::compaction::reclaim::Reclaim;
use super::directory::{Directory, GenerationName};
use super::error::DiskError;
use super::generation::Generation;
use super::generations::Generations;
use super::index::IndexMemory;
use super::long_reads::LongReads;
use super::mark::StoreNumber;
use super::options::{DiskOptions, Limits};
use super::queue::Queue;
use super::reader::{READS_MAX, Waiting};
use super::state::StoreState;
use super::stats::{DiskStats, add};
use super::throttle::Throttle;
use super::transit::Transit;
use super::walk::WALKS_MAX;
use super::write::DiskObserver;
use crate::levels::{IdleCpus, Level, LevelCodec, ThreadTimes};

/// The generation that is ready to be written next.
#[derive(Default)]
pub(super) struct Spare {
    pub(super) ready: Option<Generation>,
    /// The last attempt to make one failed.
    has_failed: bool,
}

/// A generation that is off the list and not removed yet.
pub(crate) struct Buried {
    pub(crate) generation: Arc<Generation>,
    /// Bytes that were counted for it.
    pub(crate) bytes: u64,
}

/// Everything that the threads of one disk tier share.
pub(crate) struct Shared {
    pub(crate) options: DiskOptions,
    pub(crate) directory: Directory,
    pub(crate) observer: Arc<dyn DiskObserver>,
    /// The tier below, if there is one.
    pub(crate) below: Option<Arc<dyn Below>>,
    pub(crate) generations: Generations,
    pub(crate) queue: Queue,
    pub(crate) reads: Waiting,
    pub(crate) long_reads: LongReads,
    /// Values that were read and are not taken yet.
    pub(crate) transit: Arc<Transit>,
    pub(crate) walks: Waiting,
    pub(crate) stats: DiskStats,
    pub(crate) budget: AtomicU64,
    /// The codec of values that are written.
    pub(crate) fresh: LevelCodec,
    /// The codec `compacted`.
    pub(crate) compacted: LevelCodec,
    /// For values that are large enough to be shared among threads.
    pub(crate) idle_cpus: IdleCpus,
    /// The writer's calls that may wait for the device.
    pub(crate) device: Arc<DeviceWatch>,
    /// How long the writer has waited for a processor, once it has begun.
    pub(crate) writer_times: OnceLock<ThreadTimes>,
    /// Held while a generation is replaced or dropped: each is several steps on disk.
    pub(crate) structure: Mutex<()>,
    pub(crate) throttle: Throttle,
    /// Room out of what is of no use, before anything is dropped.
    pub(crate) reclaim: Reclaim,
    memory: IndexMemory,
    /// Why entries cannot be read by this build, as far as it was said.
    unsupported: Mutex<Vec<FrameError>>,
    state: Mutex<StoreState>,
    pub(super) spare: Mutex<Spare>,
    spare_changed: Condvar,
    /// Bytes that the file system has free, about.
    free_bytes: AtomicU64,
    /// Bytes that the file system should keep free.
    pub(crate) reserve_bytes: AtomicU64,
    /// The file system refused to grow a file, and no generation was dropped since.
    was_refused: AtomicBool,
    /// Dropped or replaced, but perhaps still read by a thread; with their bytes.
    buried: Mutex<Vec<Buried>>,
    /// Bytes of these.
    buried_bytes: AtomicU64,
    /// Bytes of the generation that is being written anew, or those that it is going to have.
    pub(super) compaction_bytes: AtomicU64,
    /// Bytes in the directory that are no generation's.
    pub(super) other_bytes: AtomicU64,
    /// Bytes that are about to be written.
    pub(super) reserved: Mutex<u64>,
    /// The writer waits for room: no time to carry anything over.
    pub(super) is_pressed: AtomicBool,
    /// Bytes that it waits for.
    pub(super) wanted_bytes: AtomicU64,
    room: (Mutex<()>, Condvar),
    wake: (Mutex<bool>, Condvar),
    closing: (Mutex<bool>, Condvar),
    /// Something was written: for the reader of the tail.
    pub(crate) tail_wake: Notify,
    /// Number of the last generation that is about to be dropped.
    leaving: AtomicU64,
    /// Records up to this version may have been dropped, and be known nowhere.
    forgotten: AtomicU64,
    /// A tombstone is written even where there is nothing to hide.
    keeps_tombstones: AtomicBool,
    /// The number that marks of this store carry.
    pub(crate) marks: StoreNumber,
}

impl Shared {
    pub(crate) fn new(
        options: DiskOptions,
        directory: Directory,
        (observer, below): (Arc<dyn DiskObserver>, Option<Arc<dyn Below>>),
        (generations, state, stats): (Generations, StoreState, DiskStats),
        (memory, reserve_bytes): (IndexMemory, u64),
    ) -> Self {
        let other_bytes = directory.other_bytes().unwrap_or(0);
        let marks = StoreNumber::load(directory.path());
        Self {
            budget: AtomicU64::new(options.budget_bytes),
            fresh: LevelCodec::new(Level::Fresh, options.fresh, options.codec_min_bytes),
            compacted: LevelCodec::new(
                Level::Compacted,
                options.compacted,
                options.codec_min_bytes,
            ),
            idle_cpus: IdleCpus::default(),
            device: Arc::default(),
            writer_times: OnceLock::new(),
            structure: Mutex::new(()),
            reclaim: Reclaim::default(),
            throttle: Throttle::new(options.write_bytes_per_sec_max),
            queue: Queue::new(options.queue_bytes_max),
            transit: Transit::new(options.queue_bytes_max),
            options,
            directory,
            observer,
            below,
            generations,
            reads: Waiting::new(READS_MAX),
            long_reads: LongReads::default(),
            walks: Waiting::new(WALKS_MAX),
            memory,
            stats,
            unsupported: Mutex::default(),
            state: Mutex::new(state),
            spare: Mutex::default(),
            spare_changed: Condvar::new(),
            free_bytes: AtomicU64::new(u64::MAX),
            reserve_bytes: AtomicU64::new(reserve_bytes),
            was_refused: AtomicBool::new(false),
            buried: Mutex::default(),
            buried_bytes: AtomicU64::new(0),
            compaction_bytes: AtomicU64::new(0),
            other_bytes: AtomicU64::new(other_bytes),
            reserved: Mutex::default(),
            is_pressed: AtomicBool::new(false),
            wanted_bytes: AtomicU64::new(0),
            room: Default::default(),
            wake: Default::default(),
            closing: Default::default(),
            tail_wake: Notify::new(),
            leaving: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            // The feed since a mark of before a restart consists of them too.
            keeps_tombstones: AtomicBool::new(marks.is_known()),
            marks,
        }
    }

    /// Records up to this version may have been dropped, and be known nowhere.
    pub(crate) fn forgotten(&self) -> Version {
        self.forgotten.load(Ordering::Acquire)
    }

    /// Records up to `version` are about to be dropped; a restart knows it too.
    pub(crate) fn forget(&self, version: Version) {
        if self.forgotten.fetch_max(version, Ordering::AcqRel) < version
            && let Err(error) = super::forgotten::save(self.directory.path(), version)
        {
            tracing::warn!(%error, "cannot note what was dropped: after a restart copies of other members count only if they are newer than all that was here");
        }
    }

    /// Whether a tombstone is written even where there is nothing to hide.
    pub(crate) fn keeps_tombstones(&self) -> bool {
        self.keeps_tombstones.load(Ordering::Relaxed)
    }

    pub(crate) fn keep_tombstones(&self) {
        self.keeps_tombstones.store(true, Ordering::Relaxed);
    }

    /// Number of the last generation that is about to be dropped, 0 if there is none.
    pub(crate) fn leaving(&self) -> u64 {
        self.leaving.load(Ordering::Acquire)
    }

    /// Notes which generation is to be dropped next, one generation's worth of writes ahead: what
    /// has to be brought into the tier below needs its time.
    pub(crate) fn look_ahead(&self, total: u64, limits: &Limits) {
        if total + limits.generation <= limits.total_high && !self.is_reserve_touched() {
            return;
        }
        let generations = self.generations.snapshot();
        let [_, .., oldest] = &*generations else {
            return;
        };
        if self.leaving.swap(oldest.id, Ordering::AcqRel) != oldest.id {
            self.tail_wake.notify_one();
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits::of_budget(self.budget.load(Ordering::Relaxed))
    }

    pub(crate) fn state(&self) -> StoreState {
        self.state.lock().clone()
    }

    /// Saves the state and only then believes in it.
    pub(crate) fn save_state(&self, state: &StoreState) -> Result<(), DiskError> {
        let mut held = self.state.lock();
        super::state::save(self.directory.path(), state)
            .inspect_err(|_| add(&self.stats.state_saves_failed, 1))?;
        held.clone_from(state);
        Ok(())
    }

    pub(crate) fn is_hidden(&self, space: Space, meta: &Meta, now_ms: u64) -> bool {
        self.state.lock().is_hidden(space, meta, now_ms)
    }

    pub(crate) fn is_flushed(&self, space: Space, version: Version, now_ms: u64) -> bool {
        self.state.lock().is_flushed(space, version, now_ms)
    }

    /// Makes a generation; what a failed attempt left is removed.
    pub(crate) fn create_generation(&self, name: GenerationName) -> Result<Generation, DiskError> {
        let dir = self.directory.generation(name);
        Generation::create(dir.clone(), name, &self.memory).inspect_err(|_| {
            let _ = std::fs::remove_dir_all(&dir);
        })
    }

    /// Makes the log of a generation durable. If it cannot be, the generation takes no more writes:
    /// what the kernel could not write it has forgotten.
    pub(crate) fn sync(&self, generation: &Generation) -> io::Result<()> {
        generation.log.sync().inspect_err(|error| {
            add(&self.stats.syncs_failed, 1);
            if generation.set_failed() {
                add(&self.stats.generations_failed, 1);
                tracing::warn!(generation = generation.id, %error, "cannot sync a value log: going on in a new generation");
            }
        })
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn has_spare(&self) -> bool {
        self.spare.lock().ready.is_some()
    }

    /// Waits until there is no generation ready, and at least `wait`; false if the tier is closed.
    pub(crate) fn wait_for_missing_spare(&self, wait: Duration) -> bool {
        let earliest = Instant::now() + wait;
        let mut spare = self.spare.lock();
        while !self.is_closing() {
            if spare.ready.is_some() {
                self.spare_changed.wait(&mut spare);
            } else if Instant::now() < earliest {
                self.spare_changed.wait_until(&mut spare, earliest);
            } else {
                return true;
            }
        }
        false
    }

    /// Makes a generation ready, or says that there is none to be had for now.
    pub(crate) fn put_spare(&self, ready: Option<Generation>) {
        let mut spare = self.spare.lock();
        spare.has_failed = ready.is_none();
        spare.ready = ready;
        self.spare_changed.notify_all();
    }

    /// Takes the generation that is ready, waiting for it while there is hope.
    pub(crate) fn take_spare(&self, wait: Duration) -> Option<Generation> {
        let deadline = Instant::now() + wait;
        let mut spare = self.spare.lock();
        loop {
            if let Some(ready) = spare.ready.take() {
                self.spare_changed.notify_all();
                return Some(ready);
            }
            if wait.is_zero() || spare.has_failed || self.is_closing() {
                return None;
            }
            self.wake_upkeep();
            if self
                .spare_changed
                .wait_until(&mut spare, deadline)
                .timed_out()
            {
                return None;
            }
        }
    }

    /// Says once for each reason that there are entries which this build cannot read.
    pub(crate) fn warn_of_unsupported(&self, reason: FrameError) {
        let mut told = self.unsupported.lock();
        if !told.contains(&reason) {
            told.push(reason);
            tracing::warn!(
                %reason,
                "entries on disk cannot be read by this build: they are misses until they are \
                 written again, or a build that can read them is started"
            );
        }
    }

    #[cfg(test)]
    pub(crate) fn unsupported_reasons(&self) -> Vec<FrameError> {
        self.unsupported.lock().clone()
    }

    /// Bytes of dropped generations that are not removed yet.
    pub(crate) fn buried_bytes(&self) -> u64 {
        self.buried_bytes.load(Ordering::Acquire)
    }

    /// Counts the bytes in the directory that are no generation's.
    pub(crate) fn measure_others(&self) {
        if let Ok(bytes) = self.directory.other_bytes() {
            self.other_bytes.store(bytes, Ordering::Release);
        }
    }

    pub(crate) fn add_other_bytes(&self, bytes: u64) {
        self.other_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Leaves a generation that is off the list to be removed when no thread reads it any more.
    pub(crate) fn bury(&self, generation: Arc<Generation>) {
        let bytes = generation.disk_bytes();
        self.buried_bytes.fetch_add(bytes, Ordering::AcqRel);
        self.buried.lock().push(Buried { generation, bytes });
        self.wake_upkeep();
    }

    /// Takes all generations that are to be removed.
    pub(crate) fn take_buried(&self) -> Vec<Buried> {
        std::mem::take(&mut *self.buried.lock())
    }

    /// Puts back those that are still read.
    pub(crate) fn put_back_buried(&self, still_read: Vec<Buried>) {
        self.buried.lock().extend(still_read);
    }

    /// Notes that a dropped generation is removed, and tells the writer.
    pub(crate) fn unbury(&self, bytes: u64) {
        self.buried_bytes.fetch_sub(bytes, Ordering::AcqRel);
        let _held = self.room.0.lock();
        self.room.1.notify_all();
    }

    pub(crate) fn wait_for_room(&self, wait: Duration) {
        self.room.1.wait_for(&mut self.room.0.lock(), wait);
    }

    pub(crate) fn set_free(&self, free: u64) {
        self.free_bytes.store(free, Ordering::Relaxed);
    }

    /// Notes that so much was written since.
    pub(crate) fn take_free(&self, bytes: u64) {
        let left = |free: u64| Some(free.saturating_sub(bytes));
        let _ = self
            .free_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
    }

    /// The file system refused to grow a file. With a quota its free bytes do not tell that.
    pub(crate) fn set_refused(&self) {
        self.was_refused.store(true, Ordering::Release);
        self.wake_upkeep();
    }

    /// A generation was dropped for a refusal, or none can be: values may be written.
    pub(crate) fn accept_refusal(&self) {
        self.was_refused.store(false, Ordering::Release);
    }

    /// Oldest generations should go, so that the file system has its reserve again.
    pub(crate) fn is_reserve_touched(&self) -> bool {
        self.has_less_than(self.reserve_bytes.load(Ordering::Relaxed))
    }

    /// No values may be written. Deletions may, for which half of the reserve is enough.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.has_less_than(self.reserve_bytes.load(Ordering::Relaxed) / 2)
    }

    fn has_less_than(&self, bytes: u64) -> bool {
        self.was_refused.load(Ordering::Acquire) || self.free_bytes.load(Ordering::Relaxed) < bytes
    }

    pub(crate) fn wake_upkeep(&self) {
        *self.wake.0.lock() = true;
        self.wake.1.notify_all();
    }

    /// Waits until [`Self::wake_upkeep`] was called since, or the time is over.
    pub(crate) fn wait_for_wake(&self, wait: Duration) {
        let mut is_awake = self.wake.0.lock();
        if !*is_awake {
            self.wake.1.wait_for(&mut is_awake, wait);
        }
        *is_awake = false;
    }

    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.0.lock()
    }

    pub(crate) fn set_closing(&self) {
        *self.closing.0.lock() = true;
        self.closing.1.notify_all();
        // Its holder has looked before, and is going to wait.
        drop(self.spare.lock());
        self.spare_changed.notify_all();
        self.wake_upkeep();
    }

    /// Wakes the threads that wait for the closing, to look whether something else is to be done.
    pub(crate) fn wake_compaction(&self) {
        let _held = self.closing.0.lock();
        self.closing.1.notify_all();
    }

    /// Waits; true if the tier is being closed.
    pub(crate) fn wait_for_close(&self, wait: Duration) -> bool {
        let mut is_closing = self.closing.0.lock();
        if !*is_closing {
            self.closing.1.wait_for(&mut is_closing, wait);
        }
        *is_closing
    }

    /// Gives back everything on disk.
    pub(crate) fn release(&self) {
        self.generations.clear();
        self.buried.lock().clear();
        let spare = self.spare.lock().ready.take();
        if let Some(Err(error)) = spare.map(Generation::remove) {
            tracing::debug!(%error, "cannot remove the generation in reserve");
        }
    }
}

/// What a reactor has queued in one turn is handed over at its end.
impl TurnEnd for Shared {
    fn turn_ended(&self) {
        self.reads.hand_over(&self.stats);
        self.walks.hand_over(&self.stats);
        self.queue.hand_over();
    }
}
