//! One shard: a table of slot ids, the slots, their payloads and shared values, the recency list.
//!
//! Invariants, outside of a method's run:
//! - `table` holds the id of every taken slot, under the hash of its key;
//! - the recency lists hold entries only, each its own (`owners.rs`): clean ones always, dirty ones
//!   until the evictor has passed them, tombstones never;
//! - `used` is what all of it takes from the budget.

mod ahead;

use std::sync::Arc;

use bytes::Bytes;
use fonn_base::entry::{Meta, Space};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::arena::{self, Arena};
use super::owners::{Allowance, ENTRY_OVERHEAD, Lists};
use super::payload::{self, Extras, Parts};
use super::recency::{Recency, Use};
use super::shared::SharedValues;
use super::slab::{Slab, Slot};
use super::state::{self, DIRTY, FACTS, FETCHED, FRAMED, HAS_EXPIRY, SHARED, TOMBSTONE};
use super::table::Table;
use super::{Counters, Found, INLINE_LEN_MAX, LruMode, NewEntry, Refused, Stored, StoredIn, cost};

/// The most dirty entries that one pass of the evictor sets aside. It bounds how long the pass
/// holds the lock.
const PASSED_MAX: usize = 64;

/// Where a value rests, before it has a slot.
enum Body<'a> {
    Inline(&'a [u8]),
    Shared(Bytes),
}

/// What one pass of the evictor over a shard came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pass {
    pub entries: usize,
    pub bytes: usize,
    /// The last use of the entry that the pass stopped at, because it was used too lately.
    pub next_age_s: Option<u32>,
    /// The pass stopped after setting aside as many dirty entries as one pass may.
    pub unfinished: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shard {
    seed: u64,
    table: Table,
    slab: Slab,
    arena: Arena,
    shared: SharedValues,
    recency: Lists,
    /// Bytes counted against the budget.
    pub used: usize,
    /// The part of `used` that is table and slots.
    structures: usize,
    /// Entries by space, sorted by space, without tombstones; no zeros.
    spaces: Vec<(Space, u32)>,
    pub entries: usize,
    pub tombstones: usize,
    /// Dirty entries and tombstones.
    pub dirty: usize,
    /// Where the expiry sweep goes on.
    sweep_at: u32,
    pub counters: Counters,
}

/// The hash of a key: the same in the tier and when a table grows.
pub(super) fn hash(seed: u64, space: Space, key: &[u8]) -> u64 {
    // The space is spread over the whole seed: for the shortest keys the hash is no more than a
    // permutation of key plus seed, where the same bits of both would make spaces collide.
    xxh3_64_with_seed(
        key,
        seed ^ u64::from(space.0).wrapping_mul(0x9E37_79B9_7F4A_7C15),
    )
}

fn hash_of(seed: u64, slab: &Slab, arena: &Arena, id: u32) -> u64 {
    let (space, key) = payload::address(arena.block(slab.at(id).block));
    hash(seed, space, key)
}

fn parts_of<'a>(arena: &'a Arena, slot: &Slot) -> Parts<'a> {
    payload::parts(arena.block(slot.block), slot.state)
}

fn shared_index(body: &[u8]) -> u32 {
    body.try_into().map_or(u32::MAX, u32::from_le_bytes)
}

fn extras_of(meta: &Meta) -> Extras {
    Extras {
        flags: meta.flags,
        writer: meta.writer,
        cas: meta.cas_override,
        expires_at_ms: meta.expires_at_ms,
    }
}

/// The state with the bits that come from the facts of an entry.
fn with_meta(word: u32, meta: &Meta) -> u32 {
    let word = state::with_bits(word, state::STALE, meta.stale);
    let word = state::with_bits(word, state::TOKEN_SENT, meta.token_sent);
    word & !FACTS | extras_of(meta).bits()
}

impl Shard {
    /// An empty shard.
    pub fn new(seed: u64, mode: LruMode) -> Self {
        Self {
            seed,
            table: Table::default(),
            slab: Slab::default(),
            arena: Arena::default(),
            shared: SharedValues::default(),
            recency: Lists::new(mode),
            used: 0,
            structures: 0,
            spaces: Vec::new(),
            entries: 0,
            tombstones: 0,
            dirty: 0,
            sweep_at: 0,
            counters: Counters::default(),
        }
    }

