//! What goes over many keys for a client: `SCAN`, `DBSIZE`, `INFO`, `RANDOMKEY` and counts by slot.
//!
//! Every command has a bound in keys, bytes of keys, records and time. A namespace has one
//! iteration at a time, and a node a few: a tenant that asks for many waits for itself. The memory
//! of a page is counted against the RAM budget before the page is read. A large count is remembered
//! for a second.

mod cursors;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_base::entry::Space;
use fonn_base::random::SplitMix64;
use fonn_disk_tier::{CountLimits, DiskError, DiskTier, Fact, PageLimits, SpaceCount};
use fonn_proto::{Failure, placement};
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};

use self::cursors::Cursors;
use super::{Engine, Hot};

/// Keys of one page.
const PAGE_KEYS_MAX: usize = 10_000;

/// Bytes of the keys of one page; one key more may be in it.
const PAGE_KEY_BYTES: usize = 256 << 10;

/// Memory of an iteration: the page as it is read, what is visible of it, and the reply.
const ITERATION_BYTES: usize = 3 * PAGE_KEY_BYTES;

/// Iterations of a node at a time.
const AT_ONCE_MAX: usize = 4;

/// How long a command waits for its turn before it is refused as busy.
const TURN_WAIT: Duration = Duration::from_secs(2);

/// Records that a count looks at. What lies behind them is estimated. (Fewer where so many would
/// take a test too long to write.)
const COUNT_RECORDS_MAX: u64 = if cfg!(test) { 10_000 } else { 200_000 };

/// Bytes of keys that a count reads.
const COUNT_KEY_BYTES_MAX: u64 = 64 << 20;

/// How long a count goes on.
const COUNT_TIME_MAX: Duration = Duration::from_secs(1);

/// A count that looked at more records than this is told again for a while. Smaller ones are always
/// made anew.
const RECOUNTED_RECORDS_MAX: u64 = if cfg!(test) { 1000 } else { 10_000 };

/// How long a count is told again.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Keys that are looked at on a reactor before others have their turn.
const CHUNK_KEYS: usize = 512;

/// Keys of which a random one is taken, where RAM has none.
const RANDOM_KEYS: usize = 256;

/// Bytes of a prefix by which the disk is walked. So the beginnings of keys alone have to be in
/// order there.
const WALKED_PREFIX_LEN_MAX: usize = 128;

/// Pages that are looked at for one.
const RANDOM_PAGES_MAX: usize = 64;

/// Whose turn it is to iterate, and what iterations left behind.
pub(super) struct Iterations {
    turns: Mutex<HashMap<u32, Arc<tokio::sync::Mutex<()>>>>,
    at_once: Semaphore,
    counts: Mutex<HashMap<Space, Remembered>>,
    cursors: Cursors,
}

impl Default for Iterations {
    fn default() -> Self {
        Self {
            turns: Mutex::default(),
            at_once: Semaphore::new(AT_ONCE_MAX),
            counts: Mutex::default(),
            cursors: Cursors::default(),
        }
    }
}

/// A count that was made.
struct Remembered {
    began: Instant,
    ended: Instant,
    count: Arc<SpaceCount>,
}

/// The right to iterate, with its memory.
struct Turn<'e> {
    hot: &'e Hot,
    _of_namespace: OwnedMutexGuard<()>,
    _of_node: SemaphorePermit<'e>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.hot.ram.release(ITERATION_BYTES);
    }
}

/// A step of an iteration.
struct VisiblePage {
    /// The key to go on behind; None at the end.
    last: Option<Vec<u8>>,
    /// Keys that have a visible entry.
    keys: Vec<Vec<u8>>,
}

