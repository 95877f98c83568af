use proptest::prelude::*;

use super::model::{GRACE_MS, Kind, Op, World};
use super::*;
use crate::names::{SegmentName, WriterId};

const NOW_MS: u64 = 10_000_000;

/// An old segment of 10 values, of which all count.
fn segment(id: u32) -> (u32, SegmentFacts) {
    let facts = SegmentFacts {
        name: SegmentName {
            region: "r".parse().unwrap(),
            writer: WriterId::mint(0, 0),
            seq: u64::from(id),
        },
        size: 10 << 20,
        data_len: 10 << 20,
        live_bytes: 10 << 20,
        entries: 10,
        live_entries: 10,
        tombstones: 0,
        min_version: u64::from(id) * 100,
        max_version: u64::from(id) * 100 + 99,
        expires_max_ms: u64::MAX,
        created_ms: 1000 + u64::from(id),
        last_read_ms: 0,
        state: SegmentState::Live,
    };
    (id, facts)
}

/// An old segment of tombstones.
fn tombstones(id: u32) -> (u32, SegmentFacts) {
    let (id, facts) = segment(id);
    let facts = SegmentFacts {
        tombstones: 10,
        min_version: Version::MAX,
        expires_max_ms: 0,
        size: 1000,
        data_len: 800,
        live_bytes: 800,
        ..facts
    };
    (id, facts)
}

fn oldest(segments: &[(u32, SegmentFacts)]) -> OldestValues {
    OldestValues::of(segments.iter().map(|(id, facts)| (*id, facts)))
}

fn input(segments: &[(u32, SegmentFacts)]) -> PlanInput<'_> {
    PlanInput {
        now_ms: NOW_MS,
        segments,
        oldest: oldest(segments),
        budget: None,
        grace_ms: GRACE_MS,
        tombstone_age_min_ms: GRACE_MS,
        hot_since_ms: NOW_MS - 1000,
        marks_in: None,
        limits: PlanLimits::default(),
    }
}

fn steps(input: &PlanInput<'_>) -> Vec<Step> {
    plan(input).steps
}

fn rewrite(segment: u32, keep: Keep) -> Step {
    Step::Rewrite { segment, keep }
}

#[test]
fn what_counts_stays() {
    let segments = [segment(0), segment(1), tombstones(2)];
    assert_eq!(plan(&input(&segments)), Plan::default());
}

#[test]
fn a_segment_that_nothing_leads_to_is_deleted() {
    let mut segments = [segment(0), segment(1)];
    segments[1].1.live_entries = 0;
    assert_eq!(steps(&input(&segments)), [Step::Delete(1)]);
    // But not the one that tells of flushes.
    let input = PlanInput {
        marks_in: Some(1),
        ..input(&segments)
    };
    assert_eq!(steps(&input), []);
}

#[test]
fn a_doomed_segment_stays_for_its_grace() {
    let mut segments = [segment(0)];
    segments[0].1.live_entries = 0;
    for (since_ms, expected) in [
        (NOW_MS - GRACE_MS + 1, vec![]),
        (NOW_MS - GRACE_MS, vec![Step::Delete(0)]),
    ] {
        segments[0].1.state = SegmentState::Doomed { since_ms };
        assert_eq!(steps(&input(&segments)), expected);
    }
    // What still counts in it keeps it.
    segments[0].1.live_entries = 10;
    assert_eq!(steps(&input(&segments)), []);
}

#[test]
fn garbage_is_collected_below_the_ratio_and_above_the_minimum() {
    let mut segments = [segment(0)];
    for (live_bytes, is_collected) in [(3 << 20, false), ((3 << 20) - 1, true)] {
        segments[0].1.live_bytes = live_bytes;
        let expected = [rewrite(0, Keep::AllLive)];
        let expected = if is_collected { &expected[..] } else { &[] };
        assert_eq!(steps(&input(&segments)), expected);
    }
    segments[0].1.data_len = 1 << 20;
    segments[0].1.live_bytes = 1;
    assert_eq!(steps(&input(&segments)), []);
}

#[test]
fn a_new_segment_is_left_alone() {
    let mut segments = [segment(0), tombstones(1)];
    segments[0].1.expires_max_ms = 1;
    for (_, facts) in &mut segments {
        facts.created_ms = NOW_MS - GRACE_MS + 1;
    }
    assert_eq!(steps(&input(&segments)), []);
    for (_, facts) in &mut segments {
        facts.created_ms -= 1;
    }
    assert_eq!(steps(&input(&segments)), [rewrite(0, Keep::AllLive)]);
}

