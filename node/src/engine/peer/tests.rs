//! Entries of other members against a map, in any order and across restarts.

mod cutoffs;

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use fonn_base::clock::Clock;
use fonn_base::hlc::{self, VersionRange};
use fonn_base::tasks::Tasks;
use fonn_cold_tier::names::Region;
use fonn_cold_tier::store::fault::FaultStore;
use fonn_cold_tier::store::memory::MemoryStore;
use fonn_cold_tier::{ColdOptions, ObjectStore, SpillMode};
use fonn_disk_tier::levels::{CodecChoice, Level, LevelCodec};
use fonn_disk_tier::{DiskOptions, Durability};
use fonn_proto::{Delete, Outcome};
use fonn_ram_tier::{LruMode, RamOptions};
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::tests::*;
use super::*;
use crate::cold::ColdSetup;
use crate::engine::{EngineOptions, Settings};

pub(super) const SPACE: Space = Space(3);
const KEYS: usize = 5;

/// The first version that the tests give: a millisecond before their clock.
pub(super) const BASE: Version = (START_MS - 1) << 16;

fn key(number: usize) -> String {
    format!("key-{number}")
}

pub(super) fn value(version: Version) -> Vec<u8> {
    // Some inside a RAM slot, some outside, some that shrink.
    let len = [3, 200, 5000, 20_000][version as usize % 4];
    let mut value = format!("{version} ").repeat(len / 8 + 1).into_bytes();
    value.truncate(len.max(20));
    value
}

pub(super) fn entry(key: &str, version: Version, is_tombstone: bool) -> peer::Entry<'_> {
    let tombstone = peer::Entry::tombstone(SPACE.0, key.as_bytes(), version);
    if is_tombstone {
        return tombstone;
    }
    peer::Entry {
        flags: version as u32,
        content: peer::Content::Value(Value::Shared(value(version).into())),
        ..tombstone
    }
}

pub(super) async fn put(engine: &Engine, entry: &peer::Entry<'_>) -> Result<bool, PutError> {
    // As a member of a cluster does at its start.
    engine.keep_tombstones();
    let mut acks = Acks::default();
    let kept = engine.put_of_peer(entry, &mut acks).await;
    assert_eq!(acks.wait().await, []);
    kept
}

pub(super) async fn fetch(engine: &Engine, key: &str) -> Option<Transfer> {
    engine
        .fetch_for_peer(SPACE, key.as_bytes())
        .await
        .expect("disk can be read")
}

/// The value of a transfer, decoded.
pub(super) fn decoded(transfer: &Transfer) -> Option<Vec<u8>> {
    let (bytes, framing) = transfer.content.as_ref()?;
    Some(match framing {
        Framing::Plain => bytes.to_vec(),
        Framing::Framed => {
            let mut value = Vec::new();
            let frame = Frame::parse(bytes, usize::MAX).unwrap();
            frame.decode_into(&mut value).unwrap();
            value
        }
    })
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: usize,
        version: u64,
        is_tombstone: bool,
    },
    /// An entry as another member has it: fetched there, put here.
    Copy {
        key: usize,
        version: u64,
        is_tombstone: bool,
    },
    Set {
        key: usize,
    },
    Delete {
        key: usize,
    },
    Get {
        key: usize,
    },
    Fetch {
        key: usize,
    },
    Evict,
    Reopen,
    Kill,
}

fn steps() -> impl Strategy<Value = Step> {
    let put = (0..KEYS, 1_u64..40, any::<bool>());
    prop_oneof![
        10 => put.clone().prop_map(|(key, version, is_tombstone)| Step::Put {
            key, version, is_tombstone,
        }),
        2 => put.prop_map(|(key, version, is_tombstone)| Step::Copy {
            key, version, is_tombstone,
        }),
        2 => (0..KEYS).prop_map(|key| Step::Set { key }),
        2 => (0..KEYS).prop_map(|key| Step::Delete { key }),
        4 => (0..KEYS).prop_map(|key| Step::Get { key }),
        4 => (0..KEYS).prop_map(|key| Step::Fetch { key }),
        2 => Just(Step::Evict),
        1 => Just(Step::Reopen),
        1 => Just(Step::Kill),
    ]
}

