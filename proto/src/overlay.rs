//! Overlays that share one namespace (ADR 0025).
//!
//! A key of such an overlay is stored behind a prefix of fixed length that names the overlay. So
//! the keys of two overlays never meet, and whatever handles stored keys need not know of overlays.
//!
//! Invariants:
//! - A stored key has the slot of the client's key. So an overlay and its base have the same owners
//!   for each key.
//! - All prefixes have the same length, so no key of one overlay is a key of another.

use crate::Space;
use crate::placement::crc16;

/// Bytes of the number that names an overlay.
pub const OVERLAY_ID_LEN: usize = 16;

/// Bytes before the client's key in a stored key: the id, a byte that is chosen, and a checksum.
pub const OVERLAY_PREFIX_LEN: usize = OVERLAY_ID_LEN + 3;

/// What would begin a hash tag in the prefix.
const TAG: u8 = b'{';

/// Takes the place of [`TAG`] in an id.
const NO_TAG: u8 = b'z';

/// An overlay of a namespace that has many.
///
/// | offset | bytes | field |
/// |--------|-------|-------|
/// | 0 | 16 | the id; each `{` is a `z` |
/// | 16 | 1 | the smallest number for which the checksum has no `{` |
/// | 17 | 2 | CRC16/XMODEM of all before it, big endian |
///
/// The CRC16 of bytes that end with their own CRC16 is 0, which is where the CRC16 of a key begins.
/// No byte is a `{`, so the hash tag of a stored key is that of the client's key. Hence both have
/// the same slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Overlay([u8; OVERLAY_PREFIX_LEN]);

impl Overlay {
    /// The overlay of an id, which is the digest of all that tells it from others.
    #[must_use]
    pub fn new(id: [u8; OVERLAY_ID_LEN]) -> Self {
        let id = id.map(|byte| if byte == TAG { NO_TAG } else { byte });
        let mut prefix = [0; OVERLAY_PREFIX_LEN];
        prefix[..OVERLAY_ID_LEN].copy_from_slice(&id);
        for chosen in 0..=u8::MAX {
            prefix[OVERLAY_ID_LEN] = chosen;
            let checksum = crc16(&prefix[..=OVERLAY_ID_LEN]).to_be_bytes();
            prefix[OVERLAY_ID_LEN + 1..].copy_from_slice(&checksum);
            // At most two of the numbers give a checksum with a tag, as a test shows.
            if chosen != TAG && !checksum.contains(&TAG) {
                break;
            }
        }
        Self(prefix)
    }

    /// What each stored key begins with.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        &self.0
    }

    /// The stored key of the client's `key`.
    #[must_use]
    pub fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.0, key].concat()
    }

    /// The client's key of a stored key; `None` if that is of another overlay.
    #[must_use]
    pub fn client_key<'k>(&self, stored: &'k [u8]) -> Option<&'k [u8]> {
        stored.strip_prefix(&self.0)
    }
}

/// Whether the client's key of a stored key begins with `prefix`, be it of an overlay or not.
#[must_use]
pub fn is_below(stored: &[u8], prefix: &[u8]) -> bool {
    let in_overlay =
        |(overlay, key): (&[u8], &[u8])| crc16(overlay) == 0 && key.starts_with(prefix);
    let halves = stored.split_at_checked(OVERLAY_PREFIX_LEN);
    stored.starts_with(prefix) || halves.is_some_and(in_overlay)
}

impl std::fmt::Debug for Overlay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Overlay({})", self.0.escape_ascii())
    }
}

/// Where a read looks that finds nothing in its own space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// The space that lies below.
    pub space: Space,
    /// Bytes at the front of a stored key that its key below lacks: those of an [`Overlay`], or
    /// none.
    pub prefix_len: u8,
}

impl Base {
    /// What lies under a namespace that is one overlay.
    #[must_use]
    pub const fn of(space: Space) -> Self {
        Self {
            space,
            prefix_len: 0,
        }
    }

    /// What lies under an overlay of a namespace that has many.
    #[must_use]
    pub const fn of_overlay(space: Space) -> Self {
        Self {
            space,
            prefix_len: OVERLAY_PREFIX_LEN as u8,
        }
    }

    /// The key below of a stored key.
    #[must_use]
    pub fn key<'k>(&self, stored: &'k [u8]) -> &'k [u8] {
        stored
            .get(usize::from(self.prefix_len)..)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::placement::slot;

    #[test]
    fn a_prefix_has_a_fixed_form() {
        // Entries in buckets depend on it.
        let overlay = Overlay::new(*b"0123456789{bcdef");
        assert_eq!(overlay.prefix(), b"0123456789zbcdef\0\xa5r");
    }

    #[test]
    fn each_checksum_has_a_number_by_which_it_has_no_tag() {
        // The checksum of an id may be any of 65,536.
        let mut states = HashSet::new();
        for number in 0..4_u32 << 16 {
            let mut id = [0; OVERLAY_ID_LEN];
            id[12..].copy_from_slice(&number.to_be_bytes());
            if id.contains(&TAG) || !states.insert(crc16(&id)) {
                continue;
            }
            let overlay = Overlay::new(id);
            assert!(!overlay.prefix().contains(&TAG), "{overlay:?}");
            assert!(overlay.prefix()[OVERLAY_ID_LEN] <= 2, "{overlay:?}");
            assert_eq!(crc16(overlay.prefix()), 0, "{overlay:?}");
        }
        assert_eq!(states.len(), 65_536);
    }

    proptest! {
        #[test]
        fn a_stored_key_has_the_slot_of_the_clients_key(
            id in any::<[u8; OVERLAY_ID_LEN]>(),
            key in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..60),
                "[a{}]{0,12}".prop_map(String::into_bytes),
            ],
        ) {
            let overlay = Overlay::new(id);
            let stored = overlay.key(&key);
            prop_assert_eq!(slot(&stored), slot(&key));
            prop_assert_eq!(overlay.client_key(&stored), Some(&key[..]));
            let base = Base::of_overlay(Space::new(1, 0));
            prop_assert_eq!(base.key(&stored), &key[..]);
            prop_assert_eq!(Base::of(Space::new(1, 0)).key(&stored), &stored[..]);
        }

        #[test]
        fn overlays_have_no_key_in_common(
            ids in any::<[[u8; OVERLAY_ID_LEN]; 2]>(),
            keys in any::<[Vec<u8>; 2]>(),
        ) {
            let [first, second] = ids.map(Overlay::new);
            prop_assume!(first != second);
            // Whatever the client of one says, also what is a stored key of the other.
            let stored = [first.key(&keys[0]), first.key(&second.key(&keys[1]))];
            for stored in stored {
                prop_assert_eq!(second.client_key(&stored), None);
            }
        }
    }
}
