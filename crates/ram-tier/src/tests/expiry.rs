//! Entries that gain, change and lose an expiry.

use super::*;

const KEY: &[u8] = &[b'k'; 16];
const VALUE: &[u8] = &[b'v'; 100];

fn expiring(version: u64, expires_at_ms: u64) -> NewEntry<'static> {
    NewEntry {
        meta: Meta::new(version, 0, expires_at_ms),
        ..entry(KEY, VALUE, version)
    }
}

/// The expiry of the entry, whose value must be whole.
fn expiry_of(tier: &RamTier) -> u64 {
    let hash = tier.hash(SPACE, KEY);
    let shard = tier.lock(hash);
    let found = shard.get(shard.find(hash, SPACE, KEY).unwrap());
    assert_eq!((found.key, found.stored.as_slice()), (KEY, VALUE));
    found.meta.expires_at_ms
}

/// Changes the expiry alone, as a touch does: the entry is written anew.
fn touch_expiry(tier: &RamTier, expires_at_ms: u64) {
    let hash = tier.hash(SPACE, KEY);
    let mut shard = tier.lock(hash);
    let found = shard.get(shard.find(hash, SPACE, KEY).unwrap());
    let version = found.meta.version;
    let touched = NewEntry {
        stored: StoredIn::Shared(found.stored.to_bytes()),
        ..expiring(version, expires_at_ms)
    };
    shard.insert(hash, touched, 0).unwrap();
}

fn sweep(tier: &RamTier, now_ms: u64) -> usize {
    let shards = 0..tier.shard_count();
    shards.map(|it| tier.sweep_expired(it, now_ms, 1000)).sum()
}

/// Where the payload lies.
fn place(tier: &RamTier) -> usize {
    let hash = tier.hash(SPACE, KEY);
    let shard = tier.lock(hash);
    let found = shard.get(shard.find(hash, SPACE, KEY).unwrap());
    found.key.as_ptr() as usize
}

#[test]
fn an_expiry_costs_eight_bytes_and_an_entry_without_one_nothing() {
    let with = tier(1 << 20, LruMode::Approximate);
    let without = tier(1 << 20, LruMode::Approximate);
    put_entry(&with, expiring(1, 50), 0).unwrap();
    put_entry(&without, expiring(1, 0), 0).unwrap();
    let more = with.used() - without.used();
    assert!((8..=9).contains(&more), "{more} bytes more");
}

#[test]
fn a_touch_gives_changes_and_takes_an_expiry() {
    let tier = tier(1 << 20, LruMode::Approximate);
    put_entry(&tier, expiring(1, 0), 0).unwrap();
    let used = tier.used();
    for (at_ms, now_ms) in [(50, 49), (u64::MAX, u64::MAX - 1), (70, 69), (0, u64::MAX)] {
        touch_expiry(&tier, at_ms);
        assert_eq!(expiry_of(&tier), at_ms);
        assert_eq!(sweep(&tier, now_ms), 0);
        assert_eq!(expiry_of(&tier), at_ms);
    }
    assert_eq!(tier.used(), used, "what the expiry took came back");
    touch_expiry(&tier, 90);
    assert_eq!(sweep(&tier, 90), 1);
    assert_eq!(tier.used(), 0);
}

#[test]
fn a_change_of_the_expiry_and_a_set_alike_keep_their_place() {
    let tier = tier(1 << 20, LruMode::Approximate);
    for expiries in [[0, 0, 0], [50, 60, 70]] {
        put_entry(&tier, expiring(1, expiries[0]), 0).unwrap();
        let before = place(&tier);
        put_entry(&tier, expiring(2, expiries[1]), 1).unwrap();
        assert_eq!(expiry_of(&tier), expiries[1]);
        touch_expiry(&tier, expiries[2]);
        assert_eq!(expiry_of(&tier), expiries[2]);
        assert_eq!(place(&tier), before);
    }
}

#[test]
fn a_set_leaves_no_expiry_of_the_value_before() {
    let tier = tier(1 << 20, LruMode::Approximate);
    for expires_at_ms in [50, 0, 60, 0] {
        put_entry(&tier, expiring(1, expires_at_ms), 0).unwrap();
        assert_eq!(expiry_of(&tier), expires_at_ms);
        assert_eq!(sweep(&tier, 49), 0);
    }
    assert_eq!(sweep(&tier, u64::MAX), 0);
}

#[test]
fn a_value_that_is_shared_has_an_expiry_too() {
    let tier = tier(1 << 20, LruMode::Approximate);
    let value = vec![7; INLINE_LEN_MAX + 1];
    let new = NewEntry {
        stored: StoredIn::Slice(&value),
        ..expiring(1, 50)
    };
    put_entry(&tier, new, 0).unwrap();
    let hash = tier.hash(SPACE, KEY);
    for expires_at_ms in [60, 0, 70] {
        touch_expiry(&tier, expires_at_ms);
        let shard = tier.lock(hash);
        let found = shard.get(shard.find(hash, SPACE, KEY).unwrap());
        assert_eq!(found.stored.as_slice(), value);
        assert_eq!(found.meta.expires_at_ms, expires_at_ms);
    }
    assert_eq!(sweep(&tier, 70), 1);
    assert_eq!(tier.used(), 0);
}