/// What the newest of all that a key was given is.
type Newest = (Version, Option<Vec<u8>>);

/// Runs steps on a rig; `source` is another member.
async fn follow(rig: &mut Rig, source: &Rig, steps: &[Step]) {
    let mut model: HashMap<usize, Newest> = HashMap::new();
    for step in steps {
        match step {
            Step::Put {
                key: number,
                version,
                is_tombstone,
            }
            | Step::Copy {
                key: number,
                version,
                is_tombstone,
            } => {
                let (name, version) = (key(*number), BASE + version);
                let is_newer = model
                    .get(number)
                    .is_none_or(|(newest, _)| *newest < version);
                let plain = entry(&name, version, *is_tombstone);
                let kept = if matches!(step, Step::Copy { .. }) {
                    put(source.engine(), &plain).await.unwrap();
                    let Some(copy) = fetch(source.engine(), &name).await else {
                        continue;
                    };
                    if copy.meta.version != version {
                        continue;
                    }
                    put(
                        rig.engine(),
                        &copy.entry(SPACE, name.as_bytes(), usize::MAX),
                    )
                    .await
                } else {
                    put(rig.engine(), &plain).await
                };
                assert_eq!(kept, Ok(is_newer), "{step:?}");
                if is_newer {
                    let content = (!is_tombstone).then(|| value(version));
                    model.insert(*number, (version, content));
                }
            }
            Step::Set { key: number } => {
                let name = key(*number);
                let Outcome::Stored(stored) = rig.run(&set(&name, b"own")).await else {
                    panic!("stored");
                };
                if let Some((before, _)) = model.get(number) {
                    assert!(stored.version > *before, "versions only grow");
                }
                model.insert(*number, (stored.version, Some(b"own".to_vec())));
            }
            Step::Delete { key: number } => {
                let name = key(*number);
                let had = model.get(number).is_some_and(|(_, value)| value.is_some());
                let command = fonn_proto::Command::Delete(Delete::new(name.as_bytes()));
                let outcome = rig.run(&command).await;
                if had {
                    assert!(matches!(outcome, Outcome::Deleted { .. }), "{outcome:?}");
                    let version = fetch(rig.engine(), &name).await.expect("a tombstone");
                    model.insert(*number, (version.meta.version, None));
                } else {
                    assert_eq!(outcome, Outcome::NotFound);
                }
            }
            Step::Get { key: number } => {
                let expected = model.get(number).and_then(|(_, value)| value.clone());
                assert_eq!(rig.get(&key(*number)).await, expected);
            }
            Step::Fetch { key: number } => {
                let found = fetch(rig.engine(), &key(*number)).await;
                match (found, model.get(number)) {
                    (None, None) => {}
                    (Some(transfer), Some((version, value))) => {
                        assert_eq!(transfer.meta.version, *version);
                        assert_eq!(&decoded(&transfer), value);
                    }
                    other => panic!("{other:?}"),
                }
            }
            Step::Evict => evict_all(rig.engine()),
            Step::Reopen => rig.reopen(),
            Step::Kill => rig.drop_and_open(),
        }
    }
}

