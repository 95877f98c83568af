//! What other nodes wrote, as far as it concerns copies here.

use std::sync::{Arc, OnceLock};

use fonn_base::entry::Space;
use fonn_base::hlc::Hlc;
use fonn_cold_tier::ColdObserver;
use fonn_cold_tier::segment::FlushMark;
use fonn_disk_tier::DiskTier;
use fonn_proto::{PurgeScope, Version, WriterId};

use crate::engine::Hot;

/// Voids copies that another node's are newer than.
pub(super) struct Superseder {
    hot: Arc<Hot>,
    /// Set once, when the disk tier is open.
    home: OnceLock<(DiskTier, Arc<Hlc>)>,
}

impl Superseder {
    pub(super) fn new(hot: Arc<Hot>) -> Self {
        Self {
            hot,
            home: OnceLock::new(),
        }
    }

    pub(super) fn attach(&self, disk: DiskTier, hlc: Arc<Hlc>) {
        let _ = self.home.set((disk, hlc));
    }

    /// Takes over what the index knew at its opening.
    pub(super) fn catch_up(&self, version_max: Version, marks: &[FlushMark]) {
        self.observe(version_max);
        self.hot.raise_floors(version_max);
        for mark in marks {
            self.flushed(mark);
        }
    }

    /// Hides a copy that is older than `version`; false if there is none.
    fn hide_older(&self, disk: &DiskTier, space: Space, key: &[u8], version: Version) -> bool {
        let hot = &*self.hot;
        let hash = hot.ram.hash(space, key);
        let mut shard = hot.ram.lock(hash);
        hot.raise_floor(hash, version);
        let in_ram = shard.find(hash, space, key);
        let is_older = match in_ram.map(|slot| shard.get(slot).meta.version) {
            Some(here) => here < version,
            // The disk's index is asked under the lock, so that no write comes between. It is rare
            // that a key was used here and is written elsewhere.
            None => disk.has_older(space, key, version),
        };
        if is_older {
            // Just below it: whatever is older here is hidden, and should the tombstone get into
            // the bucket before the index knows the newer copy, the newer copy still wins.
            let below = version.saturating_sub(1);
            hot.bury_now(&mut shard, disk, (hash, space, key), below);
        }
        is_older
    }

    /// Versions that are given from now on are above this version, as soon as they follow the
    /// clock: a member without a lease may read in the bucket what the new owner of its slots has
    /// written. False if it is none to be believed.
    fn observe(&self, version: Version) -> bool {
        let Some((_, hlc)) = self.home.get() else {
            return true;
        };
        hlc.hear(version)
            .inspect_err(|error| {
                tracing::warn!(%error, "what another node wrote into the bucket is not believed");
            })
            .is_ok()
    }
}

impl ColdObserver for Superseder {
    /// A copy here that is older is hidden behind a tombstone that is older than the newer copy:
    /// lookups then go past the disk to the bucket, where that counts.
    fn superseded(&self, space: u16, key: &[u8], at: Version) {
        let space = Space(space);
        let Some((disk, _)) = self.home.get() else {
            return;
        };
        if !self.observe(at) {
            return;
        }
        if self.hide_older(disk, space, key, at) {
            // It must outlive a kill: told again it is only until then.
            disk.barrier_blocking();
        }
    }

    fn flushed(&self, mark: &FlushMark) {
        if !self.observe(mark.cutoff) {
            return;
        }
        let flushes = &self.hot.flushes;
        match PurgeScope::new(WriterId::new(mark.writer), mark.space, mark.since) {
            Some(purge) => flushes.restore_purge(purge, mark.cutoff),
            None if mark.writer == 0 => flushes.restore(Space(mark.space), mark.cutoff),
            // Of no namespace: no node makes one.
            None => {}
        }
    }

    /// What is too far ahead of the clock is not there: newer writes could not hide it.
    fn is_visible(&self, space: u16, version: u64) -> bool {
        let home = self.home.get();
        home.is_none_or(|(_, hlc)| hlc.admits(version))
            && self.hot.flushes.is_visible(Space(space), version)
    }
}
