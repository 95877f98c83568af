//! From hash to slot id: buckets of one line of the processor's cache, of twelve ids each.
//!
//! A lookup reads the line of its bucket and compares the tags, a byte of each hash. So the line,
//! and then the slot of the right id, can be asked for ahead ([`Table::prefetch`]). An id whose
//! bucket is full lies in one of the next buckets. Each bucket counts the ids that passed it by:
//! while there is none, a lookup ends there.
//!
//! The hash is not kept but computed again from the key when a table grows. A table is split into
//! parts that grow one at a time, so that no write waits for the entries of a whole shard to move:
//! that took some milliseconds, for which the shard was locked. The number of parts follows that of
//! the ids, because many parts of a few ids each waste memory. Parts split one after the other,
//! each into itself and a new part (W. Litwin, "Linear Hashing", 1980).

use fonn_base::prefetch::prefetch;
use smallvec::SmallVec;

use super::cost;

/// Ids in a bucket.
const WAYS: usize = 12;

/// A part grows when more than this of its places is taken.
const FULL: (usize, usize) = (7, 8);

/// Parts have a multiple of so many buckets. They take as much as a chunk of slots does, so the
/// memory that a part leaves when it grows serves those, whole.
const STEP: usize = 24;

/// Ids for each part, on average. A part has half to twice as many, and moves them in less than a
/// millisecond.
const PART_LEN: usize = 4096;

/// Ids that are hashed at a time when they move.
const BATCH: usize = 16;

/// The part is chosen by hash bits that the part itself uses neither for the place (the lower half)
/// nor for the tag (the highest eight), and by which no shard is chosen.
const PART_SHIFT: u32 = 32;

/// The most parts that those bits tell apart.
const PARTS_MAX: usize = 1 << (super::SHARD_SHIFT - PART_SHIFT);

const TAG_SHIFT: u32 = 56;

const _: () = assert!(super::SHARD_SHIFT + super::SHARDS_MAX.ilog2() <= TAG_SHIFT);

/// The tag of an empty place.
const EMPTY: u8 = 0;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u8; WAYS],
    /// Ids that lie behind this bucket, and would lie here or before it if there were room. It
    /// stays at its greatest value once it was reached.
    passed: u32,
    ids: [u32; WAYS],
}

const _: () = assert!(size_of::<Bucket>() == 64, "a bucket is one line");

/// The places whose tag is that of a hash, from the first on.
struct Matches(u128);

impl Iterator for Matches {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(bit as usize / 8)
    }
}

impl Bucket {
    const NEW: Self = Self {
        tags: [EMPTY; WAYS],
        passed: 0,
        ids: [0; WAYS],
    };

    /// The places with a tag, of which no other has any. From "Bit Twiddling Hacks" of S. E.
    /// Anderson, "Determine if a word has a zero byte", in the form without false matches.
    #[inline]
    fn with_tag(&self, tag: u8) -> Matches {
        const LOW: u128 = u128::from_le_bytes([0x7f; 16]);
        let mut bytes = [!tag; 16];
        bytes[..WAYS].copy_from_slice(&self.tags);
        let differing = u128::from_le_bytes(bytes) ^ u128::from_le_bytes([tag; 16]);
        Matches(!(((differing & LOW) + LOW) | differing | LOW))
    }
}

#[derive(Debug, Default)]
struct Part {
    buckets: Box<[Bucket]>,
    len: usize,
}

#[inline]
fn tag_of(hash: u64) -> u8 {
    ((hash >> TAG_SHIFT) as u8).max(EMPTY + 1)
}

impl Part {
    /// An empty part of at least `count` buckets.
    fn with_buckets(count: usize) -> Self {
        let count = count.next_multiple_of(STEP);
        Self {
            buckets: vec![Bucket::NEW; count].into_boxed_slice(),
            len: 0,
        }
    }

    /// How many ids it takes before it grows.
    fn capacity(&self) -> usize {
        self.buckets.len() * WAYS * FULL.0 / FULL.1
    }

    /// The number of the bucket of a hash: the lower half of the hash, as a fraction of the part
    /// (D. Lemire, "Fast Random Integer Generation in an Interval", 2019).
    #[inline]
    fn home(&self, hash: u64) -> usize {
        let fraction = hash & u64::from(u32::MAX);
        (fraction.wrapping_mul(self.buckets.len() as u64) >> 32) as usize
    }

    /// The buckets in which an id of the hash may lie, from its own on, each once.
    #[inline]
    fn path(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let (home, count) = (self.home(hash), self.buckets.len());
        (home..count).chain(0..home)
    }

    /// The place of the id under `hash` that `is_it` accepts: its bucket, and its number there.
    #[inline]
    fn place(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        let tag = tag_of(hash);
        for at in self.path(hash) {
            let bucket = &self.buckets[at];
            let found = bucket.with_tag(tag).find(|&way| is_it(bucket.ids[way]));
            if let Some(way) = found {
                return Some((at, way));
            }
            if bucket.passed == 0 {
                break;
            }
        }
        None
    }