#[test]
fn tombstones_stay_while_there_is_an_older_value() {
    let mut segments = vec![segment(0), tombstones(5), tombstones(3)];
    assert_eq!(steps(&input(&segments)), []);
    for state in [
        SegmentState::Doomed { since_ms: NOW_MS },
        SegmentState::Lost { since_ms: NOW_MS },
    ] {
        segments[0].1.state = state;
        segments[0].1.live_entries = 0;
        assert_eq!(steps(&input(&segments)), []);
    }
    // A newer one does not matter, nor do other tombstones.
    segments[0] = segment(6);
    assert_eq!(steps(&input(&segments)), [5, 3].map(Step::Delete));
    assert!(!tombstone_needed(300, true, oldest(&segments).besides(9)));
    let older = oldest(&[segment(2), tombstones(3)]).besides(9);
    // A value of the same version, too, may be a copy of what is dropped.
    assert!(tombstone_needed(200, true, older));
    assert!(!tombstone_needed(199, true, older));
    assert!(!tombstone_needed(200, false, older));
}

#[test]
fn the_oldest_values_besides_a_segment_are_known() {
    let segments = [segment(3), segment(1), tombstones(0), segment(2)];
    let oldest = oldest(&segments);
    let besides = [0, 1, 2, 3].map(|id| oldest.besides(id));
    assert_eq!(besides, [100, 200, 100, 100]);
    let none = OldestValues::of([]);
    assert_eq!(none.besides(0), Version::MAX);
}

#[test]
fn values_of_another_region_keep_tombstones_and_nothing_else() {
    let own = [tombstones(5)];
    assert_eq!(steps(&input(&own)), [Step::Delete(5)]);
    let beside = PlanInput {
        oldest: oldest(&[segment(0)]),
        // However much there is to be given up, it is not theirs.
        budget: Some(1),
        ..input(&own)
    };
    assert_eq!(steps(&beside), []);
}

#[test]
fn tombstones_with_nothing_to_hide_stay_for_uploads_that_are_late() {
    let segments = [tombstones(3), segment(6)];
    let after = |tombstone_age_min_ms| PlanInput {
        tombstone_age_min_ms,
        ..input(&segments)
    };
    let age_ms = NOW_MS - segments[0].1.created_ms;
    assert_eq!(steps(&after(age_ms + 1)), []);
    assert_eq!(steps(&after(age_ms)), [Step::Delete(3)]);
}

#[test]
fn a_mixed_segment_whose_values_are_gone_gives_its_tombstones_up() {
    let mut segments = [segment(0)];
    segments[0].1.tombstones = 8;
    segments[0].1.live_entries = 8;
    let expected = [rewrite(0, Keep::AllLive)];
    assert_eq!(steps(&input(&segments)), expected);
    let with_older = [segment(0), {
        let mut later = segments[0].clone();
        later.0 = 1;
        later.1.max_version = 500;
        later
    }];
    assert_eq!(steps(&input(&with_older)), []);
}

#[test]
fn a_lost_segment_is_left_to_the_comparison_with_the_bucket() {
    for live_entries in [10, 0] {
        let (id, facts) = segment(0);
        let state = SegmentState::Lost { since_ms: 1 };
        let lost = SegmentFacts {
            state,
            live_entries,
            ..facts
        };
        let segments = [(id, lost), segment(1)];
        let input = PlanInput {
            budget: Some(1 << 30),
            ..input(&segments)
        };
        assert_eq!(steps(&input), []);
    }
}

#[test]
fn the_budget_takes_what_was_not_read_for_the_longest_time() {
    let mut segments: Vec<_> = (0..40).map(segment).collect();
    segments[0].1.last_read_ms = NOW_MS;
    segments[1].1.last_read_ms = NOW_MS - 2000;
    let budget = Some(37 * (10 << 20));
    let input = PlanInput {
        budget,
        ..input(&segments)
    };
    let keep = Keep::ReadSince(NOW_MS - 1000);
    let expected = [2, 3, 4].map(|id| rewrite(id, keep));
    assert_eq!(steps(&input), expected);
    // Nothing at the budget.
    let budget = Some(40 * (10 << 20));
    assert_eq!(steps(&PlanInput { budget, ..input }), []);
}

