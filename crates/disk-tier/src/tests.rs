//! Tests of the disk tier as a whole.

mod below;
mod compaction;
mod corruption;
mod damage;
mod eviction;
mod features;
mod feed;
mod forgotten;
mod long;
mod model;
mod probe;
mod quota;
mod replay;
mod room;
mod stall;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tempfile::TempDir;

use fonn_base::ack::AckGroup;
use fonn_proto::{Failure, Version, WriterId};

use super::test_util::within;
use super::*;
use crate::levels::CodecChoice;

const SPACE: Space = Space(3);
const GRACE: Duration = Duration::from_secs(120);

static COPIES: AtomicU64 = AtomicU64::new(0);

/// Remembers what it was told, and keeps the keys it was given.
#[derive(Default)]
struct Witness {
    told: Mutex<Vec<(Version, Result<(), Failure>)>>,
    kept: Mutex<HashSet<Vec<u8>>>,
    /// Held by a test that wants the writer to wait.
    gate: Mutex<()>,
}

impl DiskObserver for Witness {
    fn written(&self, _: Space, _: &[u8], version: Version, result: Result<(), Failure>) {
        let _passed = self.gate.lock();
        self.told.lock().push((version, result));
    }

    fn keep(&self, _: Space, key: &[u8], _: &Meta) -> bool {
        self.kept.lock().contains(key)
    }
}

impl DiskTier {
    /// Queues a write, waiting for room.
    async fn write(&self, mut write: Write, wait: Duration) -> Result<(), Failure> {
        while let Err((back, failure)) = self.try_write(write) {
            if failure != Failure::Busy || !self.wait_for_room(back.cost(), wait).await {
                return Err(failure);
            }
            write = back;
        }
        Ok(())
    }

    /// Reads an entry that is on disk.
    async fn get(&self, space: Space, key: &[u8]) -> Result<Option<DiskEntry>, DiskError> {
        Ok(match self.find(space, key).await? {
            DiskFound::Entry(entry) => Some(entry),
            DiskFound::Absent | DiskFound::Below(_) => None,
        })
    }
}

/// A disk tier in a directory of its own.
struct Rig {
    tier: Option<DiskTier>,
    witness: Arc<Witness>,
    below: Option<Arc<dyn Below>>,
    options: DiskOptions,
    dir: TempDir,
}

fn options(dir: &Path) -> DiskOptions {
    DiskOptions {
        dir: dir.to_owned(),
        budget_bytes: 64 << 20,
        durability: Durability::Batched,
        fresh: CodecChoice::none(),
        compacted: CodecChoice::none(),
        codec_min_bytes: 256,
        value_len_max: 32 << 20,
        queue_bytes_max: 8 << 20,
        memory_bytes: 16 << 20,
        read_threads: 2,
        // Tests compact when they want to.
        compaction_percent: 0,
        write_bytes_per_sec_max: None,
        // What makes room may get no time for seconds on a busy machine.
        room_wait: GRACE,
    }
}