    /// Adds an id, and grows if there is no room for it.
    fn insert(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        if self.len == self.capacity() {
            let count = self.buckets.len();
            self.resize(count + (count / 4).max(1), hash_of);
        }
        self.add(hash, id);
    }

    /// Adds an id; there is room for it.
    fn add(&mut self, hash: u64, id: u32) {
        for at in self.path(hash) {
            let bucket = &mut self.buckets[at];
            if let Some(way) = bucket.with_tag(EMPTY).next() {
                bucket.tags[way] = tag_of(hash);
                bucket.ids[way] = id;
                self.len += 1;
                return;
            }
            bucket.passed = bucket.passed.saturating_add(1);
        }
    }

    fn take(&mut self, hash: u64, id: u32) {
        let Some((at, way)) = self.place(hash, |other| other == id) else {
            return;
        };
        self.buckets[at].tags[way] = EMPTY;
        self.len -= 1;
        for passed in self.path(hash).take_while(|&it| it != at) {
            let bucket = &mut self.buckets[passed];
            if bucket.passed < u32::MAX {
                bucket.passed -= 1;
            }
        }
    }

    /// Moves all ids into at least `count` buckets.
    fn resize(&mut self, count: usize, hash_of: impl Fn(u32) -> u64) {
        let old = std::mem::replace(self, Self::with_buckets(count));
        old.for_each(hash_of, |hash, id| self.add(hash, id));
    }

    /// Calls `visit` for each id with its hash.
    ///
    /// The keys of several ids are hashed at a time. Each key has to come from memory, and the
    /// processor waits for several of them at once only if nothing in between depends on one.
    fn for_each(&self, hash_of: impl Fn(u32) -> u64, mut visit: impl FnMut(u64, u32)) {
        let places = |bucket: &Bucket| std::iter::zip(bucket.tags, bucket.ids);
        let places = self.buckets.iter().flat_map(places);
        let mut ids = places.filter_map(|(tag, id)| (tag != EMPTY).then_some(id));
        loop {
            let batch: SmallVec<[u32; BATCH]> = ids.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return;
            }
            let hashes: SmallVec<[u64; BATCH]> = batch.iter().map(|&id| hash_of(id)).collect();
            std::iter::zip(hashes, batch).for_each(|(hash, id)| visit(hash, id));
        }
    }

    fn bytes(&self) -> usize {
        cost::allocation(size_of_val::<[Bucket]>(&self.buckets))
    }
}

/// Slot ids by the hashes of their keys.
#[derive(Debug)]
pub(super) struct Table {
    /// Never empty.
    parts: Vec<Part>,
    len: usize,
    bytes: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            parts: vec![Part::default()],
            len: 0,
            bytes: 0,
        }
    }
}

impl Table {
    /// The part of a hash. The bits name a part among a power of two of them. A part that is yet to
    /// come is still in the part that it will split from.
    #[inline]
    fn index(&self, hash: u64) -> usize {
        let size = self.parts.len().next_power_of_two();
        let at = (hash >> PART_SHIFT) as usize & (size - 1);
        if at < self.parts.len() {
            at
        } else {
            at - size / 2
        }
    }

