//! Sets of slots.

use std::fmt;
use std::sync::Arc;

use crate::Slot;

/// A set of slots, one bit a slot. A clone costs one reference count.
///
/// The last word is not zero, so equal sets have equal words.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct SlotSet(Arc<[u64]>);

impl SlotSet {
    /// The set with these words: slot `s` is bit `s % 64` of word `s / 64`. Words beyond the
    /// highest slot number are ignored.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Self {
        let words = words.get(..Self::WORDS_MAX).unwrap_or(words);
        let used = words.iter().rposition(|&word| word != 0);
        Self(
            words
                .iter()
                .copied()
                .take(used.map_or(0, |i| i + 1))
                .collect(),
        )
    }

    /// The words of the set, for an encoding.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    /// Whether the slot is in the set.
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        let (word, bit) = Self::position(slot);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// How many slots are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no slot is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The slots of `self` that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let others = other.0.iter().copied().chain(std::iter::repeat(0));
        let words: Vec<u64> = self.0.iter().zip(others).map(|(a, b)| a & !b).collect();
        Self::from_words(&words)
    }

    /// The slots in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Slot> {
        (0u16..).zip(self.0.iter()).flat_map(|(index, &word)| {
            let bits = (0u16..64).filter(move |bit| word & (1 << bit) != 0);
            bits.map(move |bit| Slot(index * 64 + bit))
        })
    }

    const WORDS_MAX: usize = (u16::MAX as usize + 1) / 64;

    fn position(slot: Slot) -> (usize, u64) {
        (slot.index() / 64, 1 << (slot.0 % 64))
    }
}

impl FromIterator<Slot> for SlotSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let mut words = Vec::new();
        for slot in slots {
            let (word, bit) = Self::position(slot);
            if words.len() <= word {
                words.resize(word + 1, 0);
            }
            if let Some(word) = words.get_mut(word) {
                *word |= bit;
            }
        }
        Self(words.into())
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.iter().map(|slot| slot.0))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(slots: &[u16]) -> SlotSet {
        slots.iter().copied().map(Slot).collect()
    }

    #[test]
    fn a_set_has_the_slots_that_were_put_in() {
        let slots = [0, 63, 64, 16_383, u16::MAX];
        let all = set(&slots);
        assert_eq!(all.len(), slots.len());
        assert_eq!(all.iter().map(|slot| slot.0).collect::<Vec<_>>(), slots);
        assert!(all.contains(Slot(64)) && !all.contains(Slot(65)));
        assert_eq!(SlotSet::from_words(all.words()), all);
    }

    #[test]
    fn sets_with_the_same_slots_are_equal_whatever_was_removed() {
        let rest = set(&[1, 700]).without(&set(&[700, 9_000]));
        assert_eq!(rest, set(&[1]));
        assert!(rest.without(&rest).is_empty());
        assert_eq!(SlotSet::from_words(&[2, 0, 0]), rest);
    }
}
