//! Keys whose write the disk refused, and whose older copy there no tombstone hides yet.
//!
//! RAM hides the older copy behind a tombstone that is not evicted. Upkeep gives the disk the same
//! tombstone, again and again until it is written. A disk that takes nothing at all would fill the
//! memory in this way. So beyond a number of such keys writes are refused before RAM changes, and
//! only one chunk of tombstones is on its way to the disk at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use fonn_base::ack::AckGroup;
use fonn_base::entry::Space;
use fonn_disk_tier::{DiskTier, Write, WriteKind};
use fonn_proto::Version;
use fonn_ram_tier::ShardGuard;
use parking_lot::{Mutex, MutexGuard};

use super::commit::bury;
use super::{Engine, Hot};

/// Keys from which on writes are refused. Writes that the disk has queued may add some.
pub(super) const UNSETTLED_MAX: usize = 10_000;

/// Tombstones that upkeep gives to the disk in each round.
pub(super) const SETTLED_AT_ONCE: usize = 256;

/// A key, and the version of its tombstone.
type Row = (Space, Bytes, Version);

/// The keys that wait for their tombstones.
#[derive(Default)]
pub(super) struct Unsettled {
    rows: Mutex<VecDeque<Row>>,
    /// How many these are: each write looks at it, without the lock.
    count: AtomicUsize,
    /// Each tombstone of the last chunk holds it until the disk has written or refused it.
    last_chunk: Mutex<Arc<AckGroup>>,
}

impl Unsettled {
    /// The keys, without those whose tombstones are on their way to the disk.
    pub(super) fn lock(&self) -> MutexGuard<'_, VecDeque<Row>> {
        self.rows.lock()
    }

    /// Whether writes must be refused: the disk takes none.
    pub(super) fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= UNSETTLED_MAX
    }

    pub(super) fn push(&self, row: Row) {
        let mut rows = self.rows.lock();
        rows.push_back(row);
        self.count.store(rows.len(), Ordering::Relaxed);
    }

    /// Takes the rows that have waited longest.
    fn take(&self, count_max: usize) -> Vec<Row> {
        let mut rows = self.rows.lock();
        let count = rows.len().min(count_max);
        let taken = rows.drain(..count).collect();
        self.count.store(rows.len(), Ordering::Relaxed);
        taken
    }

    fn is_on_its_way(&self) -> bool {
        Arc::strong_count(&self.last_chunk.lock()) > 1
    }
}

impl Hot {
    /// Hides a key behind a tombstone in RAM and on disk; there later, if its queue is full.
    pub(super) fn bury_now(
        &self,
        shard: &mut ShardGuard<'_>,
        disk: &DiskTier,
        (hash, space, key): (u64, Space, &[u8]),
        version: Version,
    ) {
        let write = Write::new(space, key, WriteKind::Tombstone { version });
        if disk.try_write(write).is_err() {
            self.bury_unsettled(shard, hash, space, key, version);
            return;
        }
        self.mutated(hash);
        self.raise_floor(hash, version);
        bury(shard, hash, space, key, version);
    }

    /// Hides a key behind a tombstone in RAM, which the disk shall get as soon as it takes it.
    pub(super) fn bury_unsettled(
        &self,
        shard: &mut ShardGuard<'_>,
        hash: u64,
        space: Space,
        key: &[u8],
        version: Version,
    ) {
        self.mutated(hash);
        self.raise_floor(hash, version);
        bury(shard, hash, space, key, version);
        let key = Bytes::copy_from_slice(key);
        self.unsettled.push((space, key, version));
    }
}

impl Engine {
    /// Gives the disk some of the tombstones that it lacks, once those before are written or
    /// refused.
    pub(super) fn settle(&self) {
        if !self.hot.unsettled.is_on_its_way() {
            self.settle_up_to(SETTLED_AT_ONCE);
        }
    }

