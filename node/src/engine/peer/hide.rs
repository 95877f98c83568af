//! Hiding what a member has of some slots before it copies them in full.
//!
//! What is here of such a slot may be stale. So it is erased, as if it had been evicted: a
//! tombstone of version 0 follows it in the log. Such a tombstone hides what comes before it,
//! whatever its version, and refuses no copy that comes later.
//!
//! A key that is unknown here may have been known and forgotten: its generation was dropped, or RAM
//! gave it up. Then [`Engine::put_of_peer`] takes only versions above all that was forgotten. For a
//! copy of a slot that was hidden up to a version V this is too strict. All that was forgotten up
//! to V would be hidden as well. If nothing above V was forgotten, the key is truly unknown, and
//! [`Engine::put_copy`] takes any version.

use bytes::Bytes;
use fonn_base::entry::Space;
use fonn_disk_tier::{DiskTier, ERASED, Reach, SlotLimits, SlotPage};
use fonn_proto::peer::SlotSet;
use fonn_proto::placement::slot;
use fonn_proto::{Failure, Version, peer};

use super::feed::failure_of;
use super::{PAGE_KEYS_MAX, PutError};
use crate::engine::newest::Newest;
use crate::engine::{Acks, Engine};

/// Keys that are hidden before their writes are waited for.
const STEP_KEYS: usize = 256;

/// How many slots of the RAM table a step of `hide_slots` reads.
const STEP_RAM_SLOTS: usize = 256;

impl Engine {
    /// Hides what RAM and disk have of some slots with a version of `up_to` or lower, tombstones
    /// too, as if it had been evicted, and returns when all of it is hidden. Newer entries stay.
    /// The bucket is not touched: what it has may be found again.
    ///
    /// Afterwards, copies of these slots come in with [`Engine::put_copy`]. Each later write of
    /// these slots that is no copy must have a version above `up_to`: else a copy could replace a
    /// write that was refused or evicted. For copies of any version to be taken, `up_to` must not
    /// be below [`DiskTier::forgotten`]; without a disk, not below the floor of any stripe of keys.
    ///
    /// It writes a record for each key, in steps, and may take minutes.
    ///
    /// # Errors
    /// If the disk cannot be read or written. What is hidden stays hidden: the caller calls again.
    ///
    /// # Cancel safety
    /// As with an error.
    pub async fn hide_slots(&self, slots: &SlotSet, up_to: Version) -> Result<(), Failure> {
        if let Some(disk) = &self.disk {
            // What is dropped from now on is known by its versions.
            disk.keep_tombstones();
            self.settle_all();
            // What is in RAM only is on disk then.
            disk.barrier().await;
            self.hide_on_disk(disk, slots, up_to).await?;
        }
        // Entries whose generation was dropped are in RAM alone.
        self.hide_in_ram(slots, up_to).await?;
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        disk.barrier().await;
        // Without durability, a failed write is not reported to its caller.
        let is_refused = |(_, key, version): &(Space, Bytes, Version)| {
            *version == ERASED && slots.contains(slot(key))
        };
        match self.hot.unsettled.lock().iter().any(is_refused) {
            true => Err(Failure::Unavailable),
            false => Ok(()),
        }
    }

    /// Keeps a copy of an entry or tombstone of a slot that was hidden up to `hidden_to`, if it is
    /// newer than what is known of its key. False if it is not, or if something above `hidden_to`
    /// was forgotten since, which may have been newer. Until `acks` are waited for, the answer is
    /// provisional.
    ///
    /// # Errors
    /// As [`Engine::put_of_peer`].
    pub async fn put_copy(
        &self,
        entry: &peer::Entry<'_>,
        hidden_to: Version,
        acks: &mut Acks,
    ) -> Result<bool, PutError> {
        self.put_incoming(entry, Some(hidden_to), acks).await
    }

    async fn hide_on_disk(
        &self,
        disk: &DiskTier,
        slots: &SlotSet,
        up_to: Version,
    ) -> Result<(), Failure> {
        let limits = SlotLimits {
            keys: PAGE_KEYS_MAX,
            bytes: usize::MAX,
        };
        let mut after = None;
        loop {
            let page = disk.scan_slots(slots, None, after, limits).await;
            let SlotPage { keys, last } = page.map_err(|error| failure_of(&error))?;
            for keys in keys.chunks(STEP_KEYS) {
                self.hide_step(keys, up_to).await?;
            }
            after = last;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn hide_in_ram(&self, slots: &SlotSet, up_to: Version) -> Result<(), Failure> {
        let is_hidden = |key: &[u8], version| version <= up_to && slots.contains(slot(key));
        let mut at = 0;
        loop {
            let mut keys = Vec::new();
            at = self.hot.ram.scan(at, STEP_RAM_SLOTS, |found| {
                if is_hidden(found.key, found.meta.version) {
                    keys.push((found.space, found.key.to_vec()));
                }
            });
            self.hide_step(&keys, up_to).await?;
            if at == 0 {
                break;
            }
        }
        // Tombstones that the disk has refused.
        let unsettled: Vec<_> = {
            let unsettled = self.hot.unsettled.lock();
            let found = unsettled.iter();
            let found = found.filter(|(_, key, version)| is_hidden(key, *version));
            found
                .map(|(space, key, _)| (*space, key.to_vec()))
                .collect()
        };
        self.hide_step(&unsettled, up_to).await
    }

    /// Hides some keys, and waits until a restart does not find them.
    async fn hide_step(&self, keys: &[(Space, Vec<u8>)], up_to: Version) -> Result<(), Failure> {
        let mut acks = Acks::default();
        let mut hidden = Ok(());
        for (space, key) in keys {
            hidden = self.hide_key(*space, key, up_to, &mut acks).await;
            if hidden.is_err() {
                break;
            }
        }
        let failed = acks.wait().await;
        tokio::task::yield_now().await;
        let failed = failed.first().map_or(Ok(()), |(_, failure)| Err(*failure));
        hidden.and(failed)
    }

    async fn hide_key(
        &self,
        space: Space,
        key: &[u8],
        up_to: Version,
        acks: &mut Acks,
    ) -> Result<(), Failure> {
        let at = (self.hot.ram.hash(space, key), space, key);
        let ask = || async move {
            match &self.disk {
                // The bucket may know a newer one.
                Some(disk) => {
                    let newest = disk.newest(space, key, Reach::Here).await;
                    newest.map_err(|error| failure_of(&error))
                }
                None => Ok(None),
            }
        };
        self.act_on_newest(at, ask, |shard, newest: Newest<&Option<Version>>| {
            let newest = match newest {
                Newest::InRam(slot) => Some(shard.get(slot).meta.version),
                Newest::Below(newest) => *newest,
            };
            match newest {
                Some(version) if version != ERASED && version <= up_to => {
                    self.remove_key(shard, at, ERASED, acks)
                }
                _ => Ok(()),
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests;
