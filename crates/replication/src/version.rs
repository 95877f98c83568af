//! Versions of entries, and the range of versions of an epoch (R2).

/// The version of an entry or tombstone. The higher version of a key wins.
///
/// It is the value of a hybrid logical clock: 48 bits of milliseconds since the Unix epoch, then 16
/// bits of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// The first version of a millisecond.
    #[must_use]
    pub fn from_ms(wall_ms: u64) -> Self {
        Self(wall_ms.saturating_mul(1 << 16))
    }

    /// The version that follows.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// This version, moved on by some milliseconds.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(Self::from_ms(ms).0))
    }

    /// This version, moved back by some milliseconds.
    #[must_use]
    pub fn minus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(Self::from_ms(ms).0))
    }
}

/// The versions that may be assigned in an epoch. The members agree on the range by raft.
///
/// Invariant: the ranges of two epochs have no version in common, and a later epoch has the higher
/// range. So a member that does not know the latest epoch cannot assign a version above those of
/// its successor, whatever its clock says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VersionRange {
    /// All versions of the epoch are above this version.
    pub base: Version,
    /// All versions of the epoch are below this version.
    pub ceiling: Version,
}

impl VersionRange {
    /// How far the ceiling of a new epoch is above its base.
    pub const EPOCH_RANGE_MS: u64 = 3_000;

    /// The range of the epoch that follows.
    #[must_use]
    pub fn next_epoch(self) -> Self {
        Self {
            base: self.ceiling,
            ceiling: self.ceiling.plus_ms(Self::EPOCH_RANGE_MS),
        }
    }
}
