//! Making few segments out of many small ones, which a node with little to spill leaves every few
//! seconds.
//!
//! An object costs something for as long as it is there, however little is in it: a row in every
//! index, a GET for each node that builds an index from footers or verifies the bucket, and its
//! share of each comparison with the bucket (a LIST names 1,000). With S3's prices the last alone
//! is $3.60 a month for a million segments, each node and one comparison an hour. Merging a million
//! of them costs $0.80 of GETs (footer and records), and $5 of PUTs and $0.40 of each follower's
//! GETs, divided by how many go into one: with 16, some $1.20, which is back after ten days with
//! one node, after three with three.
//!
//! Segments are merged with others of about their size, so that a byte is copied once for each
//! factor of [`STEP`] that its segment grows by, and with those made at about the same time, so
//! that old and new are given up apart. Values and tombstones alone are not mixed.

use crate::checkpoint::{SegmentFacts, SegmentState};
use crate::plan::{Keep, Round, Step, has_values, is_settled};

/// Segments of which the larger has less than so many times the bytes are of about one size. A
/// merged segment is larger than that as long as the fewest that are merged are more.
const STEP: u64 = 8;

/// How small a segment is: 0 if it is not, then one more for each factor of [`STEP`].
pub(super) fn smallness(live_bytes: u64, segment_bytes: u64) -> u32 {
    let mut smallness = 0;
    let mut bound = segment_bytes / STEP;
    while live_bytes < bound {
        smallness += 1;
        bound /= STEP;
    }
    smallness
}

/// Adds the merges that pay, the smallest segments first.
pub(super) fn add(round: &mut Round<'_>) {
    let input = round.input;
    let limits = input.limits;
    let mut small: Vec<(u32, bool, &(u32, SegmentFacts))> = input
        .segments
        .iter()
        .filter(|(id, facts)| {
            facts.state == SegmentState::Live
                && facts.live_entries > 0
                && is_settled(facts, input.now_ms, input.grace_ms)
                && input.marks_in != Some(*id)
                && !round.is_taken(*id)
        })
        .map(|segment| {
            let facts = &segment.1;
            let smallness = smallness(facts.live_bytes, limits.segment_bytes);
            (smallness, has_values(facts), segment)
        })
        .filter(|(smallness, _, _)| *smallness > 0)
        .collect();
    small.sort_by_key(|(smallness, has_values, (id, facts))| {
        (
            std::cmp::Reverse(*smallness),
            *has_values,
            facts.created_ms,
            *id,
        )
    });
    for alike in small.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let mut rest = alike;
        while rest.len() >= limits.merge_min {
            let fits = round.fits(rest.iter().map(|(_, _, (_, facts))| facts));
            let count = fits.min(rest.len());
            if count < limits.merge_min {
                // Fewer would have to be merged again soon.
                round.is_cut = true;
                return;
            }
            let (now, later) = rest.split_at(count);
            for (_, _, (id, facts)) in now {
                let step = Step::Rewrite {
                    segment: *id,
                    keep: Keep::AllLive,
                };
                if !round.add(step, facts) {
                    return;
                }
            }
            rest = later;
        }
    }
}
