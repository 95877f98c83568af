use fonn_proto::{Command, Delete};

use super::*;
use crate::engine::tests::{Choice, Rig, evict_all};

const SPACE: Space = Space(3);

fn long_key(number: usize) -> String {
    format!("{number:03}{}", "k".repeat(20_000))
}

/// A store with long keys, with a disk and without.
async fn with_long_keys(has_disk: bool, count: usize) -> Rig {
    let rig = Rig::new(Choice {
        ram_bytes: 16 << 20,
        has_disk,
        ..Choice::default()
    });
    for number in 0..count {
        rig.set(&long_key(number), b"v").await;
    }
    rig
}

#[tokio::test]
async fn a_page_of_long_keys_is_bounded_in_bytes_and_the_iteration_misses_none() {
    for has_disk in [true, false] {
        let rig = with_long_keys(has_disk, 100).await;
        let (mut found, mut cursor, mut pages) = (Vec::new(), 0, 0);
        loop {
            let scanned = rig.engine().scan(SPACE, cursor, usize::MAX, &[]).await;
            let (next, keys) = scanned.unwrap().unwrap();
            let bytes: usize = keys.iter().map(Vec::len).sum();
            assert!(bytes <= PAGE_KEY_BYTES + 20_003, "{bytes}");
            found.extend(keys);
            cursor = next;
            pages += 1;
            if cursor == 0 {
                break;
            }
        }
        found.sort_unstable();
        let expected: Vec<_> = (0..100).map(|it| long_key(it).into_bytes()).collect();
        assert!(found == expected, "{} keys", found.len());
        assert!(pages > 7, "{pages}");
    }
}

/// Keys in the order of the disk come at once, and those behind them are not visited.
#[tokio::test]
async fn an_iteration_over_a_prefix_finds_all_of_it_and_visits_no_other_part_of_the_disk() {
    for has_disk in [true, false] {
        let rig = Rig::new(Choice {
            ram_bytes: 16 << 20,
            has_disk,
            ..Choice::default()
        });
        let long = "l".repeat(300);
        let half = &long[..150];
        for prefix in ["a", "b\0", "b\u{1}", "b\u{1}\u{7f}", "c", "d", &long] {
            for number in 0..20 {
                rig.set(&format!("{prefix}{number:02}"), b"v").await;
            }
            rig.set(prefix, b"v").await;
        }
        let short = [("b", 63), ("b\0", 21), ("b\u{1}", 42), ("c", 21), ("e", 0)];
        for (prefix, count) in short.into_iter().chain([(half, 21), (&long, 21)]) {
            let (mut found, mut cursor, mut pages) = (Vec::new(), 0, 0);
            loop {
                let prefix = prefix.as_bytes();
                let scanned = rig.engine().scan(SPACE, cursor, 7, prefix).await;
                let (next, keys) = scanned.unwrap().unwrap();
                found.extend(keys.into_iter().filter(|key| key.starts_with(prefix)));
                cursor = next;
                pages += 1;
                if cursor == 0 {
                    break;
                }
            }
            found.sort_unstable();
            found.dedup();
            assert_eq!(found.len(), count, "{prefix:?}, disk: {has_disk}");
            assert!(
                !has_disk || pages <= count / 7 + 1,
                "{prefix:?}: {pages} pages"
            );
        }
    }
}

#[tokio::test]
async fn a_turn_counts_its_memory_and_gives_it_back() {
    let rig = Rig::new(Choice::default());
    let reserved = || rig.engine().ram().stats().reserved_bytes;
    let turn = rig.engine().turn(0).await.unwrap();
    assert_eq!(reserved(), ITERATION_BYTES);
    drop(turn);
    assert_eq!(reserved(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_iterates_waits_for_itself_and_no_other_does() {
    let rig = Rig::new(Choice {
        has_disk: false,
        ..Choice::default()
    });
    let engine = rig.engine();
    let other = Space::new(SPACE.namespace() + 1, 0);
    let turn = engine.turn(SPACE.namespace()).await.unwrap();
    assert_eq!(
        engine.scan(other, 0, 10, &[]).await,
        Some(Ok((0, Vec::new())))
    );
    assert_eq!(engine.count_entries(other).await, Ok(0));
    let busy = Some(Err(Failure::Busy));
    assert_eq!(engine.scan(SPACE, 0, 10, &[]).await, busy);
    assert_eq!(engine.count_entries(SPACE).await, Err(Failure::Busy));
    assert_eq!(engine.random_key(SPACE).await, None);
    drop(turn);
    assert_eq!(engine.count_entries(SPACE).await, Ok(0));
}

#[tokio::test]
async fn those_that_ask_for_a_count_before_it_begins_share_it() {
    let rig = Rig::new(Choice::default());
    let count = || rig.engine().count_space(SPACE, false);
    let (_, second, third) = tokio::join!(count(), count(), count());
    assert!(Arc::ptr_eq(&second.unwrap(), &third.unwrap()));
    // What is small is counted anew for each that asks.
    for number in 0..3 {
        rig.set(&format!("k{number}"), b"v").await;
        let counted = rig.engine().count_entries(SPACE).await;
        assert_eq!(counted, Ok(number + 1));
    }
}

#[tokio::test]
async fn the_count_of_a_large_space_is_told_again_for_a_while() {
    let rig = Rig::new(Choice {
        ram_bytes: 16 << 20,
        has_disk: false,
        ..Choice::default()
    });
    for number in 0..=RECOUNTED_RECORDS_MAX {
        rig.set(&format!("k{number}"), b"v").await;
    }
    let count = || rig.engine().count_space(SPACE, false);
    let first = count().await.unwrap();
    assert!(first.records > RECOUNTED_RECORDS_MAX);
    assert!(Arc::ptr_eq(&first, &count().await.unwrap()));
    let age = |by| {
        let mut counts = rig.engine().iterations.counts.lock();
        let known = counts.get_mut(&SPACE).unwrap();
        known.began -= by;
        known.ended -= by;
    };
    age(REMEMBERED);
    assert!(!Arc::ptr_eq(&first, &count().await.unwrap()));
}

#[tokio::test]
async fn slots_are_counted_together() {
    let rig = Rig::new(Choice::default());
    for number in 0..20 {
        rig.set(&format!("{{tag}}{number}"), b"v").await;
        rig.set(&format!("{{other}}{number}"), b"v").await;
    }
    let slot = placement::slot(b"{tag}");
    assert_eq!(rig.engine().count_in_slot(SPACE, slot).await, Ok(20));
    let none = placement::slot(b"none");
    assert_eq!(rig.engine().count_in_slot(SPACE, none).await, Ok(0));
}

#[tokio::test]
async fn a_random_key_is_found_behind_what_was_deleted() {
    let rig = Rig::new(Choice::default());
    for number in 0..200 {
        let key = format!("a{number:03}");
        rig.set(&key, b"v").await;
        rig.run(&Command::Delete(Delete::new(key.as_bytes()))).await;
    }
    rig.set("z", b"v").await;
    evict_all(rig.engine());
    assert_eq!(rig.engine().random_key(SPACE).await, Some(b"z".to_vec()));
}
