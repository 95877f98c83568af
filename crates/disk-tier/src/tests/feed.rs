//! The change feed since a mark, and what erasing leaves behind.

use std::collections::BTreeSet;
use std::collections::HashMap;

use fonn_proto::peer::SlotSet;
use fonn_proto::placement::slot;
use proptest::prelude::*;

use super::eviction::{fill_until, small};
use super::*;
use crate::compaction;

/// Keys of one page: few, so that feeds have several.
const PAGE_KEYS: usize = 7;

/// The keys of some slots that have changed since a mark.
async fn feed_of(rig: &Rig, slots: &SlotSet, since: Option<Mark>) -> Option<BTreeSet<Vec<u8>>> {
    let (mut keys, mut after) = (BTreeSet::new(), None);
    loop {
        let limits = SlotLimits {
            keys: PAGE_KEYS,
            bytes: usize::MAX,
        };
        let page = rig.tier().scan_slots(slots, since, after, limits).await;
        let page = match page {
            Ok(page) => page,
            Err(DiskError::FeedLost) => return None,
            Err(error) => panic!("{error}"),
        };
        assert!(page.keys.len() <= PAGE_KEYS);
        for (space, key) in page.keys {
            assert_eq!(space, SPACE);
            assert!(keys.insert(key), "a key is named once");
        }
        after = page.last;
        if after.is_none() {
            return Some(keys);
        }
    }
}

async fn feed(rig: &Rig, since: Option<Mark>) -> Option<BTreeSet<Vec<u8>>> {
    feed_of(rig, &SlotSet::all(), since).await
}

async fn mark(rig: &Rig) -> Mark {
    rig.tier().mark().await.unwrap()
}

async fn erase(rig: &Rig, key: &[u8]) {
    rig.delete(key, ERASED).await;
}

fn keys<const N: usize>(keys: [&str; N]) -> Option<BTreeSet<Vec<u8>>> {
    Some(
        keys.into_iter()
            .map(|key| key.as_bytes().to_vec())
            .collect(),
    )
}

/// Compacts a generation, whether it is worth it or not.
async fn compact(rig: &Rig, id: u64) {
    let generation = || rig.shared().generations.by_id(id).unwrap();
    within(|| generation().is_sealed()).await;
    let source = generation();
    let target = compaction::rewrite(rig.shared(), &source, 0).unwrap();
    compaction::switch(rig.shared(), &source, target).unwrap();
}

#[tokio::test]
async fn a_feed_names_what_was_written_behind_the_mark_and_deleted_keys_too() {
    let mut rig = Rig::new();
    rig.put(b"before", 1, &b"v"[..]).await;
    rig.put(b"both", 2, &b"v"[..]).await;
    let first = mark(&rig).await;
    rig.put(b"both", 3, &b"v"[..]).await;
    rig.delete(b"unknown", 4).await;
    rig.roll().await;
    rig.put(b"newer", 5, &b"v"[..]).await;
    let second = mark(&rig).await;
    assert!(first < second);
    rig.delete(b"before", 6).await;
    for _ in 0..2 {
        let changed = keys(["before", "both", "newer", "unknown"]);
        assert_eq!(feed(&rig, Some(first)).await, changed);
        assert_eq!(feed(&rig, Some(second)).await, keys(["before"]));
        assert_eq!(feed(&rig, None).await, changed);
        let some: SlotSet = [slot(b"both")].into_iter().collect();
        assert_eq!(feed_of(&rig, &some, Some(first)).await, keys(["both"]));
        rig.kill(|_| ());
    }
    // A restart remembers that there are marks: a deletion is written although it hides nothing.
    rig.delete(b"also unknown", 7).await;
    let changed = keys(["before", "also unknown"]);
    assert_eq!(feed(&rig, Some(second)).await, changed);
    assert_eq!(feed(&rig, Some(mark(&rig).await)).await, keys([]));
}