    /// Gives the disk all tombstones that it lacks, as far as its queue has room.
    pub(super) fn settle_all(&self) {
        self.settle_up_to(usize::MAX);
    }

    /// A tombstone whose key was written again is not needed; it must not even be queued behind
    /// that write.
    fn settle_up_to(&self, count_max: usize) {
        let Some(disk) = &self.disk else { return };
        let unsettled = &self.hot.unsettled;
        let chunk = AckGroup::new();
        for (index, (space, key, version)) in unsettled.take(count_max).into_iter().enumerate() {
            let hash = self.hot.ram.hash(space, &key);
            let shard = self.hot.ram.lock(hash);
            let is_newest = shard
                .find(hash, space, &key)
                .is_some_and(|slot| shard.get(slot).meta.version == version);
            if !is_newest {
                continue;
            }
            let write = Write {
                space,
                key,
                kind: WriteKind::Tombstone { version },
                ack: Some(chunk.ack(index)),
            };
            if let Err((write, _)) = disk.try_write(write) {
                unsettled.push((space, write.key, version));
            }
        }
        *unsettled.last_chunk.lock() = chunk;
    }
}

#[cfg(test)]
mod tests {
    use fonn_disk_tier::Durability;
    use fonn_proto::{Failure, Outcome};

    use super::*;
    use crate::engine::tests::{Choice, Rig, SPACE, set};

    #[tokio::test]
    async fn a_disk_that_takes_nothing_has_writes_refused_before_ram_changes() {
        let rig = Rig::new(Choice::default());
        let unsettled = &rig.engine().hot.unsettled;
        rig.set("k", b"old").await;
        for number in 0..UNSETTLED_MAX as u64 {
            let key = number.to_be_bytes().to_vec();
            unsettled.push((SPACE, key.into(), 1));
        }
        // On the short way and on the long one.
        for value in [&b"even"[..], b"odd"] {
            let outcome = rig.run(&set("k", value)).await;
            assert_eq!(outcome, Outcome::Failed(Failure::Unavailable));
            assert_eq!(rig.get("k").await.unwrap(), b"old");
        }
        // Upkeep goes over a bounded part of them.
        rig.engine().upkeep_once(&mut 0).await;
        assert_eq!(unsettled.lock().len(), UNSETTLED_MAX - SETTLED_AT_ONCE);
        rig.set("k", b"new").await;
        assert_eq!(rig.get("k").await.unwrap(), b"new");
    }

    #[tokio::test]
    async fn tombstones_that_the_disk_lacks_reach_it_chunk_by_chunk() {
        let rig = Rig::new(Choice {
            disk_value_len_max: 100,
            durability: Durability::None,
            ..Choice::default()
        });
        let (engine, disk) = (rig.engine(), rig.engine().disk().unwrap());
        let count = SETTLED_AT_ONCE + 10;
        for number in 0..count {
            rig.set(&format!("k{number}"), &[7; 101]).await;
        }
        disk.barrier().await;
        let waiting = || engine.hot.unsettled.lock().len();
        assert_eq!(waiting(), count);
        engine.settle();
        assert_eq!(waiting(), 10);
        disk.barrier().await;
        engine.settle();
        assert_eq!(waiting(), 0);
        disk.barrier().await;
        assert_eq!(engine.ram().stats().tombstones, 0);
    }

    #[test]
    fn a_chunk_is_on_its_way_until_the_disk_has_dealt_with_each_of_it() {
        let unsettled = Unsettled::default();
        assert!(!unsettled.is_on_its_way());
        let acks = {
            let mut chunk = unsettled.last_chunk.lock();
            *chunk = AckGroup::new();
            [chunk.ack(0), chunk.ack(1)]
        };
        let [first, second] = acks;
        first.complete(Ok(()));
        assert!(unsettled.is_on_its_way());
        second.complete(Err(Failure::Unavailable));
        assert!(!unsettled.is_on_its_way());
    }
}
