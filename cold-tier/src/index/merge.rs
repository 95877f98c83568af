//! What becomes of a copy that arrives: whether it takes the place of the present one.
//!
//! Pure. Which of two copies counts, [`IndexEntry::merge`] decides; here it meets what the index
//! knows of the segments.

use crate::checkpoint::IndexEntry;

/// A copy, and when its segment was made: Unix time in milliseconds. None: the segment is gone, as
/// far as this node knows.
pub(crate) type Placed<'a> = (&'a IndexEntry, Option<u64>);

/// The entry of a key once a copy has arrived. None: the present one stays as it is.
pub(crate) fn merge(
    present: Option<Placed<'_>>,
    (arriving, created_ms): (&IndexEntry, u64),
) -> Option<IndexEntry> {
    let Some((present, present_created_ms)) = present else {
        return Some(*arriving);
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
    (merged != *present).then_some(merged)
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
        let merged = merge(Some((&copy(1, 7), Some(1))), (&copy(2, 5), 2));
        let shadows = IndexEntry {
            shadows: true,
            ..copy(1, 7)
        };
        assert_eq!(merged, Some(shadows));
    }

    #[test]
    fn a_moved_copy_takes_the_place_and_is_no_shadow() {
        let old = copy(1, 7);
        let entry = merge(Some((&old, Some(1))), (&copy(2, 7), 2)).unwrap();
        assert_eq!((entry.segment, entry.shadows), (2, false));
        assert_eq!(merge(Some((&entry, Some(2))), (&old, 1)), None);
    }

    #[test]
    fn a_copy_whose_segment_is_gone_gives_way_to_its_equal_only() {
        let gone = copy(9, 7);
        let merged = |arriving, created_ms| {
            let merged = merge(Some((&gone, None)), (&arriving, created_ms));
            merged.map(|entry| (entry.segment, entry.at))
        };
        assert_eq!(merged(copy(1, 5), 100), Some((9, 7)));
        assert_eq!(merged(copy(1, 7), 1), Some((1, 7)));
        assert_eq!(merged(copy(1, 8), 1), Some((1, 8)));
    }

    #[test]
    fn a_repetition_changes_nothing() {
        let entry = copy(1, 7);
        assert_eq!(merge(Some((&entry, Some(1))), (&entry, 1)), None);
    }
}
