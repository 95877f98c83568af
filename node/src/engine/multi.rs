//! What concerns many keys at once: flushes, all-or-nothing stores, iteration.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use fonn_proto::peer;
use fonn_proto::request::ServerOutcome;
use fonn_proto::{ExpirySpec, Failure, Version};
use fonn_runtime::hlc;
use fonn_runtime::random::SplitMix64;
use parking_lot::Mutex;

use super::commit::Content;
use super::commit::Refused;
use super::fetch::{Fetched, Need};
use super::{Acks, Engine, Ticket};
use crate::entry::{Meta, Space};
use crate::lsm::DiskTier;

/// Iterations over the disk that can be continued at the same time. Clients that drop theirs halfway
/// leave them behind, so the oldest is forgotten for a new one.
const SCANS_MAX: usize = 1024;

/// Entries on disk up to which those of a space are counted for each who asks. (Fewer where so many would take a
/// test too long to write.)
const COUNT_EXACT_MAX: u64 = if cfg!(test) { 10_000 } else { 200_000 };

/// Keys that one step of an iteration reads from disk at most.
const SCAN_PAGE_MAX: usize = 10_000;

/// Where iterations over the disk go on: RESP cursors are numbers, positions are keys.
#[derive(Default)]
pub(super) struct Scans(Mutex<ScanTable>);

#[derive(Default)]
struct ScanTable {
    last: u64,
    open: VecDeque<(u64, Space, Vec<u8>)>,
}

impl Scans {
    fn save(&self, space: Space, after: Vec<u8>) -> u64 {
        let mut table = self.0.lock();
        table.last += 1;
        let cursor = table.last;
        if table.open.len() == SCANS_MAX {
            table.open.pop_front();
        }
        table.open.push_back((cursor, space, after));
        cursor
    }

    /// The position stays: a client may repeat a call whose answer it lost.
    fn load(&self, space: Space, cursor: u64) -> Option<Vec<u8>> {
        let table = self.0.lock();
        let found = table
            .open
            .iter()
            .find(|open| open.0 == cursor && open.1 == space);
        found.map(|(_, _, after)| after.clone())
    }
}

impl Engine {
    /// Makes everything in `spaces` invisible, now or in `delay_s` seconds (an absolute time above 30
    /// days, as with expiries), and returns once that survives a restart.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] if it could not be persisted; what was flushed may come back with a
    /// restart then.
    pub async fn flush(&self, spaces: &[Space], delay_s: u32) -> Result<(), Failure> {
        if delay_s == 0 {
            return self.flush_now(spaces).await.map(|_| ());
        }
        self.hot.stats.count(crate::stats::Counter::CmdFlush);
        let spaces = spaces.to_vec();
        let at_ms = match ExpirySpec::from_memcached_seconds(i64::from(delay_s)) {
            ExpirySpec::AtMs(at_ms) => at_ms,
            _ => self.hot.clock.wall_ms() + u64::from(delay_s) * 1000,
        };
        self.change_ledger(move |ledger| {
            let flushes = &ledger.hot.flushes;
            spaces
                .iter()
                .for_each(|space| flushes.flush_at(*space, at_ms));
        })
        .await
    }

