//! The disk tier: entries in value logs, found through fjall indexes, within a budget of bytes.
//!
//! A [`DiskTier`] knows nothing of RAM. It stores records in *generations* (a value log with an
//! index over it), writes the newest, reads all of them newest first, and drops the oldest whole
//! when the budget is reached, after what is hot was carried over. Why it is built like this and
//! what was measured: `docs/disk-tier.md`; bytes on disk: `docs/formats/disk-record.md`.
//!
//! Invariants:
//! - A get returns the newest record of the key or a miss, never an older one; and only bytes whose
//!   checksums, key and version are right.
//! - What was acknowledged is found again after a kill (and with [`Durability::Fsync`] after a loss
//!   of power), until it is evicted.
//! - No call blocks its caller on the disk but [`DiskTier::open`], [`DiskTier::save_state`] and
//!   [`DiskTier::close`]. All queues are bounded.

mod below;
mod carry;
mod census;
mod compaction;
mod directory;
mod error;
mod forgotten;
mod generation;
mod generations;
mod index;
pub mod levels;
mod locate;
mod log;
mod long_reads;
mod mark;
mod newest;
mod number_file;
mod options;
mod probe;
mod queue;
mod reader;
mod record;
mod room;
mod shared;
mod slots;
mod state;
mod stats;
mod tail;
mod throttle;
mod transit;
mod upkeep;
mod value;
mod walk;
mod write;
mod writer;

#[cfg(any(test, feature = "test-util"))]
mod test_util;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use fonn_base::device::DeviceWatch;
use fonn_base::entry::{Meta, Space};
use fonn_base::niceness;
use fonn_base::reactor::{Reactor, TurnEnd, relayed};
use fonn_cold_tier::Location;
use fonn_proto::{Failure, Version};

use crate::levels::LevelCodec;
use directory::{Directory, GenerationName};
use generations::{Forgotten, Generations, Opening};
use queue::Order;
use reader::{Lookup, Question, Waiting};
use record::index_key;
use shared::Shared;
use stats::add;
use transit::{HoldsValues, taken, with_room};

pub use below::{Below, Leave, Leaving};
pub use census::Census;
pub use directory::has_generations as has_entries;
pub use error::DiskError;
pub use locate::{DiskLocation, FrameFacts};
pub use mark::Mark;
pub use newest::{Newest, NewestEntry};
pub use options::{
    BUDGET_BYTES_MIN, COMPACTION_PERCENT, DiskOptions, Durability, ROOM_WAIT, VALUE_LEN_LIMIT,
};
pub use probe::{DiskFacts, DiskProbed};
pub use reader::Reach;
pub use record::{ERASED, Fact};
pub use slots::{SlotLimits, SlotPage};
pub use state::{FlushMark, StoreState};
pub use stats::{DiskStats, DiskStatsSnapshot};
pub use tail::{TailPosition, TailRecord, Unread};
pub use walk::{CountLimits, KeyPage, PageLimits, SpaceCount};
pub use write::{DiskObserver, Write, WriteKind};

/// Bytes that the file system should keep free, at least: with less, fjall could not write its
/// tables and would have to be given up.
const RESERVE_BYTES_MIN: u64 = 64 << 20;

/// An entry that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskEntry {
    /// The facts beside the value.
    pub meta: Meta,
    /// The value. Stored verbatim, it shares the memory of its whole record.
    pub value: Bytes,
    /// The frame that it was stored in, if it was compressed.
    pub frame: Option<Bytes>,
}

/// What a lookup found.
#[derive(Clone, Debug)]
pub enum DiskFound {
    /// The newest copy is on disk.
    Entry(DiskEntry),
    /// The key was deleted, or neither this tier nor the one below knows it.
    Absent,
    /// The newest copy is in the tier below.
    Below(Location),
}

/// How much the disk tier holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes on disk of everything in the directory, about.
    pub bytes_on_disk: u64,
    /// Bytes that these may be.
    pub budget_bytes: u64,
    /// Generations, with the one in reserve not counted.
    pub generations: usize,
    /// Bytes of value logs that are not compacted yet, the newest one's included.
    pub uncompacted_bytes: u64,
    /// Entries, about: one that was written again counts again.
    pub entries_approx: u64,
    /// Bytes of the writes that wait.
    pub queue_bytes: usize,
    /// Bytes that these may be.
    pub queue_bytes_max: usize,
    /// Reads that wait for a thread.
    pub reads_waiting: usize,
    /// So many may.
    pub reads_waiting_max: usize,
}

