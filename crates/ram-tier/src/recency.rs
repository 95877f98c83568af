//! The recency list of a shard, threaded through its slots: most recently used at the head.
//!
//! In the approximate mode a use moves an entry only when a sixteenth to an eighth of the list has
//! moved since the entry's last move. A hot entry is thus moved a few times per turn of the list
//! instead of on each use, which spares the hit path two writes to foreign cache lines, and an
//! entry leaves at most an eighth of the list early. The measure is moves, not seconds, because it
//! then holds for a list that turns over in milliseconds as for one that takes a week.
//!
//! Moves are counted in epochs of a sixteenth of the list, and a slot keeps the epoch (6 bits) of
//! its last move. After 64 epochs without a move, four turns of the list, an entry can look freshly
//! moved; it has been evicted long before that unless nothing is evicted at all, and then one lost
//! move is harmless.
//!
//! Where all entries are read about as often as each other, each read is due by that measure,
//! although nothing is evicted. So an entry that was used in this second already is not moved
//! again, as long as less than a thirty-second of the list has come in it: that is as far as it can
//! have come nearer to eviction than others that were used in the same second.

use super::LruMode;
use super::slab::{NIL, Slab};
use super::state;

/// The `prev` of a slot that is in no list: a tombstone, or an entry that waits for the disk and
/// was passed by the evictor. Never the id of a slot.
const UNLINKED: u32 = u32::MAX - 1;

/// Epochs in which the whole list moves once.
const EPOCHS_PER_TURN: usize = 16;

/// Epochs after which a use moves the entry again.
const EPOCHS_TO_MOVE: u8 = 2;

/// The part of the list that may come in one second while entries are moved once in it at most.
const SLOW_PART: usize = 32;

/// A use of an entry, in the caller's seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub now_s: u32,
    /// When it was used before.
    pub before_s: u32,
}

/// The list's ends and its clock.
#[derive(Debug)]
pub(super) struct Recency {
    mode: LruMode,
    head: u32,
    tail: u32,
    linked: usize,
    epoch: u8,
    moves: usize,
    /// The second in which an entry came last, and how many came in it.
    came_s: u32,
    came: usize,
}

impl Recency {
    pub fn new(mode: LruMode) -> Self {
        Self {
            mode,
            head: NIL,
            tail: NIL,
            linked: 0,
            epoch: 0,
            moves: 0,
            came_s: 0,
            came: 0,
        }
    }

    /// The least recently used entry.
    pub fn tail(&self) -> Option<u32> {
        (self.tail != NIL).then_some(self.tail)
    }

    /// The entry that was used next after `id`, which is in a list.
    pub fn newer(slab: &Slab, id: u32) -> Option<u32> {
        let prev = slab.at(id).prev;
        (prev != NIL && prev != UNLINKED).then_some(prev)
    }

    /// Marks a fresh slot as being in no list.
    pub fn init_unlinked(slab: &mut Slab, id: u32) {
        slab.at_mut(id).prev = UNLINKED;
    }

    pub fn is_linked(slab: &Slab, id: u32) -> bool {
        slab.at(id).prev != UNLINKED
    }

    /// Counts a use.
    pub fn touch(&mut self, slab: &mut Slab, id: u32, at: Use) {
        let due = match self.mode {
            LruMode::Strict => true,
            LruMode::Approximate if !Self::is_linked(slab, id) => true,
            LruMode::Approximate => {
                let since = self.epoch.wrapping_sub(state::epoch(slab.at(id).packed));
                since % state::EPOCHS >= EPOCHS_TO_MOVE
                    && (at.before_s != at.now_s || self.is_fast(at.now_s))
            }
        };
        if due {
            self.move_to_head(slab, id);
        }
    }

    /// Whether so much has come in this second that the order within it matters.
    fn is_fast(&self, now_s: u32) -> bool {
        self.came_s == now_s && self.came >= self.linked / SLOW_PART
    }

    /// An entry was written: it becomes the most recently used.
    pub fn insert(&mut self, slab: &mut Slab, id: u32, now_s: u32) {
        if self.came_s != now_s {
            (self.came_s, self.came) = (now_s, 0);
        }
        self.came += 1;
        self.move_to_head(slab, id);
    }

    /// Makes an entry the most recently used, whether it was in the list or not.
    pub fn move_to_head(&mut self, slab: &mut Slab, id: u32) {
        if self.head != id {
            self.unlink(slab, id);
            let slot = slab.at_mut(id);
            slot.prev = NIL;
            slot.next = self.head;
            match self.head {
                NIL => self.tail = id,
                head => slab.at_mut(head).prev = id,
            }
            self.head = id;
            self.linked += 1;
        }
        let slot = slab.at_mut(id);
        slot.packed = state::with_epoch(slot.packed, self.epoch);
        self.moves += 1;
        if self.moves >= self.linked / EPOCHS_PER_TURN {
            self.moves = 0;
            self.epoch = (self.epoch + 1) % state::EPOCHS;
        }
    }

    /// Puts an entry that was passed by the evictor back where it was: it is older than all others.
    pub fn link_at_tail(&mut self, slab: &mut Slab, id: u32) {
        let slot = slab.at_mut(id);
        slot.next = NIL;
        slot.prev = self.tail;
        match self.tail {
            NIL => self.head = id,
            tail => slab.at_mut(tail).next = id,
        }
        self.tail = id;
        self.linked += 1;
    }

