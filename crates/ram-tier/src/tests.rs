use std::collections::{HashMap, HashSet};

use super::*;

mod ahead;
mod expiry;
mod model;
mod quota;
mod threads;

const SPACE: Space = Space(0);

fn tier(budget_bytes: usize, lru: LruMode) -> RamTier {
    RamTier::new(RamOptions {
        budget_bytes,
        lru,
        hash_seed: 42,
    })
}

fn meta(version: u64) -> Meta {
    Meta::new(version, 0, 0)
}

fn entry<'a>(key: &'a [u8], value: &'a [u8], version: u64) -> NewEntry<'a> {
    NewEntry {
        space: SPACE,
        key,
        stored: StoredIn::Slice(value),
        meta: meta(version),
        framed: false,
        dirty: false,
    }
}

fn put_entry(tier: &RamTier, entry: NewEntry<'_>, now_s: u32) -> Result<SlotId, Refused> {
    let hash = tier.hash(entry.space, entry.key);
    tier.lock(hash).insert(hash, entry, now_s)
}

/// Writes an entry and evicts, as the engine does.
fn put(tier: &RamTier, key: &[u8], value: &[u8], now_s: u32) {
    put_entry(tier, entry(key, value, 1), now_s).unwrap();
    let evicted = tier.evict_to_budget(Some(tier.hash(SPACE, key)), now_s, usize::MAX);
    assert_eq!(evicted.over_bytes, 0);
    assert!(tier.used() <= tier.budget());
}

fn is_there(tier: &RamTier, key: &[u8]) -> bool {
    let hash = tier.hash(SPACE, key);
    tier.lock(hash).find(hash, SPACE, key).is_some()
}

/// Counts a use; whether the key was there.
fn touch(tier: &RamTier, key: &[u8], now_s: u32) -> bool {
    let hash = tier.hash(SPACE, key);
    let mut shard = tier.lock(hash);
    let found = shard.find(hash, SPACE, key);
    found.inspect(|&id| shard.touch_use(id, now_s)).is_some()
}

fn key_of(number: u32) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[..4].copy_from_slice(&number.to_be_bytes());
    key
}

fn remove_all(tier: &RamTier) -> usize {
    let mut removed = 0;
    for index in 0..tier.shard_count() {
        let mut guard = tier.lock_index(index);
        let shard = guard.shard_mut();
        let mut from = 0;
        while let Some(id) = shard.next_id(from) {
            from = id + 1;
            if shard.get_if_taken(id).is_some() {
                shard.remove(id);
                removed += 1;
            }
        }
    }
    removed
}

fn all_keys(tier: &RamTier) -> HashSet<Vec<u8>> {
    let mut keys = HashSet::new();
    let mut cursor = 0;
    loop {
        cursor = tier.scan(cursor, 1000, |found| {
            keys.insert(found.key.to_vec());
        });
        if cursor == 0 {
            return keys;
        }
    }
}

#[test]
fn approximate_keeps_what_came_last() {
    let tier = tier(4 << 20, LruMode::Approximate);
    assert!(tier.shard_count() >= SHARDS_MIN);
    let count = 60_000;
    for number in 0..count {
        put(&tier, &key_of(number), &[0; 100], number / 1000);
    }
    let kept = tier.len() as u32;
    assert!(
        kept > 4 << 20 >> 8 && kept < count / 2,
        "{kept} entries are kept"
    );
    for number in count - kept * 8 / 10..count {
        assert!(
            is_there(&tier, &key_of(number)),
            "{number} of {count} went, {kept} are kept"
        );
    }
    let stats = tier.stats();
    assert_eq!(stats.counters.evictions, u64::from(count - kept));
    assert_eq!(stats.counters.evicted_unfetched, u64::from(count - kept));
}

#[test]
fn room_without_a_key_is_made_in_all_shards_in_turn() {
    let tier = tier(4 << 20, LruMode::Approximate);
    for number in 0..10_000 {
        put(&tier, &key_of(number), &[0; 100], 0);
    }
    let entries = || -> Vec<usize> {
        let shards = 0..tier.shard_count();
        shards
            .map(|it| tier.lock_index(it).shard().entries)
            .collect()
    };
    let before = entries();
    tier.reserve(4 << 20);
    for _ in 0..3 * tier.shard_count() {
        assert_eq!(tier.evict_to_budget(None, 0, 1).entries, 1);
    }
    let after = entries();
    assert!(before.iter().zip(&after).all(|(it, after)| it - after == 3));
}