impl Rig {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut DiskOptions)) -> Self {
        Self::over(None, change)
    }

    fn over(below: Option<Arc<dyn Below>>, change: impl FnOnce(&mut DiskOptions)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(&dir.path().join("data"));
        change(&mut options);
        let mut rig = Self {
            tier: None,
            witness: Arc::default(),
            below,
            options,
            dir,
        };
        rig.open();
        rig
    }

    fn open(&mut self) {
        let observer = Arc::clone(&self.witness) as Arc<dyn DiskObserver>;
        self.tier =
            Some(DiskTier::open(self.options.clone(), observer, self.below.clone()).unwrap());
    }

    fn close(&mut self) {
        assert!(self.tier.take().unwrap().close(GRACE));
    }

    fn reopen(&mut self) {
        self.close();
        self.open();
    }

    /// Opens a copy of the directory as it is at this moment: what a kill would leave.
    fn kill(&mut self, meddle: impl FnOnce(&Path)) {
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let copy = self.dir.path().join(format!("killed-{number}"));
        copy_all(&self.options.dir, &copy);
        self.close();
        meddle(&copy);
        self.options.dir = copy;
        self.open();
    }

    fn tier(&self) -> &DiskTier {
        self.tier.as_ref().unwrap()
    }

    fn shared(&self) -> &Shared {
        &self.tier().handle.shared
    }

    /// Writes and waits for the acknowledgement.
    async fn write(&self, key: &[u8], kind: WriteKind) -> Result<(), Failure> {
        let group = AckGroup::new();
        let key = Bytes::copy_from_slice(key);
        let write = Write {
            space: SPACE,
            key,
            kind,
            ack: Some(group.ack(0)),
        };
        self.tier().write(write, GRACE).await.unwrap();
        group
            .wait()
            .await
            .first()
            .map_or(Ok(()), |(_, failure)| Err(*failure))
    }

    async fn try_put(&self, key: &[u8], version: Version, value: Bytes) -> Result<(), Failure> {
        self.write(
            key,
            WriteKind::Put {
                meta: Meta::new(version, 7, 0),
                value,
            },
        )
        .await
    }

    /// Puts, again while the file system counts as full.
    async fn put(&self, key: &[u8], version: Version, value: impl Into<Bytes>) {
        let (value, deadline) = (value.into(), Instant::now() + GRACE);
        while let Err(failure) = self.try_put(key, version, value.clone()).await {
            assert_eq!(failure, Failure::OutOfSpace);
            assert!(Instant::now() < deadline, "there is no room");
        }
    }

    /// Puts a frame as it is, as a touch does with a value that the disk does not have.
    async fn put_frame(&self, key: &[u8], version: Version, frame: Bytes) {
        let facts = WriteKind::Facts {
            meta: Meta::new(version, 7, 0),
            of: version,
            stored: frame,
            framed: true,
        };
        self.write(key, facts).await.unwrap();
    }

    async fn delete(&self, key: &[u8], version: Version) {
        self.write(key, WriteKind::Tombstone { version })
            .await
            .unwrap();
    }

    async fn get(&self, key: &[u8]) -> Option<DiskEntry> {
        self.tier().get(SPACE, key).await.unwrap()
    }

    async fn version_of(&self, key: &[u8]) -> Option<Version> {
        self.get(key).await.map(|entry| entry.meta.version)
    }

    /// Has a new generation begun.
    async fn roll(&self) {
        let newest = self.shared().generations.newest().unwrap();
        if newest.log.end() == 0 {
            return;
        }
        within(|| self.shared().has_spare()).await;
        self.shared().queue.push_order(Order::Roll);
        self.tier().barrier().await;
        assert_ne!(self.newest_id(), newest.id);
    }

    fn newest_id(&self) -> u64 {
        self.shared().generations.newest().unwrap().id
    }

    fn stats(&self) -> DiskStatsSnapshot {
        self.tier().stats().snapshot()
    }
}

/// Copies a directory that is in use. What vanishes meanwhile is left out.
fn copy_all(from: &Path, to: &Path) {
    let copy = || -> std::io::Result<()> {
        std::fs::create_dir_all(to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            let to = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                copy_all(&entry.path(), &to);
            } else if let Err(error) = std::fs::copy(entry.path(), to)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                return Err(error);
            }
        }
        Ok(())
    };
    match copy() {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
        _ => {}
    }
}

/// Bytes that no codec shrinks, different for each seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

#[tokio::test]
async fn what_is_put_is_got_with_all_facts_before_and_after_reopening() {
    let mut rig = Rig::new();
    let meta = Meta {
        version: 9,
        cas_override: Some(4),
        flags: 5,
        expires_at_ms: 6,
        stale: true,
        token_sent: true,
        writer: WriterId::new(7),
    };
    for (index, len) in [0, 1, 300, 5000, 200_000, 3_000_000]
        .into_iter()
        .enumerate()
    {
        let value = Bytes::from(noise(index as u64, len));
        let key = format!("key {len}");
        rig.write(
            key.as_bytes(),
            WriteKind::Put {
                meta,
                value: value.clone(),
            },
        )
        .await
        .unwrap();
        assert_eq!(
            rig.get(key.as_bytes()).await,
            Some(DiskEntry {
                meta,
                value: value.clone(),
                frame: None
            })
        );
        rig.reopen();
        assert_eq!(
            rig.get(key.as_bytes()).await,
            Some(DiskEntry {
                meta,
                value,
                frame: None
            })
        );
    }
    assert_eq!(rig.get(b"absent").await, None);
    assert_eq!(rig.tier().get(Space(4), b"key 1").await.unwrap(), None);
}

