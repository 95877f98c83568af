//! What several threads may do at once.

use std::sync::Barrier;
use std::thread;

use super::*;

#[test]
fn writers_of_several_keys_do_not_block_each_other() {
    let tier = tier(1 << 20, LruMode::Approximate);
    let keys: Vec<[u8; 16]> = (0..8).map(key_of).collect();
    let barrier = Barrier::new(2);
    let write = |keys: Vec<[u8; 16]>, value: u8| {
        barrier.wait();
        for _ in 0..2_000 {
            let mut many = tier.lock_many(keys.iter().map(|key| tier.hash(SPACE, key)));
            for key in &keys {
                let hash = tier.hash(SPACE, key);
                many.shard(hash)
                    .insert(hash, entry(key, &[value], 1), 0)
                    .unwrap();
            }
            let values: HashSet<u8> = keys
                .iter()
                .map(|key| {
                    let hash = tier.hash(SPACE, key);
                    let shard = many.shard(hash);
                    shard
                        .get(shard.find(hash, SPACE, key).unwrap())
                        .stored
                        .as_slice()[0]
                })
                .collect();
            assert_eq!(values, HashSet::from([value]));
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| write(keys.clone(), 1));
        scope.spawn(|| write(keys.iter().rev().copied().collect(), 2));
    });
    assert_eq!(tier.len(), 8);
}

#[test]
fn threads_agree_on_values_counts_and_budget() {
    const THREADS: u32 = 4;
    for lru in [LruMode::Approximate, LruMode::Strict] {
        let tier = tier(2 << 20, lru);
        let work = |thread: u32| {
            let mut random = u64::from(thread) + 1;
            for step in 0..20_000_u32 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let number = (random >> 33) as u32 % 5_000;
                let key = key_of(number);
                let hash = tier.hash(SPACE, &key);
                let mut shard = tier.lock(hash);
                let found = shard.find(hash, SPACE, &key);
                match (random >> 60, found) {
                    (0..6, Some(id)) => {
                        let value = shard.get(id).stored.as_slice();
                        assert!(value.iter().all(|&byte| byte == number as u8));
                        shard.touch_use(id, step / 100);
                    }
                    (6, Some(id)) => shard.remove(id),
                    _ => {
                        let len = if step % 50 == 0 {
                            9_000
                        } else {
                            (random >> 40) as usize % 700
                        };
                        let value = vec![number as u8; len];
                        shard
                            .insert(hash, entry(&key, &value, 1), step / 100)
                            .unwrap();
                    }
                }
                drop(shard);
                tier.evict_to_budget(Some(hash), step / 100, usize::MAX);
                assert!(tier.used() <= tier.budget() + THREADS as usize * 16_384);
            }
        };
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || work(thread));
            }
        });
        assert!(tier.used() <= tier.budget());
        assert!(tier.stats().counters.evictions > 0);
        let len = tier.len();
        assert_eq!(all_keys(&tier).len(), len);
        assert_eq!(remove_all(&tier), len);
        assert_eq!(tier.used(), 0);
    }
}
