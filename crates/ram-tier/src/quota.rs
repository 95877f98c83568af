//! Quotas of namespaces in RAM: a namespace past its quota gives up its own entries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fonn_base::entry::Space;

use super::owners::Allowance;
use super::{EVICT_STEP_BYTES, Evicted, RamTier};

/// What the entries of a namespace with a quota take in RAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaUse {
    /// What they may take in bytes.
    pub quota_bytes: usize,
    /// Bytes that they take.
    pub used_bytes: usize,
    /// Entries that were evicted because of the quota.
    pub evictions: usize,
}

impl RamTier {
    /// Sets what namespaces may take in bytes; others may take what there is. Entries that are
    /// there are sorted anew, which locks each shard for as long as that takes. Call
    /// [`RamTier::evict_to_quota`] afterwards.
    pub fn set_quotas(&self, quotas: &BTreeMap<u32, usize>) {
        let mut held = self.allowances.write();
        let is_same = held.len() == quotas.len()
            && held.iter().zip(quotas).all(|(old, (&namespace, &quota))| {
                (old.namespace, old.quota) == (namespace, quota)
            });
        if is_same {
            return;
        }
        let evicted = |namespace| {
            let old = held.iter().find(|old| old.namespace == namespace);
            old.map_or(0, |old| old.evicted.load(Ordering::Relaxed))
        };
        let allowances: Arc<[Arc<Allowance>]> = quotas
            .iter()
            .map(|(&namespace, &quota)| {
                Arc::new(Allowance {
                    namespace,
                    quota,
                    used: AtomicUsize::new(0),
                    evicted: AtomicUsize::new(evicted(namespace)),
                })
            })
            .collect();
        for index in 0..self.shards.len() {
            self.lock_index(index).shard_mut().set_owners(&allowances);
        }
        self.has_quotas
            .store(!allowances.is_empty(), Ordering::Release);
        *held = allowances;
    }

    fn allowance(&self, namespace: u32) -> Option<Arc<Allowance>> {
        if !self.has_quotas.load(Ordering::Acquire) {
            return None;
        }
        let allowances = self.allowances.read();
        let found = allowances.binary_search_by_key(&namespace, |it| it.namespace);
        found.ok().map(|at| Arc::clone(&allowances[at]))
    }

    /// Evicts clean entries of the namespace that `space` belongs to until its quota holds, at most
    /// `entries_max` of them. Holds one lock at a time; cheap where there is no quota, or nothing
    /// is over. No guard may be held by the caller. `near` is the hash of the key just written.
    pub fn evict_to_quota(&self, near: u64, space: Space, entries_max: usize) -> Evicted {
        let mut evicted = Evicted::default();
        let Some(allowance) = self.allowance(space.namespace()) else {
            return evicted;
        };
        let mut at = self.shard_index(near);
        let mut fruitless = 0;
        loop {
            let (over, left) = (allowance.over(), entries_max - evicted.entries);
            // One more than there are, because the first one is out of turn.
            if over == 0 || left == 0 || fruitless > self.shards.len() {
                break;
            }
            let mut shard = self.lock_index(at);
            let bytes = over.min(EVICT_STEP_BYTES);
            let pass = shard
                .shard_mut()
                .evict_owned(allowance.namespace, bytes, left);
            drop(shard);
            let found_any = pass.entries > 0 || pass.unfinished;
            fruitless = if found_any { 0 } else { fruitless + 1 };
            evicted.entries += pass.entries;
            evicted.bytes += pass.bytes;
            at = self.evict_at.fetch_add(1, Ordering::Relaxed);
        }
        allowance
            .evicted
            .fetch_add(evicted.entries, Ordering::Relaxed);
        evicted.over_bytes = allowance.over();
        evicted
    }

    /// What a namespace with a quota takes; None if it has none.
    #[must_use]
    pub fn quota_use(&self, namespace: u32) -> Option<QuotaUse> {
        self.allowance(namespace).map(|allowance| QuotaUse {
            quota_bytes: allowance.quota,
            used_bytes: allowance.used.load(Ordering::Relaxed),
            evictions: allowance.evicted.load(Ordering::Relaxed),
        })
    }

    /// Entries of each namespace that has any, expired ones included. Locks each shard in turn.
    #[must_use]
    pub fn namespaces(&self) -> BTreeMap<u32, u64> {
        let mut all = BTreeMap::new();
        for index in 0..self.shards.len() {
            for &(space, count) in self.lock_index(index).shard().spaces() {
                *all.entry(space.namespace()).or_default() += u64::from(count);
            }
        }
        all
    }
}
