//! The RAM tier: a sharded map from key to value, bounded in bytes, that forgets what was used
//! least recently.
//!
//! It holds no clock and does no I/O: callers give the time, and what a lookup means (expired,
//! stale, newer elsewhere) is theirs to judge. Two invariants are its own: an entry that the disk
//! does not have yet ([dirty](Found::dirty)) is never evicted or swept, and everything that entries
//! take, rounded to the sizes that are really allocated, tables and slots included, is counted in
//! [`RamTier::used`].
//!
//! Memory of an entry with a key of 16 bytes and a value of 100: a block of 124 bytes with key,
//! value and time of last use (`payload.rs`, `arena.rs`), a slot of 24 (`slab.rs`) and 6–8 bytes of
//! a table that holds slot ids only (`table.rs`).
//!
//! In the approximate mode each shard keeps its own order. [`RamTier::evict_to_budget`] takes from
//! the shard that was written, but only what is about as old as what is evicted elsewhere, so that
//! a large value does not empty the shard it falls into. The strict mode has one shard, and one
//! exact order. Namespaces with a quota have an order of their own (`quota.rs`).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use bytes::Bytes;
use fonn_base::entry::{Meta, Space};
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

mod arena;
mod cost;
mod guard;
mod owners;
mod payload;
mod quota;
mod recency;
mod shard;
mod shared;
mod slab;
mod state;
mod table;
#[cfg(test)]
mod tests;

pub use guard::{ManyGuard, ShardGuard, SlotId};
pub use quota::QuotaUse;

use owners::Allowance;
use shard::Shard;

/// Longest value, in stored bytes, that is copied into its entry's block. Longer ones are shared.
pub const INLINE_LEN_MAX: usize = 1024;

/// Bytes of budget for each shard. Large enough that the open ends of the shards do not show in
/// memory per entry.
const SHARD_BYTES: usize = 64 << 20;

const SHARDS_MIN: usize = 16;
const SHARDS_MAX: usize = 1024;

/// The shard is chosen by hash bits that the table of a shard uses neither for the part and the
/// place in it (lower bits) nor for the tag (the highest eight).
const SHARD_SHIFT: u32 = 46;

/// A tier of fewer bytes is in the processor's cache as it is.
const PREFETCH_BYTES_MIN: usize = 1 << 20;

/// Bytes that are evicted from one shard before the next is tried, so that callers that evict at
/// the same time see each other's work and do not each evict all of it.
const EVICT_STEP_BYTES: usize = 64 * 1024;

/// Slots that a scan looks at before it gives the shard's lock back.
const LOCKED_SLOTS_MAX: usize = 256;

/// Slots of a shard among which a random entry is looked for.
const RANDOM_SLOTS_MAX: usize = 1024;

/// Laps over all shards that may find nothing old enough before age no longer matters. Each such
/// lap raises the age, so that only a racing clock gets here.
const FRUITLESS_LAPS_MAX: usize = 40;

/// How exactly the recency of entries is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LruMode {
    /// In shards, to the second, and to an eighth of a shard's list within one.
    Approximate,
    /// One order over all entries, moved by each use, under one lock.
    Strict,
}

/// How to make a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamOptions {
    /// Bytes that the tier may take, everything counted.
    pub budget_bytes: usize,
    /// How exactly recency is kept.
    pub lru: LruMode,
    /// Seeds the hash. A random one for each process keeps clients from choosing keys that collide.
    pub hash_seed: u64,
}

/// A value to store.
#[derive(Clone, Debug)]
pub enum StoredIn<'a> {
    /// Copied.
    Slice(&'a [u8]),
    /// Shared if longer than [`INLINE_LEN_MAX`], copied otherwise. It is counted by its length: it
    /// should own its allocation alone and fill it.
    Shared(Bytes),
}

/// An entry to write.
#[derive(Clone, Debug)]
pub struct NewEntry<'a> {
    /// The key's space.
    pub space: Space,
    /// The key, at most 65,535 bytes.
    pub key: &'a [u8],
    /// The value as it shall rest.
    pub stored: StoredIn<'a>,
    /// The facts beside it.
    pub meta: Meta,
    /// Whether `stored` is a codec frame; the tier only remembers it.
    pub framed: bool,
    /// Whether the disk does not have it yet, so that it must not be evicted.
    pub dirty: bool,
}

