//! Each rule is needed: with one rule switched off, the proof finds a violation.

use fonn_replication::{Rule, Rules};

use super::setup::{Fault, Setup, Shell};
use super::simulation::{run, variable};

const CRASHES: [Fault; 3] = [Fault::Crash, Fault::Layout, Fault::Pause];

/// Runs seeds until one fails.
fn finds(setup: impl Fn(u64) -> Setup) {
    finds_kind("", setup);
}

/// Runs seeds until one fails in a certain way.
fn finds_kind(kind: &str, setup: impl Fn(u64) -> Setup) {
    let first = variable("FONN_REPLICATION_SEED").unwrap_or(0);
    let found = (first..first + 3_000).find_map(|seed| {
        let setup = setup(seed);
        let whole = Setup {
            rules: Rules::default(),
            shell: Shell::Correct,
            ..setup.clone()
        };
        let found = run(setup).err().filter(|found| found.contains(kind))?;
        run(whole).expect("the seed is fine with all rules");
        Some((seed, found))
    });
    let (seed, found) = found.expect("no seed finds a violation");
    println!("after {seed} seeds without a finding: {found}");
    assert!(found.contains("stale") || found.contains("lost"), "{found}");
}

#[test]
fn r1_a_write_that_an_owner_does_not_have_is_lost_or_stale() {
    let faults = [Fault::Crash, Fault::Pause, Fault::Loss, Fault::OneWay];
    finds(|seed| Setup::without(Rule::AllOwners, seed, 2, &faults));
}

#[test]
fn r1_a_write_of_an_older_epoch_is_acknowledged_by_a_former_primary() {
    let faults = [
        Fault::Crash,
        Fault::Pause,
        Fault::Layout,
        Fault::CutFromLeader,
        Fault::Loss,
    ];
    finds(|seed| Setup::without(Rule::SameEpoch, seed, 2, &faults));
}

#[test]
fn r1_a_pending_write_that_is_not_sent_again_is_missed_by_the_feed() {
    let faults = [
        Fault::Crash,
        Fault::Pause,
        Fault::OneWay,
        Fault::Loss,
        Fault::Layout,
    ];
    finds(|seed| Setup::without(Rule::Resend, seed, 3, &faults));
}

#[test]
fn r1_a_write_that_stays_under_the_epoch_of_its_execution_is_missed_by_the_feed() {
    let faults = [
        Fault::Crash,
        Fault::Pause,
        Fault::OneWay,
        Fault::Loss,
        Fault::Layout,
    ];
    finds(|seed| Setup::without(Rule::StoreAgain, seed, 3, &faults));
}

#[test]
fn r1_a_write_that_was_executed_before_another_primary_led_replaces_what_it_did_not_see() {
    let faults = [Fault::CutFromLeader, Fault::Crash];
    finds(|seed| Setup::without(Rule::Interrupted, seed, 2, &faults));
}

#[test]
fn r1_a_write_that_is_answered_without_a_second_look_at_the_rights_is_lost() {
    finds(|seed| Setup::with_shell(Shell::LooksOnce, seed, 1, &CRASHES));
}

#[test]
fn r2_without_ranges_a_member_with_a_slow_clock_loses_its_writes() {
    let faults = [
        Fault::Crash,
        Fault::Skew,
        Fault::CutFromLeader,
        Fault::Pause,
        Fault::Loss,
    ];
    let setup = |seed| Setup {
        skew_ms_max: 20_000,
        ..Setup::without(Rule::Range, seed, 2, &faults)
    };
    finds(setup);
}

#[test]
fn r2_a_store_that_executes_a_write_in_a_later_epoch_gets_above_the_primary() {
    let faults = [Fault::Skew, Fault::CutFromLeader, Fault::Layout];
    let setup = |seed| Setup {
        skew_ms_max: 20_000,
        ..Setup::with_shell(Shell::ExecutesLate, seed, 2, &faults)
    };
    finds(setup);
}

#[test]
fn r2_a_clock_that_begins_below_a_lost_version_assigns_it_again() {
    let faults = [Fault::Crash, Fault::OneWay, Fault::Loss];
    finds(|seed| Setup::with_shell(Shell::ForgetsClock, seed, 2, &faults));
}