    /// Takes an entry out of the list, if it is in it.
    pub fn unlink(&mut self, slab: &mut Slab, id: u32) {
        let slot = slab.at_mut(id);
        if slot.prev == UNLINKED {
            return;
        }
        let (prev, next) = (slot.prev, slot.next);
        slot.prev = UNLINKED;
        match prev {
            NIL => self.head = next,
            _ => slab.at_mut(prev).next = next,
        }
        match next {
            NIL => self.tail = prev,
            _ => slab.at_mut(next).prev = prev,
        }
        self.linked -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(before_s: u32, now_s: u32) -> Use {
        Use { now_s, before_s }
    }

    fn linked(slab: &mut Slab, recency: &mut Recency, count: usize) -> Vec<u32> {
        let ids: Vec<u32> = (0..count).map(|_| slab.take().unwrap()).collect();
        for &id in &ids {
            slab.at_mut(id).block = 0;
            Recency::init_unlinked(slab, id);
            recency.move_to_head(slab, id);
        }
        ids
    }

    fn from_tail(slab: &Slab, recency: &Recency) -> Vec<u32> {
        let mut order = Vec::new();
        let mut at = recency.tail;
        while at != NIL {
            order.push(at);
            at = slab.at(at).prev;
        }
        let mut back = Vec::new();
        let mut at = recency.head;
        while at != NIL {
            back.push(at);
            at = slab.at(at).next;
        }
        back.reverse();
        assert_eq!(order, back, "both directions tell the same order");
        assert_eq!(order.len(), recency.linked);
        order
    }

    #[test]
    fn strict_moves_an_entry_on_every_use() {
        let (mut slab, mut recency) = (Slab::default(), Recency::new(LruMode::Strict));
        let ids = linked(&mut slab, &mut recency, 4);
        for id in [ids[0], ids[2], ids[2], ids[0]] {
            recency.touch(&mut slab, id, at(0, 0));
        }
        assert_eq!(from_tail(&slab, &recency), [ids[1], ids[3], ids[2], ids[0]]);
    }

    #[test]
    fn approximate_moves_an_entry_only_after_a_part_of_the_list_has_moved() {
        let (mut slab, mut recency) = (Slab::default(), Recency::new(LruMode::Approximate));
        let ids = linked(&mut slab, &mut recency, 160);
        let before = from_tail(&slab, &recency);
        recency.touch(&mut slab, ids[155], at(0, 1));
        assert_eq!(
            from_tail(&slab, &recency),
            before,
            "it was moved a moment ago"
        );
        recency.touch(&mut slab, ids[100], at(0, 1));
        let after = from_tail(&slab, &recency);
        assert_eq!(after.last(), Some(&ids[100]), "60 of 160 have moved since");
        for now_s in 1..1000 {
            recency.touch(&mut slab, ids[100], at(now_s, now_s + 1));
        }
        assert_eq!(
            from_tail(&slab, &recency),
            after,
            "a hot entry does not wear out the clock"
        );
    }

    #[test]
    fn within_a_second_an_entry_is_moved_once_unless_much_of_the_list_comes_in_it() {
        let (mut slab, mut recency) = (Slab::default(), Recency::new(LruMode::Approximate));
        let ids = linked(&mut slab, &mut recency, 160);
        let oldest = ids[0];
        recency.touch(&mut slab, oldest, at(0, 7));
        assert_eq!(from_tail(&slab, &recency).last(), Some(&oldest));
        // All others are read once, and so move; the one above is used again and again meanwhile.
        for &id in &ids[1..] {
            recency.touch(&mut slab, id, at(0, 7));
            recency.touch(&mut slab, oldest, at(7, 7));
        }
        assert_eq!(from_tail(&slab, &recency).first(), Some(&oldest));
        // Some that come in this second do not change that, but a thirty-second of all does.
        let mut come = |recency: &mut Recency, count: usize| {
            for _ in 0..count {
                let id = slab.take().unwrap();
                slab.at_mut(id).block = 0;
                Recency::init_unlinked(&mut slab, id);
                recency.insert(&mut slab, id, 7);
            }
            recency.touch(&mut slab, oldest, at(7, 7));
            from_tail(&slab, recency).last() == Some(&oldest)
        };
        assert!(!come(&mut recency, 3));
        assert!(come(&mut recency, 3));
    }

    #[test]
    fn an_entry_that_is_in_no_list_can_return_to_either_end() {
        for mode in [LruMode::Strict, LruMode::Approximate] {
            let (mut slab, mut recency) = (Slab::default(), Recency::new(mode));
            let ids = linked(&mut slab, &mut recency, 3);
            for &id in &ids {
                recency.unlink(&mut slab, id);
                recency.unlink(&mut slab, id);
                assert!(!Recency::is_linked(&slab, id));
            }
            assert!(from_tail(&slab, &recency).is_empty());
            recency.link_at_tail(&mut slab, ids[1]);
            recency.link_at_tail(&mut slab, ids[0]);
            recency.touch(&mut slab, ids[2], at(0, 0));
            assert_eq!(from_tail(&slab, &recency), [ids[0], ids[1], ids[2]]);
        }
    }
}
