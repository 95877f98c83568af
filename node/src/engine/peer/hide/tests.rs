//! Slots that are hidden, and copied in full afterwards.

mod model;

use std::collections::BTreeSet;
use std::task::{Context, Waker};

use std::sync::Arc;
use std::time::Instant;

use fonn_base::clock::Clock;
use fonn_base::tasks::Tasks;
use fonn_cold_tier::store::fault::FaultStore;
use fonn_cold_tier::store::memory::MemoryStore;
use fonn_disk_tier::Reach;
use fonn_proto::Outcome;

use super::super::tests::{
    BASE, PATIENCE, SPACE, decoded, entry, fetch, open_above, poll_until_answered, put, value,
};
use super::*;
use crate::engine::tests::*;

/// Keys of a test.
const COUNT: u64 = 1000;

/// What is hidden, and what is newer.
const HIDDEN: Version = BASE + 20_000;

fn name(number: u64) -> String {
    format!("key-{number}")
}

async fn hide(engine: &Engine, up_to: Version) {
    engine.hide_slots(&SlotSet::all(), up_to).await.unwrap();
}

/// The keys that pages of all slots name.
async fn named(engine: &Engine) -> BTreeSet<String> {
    let (mut cursor, mut found) = (Vec::new(), BTreeSet::new());
    loop {
        let page = engine
            .fetch_slots(&SlotSet::all(), None, &cursor, 1 << 20)
            .await;
        let page = page.unwrap();
        for entry in page.entries.page(&[]).iter() {
            found.insert(String::from_utf8(entry.unwrap().key.to_vec()).unwrap());
        }
        cursor = page.next;
        if cursor.is_empty() {
            return found;
        }
    }
}

/// Copies all that a member has to another one whose slots were hidden; how many entries that took.
async fn copy(from: &Engine, to: &Engine, hidden_to: Version) -> usize {
    // As a member of a cluster does at its start.
    to.keep_tombstones();
    let (mut cursor, mut kept) = (Vec::new(), 0);
    loop {
        let page = from
            .fetch_slots(&SlotSet::all(), None, &cursor, 1 << 20)
            .await;
        let page = page.unwrap();
        let mut acks = Acks::default();
        for entry in page.entries.page(&[]).iter() {
            let entry = entry.unwrap();
            let is_kept = to.put_copy(&entry, hidden_to, &mut acks).await.unwrap();
            kept += usize::from(is_kept);
        }
        assert_eq!(acks.wait().await, []);
        cursor = page.next;
        if cursor.is_empty() {
            return kept;
        }
    }
}

/// Begins a new generation, if there is a disk.
async fn roll(rig: &Rig) {
    if let Some(disk) = rig.engine().disk() {
        disk.compact_all().await;
    }
}

/// A member with what another one has in older versions: the keys at these versions.
async fn source(versions: impl Fn(u64) -> Version) -> Rig {
    let source = Rig::new(Choice {
        ram_bytes: 64 << 20,
        ..Choice::default()
    });
    for number in 0..COUNT {
        put(
            source.engine(),
            &entry(&name(number), versions(number), false),
        )
        .await
        .unwrap();
    }
    source
}

async fn assert_copied(rig: &Rig, versions: impl Fn(u64) -> Version) {
    for number in 0..COUNT {
        let found = fetch(rig.engine(), &name(number)).await.unwrap();
        assert_eq!(found.meta.version, versions(number), "key {number}");
        let read = rig.get(&name(number)).await;
        assert_eq!(read, Some(value(versions(number))), "key {number}");
    }
}

