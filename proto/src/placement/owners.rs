//! The owners of one slot.

use std::fmt;

/// The owners of one slot by rank, as positions in the list of members: first the primary, then the
/// replicas.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Owners {
    ranked: [u16; Self::COUNT_MAX],
    count: u8,
}

impl Owners {
    /// Most owners of a slot.
    pub const COUNT_MAX: usize = 3;

    /// Owners by rank; `None` unless they are one to three different positions.
    #[must_use]
    pub fn new(ranked: &[u16]) -> Option<Self> {
        let mut owners = Self {
            ranked: [0; Self::COUNT_MAX],
            count: 0,
        };
        for &position in ranked {
            if owners.positions().contains(&position) {
                return None;
            }
            *owners.ranked.get_mut(usize::from(owners.count))? = position;
            owners.count += 1;
        }
        (owners.count > 0).then_some(owners)
    }

    /// Positions in the list of members, by rank. Never empty.
    #[must_use]
    pub fn positions(&self) -> &[u16] {
        self.ranked
            .get(..usize::from(self.count))
            .unwrap_or(&self.ranked)
    }
}

impl fmt::Debug for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.positions().fmt(f)
    }
}