#[test]
fn what_is_hot_counts_half() {
    let mut segments: Vec<_> = (0..40).map(segment).collect();
    for (_, facts) in &mut segments {
        facts.last_read_ms = NOW_MS;
    }
    let mut input = PlanInput {
        budget: Some(39 * (10 << 20)),
        ..input(&segments)
    };
    let keep = Keep::ReadSince(NOW_MS - 1000);
    let expected = [0, 1].map(|id| rewrite(id, keep));
    assert_eq!(steps(&input), expected);
    // The copies of a round are a small part of the budget.
    input.budget = Some(30 * (10 << 20));
    let plan = plan(&input);
    assert_eq!(plan.steps.len(), 3);
    assert!(plan.is_cut);
}

#[test]
fn the_grace_is_cut_when_the_budget_demands_it() {
    let mut segments: Vec<_> = (0..24).map(segment).collect();
    for (id, facts) in &mut segments[..4] {
        facts.live_entries = 0;
        let since_ms = NOW_MS - u64::from(*id) - 1;
        facts.state = SegmentState::Doomed { since_ms };
    }
    let input = PlanInput {
        budget: Some(20 * (10 << 20)),
        ..input(&segments)
    };
    let expected = [3, 2, 1].map(Step::Delete);
    assert_eq!(steps(&input), expected);
}

#[test]
fn too_many_tombstones_take_the_oldest_values_with_them() {
    let mut segments: Vec<_> = (0..40).map(segment).collect();
    segments[7].1.last_read_ms = 1;
    segments[7].1.min_version = 0;
    segments[0].1.min_version = 1;
    segments.push(tombstones(40));
    segments[40].1.size = 30 << 20;
    let input = PlanInput {
        budget: Some(42 * (10 << 20)),
        ..input(&segments)
    };
    let expected = [rewrite(7, Keep::ReadSince(u64::MAX))];
    assert_eq!(steps(&input), expected);
}

#[test]
fn a_round_is_bounded() {
    let mut segments: Vec<_> = (0..200).map(segment).collect();
    for (_, facts) in &mut segments[..100] {
        facts.live_entries = 0;
    }
    let plan_all = plan(&input(&segments));
    assert_eq!(plan_all.steps.len(), 64);
    assert!(plan_all.is_cut);
    // One is rewritten however long it is.
    for (_, facts) in &mut segments {
        facts.live_bytes = 2 << 20;
        facts.live_entries = 1;
    }
    let limits = PlanLimits {
        copy_bytes_max: 5 << 20,
        ..PlanLimits::default()
    };
    let input = PlanInput {
        limits,
        ..input(&segments)
    };
    assert_eq!(plan(&input).steps.len(), 2);
    let limits = PlanLimits {
        copy_bytes_max: 1,
        ..limits
    };
    assert_eq!(plan(&PlanInput { limits, ..input }).steps.len(), 1);
}

/// An old segment of 10 values of 1 KiB.
fn small(id: u32) -> (u32, SegmentFacts) {
    let (id, facts) = segment(id);
    let facts = SegmentFacts {
        size: 11 << 10,
        data_len: 10 << 10,
        live_bytes: 10 << 10,
        ..facts
    };
    (id, facts)
}

fn merge(ids: impl IntoIterator<Item = u32>) -> Vec<Step> {
    let step = |id| rewrite(id, Keep::AllLive);
    ids.into_iter().map(step).collect()
}

#[test]
fn small_segments_are_merged_when_there_are_enough_of_them() {
    let segments: Vec<_> = (0..16).map(small).collect();
    assert_eq!(steps(&input(&segments[1..])), []);
    assert_eq!(steps(&input(&segments)), merge(0..16));
    // Not with what is left alone: new ones, the one that tells of flushes, lost and doomed ones.
    let mut others = segments.clone();
    others[3].1.created_ms = NOW_MS;
    assert_eq!(steps(&input(&others)), []);
    let marks = PlanInput {
        marks_in: Some(5),
        ..input(&segments)
    };
    assert_eq!(steps(&marks), []);
    for state in [
        SegmentState::Lost { since_ms: NOW_MS },
        SegmentState::Doomed { since_ms: NOW_MS },
    ] {
        let mut others = segments.clone();
        others[3].1.state = state;
        assert_eq!(steps(&input(&others)), []);
    }
}

