//! From hash to slot id. The hash is not kept but computed again from the key when a table grows,
//! which saves 5 bytes and more for each entry.
//!
//! A table is split into parts that grow one at a time, so that no write waits for the entries of a
//! whole shard to move: that took some milliseconds, for which the shard was locked.

use hashbrown::HashTable;

use super::cost;

/// A part of fewer entries is not worth shrinking.
const SHRINK_MIN: usize = 64;

/// The part is chosen by hash bits that the part itself uses neither for the place (low bits) nor
/// for the tag (the highest seven), and by which no shard is chosen.
const PART_SHIFT: u32 = super::SHARD_SHIFT - super::TABLE_PARTS.ilog2();

/// Slot ids by the hashes of their keys.
#[derive(Debug)]
pub(super) struct Table {
    /// A power of two.
    parts: Box<[HashTable<u32>]>,
    bytes: usize,
}

fn bytes_of(part: &HashTable<u32>) -> usize {
    cost::allocation(part.allocation_size())
}

impl Table {
    /// An empty table of `parts` parts, a power of two.
    pub fn new(parts: usize) -> Self {
        Self {
            parts: std::iter::repeat_with(HashTable::new).take(parts).collect(),
            bytes: 0,
        }
    }

    fn index(&self, hash: u64) -> usize {
        (hash >> PART_SHIFT) as usize & (self.parts.len() - 1)
    }

    /// The id under `hash` that `is_it` accepts.
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.parts[self.index(hash)]
            .find(hash, |&id| is_it(id))
            .copied()
    }

    /// Adds an id that is not there. `hash_of` gives the hash of each id.
    pub fn insert(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        let part = &mut self.parts[self.index(hash)];
        let before = bytes_of(part);
        part.insert_unique(hash, id, |&other| hash_of(other));
        self.bytes = self.bytes + bytes_of(part) - before;
    }

    /// Removes an id, and gives back memory that a part which was much fuller holds.
    pub fn remove(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        let index = self.index(hash);
        let part = &mut self.parts[index];
        let before = bytes_of(part);
        if let Ok(place) = part.find_entry(hash, |&other| other == id) {
            place.remove();
        }
        if part.is_empty() {
            *part = HashTable::new();
        } else if part.capacity() > SHRINK_MIN && part.len() < part.capacity() / 8 {
            part.shrink_to(part.len() * 2, |&other| hash_of(other));
        }
        self.bytes = self.bytes + bytes_of(part) - before;
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
}