#[tokio::test]
async fn a_page_ends_at_its_bytes_and_a_long_record_counts_as_what_is_copied_of_it() {
    let rig = Rig::new();
    for (lens, per_page) in [(1000, 10), (200_000, 2)] {
        for number in 0..20_u64 {
            rig.put(
                &number.to_be_bytes(),
                1 + number + lens,
                noise(1, lens as usize),
            )
            .await;
        }
        let limits = SlotLimits {
            keys: 1000,
            bytes: if lens == 1000 { 10_000 } else { 100_000 },
        };
        let (mut after, mut numbers) = (None, Vec::new());
        loop {
            let all = SlotSet::all();
            let page = rig.tier().scan_slots(&all, None, after, limits).await;
            let page = page.unwrap();
            assert!(page.keys.len() <= per_page);
            assert!(page.last.is_none() || page.last.as_ref() == page.keys.last());
            numbers.extend(page.keys.into_iter().map(|(_, key)| key));
            after = page.last;
            if after.is_none() {
                break;
            }
        }
        let expected = (0..20_u64).map(|number| number.to_be_bytes().to_vec());
        assert!(numbers.into_iter().eq(expected));
    }
}

#[tokio::test]
async fn writes_that_wait_together_with_a_mark_are_on_the_side_where_they_were_queued() {
    let rig = Rig::new();
    let write = |key: &'static str| Write {
        space: SPACE,
        key: Bytes::from_static(key.as_bytes()),
        kind: WriteKind::Tombstone { version: 7 },
        ack: None,
    };
    rig.tier().keep_tombstones();
    // The gate stops the writer thread. Behind the gate, one batch can take all queued writes.
    let gate = rig.witness.gate.lock();
    let tier = rig.tier().clone();
    rig.tier().try_write(write("first")).unwrap();
    let mut marking = Box::pin(tier.mark());
    tier.try_write(write("before")).unwrap();
    let waker = std::task::Waker::noop();
    let polled = marking
        .as_mut()
        .poll(&mut std::task::Context::from_waker(waker));
    assert!(polled.is_pending());
    tier.try_write(write("behind")).unwrap();
    drop(gate);
    let mark = marking.await.unwrap();
    rig.tier().barrier().await;
    assert_eq!(feed(&rig, Some(mark)).await, keys(["behind"]));
}

#[tokio::test]
async fn a_mark_into_a_generation_that_was_written_anew_means_its_beginning() {
    let mut rig = Rig::new();
    rig.put(b"a", 1, &b"v"[..]).await;
    rig.put(b"b", 2, &b"v"[..]).await;
    let id = rig.newest_id();
    let marked = mark(&rig).await;
    rig.delete(b"c", 3).await;
    rig.put(b"b", 4, &b"v"[..]).await;
    rig.roll().await;
    assert_eq!(feed(&rig, Some(marked)).await, keys(["b", "c"]));
    compact(&rig, id).await;
    for _ in 0..2 {
        assert_eq!(feed(&rig, Some(marked)).await, keys(["a", "b", "c"]));
        rig.reopen();
    }
}

#[tokio::test]
async fn a_feed_is_lost_when_a_generation_behind_its_mark_was_dropped() {
    let mut rig = small();
    rig.put(b"k", 1, &b"v"[..]).await;
    let early = mark(&rig).await;
    assert!(rig.tier().holds(&early));
    let version = fill_until(&rig, 2, || rig.stats().generations_dropped >= 1).await;
    let late = mark(&rig).await;
    rig.put(b"late", version, &b"v"[..]).await;
    for _ in 0..2 {
        assert!(!rig.tier().holds(&early));
        assert_eq!(feed(&rig, Some(early)).await, None);
        assert!(rig.tier().holds(&late));
        assert_eq!(feed(&rig, Some(late)).await, keys(["late"]));
        rig.reopen();
    }
}

#[tokio::test]
async fn a_mark_of_an_emptied_directory_or_of_another_store_is_not_held() {
    let mut rig = Rig::new();
    rig.put(b"k", 1, &b"v"[..]).await;
    let old = mark(&rig).await;
    rig.close();
    for entry in std::fs::read_dir(&rig.options.dir).unwrap() {
        let entry = entry.unwrap();
        // Everything else is left as it was.
        if entry.file_name().to_string_lossy().starts_with('g') {
            std::fs::remove_dir_all(entry.path()).unwrap();
        }
    }
    rig.open();
    rig.put(b"k", 1, &b"v"[..]).await;
    assert!(!rig.tier().holds(&old));
    let new = mark(&rig).await;
    assert!(!rig.tier().holds(&old));
    assert_eq!(feed(&rig, Some(old)).await, None);
    assert!(rig.tier().holds(&new));
    assert!(!Rig::new().tier().holds(&new));
}

