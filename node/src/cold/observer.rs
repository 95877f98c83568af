//! What other nodes wrote, as far as it concerns copies here.

use std::sync::{Arc, OnceLock};

use fonn_base::entry::Space;
use fonn_base::hlc::Hlc;
use fonn_cold_tier::segment::FlushMark;
use fonn_cold_tier::{ColdObserver, CopyRef};
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
    fn superseded(&self, newer: &[CopyRef<'_>]) {
        let Some((disk, _)) = self.home.get() else {
            return;
        };
        let mut has_hidden = false;
        for copy in newer.iter().filter(|copy| self.observe(copy.at)) {
            let (space, key, at) = (Space(copy.space), copy.key, copy.at);
            let has_older = || disk.has_older(space, key, at);
            has_hidden |= self.hot.hide_older(disk, (space, key), at, has_older);
        }
        if has_hidden {
            // The tombstones must outlive a kill: the index does not tell of these copies again.
            disk.barrier_blocking();
        }
    }

    fn flushed(&self, mark: &FlushMark) -> bool {
        if !self.observe(mark.cutoff) {
            return false;
        }
        let flushes = &self.hot.flushes;
        match PurgeScope::new(WriterId::new(mark.writer), mark.space, mark.since) {
            Some(purge) => flushes.restore_purge(purge, mark.cutoff),
            None if mark.writer == 0 => flushes.restore([(Space(mark.space), mark.cutoff)]),
            // Of no namespace: no node makes one.
            None => return false,
        }
        true
    }

    /// What is too far ahead of the clock is not there: newer writes could not hide it.
    fn is_visible(&self, space: u32, version: u64) -> bool {
        let home = self.home.get();
        home.is_none_or(|(_, hlc)| hlc.admits(version))
            && self.hot.flushes.is_visible(Space(space), version)
    }
}