    pub fn find(&self, hash: u64, space: Space, key: &[u8]) -> Option<u32> {
        let (slab, arena) = (&self.slab, &self.arena);
        self.table.find(hash, |id| {
            payload::address(arena.block(slab.at(id).block)) == (space, key)
        })
    }

    /// The entry or tombstone in a taken slot.
    pub fn get(&self, id: u32) -> Found<'_> {
        self.found(self.slab.at(id))
    }

    /// As [`Shard::get`]; None for a slot that is free or out of range.
    pub fn get_if_taken(&self, id: u32) -> Option<Found<'_>> {
        self.slab.get(id).map(|slot| self.found(slot))
    }

    fn found(&self, slot: &Slot) -> Found<'_> {
        let parts = parts_of(&self.arena, slot);
        let has = |bit| state::has(slot.state, bit);
        Found {
            space: parts.space,
            key: parts.key,
            stored: if has(SHARED) {
                Stored::Shared(self.shared.at(shared_index(parts.body)))
            } else {
                Stored::Inline(parts.body)
            },
            meta: Meta {
                version: slot.version,
                cas_override: parts.extras.cas,
                flags: parts.extras.flags,
                expires_at_ms: parts.extras.expires_at_ms,
                stale: has(state::STALE),
                token_sent: has(state::TOKEN_SENT),
                writer: parts.extras.writer,
            },
            framed: has(FRAMED),
            dirty: has(DIRTY),
            tombstone: has(TOMBSTONE),
            fetched: has(FETCHED),
            last_used_s: parts.last_used_s,
        }
    }

    /// Writes an entry; see `ShardGuard::insert`.
    pub fn insert(
        &mut self,
        hash: u64,
        entry: NewEntry<'_>,
        now_s: u32,
        cost_max: usize,
    ) -> Result<u32, Refused> {
        let body = match entry.stored {
            StoredIn::Slice(bytes) if bytes.len() <= INLINE_LEN_MAX => Body::Inline(bytes),
            StoredIn::Shared(ref bytes) if bytes.len() <= INLINE_LEN_MAX => Body::Inline(bytes),
            StoredIn::Slice(bytes) => Body::Shared(Bytes::copy_from_slice(bytes)),
            StoredIn::Shared(ref bytes) => Body::Shared(bytes.clone()),
        };
        let value_cost = match &body {
            Body::Inline(bytes) => bytes.len(),
            Body::Shared(bytes) => cost::shared_value(bytes.len()),
        };
        if value_cost.saturating_add(arena::cost_of(entry.key.len())) > cost_max {
            return Err(Refused);
        }
        let index;
        let (body, shared) = match body {
            Body::Inline(bytes) => (bytes, None),
            Body::Shared(bytes) => {
                let at = self.shared.put(bytes).ok_or(Refused)?;
                self.used += value_cost;
                index = at.to_le_bytes();
                (&index[..], Some(at))
            }
        };
        let parts = Parts {
            last_used_s: now_s,
            space: entry.space,
            key: entry.key,
            body,
            extras: extras_of(&entry.meta),
        };
        let bits = [
            (SHARED, shared.is_some()),
            (FRAMED, entry.framed),
            (DIRTY, entry.dirty),
        ];
        let word = bits
            .into_iter()
            .fold(0, |word, (bit, on)| state::with_bits(word, bit, on));
        let word = with_meta(word, &entry.meta);
        match self.write(hash, &parts, entry.meta.version, word) {
            Ok(id) => {
                let space = entry.space;
                self.recency.of(|| space).insert(&mut self.slab, id, now_s);
                Ok(id)
            }
            Err(refused) => {
                self.used -= shared.map_or(0, |at| self.shared.remove(at));
                Err(refused)
            }
        }
    }

    /// Writes a tombstone; see `ShardGuard::insert_tombstone`.
    pub fn insert_tombstone(
        &mut self,
        hash: u64,
        space: Space,
        key: &[u8],
        version: u64,
    ) -> Result<u32, Refused> {
        let parts = Parts {
            last_used_s: 0,
            space,
            key,
            body: &[],
            extras: Extras::default(),
        };
        let id = self.write(hash, &parts, version, DIRTY | TOMBSTONE)?;
        self.recency.of(|| space).unlink(&mut self.slab, id);
        Ok(id)
    }

    /// Puts payload and state into the slot that the key has, or into a fresh one that is in no
    /// recency list. On an error nothing has changed.
    fn write(
        &mut self,
        hash: u64,
        parts: &Parts<'_>,
        version: u64,
        word: u32,
    ) -> Result<u32, Refused> {
        if u16::try_from(parts.key.len()).is_err() {
            return Err(Refused);
        }
        let len = parts.len();
        let known = self.find(hash, parts.space, parts.key);
        let reused = known
            .map(|id| self.slab.at(id).block)
            .filter(|&block| self.arena.fits(block, len));
        let block = match reused {
            Some(block) => block,
            None => self.arena.take(len).ok_or(Refused)?,
        };
        let id = match known {
            Some(id) => {
                self.uncount(id);
                id
            }
            None => match self.slab.take() {
                Some(id) => {
                    Recency::init_unlinked(&mut self.slab, id);
                    let (seed, slab, arena) = (self.seed, &self.slab, &self.arena);
                    self.table
                        .insert(hash, id, |other| hash_of(seed, slab, arena, other));
                    self.recount_structures();
                    id
                }
                None => {
                    self.arena.free(block);
                    return Err(Refused);
                }
            },
        };
        let slack = self.fill(block, parts);
        let slot = self.slab.at_mut(id);
        let old = std::mem::replace(&mut slot.block, block);
        slot.version = version;
        slot.state = state::with_slack(word, slack);
        self.count(id, parts.space);
        if known.is_some() && reused.is_none() {
            self.free_block(old);
        }
        Ok(id)
    }

    /// Writes a payload into a block, and returns how much longer the block is.
    fn fill(&mut self, block: u32, parts: &Parts<'_>) -> usize {
        let block = self.arena.block_mut(block);
        parts.write(block);
        block.len() - parts.len()
    }

    /// Frees a block that no slot holds any more, and empties a page if too little of it is taken.
    fn free_block(&mut self, block: u32) {
        let Some(page) = self.arena.free(block) else {
            return;
        };
        for old in self.arena.detach(page) {
            let (space, key) = payload::address(self.arena.block(old));
            let hash = hash(self.seed, space, key);
            let slab = &self.slab;
            let Some(id) = self.table.find(hash, |id| slab.at(id).block == old) else {
                continue;
            };
            let Some(new) = self.arena.relocate(old) else {
                break;
            };
            self.slab.at_mut(id).block = new;
        }
        self.arena.attach(page);
    }

    /// Takes a slot's contents into all counts.
    fn count(&mut self, id: u32, space: Space) {
        let slot = self.slab.at(id);
        self.used += self.arena.cost(slot.block);
        if state::has(slot.state, DIRTY) {
            self.dirty += 1;
        }
        if state::has(slot.state, TOMBSTONE) {
            self.tombstones += 1;
            return;
        }
        self.entries += 1;
        if self.recency.are_many() {
            self.recency.add(space, self.bytes_of(self.slab.at(id)));
        }
        match self
            .spaces
            .binary_search_by_key(&space, |&(space, _)| space)
        {
            Ok(at) => self.spaces[at].1 += 1,
            Err(at) => self.spaces.insert(at, (space, 1)),
        }
    }

    /// Takes a slot's contents out of all counts and lets go of its shared value.
    fn uncount(&mut self, id: u32) {
        let slot = self.slab.at(id);
        if self.recency.are_many() && !state::has(slot.state, TOMBSTONE) {
            let space = payload::space(self.arena.block(slot.block));
            self.recency.sub(space, self.bytes_of(slot));
        }
        self.used -= self.arena.cost(slot.block);
        if state::has(slot.state, SHARED) {
            let index = shared_index(parts_of(&self.arena, slot).body);
            self.used -= self.shared.remove(index);
        }
        if state::has(slot.state, DIRTY) {
            self.dirty -= 1;
        }
        if state::has(slot.state, TOMBSTONE) {
            self.tombstones -= 1;
            return;
        }
        self.entries -= 1;
        let space = payload::space(self.arena.block(slot.block));
        if let Ok(at) = self
            .spaces
            .binary_search_by_key(&space, |&(space, _)| space)
        {
            self.spaces[at].1 -= 1;
            if self.spaces[at].1 == 0 {
                self.spaces.remove(at);
            }
        }
    }

    /// Removes the entry or tombstone in a taken slot.
    pub fn remove(&mut self, id: u32) {
        let (seed, slab, arena) = (self.seed, &self.slab, &self.arena);
        let hash = hash_of(seed, slab, arena, id);
        self.table
            .remove(hash, id, |other| hash_of(seed, slab, arena, other));
        self.recency
            .of(|| payload::space(arena.block(slab.at(id).block)))
            .unlink(&mut self.slab, id);
        self.uncount(id);
        let block = self.slab.at(id).block;
        self.slab.free(id);
        self.free_block(block);
        if self.table.is_empty() {
            self.table = Table::default();
            self.slab = Slab::default();
            self.arena = Arena::default();
            self.shared = SharedValues::default();
        }
        self.recount_structures();
    }

    fn recount_structures(&mut self) {
        let structures = self.table.bytes() + self.slab.bytes();
        self.used = self.used + structures - self.structures;
        self.structures = structures;
    }

    pub fn set_token_sent(&mut self, id: u32) {
        self.slab.at_mut(id).state |= state::TOKEN_SENT;
    }

    /// Notes a use.
    pub fn touch_use(&mut self, id: u32, now_s: u32) {
        let slot = self.slab.at_mut(id);
        if state::has(slot.state, TOMBSTONE) {
            return;
        }
        let block = slot.block;
        slot.state |= FETCHED;
        let before_s = payload::last_used_s(self.arena.block(block));
        if before_s != now_s {
            payload::set_last_used_s(self.arena.block_mut(block), now_s);
        }
        let arena = &self.arena;
        self.recency
            .of(|| payload::space(arena.block(block)))
            .touch(&mut self.slab, id, Use { now_s, before_s });
    }

    /// The disk has caught up with a slot: a tombstone goes, an entry may be evicted again.
    pub fn clear_dirty(&mut self, id: u32) {
        let slot = self.slab.at_mut(id);
        if state::has(slot.state, TOMBSTONE) {
            self.remove(id);
        } else if state::has(slot.state, DIRTY) {
            slot.state &= !DIRTY;
            self.dirty -= 1;
            if !Recency::is_linked(&self.slab, id) {
                let (arena, block) = (&self.arena, self.slab.at(id).block);
                self.recency
                    .of(|| payload::space(arena.block(block)))
                    .link_at_tail(&mut self.slab, id);
            }
        }
    }

    /// Evicts from the tail until `bytes` are free, `entries` are gone, or the tail was used after
    /// `horizon_s`. Dirty entries are set aside until they are clean or used again.
    pub fn evict(&mut self, bytes: usize, entries: usize, horizon_s: u32) -> Pass {
        self.evict_from(bytes, entries, horizon_s, Self::oldest)
    }

    /// As [`Shard::evict`], entries of a namespace with a list of its own, whatever their age.
    pub fn evict_owned(&mut self, namespace: u32, bytes: usize, entries: usize) -> Pass {
        self.evict_from(bytes, entries, u32::MAX, |shard| {
            shard.recency.owned(namespace).and_then(Recency::tail)
        })
    }

    /// The entry at the tail of its list that was used least recently.
    fn oldest(&self) -> Option<u32> {
        let tails = self.recency.all().filter_map(Recency::tail);
        if !self.recency.are_many() {
            return tails.last();
        }
        tails.min_by_key(|&id| payload::last_used_s(self.arena.block(self.slab.at(id).block)))
    }

    fn evict_from(
        &mut self,
        bytes: usize,
        entries: usize,
        horizon_s: u32,
        tail: impl Fn(&Self) -> Option<u32>,
    ) -> Pass {
        let before = self.used;
        let mut pass = Pass::default();
        let mut passed = 0;
        while pass.entries < entries && before.saturating_sub(self.used) < bytes {
            let Some(id) = tail(self) else { break };
            let slot = self.slab.at(id);
            let (block, word) = (slot.block, slot.state);
            if state::has(word, DIRTY) {
                if passed == PASSED_MAX {
                    pass.unfinished = true;
                    break;
                }
                let arena = &self.arena;
                self.recency
                    .of(|| payload::space(arena.block(block)))
                    .unlink(&mut self.slab, id);
                passed += 1;
                continue;
            }
            let last_used_s = payload::last_used_s(self.arena.block(block));
            if last_used_s > horizon_s {
                pass.next_age_s = Some(last_used_s);
                break;
            }
            self.counters.evictions += 1;
            if !state::has(word, FETCHED) {
                self.counters.evicted_unfetched += 1;
            }
            let arena = &self.arena;
            self.recency
                .of(|| payload::space(arena.block(block)))
                .evict();
            self.remove(id);
            pass.entries += 1;
        }
        pass.bytes = before.saturating_sub(self.used);
        self.counters.evicted_bytes += pass.bytes as u64;
        pass
    }

    /// Gives these namespaces lists of their own, and no others. The order within each list stays,
    /// that between lists to the second.
    pub fn set_owners(&mut self, allowances: &[Arc<Allowance>]) {
        let mut linked = Vec::new();
        for list in self.recency.all() {
            let ids = std::iter::successors(list.tail(), |&id| Recency::newer(&self.slab, id));
            linked.extend(ids.map(|id| {
                (
                    payload::last_used_s(self.arena.block(self.slab.at(id).block)),
                    id,
                )
            }));
        }
        linked.sort_by_key(|&(last_used_s, _)| last_used_s);
        self.recency.reset(allowances);
        for (_, id) in linked {
            Recency::init_unlinked(&mut self.slab, id);
            let space = payload::space(self.arena.block(self.slab.at(id).block));
            self.recency.of(|| space).move_to_head(&mut self.slab, id);
        }
        let mut from = 0;
        while let Some(id) = self.slab.next_id(from) {
            from = id + 1;
            let Some(slot) = self.slab.get(id).copied() else {
                continue;
            };
            if !state::has(slot.state, TOMBSTONE) {
                let space = payload::space(self.arena.block(slot.block));
                self.recency.add(space, self.bytes_of(&slot));
            }
        }
    }

    /// Bytes that an entry takes, its part of table and slots included.
    fn bytes_of(&self, slot: &Slot) -> usize {
        let shared = if state::has(slot.state, SHARED) {
            let index = shared_index(parts_of(&self.arena, slot).body);
            cost::shared_value(self.shared.at(index).len())
        } else {
            0
        };
        self.arena.cost(slot.block) + shared + ENTRY_OVERHEAD
    }

    /// How many entries every space has, without tombstones.
    pub fn spaces(&self) -> &[(Space, u32)] {
        &self.spaces
    }

    /// Looks at `limit` slots, from where the last sweep ended, and removes clean expired entries.
    pub fn sweep_expired(&mut self, now_ms: u64, limit: usize) -> usize {
        let mut removed = 0;
        for _ in 0..limit {
            let Some(id) = self.slab.next_id(self.sweep_at) else {
                self.sweep_at = 0;
                break;
            };
            self.sweep_at = id + 1;
            let Some(slot) = self.slab.get(id) else {
                continue;
            };
            // Most entries have no expiry, and their payloads are left alone.
            if !state::has(slot.state, HAS_EXPIRY) || state::has(slot.state, DIRTY) {
                continue;
            }
            if parts_of(&self.arena, slot).extras.expires_at_ms <= now_ms {
                self.remove(id);
                removed += 1;
            }
        }
        self.counters.expired += removed as u64;
        removed
    }

    /// The first id that may be taken and is not below `id`.
    pub fn next_id(&self, id: u32) -> Option<u32> {
        self.slab.next_id(id)
    }

    /// An id picked by `seed`, to start a walk at.
    pub fn any_id(&self, seed: u64) -> u32 {
        self.slab.any_id(seed)
    }

    /// Entries of a space, without tombstones.
    pub fn len_of(&self, space: Space) -> usize {
        match self
            .spaces
            .binary_search_by_key(&space, |&(space, _)| space)
        {
            Ok(at) => self.spaces[at].1 as usize,
            Err(_) => 0,
        }
    }
}