#[test]
fn r3_without_a_floor_a_successor_shows_what_it_had_long_ago() {
    finds(|seed| Setup::without(Rule::Floor, seed, 1, &CRASHES));
}

#[test]
fn r4_a_learner_that_copies_nothing_shows_what_it_had_long_ago() {
    finds(|seed| Setup::without(Rule::Copy, seed, 2, &CRASHES));
}

#[test]
fn r4_an_epoch_for_the_member_instead_of_the_slot_skips_changes() {
    finds(|seed| Setup::without(Rule::SlotEpoch, seed, 2, &CRASHES));
}

#[test]
fn r4_a_feed_with_evicted_changes_skips_them() {
    let faults = [Fault::Crash, Fault::Layout, Fault::Evict];
    finds(|seed| Setup::without(Rule::CompleteFeed, seed, 2, &faults));
}

#[test]
fn r4_a_full_copy_above_old_copies_shows_them() {
    let faults = [
        Fault::Crash,
        Fault::Layout,
        Fault::Evict,
        Fault::UncleanCrash,
    ];
    finds(|seed| Setup::without(Rule::CopyFloor, seed, 2, &faults));
}

#[test]
fn r4_a_full_copy_that_begins_while_old_copies_are_removed_loses_pages() {
    let faults = [
        Fault::Crash,
        Fault::Layout,
        Fault::Evict,
        Fault::UncleanCrash,
    ];
    finds(|seed| Setup::without(Rule::Clear, seed, 2, &faults));
}

#[test]
fn r4_a_former_owner_that_has_not_applied_the_epoch_answers_hedged_reads() {
    finds(|seed| Setup::without(Rule::FormerOwners, seed, 2, &CRASHES));
}

#[test]
fn r5_a_member_that_was_down_and_does_not_sync_shows_what_it_had() {
    finds(|seed| Setup::without(Rule::Return, seed, 2, &CRASHES));
}

#[test]
fn r5_a_member_that_lost_acknowledged_writes_shows_older_ones() {
    let faults = [Fault::UncleanCrash, Fault::Crash];
    finds(|seed| Setup::without(Rule::CleanStart, seed, 2, &faults));
}

#[test]
fn r5_a_member_that_goes_on_alone_after_it_lost_writes_serves_an_incomplete_feed() {
    let faults = [Fault::UncleanCrash, Fault::CutFromLeader];
    finds_kind("stale", |seed| {
        Setup::without(Rule::Agreed, seed, 1, &faults)
    });
}

#[test]
fn r5_a_member_that_counts_as_complete_after_a_second_start_shows_what_it_had() {
    let faults = [
        Fault::UncleanCrash,
        Fault::Crash,
        Fault::NoLeader,
        Fault::CutFromLeader,
    ];
    finds(|seed| Setup::without(Rule::SavedFitness, seed, 1, &faults));
}

#[test]
fn r6_a_member_without_a_lease_shows_what_its_successor_has_overwritten() {
    let faults = [Fault::CutFromLeader, Fault::Pause];
    finds(|seed| Setup::without(Rule::Lease, seed, 2, &faults));
}

/// A setup in which clients flush, with a shell that breaks its part.
fn flushing(shell: Shell, seed: u64, faults: &[Fault]) -> Setup {
    Setup {
        flushes: true,
        skew_ms_max: 20_000,
        ..Setup::with_shell(shell, seed, 2, faults)
    }
}

#[test]
fn a_learner_that_asks_for_no_flushes_shows_what_was_flushed() {
    finds(|seed| flushing(Shell::LearnsNoFlushes, seed, &CRASHES));
}

#[test]
fn members_with_cutoffs_of_their_own_lose_what_was_written_after_a_flush() {
    let faults = [Fault::Skew, Fault::Crash];
    finds(|seed| flushing(Shell::FlushesApart, seed, &faults));
}

#[test]
fn a_flush_that_goes_by_an_older_epoch_misses_a_member() {
    let faults = [Fault::Crash, Fault::Pause, Fault::CutFromLeader];
    finds(|seed| flushing(Shell::FlushesInAnyEpoch, seed, &faults));
}
