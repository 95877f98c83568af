//! How new the records of the newest generation are, by stripes of keys.
//!
//! Writes of one key come in the order of their versions, but for those that overtook each other on
//! the way from another member. So nearly every write is newer than all records of its stripe, and
//! the index need not be asked about its key.

use fonn_proto::Version;
use fonn_proto::hash::fnv1a;

/// Stripes of keys. Versions are times, and a stripe of a store that takes 100,000 writes a second
/// has one in 40 ms: more than clocks of members differ.
const STRIPES: usize = 4096;

/// The highest version of each stripe in one generation.
#[derive(Debug)]
pub(super) struct Bounds {
    /// The generation. None if it had records before its bounds were noted.
    generation: Option<u64>,
    stripes: Vec<Version>,
}

impl Bounds {
    pub(super) fn new() -> Self {
        Self {
            generation: None,
            stripes: vec![0; STRIPES],
        }
    }

    /// Whether it is known that a generation has no record of the key that is as new.
    pub(super) fn are_below(&self, generation: u64, key: &[u8], version: Version) -> bool {
        let bound = self.stripes.get(stripe(key));
        self.generation == Some(generation) && bound.is_some_and(|bound| version > *bound)
    }

    /// Notes that records are appended to a generation from the position `start` of its log on:
    /// [`Bounds::note`] comes for each of them.
    pub(super) fn begin(&mut self, generation: u64, start: u64) {
        if start == 0 {
            self.generation = Some(generation);
            self.stripes.fill(0);
        } else if self.generation != Some(generation) {
            self.generation = None;
        }
    }

    /// Notes a record.
    pub(super) fn note(&mut self, key: &[u8], version: Version) {
        if let Some(bound) = self.stripes.get_mut(stripe(key)) {
            *bound = version.max(*bound);
        }
    }
}

fn stripe(key: &[u8]) -> usize {
    fnv1a(key) as usize % STRIPES
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_key_with_a_record_as_new_is_below_them(
            steps in prop::collection::vec((0..3u64, 0..20u8, 1..9u64, any::<bool>()), 1..200),
        ) {
            let mut bounds = Bounds::new();
            // The first generation was there before.
            let mut logs = HashMap::from([(0, HashMap::from([(0, 8)]))]);
            let mut newest = 0;
            for (generation, key, version, is_written) in steps {
                // Generations follow each other, and none comes back.
                newest = newest.max(generation);
                let log = logs.entry(newest).or_default();
                let known = log.get(&key).copied().unwrap_or_default();
                prop_assert!(!bounds.are_below(newest, &[key], version) || version > known);
                if is_written {
                    bounds.begin(newest, log.len() as u64);
                    bounds.note(&[key], version);
                    log.insert(key, version.max(known));
                }
            }
        }
    }

    #[test]
    fn a_later_write_is_newer_than_all_of_its_stripe() {
        let mut bounds = Bounds::new();
        assert!(!bounds.are_below(7, b"k", 2));
        bounds.begin(7, 0);
        assert!(bounds.are_below(7, b"k", 2));
        bounds.note(b"k", 2);
        assert!(!bounds.are_below(7, b"k", 2));
        assert!(bounds.are_below(7, b"k", 3));
        assert!(!bounds.are_below(8, b"k", 3));
        bounds.begin(8, 0);
        assert!(bounds.are_below(8, b"k", 2));
    }
}
