//! The tier against a map and a list of keys by recency.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use fonn_proto::WriterId;

use super::*;

const BUDGET: usize = 24 << 10;

#[derive(Clone, Debug)]
enum Op {
    Insert {
        key: u8,
        len: usize,
        dirty: bool,
        framed: bool,
        flags: u32,
        cas: Option<u64>,
        stale: bool,
        expires: bool,
    },
    Tombstone {
        key: u8,
    },
    Use {
        key: u8,
    },
    Remove {
        key: u8,
    },
    TokenSent {
        key: u8,
    },
    Clean {
        key: u8,
    },
    CleanOldVersion {
        key: u8,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0_u8..40;
    let len = prop_oneof![6 => 0_usize..300, 3 => 300_usize..4_200, 1 => 4_090_usize..6_000];
    let flags = prop_oneof![Just(0), any::<u32>()];
    let cas = prop::option::of(any::<u64>());
    prop_oneof![
        6 => (
            key.clone(),
            len,
            prop::bool::weighted(0.3),
            any::<bool>(),
            flags,
            cas,
            any::<bool>(),
            any::<bool>(),
        )
            .prop_map(|(key, len, dirty, framed, flags, cas, stale, expires)| {
                Op::Insert { key, len, dirty, framed, flags, cas, stale, expires }
            }),
        1 => key.clone().prop_map(|key| Op::Tombstone { key }),
        4 => key.clone().prop_map(|key| Op::Use { key }),
        1 => key.clone().prop_map(|key| Op::Remove { key }),
        1 => key.clone().prop_map(|key| Op::TokenSent { key }),
        4 => key.clone().prop_map(|key| Op::Clean { key }),
        1 => key.prop_map(|key| Op::CleanOldVersion { key }),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    value: Vec<u8>,
    meta: Meta,
    framed: bool,
    dirty: bool,
    tombstone: bool,
    fetched: bool,
    last_used_s: u32,
}

/// What the tier should hold. `order` has the least recently used key first; entries that the
/// evictor passed because they were dirty are not in it.
#[derive(Default)]
struct Model {
    entries: HashMap<u8, Entry>,
    order: VecDeque<u8>,
}

/// Keys of different lengths, the first byte telling which.
fn key_bytes(key: u8) -> Vec<u8> {
    vec![key; 1 + usize::from(key) * 3]
}

impl Model {
    fn use_now(&mut self, key: u8) {
        self.order.retain(|&other| other != key);
        self.order.push_back(key);
    }

    fn remove(&mut self, key: u8) {
        self.order.retain(|&other| other != key);
        self.entries.remove(&key);
    }

    /// The key to evict next; dirty ones before it are set aside.
    fn victim(&mut self) -> Option<u8> {
        while let Some(key) = self.order.pop_front() {
            if !self.entries[&key].dirty {
                return Some(key);
            }
        }
        None
    }

    fn clean(&mut self, key: u8) -> bool {
        let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.dirty) else {
            return false;
        };
        entry.dirty = false;
        if entry.tombstone {
            self.remove(key);
        } else if !self.order.contains(&key) {
            self.order.push_front(key);
        }
        true
    }
}

struct Pair {
    tier: RamTier,
    lru: LruMode,
    model: Model,
    version: u64,
    now_s: u32,
}

impl Pair {
    fn new(lru: LruMode) -> Self {
        Self {
            tier: tier(BUDGET, lru),
            lru,
            model: Model::default(),
            version: 0,
            now_s: 0,
        }
    }

    fn apply(&mut self, op: &Op) {
        self.version += 1;
        self.now_s += 1;
        let (version, now_s) = (self.version, self.now_s);
        let key = match *op {
            Op::Insert { key, .. }
            | Op::Tombstone { key }
            | Op::Use { key }
            | Op::Remove { key }
            | Op::TokenSent { key }
            | Op::Clean { key }
            | Op::CleanOldVersion { key } => key,
        };
        let bytes = key_bytes(key);
        let hash = self.tier.hash(SPACE, &bytes);
        let mut shard = self.tier.lock(hash);
        let found = shard.find(hash, SPACE, &bytes);
        assert_eq!(found.is_some(), self.model.entries.contains_key(&key));
        let known = self.model.entries.get_mut(&key);
        match *op {
            Op::Insert {
                len,
                dirty,
                framed,
                flags,
                cas,
                stale,
                expires,
                ..
            } => {
                let value = vec![version as u8; len];
                let meta = Meta {
                    cas_override: cas,
                    stale,
                    token_sent: flags & 2 != 0,
                    writer: WriterId::new(flags & 1),
                    ..Meta::new(version, flags, if expires { version * 1000 } else { 0 })
                };
                let new = NewEntry {
                    meta,
                    framed,
                    dirty,
                    ..entry(&bytes, &value, version)
                };
                let id = shard.insert(hash, new, now_s).unwrap();
                assert!(
                    found.is_none_or(|old| old == id),
                    "an overwrite keeps its slot"
                );
                self.model.entries.insert(
                    key,
                    Entry {
                        value,
                        meta,
                        framed,
                        dirty,
                        tombstone: false,
                        fetched: false,
                        last_used_s: now_s,
                    },
                );
                self.model.use_now(key);
            }
            Op::Tombstone { .. } => {
                shard
                    .insert_tombstone(hash, SPACE, &bytes, version)
                    .unwrap();
                self.model.remove(key);
                self.model.entries.insert(
                    key,
                    Entry {
                        value: Vec::new(),
                        meta: meta(version),
                        framed: false,
                        dirty: true,
                        tombstone: true,
                        fetched: false,
                        last_used_s: 0,
                    },
                );
            }
            Op::Use { .. } => {
                if let (Some(id), Some(entry)) = (found, known) {
                    shard.touch_use(id, now_s);
                    if !entry.tombstone {
                        (entry.fetched, entry.last_used_s) = (true, now_s);
                        self.model.use_now(key);
                    }
                }
            }
            Op::Remove { .. } => {
                found.into_iter().for_each(|id| shard.remove(id));
                self.model.remove(key);
            }
            Op::TokenSent { .. } => {
                if let (Some(id), Some(entry)) = (found, known)
                    && !entry.tombstone
                {
                    shard.set_token_sent(id);
                    entry.meta.token_sent = true;
                }
            }
            Op::Clean { .. } => {
                let version = known.map_or(0, |entry| entry.meta.version);
                let cleaned = shard.clear_dirty_if_version(hash, SPACE, &bytes, version);
                assert_eq!(cleaned, self.model.clean(key));
            }
            Op::CleanOldVersion { .. } => {
                let version = known.map_or(0, |entry| entry.meta.version - 1);
                assert!(!shard.clear_dirty_if_version(hash, SPACE, &bytes, version));
            }
        }
        drop(shard);
        self.evict(hash);
        self.check();
    }