    /// The id under `hash` that `is_it` accepts.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let part = &self.parts[self.index(hash)];
        let (at, way) = part.place(hash, is_it)?;
        Some(part.buckets[at].ids[way])
    }

    /// Has the processor fetch what a lookup reads first.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let part = &self.parts[self.index(hash)];
        if let Some(bucket) = part.buckets.get(part.home(hash)) {
            prefetch(bucket);
        }
    }

    /// The id that a lookup looks at first; mostly it is the right one.
    #[inline]
    pub fn first(&self, hash: u64) -> Option<u32> {
        let part = &self.parts[self.index(hash)];
        let bucket = part.buckets.get(part.home(hash))?;
        let way = bucket.with_tag(tag_of(hash)).next()?;
        Some(bucket.ids[way])
    }

    /// Adds an id that is not there. `hash_of` gives the hash of each id.
    pub fn insert(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        if self.len >= self.parts.len() * PART_LEN && self.parts.len() < PARTS_MAX {
            self.split(&hash_of);
        }
        self.len += 1;
        self.add(hash, id, hash_of);
    }

    fn add(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        let at = self.index(hash);
        let part = &mut self.parts[at];
        let before = part.bytes();
        part.insert(hash, id, hash_of);
        self.bytes = self.bytes + part.bytes() - before;
    }

    /// Adds a part, and moves into it the ids whose bits name it.
    fn split(&mut self, hash_of: impl Fn(u32) -> u64) {
        let from = self.parts.len() - (1 << self.parts.len().ilog2());
        let half = || Part::with_buckets(self.parts[from].buckets.len() / 2 + 1);
        let (new, rest) = (half(), half());
        self.bytes += new.bytes() + rest.bytes();
        self.parts.push(new);
        let old = std::mem::replace(&mut self.parts[from], rest);
        self.bytes -= old.bytes();
        old.for_each(&hash_of, |hash, id| self.add(hash, id, &hash_of));
    }

    /// Removes an id, and gives back memory that a part which was much fuller holds.
    pub fn remove(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        let at = self.index(hash);
        let part = &mut self.parts[at];
        let (len, before) = (part.len, part.bytes());
        part.take(hash, id);
        self.len -= len - part.len;
        if part.len == 0 {
            *part = Part::default();
        } else if part.buckets.len() > STEP && part.len < part.capacity() / 8 {
            part.resize((2 * part.len).div_ceil(WAYS), hash_of);
        }
        self.bytes = self.bytes + part.bytes() - before;
    }

    /// Whether there is no id.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that the table takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn hash_of(id: u32) -> u64 {
        u64::from(id).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    #[test]
    fn a_write_moves_the_entries_of_one_part_at_most() {
        let mut table = Table::default();
        let moved = std::cell::Cell::new(0_u32);
        for id in 0..200_000 {
            moved.set(0);
            table.insert(hash_of(id), id, |other| {
                moved.set(moved.get() + 1);
                hash_of(other)
            });
            assert!(
                moved.get() < 4 * PART_LEN as u32,
                "{} of {id} moved",
                moved.get()
            );
        }
    }

    #[test]
    fn ids_are_found_until_they_are_removed_and_memory_comes_back() {
        let mut table = Table::default();
        for id in 0..10_000 {
            table.insert(hash_of(id), id, hash_of);
        }
        assert!(table.parts.len() > 2);
        let full = table.bytes();
        assert!(full >= 10_000 * 5);
        for id in 0..9_990 {
            assert_eq!(table.find(hash_of(id), |other| other == id), Some(id));
            table.remove(hash_of(id), id, hash_of);
            assert_eq!(table.find(hash_of(id), |other| other == id), None);
        }
        assert!(
            table.bytes() < full / 10,
            "{} of {full} bytes are left",
            table.bytes()
        );
        for id in 9_990..10_000 {
            assert_eq!(table.find(hash_of(id), |other| other == id), Some(id));
            table.remove(hash_of(id), id, hash_of);
        }
        assert!(table.is_empty());
        assert_eq!(table.bytes(), 0);
    }

    #[test]
    fn parts_are_filled_alike_and_leave_little_room() {
        let mut table = Table::default();
        let mut most = 0;
        for id in 0..100_000 {
            table.insert(hash_of(id), id, hash_of);
            let len = id as usize + 1;
            if len < 1_000 {
                continue;
            }
            assert_eq!(table.parts.len(), len.div_ceil(PART_LEN));
            assert!(table.parts.iter().all(|part| part.len < 5 * PART_LEN / 2));
            most = most.max(table.bytes() * 100 / len);
        }
        assert!(most < 880, "{most} hundredths of a byte for an id");
        let bytes: usize = table.parts.iter().map(Part::bytes).sum();
        assert_eq!(table.bytes(), bytes);
    }

    #[test]
    fn a_tag_is_found_in_its_places_alone() {
        let mut bucket = Bucket::NEW;
        bucket.tags = [1, 2, 3, 0, 2, 128, 129, 255, 254, 0, 2, 1];
        for tag in 0..=u8::MAX {
            let expected = bucket.tags.iter().enumerate();
            let expected = expected.filter(|&(_, it)| *it == tag).map(|(way, _)| way);
            let found: Vec<_> = bucket.with_tag(tag).collect();
            assert_eq!(found, expected.collect::<Vec<_>>(), "{tag}");
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u32),
        Remove(u32),
    }

    proptest! {
        /// Few hashes, so that buckets overflow and paths wrap.
        #[test]
        fn it_has_what_a_map_has(
            hashes in 1_u64..40,
            steps in proptest::collection::vec(
                (any::<bool>(), 0_u32..400).prop_map(|(is_insert, id)| match is_insert {
                    true => Step::Insert(id),
                    false => Step::Remove(id),
                }),
                1..2000,
            ),
        ) {
            let hash_of = |id: u32| (u64::from(id) % hashes).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let (mut table, mut model) = (Table::default(), HashMap::new());
            for step in steps {
                match step {
                    Step::Insert(id) => {
                        if model.insert(id, ()).is_none() {
                            table.insert(hash_of(id), id, hash_of);
                        }
                    }
                    Step::Remove(id) => {
                        if model.remove(&id).is_some() {
                            table.remove(hash_of(id), id, hash_of);
                        }
                    }
                }
                prop_assert_eq!(table.is_empty(), model.is_empty());
            }
            for id in 0..400 {
                let found = table.find(hash_of(id), |other| other == id);
                prop_assert_eq!(found, model.contains_key(&id).then_some(id));
            }
        }
    }
}
