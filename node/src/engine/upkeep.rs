//! Opening the store, and what has to be done from time to time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fonn_base::clock::Clock;
use fonn_base::hlc::{self, Hlc, VersionRange};
use fonn_base::tasks::Tasks;
use fonn_base::{allocator, memory};
use fonn_codec::policy::Signals;
use fonn_cold_tier::segment::FlushMark as ColdMark;
use fonn_cold_tier::{ColdError, ColdTier};
use fonn_disk_tier::levels::{CodecChoice, Cpu, Level, LevelCodec};
use fonn_disk_tier::{
    DiskError, DiskObserver, DiskOptions, DiskTier, Durability, FlushMark, StoreState,
};
use fonn_proto::peer::SlotSet;
use fonn_proto::{Failure, Version};
use fonn_ram_tier::{RamOptions, RamTier};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use super::batch::{LOOKUPS_AT_ONCE, TURNS};
use super::unsettled::Unsettled;
use super::{Acks, Engine, Hot, MUTATION_STRIPES, Settings, iterate, pressure};
use crate::cold::{Cold, ColdSetup};
use crate::flush::FlushTable;
use crate::namespaces::Namespaces;
use crate::stats::{Latency, Stats};

/// Versions are reserved this far ahead of the clock, so that none is given out twice even if the
/// clock goes back while the node is down. A write whose version is beyond what is reserved (the
/// clock jumped, or nothing could be saved for a while) waits for the next reservation.
pub(crate) const CEILING_AHEAD_MS: u64 = 10_000;

/// Versions that are reserved at least, where the range of the epoch is nearly used up: two
/// milliseconds' worth.
const RESERVED_MIN: u64 = 2 << hlc::COUNTER_BITS;

/// Time between two rounds of upkeep.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(100);

/// A member of a cluster that comes to carry out a flush with a delay so long after its time has
/// missed it.
const FLUSH_LATE_MS: u64 = 2000;

/// Rounds between two looks at the codec of the RAM level.
const DECIDE_ROUNDS: u32 = 10;

/// Slots that one round looks at in each shard it visits, for expired entries.
const SWEEP_SLOTS: usize = 512;

/// Entries that one round evicts, if the budget shrank.
const UPKEEP_EVICTIONS_MAX: usize = 10_000;

/// Entries that are evicted at most for one request that is about to be received.
const RESERVE_EVICTIONS_MAX: usize = 4096;

/// The part of the RAM budget by which it may be exceeded when a body is received.
const RECEIVE_OVER_PART: usize = 16;

/// The part of the RAM budget that is received between two looks at the size of the process, also
/// if the process is larger than it may be. What makes it large may be none of the requests' doing
/// and may stay for long, as the indexes of very long keys do; the memory of requests is used again
/// for those that follow.
const RECEIVE_PART: usize = 64;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk tier.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The cold tier.
    #[error("the index of the cold tier cannot be opened")]
    Cold(#[from] ColdError),
}

/// How to open a store.
pub struct EngineOptions {
    /// What does not change later.
    pub settings: Settings,
    /// The RAM tier.
    pub ram: RamOptions,
    /// The disk tier, if there shall be one.
    pub disk: Option<DiskOptions>,
    /// The cold tier below it, if there shall be one.
    pub cold: Option<ColdSetup>,
    /// The codec of the RAM level, and the length from which it is used.
    pub ram_codec: (CodecChoice, usize),
    /// The time.
    pub clock: Clock,
}

