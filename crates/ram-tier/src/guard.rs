//! Locked shards: everything that reads or writes single entries goes through them.

use std::sync::atomic::Ordering;

use fonn_base::entry::Space;
use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::shard::Shard;
use super::{Found, NewEntry, RamTier, Refused};

/// Names an entry inside the guard that gave it out. It stays valid while the entry is there, also
/// over overwrites; methods given the id of an entry that is gone may panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotId(pub(super) u32);

/// One locked shard. Nothing may block or await while it is held.
#[must_use = "the shard is locked only while the guard lives"]
#[derive(Debug)]
pub struct ShardGuard<'t> {
    tier: &'t RamTier,
    /// The shard's `used` that the tier knows of.
    used_known: usize,
    shard: MutexGuard<'t, Shard>,
}

impl<'t> ShardGuard<'t> {
    pub(super) fn new(tier: &'t RamTier, shard: MutexGuard<'t, Shard>) -> Self {
        Self {
            tier,
            used_known: shard.used,
            shard,
        }
    }

    pub(super) fn shard(&self) -> &Shard {
        &self.shard
    }

    pub(super) fn shard_mut(&mut self) -> &mut Shard {
        &mut self.shard
    }

    /// The slot of a key: of its entry, expired or not, or of its tombstone.
    #[must_use]
    pub fn find(&self, hash: u64, space: Space, key: &[u8]) -> Option<SlotId> {
        self.shard.find(hash, space, key).map(SlotId)
    }

    /// What is in a slot. Costs no allocation.
    ///
    /// # Panics
    /// If the entry was removed.
    #[must_use]
    pub fn get(&self, id: SlotId) -> Found<'_> {
        self.shard.get(id.0)
    }

    /// Writes an entry over whatever the key had, in the same slot if it had one, as the most
    /// recently used and not yet fetched. It does not compare versions: look with
    /// [`ShardGuard::find`] first.
    ///
    /// Call [`RamTier::evict_to_budget`] after the guard is dropped.
    ///
    /// # Errors
    /// [`Refused`] if the entry would take more than half of the budget, the key is longer than
    /// 65,535 bytes, or the shard has run out of addresses (100 GiB of small entries). What the key
    /// had before is then still there.
    pub fn insert(
        &mut self,
        hash: u64,
        entry: NewEntry<'_>,
        now_s: u32,
    ) -> Result<SlotId, Refused> {
        let cost_max = self.tier.budget() / 2;
        self.shard.insert(hash, entry, now_s, cost_max).map(SlotId)
    }

    /// Puts a tombstone in the place of whatever the key had. Lookups find it, so that an absent
    /// key is known to be absent until the disk knows too and
    /// [`ShardGuard::clear_dirty_if_version`] removes it.
    ///
    /// # Errors
    /// [`Refused`] as for [`ShardGuard::insert`], but never because of the budget.
    pub fn insert_tombstone(
        &mut self,
        hash: u64,
        space: Space,
        key: &[u8],
        version: u64,
    ) -> Result<SlotId, Refused> {
        self.shard
            .insert_tombstone(hash, space, key, version)
            .map(SlotId)
    }

    /// Removes an entry or tombstone, dirty or not.
    ///
    /// # Panics
    /// If it was removed already.
    pub fn remove(&mut self, id: SlotId) {
        self.shard.remove(id.0);
    }

    /// Notes that the right to recache an entry was given out.
    ///
    /// # Panics
    /// If the entry was removed.
    pub fn set_token_sent(&mut self, id: SlotId) {
        self.shard.set_token_sent(id.0);
    }

    /// Notes a use at `now_s`: recency, time of the last use and the fetched mark.
    ///
    /// # Panics
    /// If the entry was removed.
    pub fn touch_use(&mut self, id: SlotId, now_s: u32) {
        self.shard.touch_use(id.0, now_s);
    }

    /// Tells that the disk has this version of the key. If it is still the one here, the entry may
    /// be evicted from now on, or its tombstone is removed. Returns whether it was.
    ///
    /// A change that keeps the version is not told apart from what was written before it: give
    /// every write that must reach the disk a version of its own.
    pub fn clear_dirty_if_version(
        &mut self,
        hash: u64,
        space: Space,
        key: &[u8],
        version: u64,
    ) -> bool {
        let Some(id) = self.shard.find(hash, space, key) else {
            return false;
        };
        let found = self.shard.get(id);
        let is_due = found.dirty && found.meta.version == version;
        if is_due {
            self.shard.clear_dirty(id);
        }
        is_due
    }
}

impl Drop for ShardGuard<'_> {
    fn drop(&mut self) {
        // The shard is still locked here, so that its differences are added up in their order and
        // the sum never falls below zero.
        let (before, after) = (self.used_known, self.shard.used);
        if after > before {
            self.tier
                .stored
                .fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.tier
                .stored
                .fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}

/// Several locked shards, for what must be atomic over several keys.
#[must_use = "the shards are locked only while the guard lives"]
#[derive(Debug)]
pub struct ManyGuard<'t> {
    tier: &'t RamTier,
    /// Sorted by shard index, without repetition.
    shards: SmallVec<[(usize, ShardGuard<'t>); 4]>,
}

impl<'t> ManyGuard<'t> {
    /// Locks the shards of all `hashes`, in the order of their index, so that two callers never
    /// wait for each other.
    pub(super) fn new(tier: &'t RamTier, hashes: impl IntoIterator<Item = u64>) -> Self {
        let mut wanted: SmallVec<[usize; 16]> = hashes
            .into_iter()
            .map(|hash| tier.shard_index(hash))
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        let shards = wanted
            .into_iter()
            .map(|at| (at, tier.lock_index(at)))
            .collect();
        Self { tier, shards }
    }

    /// The shard of one of the hashes that were locked.
    ///
    /// # Panics
    /// If the hash's shard was not locked.
    pub fn shard(&mut self, hash: u64) -> &mut ShardGuard<'t> {
        let index = self.tier.shard_index(hash);
        match self.shards.binary_search_by_key(&index, |&(at, _)| at) {
            Ok(at) => &mut self.shards[at].1,
            Err(_) => unreachable!("the shard of hash {hash:x} is not locked"),
        }
    }
}
