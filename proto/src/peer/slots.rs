//! A set of slots, as it travels: one bit a slot.

use std::fmt;

use crate::placement::SLOT_COUNT;

const LEN: usize = SLOT_COUNT as usize / 8;

/// A set of slots: 2 KiB, bit `slot % 8` of byte `slot / 8`.
///
/// What moves at a change of membership is a scattered part of all slots, and a walk that looks for
/// their entries goes over all of them once, whatever their number.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet(Box<[u8; LEN]>);

impl SlotSet {
    /// Bytes that a set takes on the wire.
    pub const LEN: usize = LEN;

    /// No slot.
    #[must_use]
    pub fn new() -> Self {
        Self(Box::new([0; LEN]))
    }

    /// All slots.
    #[must_use]
    pub fn all() -> Self {
        Self(Box::new([0xff; LEN]))
    }

    /// Adds a slot. What is no slot is left out.
    pub fn insert(&mut self, slot: u16) {
        if let Some(byte) = self.0.get_mut(usize::from(slot >> 3)) {
            *byte |= 1 << (slot & 7);
        }
    }

    /// Takes a slot out.
    pub fn remove(&mut self, slot: u16) {
        if let Some(byte) = self.0.get_mut(usize::from(slot >> 3)) {
            *byte &= !(1 << (slot & 7));
        }
    }

    /// Whether a slot is in it.
    #[must_use]
    pub fn contains(&self, slot: u16) -> bool {
        self.0
            .get(usize::from(slot >> 3))
            .is_some_and(|byte| byte & 1 << (slot & 7) != 0)
    }

    /// How many slots are in it.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.iter().map(|byte| byte.count_ones()).sum()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }

    pub(super) fn as_bytes(&self) -> &[u8; LEN] {
        &self.0
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; LEN] = bytes.try_into().ok()?;
        Some(Self(Box::new(bytes)))
    }
}

impl Default for SlotSet {
    fn default() -> Self {
        Self::new()
    }
}

impl FromIterator<u16> for SlotSet {
    fn from_iter<I: IntoIterator<Item = u16>>(slots: I) -> Self {
        let mut set = Self::new();
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotSet({} slots)", self.len())
    }
}
