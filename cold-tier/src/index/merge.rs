//! What becomes of a copy that arrives: whether it takes the place of the present one.
//!
//! Pure. Which of two copies counts, [`IndexEntry::merge`] decides; here it meets what the index
//! knows of the segments.

use crate::checkpoint::IndexEntry;

/// What becomes of an arriving copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merge {
    /// The present copy stays as it is.
    Keep,
    /// The present copy stays and shadows the arriving one from now on.
    Shadow(IndexEntry),
    /// The arriving copy takes the place.
    Replace {
        /// The entry to write.
        entry: IndexEntry,
        /// Whether it is newer than what was there, so that copies elsewhere are out of date.
        is_newer: bool,
    },
}

/// A copy, and when its segment was made: Unix time in milliseconds. None: the segment is gone, as
/// far as this node knows.
pub(crate) type Placed<'a> = (&'a IndexEntry, Option<u64>);

/// Merges an arriving copy with the present one.
pub(crate) fn merge(
    present: Option<Placed<'_>>,
    (arriving, created_ms): (&IndexEntry, u64),
) -> Merge {
    let Some((present, present_created_ms)) = present else {
        return Merge::Replace {
            entry: *arriving,
            is_newer: true,
        };
    };
    let merged = match present_created_ms {
        Some(present_created_ms) => present.merge(present_created_ms, *arriving, created_ms),
        // A copy that cannot be read keeps older ones away, yet any equal is better.
        None if arriving.at == present.at => IndexEntry {
            shadows: present.shadows,
            ..*arriving
        },
        None => present.merge(0, *arriving, created_ms),
    };
    if merged == *present {
        Merge::Keep
    } else if (merged.segment, merged.offset) == (present.segment, present.offset) {
        Merge::Shadow(merged)
    } else {
        let is_newer = merged.at > present.at;
        Merge::Replace {
            entry: merged,
            is_newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::KeyHash;

    fn copy(segment: u32, version: u64) -> IndexEntry {
        IndexEntry {
            hash: KeyHash::of(0, b"k"),
            space: 0,
            segment,
            offset: u64::from(segment) * 10,
            len: 5,
            at: version,
            expires_at_ms: 0,
            tombstone: version.is_multiple_of(3),
            shadows: false,
        }
    }

    #[test]
    fn an_older_copy_is_a_shadow_wherever_it_is() {
        let outcome = merge(Some((&copy(1, 7), Some(1))), (&copy(2, 5), 2));
        let shadows = Merge::Shadow(IndexEntry {
            shadows: true,
            ..copy(1, 7)
        });
        assert_eq!(outcome, shadows);
    }

    #[test]
    fn a_moved_copy_is_neither_newer_nor_a_shadow() {
        let old = copy(1, 7);
        let outcome = merge(Some((&old, Some(1))), (&copy(2, 7), 2));
        let Merge::Replace { entry, is_newer } = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!((entry.segment, entry.shadows, is_newer), (2, false, false));
        assert_eq!(merge(Some((&entry, Some(2))), (&old, 1)), Merge::Keep);
    }

    #[test]
    fn a_copy_whose_segment_is_gone_gives_way_to_its_equal_only() {
        let gone = copy(9, 7);
        let older = merge(Some((&gone, None)), (&copy(1, 5), 100));
        assert!(matches!(older, Merge::Shadow(_)), "{older:?}");
        let equal = merge(Some((&gone, None)), (&copy(1, 7), 1));
        assert!(matches!(
            equal,
            Merge::Replace {
                is_newer: false,
                ..
            }
        ));
        let newer = merge(Some((&gone, None)), (&copy(1, 8), 1));
        assert!(matches!(newer, Merge::Replace { is_newer: true, .. }));
    }

    #[test]
    fn a_repetition_changes_nothing() {
        let entry = copy(1, 7);
        assert_eq!(merge(Some((&entry, Some(1))), (&entry, 1)), Merge::Keep);
    }
}