impl Engine {
    /// Waits for the turn of a namespace to iterate.
    ///
    /// # Errors
    /// [`Failure::Busy`] if too many are before it.
    ///
    /// # Cancel safety
    /// Cancelled, it gives up its place.
    async fn turn(&self, namespace: u32) -> Result<Turn<'_>, Failure> {
        let of_namespace = Arc::clone(self.iterations.turns.lock().entry(namespace).or_default());
        let turn = tokio::time::timeout(TURN_WAIT, async {
            let of_namespace = of_namespace.lock_owned().await;
            (of_namespace, self.iterations.at_once.acquire().await)
        });
        let Ok((of_namespace, Ok(of_node))) = turn.await else {
            return Err(Failure::Busy);
        };
        let hot = &*self.hot;
        hot.ram.reserve(ITERATION_BYTES);
        let turn = Turn {
            hot,
            _of_namespace: of_namespace,
            _of_node: of_node,
        };
        hot.ram
            .evict_to_budget(None, hot.now_s(), super::EVICTIONS_MAX);
        Ok(turn)
    }

    /// Visits up to about `count` keys from `cursor` on, fewer where keys are long; returns the
    /// next cursor, 0 at the end, and the keys that have a visible entry. None if the cursor is not
    /// known (any more). Keys that do not begin with `prefix` may be left out: on disk they cost
    /// next to nothing.
    pub async fn scan(
        &self,
        space: Space,
        cursor: u64,
        count: usize,
        prefix: &[u8],
    ) -> Option<Result<(u64, Vec<Vec<u8>>), Failure>> {
        let limits = PageLimits {
            keys: count.clamp(1, PAGE_KEYS_MAX),
            key_bytes: PAGE_KEY_BYTES,
        };
        let prefix = prefix.get(..WALKED_PREFIX_LEN_MAX).unwrap_or(prefix);
        let _turn = match self.turn(space.namespace()).await {
            Ok(turn) => turn,
            Err(failure) => return Some(Err(failure)),
        };
        let Some(disk) = &self.disk else {
            return Some(Ok(self.scan_ram(space, cursor, limits).await));
        };
        let cursors = &self.iterations.cursors;
        let after = match cursor {
            0 => {
                // What is in RAM only is on disk then.
                disk.barrier().await;
                key_before(prefix)
            }
            _ => Some(cursors.load(space, cursor)?),
        };
        let page = match self.page(disk, space, after, limits).await {
            Ok(page) => page,
            Err(failure) => return Some(Err(failure)),
        };
        let ram = &self.hot.ram;
        // Pages are in the order of the beginnings of keys.
        let is_behind = |last: &Vec<u8>| last.as_slice() > prefix && !last.starts_with(prefix);
        let next = page.last.filter(|last| !is_behind(last));
        let next = next.map_or(0, |last| cursors.save(ram, space, last.into()));
        Some(Ok((next, page.keys)))
    }

    /// One step of an iteration over RAM, where there is no disk.
    async fn scan_ram(
        &self,
        space: Space,
        mut cursor: u64,
        limits: PageLimits,
    ) -> (u64, Vec<Vec<u8>>) {
        let (mut keys, mut key_bytes, mut left) = (Vec::new(), 0, limits.keys);
        loop {
            let now_ms = self.hot.clock.wall_ms();
            let slots = left.min(CHUNK_KEYS);
            cursor = self.hot.ram.scan_while(cursor, slots, |found| {
                if found.space == space && self.hot.absence(space, &found.meta, now_ms).is_none() {
                    key_bytes += found.key.len();
                    keys.push(found.key.to_vec());
                }
                match key_bytes >= limits.key_bytes {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            left -= slots;
            if cursor == 0 || left == 0 || key_bytes >= limits.key_bytes {
                return (cursor, keys);
            }
            tokio::task::yield_now().await;
        }
    }

    /// One step of an iteration over the disk, from behind `after` on.
    async fn page(
        &self,
        disk: &DiskTier,
        space: Space,
        after: Option<Vec<u8>>,
        limits: PageLimits,
    ) -> Result<VisiblePage, Failure> {
        let page = disk.page(space, after, limits).await.map_err(refused)?;
        let mut keys = Vec::with_capacity(page.entries.len());
        let now_ms = self.hot.clock.wall_ms();
        for (at, (key, meta)) in page.entries.into_iter().enumerate() {
            if at % CHUNK_KEYS == CHUNK_KEYS - 1 {
                tokio::task::yield_now().await;
            }
            let newest = self.hot.newest_meta(space, &key, &meta);
            if newest.is_some_and(|meta| self.hot.absence(space, &meta, now_ms).is_none()) {
                keys.push(key);
            }
        }
        Ok(VisiblePage {
            last: page.last,
            keys,
        })
    }

    /// The number of entries in a space. Exact up to 200,000 records or 64 MiB of keys. Above, it
    /// is what was counted of the namespace last, or what was found so far. The number of a large
    /// space is up to a second old.
    ///
    /// # Errors
    /// [`Failure::Busy`] if too many count, [`Failure::Unavailable`] if the disk cannot be read.
    pub async fn count_entries(&self, space: Space) -> Result<u64, Failure> {
        let count = self.count_space(space, false).await?;
        Ok(self.all_entries(space, &count))
    }

    /// The number of entries of a slot in a space; an estimate where [`Engine::count_entries`]
    /// tells one.
    ///
    /// # Errors
    /// As [`Engine::count_entries`].
    pub async fn count_in_slot(&self, space: Space, slot: u16) -> Result<u64, Failure> {
        let count = self.count_space(space, true).await?;
        let by_slot = count.by_slot.as_ref();
        let found = by_slot.and_then(|it| it.get(usize::from(slot)));
        let found = found.map_or(0, |found| u64::from(*found));
        if count.is_whole || count.entries == 0 {
            return Ok(found);
        }
        // What was counted stands for all.
        let all = u128::from(self.all_entries(space, &count));
        let estimate = u128::from(found) * all / u128::from(count.entries);
        Ok(u64::try_from(estimate).unwrap_or(u64::MAX))
    }

    /// The number of entries of a space, by a count that may have ended early. A namespace is told
    /// nothing of how much others have.
    fn all_entries(&self, space: Space, count: &SpaceCount) -> u64 {
        if count.is_whole {
            return count.entries;
        }
        let Some(disk) = &self.disk else {
            return (self.hot.ram.len_of(space) as u64).max(count.entries);
        };
        let namespaces = &self.hot.namespaces;
        let estimate = if namespaces.known().len() < 2 {
            disk.usage().entries_approx
        } else {
            // For the next that ask.
            namespaces.ask_for(space.namespace());
            namespaces.disk_account(space.namespace()).entries
        };
        estimate.max(count.entries)
    }

    async fn count_space(&self, space: Space, by_slot: bool) -> Result<Arc<SpaceCount>, Failure> {
        let asked = Instant::now();
        if let Some(count) = self.remembered(space, by_slot, asked) {
            return Ok(count);
        }
        let _turn = self.turn(space.namespace()).await?;
        // Another caller may have counted meanwhile.
        if let Some(count) = self.remembered(space, by_slot, asked) {
            return Ok(count);
        }
        let began = Instant::now();
        let count = Arc::new(match &self.disk {
            Some(disk) => self.count_on_disk(disk, space, by_slot).await?,
            None => self.count_in_ram(space, by_slot).await,
        });
        let ended = Instant::now();
        let mut counts = self.iterations.counts.lock();
        counts.retain(|_, it| ended - it.ended < REMEMBERED);
        let remembered = Remembered {
            began,
            ended,
            count: Arc::clone(&count),
        };
        counts.insert(space, remembered);
        Ok(count)
    }

    /// A count that serves a caller that asked at `asked`: it was begun since, or it is of a large
    /// space and fresh.
    fn remembered(&self, space: Space, by_slot: bool, asked: Instant) -> Option<Arc<SpaceCount>> {
        let counts = self.iterations.counts.lock();
        let known = counts.get(&space)?;
        let is_large = known.count.records > RECOUNTED_RECORDS_MAX;
        let serves = known.began >= asked || is_large && known.ended.elapsed() < REMEMBERED;
        let has_slots = known.count.by_slot.is_some() || !by_slot;
        (serves && has_slots).then(|| Arc::clone(&known.count))
    }

    async fn count_on_disk(
        &self,
        disk: &DiskTier,
        space: Space,
        by_slot: bool,
    ) -> Result<SpaceCount, Failure> {
        // What is in RAM only is on disk then.
        disk.barrier().await;
        let limits = CountLimits {
            records: COUNT_RECORDS_MAX,
            key_bytes: COUNT_KEY_BYTES_MAX,
        };
        let now_ms = self.hot.clock.wall_ms();
        let began = Instant::now();
        let goes_on = || began.elapsed() < COUNT_TIME_MAX;
        let counted = disk.count(space, by_slot, limits, now_ms, goes_on).await;
        counted.map_err(refused)
    }

    async fn count_in_ram(&self, space: Space, by_slot: bool) -> SpaceCount {
        let mut count = SpaceCount::begin(by_slot);
        let (now_ms, mut cursor) = (self.hot.clock.wall_ms(), 0);
        let limits = CountLimits {
            records: COUNT_RECORDS_MAX,
            key_bytes: COUNT_KEY_BYTES_MAX,
        };
        loop {
            cursor = self.hot.ram.scan(cursor, CHUNK_KEYS, |found| {
                count.records += 1;
                count.key_bytes += found.key.len() as u64;
                if found.space != space || self.hot.absence(space, &found.meta, now_ms).is_some() {
                    return;
                }
                count.entries += 1;
                let slots = count.by_slot.as_mut();
                let slot = usize::from(placement::slot(found.key));
                if let Some(slot) = slots.and_then(|it| it.get_mut(slot)) {
                    *slot += 1;
                }
            });
            count.is_whole = cursor == 0;
            if count.has_reached(limits) {
                return count;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Some key of the space that has a visible entry. None if there is none, or it cannot be told
    /// now.
    pub async fn random_key(&self, space: Space) -> Option<Vec<u8>> {
        let now_ms = self.hot.clock.wall_ms();
        let mut random = SplitMix64::from_entropy();
        for _ in 0..16 {
            let Some(key) = self.hot.ram.random(random.next_u64(), space, now_ms) else {
                break;
            };
            if let Some(Fact::Put(meta)) = self.hot.fact(space, &key)
                && self.hot.absence(space, &meta, now_ms).is_none()
            {
                return Some(key);
            }
        }
        let _turn = self.turn(space.namespace()).await.ok()?;
        let limits = PageLimits {
            keys: RANDOM_KEYS,
            key_bytes: PAGE_KEY_BYTES,
        };
        let (mut after, mut cursor) = (None, 0);
        // What is there first may be deleted, expired, or of others.
        for _ in 0..RANDOM_PAGES_MAX {
            let mut keys = match &self.disk {
                Some(disk) => {
                    let page = self.page(disk, space, after.take(), limits).await.ok()?;
                    after = page.last;
                    page.keys
                }
                None => {
                    let (next, keys) = self.scan_ram(space, cursor, limits).await;
                    cursor = next;
                    keys
                }
            };
            if !keys.is_empty() {
                let index = random.below(keys.len() as u64) as usize;
                return Some(keys.swap_remove(index));
            }
            if after.is_none() && cursor == 0 {
                return None;
            }
        }
        None
    }
}

/// A key behind which all keys with `prefix` are, and hardly any other.
fn key_before(prefix: &[u8]) -> Option<Vec<u8>> {
    let (last, before) = prefix.split_last()?;
    let mut key = before.to_vec();
    if let Some(smaller) = last.checked_sub(1) {
        key.push(smaller);
        key.extend_from_slice(&[u8::MAX; 8]);
    }
    Some(key)
}

fn refused(error: DiskError) -> Failure {
    if matches!(error, DiskError::Busy) {
        return Failure::Busy;
    }
    tracing::warn!(%error, "an iteration over the disk failed");
    Failure::Unavailable
}

#[cfg(test)]
mod tests;
