//! The recency list of a shard, threaded through its slots: most recently used at the head.
//!
//! In the approximate mode the first use in a second moves an entry. A hot entry is thus moved once
//! a second instead of on each use, which spares the hit path two writes to foreign cache lines.
//!
//! A later use in the same second moves it only where the order within a second matters: in a list
//! that evicted in the last minute, or of which a thirty-second has come in this second, so that it
//! may evict soon. A long list moves it only when a sixteenth to an eighth of the list has moved
//! since the entry's last move, so that it leaves at most an eighth of the list early.
//!
//! Moves are counted in epochs of a sixteenth of the list, and a slot keeps the epoch (6 bits) of
//! its last move. After 64 epochs, four turns of the list, an entry can look freshly moved. In a
//! long list that takes more than a thousand moves in one second. A short list ignores epochs.

use super::LruMode;
use super::slab::{NIL, Slab};
use super::state;

/// The `prev` of a slot that is in no list: a tombstone, or an entry that waits for the disk and
/// was passed by the evictor. Never the id of a slot.
const UNLINKED: u32 = u32::MAX - 1;

/// Epochs in which the whole list moves once.
const EPOCHS_PER_TURN: usize = 16;

/// Epochs after which a use moves the entry of a long list again.
const EPOCHS_TO_MOVE: u8 = 2;

/// Entries from which on a list is long. In a shorter one the epochs of a second would not do:
/// 64 of them are a few hundred moves.
const LONG_LEN: usize = 256;

/// The part of a list that may come in one second while the order within it does not matter.
const SLOW_PART: usize = 32;

/// How long an eviction makes the order within a second matter, in seconds.
const EVICTING_S: u32 = 60;

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
    /// Whether an entry was evicted since the last use.
    has_evicted: bool,
    /// The second of the first use after the last eviction.
    evicted_s: Option<u32>,
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
            has_evicted: false,
            evicted_s: None,
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
                let is_first = at.before_s != at.now_s;
                self.head != id
                    && (is_first || self.is_ordered(at.now_s) && self.has_come_far(slab, id))
            }
        };
        if due {
            self.move_to_head(slab, id);
        }
    }

    /// Whether so much has moved since an entry's last move that it has to move again.
    fn has_come_far(&self, slab: &Slab, id: u32) -> bool {
        let since = self.epoch.wrapping_sub(state::epoch(slab.at(id).state));
        self.linked < LONG_LEN || since % state::EPOCHS >= EPOCHS_TO_MOVE
    }

    /// Whether the order within this second matters.
    fn is_ordered(&mut self, now_s: u32) -> bool {
        if std::mem::take(&mut self.has_evicted) {
            self.evicted_s = Some(now_s);
        }
        let since = self.evicted_s.map(|at| now_s.saturating_sub(at));
        let is_fast = self.came_s == now_s && self.came >= self.linked / SLOW_PART;
        is_fast || since.is_some_and(|it| it < EVICTING_S)
    }

    /// An entry was written: it becomes the most recently used.
    pub fn insert(&mut self, slab: &mut Slab, id: u32, now_s: u32) {
        if self.came_s != now_s {
            (self.came_s, self.came) = (now_s, 0);
        }
        self.came += 1;
        self.move_to_head(slab, id);
    }

    /// An entry is evicted.
    pub fn evict(&mut self) {
        self.has_evicted = true;
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
        slot.state = state::with_epoch(slot.state, self.epoch);
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
    fn the_first_use_in_a_second_moves_an_entry() {
        let (mut slab, mut recency) = (Slab::default(), Recency::new(LruMode::Approximate));
        let ids = linked(&mut slab, &mut recency, 160);
        recency.touch(&mut slab, ids[155], at(0, 1));
        let after = from_tail(&slab, &recency);
        assert_eq!(after.last(), Some(&ids[155]));
        recency.touch(&mut slab, ids[100], at(1, 1));
        assert_eq!(from_tail(&slab, &recency), after);
        let epoch = recency.epoch;
        for now_s in 1..1000 {
            recency.touch(&mut slab, ids[155], at(now_s, now_s + 1));
        }
        assert_eq!(
            recency.epoch, epoch,
            "a hot entry does not wear out the clock"
        );
    }

    #[test]
    fn in_a_long_list_that_evicts_a_part_has_to_move_before_an_entry_does_again() {
        let (mut slab, mut recency) = (Slab::default(), Recency::new(LruMode::Approximate));
        let ids = linked(&mut slab, &mut recency, 1600);
        recency.evict();
        let before = from_tail(&slab, &recency);
        recency.touch(&mut slab, ids[1550], at(1, 1));
        assert_eq!(
            from_tail(&slab, &recency),
            before,
            "it was moved a moment ago"
        );
        recency.touch(&mut slab, ids[1000], at(1, 1));
        let after = from_tail(&slab, &recency);
        assert_eq!(
            after.last(),
            Some(&ids[1000]),
            "600 of 1600 have moved since"
        );
    }

    #[test]
    fn in_a_short_list_that_evicts_each_use_moves_an_entry() {
        let (mut slab, mut recency) = (Slab::default(), Recency::new(LruMode::Approximate));
        let ids = linked(&mut slab, &mut recency, 3);
        recency.evict();
        for (id, expected) in [
            (ids[1], [ids[0], ids[2], ids[1]]),
            (ids[2], [ids[0], ids[1], ids[2]]),
            (ids[2], [ids[0], ids[1], ids[2]]),
        ] {
            recency.touch(&mut slab, id, at(1, 1));
            assert_eq!(from_tail(&slab, &recency), expected);
        }
    }

    #[test]
    fn within_a_second_an_entry_is_moved_once_unless_entries_are_evicted() {
        let (mut slab, mut recency) = (Slab::default(), Recency::new(LruMode::Approximate));
        let ids = linked(&mut slab, &mut recency, 160);
        let oldest = ids[0];
        recency.touch(&mut slab, oldest, at(0, 7));
        assert_eq!(from_tail(&slab, &recency).last(), Some(&oldest));
        // All others are read once, and so move; the one above is used again and again meanwhile.
        let mut read_others = |recency: &mut Recency, now_s: u32| {
            for &id in &ids[1..] {
                recency.touch(&mut slab, id, at(now_s - 1, now_s));
                recency.touch(&mut slab, oldest, at(now_s, now_s));
            }
            from_tail(&slab, recency)
                .iter()
                .position(|&id| id == oldest)
        };
        assert_eq!(read_others(&mut recency, 7), Some(0));
        recency.evict();
        assert!(read_others(&mut recency, 8) > Some(140));
        assert!(read_others(&mut recency, 7 + EVICTING_S) > Some(140));
        assert_eq!(read_others(&mut recency, 8 + EVICTING_S), Some(0));
        // Some that come in this second do not change that, but a thirty-second of all does.
        let mut come = |recency: &mut Recency, count: usize| {
            for _ in 0..count {
                let id = slab.take().unwrap();
                slab.at_mut(id).block = 0;
                Recency::init_unlinked(&mut slab, id);
                recency.insert(&mut slab, id, 100);
            }
            recency.touch(&mut slab, oldest, at(100, 100));
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
