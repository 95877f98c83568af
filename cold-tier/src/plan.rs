//! Collection of garbage, planned: which segments to delete, which to rewrite. It does nothing
//! itself; what it plans is safe whatever part of it is carried out, and when.
//!
//! What the collector does for a step:
//!
//! - [`Step::Delete`]: deletes the object; when the bucket has confirmed that, removes the segment
//!   and the entries that still lead to it from the index.
//! - [`Step::Rewrite`]: (several in a row into one segment) takes the entries of the index that
//!   lead to the segment. A value that has not expired, was not flushed and is to be kept is
//!   copied, byte for byte, into a new segment. Of any other entry that was not flushed a tombstone
//!   of its version is written if [`tombstone_needed`] says so, or the segment is not
//!   [old enough](is_settled); tombstones for which neither holds are left out. (A flush hides all
//!   older copies itself.) When the new segments are in the bucket, one batch puts their entries
//!   into the index, removes what was dropped, and marks the old segment as doomed. Tombstones go
//!   into segments of their own: one without values hinders nothing.
//!
//! Every new segment has a later creation time than those it was made from, and carries all flushes
//! known. Steps are taken in order, each before the next begins.
//!
//! Invariants, which the tests try to break with a model of bucket, writers and collector:
//!
//! - **No resurrection.** An index that is built from whatever objects there are at any moment
//!   never leads to a version older than the newest one that was in the bucket.
//! - Without a budget nothing is dropped that is the newest of its key, unless expired or flushed.
//! - With a budget, what stays after a few rounds is within 10 % of it, and nothing is dropped
//!   while what stays is below it. (The budget must be at least some twenty segments.)
//!
//! They rest on this: the index has merged every object older than the grace. What a writer could
//! not upload for longer than that it must compare with the index again before it does.

mod budget;
mod merge;

pub(crate) use budget::part_of_budget;

use crate::checkpoint::{SegmentFacts, SegmentState};
use crate::segment::Version;

/// A segment of which less than this part of the records counts is rewritten, in percent.
const LIVE_PERCENT_MIN: u128 = 30;

/// What a plan is made from.
#[derive(Clone, Debug)]
pub struct PlanInput<'a> {
    /// Unix time in milliseconds.
    pub now_ms: u64,
    /// The segments to plan for, by their numbers: all of a region, also doomed and lost ones.
    pub segments: &'a [(u32, SegmentFacts)],
    /// The oldest values in any segment that may exist: also in those of other regions, and in what
    /// could not be read.
    pub oldest: OldestValues,
    /// How many bytes the bucket may hold; `None`: as many as are spilled.
    pub budget: Option<u64>,
    /// How long a reader's index may be behind. For that time a doomed segment stays, and a new one
    /// is left alone.
    pub grace_ms: u64,
    /// How long segments of tombstones stay at least: an upload that is late by less finds them.
    pub tombstone_age_min_ms: u64,
    /// What was read since then (Unix time in milliseconds) is kept longer under a budget.
    pub hot_since_ms: u64,
    /// The segment whose footer carries every flush known, of several the one created last (then,
    /// of the highest name: two collectors must not each keep one and delete the other's). It
    /// stays. `None` only if no flush is known: otherwise the collector first writes an empty
    /// segment with all.
    pub marks_in: Option<u32>,
    /// How much one round may do.
    pub limits: PlanLimits,
}

/// How much one round may do, and from when on it is worth it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Most steps.
    pub steps_max: usize,
    /// Most bytes to copy, as far as can be told before; one segment may always be rewritten.
    pub copy_bytes_max: u64,
    /// A segment is not rewritten for less garbage than this, in bytes. A rewrite costs a GET and a
    /// share of a PUT, 1 MiB for a month some four times that.
    pub garbage_bytes_min: u64,
    /// How long a full segment is, in bytes; those of less than an eighth are small.
    pub segment_bytes: u64,
    /// So many small segments of about one size are merged at least. (More than eight, or what they
    /// are merged into is small again.)
    pub merge_min: usize,
}

impl Default for PlanLimits {
    fn default() -> Self {
        Self {
            steps_max: 64,
            copy_bytes_max: 256 << 20,
            garbage_bytes_min: 1 << 20,
            segment_bytes: 32 << 20,
            merge_min: 16,
        }
    }
}