#[test]
fn segments_of_different_sizes_and_kinds_are_not_merged_with_each_other() {
    // Ten of 10 KiB, ten of 100 KiB, ten of tombstones.
    let mut segments: Vec<_> = (0..30).map(small).collect();
    for (_, facts) in &mut segments[10..20] {
        facts.live_bytes *= 10;
        facts.data_len *= 10;
    }
    for (_, facts) in &mut segments[20..] {
        facts.tombstones = facts.entries;
        facts.expires_max_ms = 0;
    }
    // Tombstones with something to hide.
    segments.push(segment(0));
    assert_eq!(steps(&input(&segments)), []);
    segments.extend((30..36).map(|id| {
        let (id, mut facts) = small(id);
        facts.live_bytes *= 10;
        (id, facts)
    }));
    assert_eq!(steps(&input(&segments)), merge((10..20).chain(30..36)));
}

#[test]
fn a_merge_is_made_as_a_whole_or_later() {
    let segments: Vec<_> = (0..100).map(small).collect();
    let limited = |steps_max, copied: u64| PlanInput {
        limits: PlanLimits {
            steps_max,
            copy_bytes_max: copied * (10 << 10),
            ..PlanLimits::default()
        },
        ..input(&segments)
    };
    assert_eq!(steps(&limited(200, 200)), merge(0..100));
    for (steps_max, copied, made) in [(40, 200, 40), (200, 30, 30), (15, 200, 0), (200, 15, 0)] {
        let planned = plan(&limited(steps_max, copied));
        assert_eq!(planned.steps.len(), made, "{steps_max} {copied}");
        assert!(planned.is_cut);
    }
}

#[test]
fn a_day_of_small_segments_becomes_few_and_no_byte_is_copied_often() {
    // 10 KiB every five seconds, collected every ten minutes.
    let mut segments: Vec<(u32, SegmentFacts)> = Vec::new();
    let mut next_id = 0;
    let mut copied = 0;
    let mut add = |segments: &mut Vec<(u32, SegmentFacts)>, created_ms, bytes| {
        let (id, mut facts) = small(next_id);
        next_id += 1;
        (facts.created_ms, facts.live_bytes, facts.data_len) = (created_ms, bytes, bytes);
        segments.push((id, facts));
    };
    const DAY_MS: u64 = 86_400_000;
    // The last is at the end.
    for now_ms in (0..=DAY_MS).step_by(5000) {
        add(&mut segments, now_ms, 10 << 10);
        if now_ms % 600_000 != 0 {
            continue;
        }
        loop {
            let planned = plan(&PlanInput {
                now_ms,
                grace_ms: 3_600_000,
                ..input(&segments)
            });
            let mut merged = 0;
            for step in &planned.steps {
                let at = segments.iter().position(|(id, _)| *id == step.segment());
                let (_, facts) = segments.swap_remove(at.unwrap());
                merged += facts.live_bytes;
            }
            copied += merged;
            if merged > 0 {
                add(&mut segments, now_ms, merged);
            }
            if !planned.is_cut {
                break;
            }
        }
    }
    let settled = segments
        .iter()
        .filter(|(_, facts)| facts.created_ms + 3_600_000 <= DAY_MS);
    let (count, bytes) = (settled.count(), DAY_MS / 5000 * (10 << 10));
    assert!(count <= 40, "{count} segments are left of 17,280");
    assert!(
        copied <= 2 * bytes,
        "{} times",
        copied as f64 / bytes as f64
    );
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => (50_u32..500).prop_map(|len| Kind::Put { ttl_ms: 0, len }),
        2 => (1_u64..6 * GRACE_MS, 50_u32..500).prop_map(|(ttl_ms, len)| Kind::Put { ttl_ms, len }),
        1 => Just(Kind::Delete),
    ]
}

fn any_op(keys: u8) -> impl Strategy<Value = Op> {
    let records = prop::collection::vec((0..keys, any_kind()), 1..12);
    prop_oneof![
        8 => (0_usize..3, records).prop_map(|(writer, records)| Op::Spill { writer, records }),
        1 => (0_usize..3).prop_map(|writer| Op::Flush { writer }),
        4 => (1_u64..GRACE_MS).prop_map(|ms| Op::Advance { ms }),
        1 => (GRACE_MS..4 * GRACE_MS).prop_map(|ms| Op::Advance { ms }),
        8 => (0_usize..4).prop_map(|seed| Op::Follow { seed }),
        2 => any::<usize>().prop_map(|nth| Op::Read { nth }),
        6 => (0_usize..12).prop_map(|interrupt_after| Op::Collect { interrupt_after }),
        4 => Just(Op::Collect { interrupt_after: usize::MAX }),
        1 => Just(Op::Restart),
    ]
}

