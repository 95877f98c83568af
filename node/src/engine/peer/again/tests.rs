//! Writes that are taken twice.

use fonn_proto::peer::SlotSet;

use std::sync::Arc;
use std::time::Instant;

use fonn_base::clock::Clock;
use fonn_base::tasks::Tasks;
use fonn_cold_tier::store::fault::FaultStore;
use fonn_cold_tier::store::memory::MemoryStore;
use fonn_ram_tier::{NewEntry, StoredIn};

use super::super::tests::{
    BASE, PATIENCE, SPACE, decoded, entry, fetch, open_above, poll_until_answered, put, value,
};
use super::*;
use crate::engine::tests::*;

async fn again(engine: &Engine, entry: &peer::Entry<'_>) -> bool {
    // As a member of a cluster does at its start.
    engine.keep_tombstones();
    let mut acks = Acks::default();
    let is_newer = engine.put_replicated(entry, true, &mut acks).await.unwrap();
    assert_eq!(acks.wait().await, []);
    is_newer
}

/// The keys that have changed since a mark, with their versions.
async fn changed(engine: &Engine, since: fonn_disk_tier::Mark) -> Vec<(String, u64)> {
    let all = SlotSet::all();
    let page = engine.fetch_slots(&all, Some(since), &[], 1 << 20).await;
    let page = page.unwrap();
    assert!(page.next.is_empty());
    let page = page.entries.page(&[]);
    let entries = page.iter().map(Result::unwrap);
    entries
        .map(|it| (String::from_utf8(it.key.to_vec()).unwrap(), it.version))
        .collect()
}

#[tokio::test]
async fn a_known_write_counts_as_taken_now_wherever_it_is() {
    for is_evicted in [false, true] {
        for framed in [false, true] {
            let lz4 = || "lz4".parse().unwrap();
            let mut choice = Choice::default();
            if framed {
                choice.ram_codec = lz4();
                choice.disk_codecs.0 = lz4();
            }
            let mut rig = Rig::new(choice);
            // Long and short values, and a tombstone.
            let writes: Vec<_> = (0..4)
                .map(|number| (format!("k{number}"), BASE + number, false))
                .chain([("deleted".to_owned(), BASE + 9, true)])
                .collect();
            for (key, version, is_tombstone) in &writes {
                let entry = entry(key, *version, *is_tombstone);
                assert_eq!(put(rig.engine(), &entry).await, Ok(true));
            }
            let mark = rig.engine().mark().await.unwrap();
            assert_eq!(changed(rig.engine(), mark).await, []);
            let mut expected = Vec::new();
            for (key, version, is_tombstone) in &writes {
                if is_evicted {
                    evict_all(rig.engine());
                }
                let entry = entry(key, *version, *is_tombstone);
                assert!(!again(rig.engine(), &entry).await);
                expected.push((key.clone(), *version));
            }
            expected.sort();
            for _ in 0..2 {
                assert_eq!(changed(rig.engine(), mark).await, expected);
                for (key, version, is_tombstone) in &writes {
                    let found = fetch(rig.engine(), key).await.unwrap();
                    assert_eq!(found.meta.version, *version);
                    let expected = (!is_tombstone).then(|| value(*version));
                    assert_eq!(decoded(&found), expected);
                }
                rig.drop_and_open();
            }
        }
    }
}

#[tokio::test]
async fn an_older_write_is_acknowledged_when_the_newer_one_is_on_the_disk() {
    let rig = Rig::new(Choice::default());
    let engine = rig.engine();
    let older = entry("k", BASE + 4, false);
    assert_eq!(put(engine, &entry("k", BASE + 5, false)).await, Ok(true));
    let mark = engine.mark().await.unwrap();
    let mut acks = Acks::default();
    assert_eq!(
        engine.put_replicated(&older, false, &mut acks).await,
        Ok(false)
    );
    assert_eq!(acks.wait().await, []);
    assert_eq!(changed(engine, mark).await, []);

    // The writer of the disk has not come to it yet, or was killed.
    let hash = engine.hot.ram.hash(SPACE, b"k");
    {
        let mut shard = engine.hot.ram.lock(hash);
        let found = shard.get(shard.find(hash, SPACE, b"k").unwrap());
        let stored = found.stored.to_bytes();
        let dirty = NewEntry {
            space: SPACE,
            key: b"k",
            stored: StoredIn::Shared(stored),
            meta: found.meta,
            framed: found.framed,
            dirty: true,
        };
        shard.insert(hash, dirty, 0).unwrap();
    }
    assert_eq!(
        engine.put_replicated(&older, false, &mut acks).await,
        Ok(false)
    );
    assert_eq!(acks.wait().await, []);
    assert_eq!(changed(engine, mark).await, [("k".to_owned(), BASE + 5)]);
}

#[tokio::test]
async fn a_newer_write_is_taken_and_of_an_older_one_the_newest_is_logged_again() {
    let rig = Rig::new(Choice::default());
    assert!(again(rig.engine(), &entry("k", BASE + 5, false)).await);
    let mark = rig.engine().mark().await.unwrap();
    assert!(!again(rig.engine(), &entry("k", BASE + 4, true)).await);
    let logged = vec![("k".to_owned(), BASE + 5)];
    assert_eq!(changed(rig.engine(), mark).await, logged);
    assert_eq!(rig.get("k").await, Some(value(BASE + 5)));
}