impl Engine {
    /// Opens the store. Blocks while the disk tier recovers.
    ///
    /// # Errors
    /// What the disk tier or the cold tier cannot be opened for.
    pub fn open(options: EngineOptions) -> Result<Arc<Self>, OpenError> {
        let hot = Arc::new(Hot {
            ram: RamTier::new(options.ram),
            flushes: FlushTable::default(),
            clock: options.clock,
            stats: Stats::default(),
            namespaces: Namespaces::default(),
            mutations: (0..MUTATION_STRIPES).map(|_| AtomicU64::new(0)).collect(),
            floors: (0..super::FLOOR_STRIPES)
                .map(|_| AtomicU64::new(0))
                .collect(),
            unsettled: Unsettled::default(),
        });
        let cold = match options.cold {
            Some(setup) if options.disk.is_some() => Some(Cold::open(setup, &hot)?),
            _ => None,
        };
        let disk = match options.disk {
            Some(disk) => {
                let below = cold.as_ref().map(Cold::below);
                let observer = Arc::clone(&hot) as Arc<dyn DiskObserver>;
                Some(DiskTier::open(disk, observer, below)?)
            }
            None => None,
        };
        let state = disk.as_ref().map(DiskTier::load_state).unwrap_or_default();
        let now_ms = hot.clock.wall_ms();
        let floor = state.version_ceiling.min(hlc::VERSION_MAX - 1);
        let hlc = Hlc::new(hot.clock.clone(), floor).expect("the floor was brought into the range");
        let hlc = Arc::new(hlc);
        if disk.is_some() {
            // All that was written here is below the ceiling.
            hot.raise_floors(hlc.last());
        }
        if let (Some(cold), Some(disk)) = (&cold, &disk) {
            cold.attach(disk, &hlc);
        }
        let is_due = state.flushes.iter().any(|mark| {
            // Noted for later; it is carried out below if that is past.
            mark.at_ms != 0 && mark.at_ms <= now_ms
        });
        let (flushed, to_come): (Vec<&FlushMark>, Vec<_>) =
            state.flushes.iter().partition(|mark| mark.at_ms == 0);
        let cutoffs = flushed.iter().map(|mark| (mark.space, mark.cutoff));
        hot.flushes.restore(cutoffs);
        for mark in to_come {
            hot.flushes.flush_at(mark.space, mark.at_ms);
        }
        for &(purge, cutoff) in &state.purges {
            hot.flushes.restore_purge(purge, cutoff);
        }
        // Before anything is served: what fell due while the node was down. All that was written
        // here is below the ceiling.
        let known = state.version_ceiling.min(hlc.last());
        hot.flushes.flush_missed(now_ms, known);
        let ledger = Ledger {
            hot: Arc::clone(&hot),
            disk: disk.clone(),
            cold: cold.as_ref().map(|cold| cold.tier().clone()),
            known: AtomicU64::new(hlc.last().saturating_add(1)),
            hlc,
            // What is in use of it is below the clock's floor: the first write reserves.
            ceiling: AtomicU64::new(match disk {
                Some(_) => state.version_ceiling,
                None => Version::MAX,
            }),
            entering: RwLock::new(()),
            one_at_a_time: Mutex::new(()),
            is_failing: AtomicBool::new(false),
        };
        if is_due {
            ledger.change(|_| ())?;
        }
        Ok(Arc::new(Self {
            hot,
            disk,
            cold,
            ledger: Arc::new(ledger),
            settings: options.settings,
            ram_codec: LevelCodec::new(Level::Ram, options.ram_codec.0, options.ram_codec.1),
            iterations: iterate::Iterations::default(),
            lookup_turns: Semaphore::new(LOOKUPS_AT_ONCE),
            batch_turns: Arc::new(Semaphore::new(TURNS)),
            disk_get_latency: Latency::default(),
            cold_get_latency: Latency::default(),
            withheld: AtomicUsize::new(0),
            resident: AtomicUsize::new(0),
            received: AtomicUsize::new(0),
            taking_over: parking_lot::Mutex::default(),
        }))
    }

