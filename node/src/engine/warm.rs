//! Loading entries into RAM before a client asks for them.

use fonn_base::entry::Space;

use super::commit::Fresh;
use super::fetch::{From, Need};
use super::{EVICTIONS_MAX, Engine};

/// How often an entry is fetched again because a write of its stripe came between. RAM has most of
/// those then, and the others are found at the next request.
const FETCHES_MAX: usize = 4;

/// Of the RAM budget, and of the quota of a namespace, one part in so many stays free: an entry
/// takes a little more than its key and value, and later writes need room too.
const ROOM_LEFT: usize = 16;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmed {
    /// RAM had it already.
    Present,
    /// It was brought up from disk.
    FromDisk,
    /// It was brought up from the bucket.
    FromCold,
    /// There is nothing to bring: it was deleted, flushed, or has expired, or RAM has no place for
    /// it.
    Nothing,
    /// It would take the room of others in RAM.
    RamFull,
    /// It would take the room of others of its namespace, which has a quota.
    QuotaFull,
    /// The disk or the bucket cannot be read.
    Failed,
}

impl Engine {
    /// Brings the entry of a key into RAM, as a get of it would, but only where there is room for
    /// it; it counts as no use and no get.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub async fn warm(&self, space: Space, key: &[u8]) -> Warmed {
        let hot = &*self.hot;
        let hash = hot.ram.hash(space, key);
        for _ in 0..FETCHES_MAX {
            let ticket = {
                let shard = hot.ram.lock(hash);
                if shard.find(hash, space, key).is_some() {
                    return Warmed::Present;
                }
                hot.ticket(hash)
            };
            let Ok(fetched) = self.fetch(space, key, Need::Value, ticket).await else {
                return Warmed::Failed;
            };
            let Some(entry) = &fetched.entry else {
                return Warmed::Nothing;
            };
            // In the form of the level, which may have to be made: not under the lock.
            let form = self.ram_form(entry.value.clone(), entry.frame.as_ref());
            // Only now is it known what it takes: values are smaller on disk.
            let bytes = key.len() + form.stored.len();
            if hot.ram.used().saturating_add(bytes) > self.warm_limit() {
                return Warmed::RamFull;
            }
            let quota = hot.ram.quota_use(space.namespace());
            if quota.is_some_and(|it| it.used_bytes + bytes > fillable(it.quota_bytes)) {
                return Warmed::QuotaFull;
            }
            let now_s = hot.now_s();
            let mut shard = hot.ram.lock(hash);
            if shard.find(hash, space, key).is_some() {
                return Warmed::Present;
            }
            if fetched.ticket != hot.ticket(hash) {
                continue;
            }
            let now_ms = hot.clock.wall_ms();
            if hot.absence(space, &entry.meta, now_ms).is_some() {
                return Warmed::Nothing;
            }
            if fetched.from == From::Cold {
                self.keep_on_disk(space, key, entry);
            }
            let fresh = Fresh {
                hash,
                space,
                key,
                meta: entry.meta,
                dirty: false,
            };
            let kept = self.keep_in_ram(&mut shard, fresh, form, now_s);
            drop(shard);
            hot.ram.evict_to_budget(Some(hash), now_s, EVICTIONS_MAX);
            self.evict_to_quota(hash, space);
            return match (kept, fetched.from) {
                (None, _) => Warmed::Nothing,
                (Some(_), From::Disk) => Warmed::FromDisk,
                (Some(_), From::Cold) => Warmed::FromCold,
            };
        }
        Warmed::Nothing
    }

    /// Bytes of RAM up to which entries are brought.
    #[must_use]
    pub fn warm_limit(&self) -> usize {
        fillable(self.hot.ram.budget())
    }
}

/// As much of a budget as may be filled with unrequested entries.
fn fillable(budget_bytes: usize) -> usize {
    budget_bytes - budget_bytes / ROOM_LEFT
}
