//! The bytes of a namespace on disk by age: the measure of a quota.
//!
//! A census reads the indexes, where the keys of a namespace are adjacent. So its cost is that of
//! the namespace alone. It counts what a read would find: of each key the newest record, if it is a
//! value that has neither expired nor been flushed. So overwritten, deleted, dropped and recoded
//! bytes need no separate account, and a restart loses no knowledge.

use std::collections::BTreeMap;

use fonn_base::entry::Space;
use fonn_proto::Version;

use super::Shared;
use super::error::DiskError;
use super::reader::{Merged, Met};
use super::record::Fact;

/// Keys that one step looks at, so that other reads need not wait for long.
const STEP_KEYS: usize = 4096;

/// Ages that are told apart; with more of them, neighbors become one.
const AGES_MAX: usize = 4096;

/// What a step came to: the census, and the space and key to go on behind, if there are more.
pub(crate) type Step = (Census, Option<(Space, Option<Vec<u8>>)>);

/// The live entries of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Entries.
    pub entries: u64,
    /// Bytes of their records on disk.
    pub bytes: u64,
    /// Bytes and entries by version, without its lowest `age_shift` bits.
    ages: BTreeMap<u64, (u64, u64)>,
    age_shift: u32,
    version_max: Version,
    /// Databases that have any.
    spaces: Vec<Space>,
}

/// What has to go so that the rest is within a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Entries of lower versions go.
    pub below: Version,
    /// How many those are.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Census {
    /// Databases that have entries.
    #[must_use]
    pub fn spaces(&self) -> &[Space] {
        &self.spaces
    }

    fn add(&mut self, space: Space, version: Version, bytes: u64) {
        self.entries += 1;
        self.bytes += bytes;
        self.version_max = self.version_max.max(version);
        if self.spaces.last() != Some(&space) {
            self.spaces.push(space);
        }
        let age = self.ages.entry(version >> self.age_shift).or_default();
        *age = (age.0 + bytes, age.1 + 1);
        while self.ages.len() > AGES_MAX {
            self.age_shift += 1;
            for (age, (bytes, entries)) in std::mem::take(&mut self.ages) {
                let wider = self.ages.entry(age >> 1).or_default();
                *wider = (wider.0 + bytes, wider.1 + entries);
            }
        }
    }

    /// The oldest entries that have to go for the rest to take no more than `bytes_max`; None if
    /// nothing has to.
    #[must_use]
    pub fn cut(&self, bytes_max: u64) -> Option<Cut> {
        if self.bytes <= bytes_max {
            return None;
        }
        let mut cut = Cut::default();
        for (age, (bytes, entries)) in &self.ages {
            if self.bytes - cut.bytes <= bytes_max {
                break;
            }
            // Versions to come must not be cut off with an age that is not over yet.
            cut.below = if *age == self.version_max >> self.age_shift {
                self.version_max.saturating_add(1)
            } else {
                (age + 1) << self.age_shift
            };
            cut.bytes += bytes;
            cut.entries += entries;
        }
        Some(cut)
    }
}

/// Goes on with a census.
pub(crate) fn step(
    shared: &Shared,
    mut census: Census,
    (start, after): (Space, Option<Vec<u8>>),
    now_ms: u64,
) -> Result<Step, DiskError> {
    let generations = shared.generations.snapshot();
    let state = shared.state();
    let mut merged = Merged::open(&generations, start, after.as_deref())?;
    let mut last = None;
    for _ in 0..STEP_KEYS {
        let met = merged.next()?;
        let is_of_it = |met: &Met| met.space.namespace() == start.namespace();
        let Some(Met {
            space, key, entry, ..
        }) = met.filter(is_of_it)
        else {
            return Ok((census, None));
        };
        if let Fact::Put(meta) = entry.fact
            && !meta.is_expired(now_ms)
            && !state.is_hidden(space, &meta, now_ms)
        {
            census.add(space, meta.version, u64::from(entry.record_len));
        }
        last = Some((space, Some(key)));
    }
    Ok((census, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(versions: impl IntoIterator<Item = Version>) -> Census {
        let mut census = Census::default();
        for version in versions {
            census.add(Space(3), version, 10);
        }
        census
    }

    #[test]
    fn the_oldest_are_cut_off_until_the_rest_is_within_the_limit() {
        let census = census([40, 10, 30, 20]);
        assert_eq!((census.bytes, census.entries), (40, 4));
        assert_eq!(census.cut(40), None);
        let cut = |bytes_max| census.cut(bytes_max).unwrap();
        assert_eq!((cut(39).below, cut(39).entries), (11, 1));
        assert_eq!((cut(20).below, cut(20).bytes), (21, 20));
        assert_eq!((cut(0).below, cut(0).entries), (41, 4));
    }

    #[test]
    fn many_ages_take_bounded_memory_and_the_cut_stays_near_and_below_what_comes() {
        let count = 100_000;
        let base = 1_900_000_000_000_u64 << 16;
        let census = census((0..count).map(|n| base + (n << 16)));
        assert!(census.ages.len() <= AGES_MAX);
        let cut = census.cut(count * 10 / 2).unwrap();
        assert!(
            (count / 2..count / 2 + 200).contains(&cut.entries),
            "{cut:?}"
        );
        assert_eq!(cut.bytes, cut.entries * 10);
        let all = census.cut(0).unwrap();
        assert_eq!(all.entries, count);
        assert_eq!(
            all.below,
            base + ((count - 1) << 16) + 1,
            "no version to come"
        );
    }
}