    /// Changes what has to outlive a restart besides the entries, and returns once it does.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] if it could not be saved; it is changed all the same until a
    /// restart.
    ///
    /// # Cancel safety
    /// Cancelled, the change is made and saved all the same.
    pub(super) async fn change_ledger<R: Send + 'static>(
        &self,
        change: impl FnOnce(&Ledger) -> R + Send + 'static,
    ) -> Result<R, Failure> {
        let ledger = Arc::clone(&self.ledger);
        if self.disk.is_none() {
            // Nothing blocks.
            return ledger.change(change).map_err(|_| Failure::Unavailable);
        }
        match tokio::task::spawn_blocking(move || ledger.change(change)).await {
            Ok(Ok(changed)) => Ok(changed),
            Ok(Err(_)) | Err(_) => Err(Failure::Unavailable),
        }
    }

    /// Reserves versions, so that at least the one given last may be used.
    pub(super) async fn reserve_versions(&self) -> Result<(), Failure> {
        let newest = self.ledger.hlc.newest();
        if self.disk.is_none() {
            return Ok(());
        }
        let ledger = Arc::clone(&self.ledger);
        match tokio::task::spawn_blocking(move || ledger.reserve(newest)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Failure::Unavailable),
        }
    }

    /// When a write is acknowledged. `None` without a disk tier.
    #[must_use]
    pub fn durability(&self) -> Option<Durability> {
        self.disk.as_ref().map(|_| self.settings.durability)
    }

    /// The clock that gives its versions.
    #[must_use]
    pub fn versions(&self) -> Arc<Hlc> {
        Arc::clone(&self.ledger.hlc)
    }

    /// Reserves versions of a range that is entered next. Blocks on the disk. Writes go on by the
    /// range before meanwhile, and none waits for it.
    pub fn reserve_range(&self, range: VersionRange) {
        // The clock moves to the base. What it gives there is reserved before.
        let enough = range.base.saturating_add(hlc::COUNT_RESERVE / 4);
        if self.ledger.hlc.last() < range.base {
            // The first write of the range tries again.
            let _ = self.ledger.reserve_to(enough);
        }
    }

    /// Gives versions of the range of an epoch from now on. Writes go on by the range before until
    /// then. What is not [reserved](Engine::reserve_range) is reserved by the first write.
    pub fn enter_versions(&self, range: VersionRange) {
        let hlc = &self.ledger.hlc;
        // An empty store does not know which versions it gave before it was emptied.
        let is_empty = hlc.last() == 0;
        {
            let _alone = self.ledger.entering.write();
            hlc.enter(range);
        }
        if is_empty {
            hlc.advance(range.ceiling.saturating_sub(hlc::COUNT_RESERVE / 2));
        }
    }

    /// Whether another range of versions was entered since a command was admitted. To be asked when
    /// its version is given.
    pub fn is_late(&self, acks: &Acks) -> bool {
        let admitted = acks.admitted;
        admitted.is_some_and(|base| base != self.ledger.hlc.base())
    }

    /// Does what is due, again and again; runs until it is dropped.
    pub async fn upkeep(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut next_shard = 0;
        let mut cpu = Cpu::new();
        let mut rounds = 0_u32;
        loop {
            ticks.tick().await;
            self.upkeep_once(&mut next_shard).await;
            self.relieve();
            rounds = (rounds + 1) % DECIDE_ROUNDS;
            if rounds == 0 {
                allocator::release_idle();
            }
            if rounds == 0 && self.ram_codec.is_auto() {
                self.decide_ram_codec(&mut cpu);
            }
        }
    }

    /// One round of upkeep.
    pub async fn upkeep_once(&self, next_shard: &mut usize) {
        let now_ms = self.hot.clock.wall_ms();
        let known = self.ledger.known.load(Ordering::Relaxed);
        if !self.hot.flushes.due(now_ms).is_empty() {
            // Logged where it failed. A restart would find the flush due once more.
            let _ = self
                .change_ledger(move |ledger| {
                    let flushes = &ledger.hot.flushes;
                    if flushes.is_shared() {
                        // The process stood still. Others did it, and went on; how far they were it
                        // is told.
                        flushes.flush_missed(now_ms.saturating_sub(FLUSH_LATE_MS), known);
                    }
                    flushes.flush_due(now_ms, || ledger.hlc.next());
                })
                .await;
        }
        let given = self.ledger.hlc.last().saturating_add(1);
        self.ledger.known.store(given, Ordering::Relaxed);
        self.settle();
        if let Some(cold) = &self.cold {
            cold.catch_up_once();
        }
        self.ledger.hlc.mark();
        // One that gives none saves nothing; the first write after a while waits for it once.
        if self.ledger.is_low(self.ledger.hlc.newest()) && self.ledger.hlc.take_given() {
            // Logged where it failed; writes try again.
            let _ = self.reserve_versions().await;
        }
        // An eighth of the shards a round, so that each is visited every 0.8 seconds.
        let shards = self.hot.ram.shard_count();
        for _ in 0..shards.div_ceil(8) {
            *next_shard = (*next_shard + 1) % shards;
            self.hot.ram.sweep_expired(*next_shard, now_ms, SWEEP_SLOTS);
        }
        self.hot
            .ram
            .evict_to_budget(None, self.hot.now_s(), UPKEEP_EVICTIONS_MAX);
    }

    /// Withholds memory from the entries, or gives it back, by the size of the process.
    fn relieve(&self) {
        let Some(mut resident) = memory::resident() else {
            return;
        };
        if resident.as_usize() > pressure::target(self.hot.ram.budget()) {
            // What is free but resident is not the entries' fault.
            allocator::release_free();
            resident = memory::resident().unwrap_or(resident);
        }
        self.resident.store(resident.as_usize(), Ordering::Relaxed);
        self.received.store(0, Ordering::Relaxed);
        let ram = &self.hot.ram;
        let old = self.withheld.load(Ordering::Relaxed);
        let new = pressure::withhold(resident.as_usize(), ram.budget(), old);
        self.withheld.store(new, Ordering::Relaxed);
        if new > old {
            ram.reserve(new - old);
        } else {
            ram.release(old - new);
        }
    }

    /// Bytes of the RAM budget that entries may not use, because the process is too large.
    #[must_use]
    pub fn withheld(&self) -> usize {
        self.withheld.load(Ordering::Relaxed)
    }

    /// The codec of the RAM level. Changing it concerns entries to come.
    #[must_use]
    pub fn ram_codec(&self) -> &LevelCodec {
        &self.ram_codec
    }

    /// Lets `auto` look at the RAM level: the fuller it is, the more a smaller value gains.
    fn decide_ram_codec(&self, cpu: &mut Cpu) {
        let (used, budget) = (self.hot.ram.used(), self.hot.ram.budget().max(1));
        let signals = Signals {
            cpu_busy: cpu.busy(),
            device_busy: used as f32 / budget as f32,
            backlog: 0.0,
        };
        self.ram_codec.decide(signals);
    }

    /// Counts bytes of a request body that is being received against the RAM budget, and evicts for
    /// it. False, and nothing is counted, if so many small entries have to make room that it is not
    /// there yet, or if the process could outgrow its allowance before its size is looked at again.
    pub fn try_receive(&self, bytes: usize) -> bool {
        let ram = &self.hot.ram;
        ram.reserve(bytes);
        let is_there = self.makes_room(bytes) && self.may_receive(bytes);
        if !is_there {
            ram.release(bytes);
        }
        is_there
    }

    /// Evicts for a body that is about to be received: now, since small entries take their time,
    /// not when the value is there. False if another try gets further.
    ///
    /// A little more than the budget may be used: then the value makes room when it is there, in
    /// the shard that it grows. Room that bodies make elsewhere would let shards drift apart, until
    /// one that is nearly empty evicts what has just come.
    fn makes_room(&self, bytes: usize) -> bool {
        let ram = &self.hot.ram;
        if ram.over() <= ram.budget() / RECEIVE_OVER_PART {
            return true;
        }
        let evictions = (bytes / 1024).clamp(super::EVICTIONS_MAX, RESERVE_EVICTIONS_MAX);
        let evicted = ram.evict_to_budget(None, self.hot.now_s(), evictions);
        // Where no more can go for now, waiting would not help.
        evicted.entries < evictions || evicted.over_bytes <= ram.budget() / RECEIVE_OVER_PART
    }

    /// Whether the process stays within its allowance until its size is looked at again.
    fn may_receive(&self, bytes: usize) -> bool {
        let budget = self.hot.ram.budget();
        let allowed = pressure::receive_limit(budget)
            .saturating_sub(self.resident.load(Ordering::Relaxed))
            .max(budget / RECEIVE_PART);
        self.received
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                // One always goes, however large it is.
                (now == 0 || now.saturating_add(bytes) <= allowed).then_some(now + bytes)
            })
            .is_ok()
    }

    /// How many bytes of request bodies may be received at a time.
    #[must_use]
    pub fn inflight_max(&self) -> usize {
        self.hot.ram.budget() / 2
    }

    /// Begins to spill, follow and collect, if there is a cold tier, in tasks on the current
    /// runtime.
    pub fn start_cold(&self, tasks: &Tasks) {
        if let (Some(cold), Some(disk)) = (&self.cold, &self.disk) {
            cold.start(disk, self.versions(), tasks);
        }
    }

    /// Members of the cluster are lost, each with the slots that it was the last to own. To be
    /// called before these slots are answered for here.
    pub(crate) fn take_over(&self, lost: Vec<(String, SlotSet)>) {
        if let Some(cold) = &self.cold {
            let now = tokio::time::Instant::now();
            for (member, slots) in lost {
                cold.take_over(&member, slots, now);
            }
        }
    }

    /// Brings into the bucket what is not there yet, until `deadline` at most; for a node that
    /// stops.
    pub async fn drain_cold(&self, deadline: Instant) {
        let (Some(cold), Some(disk)) = (&self.cold, &self.disk) else {
            return;
        };
        self.settle_all();
        disk.barrier().await;
        if !cold.drain(deadline).await {
            tracing::warn!(
                "left before everything was in the bucket: the rest goes there after the next start"
            );
        }
    }

    /// Writes out all that is queued and closes the disk tier; waits no longer than `deadline`.
    /// False if something is left.
    pub fn close(&self, deadline: Duration) -> bool {
        let Some(disk) = &self.disk else { return false };
        self.settle_all();
        let is_written = disk.clone().close(deadline);
        if !is_written {
            tracing::warn!("left before everything queued was written");
        }
        // The disk takes no more, so no version above the last one will ever be on it.
        // Without it the next start leaves out the versions that were reserved.
        let _ = self.ledger.save_last();
        is_written
    }
}

