//! Quotas on disk: the engine counts a namespace that may be too large, and cuts off its oldest
//! entries.
//!
//! A cut is a flush of what is older than a version. It is one number, saved before it counts. It
//! hides entries in RAM, on disk and in the bucket at once, and goes where flushes go. Compaction
//! or the drop of a generation removes the hidden entries. With quotas, generations with mostly
//! hidden bytes are written anew before any generation is dropped for want of room
//! (`crates/disk-tier/src/compaction/reclaim.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fonn_auth::Directory;
use fonn_base::entry::Space;
use fonn_base::events::{Events, Topic};
use fonn_disk_tier::{Census, DiskError, DiskTier};

use super::Engine;
use crate::namespaces::{DiskAccount, Namespaces};

/// A namespace that holds more than its quota without this part of it is cut, so that a count is
/// followed by many writes before the next.
const HIGH_PART: u64 = 16;

/// It is cut to its quota without this part of it.
const LOW_PART: u64 = 8;

/// How often it is looked whether anything is due, without a wake; and how long it rests after a
/// count.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long it waits after a count that failed.
const RETRY: Duration = Duration::from_millis(100);

/// Entries that one request evicts for a quota at most.
const EVICTIONS_MAX: usize = 64;

impl Engine {
    /// The namespaces.
    #[must_use]
    pub fn namespaces(&self) -> &Namespaces {
        &self.hot.namespaces
    }

    /// Takes over the namespaces of the users in force and their quotas.
    ///
    /// `users` says which these are once no other thread applies any: so the last thread applies
    /// the newest, in whatever order threads noticed a change.
    pub fn set_users(&self, users: impl FnOnce() -> Option<Arc<Directory>>) {
        let _turn = self.taking_over.lock();
        self.hot.namespaces.set_users(users().as_deref());
        self.apply_quotas();
    }

    /// Lets the tiers go by the quotas.
    pub(crate) fn apply_quotas(&self) {
        let known = self.hot.namespaces.known();
        let quotas: BTreeMap<u32, usize> = known
            .iter()
            .filter_map(|it| Some((it.number, it.quota?.as_usize())))
            .collect();
        self.hot.ram.set_quotas(&quotas);
        for &namespace in quotas.keys() {
            let space = Space::new(namespace, 0);
            self.hot.ram.evict_to_quota(0, space, usize::MAX);
        }
        if let Some(disk) = &self.disk {
            disk.set_reclaiming(!quotas.is_empty());
        }
    }

    /// Has a namespace that was written to give up what is above its quota in RAM.
    pub(super) fn evict_to_quota(&self, hash: u64, space: Space) {
        self.hot.ram.evict_to_quota(hash, space, EVICTIONS_MAX);
    }

    /// Counts namespaces when they are due, and cuts them; runs until it is dropped.
    pub async fn enforce_quotas(self: Arc<Self>, events: Events) {
        loop {
            let mut has_failed = false;
            if let Some(disk) = &self.disk {
                for namespace in self.hot.namespaces.due() {
                    if let Err(error) = self.enforce_quota(disk, namespace, &events).await {
                        tracing::debug!(namespace, %error, "cannot count a namespace");
                        has_failed = true;
                    }
                }
            }
            if has_failed {
                tokio::time::sleep(RETRY).await;
                continue;
            }
            let woken = self.hot.namespaces.wake.notified();
            let _ = tokio::time::timeout(LOOK_INTERVAL, woken).await;
        }
    }

    async fn enforce_quota(
        &self,
        disk: &DiskTier,
        namespace: u32,
        events: &Events,
    ) -> Result<(), DiskError> {
        let namespaces = &self.hot.namespaces;
        let begun = namespaces.begin_count(namespace);
        // What was written before is counted; what is written from now on is added.
        disk.barrier().await;
        let now_ms = self.hot.clock.wall_ms();
        let began_ms = self.hot.clock.monotonic_ms();
        let census = disk.census(namespace, now_ms).await?;
        let mut count = DiskAccount {
            bytes: census.bytes,
            entries: census.entries,
            counted_at_ms: now_ms,
            count_took_ms: self.hot.clock.monotonic_ms().saturating_sub(began_ms),
            ..DiskAccount::default()
        };
        if let Some(quota) = namespaces.quota(namespace)
            && census.bytes > quota - quota / HIGH_PART
            && let Some(cut) = census.cut(quota - quota / LOW_PART)
        {
            self.cut(&census, cut.below).await;
            count.bytes -= cut.bytes;
            count.entries -= cut.entries;
            count.cut_bytes = cut.bytes;
            count.cut_entries = cut.entries;
            self.tell_cut(namespace, count, quota, events);
        }
        namespaces.counted(namespace, begun, count);
        Ok(())
    }

    /// Hides what is older than a version. If that cannot be saved it holds until a restart, after
    /// which the namespace is counted again.
    async fn cut(&self, census: &Census, below: u64) {
        let spaces = census.spaces().to_vec();
        let _ = self
            .change_ledger(move |ledger| {
                let cutoffs = spaces.into_iter().map(|space| (space, below));
                ledger.hot.flushes.restore(cutoffs);
            })
            .await;
    }

    fn tell_cut(&self, namespace: u32, count: DiskAccount, quota: u64, events: &Events) {
        let known = self.hot.namespaces.known();
        let name = known.iter().find(|it| it.number == namespace);
        let name = name.map_or("", |it| &*it.name);
        tracing::debug!(
            namespace = name,
            entries = count.cut_entries,
            bytes = count.cut_bytes,
            quota,
            "a namespace lost its oldest entries to its quota"
        );
        // The first time only: a namespace at its quota stays there.
        if self.hot.namespaces.disk_account(namespace).cut_entries == 0 {
            let message = format!("namespace {name} is at its quota: its oldest entries go");
            events.warning(Topic::Disk, message);
        }
    }
}