/// One thing to do. Segments are named by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing in it matters, or its grace is over.
    Delete(u32),
    /// Copies what is to be kept; the segment is doomed afterwards.
    Rewrite {
        /// The segment.
        segment: u32,
        /// Which of its values.
        keep: Keep,
    },
}

impl Step {
    /// The segment that it is about.
    #[must_use]
    pub fn segment(self) -> u32 {
        let (Self::Delete(segment) | Self::Rewrite { segment, .. }) = self;
        segment
    }
}

/// Which values of a segment to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All that count.
    AllLive,
    /// Those that count and were read since then (Unix time in milliseconds), and of these at most
    /// half of the segment's bytes. `u64::MAX`: none.
    ReadSince(u64),
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps in their order: first those that delete.
    pub steps: Vec<Step>,
    /// There is more to do than the limits allow: plan again at once.
    pub is_cut: bool,
}

/// Whether dropping an entry must leave a tombstone (or a tombstone must stay), because a value of
/// its key that is no newer may be in another segment. `shadows` is the entry's bit, and
/// `oldest_other` what [`OldestValues::besides`] gives for the segment that the entry is in.
#[must_use]
pub fn tombstone_needed(at: Version, shadows: bool, oldest_other: Version) -> bool {
    shadows && oldest_other <= at
}

/// Whether a tombstone of that version has to stay for uploads that are late.
#[must_use]
pub fn is_young(at: Version, now_ms: u64, tombstone_age_min_ms: u64) -> bool {
    let written_ms = fonn_base::hlc::wall_ms(at);
    written_ms.saturating_add(tombstone_age_min_ms) > now_ms
}

/// Whether every copy older than what is in the segment has been merged into every index: it is
/// older than the grace.
#[must_use]
pub fn is_settled(facts: &SegmentFacts, now_ms: u64, grace_ms: u64) -> bool {
    now_ms >= facts.created_ms.saturating_add(grace_ms)
}

/// Plans a round.
#[must_use]
pub fn plan(input: &PlanInput<'_>) -> Plan {
    let mut round = Round::new(input);
    for (id, facts) in input.segments {
        if let Some(step) = round.judge(*id, facts) {
            round.add(step, facts);
        }
    }
    merge::add(&mut round);
    if let Some(budget) = input.budget {
        budget::enforce(&mut round, budget);
    }
    round.finish()
}

fn has_values(facts: &SegmentFacts) -> bool {
    facts.entries > facts.tombstones
}

/// A round that is being planned.
struct Round<'a> {
    input: &'a PlanInput<'a>,
    deletes: Vec<Step>,
    rewrites: Vec<Step>,
    /// Segments with a step already.
    taken: Vec<u32>,
    copy_bytes: u64,
    copy_bytes_max: u64,
    is_cut: bool,
}

impl<'a> Round<'a> {
    fn new(input: &'a PlanInput<'a>) -> Self {
        // Copies are on top of what is there, until the old segments are deleted.
        let copy_bytes_max = match input.budget {
            Some(budget) => input.limits.copy_bytes_max.min(budget / 20),
            None => input.limits.copy_bytes_max,
        };
        Self {
            input,
            deletes: Vec::new(),
            rewrites: Vec::new(),
            taken: Vec::new(),
            copy_bytes: 0,
            copy_bytes_max,
            is_cut: false,
        }
    }

    /// What becomes of a segment whatever the budget is.
    fn judge(&self, id: u32, facts: &SegmentFacts) -> Option<Step> {
        let input = self.input;
        if input.marks_in == Some(id) {
            return None;
        }
        let delete = Step::Delete(id);
        let rewrite = Step::Rewrite {
            segment: id,
            keep: Keep::AllLive,
        };
        let is_over = |since_ms: u64| input.now_ms >= since_ms.saturating_add(input.grace_ms);
        let is_dead = facts.live_entries == 0;
        match facts.state {
            // There is no object. The comparison with the bucket forgets it.
            SegmentState::Lost { .. } => return None,
            SegmentState::Doomed { since_ms } if is_dead => {
                return is_over(since_ms).then_some(delete);
            }
            SegmentState::Doomed { .. } | SegmentState::Live => {}
        }
        if is_dead {
            return Some(delete);
        }
        if !is_settled(facts, input.now_ms, input.grace_ms) {
            return None;
        }
        let hides = input.oldest.besides(id) <= facts.max_version;
        if !has_values(facts) && !hides {
            let is_old = is_settled(facts, input.now_ms, input.tombstone_age_min_ms);
            return is_old.then_some(delete);
        }
        if has_values(facts) && facts.expires_max_ms <= input.now_ms {
            return Some(rewrite);
        }
        if facts.tombstones > 0 && facts.live_entries <= facts.tombstones && !hides {
            return Some(rewrite);
        }
        let garbage = facts.data_len.saturating_sub(facts.live_bytes);
        let live_min = u128::from(facts.data_len) * LIVE_PERCENT_MIN / 100;
        let is_garbage =
            u128::from(facts.live_bytes) < live_min && garbage >= input.limits.garbage_bytes_min;
        is_garbage.then_some(rewrite)
    }