/// What has to outlive a restart besides the entries: flushes, and which versions were given out.
pub(super) struct Ledger {
    pub hot: Arc<Hot>,
    disk: Option<DiskTier>,
    cold: Option<ColdTier>,
    pub hlc: Arc<Hlc>,
    /// All that was written up to the last round of upkeep is below it.
    known: AtomicU64,
    /// Versions below it may be used: it is saved, and a restart begins above it.
    ceiling: AtomicU64,
    /// Written while another range of versions is entered. What gives several versions reads it:
    /// all of them are of one range.
    pub entering: RwLock<()>,
    /// Held from a change until it is saved, so that what is saved last is the newest.
    one_at_a_time: Mutex<()>,
    /// The last save failed.
    is_failing: AtomicBool,
}

impl Ledger {
    /// Versions from here on must not be used yet.
    pub fn ceiling(&self) -> Version {
        self.ceiling.load(Ordering::Acquire)
    }

    /// Makes a change and saves the whole. Reserves no more versions than are in use: a member that
    /// is killed and started again and again would get ahead of others each time. Blocks on the
    /// disk.
    fn change<R>(&self, change: impl FnOnce(&Self) -> R) -> Result<R, DiskError> {
        let _held = self.one_at_a_time.lock();
        let changed = change(self);
        let used = self.hlc.last().saturating_add(1);
        self.save(self.ceiling().max(used))?;
        Ok(changed)
    }