#[tokio::test]
async fn every_codec_gives_back_what_was_put() {
    let rig = Rig::new();
    let text = Bytes::from(b"over and over, ".repeat(30_000));
    for (version, spec) in (1..).zip(["none", "lz4", "snappy", "zlib:6", "zstd:3"]) {
        rig.tier().fresh().set(spec.parse().unwrap(), 256);
        rig.put(b"k", version, text.clone()).await;
        let got = rig.get(b"k").await.unwrap();
        assert_eq!(
            (got.meta.version, got.value),
            (version, text.clone()),
            "{spec}"
        );
    }
    let stats = rig.stats();
    assert!(stats.written_bytes < 5 * text.len() as u64 / 3, "{stats:?}");
}

#[tokio::test]
async fn overwrites_and_deletions_hold_across_generations_and_reopening() {
    let mut rig = Rig::new();
    rig.put(b"a", 1, "one").await;
    rig.put(b"b", 2, "two").await;
    rig.roll().await;
    rig.put(b"a", 3, "three").await;
    rig.delete(b"b", 4).await;
    rig.roll().await;
    for _ in 0..2 {
        assert_eq!(rig.version_of(b"a").await, Some(3));
        assert_eq!(rig.version_of(b"b").await, None);
        rig.reopen();
    }
    rig.put(b"b", 5, "five").await;
    assert_eq!(rig.version_of(b"b").await, Some(5));
}

#[tokio::test]
async fn deleting_what_is_not_there_writes_nothing() {
    let rig = Rig::new();
    let written = || rig.stats().written_bytes;
    rig.delete(b"never", 1).await;
    assert_eq!(written(), 0);
    rig.put(b"once", 2, "value").await;
    rig.roll().await;
    let before = written();
    rig.delete(b"once", 3).await;
    let after = written();
    assert!(before < after);
    rig.delete(b"once", 4).await;
    assert_eq!(written(), after);
    assert_eq!(rig.version_of(b"once").await, None);
}

#[tokio::test]
async fn a_write_that_comes_late_does_not_replace_a_newer_one() {
    let mut rig = Rig::new();
    rig.put(b"k", 9, "newer").await;
    rig.put(b"k", 8, "older").await;
    rig.delete(b"k", 7).await;
    assert_eq!(rig.version_of(b"k").await, Some(9));
    rig.reopen();
    assert_eq!(rig.version_of(b"k").await, Some(9));
}

#[tokio::test]
async fn writes_of_one_batch_take_effect_in_their_order() {
    let rig = Rig::new();
    let group = AckGroup::new();
    let held = rig.witness.gate.lock();
    for version in 1..=50 {
        let kind = if version % 2 == 0 {
            WriteKind::Tombstone { version }
        } else {
            WriteKind::Put {
                meta: Meta::new(version, 0, 0),
                value: "v".into(),
            }
        };
        let ack = Some(group.ack(0));
        rig.tier()
            .try_write(Write {
                space: SPACE,
                key: "k".into(),
                kind,
                ack,
            })
            .unwrap();
    }
    drop(held);
    assert_eq!(group.wait().await, []);
    assert_eq!(rig.version_of(b"k").await, None);
    let told: Vec<_> = rig.witness.told.lock().iter().map(|told| told.0).collect();
    assert_eq!(told, (1..=50).collect::<Vec<_>>());
}

#[tokio::test]
async fn writes_over_the_queues_bound_are_refused_at_once_and_given_back() {
    let rig = Rig::with(|options| options.queue_bytes_max = 100_000);
    let held = rig.witness.gate.lock();
    let put = |version| Write {
        space: SPACE,
        key: "k".into(),
        kind: WriteKind::Put {
            meta: Meta::new(version, 0, 0),
            value: vec![0; 10_000].into(),
        },
        ack: None,
    };
    let mut taken = 0;
    let refused = loop {
        match rig.tier().try_write(put(taken + 1)) {
            Ok(()) => taken += 1,
            Err(refused) => break refused,
        }
        assert!(taken < 100, "the queue has no bound");
    };
    assert_eq!((refused.0.version(), refused.1), (taken + 1, Failure::Busy));
    assert!(rig.tier().usage().queue_bytes <= 100_000);
    drop(held);
    rig.tier().barrier().await;
    assert_eq!(rig.version_of(b"k").await, Some(taken));
    assert_eq!(rig.stats().writes_rejected, 1);
}

