//! The owners of all slots as bytes, for the message that tells a topology.
//!
//! For each slot in order: the number of its owners (1 byte, 0 to 3), then the position of each
//! owner in the list of members (2 bytes, little endian), the primary first.

use thiserror::Error;

use super::{Owners, SLOT_COUNT};

/// Bytes that are not the owners of all slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RowsError {
    /// The bytes end before the last slot.
    #[error("the owners of slot {slot} are cut off")]
    CutOff {
        /// The first slot that is not there.
        slot: u16,
    },
    /// A slot has more owners than are possible, or one of them twice.
    #[error("slot {slot} has owners that are not 0 to 3 different members")]
    Owners {
        /// The slot.
        slot: u16,
    },
    /// Bytes follow the last slot.
    #[error("{len} bytes follow the owners of the last slot")]
    Rest {
        /// How many.
        len: usize,
    },
}

/// The bytes for the owners of each slot. Slots without owners are `None`.
pub fn encode(rows: impl IntoIterator<Item = Option<Owners>>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(3 * usize::from(SLOT_COUNT));
    for row in rows {
        let positions = row.as_ref().map(Owners::positions).unwrap_or_default();
        // At most three.
        bytes.push(positions.len() as u8);
        for position in positions {
            bytes.extend_from_slice(&position.to_le_bytes());
        }
    }
    bytes
}

/// The owners of each slot, from [`encode`]d bytes.
///
/// # Errors
/// [`RowsError`], for the first slot that is wrong.
pub fn decode(mut bytes: &[u8]) -> Result<Vec<Option<Owners>>, RowsError> {
    let mut rows = Vec::with_capacity(usize::from(SLOT_COUNT));
    for slot in 0..SLOT_COUNT {
        let cut_off = RowsError::CutOff { slot };
        let (&count, rest) = bytes.split_first().ok_or(cut_off)?;
        if usize::from(count) > Owners::COUNT_MAX {
            return Err(RowsError::Owners { slot });
        }
        let (positions, rest) = rest
            .split_at_checked(2 * usize::from(count))
            .ok_or(cut_off)?;
        let mut ranked = [0; Owners::COUNT_MAX];
        for (place, position) in ranked.iter_mut().zip(positions.as_chunks::<2>().0) {
            *place = u16::from_le_bytes(*position);
        }
        let ranked = ranked.get(..usize::from(count)).unwrap_or_default();
        let owners = Owners::new(ranked);
        if owners.is_none() && count > 0 {
            return Err(RowsError::Owners { slot });
        }
        rows.push(owners);
        bytes = rest;
    }
    match bytes.len() {
        0 => Ok(rows),
        len => Err(RowsError::Rest { len }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(seed: &[Vec<u16>]) -> Vec<Option<Owners>> {
        let all = seed.iter().cycle().take(usize::from(SLOT_COUNT));
        all.map(|ranked| Owners::new(ranked)).collect()
    }

    proptest! {
        #[test]
        fn rows_are_decoded_as_they_were_encoded_and_no_part_of_them_is(
            seed in prop::collection::vec(prop::collection::vec(any::<u16>(), 0..4), 1..9),
            cut in any::<prop::sample::Index>(),
        ) {
            let rows = rows(&seed);
            let bytes = encode(rows.clone());
            prop_assert_eq!(decode(&bytes), Ok(rows));
            let cut = cut.index(bytes.len());
            prop_assert!(decode(&bytes[..cut]).is_err());
            let longer = [&bytes[..], &[0]].concat();
            prop_assert_eq!(decode(&longer), Err(RowsError::Rest { len: 1 }));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode(&bytes).is_err());
        }
    }

    #[test]
    fn too_many_owners_and_an_owner_twice_are_refused() {
        let mut bytes = encode(rows(&[vec![1, 2]]));
        bytes[3] = 1;
        assert_eq!(decode(&bytes), Err(RowsError::Owners { slot: 0 }));
        bytes[0] = 4;
        assert_eq!(decode(&bytes), Err(RowsError::Owners { slot: 0 }));
    }
}