/// A handle to the disk tier; clones are cheap and mean the same tier. When the last one is dropped
/// without [`DiskTier::close`], the threads write what is queued and end by themselves.
#[derive(Clone)]
pub struct DiskTier {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        stop(&self.shared);
    }
}

fn stop(shared: &Shared) {
    shared.queue.close();
    shared.reads.close();
    shared.long_reads.close();
    shared.walks.close();
}

impl DiskTier {
    /// Opens the directory, makes it if there is none, and starts the threads. Blocks until
    /// everything in it can be read.
    ///
    /// Damage costs what is damaged: an index is made anew from its value log; a generation that
    /// cannot be read at all is moved aside, and what is older than it is dropped with it.
    ///
    /// `below` is a tier that keeps the entries that the disk tier drops.
    ///
    /// # Errors
    /// [`DiskError::Options`], [`DiskError::Locked`], [`DiskError::Format`]; [`DiskError::Io`] if
    /// the operating system refuses. Nothing is deleted for these.
    pub fn open(
        options: DiskOptions,
        observer: Arc<dyn DiskObserver>,
        below: Option<Arc<dyn Below>>,
    ) -> Result<Self, DiskError> {
        options.validate()?;
        let directory = Directory::open(&options.dir)?;
        let stats = DiskStats::default();
        add(&stats.files_mended, u64::from(directory.is_mended()));
        let loaded = state::load(directory.path(), &stats)?;
        if loaded.is_none() {
            tracing::error!(
                "state file is damaged, so what was flushed is not known: starting empty"
            );
            add(&stats.generations_broken, 1);
        }
        if directory.generations()?.is_empty() {
            mark::void(directory.path())?;
        }
        let memory = options.index_memory();
        let reserve = RESERVE_BYTES_MIN.max(2 * memory.memtable_bytes());
        let opening = Opening {
            directory: &directory,
            memory: &memory,
            budget: options.budget_bytes,
            reserve,
            forget: loaded.is_none(),
            forgotten: Forgotten::load(&directory, loaded.as_ref())?,
            // What leaves has to be told to the tier below; upkeep does it.
            trim: below.is_none(),
            stats: &stats,
        };
        let opened = opening.run()?;
        let forgotten = opening.forgotten.version();
        let passed = below.as_ref().map(|it| it.passed()).unwrap_or_default();
        let end = opened.list.first().map(|newest| tail::end_of(newest));
        // The tier below has passed records that are gone. New ones must come behind its position,
        // or it would take them for these.
        let is_short = end.unwrap_or_default() < passed;
        let generations = Generations::new(opened.list);
        let parts = (generations, loaded.unwrap_or_default(), stats);
        let shared = Arc::new(Shared::new(
            options,
            directory,
            (observer, below),
            parts,
            (memory, reserve),
        ));
        shared.forget(forgotten);
        if let Ok(free) = directory::free_bytes(&shared.options.dir) {
            shared.set_free(free);
            let (budget, room) = (shared.options.budget_bytes, shared.kept_bytes() + free);
            if budget > room {
                tracing::warn!(
                    budget,
                    room,
                    "--disk-budget is more than the file system of --data-dir has room for: lower it, \
                     or free space"
                );
            }
        }
        let mut next_id = opened.next_id;
        if is_short {
            next_id = next_id.max(passed.generation.saturating_add(1));
        }
        if !opened.writable || is_short {
            let first = shared.create_generation(GenerationName::first(next_id))?;
            shared.generations.push_newest(Arc::new(first));
            next_id += 1;
        }
        let threads = start(&shared, next_id)?;
        Ok(Self {
            handle: Arc::new(Handle {
                shared,
                threads: Mutex::new(threads),
            }),
        })
    }

