//! Lookups that are asked for ahead.

use super::*;

/// Of entries and tombstones of all lengths, of keys that are not there, and of one key twice.
#[test]
fn what_is_asked_for_ahead_is_found_as_before() {
    let tier = tier(32 << 20, LruMode::Approximate);
    let count = 20_000;
    let len = |number: u32| [0, 100, 1000, 5000][number as usize % 4];
    for number in 0..count {
        put(&tier, &key_of(number), &vec![7; len(number)], 1);
    }
    assert!(tier.used() > PREFETCH_BYTES_MIN);
    for number in (0..count).step_by(5) {
        let hash = tier.hash(SPACE, &key_of(number));
        let mut shard = tier.lock(hash);
        shard
            .insert_tombstone(hash, SPACE, &key_of(number), 2)
            .unwrap();
    }
    let found = |number: u32| {
        let hash = tier.hash(SPACE, &key_of(number));
        let shard = tier.lock(hash);
        let id = shard.find(hash, SPACE, &key_of(number))?;
        let found = shard.get(id);
        Some((found.tombstone, found.stored.as_slice().len()))
    };
    for from in (0..2 * count).step_by(16) {
        let before: Vec<_> = (from..from + 16).map(found).collect();
        let hashes = (from..from + 16).chain([from]);
        let hashes: Vec<_> = hashes.map(|it| tier.hash(SPACE, &key_of(it))).collect();
        tier.prefetch(&hashes);
        let after: Vec<_> = (from..from + 16).map(found).collect();
        assert_eq!(after, before);
    }
    remove_all(&tier);
    tier.prefetch(&[0, u64::MAX, 1 << 63]);
}