#[tokio::test]
async fn a_log_that_is_shorter_than_its_mark_has_lost_the_feed() {
    let mut rig = Rig::new();
    rig.put(b"k", 1, noise(1, 5000)).await;
    rig.put(b"l", 2, noise(1, 5000)).await;
    let marked = mark(&rig).await;
    rig.kill(|dir| {
        let log = dir.join("g0000000001").join("values");
        let log = std::fs::File::options().write(true).open(log).unwrap();
        log.set_len(6000).unwrap();
    });
    rig.put(b"m", 3, noise(1, 500)).await;
    assert_eq!(feed(&rig, Some(marked)).await, None);
}

#[tokio::test]
async fn a_generation_without_records_that_a_restart_removes_does_not_cost_the_feed() {
    let mut rig = Rig::new();
    rig.put(b"k", 1, &b"v"[..]).await;
    rig.roll().await;
    let marked = mark(&rig).await;
    rig.kill(|_| ());
    assert_eq!(feed(&rig, Some(marked)).await, keys([]));
    rig.put(b"l", 2, &b"v"[..]).await;
    assert_eq!(feed(&rig, Some(marked)).await, keys(["l"]));
}

#[tokio::test]
async fn an_erased_key_is_unknown_and_takes_any_version() {
    let mut rig = Rig::new();
    rig.tier().keep_tombstones();
    rig.put(b"old", 8, &b"hidden"[..]).await;
    rig.put(b"gone", 8, &b"hidden"[..]).await;
    rig.roll().await;
    rig.put(b"k", 9, &b"hidden"[..]).await;
    rig.delete(b"deleted", 9).await;
    for key in [&b"k"[..], b"deleted", b"old", b"gone"] {
        erase(&rig, key).await;
        assert_eq!(
            rig.tier().newest(SPACE, key, Reach::Below).await.unwrap(),
            None
        );
    }
    assert_eq!(feed(&rig, None).await, keys([]));
    for key in [&b"k"[..], b"deleted", b"old"] {
        rig.put(key, 5, &b"copy"[..]).await;
    }
    let check = async |rig: &Rig| {
        for key in [&b"k"[..], b"deleted", b"old"] {
            assert_eq!(rig.version_of(key).await, Some(5));
        }
        assert_eq!(rig.get(b"gone").await, None);
        assert_eq!(feed(rig, None).await, keys(["k", "deleted", "old"]));
    };
    check(&rig).await;
    // The index is made anew from the log.
    rig.kill(|dir| std::fs::remove_dir_all(dir.join("g0000000002/index")).unwrap());
    check(&rig).await;
    let id = rig.newest_id();
    rig.roll().await;
    compact(&rig, id).await;
    check(&rig).await;
    // No older generation has the keys any more, so nothing needs to be hidden.
    compact(&rig, 1).await;
    compact(&rig, id).await;
    rig.reopen();
    check(&rig).await;
    assert_eq!(rig.shared().generations.snapshot().len(), 2);
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u8,
        len: usize,
    },
    Delete {
        key: u8,
    },
    /// Erases the key.
    Erase {
        key: u8,
    },
    /// An old version, if the key is unknown.
    Copy {
        key: u8,
    },
    /// Reads the key, which copies what is old and read.
    Get {
        key: u8,
    },
    Keep {
        key: u8,
    },
    /// Values under keys of their own, which push older ones out.
    Fill {
        bytes: usize,
    },
    Roll,
    Compact {
        which: usize,
    },
    Reopen,
    Kill,
    Mark,
    /// Looks at the feed since a mark.
    Feed {
        which: usize,
    },
}

/// The bytes of a key; every fourth one is long.
fn bytes_of(key: u8) -> Vec<u8> {
    let len = if key.is_multiple_of(4) { 500 } else { 1 };
    [&vec![b'k'; len - 1][..], &[key]].concat()
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..24_u8;
    prop_oneof![
        30 => (key.clone(), 0..60_000_usize).prop_map(|(key, len)| Step::Put { key, len }),
        12 => key.clone().prop_map(|key| Step::Delete { key }),
        6 => key.clone().prop_map(|key| Step::Erase { key }),
        12 => key.clone().prop_map(|key| Step::Copy { key }),
        12 => key.clone().prop_map(|key| Step::Get { key }),
        3 => key.prop_map(|key| Step::Keep { key }),
        16 => (1..1_500_000_usize).prop_map(|bytes| Step::Fill { bytes }),
        4 => Just(Step::Roll),
        4 => (0..8_usize).prop_map(|which| Step::Compact { which }),
        1 => Just(Step::Reopen),
        1 => Just(Step::Kill),
        6 => Just(Step::Mark),
        12 => (0..8_usize).prop_map(|which| Step::Feed { which }),
    ]
}