/// A value as it rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored<'a> {
    /// In the entry.
    Inline(&'a [u8]),
    /// Shared: a clone stays valid when the entry is gone.
    Shared(&'a Bytes),
}

impl<'a> Stored<'a> {
    /// The bytes.
    #[must_use]
    pub fn as_slice(self) -> &'a [u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }

    /// The bytes, to be kept when the entry is gone: copied if they are in the entry.
    #[must_use]
    pub fn to_bytes(self) -> Bytes {
        match self {
            Self::Inline(bytes) => Bytes::copy_from_slice(bytes),
            Self::Shared(bytes) => bytes.clone(),
        }
    }
}

/// An entry or tombstone in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The key's space.
    pub space: Space,
    /// The key.
    pub key: &'a [u8],
    /// The value; empty for a tombstone.
    pub stored: Stored<'a>,
    /// The facts beside it.
    pub meta: Meta,
    /// Whether the stored bytes are a codec frame.
    pub framed: bool,
    /// Whether the disk does not have it yet.
    pub dirty: bool,
    /// Whether this is a delete that the disk does not have yet: the key is known to be absent.
    pub tombstone: bool,
    /// Whether it was read since it was written.
    pub fetched: bool,
    /// The time of its last use, in the caller's seconds.
    pub last_used_s: u32,
}

/// The tier does not take an entry: it is larger than half of the budget, or its key too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the entry is too large for the RAM tier")]
pub struct Refused;

/// What [`RamTier::evict_to_budget`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Entries evicted.
    pub entries: usize,
    /// Bytes they took.
    pub bytes: usize,
    /// Bytes that the tier still takes above its budget: the limit was reached, or all else is
    /// dirty.
    pub over_bytes: usize,
}

/// What happened in the tier since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Entries evicted for space.
    pub evictions: u64,
    /// Those of them that were never read.
    pub evicted_unfetched: u64,
    /// Bytes that evicted entries took.
    pub evicted_bytes: u64,
    /// Entries removed because they had expired.
    pub expired: u64,
}

/// The tier at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RamStats {
    /// Entries, without tombstones.
    pub entries: usize,
    /// Deletes that wait for the disk.
    pub tombstones: usize,
    /// Entries and tombstones that wait for the disk.
    pub dirty: usize,
    /// Bytes counted against the budget, reserved ones included.
    pub used_bytes: usize,
    /// Bytes reserved by others.
    pub reserved_bytes: usize,
    /// The budget in bytes.
    pub budget_bytes: usize,
    /// What happened so far.
    pub counters: Counters,
}

/// A shard on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Aligned(Mutex<Shard>);

/// See the module.
#[derive(Debug)]
pub struct RamTier {
    /// A power of two.
    shards: Box<[Aligned]>,
    hash_seed: u64,
    budget: AtomicUsize,
    /// Bytes that the shards take.
    stored: AtomicUsize,
    /// Bytes that others reserved.
    reserved: AtomicUsize,
    /// The shard that is evicted from next.
    evict_at: AtomicUsize,
    /// Entries last used until then (in the callers' seconds) are old enough to be evicted.
    horizon_s: AtomicU32,
    /// Namespaces with a quota, sorted.
    allowances: RwLock<Arc<[Arc<Allowance>]>>,
    /// Whether there are any.
    has_quotas: AtomicBool,
}

impl RamTier {
    /// An empty tier. The number of shards follows from the budget and stays.
    #[must_use]
    pub fn new(options: RamOptions) -> Self {
        let wanted = (options.budget_bytes / SHARD_BYTES).clamp(SHARDS_MIN, SHARDS_MAX);
        let count = match options.lru {
            LruMode::Strict => 1,
            LruMode::Approximate => 1 << wanted.ilog2(),
        };
        let shard = || Aligned(Mutex::new(Shard::new(options.hash_seed, options.lru)));
        Self {
            shards: std::iter::repeat_with(shard).take(count).collect(),
            hash_seed: options.hash_seed,
            budget: AtomicUsize::new(options.budget_bytes),
            stored: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            evict_at: AtomicUsize::new(0),
            horizon_s: AtomicU32::new(if count == 1 { u32::MAX } else { 0 }),
            allowances: RwLock::new(Arc::new([])),
            has_quotas: AtomicBool::new(false),
        }
    }

    /// The hash of a key, which names its shard.
    #[must_use]
    pub fn hash(&self, space: Space, key: &[u8]) -> u64 {
        shard::hash(self.hash_seed, space, key)
    }

