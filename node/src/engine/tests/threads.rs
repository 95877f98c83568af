//! Threads against an engine that holds next to nothing in RAM, and against flushes: what they read
//! is never stale.

use std::sync::atomic::AtomicBool;

use fonn_base::random::SplitMix64;

use super::*;

const WRITERS: usize = 3;
const READERS: usize = 6;
const KEYS_OF_WRITER: usize = 3;
const WRITES_OF_WRITER: u64 = 1500;

/// What its only writer has done to a key. Operations are counted; every other bit is the kind.
#[derive(Default)]
struct Progress {
    begun: AtomicU64,
    /// Twice the number of the operation that was acknowledged last, and 1 if it was a set.
    acknowledged: AtomicU64,
}

fn value_of(key: usize, count: u64, len: usize) -> Vec<u8> {
    let mut value = format!("{key} {count} ").into_bytes();
    value.resize(value.len() + len, b'x');
    value
}

fn count_of(key: usize, value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).unwrap();
    let mut words = text.split(' ');
    let found: usize = words.next().unwrap().parse().unwrap();
    assert_eq!(found, key, "another key's value");
    let count = words.next().unwrap().parse().unwrap();
    assert!(words.next().unwrap().bytes().all(|byte| byte == b'x'));
    count
}

async fn write(rig: &Rig, progress: &[Progress], writer: usize) {
    let mut random = SplitMix64::new(writer as u64);
    for count in 1..=WRITES_OF_WRITER {
        let key = writer * KEYS_OF_WRITER + random.below(KEYS_OF_WRITER as u64) as usize;
        let (name, state) = (format!("key{key}"), &progress[key]);
        state.begun.store(count, Ordering::SeqCst);
        let is_set = random.below(4) != 0;
        if is_set {
            let len = random.below(9000) as usize;
            rig.set(&name, &value_of(key, count, len)).await;
        } else {
            rig.delete(&name).await;
        }
        let acknowledged = count << 1 | u64::from(is_set);
        state.acknowledged.store(acknowledged, Ordering::SeqCst);
    }
}

async fn read(rig: &Rig, progress: &[Progress], seed: u64, done: &AtomicBool) {
    let mut random = SplitMix64::new(seed);
    while !done.load(Ordering::SeqCst) {
        let key = random.below(progress.len() as u64) as usize;
        let state = &progress[key];
        let before = state.acknowledged.load(Ordering::SeqCst);
        let found = rig.get(&format!("key{key}")).await;
        let begun = state.begun.load(Ordering::SeqCst);
        match found.map(|value| count_of(key, &value)) {
            Some(count) => assert!(
                count > before >> 1 || before == count << 1 | 1,
                "key {key}: operation {count} was seen after {} was acknowledged",
                before >> 1
            ),
            None => assert!(
                begun > before >> 1 || before & 1 == 0,
                "key {key}: operation {} was lost",
                before >> 1
            ),
        }
    }
}

#[test]
fn readers_never_see_anything_older_than_what_was_acknowledged() {
    for choice in [
        Choice {
            ram_bytes: 64 << 10,
            ..Choice::default()
        },
        Choice {
            ram_bytes: 64 << 10,
            ram_codec: "lz4".parse().unwrap(),
            durability: Durability::None,
            ..Choice::default()
        },
    ] {
        let rig = Rig::new(choice);
        let progress: Vec<Progress> = (0..WRITERS * KEYS_OF_WRITER)
            .map(|_| Progress::default())
            .collect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (rig, progress, done) = (&rig, &progress[..], &done);
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| scope.spawn(move || block_on(write(rig, progress, writer))))
                .collect();
            for reader in 0..READERS as u64 {
                scope.spawn(move || block_on(read(rig, progress, reader, done)));
            }
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    evict_all(rig.engine());
                    std::thread::yield_now();
                }
            });
            let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            done.store(true, Ordering::SeqCst);
            assert!(results.iter().all(Result::is_ok));
        });
    }
}

#[test]
fn what_is_touched_during_a_flush_does_not_outlive_it() {
    let rig = Rig::new(Choice {
        ..Choice::default()
    });
    let keys = ["a", "b"];
    for _ in 0..5 {
        block_on(async {
            for key in keys {
                rig.set(key, b"v").await;
            }
        });
        let touch_while_there = async |key| {
            while rig.touch(key, ExpirySpec::Never).await != Outcome::NotFound {}
        };
        std::thread::scope(|scope| {
            for key in keys {
                let touching = &touch_while_there;
                scope.spawn(move || block_on(touching(key)));
            }
            // The touches end only if the flush has an end for both.
            block_on(rig.engine().flush(&[SPACE], 0)).unwrap();
            for key in keys {
                assert_eq!(block_on(rig.get(key)), None);
            }
        });
    }
}

#[test]
fn what_is_touched_at_the_moment_of_a_flush_is_flushed() {
    // Without a disk a flush is a matter of a moment, so there can be many.
    let rig = Rig::new(Choice {
        has_disk: false,
        ..Choice::default()
    });
    let done = AtomicBool::new(false);
    let touch_always = async || {
        while !done.load(Ordering::Relaxed) {
            rig.touch("k", ExpirySpec::Never).await;
        }
    };
    let flush_often = async || {
        for _ in 0..1000 {
            rig.set("k", b"v").await;
            let set = rig.engine().ledger.hlc.last();
            while rig.engine().ledger.hlc.last() <= set {
                std::thread::yield_now();
            }
            rig.engine().flush(&[SPACE], 0).await.unwrap();
            if rig.get("k").await.is_some() {
                return false;
            }
        }
        true
    };
    std::thread::scope(|scope| {
        scope.spawn(|| block_on(touch_always()));
        let is_gone = block_on(flush_often());
        done.store(true, Ordering::Relaxed);
        assert!(is_gone, "an entry outlived the flush");
    });
}