/// The first version of a write; copies have lower ones.
const FIRST_VERSION: Version = 1000;

struct Model {
    rig: Rig,
    /// Counts the steps.
    now: u64,
    /// The step that last changed a key, and the version of its entry; None if it is deleted.
    changed: HashMap<Vec<u8>, (u64, Option<Version>)>,
    marks: Vec<(Mark, u64)>,
}

impl Model {
    fn note(&mut self, key: Vec<u8>, version: Option<Version>) {
        self.changed.insert(key, (self.now, version));
    }

    async fn take(&mut self, step: Step) {
        self.now += 1;
        let version = FIRST_VERSION + self.now;
        match step {
            Step::Put { key, len } => {
                let value = noise(version, len);
                self.rig.put(&bytes_of(key), version, value).await;
                self.note(bytes_of(key), Some(version));
            }
            Step::Delete { key } => {
                self.rig.delete(&bytes_of(key), version).await;
                self.note(bytes_of(key), None);
            }
            Step::Erase { key } => {
                erase(&self.rig, &bytes_of(key)).await;
                self.changed.remove(&bytes_of(key));
                let key = bytes_of(key);
                let newest = self.rig.tier().newest(SPACE, &key, Reach::Below).await;
                assert_eq!(newest.unwrap(), None);
            }
            Step::Copy { key } => {
                if !self.changed.contains_key(&bytes_of(key)) {
                    let version = 1 + self.now % (FIRST_VERSION - 1);
                    self.rig.put(&bytes_of(key), version, noise(1, 900)).await;
                    self.note(bytes_of(key), Some(version));
                }
            }
            Step::Get { key } => {
                let found = self.rig.version_of(&bytes_of(key)).await;
                let known = self.changed.get(&bytes_of(key));
                let known = known.and_then(|(_, version)| *version);
                assert!(found.is_none() || found == known, "{found:?} {known:?}");
            }
            Step::Keep { key } => {
                self.rig.witness.kept.lock().insert(bytes_of(key));
            }
            Step::Fill { bytes } => {
                for part in 0..bytes / 50_000 {
                    let key = format!("fill {version} {part}").into_bytes();
                    self.rig.put(&key, version, noise(version, 50_000)).await;
                    self.note(key, Some(version));
                }
            }
            Step::Roll => self.rig.roll().await,
            Step::Compact { which } => {
                let shared = self.rig.shared();
                let mut sealed = shared.generations.snapshot().to_vec();
                sealed.retain(|it| it.is_sealed());
                if !sealed.is_empty() {
                    let source = sealed.swap_remove(which % sealed.len());
                    drop(sealed);
                    if let Ok(target) = compaction::rewrite(shared, &source, 0) {
                        let _ = compaction::switch(shared, &source, target);
                    }
                }
            }
            Step::Reopen => self.rig.reopen(),
            Step::Kill => {
                let left = self.rig.options.dir.clone();
                self.rig.kill(|_| ());
                std::fs::remove_dir_all(left).unwrap();
            }
            Step::Mark => self.marks.push((mark(&self.rig).await, self.now)),
            Step::Feed { which } => self.check(which).await,
        }
    }

    /// The feed since a mark, the latest first, has all that changed since, or is lost.
    async fn check(&self, which: usize) {
        let Some(&(mark, at)) = self.marks.iter().rev().nth(which) else {
            return;
        };
        let Some(fed) = feed(&self.rig, Some(mark)).await else {
            return;
        };
        for (key, (changed, _)) in &self.changed {
            assert!(
                *changed <= at || fed.contains(key),
                "{} changed in step {changed}, marked after {at}",
                String::from_utf8_lossy(key)
            );
        }
        // An incomplete feed is told from a complete one at its end too.
        assert!(fed.iter().all(|key| self.changed.contains_key(key)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_feed_has_all_that_changed_since_its_mark_or_says_that_it_is_lost(
        steps in proptest::collection::vec(step(), 100..400),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let rig = small();
            rig.tier().keep_tombstones();
            let (changed, marks) = Default::default();
            let mut model = Model { rig, now: 0, changed, marks };
            for step in steps {
                model.take(step).await;
            }
            for which in 0..8 {
                model.check(which).await;
            }
        });
    }
}