    /// Locks the shard of a key.
    pub fn lock(&self, hash: u64) -> ShardGuard<'_> {
        self.lock_index(self.shard_index(hash))
    }

    /// Whether there is more than the processor's cache holds.
    #[must_use]
    pub fn is_worth_prefetching(&self) -> bool {
        self.used() >= PREFETCH_BYTES_MIN
    }

    /// Has the processor fetch what lookups of these hashes read, all of them at a time: each of
    /// several reads one after the other waits for memory otherwise. A hint, without an effect on
    /// what is found.
    pub fn prefetch(&self, hashes: &[u64]) {
        // A shard that is busy is left alone: its lookups wait for it anyway.
        let shard = |hash: u64| self.shards[self.shard_index(hash)].0.try_lock();
        for &hash in hashes {
            if let Some(shard) = shard(hash) {
                shard.prefetch_place(hash);
            }
        }
        if hashes.len() < 2 {
            // A second step would wait for the line of the first, with nothing to do meanwhile.
            return;
        }
        let slot = |hash: u64| Some((hash, shard(hash)?.prefetch_slot(hash)?));
        let slots = hashes.iter().filter_map(|&hash| slot(hash));
        let slots: SmallVec<[(u64, u32); 16]> = slots.collect();
        for &(hash, id) in &slots {
            if let Some(shard) = shard(hash) {
                shard.prefetch_payload(id);
            }
        }
        for (hash, id) in slots {
            if let Some(shard) = shard(hash) {
                shard.prefetch_shared(id);
            }
        }
    }

    /// Locks the shards of several keys, for what must be atomic over them.
    pub fn lock_many(&self, hashes: impl IntoIterator<Item = u64>) -> ManyGuard<'_> {
        ManyGuard::new(self, hashes)
    }

    fn shard_index(&self, hash: u64) -> usize {
        (hash >> SHARD_SHIFT) as usize & (self.shards.len() - 1)
    }

    /// Locks a shard by its index below [`RamTier::shard_count`]; the index wraps.
    fn lock_index(&self, index: usize) -> ShardGuard<'_> {
        let shard = &self.shards[index & (self.shards.len() - 1)];
        ShardGuard::new(self, shard.0.lock())
    }

    /// The number of shards, a power of two: what the sweep goes over.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// The budget in bytes.
    #[must_use]
    pub fn budget(&self) -> usize {
        self.budget.load(Ordering::Relaxed)
    }

    /// Changes the budget. Call [`RamTier::evict_to_budget`] afterwards, until nothing is over.
    pub fn set_budget(&self, bytes: usize) {
        self.budget.store(bytes, Ordering::Relaxed);
    }

    /// Bytes counted against the budget, reserved ones included.
    #[must_use]
    pub fn used(&self) -> usize {
        self.stored
            .load(Ordering::Relaxed)
            .saturating_add(self.reserved.load(Ordering::Relaxed))
    }

    /// Counts memory outside the tier (request bodies in flight) against the budget. Call
    /// [`RamTier::evict_to_budget`] afterwards, and [`RamTier::release`] with the same number when
    /// the memory is free.
    pub fn reserve(&self, bytes: usize) {
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes back a [`RamTier::reserve`].
    pub fn release(&self, bytes: usize) {
        let released =
            self.reserved
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
                    reserved.checked_sub(bytes)
                });
        debug_assert!(released.is_ok(), "more was released than reserved");
    }

    /// Bytes above the budget.
    #[must_use]
    pub fn over(&self) -> usize {
        self.used().saturating_sub(self.budget())
    }

    /// Evicts clean entries until the budget holds, at most `entries_max` of them. Holds one lock
    /// at a time, none of them for long; cheap when nothing is over. No guard may be held by the
    /// caller.
    ///
    /// `near` is the hash of a key just written: its shard is tried first, the others follow in
    /// turn. Without one the next shard in turn is the first: a shard that were always the first
    /// would keep nothing.
    pub fn evict_to_budget(&self, near: Option<u64>, now_s: u32, entries_max: usize) -> Evicted {
        let mut evicted = Evicted::default();
        let next = || self.evict_at.fetch_add(1, Ordering::Relaxed);
        let mut near = near.map(|hash| self.shard_index(hash));
        let mut fruitless_laps = 0;
        'laps: loop {
            let mut horizon_s = self.horizon_s.load(Ordering::Relaxed);
            if fruitless_laps > FRUITLESS_LAPS_MAX {
                horizon_s = u32::MAX;
            }
            let mut found_any = false;
            let mut oldest_s = None::<u32>;
            // One more than there are, because the first one is out of turn.
            for _ in 0..=self.shards.len() {
                let over = self.over();
                let left = entries_max - evicted.entries;
                if over == 0 || left == 0 {
                    break 'laps;
                }
                let mut shard = self.lock_index(near.take().unwrap_or_else(next));
                let pass = shard
                    .shard_mut()
                    .evict(over.min(EVICT_STEP_BYTES), left, horizon_s);
                drop(shard);
                evicted.entries += pass.entries;
                evicted.bytes += pass.bytes;
                found_any |= pass.entries > 0 || pass.unfinished;
                oldest_s = oldest_s.into_iter().chain(pass.next_age_s).min();
            }
            if found_any {
                continue;
            }
            // Everything is younger than the horizon, or dirty. The horizon moves to the oldest and
            // a little beyond, so that laps are rare.
            let Some(oldest_s) = oldest_s else { break };
            fruitless_laps += 1;
            let raised = oldest_s.saturating_add(now_s.saturating_sub(oldest_s) / 32);
            self.horizon_s.fetch_max(raised, Ordering::Relaxed);
        }
        evicted.over_bytes = self.over();
        evicted
    }

    /// Goes over `limit` slots of a shard, on from where the last sweep of it ended, and removes
    /// what has expired at `now_ms` and is not dirty. Returns how many.
    ///
    /// A dirty entry stays although it has expired: the disk may still have an older value of the
    /// key.
    pub fn sweep_expired(&self, shard_index: usize, now_ms: u64, limit: usize) -> usize {
        self.lock_index(shard_index)
            .shard_mut()
            .sweep_expired(now_ms, limit)
    }

    /// Goes over about `count` slots from `cursor` on, calls `visit` for each entry (not for
    /// tombstones) and returns the cursor to go on with; 0 to begin with, and 0 when all was seen.
    /// No shard is locked for more than some hundred slots at a time.
    ///
    /// An entry that is there during the whole scan is visited at least once, because it keeps its
    /// slot; one that comes or goes may be.
    pub fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(&Found<'_>)) -> u64 {
        self.scan_while(cursor, count, |found| {
            visit(found);
            ControlFlow::Continue(())
        })
    }

    /// As [`RamTier::scan`]; ends behind the entry at which `visit` breaks.
    pub fn scan_while(
        &self,
        cursor: u64,
        count: usize,
        mut visit: impl FnMut(&Found<'_>) -> ControlFlow<()>,
    ) -> u64 {
        let (mut index, mut from) = ((cursor >> 32) as usize, cursor as u32);
        let mut left = count.max(1);
        'shards: while index < self.shards.len() {
            let guard = self.lock_index(index);
            let shard = guard.shard();
            let mut visited = 0;
            while let Some(id) = shard.next_id(from) {
                if left == 0 {
                    return (index as u64) << 32 | u64::from(id);
                }
                if visited == LOCKED_SLOTS_MAX {
                    // Others may lock the shard in between.
                    continue 'shards;
                }
                left -= 1;
                visited += 1;
                from = id + 1;
                let found = shard.get_if_taken(id).filter(|found| !found.tombstone);
                if found.is_some_and(|found| visit(&found).is_break()) {
                    left = 0;
                }
            }
            // An empty shard costs a lock: it counts too, so that the work is bounded by `count`.
            left = left.saturating_sub(1);
            index += 1;
            from = 0;
        }
        0
    }

    /// The key of some entry of `space` that has not expired at `now_ms`; which one follows from
    /// `seed`. None if none is met among some thousand slots of each shard.
    #[must_use]
    pub fn random(&self, seed: u64, space: Space, now_ms: u64) -> Option<Vec<u8>> {
        (0..self.shards.len()).find_map(|step| {
            let guard = self.lock_index((seed as usize).wrapping_add(step));
            let shard = guard.shard();
            if shard.len_of(space) == 0 {
                return None;
            }
            let start = shard.any_id(seed.rotate_left(29));
            let fits = |id| {
                let found = shard.get_if_taken(id)?;
                let fits =
                    found.space == space && !found.tombstone && !found.meta.is_expired(now_ms);
                fits.then(|| found.key.to_vec())
            };
            let ids =
                |from: u32| std::iter::successors(shard.next_id(from), |&id| shard.next_id(id + 1));
            ids(start)
                .chain(ids(0).take_while(|&id| id < start))
                .take(RANDOM_SLOTS_MAX)
                .find_map(fits)
        })
    }

    /// Entries, expired ones included, tombstones not. Locks each shard in turn.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stats().entries
    }

    /// Whether there is no entry. Locks each shard in turn.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries of one space, expired ones included, tombstones not. Locks each shard in turn.
    #[must_use]
    pub fn len_of(&self, space: Space) -> usize {
        (0..self.shards.len())
            .map(|index| self.lock_index(index).shard().len_of(space))
            .sum()
    }

    /// A snapshot of all counts. Locks each shard in turn, so it is not of one instant.
    #[must_use]
    pub fn stats(&self) -> RamStats {
        let mut stats = RamStats {
            used_bytes: self.used(),
            reserved_bytes: self.reserved.load(Ordering::Relaxed),
            budget_bytes: self.budget(),
            ..RamStats::default()
        };
        for index in 0..self.shards.len() {
            let guard = self.lock_index(index);
            let shard = guard.shard();
            stats.entries += shard.entries;
            stats.tombstones += shard.tombstones;
            stats.dirty += shard.dirty;
            stats.counters.evictions += shard.counters.evictions;
            stats.counters.evicted_unfetched += shard.counters.evicted_unfetched;
            stats.counters.evicted_bytes += shard.counters.evicted_bytes;
            stats.counters.expired += shard.counters.expired;
        }
        stats
    }
}
