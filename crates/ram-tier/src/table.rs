//! From hash to slot id: buckets of one line of the processor's cache, of twelve ids each.
//!
//! A lookup reads the line of its bucket and compares the tags, a byte of each hash. So the line,
//! and then the slot of the right id, can be asked for ahead ([`Table::prefetch`]). An id whose
//! bucket is full lies in one of the next buckets. Each bucket counts the ids that passed it by:
//! while there is none, a lookup ends there.
//!
//! The hash is not kept but computed again from the key when a table grows. A table is split into
//! parts that grow one at a time, so that no write waits for the entries of a whole shard to move:
//! that took some milliseconds, for which the shard was locked.

use fonn_base::prefetch::prefetch;

use super::cost;

/// Ids in a bucket.
const WAYS: usize = 12;

/// A part grows when more than this of its places is taken.
const FULL: (usize, usize) = (7, 8);

/// A part of fewer entries is not worth shrinking.
const SHRINK_MIN: usize = 64;

/// The part is chosen by hash bits that the part itself uses neither for the place (the lower half)
/// nor for the tag (the highest eight), and by which no shard is chosen.
const PART_SHIFT: u32 = super::SHARD_SHIFT - super::TABLE_PARTS.ilog2();

const TAG_SHIFT: u32 = 56;

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
    fn with_buckets(count: usize) -> Self {
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

    /// Moves all ids into `count` buckets.
    fn resize(&mut self, count: usize, hash_of: impl Fn(u32) -> u64) {
        let old = std::mem::replace(self, Self::with_buckets(count));
        for bucket in &old.buckets {
            for (&tag, &id) in bucket.tags.iter().zip(&bucket.ids) {
                if tag != EMPTY {
                    self.add(hash_of(id), id);
                }
            }
        }
    }

    fn bytes(&self) -> usize {
        cost::allocation(size_of_val::<[Bucket]>(&self.buckets))
    }
}

/// Slot ids by the hashes of their keys.
#[derive(Debug)]
pub(super) struct Table {
    /// A power of two.
    parts: Box<[Part]>,
    bytes: usize,
}

impl Table {
    /// An empty table of `parts` parts, a power of two.
    pub fn new(parts: usize) -> Self {
        Self {
            parts: std::iter::repeat_with(Part::default).take(parts).collect(),
            bytes: 0,
        }
    }

    #[inline]
    fn index(&self, hash: u64) -> usize {
        (hash >> PART_SHIFT) as usize & (self.parts.len() - 1)
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
        let part = &mut self.parts[self.index(hash)];
        if part.len == part.capacity() {
            let before = part.bytes();
            let count = part.buckets.len();
            part.resize(count + count / 2 + 1, hash_of);
            self.bytes = self.bytes + part.bytes() - before;
        }
        part.add(hash, id);
    }

    /// Removes an id, and gives back memory that a part which was much fuller holds.
    pub fn remove(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        let part = &mut self.parts[self.index(hash)];
        part.take(hash, id);
        let before = part.bytes();
        if part.len == 0 {
            *part = Part::default();
        } else if part.capacity() > SHRINK_MIN && part.len < part.capacity() / 8 {
            part.resize((2 * part.len).div_ceil(WAYS), hash_of);
        }
        self.bytes = self.bytes + part.bytes() - before;
    }

    /// Whether there is no id.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
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
        let mut table = Table::new(16);
        let moved = std::cell::Cell::new(0_u32);
        for id in 0..200_000 {
            moved.set(0);
            table.insert(hash_of(id), id, |other| {
                moved.set(moved.get() + 1);
                hash_of(other)
            });
            assert!(moved.get() < 16_000, "{} of {id} moved", moved.get());
        }
    }

    #[test]
    fn ids_are_found_until_they_are_removed_and_memory_comes_back() {
        for parts in [1, 16] {
            let mut table = Table::new(parts);
            for id in 0..10_000 {
                table.insert(hash_of(id), id, hash_of);
            }
            let full = table.bytes();
            assert!(full >= 10_000 * 5);
            for id in 0..9_990 {
                assert_eq!(table.find(hash_of(id), |other| other == id), Some(id));
                table.remove(hash_of(id), id, hash_of);
                assert_eq!(table.find(hash_of(id), |other| other == id), None);
            }
            assert!(
                table.bytes() < full / 20,
                "{} of {full} bytes are left",
                table.bytes()
            );
            for id in 9_990..10_000 {
                assert_eq!(table.find(hash_of(id), |other| other == id), Some(id));
                table.remove(hash_of(id), id, hash_of);
            }
            assert!(table.is_empty());
        }
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
            let (mut table, mut model) = (Table::new(2), HashMap::new());
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
