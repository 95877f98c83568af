//! Feeds since a mark, through the engine.

use std::collections::BTreeMap;

use fonn_proto::peer::SlotSet;

use super::super::tests::{BASE, entry, put};
use super::*;
use crate::engine::tests::*;

/// The versions of a feed by key.
async fn feed(engine: &Engine, since: Mark) -> Result<BTreeMap<String, u64>, FeedError> {
    let (mut cursor, mut found) = (Vec::new(), BTreeMap::new());
    loop {
        let page = engine
            .fetch_slots(&SlotSet::all(), Some(since), &cursor, 3000)
            .await?;
        for entry in page.entries.page(&[]).iter() {
            let entry = entry.unwrap();
            let key = String::from_utf8(entry.key.to_vec()).unwrap();
            assert_eq!(found.insert(key, entry.version), None);
        }
        cursor = page.next;
        if cursor.is_empty() {
            return Ok(found);
        }
    }
}

#[tokio::test]
async fn a_feed_has_entries_and_tombstones_that_were_taken_behind_the_mark() {
    let mut rig = Rig::new(Choice::default());
    for number in 0..50 {
        let key = format!("before-{number}");
        put(rig.engine(), &entry(&key, BASE + number, false))
            .await
            .unwrap();
    }
    let mark = rig.engine().mark().await.unwrap();
    let mut expected = BTreeMap::new();
    for number in 0..50 {
        let (key, version) = (format!("behind-{number}"), BASE + 100 + number);
        put(rig.engine(), &entry(&key, version, number % 5 == 0))
            .await
            .unwrap();
        expected.insert(key, version);
    }
    put(rig.engine(), &entry("before-7", BASE + 200, true))
        .await
        .unwrap();
    expected.insert("before-7".to_owned(), BASE + 200);
    for _ in 0..2 {
        assert_eq!(feed(rig.engine(), mark).await, Ok(expected.clone()));
        assert!(rig.engine().disk().unwrap().holds(&mark));
        rig.drop_and_open();
    }
}

#[tokio::test]
async fn without_a_disk_there_is_no_feed() {
    let with_disk = Rig::new(Choice::default());
    let mark = with_disk.engine().mark().await.unwrap();
    let rig = Rig::new(Choice {
        has_disk: false,
        ..Choice::default()
    });
    assert_eq!(feed(rig.engine(), mark).await, Err(FeedError::Lost));
    assert_eq!(rig.engine().mark().await, Err(FeedError::Lost));
}

#[tokio::test]
async fn a_feed_whose_generation_was_dropped_is_lost() {
    let rig = Rig::new(Choice {
        disk_bytes: 16 << 20,
        ..Choice::default()
    });
    put(rig.engine(), &entry("k", BASE, false)).await.unwrap();
    let mark = rig.engine().mark().await.unwrap();
    let filler = vec![7; VALUE_LEN_MAX];
    for number in 0_u32.. {
        rig.set(&format!("filler-{number}"), &filler).await;
        let stats = rig.engine().disk().unwrap().stats().snapshot();
        if stats.generations_dropped >= 1 {
            break;
        }
    }
    assert_eq!(feed(rig.engine(), mark).await, Err(FeedError::Lost));
    assert!(!rig.engine().disk().unwrap().holds(&mark));
}