    /// Queues a write; never blocks.
    ///
    /// # Errors
    /// [`Failure::Busy`] if the queue is full, [`Failure::Unavailable`] if the tier is closed. The
    /// write comes back, its acknowledgement not completed, and the observer does not hear of it.
    #[expect(
        clippy::result_large_err,
        reason = "a refused write goes back as it came, without allocating"
    )]
    pub fn try_write(&self, write: Write) -> Result<(), (Write, Failure)> {
        let shared = &self.handle.shared;
        shared
            .queue
            .try_push(write)
            .inspect_err(|_| add(&shared.stats.writes_rejected, 1))?;
        self.hand_over();
        Ok(())
    }

    /// Waits until [`DiskTier::try_write`] would take a write of `cost` ([`Write::cost`]), up to
    /// `wait`; false if the time is over before.
    ///
    /// # Cancel safety
    /// Safe: nothing is reserved.
    pub async fn wait_for_room(&self, cost: usize, wait: Duration) -> bool {
        self.handle.shared.queue.room(cost, wait).await
    }

    /// Reads an entry, or tells that the tier below has it. Expiry and flushes are the caller's
    /// business. Damaged records are counted, logged, and absent.
    ///
    /// # Errors
    /// [`DiskError::Busy`] if too many reads are waiting, or too many bytes of long records of the
    /// namespace; [`DiskError::Closed`].
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing; a read not begun is not made.
    pub async fn find(&self, space: Space, key: &[u8]) -> Result<DiskFound, DiskError> {
        let sought: Box<[u8]> = key.into();
        let find = move |shared: &Shared| reader::find_short(shared, space, &sought);
        match self.read_value(find).await? {
            Lookup::Found(found) => Ok(found),
            // Boxed: few reads need the room, and all would have it.
            Lookup::Long(len) => Box::pin(self.find_long(space, key, len)).await,
        }
    }

    /// The version of the newest copy or tombstone of a key, within `reach`. No value is read.
    ///
    /// # Errors
    /// As [`DiskTier::find`].
    pub async fn newest(
        &self,
        space: Space,
        key: &[u8],
        reach: Reach,
    ) -> Result<Option<Version>, DiskError> {
        let key: Box<[u8]> = key.into();
        self.read(move |shared| reader::newest(shared, space, &key, reach))
            .await
    }

    /// Records up to this version may have been dropped, by this process or one before it, and be
    /// known nowhere.
    #[must_use]
    pub fn forgotten(&self) -> Version {
        self.handle.shared.forgotten()
    }

    /// From now on, tombstones are written even where there is nothing to hide: another member may
    /// still send an older copy of the key.
    pub fn keep_tombstones(&self) {
        self.handle.shared.keep_tombstones();
    }

    /// Counts the live entries of a namespace on disk: neither expired nor flushed, the newest of
    /// each key. Goes over the indexes in pieces, between other reads; no values are read.
    ///
    /// # Errors
    /// As [`DiskTier::page`].
    pub async fn census(&self, namespace: u32, now_ms: u64) -> Result<Census, DiskError> {
        let mut census = Census::default();
        let mut next = Some((Space::new(namespace, 0), None));
        while let Some(at) = next {
            let begun = std::mem::take(&mut census);
            let step = move |shared: &Shared| census::step(shared, begun, at, now_ms);
            (census, next) = self.read(step).await?;
        }
        Ok(census)
    }

    /// Has the threads woken for what was queued. Others of this turn of the reactor may follow,
    /// and one wake does for all.
    fn hand_over(&self) {
        let shared = &self.handle.shared;
        match Reactor::current() {
            Some(reactor) => reactor.at_turn_end(shared),
            None => shared.turn_ended(),
        }
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shared) -> Result<T, DiskError> + Send + 'static,
    ) -> Result<T, DiskError> {
        self.ask(&self.handle.shared.reads, read).await
    }

    /// As [`DiskTier::read`], of what may be a value.
    async fn read_value<T: HoldsValues + Send + 'static>(
        &self,
        read: impl FnOnce(&Shared) -> Result<T, DiskError> + Send + 'static,
    ) -> Result<T, DiskError> {
        self.read(with_room(read)).await.map(taken)
    }

    /// Has a thread of `waiting` answer a question.
    async fn ask<T: Send + 'static>(
        &self,
        waiting: &Waiting,
        question: impl FnOnce(&Shared) -> Result<T, DiskError> + Send + 'static,
    ) -> Result<T, DiskError> {
        let shared = &self.handle.shared;
        let (question, answered) = asked(question);
        waiting
            .push(question)
            .inspect_err(|_| add(&shared.stats.reads_rejected, 1))?;
        self.hand_over();
        relayed(answered).await.unwrap_or(Err(DiskError::Closed))
    }

    /// Reads what was written behind `from`, for the tier below; see [`tail::read`]. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// [`DiskError::Index`] if a log cannot be read for a reason that may pass.
    pub fn read_tail(
        &self,
        from: TailPosition,
        bytes_max: usize,
        horizon: u64,
    ) -> Result<tail::Tailed, DiskError> {
        tail::read(&self.handle.shared, from, bytes_max, horizon)
    }

    /// How much was written behind `from`, in generations up to `horizon`. One small read.
    #[must_use]
    pub fn unread(&self, from: TailPosition, horizon: u64) -> Unread {
        tail::unread(&self.handle.shared, from, horizon)
    }

    /// Number of the last generation that is about to be dropped, 0 if there is none.
    #[must_use]
    pub fn leaving(&self) -> u64 {
        self.handle.shared.leaving()
    }

    /// Waits until something was written, or another generation is about to be dropped, since the
    /// last call. For one waiter.
    ///
    /// # Cancel safety
    /// Safe: nothing goes unnoticed.
    pub async fn tail_grew(&self) {
        self.handle.shared.tail_wake.notified().await;
    }

    /// Whether this tier has a value of the key whose version is below `version`; true if it cannot
    /// tell. Reads an index: some microseconds.
    pub fn has_older(&self, space: Space, key: &[u8], version: Version) -> bool {
        let found = self.handle.shared.generations.find(&index_key(space, key));
        let fact = |found: generations::Found| found.entry.fact;
        match found.map(|found| found.map(fact)) {
            Ok(Some(Fact::Put(meta))) => meta.version < version,
            Ok(_) => false,
            Err(_) => true,
        }
    }

    /// Has it looked at once whether a generation can be dropped.
    pub fn wake_upkeep(&self) {
        self.handle.shared.wake_upkeep();
    }

    /// The state that was saved last, or found at opening.
    #[must_use]
    pub fn load_state(&self) -> StoreState {
        self.handle.shared.state()
    }

    /// Saves the state; it is durable when this returns. Blocks on the disk: some milliseconds.
    ///
    /// # Errors
    /// [`DiskError::Io`]; the state is the one before then.
    pub fn save_state(&self, state: &StoreState) -> Result<(), DiskError> {
        self.handle.shared.save_state(state)
    }

    /// Changes the budget; a smaller one is reached in the background.
    ///
    /// # Errors
    /// [`DiskError::Options`] if it is below [`BUDGET_BYTES_MIN`].
    pub fn set_budget(&self, bytes: u64) -> Result<(), DiskError> {
        let shared = &self.handle.shared;
        DiskOptions {
            budget_bytes: bytes,
            ..shared.options.clone()
        }
        .validate()?;
        shared.budget.store(bytes, Ordering::Relaxed);
        shared.wake_upkeep();
        Ok(())
    }

    /// Whether generations that hold mostly what is of no use are written anew before any is
    /// dropped for want of room: then what one namespace lost does not cost another its entries.
    pub fn set_reclaiming(&self, is_on: bool) {
        let shared = &self.handle.shared;
        // The compaction thread does it.
        shared
            .reclaim
            .set_on(is_on && shared.options.compaction_percent > 0);
        shared.wake_upkeep();
    }

    /// The codec of values that are written. Changing it concerns values to come.
    #[must_use]
    pub fn fresh(&self) -> &LevelCodec {
        &self.handle.shared.fresh
    }

    /// The codec `compacted`. A change concerns generations that are compacted from now on.
    #[must_use]
    pub fn compacted(&self) -> &LevelCodec {
        &self.handle.shared.compacted
    }

    /// How much it holds.
    #[must_use]
    pub fn usage(&self) -> DiskUsage {
        let shared = &self.handle.shared;
        let generations = shared.generations.snapshot();
        DiskUsage {
            bytes_on_disk: shared.disk_bytes(),
            budget_bytes: shared.budget.load(Ordering::Relaxed),
            generations: generations.len(),
            uncompacted_bytes: generations
                .iter()
                .filter(|it| !it.has_been_compacted())
                .map(|it| it.log.end())
                .sum(),
            entries_approx: generations.iter().map(|g| g.index.entries_approx()).sum(),
            queue_bytes: shared.queue.in_use(),
            queue_bytes_max: shared.options.queue_bytes_max,
            reads_waiting: shared.reads.len() + shared.long_reads.len(),
            reads_waiting_max: reader::READS_MAX + long_reads::LONG_READS_MAX,
        }
    }

    /// For how long the writer has waited for the device, for a thread that gives up on a device
    /// that does not answer.
    #[must_use]
    pub fn device(&self) -> Arc<DeviceWatch> {
        Arc::clone(&self.handle.shared.device)
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &DiskStats {
        &self.handle.shared.stats
    }

    /// Waits until everything queued before is written or has failed.
    pub async fn barrier(&self) {
        let _ = self.order_barrier().await;
    }

    /// As [`DiskTier::barrier`], for a thread that may block.
    pub fn barrier_blocking(&self) {
        let _ = self.order_barrier().blocking_recv();
    }

    fn order_barrier(&self) -> oneshot::Receiver<()> {
        let (answer, answered) = oneshot::channel();
        self.handle.shared.queue.push_order(Order::Barrier(answer));
        answered
    }

    /// Writes what is queued, syncs, ends the threads and gives the directory free. Blocks until
    /// then, or for `grace`: false if that was not long enough (what was acknowledged is safe all
    /// the same; the process may exit). Other handles fail from now on.
    #[must_use]
    pub fn close(self, grace: Duration) -> bool {
        let deadline = Instant::now() + grace;
        stop(&self.handle.shared);
        let threads = std::mem::take(&mut *self.handle.threads.lock());
        let is_done = |thread: &JoinHandle<()>| thread.is_finished();
        while !threads.iter().all(is_done) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        for thread in threads {
            let _ = thread.join();
        }
        true
    }
}