    /// Makes everything in `spaces` invisible that was written before now, and returns once that survives a restart: the version
    /// below which nothing counts there. A flush that was to come is not any more.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub async fn flush_now(&self, spaces: &[Space]) -> Result<Version, Failure> {
        self.hot.stats.count(crate::stats::Counter::CmdFlush);
        let spaces = spaces.to_vec();
        self.change_ledger(move |ledger| ledger.hot.flushes.flush(&spaces, || ledger.hlc.next()))
            .await
    }

    /// Makes everything in `spaces` invisible that is below a version which another member has drawn, and gives no version any more that
    /// is not above it; returns once that survives a restart. For who has flushed them itself a moment ago: what was made since then of
    /// something older is not looked for.
    ///
    /// # Errors
    /// As [`Self::flush`], or if the version lies beyond any time.
    pub async fn flush_below(&self, spaces: &[Space], cutoff: Version) -> Result<(), Failure> {
        if cutoff > hlc::VERSION_MAX {
            return Err(Failure::Unavailable);
        }
        let spaces = spaces.to_vec();
        let observed = self.change_ledger(move |ledger| {
            // Hidden first: what is written above the cutoff is made of nothing below it.
            for space in spaces {
                ledger.hot.flushes.restore(space, cutoff);
            }
            ledger.hlc.observe(cutoff)
        });
        observed.await?.map_err(|_| Failure::Unavailable)
    }

    /// Waits for flushes with a delay that fall due here: what they are about.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn fell_due(&self) -> Vec<Space> {
        self.hot.flushes.fell_due().await
    }

    /// The flushes that this node knows of, cuts of quotas among them.
    #[must_use]
    pub fn known_flushes(&self) -> Vec<peer::Flush> {
        let (cutoffs, pending) = self.hot.flushes.snapshot();
        let done = cutoffs.iter().map(|&(space, cutoff)| peer::Flush {
            space: space.0,
            cutoff,
            at_ms: 0,
        });
        let later = pending.iter().map(|flush| peer::Flush {
            space: flush.space.0,
            cutoff: 0,
            at_ms: flush.at_ms,
        });
        done.chain(later).collect()
    }

    /// Takes over the flushes of another member, and returns once that survives a restart. Of two to come in a space it is the
    /// earlier one that counts, and none if the other member has carried out a later one than this.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] if it could not be persisted, or a version lies beyond any time.
    pub async fn adopt_flushes(&self, flushes: Vec<peer::Flush>) -> Result<(), Failure> {
        let kind = |it: &peer::Flush| (it.space, it.at_ms == 0);
        let known = self.known_flushes().into_iter();
        let known: HashMap<_, _> = known.map(|it| (kind(&it), it)).collect();
        let to_come: HashSet<u16> = flushes
            .iter()
            .filter(|it| it.at_ms != 0)
            .map(|it| it.space)
            .collect();
        let is_new = |flush: &peer::Flush| {
            known.get(&kind(flush)).is_none_or(|it| match flush.at_ms {
                0 => it.cutoff < flush.cutoff,
                at_ms => at_ms < it.at_ms,
            })
        };
        let flushes: Vec<peer::Flush> = flushes.into_iter().filter(is_new).collect();
        if flushes.is_empty() {
            return Ok(());
        }
        let newest = flushes.iter().map(|it| it.cutoff).max().unwrap_or(0);
        if newest > hlc::VERSION_MAX {
            return Err(Failure::Unavailable);
        }
        let observed = self.change_ledger(move |ledger| {
            let known = &ledger.hot.flushes;
            for peer::Flush {
                space,
                cutoff,
                at_ms,
            } in flushes
            {
                match at_ms {
                    0 => {
                        known.restore(Space(space), cutoff);
                        // What was to come it has cancelled, or carried out.
                        if !to_come.contains(&space) {
                            known.cancel(Space(space));
                        }
                    }
                    _ => known.flush_at(Space(space), at_ms),
                }
            }
            // What is written next counts, and is made of nothing that was hidden.
            ledger.hlc.observe(newest)
        });
        observed.await?.map_err(|_| Failure::Unavailable)
    }

    /// Stores all pairs if none of the keys has an entry; no other client sees a part of it.
    pub async fn store_all_if_none(
        &self,
        space: Space,
        pairs: &[(&[u8], &[u8])],
        acks: &mut Acks,
    ) -> ServerOutcome {
        let mut fetched: Vec<Option<Fetched>> = pairs.iter().map(|_| None).collect();
        let room_deadline = Instant::now() + super::ROOM_WAIT;
        // Each key has to be fetched, and each of these fetches may come in vain.
        let mut fetches_left = pairs.len() + super::FETCHES_MAX;
        loop {
            match self.try_store_all_if_none(space, pairs, &fetched, acks) {
                Ok(stored) => return ServerOutcome::Integer(i64::from(stored)),
                Err(Blocked::Failed(failure)) => return ServerOutcome::Failed(failure),
                Err(Blocked::Fetch(index, ticket)) => {
                    let Some(left) = fetches_left.checked_sub(1) else {
                        return ServerOutcome::Failed(Failure::Busy);
                    };
                    fetches_left = left;
                    let key = pairs[index].0;
                    match self.fetch(space, key, Need::Existence, ticket).await {
                        Ok(known) => fetched[index] = Some(known),
                        Err(_) => return ServerOutcome::Failed(Failure::Unavailable),
                    }
                }
                Err(Blocked::Room(cost)) => {
                    if !self.wait_for_room(cost, room_deadline).await {
                        return ServerOutcome::Failed(Failure::Busy);
                    }
                }
                Err(Blocked::Ceiling) => {
                    if let Err(failure) = self.reserve_versions().await {
                        return ServerOutcome::Failed(failure);
                    }
                }
            }
        }
    }

    pub(super) fn try_store_all_if_none(
        &self,
        space: Space,
        pairs: &[(&[u8], &[u8])],
        fetched: &[Option<Fetched>],
        acks: &mut Acks,
    ) -> Result<bool, Blocked> {
        let hot = &*self.hot;
        let too_large = |(key, value): &(&[u8], &[u8])| {
            value.len() > self.settings.value_len_max || !self.fits_ram(key.len(), value.len())
        };
        if pairs.iter().any(too_large) {
            return Err(Blocked::Failed(Failure::TooLarge));
        }
        let hashes: Vec<u64> = pairs
            .iter()
            .map(|(key, _)| self.hot.ram.hash(space, key))
            .collect();
        let now_ms = hot.clock.coarse_wall_ms();
        let mut shards = hot.ram.lock_many(hashes.iter().copied());
        for (index, (key, _)) in pairs.iter().enumerate() {
            let hash = hashes[index];
            let shard = shards.shard(hash);
            let there = match shard.find(hash, space, key) {
                Some(slot) => {
                    let found = shard.get(slot);
                    !found.tombstone && hot.absence(space, &found.meta, now_ms).is_none()
                }
                None if self.disk.is_none() => false,
                None => match &fetched[index] {
                    Some(known) if known.ticket == hot.ticket(hash) => known
                        .entry
                        .as_ref()
                        .is_some_and(|it| hot.absence(space, &it.meta, now_ms).is_none()),
                    _ => return Err(Blocked::Fetch(index, hot.ticket(hash))),
                },
            };
            if there {
                return Ok(false);
            }
        }
        let len = pairs.iter().map(|(key, value)| key.len() + value.len());
        let admitted = hot.namespaces.admit(space, len.sum());
        admitted.map_err(Blocked::Failed)?;
        // As many again to take all of it back.
        let draw = || pairs.iter().map(|_| self.ledger.hlc.next()).collect();
        let (versions, versions_back): (Vec<Version>, Vec<Version>) = (draw(), draw());
        if versions_back
            .last()
            .is_some_and(|last| *last >= self.ledger.ceiling())
        {
            return Err(Blocked::Ceiling);
        }
        let now_s = hot.now_s();
        for (index, (key, value)) in pairs.iter().enumerate() {
            let meta = Meta::new(versions[index], 0, 0);
            let value = Bytes::copy_from_slice(value);
            let shard = shards.shard(hashes[index]);
            let put = self.put_entry(
                shard,
                hashes[index],
                space,
                key,
                meta,
                Content::Fresh(value),
                now_s,
                acks,
            );
            let refused = match put {
                Ok(()) => continue,
                Err(refused) => refused,
            };
            // The disk's queue filled up halfway. There is no room for tombstones either, so what went
            // in is hidden by RAM, until the disk takes them.
            for ((&hash, (key, _)), &version) in
                hashes.iter().zip(&pairs[..index]).zip(&versions_back)
            {
                hot.bury_unsettled(shards.shard(hash), hash, space, key, version);
            }
            return Err(match refused {
                Refused::Full(cost) if index == 0 => {
                    let bytes: usize = pairs
                        .iter()
                        .map(|(key, value)| key.len() + value.len())
                        .sum();
                    Blocked::Room(cost.saturating_mul(pairs.len()).max(bytes))
                }
                Refused::Full(_) => Blocked::Failed(Failure::Busy),
                Refused::Failed(failure) => Blocked::Failed(failure),
            });
        }
        drop(shards);
        for hash in &hashes {
            hot.ram.evict_to_budget(*hash, now_s, super::EVICTIONS_MAX);
            self.evict_to_quota(*hash, space);
        }
        Ok(true)
    }

    /// Visits about `count` keys from `cursor` on; returns the next cursor, 0 at the end, and the keys
    /// that have a visible entry. None if the cursor is not known (any more).
    pub async fn scan(
        &self,
        space: Space,
        cursor: u64,
        count: usize,
    ) -> Option<Result<(u64, Vec<Vec<u8>>), Failure>> {
        let count = count.clamp(1, SCAN_PAGE_MAX);
        let Some(disk) = &self.disk else {
            let now_ms = self.hot.clock.wall_ms();
            let mut keys = Vec::new();
            let next = self.hot.ram.scan(cursor, count, |found| {
                if found.space == space && self.hot.absence(space, &found.meta, now_ms).is_none() {
                    keys.push(found.key.to_vec());
                }
            });
            return Some(Ok((next, keys)));
        };
        let after = match cursor {
            0 => None,
            _ => Some(self.scans.load(space, cursor)?),
        };
        let page = match self.scan_disk(disk, space, after, count).await {
            Ok(page) => page,
            Err(failure) => return Some(Err(failure)),
        };
        let next = page.last.map_or(0, |last| self.scans.save(space, last));
        Some(Ok((next, page.visible)))
    }

    /// One step of an iteration over the disk, from behind `after` on.
    async fn scan_disk(
        &self,
        disk: &DiskTier,
        space: Space,
        after: Option<Vec<u8>>,
        count: usize,
    ) -> Result<ScanPage, Failure> {
        if after.is_none() {
            // What is in RAM only is on disk then.
            disk.barrier().await;
        }
        let page = disk.scan(space, after, count).await.map_err(|error| {
            tracing::warn!(%error, "the iteration over the disk failed");
            Failure::Unavailable
        })?;
        let now_ms = self.hot.clock.wall_ms();
        let last = page.last().filter(|_| page.len() >= count);
        Ok(ScanPage {
            last: last.map(|(key, _)| key.clone()),
            visible: page
                .into_iter()
                .filter(|(key, meta)| self.is_visible(space, key, meta, now_ms))
                .map(|(key, _)| key)
                .collect(),
        })
    }

    /// Whether a key that the disk holds with these facts has a visible entry.
    fn is_visible(&self, space: Space, key: &[u8], on_disk: &Meta, now_ms: u64) -> bool {
        let hash = self.hot.ram.hash(space, key);
        let shard = self.hot.ram.lock(hash);
        match shard.find(hash, space, key) {
            Some(slot) => {
                let found = shard.get(slot);
                !found.tombstone && self.hot.absence(space, &found.meta, now_ms).is_none()
            }
            None => self.hot.absence(space, on_disk, now_ms).is_none(),
        }
    }

    /// The number of entries in a space: exact up to some hundred thousand on disk, about that of its namespace
    /// above.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] if the disk cannot be read.
    pub async fn count_entries(&self, space: Space) -> Result<u64, Failure> {
        let Some(disk) = &self.disk else {
            return Ok(self.count_in_ram(space));
        };
        let estimate = disk.usage().entries_approx;
        if estimate > COUNT_EXACT_MAX {
            return self.count_about(disk, space.namespace(), estimate).await;
        }
        let (mut total, mut after) = (0, None);
        loop {
            let page = self.scan_disk(disk, space, after, SCAN_PAGE_MAX).await?;
            total += page.visible.len() as u64;
            after = page.last;
            if after.is_none() {
                return Ok(total);
            }
        }
    }

    /// About how many entries a namespace has on a disk that has `of_all`: what was counted last, which is counted
    /// anew for who asks next. A namespace is told nothing of how much others have.
    async fn count_about(
        &self,
        disk: &DiskTier,
        namespace: u16,
        of_all: u64,
    ) -> Result<u64, Failure> {
        let namespaces = &self.hot.namespaces;
        if namespaces.known().len() < 2 {
            return Ok(of_all);
        }
        namespaces.ask_for(namespace);
        let account = namespaces.disk_account(namespace);
        if account.counted_at_ms > 0 {
            return Ok(account.entries);
        }
        disk.barrier().await;
        let now_ms = self.hot.clock.wall_ms();
        let census = disk.census(namespace, now_ms).await.map_err(|error| {
            tracing::warn!(%error, "cannot count a namespace");
            Failure::Unavailable
        })?;
        Ok(census.entries)
    }

    /// The number of visible entries in RAM; above some hundred thousand of expired and flushed ones too.
    fn count_in_ram(&self, space: Space) -> u64 {
        let all = self.hot.ram.len_of(space) as u64;
        if all > COUNT_EXACT_MAX {
            return all;
        }
        let now_ms = self.hot.clock.wall_ms();
        let (mut total, mut cursor) = (0, 0);
        loop {
            cursor = self.hot.ram.scan(cursor, SCAN_PAGE_MAX, |found| {
                let visible = self.hot.absence(space, &found.meta, now_ms).is_none();
                total += u64::from(found.space == space && visible);
            });
            if cursor == 0 {
                return total;
            }
        }
    }

    /// Some key of the space that has a visible entry.
    pub async fn random_key(&self, space: Space) -> Option<Vec<u8>> {
        let now_ms = self.hot.clock.wall_ms();
        let mut random = SplitMix64::from_entropy();
        for _ in 0..16 {
            let Some(key) = self.hot.ram.random(random.next_u64(), space, now_ms) else {
                break;
            };
            let hash = self.hot.ram.hash(space, &key);
            let shard = self.hot.ram.lock(hash);
            if let Some(slot) = shard.find(hash, space, &key) {
                let found = shard.get(slot);
                if !found.tombstone && self.hot.absence(space, &found.meta, now_ms).is_none() {
                    return Some(key);
                }
            }
        }
        match self.scan(space, 0, 256).await? {
            Ok((_, keys)) if keys.is_empty() => None,
            Ok((_, keys)) => {
                let index = random.below(keys.len() as u64) as usize;
                keys.into_iter().nth(index)
            }
            Err(_) => None,
        }
    }
}

/// A step of an iteration over the disk.
struct ScanPage {
    /// The key to go on behind; None at the end.
    last: Option<Vec<u8>>,
    /// Keys that have a visible entry.
    visible: Vec<Vec<u8>>,
}

/// Why an all-or-nothing store did not get through.
pub(super) enum Blocked {
    /// What the disk has of this pair's key must be known.
    Fetch(usize, Ticket),
    /// The disk's queue has no room for writes of this cost. Nothing was changed.
    Room(usize),
    /// Versions must be reserved first. Nothing was changed.
    Ceiling,
    Failed(Failure),
}
