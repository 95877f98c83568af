//! Versions of entries, and their order (R2).

use std::cmp::Ordering;

use crate::Epoch;

/// A hybrid logical clock: milliseconds of the wall clock, then 16 bits of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hlc(pub u64);

impl Hlc {
    /// The first value of a millisecond.
    #[must_use]
    pub fn from_ms(wall_ms: u64) -> Self {
        Self(wall_ms.saturating_mul(1 << 16))
    }

    /// The value that follows.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// This value, moved on by some milliseconds.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(Self::from_ms(ms).0))
    }
}

/// The version of an entry, tombstone or flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// The region whose cluster made the write. Regions may share a bucket.
    pub region: u16,
    /// The epoch at which the tenure of the primary began.
    pub term: Epoch,
    /// The clock of the primary.
    pub clock: Hlc,
}

impl Version {
    /// R2: compares two versions of one key.
    ///
    /// Within a region the term decides first. Epochs of two regions are unrelated, so between
    /// regions the clock alone decides. The order is total only if term order and clock order
    /// agree within each region. Each new primary moves its clock on for this reason.
    #[must_use]
    pub fn order(self, other: Self) -> Ordering {
        if self.region == other.region {
            (self.term, self.clock).cmp(&(other.term, other.clock))
        } else {
            (self.clock, self.region).cmp(&(other.clock, other.region))
        }
    }

    /// Whether this version replaces `other`.
    #[must_use]
    pub fn supersedes(self, other: Self) -> bool {
        self.order(other) == Ordering::Greater
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(region: u16, term: u64, clock: u64) -> Version {
        Version {
            region,
            term: Epoch(term),
            clock: Hlc(clock),
        }
    }

    #[test]
    fn within_a_region_a_later_term_wins_whatever_the_clocks_say() {
        assert!(version(1, 2, 10).supersedes(version(1, 1, 90)));
        assert!(version(1, 2, 11).supersedes(version(1, 2, 10)));
        assert!(!version(1, 2, 10).supersedes(version(1, 2, 10)));
    }

    #[test]
    fn across_regions_the_clock_decides() {
        assert!(version(1, 1, 90).supersedes(version(2, 7, 50)));
        assert!(version(2, 1, 50).supersedes(version(1, 9, 50)));
    }
}