/// A question that sends its answer, and where that arrives.
fn asked<T: Send + 'static>(
    question: impl FnOnce(&Shared) -> Result<T, DiskError> + Send + 'static,
) -> (Question, oneshot::Receiver<Result<T, DiskError>>) {
    let (answer, answered) = oneshot::channel();
    let question = move |shared: &Shared| {
        // A caller that has gone needs no answer.
        if !answer.is_closed() {
            let _ = answer.send(question(shared));
        }
    };
    (Box::new(question), answered)
}

/// Nice value of the threads that put acknowledged writes on disk: a flood of writes must not keep
/// the reactors from the reads of other clients.
const WRITE_NICENESS: i32 = 10;

/// Nice value of the threads with long work that no client waits for.
const UPKEEP_NICENESS: i32 = 10;

/// Has the calling thread, and those that it starts, run after the reactors when processors are
/// scarce.
fn stand_back(niceness: i32) {
    // Beside hundreds of other tests such a thread would get next to no time.
    if !cfg!(test) {
        niceness::stand_back(niceness);
    }
}

/// Starts the threads. The writer outlives the queue's closing until the queue is empty, and ends
/// the others; the last one to end closes the generations.
fn start(shared: &Arc<Shared>, next_id: u64) -> Result<Vec<JoinHandle<()>>, DiskError> {
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body);
        thread.map_err(DiskError::io("start a thread for", &shared.options.dir))
    };
    let mut helpers = Vec::new();
    for _ in 0..shared.options.read_threads {
        let shared = Arc::clone(shared);
        helpers.push(spawn(
            "fonn-disk-read",
            Box::new(move || reader::run(&shared, || shared.reads.take(&shared.stats))),
        )?);
    }
    for _ in 0..long_reads::threads(shared.options.read_threads) {
        let shared = Arc::clone(shared);
        helpers.push(spawn(
            "fonn-disk-long",
            Box::new(move || reader::run(&shared, || shared.long_reads.take())),
        )?);
    }
    let walker = Arc::clone(shared);
    helpers.push(spawn(
        "fonn-disk-walk",
        Box::new(move || walk::run(&walker)),
    )?);
    let upkeep = Arc::clone(shared);
    helpers.push(spawn(
        "fonn-disk-keep",
        Box::new(move || upkeep::run(&upkeep)),
    )?);
    let spare = Arc::clone(shared);
    helpers.push(spawn(
        "fonn-disk-next",
        Box::new(move || upkeep::run_spare(&spare, next_id)),
    )?);
    if shared.options.compaction_percent > 0 {
        let compaction = Arc::clone(shared);
        helpers.push(spawn(
            "fonn-compaction",
            Box::new(move || compaction::run(&compaction)),
        )?);
    }
    if shared.options.durability == Durability::Batched {
        let sync = Arc::clone(shared);
        helpers.push(spawn(
            "fonn-disk-sync",
            Box::new(move || upkeep::run_sync(&sync)),
        )?);
    }
    let shared_of_writer = Arc::clone(shared);
    let writer = move || {
        let shared = shared_of_writer;
        writer::run(&shared);
        shared.set_closing();
        for helper in helpers {
            let _ = helper.join();
        }
        for generation in shared.generations.snapshot().iter() {
            if let Err(error) = generation
                .log
                .sync()
                .map_err(DiskError::io("sync", &shared.options.dir))
            {
                tracing::warn!(generation = generation.id, %error, "cannot sync a value log");
            }
        }
        shared.release();
    };
    Ok(vec![spawn("fonn-disk-write", Box::new(writer))?])
}