#[tokio::test]
async fn a_hidden_slot_takes_a_full_copy_of_older_versions() {
    let older = |number| BASE + number;
    let source = source(older).await;
    for has_disk in [true, false] {
        let mut rig = Rig::new(Choice {
            has_disk,
            // Without a disk RAM has all of it.
            ram_bytes: if has_disk { 1 << 20 } else { 64 << 20 },
            ..Choice::default()
        });
        rig.engine().keep_tombstones();
        // Some were deleted, some are in older generations, and some in several.
        for number in 0..COUNT {
            let version = BASE + 10_000 + number;
            let is_tombstone = has_disk && number % 7 == 0;
            put(rig.engine(), &entry(&name(number), version, is_tombstone))
                .await
                .unwrap();
            if number % 300 == 299 {
                roll(&rig).await;
            }
        }
        for number in (0..COUNT).step_by(3) {
            let version = BASE + 15_000 + number;
            put(
                rig.engine(),
                &entry(&name(number), version, number % 2 == 0),
            )
            .await
            .unwrap();
        }
        put(rig.engine(), &entry("newer", HIDDEN + 1, false))
            .await
            .unwrap();
        hide(rig.engine(), HIDDEN).await;
        for round in 0..3 {
            for number in 0..COUNT {
                let key = name(number);
                assert_eq!(rig.engine().newest(SPACE, key.as_bytes()).await, Ok(None));
                assert_eq!(rig.get(&key).await, None);
                assert_eq!(fetch(rig.engine(), &key).await, None);
                assert_eq!(rig.engine().copy_version(SPACE, key.as_bytes()).await, None);
            }
            let newer = BTreeSet::from(["newer".to_owned()]);
            assert_eq!(named(rig.engine()).await, newer);
            assert_eq!(rig.get("newer").await, Some(value(HIDDEN + 1)));
            match round {
                0 => evict_all_on_disk(&rig),
                1 if has_disk => rig.drop_and_open(),
                _ => {}
            }
        }
        let taken = copy(source.engine(), rig.engine(), HIDDEN).await;
        assert_eq!(taken, COUNT as usize);
        assert_copied(&rig, older).await;
        if has_disk {
            evict_all(rig.engine());
            assert_copied(&rig, older).await;
            rig.drop_and_open();
            assert_copied(&rig, older).await;
            roll(&rig).await;
            rig.reopen();
            assert_copied(&rig, older).await;
        }
        assert_eq!(rig.get("newer").await, Some(value(HIDDEN + 1)));
        assert_eq!(named(rig.engine()).await.len(), COUNT as usize + 1);
    }
}

fn evict_all_on_disk(rig: &Rig) {
    if rig.engine().disk().is_some() {
        evict_all(rig.engine());
    }
}

#[tokio::test]
async fn copies_come_in_although_generations_were_dropped_and_never_replace_what_may_be_newer() {
    let older = |number| BASE + number;
    let source = source(older).await;
    let mut rig = Rig::new(Choice {
        disk_bytes: 32 << 20,
        ..Choice::default()
    });
    rig.engine().keep_tombstones();
    let filler = vec![7; VALUE_LEN_MAX];
    let fill = async |rig: &Rig, generations: u64| {
        let dropped = || {
            let stats = rig.engine().disk().unwrap().stats().snapshot();
            stats.generations_dropped
        };
        let before = dropped();
        for number in 0_u32.. {
            rig.set(&format!("filler-{before}-{number}"), &filler).await;
            if dropped() >= before + generations {
                break;
            }
        }
    };
    fill(&rig, 2).await;
    evict_all(rig.engine());
    // It does not know any more which keys it had.
    rig.drop_and_open();
    rig.engine().keep_tombstones();
    let forgotten = rig.engine().disk().unwrap().forgotten();
    assert!(forgotten > BASE + 65_536);
    // As a replica takes it: what is as old may have been known here.
    let first = name(0);
    let copied = entry(&first, older(0), false);
    assert_eq!(put(rig.engine(), &copied).await, Ok(false));
    // Something above what was hidden may be forgotten.
    hide(rig.engine(), forgotten - 1).await;
    let mut acks = Acks::default();
    let kept = rig.engine().put_copy(&copied, forgotten - 1, &mut acks);
    assert_eq!(kept.await, Ok(false));
    let hidden_to = rig.engine().versions().newest();
    hide(rig.engine(), hidden_to).await;
    for _ in 0..2 {
        assert_eq!(named(rig.engine()).await, BTreeSet::new());
        rig.drop_and_open();
    }
    let taken = copy(source.engine(), rig.engine(), hidden_to).await;
    assert_eq!(taken, COUNT as usize);
    assert_copied(&rig, older).await;
    rig.drop_and_open();
    assert_copied(&rig, older).await;
    // A write that came since is newer than a copy, also after it was evicted.
    let live = hidden_to + (1 << 20);
    for (number, is_tombstone) in [(1, false), (2, true)] {
        let key = name(number);
        let live = entry(&key, live, is_tombstone);
        assert_eq!(put(rig.engine(), &live).await, Ok(true));
    }
    for number in [1, 2] {
        let (key, version) = (name(number), older(number));
        let copied = entry(&key, version, false);
        let kept = rig.engine().put_copy(&copied, hidden_to, &mut acks);
        assert_eq!(kept.await, Ok(false));
    }
    while rig.engine().disk().unwrap().forgotten() < live {
        fill(&rig, 1).await;
    }
    evict_all(rig.engine());
    for number in [1, 2] {
        let (key, version) = (name(number), older(number));
        let copied = entry(&key, version, false);
        let kept = rig.engine().put_copy(&copied, hidden_to, &mut acks);
        assert_eq!(kept.await, Ok(false));
        assert_eq!(rig.get(&key).await, None);
    }
}

