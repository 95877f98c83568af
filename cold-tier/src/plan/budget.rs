//! Making a bucket's content fit its budget.

use std::cmp::Reverse;

use crate::checkpoint::{SegmentFacts, SegmentState};
use crate::plan::{Keep, Round, Step, has_values};

/// Tombstones may take up to this part of the budget (1/20) before the oldest values go first: only
/// that frees them.
const TOMBSTONES_PART: u64 = 20;

/// Doomed segments may exceed the budget by this part of it (1/20) until their grace is over.
const DOOMED_PART: u64 = 20;

/// The part of the bucket's budget that is one region's, if its segments have `own` bytes and those
/// of each other region `others`. What others do not take is for the regions that need it. If all
/// together exceed the budget, it is cut where those above the cut, which alone have to give up
/// anything, come down to it together: so no region drives out another that has less. Regions that
/// hold to it keep the budget.
pub(crate) fn part_of_budget(budget: u64, own: u64, mut others: Vec<u64>) -> u64 {
    let taken = others
        .iter()
        .fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    if taken.saturating_add(own) <= budget {
        return budget - taken;
    }
    others.push(own);
    others.sort_unstable();
    let mut rest = budget;
    let mut above = others.len() as u64;
    for bytes in others {
        if bytes.saturating_mul(above) > rest {
            return rest / above;
        }
        // It stays below the cut.
        rest -= bytes;
        above -= 1;
    }
    // All are below it, which is so only within the budget.
    rest
}

/// Adds what it takes to bring what stays down to `budget` bytes. A segment that is rewritten
/// counts with what is copied of it.
pub(super) fn enforce(round: &mut Round<'_>, budget: u64) {
    let segments = round.input.segments;
    let mut stays = round.copy_bytes;
    let mut doomed = 0;
    let mut tombstones = 0;
    for (id, facts) in segments {
        match facts.state {
            SegmentState::Lost { .. } => {}
            _ if round.is_taken(*id) => {
                // A segment that is rewritten is there until its own grace is over.
                if round.rewrites.iter().any(|step| step.segment() == *id) {
                    doomed += facts.size;
                }
            }
            SegmentState::Doomed { .. } if facts.live_entries == 0 => doomed += facts.size,
            _ => stays += facts.size,
        }
        if !has_values(facts) {
            tombstones += facts.size;
        }
    }
    cut_grace(round, budget, stays + doomed);
    if stays <= budget {
        return;
    }
    let mut candidates: Vec<&(u32, SegmentFacts)> = segments
        .iter()
        .filter(|(id, facts)| {
            has_values(facts)
                && facts.live_entries > 0
                && !matches!(facts.state, SegmentState::Lost { .. })
                && round.input.marks_in != Some(*id)
                && !round.is_taken(*id)
        })
        .collect();
    let is_pressed = tombstones > budget / TOMBSTONES_PART;
    if is_pressed {
        candidates.sort_by_key(|(id, facts)| (facts.min_version, *id));
    } else {
        candidates.sort_by_key(|(id, facts)| (facts.last_read_ms.max(facts.created_ms), *id));
    }
    for (id, facts) in candidates {
        if stays <= budget {
            return;
        }
        let since_ms = if is_pressed {
            u64::MAX
        } else {
            round.input.hot_since_ms
        };
        let keep = Keep::ReadSince(since_ms);
        let kept = round.copied_bytes(facts, keep);
        let step = Step::Rewrite { segment: *id, keep };
        if !round.add(step, facts) {
            return;
        }
        stays = stays.saturating_sub(facts.size).saturating_add(kept);
    }
}

/// Deletes doomed segments before their time, the longest doomed first, while there is more than
/// the budget and a margin. A reader that still reads from them has a miss.
fn cut_grace(round: &mut Round<'_>, budget: u64, mut total: u64) {
    let margin = budget.saturating_add(budget / DOOMED_PART);
    if total <= margin {
        return;
    }
    let mut doomed: Vec<(u64, &(u32, SegmentFacts))> = round
        .input
        .segments
        .iter()
        .filter(|(id, facts)| {
            facts.live_entries == 0 && !round.is_taken(*id) && round.input.marks_in != Some(*id)
        })
        .filter_map(|segment| match segment.1.state {
            SegmentState::Doomed { since_ms } => Some((since_ms, segment)),
            SegmentState::Live | SegmentState::Lost { .. } => None,
        })
        .collect();
    doomed.sort_by_key(|(since_ms, (_, facts))| (*since_ms, Reverse(facts.size)));
    for (_, (id, facts)) in doomed {
        if total <= margin || !round.add(Step::Delete(*id), facts) {
            return;
        }
        total = total.saturating_sub(facts.size);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_region_alone_has_all_of_the_budget() {
        assert_eq!(part_of_budget(100, 0, vec![]), 100);
        assert_eq!(part_of_budget(100, 500, vec![]), 100);
    }

    #[test]
    fn what_others_leave_is_free_and_the_largest_give_way() {
        assert_eq!(part_of_budget(100, 30, vec![20]), 80);
        // The larger one gives way, whichever region asks.
        assert_eq!(part_of_budget(100, 30, vec![90]), 70);
        assert_eq!(part_of_budget(100, 90, vec![30]), 70);
        assert_eq!(part_of_budget(100, 60, vec![60, 1]), 49);
        assert_eq!(part_of_budget(0, 60, vec![60, 1]), 0);
    }

    proptest! {
        #[test]
        fn all_together_keep_the_budget_and_no_region_gives_up_more_than_needed(
            budget in 0u64..10_000,
            sizes in proptest::collection::vec(0u64..5_000, 1..8),
        ) {
            let part = |index: usize| {
                let mut others = sizes.clone();
                let own = others.swap_remove(index);
                part_of_budget(budget, own, others)
            };
            let after: u64 = (0..sizes.len()).map(|index| sizes[index].min(part(index))).sum();
            let before: u64 = sizes.iter().sum();
            prop_assert!(after <= budget);
            // But for what is left of a division.
            prop_assert!(after + sizes.len() as u64 > before.min(budget));
        }
    }
}
