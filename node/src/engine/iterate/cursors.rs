//! Where iterations over the disk go on: RESP cursors are numbers, positions are keys.
//!
//! Each namespace has its own cursors, bounded in number and bytes. Clients leave cursors behind,
//! so a new one takes the place of the oldest of its namespace. Positions are counted against the
//! RAM budget.

use std::collections::{HashMap, VecDeque};

use fonn_base::entry::Space;
use fonn_ram_tier::RamTier;
use parking_lot::Mutex;

/// Cursors of a namespace.
const CURSORS_MAX: usize = 1024;

/// Bytes of their positions. One is always kept.
const CURSOR_BYTES_MAX: usize = 1 << 20;

/// Bytes of a cursor besides its key.
const CURSOR_COST: usize = size_of::<Cursor>();

/// The cursors of all namespaces.
#[derive(Default)]
pub(super) struct Cursors(Mutex<HashMap<u32, OfNamespace>>);

#[derive(Default)]
struct OfNamespace {
    last: u64,
    bytes: usize,
    open: VecDeque<Cursor>,
}

struct Cursor {
    number: u64,
    space: Space,
    after: Box<[u8]>,
}

impl Cursors {
    /// Gives a position a number. The same position has the same number as long as it is known.
    pub(super) fn save(&self, ram: &RamTier, space: Space, after: Box<[u8]>) -> u64 {
        let mut all = self.0.lock();
        let own = all.entry(space.namespace()).or_default();
        let before = own.bytes;
        let number = own.save(space, after);
        match own.bytes.checked_sub(before) {
            Some(more) => ram.reserve(more),
            None => ram.release(before - own.bytes),
        }
        number
    }

    /// The position stays: a client may repeat a call whose answer it lost.
    pub(super) fn load(&self, space: Space, number: u64) -> Option<Vec<u8>> {
        let all = self.0.lock();
        let open = &all.get(&space.namespace())?.open;
        let found = open
            .iter()
            .find(|it| it.number == number && it.space == space);
        found.map(|it| it.after.to_vec())
    }
}

impl OfNamespace {
    fn save(&mut self, space: Space, after: Box<[u8]>) -> u64 {
        let is_same = |it: &Cursor| it.space == space && it.after == after;
        let number = match self.open.iter().position(is_same) {
            Some(at) => self.open.remove(at).map_or(0, |it| {
                self.bytes -= it.bytes();
                it.number
            }),
            None => {
                self.last += 1;
                self.last
            }
        };
        let cursor = Cursor {
            number,
            space,
            after,
        };
        self.bytes += cursor.bytes();
        self.open.push_back(cursor);
        while self.open.len() > 1
            && (self.open.len() > CURSORS_MAX || self.bytes > CURSOR_BYTES_MAX)
        {
            if let Some(oldest) = self.open.pop_front() {
                self.bytes -= oldest.bytes();
            }
        }
        number
    }
}

impl Cursor {
    fn bytes(&self) -> usize {
        CURSOR_COST + self.after.len()
    }
}

#[cfg(test)]
mod tests {
    use fonn_ram_tier::{LruMode, RamOptions};

    use super::*;

    fn ram() -> RamTier {
        RamTier::new(RamOptions {
            budget_bytes: 8 << 20,
            lru: LruMode::Approximate,
            hash_seed: 1,
        })
    }

    fn key(number: usize, len: usize) -> Box<[u8]> {
        format!("{number:0len$}").into_bytes().into()
    }

    #[test]
    fn a_namespace_does_not_push_out_the_cursors_of_others() {
        let (ram, cursors) = (ram(), Cursors::default());
        let (own, other) = (Space::new(1, 0), Space::new(2, 0));
        let cursor = cursors.save(&ram, own, key(7, 10));
        for number in 0..3 * CURSORS_MAX {
            cursors.save(&ram, other, key(number, 10));
        }
        assert_eq!(cursors.load(own, cursor), Some(key(7, 10).to_vec()));
        assert_eq!(cursors.load(other, cursor), None, "it was pushed out");
        assert_eq!(cursors.load(Space::new(1, 1), cursor), None);
    }

    #[test]
    fn cursors_are_bounded_in_bytes_which_are_counted() {
        let (ram, cursors) = (ram(), Cursors::default());
        let space = Space::new(1, 0);
        let first = cursors.save(&ram, space, key(0, 30_000));
        for number in 1..100 {
            cursors.save(&ram, space, key(number, 30_000));
            let reserved = ram.stats().reserved_bytes;
            assert!(reserved <= CURSOR_BYTES_MAX, "{reserved}");
        }
        assert_eq!(cursors.load(space, first), None);
        assert!(ram.stats().reserved_bytes > CURSOR_BYTES_MAX - 31_000);
    }

    #[test]
    fn the_same_position_has_the_same_cursor() {
        let (ram, cursors) = (ram(), Cursors::default());
        let space = Space::new(1, 0);
        let cursor = cursors.save(&ram, space, key(1, 5));
        let reserved = ram.stats().reserved_bytes;
        assert_ne!(cursors.save(&ram, space, key(2, 5)), cursor);
        assert_eq!(cursors.save(&ram, space, key(1, 5)), cursor);
        assert_eq!(ram.stats().reserved_bytes, 2 * reserved);
    }
}