    /// Reserves versions beyond `wanted`, unless that is done already. Blocks on the disk.
    fn reserve(&self, wanted: Version) -> Result<(), DiskError> {
        let _held = self.one_at_a_time.lock();
        // Many writes come here at once; the first one saves for all.
        if !self.is_low(wanted) {
            return Ok(());
        }
        let newest = self.hlc.newest();
        self.save(newest.saturating_add(self.ahead_of(newest)))
    }

    /// Reserves versions up to `ceiling`, unless that is done already. Blocks on the disk.
    fn reserve_to(&self, ceiling: Version) -> Result<(), DiskError> {
        let _held = self.one_at_a_time.lock();
        match self.ceiling() >= ceiling {
            true => Ok(()),
            false => self.save(ceiling),
        }
    }

    /// Whether less than half of what is reserved at a time is left above a version.
    fn is_low(&self, version: Version) -> bool {
        self.ceiling().saturating_sub(version) <= self.ahead_of(version) / 2
    }

    /// How many versions are reserved at a time above one.
    ///
    /// A restarted member begins above what was reserved, and must stay in its range all the same.
    /// So a member that only counts on reserves an eighth of the rest of the range.
    fn ahead_of(&self, version: Version) -> u64 {
        let rest = self.hlc.ceiling().saturating_sub(version);
        let ahead = match rest.checked_sub(hlc::COUNT_RESERVE) {
            Some(follows) => follows.saturating_add(hlc::COUNT_RESERVE * 3 / 8),
            None => rest / 8,
        };
        ahead.clamp(RESERVED_MIN, CEILING_AHEAD_MS << hlc::COUNTER_BITS)
    }