    fn evict(&mut self, hash: u64) {
        if self.lru == LruMode::Approximate {
            let evicted = self
                .tier
                .evict_to_budget(Some(hash), self.now_s, usize::MAX);
            let keys = all_keys(&self.tier);
            let gone: Vec<u8> = self
                .model
                .entries
                .iter()
                .filter(|&(&key, entry)| !entry.tombstone && !keys.contains(&key_bytes(key)))
                .map(|(&key, entry)| {
                    assert!(!entry.dirty, "a dirty entry was evicted");
                    key
                })
                .collect();
            assert_eq!(gone.len(), evicted.entries);
            gone.into_iter().for_each(|key| self.model.remove(key));
            return;
        }
        // One at a time, so that each has its reason.
        while self.tier.used() > BUDGET {
            let evicted = self.tier.evict_to_budget(Some(hash), self.now_s, 1);
            let victim = self.model.victim();
            assert_eq!(evicted.entries, usize::from(victim.is_some()));
            let Some(victim) = victim else { break };
            assert!(
                !is_there(&self.tier, &key_bytes(victim)),
                "{victim} was next"
            );
            self.model.remove(victim);
        }
        assert_eq!(
            self.tier
                .evict_to_budget(Some(hash), self.now_s, usize::MAX)
                .entries,
            0
        );
    }

    fn check(&self) {
        let model = &self.model.entries;
        for key in 0..40 {
            let bytes = key_bytes(key);
            let hash = self.tier.hash(SPACE, &bytes);
            let shard = self.tier.lock(hash);
            let found = shard.find(hash, SPACE, &bytes).map(|id| {
                let found = shard.get(id);
                assert_eq!((found.space, found.key), (SPACE, &bytes[..]));
                Entry {
                    value: found.stored.as_slice().to_vec(),
                    meta: found.meta,
                    framed: found.framed,
                    dirty: found.dirty,
                    tombstone: found.tombstone,
                    fetched: found.fetched,
                    last_used_s: found.last_used_s,
                }
            });
            assert_eq!(found.as_ref(), model.get(&key), "key {key}");
        }
        let stats = self.tier.stats();
        assert_eq!(
            stats.entries,
            model.values().filter(|entry| !entry.tombstone).count()
        );
        assert_eq!(
            stats.tombstones,
            model.values().filter(|entry| entry.tombstone).count()
        );
        assert_eq!(
            stats.dirty,
            model.values().filter(|entry| entry.dirty).count()
        );
        assert_eq!(self.tier.len_of(SPACE), stats.entries);
        let is_over = stats.used_bytes > BUDGET;
        assert!(
            !is_over || model.values().all(|entry| entry.dirty),
            "clean ones could go"
        );
        let bytes: usize = model
            .iter()
            .map(|(&key, entry)| key_bytes(key).len() + entry.value.len())
            .sum();
        assert!(stats.used_bytes >= bytes);
    }

    fn check_end(self) {
        assert_eq!(remove_all(&self.tier), self.model.entries.len());
        assert_eq!(
            self.tier.stats().used_bytes,
            0,
            "nothing is left to account for"
        );
        assert_eq!(self.tier.stats().dirty, 0);
    }
}

fn run(lru: LruMode, ops: &[Op]) {
    let mut pair = Pair::new(lru);
    ops.iter().for_each(|op| pair.apply(op));
    pair.check_end();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20),
        ..ProptestConfig::default()
    })]

    #[test]
    fn strict_evicts_in_exact_order_and_holds_what_was_written(
        ops in prop::collection::vec(op(), 1..250)
    ) {
        run(LruMode::Strict, &ops);
    }

    #[test]
    fn approximate_evicts_only_clean_entries_and_holds_what_was_written(
        ops in prop::collection::vec(op(), 1..250)
    ) {
        run(LruMode::Approximate, &ops);
    }
}
