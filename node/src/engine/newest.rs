//! Acting on the newest version of a key, in whichever tier it is.
//!
//! RAM is asked under the lock of the key's shard. The tiers below are slow, so they are asked
//! without the lock, and the lock is taken again. What they said holds while its [`Ticket`] does.

use std::time::Instant;

use fonn_base::entry::Space;
use fonn_disk_tier::DiskTier;
use fonn_proto::{Failure, Version};
use fonn_ram_tier::{ShardGuard, SlotId};

use super::commit::Refused;
use super::{Engine, FETCHES_MAX, Hot, ROOM_WAIT, Ticket};

/// Where the newest version of a key is, as long as its shard is locked.
pub(super) enum Newest<T> {
    InRam(SlotId),
    /// RAM does not know the key, and the tiers below said this of it.
    Below(T),
}

impl Hot {
    /// Where the newest version of a key is. `below` is what the tiers below said before.
    ///
    /// # Errors
    /// The ticket to ask the tiers below with, if they have to be asked.
    fn newest<T>(
        &self,
        shard: &ShardGuard<'_>,
        (hash, space, key): (u64, Space, &[u8]),
        below: Option<(Ticket, T)>,
    ) -> Result<Newest<T>, Ticket> {
        if let Some(slot) = shard.find(hash, space, key) {
            return Ok(Newest::InRam(slot));
        }
        let ticket = self.ticket(hash);
        match below {
            Some((then, below)) if then == ticket => Ok(Newest::Below(below)),
            _ => Err(ticket),
        }
    }

    /// Hides what RAM and disk have of a key, if it is older than the copy of another node, at
    /// `version`. False if it is not. `has_older` asks the disk whether it has an older copy.
    /// Blocks on the disk.
    pub(crate) fn hide_older(
        &self,
        disk: &DiskTier,
        (space, key): (Space, &[u8]),
        version: Version,
        has_older: impl Fn() -> bool,
    ) -> bool {
        let at = (self.ram.hash(space, key), space, key);
        let mut tries_left = FETCHES_MAX;
        let mut below = None;
        loop {
            let mut shard = self.ram.lock(at.0);
            self.raise_floor(at.0, version);
            let is_older = match self.newest(&shard, at, below.take()) {
                Ok(Newest::InRam(slot)) => shard.get(slot).meta.version < version,
                Ok(Newest::Below(is_older)) => is_older,
                Err(ticket) if tries_left > 0 => {
                    drop(shard);
                    tries_left -= 1;
                    below = Some((ticket, has_older()));
                    continue;
                }
                // Writes of the stripe came between again and again. Under the lock none does.
                Err(_) => has_older(),
            };
            if is_older {
                // Just below it: whatever is older here is hidden, and should the tombstone get
                // into the bucket before the index knows the newer copy, the newer copy still wins.
                self.bury_now(&mut shard, disk, at, version.saturating_sub(1));
            }
            return is_older;
        }
    }
}

impl Engine {
    /// Has `act` change a key by its newest version, under the lock of its shard. `ask` asks the
    /// tiers below. A write that finds no room is tried again.
    ///
    /// # Errors
    /// [`Failure::Busy`] if other writes of the stripe came between each time or no room is made in
    /// time, or the failure of `ask` or `act`.
    pub(super) async fn act_on_newest<T, R, F>(
        &self,
        at: (u64, Space, &[u8]),
        ask: impl Fn() -> F,
        mut act: impl FnMut(&mut ShardGuard<'_>, Newest<&T>) -> Result<R, Refused>,
    ) -> Result<R, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let room_deadline = Instant::now() + ROOM_WAIT;
        let mut below: Option<(Ticket, T)> = None;
        for _ in 0..FETCHES_MAX {
            let acted = {
                let mut shard = self.hot.ram.lock(at.0);
                let below = below.as_ref().map(|(ticket, it)| (*ticket, it));
                self.hot
                    .newest(&shard, at, below)
                    .map(|newest| act(&mut shard, newest))
            };
            match acted {
                Err(ticket) => below = Some((ticket, ask().await?)),
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(Refused::Full(cost))) => {
                    if !self.wait_for_room(cost, room_deadline).await {
                        return Err(Failure::Busy);
                    }
                }
                Ok(Err(Refused::Failed(failure))) => return Err(failure),
            }
        }
        Err(Failure::Busy)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::*;
    use crate::engine::tests::{Choice, Rig, SPACE, evict_all};

    const PATIENCE: Duration = Duration::from_secs(10);

    /// The version of the copy of another node: newer than all that is here.
    fn newer(rig: &Rig) -> Version {
        rig.engine().versions().newest() + 1
    }

    #[tokio::test]
    async fn the_disk_is_asked_for_an_older_copy_without_the_lock_of_the_shard() {
        let rig = Rig::new(Choice::default());
        rig.set("k", b"older").await;
        evict_all(rig.engine());
        let (engine, key) = (rig.engine(), &b"k"[..]);
        let disk = engine.disk().unwrap();
        let version = newer(&rig);
        let is_hidden = engine.hot.hide_older(disk, (SPACE, key), version, || {
            let (locked, is_locked) = sync_channel(1);
            let hot = Arc::clone(&engine.hot);
            std::thread::spawn(move || {
                drop(hot.ram.lock(hot.ram.hash(SPACE, key)));
                let _ = locked.send(());
            });
            let in_time = is_locked.recv_timeout(PATIENCE);
            in_time.expect("another thread can lock the shard");
            disk.has_older(SPACE, key, version)
        });
        assert!(is_hidden);
        assert_eq!(rig.get("k").await, None);
    }

    #[tokio::test]
    async fn what_the_disk_said_of_an_older_copy_counts_only_if_no_write_came_since() {
        let rig = Rig::new(Choice::default());
        rig.set("k", b"older").await;
        evict_all(rig.engine());
        let hot = &rig.engine().hot;
        let (disk, key) = (rig.engine().disk().unwrap(), &b"k"[..]);
        let (newer, asked) = (newer(&rig), Cell::new(0));
        // A write of the stripe comes between three times. Only the last answer is true.
        let is_hidden = hot.hide_older(disk, (SPACE, key), newer, || {
            asked.set(asked.get() + 1);
            let is_void = asked.get() <= 3;
            if is_void {
                hot.mutated(hot.ram.hash(SPACE, key));
            }
            is_void
        });
        assert!(!is_hidden && asked.get() == 4);
        assert_eq!(rig.get("k").await.unwrap(), b"older");
        evict_all(rig.engine());
        // A write comes between each time. In the end the disk is asked under the lock.
        asked.set(0);
        let is_hidden = hot.hide_older(disk, (SPACE, key), newer, || {
            asked.set(asked.get() + 1);
            hot.mutated(hot.ram.hash(SPACE, key));
            disk.has_older(SPACE, key, newer)
        });
        assert!(is_hidden && asked.get() == FETCHES_MAX + 1);
        assert_eq!(rig.get("k").await, None);
    }
}