#[test]
fn approximate_keeps_what_is_used() {
    let tier = tier(4 << 20, LruMode::Approximate);
    let hot = 0..2000;
    for number in hot.clone() {
        put(&tier, &key_of(number), &[0; 100], 0);
    }
    for number in 0..100_000 {
        put(&tier, &key_of(10_000 + number), &[0; 100], number / 1000);
        assert!(
            touch(&tier, &key_of(number % hot.end), number / 1000),
            "{number}"
        );
    }
    let evictions = tier.stats().counters.evictions;
    assert!(evictions > 70_000);
    assert_eq!(
        tier.stats().counters.evicted_unfetched,
        evictions,
        "no hot one was evicted"
    );
}

#[test]
fn a_large_value_takes_its_room_from_the_oldest_of_all_shards() {
    let tier = tier(4 << 20, LruMode::Approximate);
    for number in 0..24_000 {
        put(&tier, &key_of(number), &[0; 100], number / 100);
    }
    let before = all_keys(&tier);
    put(&tier, b"large", &vec![0; 1 << 20], 241);
    let after = all_keys(&tier);
    let age_of = |key: &Vec<u8>| u32::from_be_bytes(key[..4].try_into().unwrap()) / 100;
    let evicted = before.difference(&after).map(age_of);
    let youngest = evicted.max().unwrap();
    assert!(is_there(&tier, b"large"));
    assert!(before.len() - after.len() > 4_000);
    assert!(
        youngest < 80,
        "an entry was evicted that was used {} s ago",
        241 - youngest
    );
}

#[test]
fn few_large_values_are_evicted_by_age_and_not_by_shard() {
    let tier = tier(4 << 20, LruMode::Approximate);
    for number in 0..200 {
        put(&tier, &key_of(number), &vec![0; 200 << 10], number);
    }
    let kept = tier.len() as u32;
    assert!(kept >= 18, "{kept} are kept");
    for number in 200 - kept..200 {
        assert!(
            is_there(&tier, &key_of(number)),
            "{number} of 200 went, {kept} are kept"
        );
    }
}

#[test]
fn dirty_entries_and_tombstones_are_never_evicted() {
    for lru in [LruMode::Approximate, LruMode::Strict] {
        let tier = tier(1 << 20, lru);
        for number in 0..8_000 {
            let key = key_of(number);
            put_entry(
                &tier,
                NewEntry {
                    dirty: true,
                    ..entry(&key, &[0; 200], 5)
                },
                0,
            )
            .unwrap();
        }
        let hash = tier.hash(SPACE, b"gone");
        tier.lock(hash)
            .insert_tombstone(hash, SPACE, b"gone", 6)
            .unwrap();
        let evicted = tier.evict_to_budget(None, 9, usize::MAX);
        assert_eq!((evicted.entries, evicted.bytes), (0, 0));
        assert_eq!(evicted.over_bytes, tier.used() - tier.budget());
        assert_eq!(
            (tier.len(), tier.stats().tombstones, tier.stats().dirty),
            (8_000, 1, 8_001)
        );

        for number in 0..8_000 {
            let key = key_of(number);
            let hash = tier.hash(SPACE, &key);
            let mut shard = tier.lock(hash);
            assert!(!shard.clear_dirty_if_version(hash, SPACE, &key, 4));
            assert!(shard.clear_dirty_if_version(hash, SPACE, &key, 5));
            assert!(
                !shard.clear_dirty_if_version(hash, SPACE, &key, 5),
                "it is clean already"
            );
        }
        assert_eq!(tier.stats().dirty, 1);
        let evicted = tier.evict_to_budget(None, 9, usize::MAX);
        assert!(evicted.entries > 3_000 && tier.used() <= tier.budget());
        assert!(is_there(&tier, b"gone"));
        assert!(
            tier.lock(hash)
                .clear_dirty_if_version(hash, SPACE, b"gone", 6)
        );
        assert!(!is_there(&tier, b"gone"));
    }
}