#[tokio::test]
async fn keys_and_values_that_are_too_long_are_refused() {
    let rig = Rig::with(|options| options.value_len_max = 1000);
    assert_eq!(
        rig.try_put(b"k", 1, vec![0; 1001].into()).await,
        Err(Failure::TooLarge)
    );
    let key = vec![b'k'; 65_536];
    assert_eq!(
        rig.try_put(&key, 2, Bytes::new()).await,
        Err(Failure::TooLarge)
    );
    assert_eq!(rig.try_put(&key[1..], 3, Bytes::new()).await, Ok(()));
    assert_eq!(rig.version_of(&key[1..]).await, Some(3));
    assert_eq!(rig.witness.told.lock()[0], (1, Err(Failure::TooLarge)));
}

#[tokio::test]
async fn a_scan_merges_generations_in_key_order_page_by_page() {
    let rig = Rig::new();
    for (version, key) in (1..).zip(["b", "d", "f", "h"]) {
        rig.put(key.as_bytes(), version, "old").await;
    }
    rig.roll().await;
    for (version, key) in (11..).zip(["a", "d", "e"]) {
        rig.put(key.as_bytes(), version, "new").await;
    }
    rig.delete(b"f", 20).await;
    let mut after = None;
    let mut all = Vec::new();
    loop {
        let page = rig.tier().page(SPACE, after, pages_of(2)).await.unwrap();
        let keys = page.entries.iter();
        all.extend(keys.map(|(key, meta)| (key.clone(), meta.version)));
        after = page.last;
        if after.is_none() {
            break;
        }
    }
    let expected = [("a", 11), ("b", 1), ("d", 12), ("e", 13), ("h", 4)];
    assert_eq!(
        all,
        expected.map(|(key, version)| (key.as_bytes().to_vec(), version))
    );
    let none = rig.tier().page(Space(4), None, pages_of(9)).await.unwrap();
    assert_eq!(none, KeyPage::default());
}