#[tokio::test]
async fn what_ram_alone_has_is_hidden_too() {
    let mut rig = Rig::new(Choice {
        ram_bytes: 256 << 20,
        disk_bytes: 16 << 20,
        ..Choice::default()
    });
    rig.engine().keep_tombstones();
    let filler = vec![7; VALUE_LEN_MAX];
    let disk = rig.engine().disk().unwrap().clone();
    let mut count = 0;
    // All entries are hot, and no more than a part of them outlives its generation on disk.
    let alone = loop {
        rig.set(&name(count), &filler).await;
        count += 1;
        let first = name(count / 20);
        let on_disk = disk.newest(SPACE, first.as_bytes(), Reach::Below).await;
        let on_disk = on_disk.unwrap();
        if on_disk.is_none() {
            break first;
        }
    };
    assert_eq!(rig.get(&alone).await.as_ref(), Some(&filler));
    drop(disk);
    let up_to = rig.engine().versions().newest();
    hide(rig.engine(), up_to).await;
    for _ in 0..2 {
        for number in 0..count {
            assert_eq!(rig.get(&name(number)).await, None);
        }
        rig.drop_and_open();
    }
    // A kill may leave more than the budget; the start that drops it takes all for forgotten.
    let up_to = up_to.max(rig.engine().disk().unwrap().forgotten());
    hide(rig.engine(), up_to).await;
    let copied = entry(&alone, BASE, false);
    let mut acks = Acks::default();
    let kept = rig.engine().put_copy(&copied, up_to, &mut acks).await;
    assert_eq!(kept, Ok(true));
    assert_eq!(acks.wait().await, []);
    evict_all(rig.engine());
    assert_eq!(rig.get(&alone).await, Some(value(BASE)));
}

#[tokio::test]
async fn other_slots_stay_as_they_are() {
    for has_disk in [true, false] {
        let mut rig = Rig::new(Choice {
            has_disk,
            ..Choice::default()
        });
        for number in 0..100 {
            put(rig.engine(), &entry(&name(number), BASE, false))
                .await
                .unwrap();
        }
        let slots: SlotSet = (0..50)
            .map(|number| slot(name(number).as_bytes()))
            .collect();
        rig.engine().hide_slots(&slots, HIDDEN).await.unwrap();
        for _ in 0..2 {
            for number in 0..100 {
                let is_hidden = slots.contains(slot(name(number).as_bytes()));
                let expected = (!is_hidden).then(|| value(BASE));
                assert_eq!(rig.get(&name(number)).await, expected);
            }
            if has_disk {
                rig.drop_and_open();
            }
        }
    }
}

