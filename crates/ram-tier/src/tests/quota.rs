//! Namespaces with a quota lose their own entries, and only those.

use std::collections::BTreeMap;

use super::*;

const LIMITED: u32 = 7;
const VALUE: [u8; 1000] = [b'v'; 1000];

fn quotas(quota: usize) -> BTreeMap<u32, usize> {
    BTreeMap::from([(LIMITED, quota)])
}

fn space(namespace: u32) -> Space {
    Space::new(namespace, 0)
}

fn write(tier: &RamTier, namespace: u32, key: &[u8], value: &[u8], now_s: u32) {
    let new = NewEntry {
        space: space(namespace),
        ..entry(key, value, 1)
    };
    put_entry(tier, new, now_s).unwrap();
    let hash = tier.hash(space(namespace), key);
    tier.evict_to_budget(Some(hash), now_s, usize::MAX);
    tier.evict_to_quota(hash, space(namespace), usize::MAX);
}

fn holds(tier: &RamTier, namespace: u32, key: &[u8]) -> bool {
    let hash = tier.hash(space(namespace), key);
    tier.lock(hash).find(hash, space(namespace), key).is_some()
}

fn used(tier: &RamTier) -> usize {
    tier.quota_use(LIMITED).unwrap().used_bytes
}

fn count_of(tier: &RamTier, namespace: u32) -> usize {
    (0..2000)
        .filter(|&n| holds(tier, namespace, &key_of(n)))
        .count()
}

#[test]
fn a_namespace_over_its_quota_loses_its_own_oldest_entries_alone() {
    for lru in [LruMode::Strict, LruMode::Approximate] {
        let tier = tier(64 << 20, lru);
        tier.set_quotas(&quotas(200_000));
        for n in 0..500 {
            write(&tier, 1, &key_of(n), &VALUE, 1);
        }
        for n in 0..2000 {
            write(&tier, LIMITED, &key_of(n), &VALUE, 2 + n);
            assert!(used(&tier) <= 200_000);
        }
        assert_eq!(count_of(&tier, 1), 500, "{lru:?}");
        let left = count_of(&tier, LIMITED);
        assert!((150..200).contains(&left), "{left} {lru:?}");
        let newest = (1950..2000).filter(|&n| holds(&tier, LIMITED, &key_of(n)));
        assert!(newest.count() >= 45, "the newest stay, {lru:?}");
        let evictions = tier.quota_use(LIMITED).unwrap().evictions;
        assert_eq!(evictions, 2000 - left);
    }
}

#[test]
fn strictly_the_least_recently_used_of_the_namespace_goes_first() {
    let tier = tier(64 << 20, LruMode::Strict);
    tier.set_quotas(&quotas(20_000));
    for n in 0..10 {
        write(&tier, LIMITED, &key_of(n), &VALUE, n);
    }
    let hash = tier.hash(space(LIMITED), &key_of(0));
    let mut shard = tier.lock(hash);
    let id = shard.find(hash, space(LIMITED), &key_of(0)).unwrap();
    shard.touch_use(id, 20);
    drop(shard);
    for n in 10..20 {
        write(&tier, LIMITED, &key_of(n), &VALUE, 20 + n);
    }
    assert!(holds(&tier, LIMITED, &key_of(0)), "it was used");
    assert!(!holds(&tier, LIMITED, &key_of(1)));
}

#[test]
fn overwritten_deleted_expired_and_shared_entries_give_their_bytes_back() {
    let tier = tier(64 << 20, LruMode::Approximate);
    tier.set_quotas(&quotas(10 << 20));
    let key = key_of(1);
    write(&tier, LIMITED, &key, &VALUE, 1);
    let small = used(&tier);
    write(&tier, LIMITED, &key, &vec![b'x'; 100_000], 1);
    assert!(used(&tier) > 100_000);
    write(&tier, LIMITED, &key, &VALUE, 1);
    assert_eq!(used(&tier), small);
    let hash = tier.hash(space(LIMITED), &key);
    let mut shard = tier.lock(hash);
    // Facts that make the block longer.
    let longer = NewEntry {
        space: space(LIMITED),
        meta: Meta::new(2, 7, 0),
        ..entry(&key, &VALUE, 2)
    };
    shard.insert(hash, longer, 1).unwrap();
    shard
        .insert_tombstone(hash, space(LIMITED), &key, 9)
        .unwrap();
    drop(shard);
    assert_eq!(used(&tier), 0);
    let key = key_of(2);
    let expiring = NewEntry {
        space: space(LIMITED),
        meta: Meta::new(10, 0, 50),
        ..entry(&key, &VALUE, 1)
    };
    put_entry(&tier, expiring, 1).unwrap();
    assert!(used(&tier) > 0);
    for index in 0..tier.shard_count() {
        tier.sweep_expired(index, 100, usize::MAX);
    }
    assert_eq!(used(&tier), 0);
}

#[test]
fn quotas_come_and_go_with_what_is_there() {
    let tier = tier(64 << 20, LruMode::Approximate);
    for n in 0..1000 {
        write(&tier, LIMITED, &key_of(n), &VALUE, n);
        write(&tier, 1, &key_of(n), &VALUE, n);
    }
    assert_eq!(tier.quota_use(LIMITED), None);
    tier.set_quotas(&quotas(100_000));
    assert!(used(&tier) > 1_000_000, "what is there is counted");
    tier.evict_to_quota(0, space(LIMITED), usize::MAX);
    assert!(used(&tier) <= 100_000);
    assert_eq!(count_of(&tier, 1), 1000);
    tier.set_quotas(&BTreeMap::new());
    for n in 0..1000 {
        write(&tier, LIMITED, &key_of(n), &VALUE, 2000 + n);
    }
    assert_eq!(count_of(&tier, LIMITED), 1000);
    assert_eq!(tier.namespaces(), BTreeMap::from([(1, 1000), (7, 1000)]));
    assert_eq!(remove_all(&tier), 2000);
}

#[test]
fn the_budget_takes_the_oldest_of_all_namespaces() {
    let tier = tier(1 << 20, LruMode::Strict);
    tier.set_quotas(&quotas(10 << 20));
    for n in 0..200 {
        write(&tier, LIMITED, &key_of(n), &VALUE, n);
    }
    for n in 0..2000 {
        write(&tier, 1, &key_of(n), &VALUE, 1000 + n);
    }
    assert_eq!(count_of(&tier, LIMITED), 0, "they were the oldest");
    assert_eq!(used(&tier), 0);
    assert!(count_of(&tier, 1) > 500);
}

#[test]
fn dirty_entries_stay_and_count() {
    let tier = tier(64 << 20, LruMode::Approximate);
    tier.set_quotas(&quotas(10_000));
    for n in 0..100 {
        let key = key_of(n);
        let dirty = NewEntry {
            space: space(LIMITED),
            dirty: true,
            ..entry(&key, &VALUE, 1)
        };
        put_entry(&tier, dirty, n).unwrap();
    }
    let evicted = tier.evict_to_quota(0, space(LIMITED), usize::MAX);
    assert!(evicted.entries == 0 && evicted.over_bytes > 90_000);
    for n in 0..100 {
        let hash = tier.hash(space(LIMITED), &key_of(n));
        let mut shard = tier.lock(hash);
        assert!(shard.clear_dirty_if_version(hash, space(LIMITED), &key_of(n), 1));
    }
    let evicted = tier.evict_to_quota(0, space(LIMITED), usize::MAX);
    assert!(evicted.entries > 80 && evicted.over_bytes == 0);
    assert!(used(&tier) <= 10_000);
}