    /// Adds a step, if the limits allow it.
    fn add(&mut self, step: Step, facts: &SegmentFacts) -> bool {
        let steps = self.deletes.len() + self.rewrites.len();
        if steps >= self.input.limits.steps_max {
            self.is_cut = true;
            return false;
        }
        match step {
            Step::Delete(id) => {
                self.taken.push(id);
                self.deletes.push(step);
            }
            Step::Rewrite { segment, keep } => {
                let bytes = self.copy_bytes + self.copied_bytes(facts, keep);
                if !self.rewrites.is_empty() && bytes > self.copy_bytes_max {
                    self.is_cut = true;
                    return false;
                }
                self.copy_bytes = bytes;
                self.taken.push(segment);
                self.rewrites.push(step);
            }
        }
        true
    }

    /// How many of these segments, in their order, can be copied as a whole within the limits.
    fn fits<'f>(&self, segments: impl Iterator<Item = &'f SegmentFacts>) -> usize {
        let steps = self.deletes.len() + self.rewrites.len();
        let mut bytes = self.copy_bytes;
        segments
            .take(self.input.limits.steps_max.saturating_sub(steps))
            .take_while(|facts| {
                bytes += self.copied_bytes(facts, Keep::AllLive);
                bytes <= self.copy_bytes_max
            })
            .count()
    }

    /// At most so many bytes a rewrite copies (values; tombstones are short).
    fn copied_bytes(&self, facts: &SegmentFacts, keep: Keep) -> u64 {
        match keep {
            Keep::AllLive if facts.expires_max_ms <= self.input.now_ms => 0,
            Keep::AllLive => facts.live_bytes,
            Keep::ReadSince(since_ms) if facts.last_read_ms < since_ms => 0,
            Keep::ReadSince(_) => (facts.data_len / 2).min(facts.live_bytes),
        }
    }

    fn is_taken(&self, id: u32) -> bool {
        self.taken.contains(&id)
    }

    fn finish(self) -> Plan {
        Plan {
            steps: self.deletes.into_iter().chain(self.rewrites).collect(),
            is_cut: self.is_cut,
        }
    }
}

/// The two segments with the oldest values, to ask for the oldest besides one of them.
#[derive(Clone, Copy, Debug)]
pub struct OldestValues([Option<(Version, u32)>; 2]);

impl OldestValues {
    /// Where any value may be in any segment.
    pub const UNKNOWN: Self = Self([Some((0, u32::MAX)), None]);

    /// Those of all `segments`, by their numbers.
    pub fn of<'a>(segments: impl IntoIterator<Item = (u32, &'a SegmentFacts)>) -> Self {
        let mut lowest = [None, None];
        for (id, facts) in segments {
            if !has_values(facts) {
                continue;
            }
            let this = (facts.min_version, id);
            if lowest[0].is_none_or(|first| this < first) {
                lowest = [Some(this), lowest[0]];
            } else if lowest[1].is_none_or(|second| this < second) {
                lowest[1] = Some(this);
            }
        }
        Self(lowest)
    }

    /// The version of the oldest value in a segment other than `id`, which is a segment's number;
    /// [`Version::MAX`] if there is none.
    #[must_use]
    pub fn besides(&self, id: u32) -> Version {
        let others = self.0.into_iter().flatten();
        let mut others = others.filter(|(_, other)| *other != id);
        others.next().map_or(Version::MAX, |(version, _)| version)
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