    /// Saves that no version above the last one is in use, nor will be.
    fn save_last(&self) -> Result<(), DiskError> {
        let _held = self.one_at_a_time.lock();
        self.save(self.hlc.last().saturating_add(1))
    }

    /// Logs that saving begins to fail, and that it works again. Each write that needs it tries it.
    fn tell(&self, error: Option<&DiskError>) {
        match (
            error,
            self.is_failing.swap(error.is_some(), Ordering::Relaxed),
        ) {
            (Some(error), false) => {
                tracing::error!(%error, "the state of the store cannot be saved: writes are refused until it can");
            }
            (None, true) => tracing::info!("the state of the store is saved again"),
            (Some(_), true) | (None, false) => {}
        }
    }

    fn save(&self, version_ceiling: Version) -> Result<(), DiskError> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        let (cutoffs, pending) = self.hot.flushes.snapshot();
        let purges = self.hot.flushes.purges();
        let done = cutoffs.iter().map(|&(space, cutoff)| FlushMark {
            space,
            cutoff,
            at_ms: 0,
        });
        let later = pending.iter().map(|flush| FlushMark {
            space: flush.space,
            cutoff: 0,
            at_ms: flush.at_ms,
        });
        let saved = disk.save_state(&StoreState {
            version_ceiling,
            flushes: done.chain(later).collect(),
            purges: purges.clone(),
        });
        self.tell(saved.as_ref().err());
        saved?;
        self.ceiling.store(version_ceiling, Ordering::Release);
        let Some(cold) = &self.cold else {
            return Ok(());
        };
        let flushed = cutoffs.into_iter();
        let flushed = flushed.map(|(space, cutoff)| ColdMark::of_space(space.0, cutoff));
        let purged = purges.into_iter().map(|(purge, cutoff)| ColdMark {
            space: purge.place(),
            writer: purge.writer.number(),
            since: purge.since,
            cutoff,
        });
        for mark in flushed.chain(purged) {
            if let Err(error) = cold.flush(mark) {
                tracing::error!(%error, "a flush or purge does not reach the bucket");
            }
        }
        Ok(())
    }
}
