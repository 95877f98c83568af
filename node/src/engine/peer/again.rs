//! Writes that are sent once more after a change of the epoch.

use fonn_base::entry::Space;
use fonn_disk_tier::{Write, WriteKind};
use fonn_proto::{Failure, Version, peer};

use super::{BelowRam, Framing, PutError, Transfer, Try, in_ram};
use crate::engine::newest::Newest;
use crate::engine::{Acks, Engine};

/// A record that is written once more.
fn rewrite(Transfer { meta, content }: Transfer) -> WriteKind {
    let version = meta.version;
    match content {
        // Written as it is stored on disk, if it is.
        Some((stored, framing)) => WriteKind::Facts {
            meta,
            of: version,
            stored,
            framed: framing == Framing::Framed,
        },
        None => WriteKind::Tombstone { version },
    }
}

impl Engine {
    /// Takes a write of the primary. If it is newer than what is known of its key, this is
    /// [`Engine::put_of_peer`], and true. Until `acks` are waited for, the answer is provisional.
    ///
    /// Else the newest record of the key is appended to the log once more, with its own version, in
    /// two cases:
    ///
    /// - The write may have been taken before (`is_again`). So the key is behind every mark that
    ///   was made before, whichever write it has. A key that was evicted meanwhile gets a tombstone
    ///   of the write's version.
    /// - The newer write is in RAM, and not on the disk yet. A process that is killed would lose
    ///   both writes otherwise, and the older one would have been acknowledged.
    ///
    /// Without a disk there is no log.
    ///
    /// It costs a read of the value from disk if RAM does not have it. The bucket recognises a
    /// record that it has, and does not get it a second time.
    ///
    /// # Errors
    /// If the write cannot be kept, or the record neither be read nor written; what was there
    /// before still is.
    ///
    /// # Cancel safety
    /// Cancelled, the write may be taken or not.
    pub async fn put_replicated(
        &self,
        entry: &peer::Entry<'_>,
        is_again: bool,
        acks: &mut Acks,
    ) -> Result<bool, PutError> {
        if self.put_of_peer(entry, acks).await? {
            return Ok(true);
        }
        let key = (Space(entry.space), entry.key);
        if self.disk.is_some() && (is_again || self.is_in_ram_alone(key)) {
            self.log_again(key, entry.version, acks).await?;
        }
        Ok(false)
    }

    /// As [`Engine::put_replicated`] for a write that is newer than what is known of its key, if
    /// memory tells so and the disk's queue has room. False if it takes more than that, or is
    /// refused: nothing was done then.
    pub fn put_at_once(&self, entry: &peer::Entry<'_>, acks: &mut Acks) -> bool {
        let Ok(incoming) = self.check_incoming(entry) else {
            return false;
        };
        let (space, key) = (Space(entry.space), entry.key);
        let is_in_range = self.ledger.hlc.hear(entry.version).is_ok();
        if !is_in_range || entry.version >= self.ledger.ceiling() {
            return false;
        }
        let at = (self.hot.ram.hash(space, key), space, key);
        matches!(self.try_put(at, &incoming, None, None, acks), Try::Kept)
    }

    /// Whether the newest record of a key is in RAM, and not on the disk yet.
    fn is_in_ram_alone(&self, (space, key): (Space, &[u8])) -> bool {
        let hash = self.hot.ram.hash(space, key);
        let shard = self.hot.ram.lock(hash);
        let slot = shard.find(hash, space, key);
        slot.is_some_and(|slot| shard.get(slot).dirty)
    }

    async fn log_again(
        &self,
        (space, key): (Space, &[u8]),
        version: Version,
        acks: &mut Acks,
    ) -> Result<(), Failure> {
        let at = (self.hot.ram.hash(space, key), space, key);
        let ask = || self.find_below(space, key);
        self.act_on_newest(at, ask, |shard, newest: Newest<&BelowRam>| {
            let newest = match newest {
                Newest::InRam(slot) => BelowRam::Known(in_ram(&shard.get(slot))),
                Newest::Below(newest) => newest.clone(),
            };
            match newest {
                BelowRam::Known(transfer) => {
                    let write = Write::new(space, key, rewrite(transfer));
                    // Under the lock: no other write of the key overtakes it.
                    self.enqueue(write, acks)
                }
                // What the other owners have of it must not stay behind an older copy.
                BelowRam::Unknown if !self.has_flushed(space, version) => {
                    self.remove_key(shard, at, version, acks)
                }
                BelowRam::InBucket(_) | BelowRam::Unknown => Ok(()),
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests;
