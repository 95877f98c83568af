//! The clock by which a store assigns versions (R2).

use crate::{Epoch, Version, VersionRange};

/// A hybrid logical clock that stays in the range of the applied epoch. The store of a member owns
/// it, and assigns a version under the same lock under which it executes the write.
///
/// Invariant: no version is assigned twice, and each one is above the base and below the ceiling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Clock {
    /// The last version that was assigned, or a later one that counts.
    last: Version,
    /// The highest version that was observed. It does not count before the range has it.
    noted: Version,
    /// The epoch of the range.
    epoch: Epoch,
    range: VersionRange,
}

impl Clock {
    /// How far below the ceiling the clock stops to follow the wall clock. From there it only
    /// counts, so about 131 million writes are left when the leader extends no range.
    pub const COUNT_RESERVE_MS: u64 = 2_000;

    /// A clock that assigns versions after `last` as soon as it has a range. After a start, `last`
    /// is the highest version in the store.
    #[must_use]
    pub fn new(last: Version) -> Self {
        Self {
            last,
            noted: last,
            epoch: Epoch(0),
            range: VersionRange::default(),
        }
    }

    /// Enters the range of versions of an applied epoch.
    pub fn set_range(&mut self, epoch: Epoch, range: VersionRange) {
        self.epoch = epoch;
        self.range = range;
        self.last = self.last.max(range.base);
        self.observe(self.noted);
    }

    /// The version of the next write, which was admitted in an epoch. `None` if the store has to do
    /// nothing: the range is used up, or the member has applied another epoch since. In that epoch
    /// it may not be the primary, and its version could be above those of the primary.
    pub fn assign(&mut self, admitted: Epoch, wall_ms: u64) -> Option<Version> {
        if admitted != self.epoch {
            return None;
        }
        let ceiling = self.range.ceiling;
        let wall = Version::from_ms(wall_ms).min(ceiling.minus_ms(Self::COUNT_RESERVE_MS));
        let version = self.last.next().max(wall);
        if version >= ceiling {
            return None;
        }
        self.last = version;
        Some(version)
    }

    /// Notes a version of another member or of another region. At or above the ceiling it does not
    /// count yet: a member that does not know the latest epoch must not get above its successor.
    pub fn observe(&mut self, version: Version) {
        self.noted = self.noted.max(version);
        if version < self.range.ceiling {
            self.last = self.last.max(version);
        }
    }

    /// The highest version that was observed. The leader extends the range above it.
    #[must_use]
    pub fn noted(&self) -> Version {
        self.noted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const E: Epoch = Epoch(7);

    /// A clock in a range from 10 s to 15 s.
    fn clock() -> Clock {
        let mut clock = Clock::new(Version(0));
        clock.set_range(
            E,
            VersionRange {
                base: Version::from_ms(10_000),
                ceiling: Version::from_ms(15_000),
            },
        );
        clock
    }

    #[test]
    fn a_version_is_assigned_only_in_a_range() {
        assert_eq!(Clock::new(Version(0)).assign(E, 99), None);
        let first = Version::from_ms(10_000).next();
        assert_eq!(clock().assign(E, 99), Some(first));
    }

    #[test]
    fn a_write_that_was_admitted_in_another_epoch_gets_no_version() {
        assert_eq!(clock().assign(Epoch(6), 99), None);
    }

    #[test]
    fn versions_follow_the_wall_clock_up_to_the_reserve_and_then_count() {
        let mut clock = clock();
        assert_eq!(clock.assign(E, 11_000), Some(Version::from_ms(11_000)));
        assert_eq!(
            clock.assign(E, 11_000),
            Some(Version::from_ms(11_000).next())
        );
        assert_eq!(clock.assign(E, 99_000), Some(Version::from_ms(13_000)));
        assert_eq!(
            clock.assign(E, 99_001),
            Some(Version::from_ms(13_000).next())
        );
    }

    #[test]
    fn a_used_up_range_assigns_nothing_until_it_is_extended() {
        let mut clock = clock();
        clock.observe(Version(Version::from_ms(15_000).0 - 2));
        assert!(clock.assign(E, 0).is_some());
        assert_eq!(clock.assign(E, 0), None);
        let range = VersionRange::default().next_epoch();
        let ceiling = Version::from_ms(20_000);
        clock.set_range(E, VersionRange { ceiling, ..range });
        assert_eq!(clock.assign(E, 0), Some(Version::from_ms(15_000)));
    }

    #[test]
    fn a_version_above_the_ceiling_counts_when_the_range_has_it() {
        let mut clock = clock();
        let foreign = Version::from_ms(16_000);
        clock.observe(foreign);
        assert!(clock.assign(E, 12_000) < Some(foreign));
        assert_eq!(clock.noted(), foreign);
        clock.set_range(
            E,
            VersionRange {
                base: Version::from_ms(15_000),
                ceiling: Version::from_ms(19_000),
            },
        );
        assert_eq!(clock.assign(E, 12_000), Some(foreign.next()));
    }
}