#[test]
fn an_entry_whose_turn_came_while_it_was_dirty_goes_first_when_it_is_clean() {
    let tier = tier(64 << 10, LruMode::Strict);
    put_entry(
        &tier,
        NewEntry {
            dirty: true,
            ..entry(b"old", &[0; 100], 5)
        },
        0,
    )
    .unwrap();
    for number in 0..2_000 {
        put(&tier, &key_of(number), &[0; 100], 0);
    }
    assert!(is_there(&tier, b"old"));
    let hash = tier.hash(SPACE, b"old");
    assert!(
        tier.lock(hash)
            .clear_dirty_if_version(hash, SPACE, b"old", 5)
    );
    tier.set_budget(tier.used() - 1);
    assert_eq!(tier.evict_to_budget(None, 0, usize::MAX).entries, 1);
    assert!(!is_there(&tier, b"old"));
}

#[test]
fn long_values_are_shared_and_short_ones_copied() {
    let tier = tier(1 << 20, LruMode::Approximate);
    let long = Bytes::from(vec![7; INLINE_LEN_MAX + 1]);
    let stored = StoredIn::Shared(long.clone());
    put_entry(
        &tier,
        NewEntry {
            stored,
            ..entry(b"long", b"", 1)
        },
        0,
    )
    .unwrap();
    let short = Bytes::from(vec![8; INLINE_LEN_MAX]);
    let stored = StoredIn::Shared(short.clone());
    put_entry(
        &tier,
        NewEntry {
            stored,
            ..entry(b"short", b"", 1)
        },
        0,
    )
    .unwrap();
    put_entry(&tier, entry(b"copied", &long, 1), 0).unwrap();

    let get = |key: &[u8]| {
        let hash = tier.hash(SPACE, key);
        let shard = tier.lock(hash);
        match shard.get(shard.find(hash, SPACE, key).unwrap()).stored {
            Stored::Shared(bytes) => Ok(bytes.clone()),
            Stored::Inline(bytes) => Err(bytes.to_vec()),
        }
    };
    let kept = get(b"long").unwrap();
    assert_eq!(kept.as_ptr(), long.as_ptr());
    assert_eq!(get(b"short").unwrap_err(), short);
    let copied = get(b"copied").unwrap();
    assert_eq!(copied, long);
    assert_ne!(copied.as_ptr(), long.as_ptr());
    let other_reader = get(b"copied").unwrap();
    assert_eq!(copied.as_ptr(), other_reader.as_ptr());

    put_entry(&tier, entry(b"long", b"now short", 2), 0).unwrap();
    assert_eq!(get(b"long").unwrap_err(), b"now short");
    drop(kept);
    assert!(long.is_unique(), "the tier let go of it");
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_the_tier_as_it_was() {
    let tier = tier(1 << 20, LruMode::Approximate);
    put(&tier, b"key", b"before", 0);
    let used = tier.used();
    let too_large = vec![0; 600 << 10];
    assert_eq!(
        put_entry(&tier, entry(b"key", &too_large, 2), 0),
        Err(Refused)
    );
    assert_eq!(
        put_entry(&tier, entry(b"other", &too_large, 2), 0),
        Err(Refused)
    );
    let long_key = vec![b'k'; 70_000];
    assert_eq!(put_entry(&tier, entry(&long_key, b"", 2), 0), Err(Refused));
    assert_eq!(
        put_entry(&tier, entry(&long_key, &[0; 5000], 2), 0),
        Err(Refused)
    );
    let hash = tier.hash(SPACE, &long_key);
    assert_eq!(
        tier.lock(hash).insert_tombstone(hash, SPACE, &long_key, 2),
        Err(Refused)
    );
    assert_eq!((tier.len(), tier.used()), (1, used));
    let hash = tier.hash(SPACE, b"key");
    let shard = tier.lock(hash);
    let found = shard.get(shard.find(hash, SPACE, b"key").unwrap());
    assert_eq!(
        (found.stored.as_slice(), found.meta),
        (&b"before"[..], meta(1))
    );
}

#[test]
fn keys_of_the_longest_kinds_are_kept() {
    let tier = tier(1 << 20, LruMode::Strict);
    for len in [1, 250, 4_000, 12_270, 16_370, 32 << 10, 65_535] {
        let key = vec![b'k'; len];
        for value_len in [0, 6, INLINE_LEN_MAX, INLINE_LEN_MAX + 1] {
            put(&tier, &key, &vec![b'v'; value_len], 0);
            let hash = tier.hash(SPACE, &key);
            let shard = tier.lock(hash);
            let found = shard.get(shard.find(hash, SPACE, &key).unwrap());
            assert_eq!(
                (found.key, found.stored.as_slice().len()),
                (&key[..], value_len)
            );
        }
    }
    assert_eq!(remove_all(&tier), 7);
    assert_eq!(tier.used(), 0);
}

#[test]
fn the_budget_holds_for_reserved_memory_and_when_it_changes() {
    let tier = tier(4 << 20, LruMode::Approximate);
    for number in 0..15_000 {
        put(&tier, &key_of(number), &[0; 100], 0);
    }
    assert_eq!(tier.len(), 15_000);
    tier.reserve(3 << 20);
    assert_eq!(tier.stats().reserved_bytes, 3 << 20);
    let first = tier.evict_to_budget(None, 0, 100);
    assert_eq!(first.entries, 100, "no more than allowed");
    assert!(first.over_bytes > 0);
    assert_eq!(tier.evict_to_budget(None, 0, usize::MAX).over_bytes, 0);
    assert!(tier.used() <= 4 << 20 && tier.used() > 3 << 20);
    tier.release(3 << 20);
    assert!(tier.used() <= 1 << 20);
    let left = tier.len();
    tier.set_budget(512 << 10);
    assert_eq!(tier.evict_to_budget(None, 0, usize::MAX).over_bytes, 0);
    assert!(tier.used() <= 512 << 10 && tier.len() < left && tier.len() > 2_000);
}

#[test]
fn memory_that_small_entries_left_is_not_lost_to_large_ones() {
    let tier = tier(8 << 20, LruMode::Approximate);
    for number in 0..60_000 {
        put(&tier, &key_of(number), &[0; 100], number / 1000);
    }
    for number in 0..1_000 {
        put(
            &tier,
            &key_of(100_000 + number),
            &[0; 64 << 10],
            60 + number / 10,
        );
    }
    assert!(
        tier.len() * (64 << 10) > 7 << 20,
        "{} large values are kept",
        tier.len()
    );
}

#[test]
fn entries_survive_that_their_memory_is_gathered() {
    for lru in [LruMode::Approximate, LruMode::Strict] {
        let tier = tier(64 << 20, lru);
        for number in 0..40_000 {
            put(&tier, &key_of(number), &[number as u8; 100], 0);
        }
        let full = tier.used();
        for number in 0..40_000 {
            if number % 13 > 0 {
                let key = key_of(number);
                let hash = tier.hash(SPACE, &key);
                let mut shard = tier.lock(hash);
                let id = shard.find(hash, SPACE, &key).unwrap();
                shard.remove(id);
            }
        }
        assert!(
            tier.used() < full / 3,
            "slots keep their place, the rest is given back"
        );
        for number in 0..40_000 {
            let key = key_of(number);
            let hash = tier.hash(SPACE, &key);
            let shard = tier.lock(hash);
            let found = shard.find(hash, SPACE, &key).map(|id| shard.get(id));
            let value = found.map(|found| found.stored.as_slice());
            let expected = [number as u8; 100];
            assert_eq!(
                value,
                (number % 13 == 0).then_some(&expected[..]),
                "{number}"
            );
        }
    }
}

#[test]
fn a_scan_visits_what_stays_whatever_else_happens() {
    let tier = tier(64 << 20, LruMode::Approximate);
    for number in 0..10_000 {
        put(&tier, &key_of(number), &[0; 10], 0);
    }
    let mut seen = HashSet::new();
    let mut cursor = 0;
    let mut pages = 0_u32;
    loop {
        let mut visited = 0;
        cursor = tier.scan(cursor, 50, |found| {
            visited += 1;
            seen.insert(found.key.to_vec());
        });
        assert!(visited <= 50);
        if cursor == 0 {
            break;
        }
        // Of the stayers (even numbers) each is overwritten at times; odd ones go, others come.
        for step in 0..30 {
            let number = (pages * 31 + step * 7) % 10_000;
            if number.is_multiple_of(2) {
                put(&tier, &key_of(number), &[1; 500], 0);
            } else {
                let key = key_of(number);
                let hash = tier.hash(SPACE, &key);
                let mut shard = tier.lock(hash);
                if let Some(id) = shard.find(hash, SPACE, &key) {
                    shard.remove(id);
                }
            }
            put(&tier, &key_of(20_000 + pages * 30 + step), &[0; 10], 0);
        }
        pages += 1;
        assert!(pages < 2_000, "the scan ends");
    }
    for number in (0..10_000).step_by(2) {
        assert!(seen.contains(&key_of(number)[..]), "{number}");
    }
}

#[test]
fn a_scan_takes_any_cursor_and_skips_tombstones() {
    let tier = tier(1 << 20, LruMode::Approximate);
    let hash = tier.hash(SPACE, b"gone");
    tier.lock(hash)
        .insert_tombstone(hash, SPACE, b"gone", 1)
        .unwrap();
    put(&tier, b"here", b"", 0);
    assert_eq!(all_keys(&tier), HashSet::from([b"here".to_vec()]));
    for cursor in [
        1,
        u64::MAX,
        5 << 32 | 3,
        u64::from(u32::MAX),
        15 << 32 | 0xFFFF_FFFF,
    ] {
        let mut cursor = tier.scan(cursor, 0, |_| ());
        for _ in 0..1_000 {
            if cursor == 0 {
                break;
            }
            cursor = tier.scan(cursor, 1, |_| ());
        }
        assert_eq!(cursor, 0);
    }
}

#[test]
fn the_sweep_removes_what_has_expired_and_is_on_disk() {
    let tier = tier(4 << 20, LruMode::Approximate);
    for number in 0..3_000_u32 {
        let key = key_of(number);
        let expires_at_ms = u64::from(number % 3) * 1_000;
        let meta = Meta::new(1, 0, expires_at_ms);
        let dirty = number % 30 == 1;
        put_entry(
            &tier,
            NewEntry {
                meta,
                dirty,
                ..entry(&key, b"v", 1)
            },
            0,
        )
        .unwrap();
    }
    let sweep = |now_ms, limit| -> usize {
        (0..tier.shard_count())
            .map(|index| tier.sweep_expired(index, now_ms, limit))
            .sum()
    };
    assert_eq!(sweep(999, 1_000), 0);
    let mut removed = 0;
    let mut rounds = 0;
    while removed < 900 {
        removed += sweep(1_000, 20);
        rounds += 1;
        assert!(rounds < 60, "{removed} were removed");
    }
    assert!(rounds > 5, "each round looks at 20 slots of a shard only");
    assert_eq!((0..30).map(|_| sweep(1_000, 100)).sum::<usize>(), 0);
    assert_eq!(tier.len(), 2_100);
    assert_eq!((0..30).map(|_| sweep(2_000, 100)).sum::<usize>(), 1_000);
    assert_eq!(tier.stats().counters.expired, 1_900);
    assert_eq!(tier.stats().dirty, 100);
}

#[test]
fn random_keys_are_of_the_space_and_alive() {
    let tier = tier(4 << 20, LruMode::Approximate);
    assert_eq!(tier.random(1, SPACE, 0), None);
    for number in 0..200 {
        let key = key_of(number);
        let space = Space(if number < 50 { 3 } else { 4 });
        put_entry(
            &tier,
            NewEntry {
                space,
                ..entry(&key, b"v", 1)
            },
            0,
        )
        .unwrap();
    }
    let expired = NewEntry {
        meta: Meta::new(1, 0, 10),
        space: Space(3),
        ..entry(b"late", b"", 1)
    };
    put_entry(&tier, expired, 0).unwrap();
    let mut met = HashSet::new();
    let mut seed = 1_u64;
    for _ in 0..5_000 {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(0xDA3E_39CB_94B9_5BDB);
        met.insert(tier.random(seed ^ seed >> 32, Space(3), 10).unwrap());
    }
    let expected: HashSet<Vec<u8>> = (0..50).map(|number| key_of(number).to_vec()).collect();
    assert!(met.is_subset(&expected));
    assert!(met.len() > 40, "{} of 50 keys were met", met.len());
    assert_eq!(tier.random(7, Space(5), 0), None);
    assert_eq!(
        (
            tier.len_of(Space(3)),
            tier.len_of(Space(4)),
            tier.len_of(Space(5))
        ),
        (51, 150, 0)
    );
}

#[test]
fn the_hash_depends_on_seed_space_and_key() {
    let one = tier(1 << 20, LruMode::Strict);
    let other = RamTier::new(RamOptions {
        budget_bytes: 1 << 20,
        lru: LruMode::Strict,
        hash_seed: 43,
    });
    let hashes = HashMap::from([
        (one.hash(SPACE, b"key"), 0),
        (one.hash(Space(1), b"key"), 1),
        (one.hash(SPACE, b"kez"), 2),
        (other.hash(Space(2), b"key"), 3),
    ]);
    assert_eq!(hashes.len(), 4);
}