#[tokio::test]
async fn long_keys_are_found_one_by_one_page_by_page_and_by_age() {
    let mut rig = Rig::new();
    let key = |last: u8, len: usize| [&vec![b'k'; len - 1][..], &[last]].concat();
    let keys: Vec<Vec<u8>> = [223, 224, 225, 30_000, 65_535]
        .into_iter()
        .flat_map(|len| [key(b'a', len), key(b'b', len)])
        .collect();
    for (version, key) in (1..).zip(&keys) {
        rig.put(key, version, "old").await;
    }
    rig.roll().await;
    rig.put(&keys[5], 21, "new").await;
    rig.delete(&keys[6], 22).await;
    let mut expected: BTreeMap<Vec<u8>, Version> = keys.iter().cloned().zip(1..).collect();
    expected.insert(keys[5].clone(), 21);
    expected.remove(&keys[6]);
    for _ in 0..2 {
        for key in &keys {
            assert_eq!(rig.version_of(key).await, expected.get(key).copied());
        }
        let (mut after, mut met) = (None, BTreeMap::new());
        loop {
            let page = rig.tier().page(SPACE, after, pages_of(1)).await.unwrap();
            for (key, meta) in page.entries {
                assert_eq!(met.insert(key, meta.version), None);
            }
            after = page.last;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(met, expected);
        let newest = rig.tier().newest_entries(None).page(100, 0).unwrap();
        let newest: Vec<_> = newest.into_iter().map(|it| it.key).collect();
        assert_eq!(newest[0], keys[5]);
        assert_eq!(newest.len(), expected.len());
        let limits = CountLimits {
            records: u64::MAX,
            key_bytes: u64::MAX,
        };
        let counted = rig.tier().count(SPACE, true, limits, 0, || true);
        assert_eq!(counted.await.unwrap().entries, expected.len() as u64);
        rig.reopen();
    }
}

#[tokio::test]
async fn a_page_ends_at_its_bytes_and_after_so_many_records_whatever_they_are() {
    let rig = Rig::new();
    let key = |number: u32| format!("{number:04}{}", "k".repeat(996)).into_bytes();
    for number in 0..100 {
        rig.put(&key(number), u64::from(number) + 1, "v").await;
    }
    let limits = PageLimits {
        keys: 1000,
        key_bytes: 10_000,
    };
    let page = rig.tier().page(SPACE, None, limits).await.unwrap();
    assert_eq!(page.entries.len(), 10);
    assert_eq!(page.last, Some(key(9)));
    for number in 0..100 {
        rig.delete(&key(number), u64::from(number) + 1000).await;
    }
    let page = rig.tier().page(SPACE, None, limits).await.unwrap();
    assert_eq!(page.entries, []);
    assert_eq!(page.last, Some(key(walk::STEP_RECORDS as u32 - 1)));
    let page = rig.tier().page(SPACE, page.last, limits).await.unwrap();
    assert_eq!(page, KeyPage::default());
}

#[tokio::test]
async fn a_count_ends_at_its_limits_and_when_it_is_told_to() {
    let rig = Rig::new();
    for number in 0..200_u32 {
        let key = number.to_be_bytes();
        rig.put(&key, u64::from(number) + 1, "v").await;
    }
    rig.delete(&7_u32.to_be_bytes(), 1000).await;
    let count = async |records, key_bytes, goes_on: bool| {
        let limits = CountLimits { records, key_bytes };
        let counted = rig.tier().count(SPACE, true, limits, 0, || goes_on);
        counted.await.unwrap()
    };
    let all = count(u64::MAX, u64::MAX, true).await;
    assert_eq!((all.entries, all.records, all.is_whole), (199, 200, true));
    let by_slot = all.by_slot.unwrap();
    assert_eq!(by_slot.iter().map(|it| u64::from(*it)).sum::<u64>(), 199);
    let some = count(1, u64::MAX, true).await;
    assert_eq!(
        (some.records, some.is_whole),
        (walk::STEP_RECORDS as u64, false)
    );
    let some = count(u64::MAX, 4 * 65, true).await;
    assert_eq!((some.records, some.is_whole), (128, false));
    assert_eq!(count(u64::MAX, u64::MAX, false).await.records, 0);
}

fn pages_of(keys: usize) -> PageLimits {
    PageLimits {
        keys,
        key_bytes: usize::MAX,
    }
}

#[tokio::test]
async fn state_survives_reopening() {
    let mut rig = Rig::new();
    let state = StoreState {
        purges: Vec::new(),
        version_ceiling: 123,
        flushes: vec![FlushMark {
            space: SPACE,
            cutoff: 5,
            at_ms: 6,
        }],
    };
    rig.tier().save_state(&state).unwrap();
    assert_eq!(rig.tier().load_state(), state);
    rig.reopen();
    assert_eq!(rig.tier().load_state(), state);
}

#[tokio::test]
async fn after_closing_everything_fails_and_nothing_waits() {
    let mut rig = Rig::new();
    rig.put(b"k", 1, "v").await;
    let other = rig.tier().clone();
    rig.close();
    assert!(matches!(
        other.get(SPACE, b"k").await,
        Err(DiskError::Closed)
    ));
    let write = Write {
        space: SPACE,
        key: "k".into(),
        kind: WriteKind::Tombstone { version: 2 },
        ack: None,
    };
    assert_eq!(other.try_write(write).unwrap_err().1, Failure::Unavailable);
    other.barrier().await;
}

#[tokio::test]
async fn a_second_process_is_told_that_the_directory_is_in_use() {
    let rig = Rig::new();
    let second = DiskTier::open(rig.options.clone(), Arc::<Witness>::default(), None);
    let error = second.err().unwrap();
    assert!(
        matches!(&error, DiskError::Locked(dir) if *dir == rig.options.dir),
        "{error}"
    );
}

#[tokio::test]
async fn every_durability_acknowledges_and_finds_again() {
    for durability in [Durability::None, Durability::Batched, Durability::Fsync] {
        let mut rig = Rig::with(|options| options.durability = durability);
        rig.put(b"k", 1, "v").await;
        let newest = rig.shared().generations.newest().unwrap();
        assert!(durability != Durability::Fsync || !newest.log.is_dirty());
        drop(newest);
        rig.kill(|_| ());
        assert_eq!(rig.version_of(b"k").await, Some(1), "{durability:?}");
    }
}
