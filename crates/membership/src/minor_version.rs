//! Major and minor version of a member's software: members of the same one understand the same
//! changes.
//!
//! Every member says its version when it joins and at each start, so it is in the state that all
//! agree on. A kind of change that came with a newer version than the lowest of them is refused by
//! all, at the same place of the log (`State::check_known`), so a member that does not know the
//! kind at all does what the others do: nothing.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Major and minor version. The lowest is that of a member that does not say.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct MinorVersion(pub u16, pub u16);

impl MinorVersion {
    /// That of a member that does not say: what it knows, all members know.
    pub const FIRST: Self = Self(0, 0);

    /// The minor version that a version like `1.4.2` or `1.4.0-rc.1` belongs to.
    #[must_use]
    pub fn of(version: &str) -> Self {
        let mut numbers = version.split('.').map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Self(major, minor),
            _ => Self::FIRST,
        }
    }

    /// Whether it is the lowest.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        matches!(self, Self(0, 0))
    }
}

impl fmt::Display for MinorVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor) = self;
        write!(f, "{major}.{minor}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_their_first_two_numbers() {
        assert_eq!(MinorVersion::of("0.1.0"), MinorVersion(0, 1));
        assert_eq!(MinorVersion::of("1.12.3-rc.1"), MinorVersion(1, 12));
        assert!(MinorVersion::of("0.10.0") > MinorVersion::of("0.9.7"));
        for unsaid in ["", "x", "1", "1.x", "1.-2", "70000.1"] {
            assert_eq!(MinorVersion::of(unsaid), MinorVersion::FIRST, "{unsaid}");
        }
        assert_eq!(MinorVersion(1, 2).to_string(), "1.2");
    }
}