/// Follows and collects until there is nothing to do; whether that ended.
fn settle(world: &mut World) -> bool {
    for _ in 0..400 {
        world.apply(&Op::Advance { ms: GRACE_MS });
        if !world.collect(usize::MAX) {
            return true;
        }
    }
    false
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// The model checks itself after every small step.
    #[test]
    fn nothing_is_lost_and_nothing_comes_back(
        ops in prop::collection::vec(any_op(24), 1..80),
        is_sorted: bool,
    ) {
        let mut world = World::new(None);
        world.is_sorted = is_sorted;
        for op in &ops {
            world.apply(op);
        }
        prop_assert!(settle(&mut world), "no end of collecting");
        for (alike, count) in world.alike() {
            prop_assert!(alike.0 == 0 || count < world.limits.merge_min, "{alike:?}: {count}");
        }
        // A month later everything is still right.
        world.apply(&Op::Advance { ms: 1000 * GRACE_MS });
        prop_assert!(settle(&mut world), "no end of collecting");
    }

    #[test]
    fn the_budget_holds_and_nothing_comes_back(
        ops in prop::collection::vec(any_op(200), 40..200),
        budget in 60_000_u64..120_000,
        is_sorted: bool,
    ) {
        let mut world = World::new(Some(budget));
        world.is_sorted = is_sorted;
        for op in &ops {
            world.apply(op);
        }
        world.follow_all();
        for _ in 0..20 {
            world.collect(usize::MAX);
        }
        let physical = world.physical();
        prop_assert!(physical <= budget + budget / 10, "{} of {}", physical, budget);
        prop_assert!(settle(&mut world), "no end of collecting");
        prop_assert!(world.physical() <= budget);
    }
}

#[test]
fn the_model_drops_values_leaves_tombstones_and_gets_rid_of_them() {
    let mut world = World::new(Some(60_000));
    for round in 0..300_u64 {
        let record = |n: u64| {
            let key = ((round * 7 + n * 13) % 200) as u8;
            (
                key,
                Kind::Put {
                    ttl_ms: 0,
                    len: 300,
                },
            )
        };
        let records = (0..8).map(record).collect();
        let writer = (round % 3) as usize;
        world.apply(&Op::Spill { writer, records });
        // Old values that are read stay, and newer ones of other keys go before them.
        for nth in 0..4 {
            world.apply(&Op::Read { nth });
        }
        world.apply(&Op::Advance { ms: GRACE_MS / 2 });
        for _ in 0..3 {
            world.collect(usize::MAX);
        }
        assert!(
            world.physical() <= 66_000,
            "{} in round {round}",
            world.physical()
        );
    }
    assert!(world.dropped > 100, "{}", world.dropped);
    assert!(
        world.tombstones_written > 20,
        "{}",
        world.tombstones_written
    );
    assert!(world.deleted > 200, "{}", world.deleted);
    assert!(world.merged > 20, "{}", world.merged);
    assert!(world.objects() < 150, "{}", world.objects());
}

/// A writer's older value is in the bucket, and the collector has not merged it yet.
fn behind(newer: Kind, budget: Option<u64>) -> World {
    let old = Kind::Put {
        ttl_ms: 0,
        len: 300,
    };
    let mut world = World::new(budget);
    for (writer, kind) in [(0, old), (1, newer)] {
        let records = vec![(7, kind)];
        world.apply(&Op::Spill { writer, records });
    }
    world.apply(&Op::Follow { seed: 1 });
    world
}

#[test]
fn a_new_value_that_must_go_leaves_a_tombstone_for_what_is_not_merged_yet() {
    let put = Kind::Put {
        ttl_ms: 0,
        len: 300,
    };
    let mut world = behind(put, Some(200));
    for _ in 0..4 {
        world.collect(usize::MAX);
    }
    assert!(world.dropped == 1 && world.tombstones_written == 1 && world.deleted > 0);
    world.follow_all();
    assert!(settle(&mut world));
    assert_eq!(world.objects(), 0);
}

#[test]
fn a_new_tombstone_waits_for_what_is_not_merged_yet() {
    let mut world = behind(Kind::Delete, None);
    assert!(!world.collect(usize::MAX));
    world.follow_all();
    assert!(settle(&mut world));
    assert_eq!(world.objects(), 0);
}