#[tokio::test]
async fn hiding_that_was_cut_off_is_completed_by_the_next_call() {
    let mut rig = Rig::new(Choice::default());
    for number in 0..COUNT {
        put(rig.engine(), &entry(&name(number), BASE + number, false))
            .await
            .unwrap();
    }
    for polls in [1, 3, 10, 100] {
        {
            let engine = rig.shared();
            let all = SlotSet::all();
            let mut hiding = Box::pin(engine.hide_slots(&all, HIDDEN));
            for _ in 0..polls {
                let _ = hiding
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()));
                engine.disk().unwrap().barrier().await;
            }
        }
        rig.drop_and_open();
        for number in 0..COUNT {
            let found = fetch(rig.engine(), &name(number)).await;
            let version = found.map(|found| found.meta.version);
            assert!(version.is_none() || version == Some(BASE + number));
        }
    }
    hide(rig.engine(), HIDDEN).await;
    rig.drop_and_open();
    assert_eq!(named(rig.engine()).await, BTreeSet::new());
}

/// Clients write, read and evict while slots are hidden: what they write stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_during_the_hiding_stay() {
    let mut rig = Rig::new(Choice::default());
    for number in 0..COUNT {
        put(rig.engine(), &entry(&name(number), BASE + number, false))
            .await
            .unwrap();
    }
    let client = async {
        for number in (0..COUNT).rev().step_by(2) {
            let outcome = rig.run(&set(&name(number), b"live")).await;
            assert!(matches!(outcome, Outcome::Stored(_)));
            rig.get(&name(number / 2)).await;
            if number % 64 == 1 {
                evict_all(rig.engine());
            }
        }
    };
    let ((), ()) = tokio::join!(client, hide(rig.engine(), HIDDEN));
    for _ in 0..2 {
        for number in 0..COUNT {
            let expected = (number % 2 == 1).then(|| b"live".to_vec());
            assert_eq!(rig.get(&name(number)).await, expected, "key {number}");
        }
        rig.drop_and_open();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_bucket_has_of_a_hidden_slot_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(MemoryStore::new(Clock::system()));
    let bucket = Arc::new(FaultStore::new(memory, 1));
    let engine = open_above(dir.path(), &bucket);
    let tasks = Tasks::new();
    engine.start_cold(&tasks);
    let version = (Clock::system().wall_ms() - 1) << 16;
    assert_eq!(put(&engine, &entry("k", version, false)).await, Ok(true));
    let counts = async || {
        engine.drain_cold(Instant::now() + PATIENCE).await;
        engine.cold().unwrap().tier().status().counts
    };
    let before = counts().await;
    hide(&engine, version).await;
    // What erased it does not reach the bucket.
    assert_eq!(counts().await.spilled_entries, before.spilled_entries);
    assert_eq!(named(&engine).await, BTreeSet::new());
    let found = fetch(&engine, "k").await.unwrap();
    assert_eq!(decoded(&found), Some(value(version)));
    // A copy is newer than what the bucket has, or is not kept.
    let mut acks = Acks::default();
    for (copied, is_kept) in [(version - 1, false), (version + 1, true)] {
        let copied = entry("k", copied, false);
        let kept = engine.put_copy(&copied, version, &mut acks).await;
        assert_eq!(kept, Ok(is_kept));
    }
    engine.close(PATIENCE);
}

#[tokio::test]
async fn a_write_between_the_look_at_a_key_and_its_hiding_stays() {
    let mut rig = Rig::new(Choice::default());
    put(rig.engine(), &entry("k", BASE, false)).await.unwrap();
    evict_all(rig.engine());
    let mut acks = Acks::default();
    {
        let mut hiding = Box::pin(rig.engine().hide_key(SPACE, b"k", HIDDEN, &mut acks));
        poll_until_answered(hiding.as_mut()).await;
        let newer = entry("k", HIDDEN + 1, false);
        assert_eq!(put(rig.engine(), &newer).await, Ok(true));
        evict_all(rig.engine());
        hiding.await.unwrap();
    }
    assert_eq!(acks.wait().await, []);
    for _ in 0..2 {
        assert_eq!(rig.get("k").await, Some(value(HIDDEN + 1)));
        rig.drop_and_open();
    }
}