fn codecs(is_on: bool) -> Choice {
    let lz4 = || "lz4".parse::<CodecChoice>().unwrap();
    Choice {
        ram_codec: if is_on { lz4() } else { CodecChoice::none() },
        ..Choice::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_newest_wins_in_any_order_across_restarts(
        steps in vec(steps(), 1..60), is_encoded: bool,
    ) {
        block_on(async {
            let mut rig = Rig::new(codecs(is_encoded));
            let source = Rig::new(codecs(true));
            // As a member of a cluster does at its start.
            rig.engine().keep_tombstones();
            follow(&mut rig, &source, &steps).await;
        });
    }
}

#[tokio::test]
async fn a_copy_from_another_region_does_not_move_the_clock_out_of_its_range() {
    let rig = Rig::new(Choice::default());
    let versions = rig.engine().versions();
    let (base, ceiling) = (BASE + 10, BASE + 1_000_000);
    versions.enter(VersionRange { base, ceiling });
    let theirs = ceiling + 5;
    assert_eq!(
        put(rig.engine(), &entry("k", theirs, false)).await,
        Ok(true)
    );
    assert!((base..ceiling).contains(&versions.next()));
    // The leader extends the range above what was noted.
    let ceiling = ceiling + 100;
    versions.enter(VersionRange { base, ceiling });
    assert!((theirs..ceiling).contains(&versions.next()));
}

#[tokio::test]
async fn a_version_ahead_of_the_clock_moves_the_clock_and_outlives_a_kill() {
    let mut rig = Rig::new(Choice::default());
    let far = (START_MS + 3_600_000) << 16;
    assert_eq!(put(rig.engine(), &entry("k", far, false)).await, Ok(true));
    rig.drop_and_open();
    assert_eq!(rig.get("k").await, Some(value(far)));
    let Outcome::Stored(stored) = rig.run(&set("k", b"newer")).await else {
        panic!("stored");
    };
    assert!(stored.version > far);
    evict_all(rig.engine());
    rig.drop_and_open();
    assert_eq!(rig.get("k").await.unwrap(), b"newer");
}

#[tokio::test]
async fn a_tombstone_of_an_unknown_key_keeps_older_copies_away_across_restarts() {
    let mut rig = Rig::new(Choice::default());
    assert_eq!(
        put(rig.engine(), &entry("k", BASE + 9, true)).await,
        Ok(true)
    );
    for _ in 0..2 {
        evict_all(rig.engine());
        assert_eq!(
            put(rig.engine(), &entry("k", BASE + 8, false)).await,
            Ok(false)
        );
        assert_eq!(rig.get("k").await, None);
        rig.drop_and_open();
    }
}

#[tokio::test]
async fn without_a_disk_nothing_comes_back_that_ram_forgot() {
    let rig = Rig::new(Choice {
        has_disk: false,
        ..Choice::default()
    });
    assert_eq!(
        put(rig.engine(), &entry("k", BASE + 4, false)).await,
        Ok(true)
    );
    assert_eq!(
        put(rig.engine(), &entry("k", BASE + 9, true)).await,
        Ok(true)
    );
    assert_eq!(
        put(rig.engine(), &entry("k", BASE + 8, false)).await,
        Ok(false)
    );
    rig.set("own", b"v").await;
    evict_all(rig.engine());
    assert_eq!(
        put(rig.engine(), &entry("own", BASE + 8, false)).await,
        Ok(false)
    );
    assert_eq!(rig.get("own").await, None);
    assert_eq!(
        put(rig.engine(), &entry("other", BASE, false)).await,
        Ok(true)
    );
}

#[tokio::test]
async fn nonsense_is_refused_and_changes_nothing() {
    let rig = Rig::new(Choice::default());
    let good = entry("k", BASE, false);
    let bad = [
        peer::Entry {
            version: u64::MAX,
            ..good.clone()
        },
        peer::Entry {
            version: 0,
            ..good.clone()
        },
        peer::Entry {
            content: peer::Content::Omitted { len: 3 },
            ..good.clone()
        },
        peer::Entry {
            content: peer::Content::Frame(Value::Copied(b"no frame")),
            ..good.clone()
        },
    ];
    for entry in &bad {
        let refused = put(rig.engine(), entry).await;
        assert!(matches!(refused, Err(PutError::Malformed(_))), "{entry:?}");
    }
    let long = peer::Entry {
        content: peer::Content::Value(Value::Shared(vec![0; VALUE_LEN_MAX + 1].into())),
        ..good.clone()
    };
    assert_eq!(
        put(rig.engine(), &long).await,
        Err(PutError::Failed(Failure::TooLarge))
    );
    assert_eq!(fetch(rig.engine(), "k").await, None);
    rig.set("k", b"v").await;
    assert!(fetch(rig.engine(), "k").await.unwrap().meta.version < BASE + (DAY << 16));
}

const DAY: u64 = 24 * 60 * 60 * 1000;

#[tokio::test]
async fn what_was_flushed_is_a_tombstone_for_others_and_is_not_taken_from_them() {
    let rig = Rig::new(Choice::default());
    put(rig.engine(), &entry("k", BASE, false)).await.unwrap();
    rig.engine().flush(&[SPACE], 0).await.unwrap();
    let transfer = fetch(rig.engine(), "k").await.unwrap();
    assert_eq!((transfer.meta.version, transfer.content), (BASE, None));
    assert_eq!(put(rig.engine(), &entry("l", BASE, false)).await, Ok(false));
}

#[tokio::test]
async fn pages_name_every_key_of_the_slots_once_and_no_other() {
    for has_disk in [true, false] {
        let rig = Rig::new(Choice {
            has_disk,
            ..Choice::default()
        });
        let names: Vec<String> = (0..300).map(|number| format!("name-{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            let number = number as u64;
            // Values of 200 bytes.
            let version = BASE + number * 4 + 1 - BASE % 4;
            put(rig.engine(), &entry(name, version, false))
                .await
                .unwrap();
        }
        let slots: SlotSet = names
            .iter()
            .filter(|name| name.len() % 2 == 0)
            .map(|name| slot(name.as_bytes()))
            .collect();
        let (mut cursor, mut found, mut pages) = (Vec::new(), Vec::new(), 0);
        loop {
            let page = rig
                .engine()
                .fetch_slots(&slots, None, &cursor, 3000)
                .await
                .unwrap();
            assert!(
                page.entries.len() < 3000 + 64 * 300,
                "{}",
                page.entries.len()
            );
            for entry in page.entries.page(&[]).iter() {
                found.push(String::from_utf8(entry.unwrap().key.to_vec()).unwrap());
            }
            cursor = page.next;
            pages += 1;
            if cursor.is_empty() {
                break;
            }
        }
        let mut expected: Vec<String> = names
            .iter()
            .filter(|name| slots.contains(slot(name.as_bytes())))
            .cloned()
            .collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        assert!(!has_disk || pages > 5, "{pages}");
        let refused = rig.engine().fetch_slots(&slots, None, b"x", 10).await;
        assert!(refused.is_err());
    }
}

#[tokio::test]
async fn a_value_that_is_too_long_for_a_page_is_named_and_fetched_by_itself() {
    let choice = Choice {
        ram_bytes: 1 << 20,
        value_len_max: 1 << 20,
        disk_value_len_max: 1 << 20,
        ..Choice::default()
    };
    let (from, to) = (Rig::new(choice), Rig::new(choice));
    let long = vec![7; PAGE_VALUE_LEN_MAX + 1];
    from.set("k", &long).await;
    let all = SlotSet::all();
    let page = from.engine().fetch_slots(&all, None, &[], 1 << 20).await;
    let page = page.unwrap();
    let page = page.entries.page(&page.next);
    let named = page.iter().next().unwrap().unwrap();
    let len = long.len() as u64;
    let expected = (&b"k"[..], &peer::Content::Omitted { len });
    assert_eq!((named.key, &named.content), expected);
    let whole = fetch(from.engine(), "k").await.unwrap();
    let whole = whole.entry(SPACE, b"k", usize::MAX);
    assert_eq!(put(to.engine(), &whole).await, Ok(true));
    assert_eq!(to.get("k").await, Some(long));
}

#[tokio::test]
async fn what_was_dropped_with_an_old_generation_does_not_come_back_as_an_older_copy() {
    let mut rig = Rig::new(Choice {
        disk_bytes: 16 << 20,
        ..Choice::default()
    });
    // The clock, and with it all versions, is decades ahead of the system's, which files have their
    // times of.
    let older = BASE;
    put(rig.engine(), &entry("k", older, false)).await.unwrap();
    rig.set("k", b"newer").await;
    let filler = vec![7; VALUE_LEN_MAX];
    let dropped = || {
        let stats = rig.engine().disk().unwrap().stats().snapshot();
        stats.generations_dropped
    };
    // Not asked for meanwhile: what is read is carried over.
    for number in 0_u32.. {
        rig.set(&format!("filler-{number}"), &filler).await;
        if dropped() >= 3 {
            break;
        }
    }
    evict_all(rig.engine());
    assert_eq!(fetch(rig.engine(), "k").await, None, "it is forgotten");
    for _ in 0..2 {
        assert_eq!(
            put(rig.engine(), &entry("k", older, false)).await,
            Ok(false)
        );
        assert_eq!(rig.get("k").await, None);
        // A restart forgets nothing of what was forgotten.
        rig.drop_and_open();
    }
    // What is written from now on is newer.
    let newer = (START_MS + 60_000) << 16;
    assert_eq!(put(rig.engine(), &entry("k", newer, false)).await, Ok(true));
}

pub(in crate::engine) const PATIENCE: Duration = Duration::from_secs(60);

/// Notes that a future was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Polls a future that asks the disk, and returns when the disk has answered. The future has not
/// seen the answer then.
pub(super) async fn poll_until_answered(future: Pin<&mut impl Future>) {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(future.poll(&mut Context::from_waker(&waker)).is_pending());
    let begun = Instant::now();
    while !woken.0.load(Ordering::Acquire) {
        assert!(begun.elapsed() < PATIENCE, "the disk does not answer");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A store in `dir` above a bucket.
pub(in crate::engine) fn open_above(dir: &Path, bucket: &Arc<FaultStore>) -> Arc<Engine> {
    let none = CodecChoice::none();
    let options = ColdOptions {
        spill_age: SpillMode::WriteBehind(Duration::from_millis(1)),
        ..ColdOptions::new(dir.join("cold"), Region::default())
    };
    let options = EngineOptions {
        settings: Settings {
            value_len_max: VALUE_LEN_MAX,
            durability: Durability::Batched,
        },
        ram: RamOptions {
            budget_bytes: 1 << 20,
            lru: LruMode::Approximate,
            hash_seed: 7,
        },
        disk: Some(DiskOptions {
            dir: dir.to_owned(),
            budget_bytes: 64 << 20,
            durability: Durability::Batched,
            fresh: none,
            compacted: none,
            codec_min_bytes: 256,
            value_len_max: VALUE_LEN_MAX,
            queue_bytes_max: 1 << 20,
            memory_bytes: 4 << 20,
            read_threads: 1,
            compaction_percent: 0,
            write_bytes_per_sec_max: None,
            room_wait: fonn_disk_tier::ROOM_WAIT,
        }),
        cold: Some(ColdSetup {
            options,
            codec: Arc::new(LevelCodec::new(Level::Cold, none, 256)),
            store: Arc::clone(bucket) as Arc<dyn ObjectStore>,
        }),
        ram_codec: (none, 64),
        clock: Clock::system(),
    };
    Engine::open(options).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_now_is_named_so_that_no_member_shows_an_older_copy() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(MemoryStore::new(Clock::system()));
    let bucket = Arc::new(FaultStore::new(memory, 1));
    let version = (Clock::system().wall_ms() - 1) << 16;
    let written = entry("k", version, false);
    let engine = open_above(dir.path(), &bucket);
    let tasks = Tasks::new();
    engine.start_cold(&tasks);
    assert_eq!(put(&engine, &written).await, Ok(true));
    engine.drain_cold(Instant::now() + PATIENCE).await;
    // The bucket alone has it from now on, and is not there.
    let log = dir.path().join("g0000000001").join("values");
    let (bytes, stored) = (std::fs::read(&log).unwrap(), value(version));
    let at = bytes.windows(stored.len()).position(|it| *it == stored);
    let log = std::fs::File::options().write(true).open(log).unwrap();
    log.write_all_at(b"x", at.unwrap() as u64).unwrap();
    bucket.go_down();
    evict_all(&engine);
    let all = SlotSet::all();
    let page = engine.fetch_slots(&all, None, &[], 1 << 20).await.unwrap();
    let page = page.entries.page(&page.next);
    let named: Vec<_> = page.iter().map(Result::unwrap).collect();
    let named: Vec<_> = named
        .iter()
        .map(|it| (it.key, it.version, &it.content))
        .collect();
    let unread = peer::Content::Omitted { len: 0 };
    assert_eq!(named, [(&b"k"[..], version, &unread)]);
    assert_eq!(
        engine.fetch_for_peer(SPACE, b"k").await,
        Err(Failure::Unavailable)
    );
    // The caller learns of it once it can be read.
    bucket.come_up();
    let begun = Instant::now();
    let found = loop {
        match engine.fetch_for_peer(SPACE, b"k").await {
            Ok(found) => break found,
            Err(_) => assert!(begun.elapsed() < PATIENCE, "it stays away"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(decoded(&found.unwrap()), Some(value(version)));
    engine.close(PATIENCE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_member_reads_in_the_bucket_raises_its_versions_no_further_than_their_range() {
    let memory = Arc::new(MemoryStore::new(Clock::system()));
    let bucket = Arc::new(FaultStore::new(memory, 1));
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let tasks = Tasks::new();
    // The versions of the new owner are ahead of this member's, however long the machine stands
    // still.
    let version = (Clock::system().wall_ms() + 3_600_000) << 16;
    let new_owner = open_above(dirs[0].path(), &bucket);
    new_owner.start_cold(&tasks);
    assert_eq!(put(&new_owner, &entry("k", version, false)).await, Ok(true));
    new_owner.drain_cold(Instant::now() + PATIENCE).await;

    let cut_off = open_above(dirs[1].path(), &bucket);
    let versions = cut_off.versions();
    let now_ms = Clock::system().wall_ms();
    let range = |ceiling_ms| VersionRange {
        base: 0,
        ceiling: hlc::at_ms(ceiling_ms),
    };
    versions.enter(range(now_ms + 24_000));
    cut_off.start_cold(&tasks);
    let begun = Instant::now();
    while cut_off.newest(SPACE, b"k").await != Ok(Some(version)) {
        assert!(begun.elapsed() < PATIENCE, "the segment is not found");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(versions.next() < version, "a late write would win");
    // The leader extends the range above all that it heard of.
    assert!(versions.wanted() >= version);
    versions.enter(range(now_ms + 7_200_000));
    assert!(versions.next() > version);
    new_owner.close(PATIENCE);
    cut_off.close(PATIENCE);
}

#[tokio::test]
async fn a_value_that_the_disk_refused_is_not_known_when_it_is_sent_again() {
    let rig = Rig::new(Choice {
        disk_value_len_max: 100,
        ..Choice::default()
    });
    let engine = rig.engine();
    let long = peer::Entry {
        content: peer::Content::Value(Value::Shared(vec![7; 101].into())),
        ..entry("k", BASE + 4, false)
    };
    for _ in 0..2 {
        let mut acks = Acks::default();
        let kept = engine.put_of_peer(&long, &mut acks).await;
        assert_eq!((kept, acks.wait().await.len()), (Ok(true), 1));
    }
    assert_eq!(rig.get("k").await, None);
}