#[tokio::test]
async fn a_write_that_was_evicted_since_leaves_a_tombstone_behind_the_mark() {
    let rig = Rig::new(Choice {
        disk_bytes: 16 << 20,
        ..Choice::default()
    });
    let written = entry("k", BASE, false);
    assert!(again(rig.engine(), &written).await);
    let filler = vec![7; VALUE_LEN_MAX];
    for number in 0_u32.. {
        rig.set(&format!("filler-{number}"), &filler).await;
        let stats = rig.engine().disk().unwrap().stats().snapshot();
        if stats.generations_dropped >= 3 {
            break;
        }
    }
    evict_all(rig.engine());
    assert_eq!(fetch(rig.engine(), "k").await, None);
    let mark = rig.engine().mark().await.unwrap();
    assert!(!again(rig.engine(), &written).await);
    let logged = vec![("k".to_owned(), BASE)];
    assert_eq!(changed(rig.engine(), mark).await, logged);
    assert_eq!(rig.get("k").await, None);
}

#[tokio::test]
async fn what_was_flushed_stays_so_and_without_a_disk_nothing_is_to_be_done() {
    for has_disk in [true, false] {
        let rig = Rig::new(Choice {
            has_disk,
            ..Choice::default()
        });
        let written = entry("k", BASE, false);
        assert!(again(rig.engine(), &written).await);
        rig.engine().flush(&[SPACE], 0).await.unwrap();
        assert!(!again(rig.engine(), &written).await);
        assert!(!again(rig.engine(), &entry("l", BASE, false)).await);
        assert_eq!(rig.get("k").await, None);
        assert_eq!(fetch(rig.engine(), "l").await, None);
    }
}

/// Writers, readers and eviction run while writes are taken again: no write is lost, and none comes
/// back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn taking_writes_again_loses_no_write_of_others() {
    let mut rig = Rig::new(Choice::default());
    let engine = rig.shared();
    let writer = async {
        for version in 1..400 {
            let key = format!("k{}", version % 5);
            let entry = entry(&key, BASE + version, version % 7 == 0);
            put(&engine, &entry).await.unwrap();
        }
    };
    let repeater = async {
        for version in 1..400 {
            let key = format!("k{}", version % 5);
            // Mostly far behind the writer.
            again(&engine, &entry(&key, BASE + version / 2, false)).await;
            if version % 16 == 0 {
                evict_all(&engine);
            }
        }
    };
    tokio::join!(writer, repeater);
    drop(engine);
    for _ in 0..2 {
        for version in 395..400 {
            let key = format!("k{}", version % 5);
            let found = fetch(rig.engine(), &key).await.unwrap();
            assert_eq!(found.meta.version, BASE + version);
            let expected = (version % 7 != 0).then(|| value(BASE + version));
            assert_eq!(decoded(&found), expected);
        }
        rig.drop_and_open();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bucket_gets_a_write_once_that_is_taken_twice() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(MemoryStore::new(Clock::system()));
    let bucket = Arc::new(FaultStore::new(memory, 1));
    let engine = open_above(dir.path(), &bucket);
    let tasks = Tasks::new();
    engine.start_cold(&tasks);
    let version = (Clock::system().wall_ms() - 1) << 16;
    let written = entry("k", version, false);
    assert!(again(&engine, &written).await);
    let spilled = async || {
        engine.drain_cold(Instant::now() + PATIENCE).await;
        engine
            .cold()
            .unwrap()
            .tier()
            .status()
            .counts
            .spilled_entries
    };
    assert_eq!(spilled().await, 1);
    let mark = engine.mark().await.unwrap();
    assert!(!again(&engine, &written).await);
    assert_eq!(spilled().await, 1);
    let logged = vec![("k".to_owned(), version)];
    assert_eq!(changed(&engine, mark).await, logged);
    engine.close(PATIENCE);
}

#[tokio::test]
async fn a_deletion_between_the_look_at_a_key_and_its_logging_stays() {
    let mut rig = Rig::new(Choice::default());
    put(rig.engine(), &entry("k", BASE, false)).await.unwrap();
    let mark = rig.engine().mark().await.unwrap();
    evict_all(rig.engine());
    let disk = rig.engine().disk().unwrap().clone();
    let mut acks = Acks::default();
    {
        let key = (SPACE, &b"k"[..]);
        let mut logging = Box::pin(rig.engine().log_again(key, BASE, &mut acks));
        poll_until_answered(logging.as_mut()).await;
        let deletion = entry("k", BASE + 1, true);
        assert_eq!(put(rig.engine(), &deletion).await, Ok(true));
        evict_all(rig.engine());
        // The writer looks for newer records in the newest generation alone.
        disk.compact_all().await;
        logging.await.unwrap();
    }
    assert_eq!(acks.wait().await, []);
    drop(disk);
    for _ in 0..2 {
        assert_eq!(rig.get("k").await, None);
        let logged = vec![("k".to_owned(), BASE + 1)];
        assert_eq!(changed(rig.engine(), mark).await, logged);
        rig.drop_and_open();
    }
}
