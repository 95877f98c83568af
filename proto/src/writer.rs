//! The writer of an entry, as each copy of the entry names it, and purges of what one wrote.

use std::num::NonZeroU32;

use crate::{Space, Version};

/// The number of the identity that wrote an entry; none where the server has no users.
///
/// The number is made of the identity's name alone, so that members need not agree on a table
/// (ADR 0022). Two names may have the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(Option<NonZeroU32>);

impl WriterId {
    /// No identity is known.
    pub const NONE: Self = Self(None);

    /// The writer with this number; 0 means none.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(NonZeroU32::new(number))
    }

    /// The number, 0 for none.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self.0 {
            Some(number) => number.get(),
            None => 0,
        }
    }

    /// Whether an identity is known.
    #[must_use]
    pub const fn is_known(self) -> bool {
        self.0.is_some()
    }
}

/// Which entries of a writer a purge is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PurgeScope {
    /// The identity that wrote them.
    pub writer: WriterId,
    /// The namespace that they are in; every one without it.
    pub namespace: Option<u32>,
    /// The lowest version that is purged; 0 for all.
    pub since: Version,
}

impl PurgeScope {
    /// The place of a purge of every namespace: no namespace's first database.
    pub const EVERYWHERE: u32 = u32::MAX;

    /// The purge that formats write as writer, place and first version. None if the writer is
    /// none, or the place is neither the first database of a namespace nor
    /// [`Self::EVERYWHERE`].
    #[must_use]
    pub fn new(writer: WriterId, place: u32, since: Version) -> Option<Self> {
        let namespace = match Space(place) {
            _ if place == Self::EVERYWHERE => None,
            space if space.database() == 0 => Some(space.namespace()),
            _ => return None,
        };
        writer.is_known().then_some(Self {
            writer,
            namespace,
            since,
        })
    }

    /// The number that formats keep for the namespace.
    #[must_use]
    pub fn place(&self) -> u32 {
        match self.namespace {
            Some(namespace) => Space::new(namespace, 0).0,
            None => Self::EVERYWHERE,
        }
    }

    /// Whether it is about an entry of this writer with this version.
    #[must_use]
    pub fn covers(&self, space: Space, writer: WriterId, version: Version) -> bool {
        self.writer == writer
            && version >= self.since
            && self.namespace.is_none_or(|it| it == space.namespace())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_covers_one_writer_in_one_namespace_from_a_version_on() {
        let writer = WriterId::new(7);
        let purge = PurgeScope {
            writer,
            namespace: Some(3),
            since: 100,
        };
        assert!(purge.covers(Space::new(3, 15), writer, 100));
        assert!(!purge.covers(Space::new(3, 15), writer, 99));
        assert!(!purge.covers(Space::new(4, 0), writer, 100));
        assert!(!purge.covers(Space::new(3, 0), WriterId::new(8), 100));
        assert!(!purge.covers(Space::new(3, 0), WriterId::NONE, 100));
        let everywhere = PurgeScope {
            namespace: None,
            ..purge
        };
        assert!(everywhere.covers(Space::new(4, 0), writer, 100));
    }

    #[test]
    fn a_purge_comes_back_from_the_numbers_of_a_format() {
        let writer = WriterId::new(7);
        for namespace in [None, Some(0), Some(4095)] {
            let purge = PurgeScope {
                writer,
                namespace,
                since: 9,
            };
            let read = PurgeScope::new(purge.writer, purge.place(), purge.since);
            assert_eq!(read, Some(purge));
        }
        assert_eq!(PurgeScope::new(WriterId::NONE, 0, 9), None);
        assert_eq!(PurgeScope::new(writer, 17, 9), None);
    }
}
