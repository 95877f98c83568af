//! Visits every state of small clusters within bounds.

use fonn_replication::{Rule, Rules};
use stateright::{Checker, Model};

use super::small::{Action, Small};

/// Three members, of which two own the slot.
const TWO_OWNERS: Small = Small {
    members: 3,
    replicas: 2,
    slots: 1,
    keys_per_slot: 2,
    rules: Rules::ALL,
    writes_max: 2,
    downs_max: 1,
    crashes_max: 0,
    evictions_max: 0,
    layouts_max: 0,
    extensions_max: 0,
};

/// Three members with one owner a slot.
const ONE_OWNER: Small = Small {
    replicas: 1,
    slots: 2,
    keys_per_slot: 1,
    ..TWO_OWNERS
};

/// A slot that falls to a stand-in, returns, and falls to the stand-in again.
const TWO_FALLS: Small = Small {
    replicas: 1,
    keys_per_slot: 1,
    downs_max: 2,
    ..TWO_OWNERS
};

/// A layout that gives the slot to the next member, and evictions and a higher ceiling meanwhile.
const NEW_LAYOUT: Small = Small {
    replicas: 1,
    keys_per_slot: 1,
    downs_max: 0,
    evictions_max: 1,
    layouts_max: 1,
    extensions_max: 1,
    ..TWO_OWNERS
};

/// A member that crashes, with or without its disk.
const CRASH: Small = Small {
    keys_per_slot: 1,
    crashes_max: 1,
    ..TWO_OWNERS
};

/// Visits all states up to a number of steps, and returns the path to a stale value if there is
/// one.
fn explore(name: &str, model: Small, steps_max: usize) -> Option<Vec<Action>> {
    let checker = model
        .checker()
        .target_max_depth(steps_max)
        .threads(2)
        .spawn_bfs()
        .join();
    println!(
        "{name}: {} states, {} steps deep",
        checker.unique_state_count(),
        checker.max_depth()
    );
    let path = checker.discovery("nothing stale");
    assert!(path.is_some() || steps_max < ALL_STEPS || checker.max_depth() < ALL_STEPS);
    path.map(|path| path.into_actions())
}

/// No run of these two clusters is longer. So all their states are visited.
const ALL_STEPS: usize = 40;

#[test]
fn no_state_with_two_owners_shows_a_stale_value() {
    assert_eq!(explore("two owners", TWO_OWNERS, ALL_STEPS), None);
}

#[test]
fn no_state_with_one_owner_shows_a_stale_value() {
    assert_eq!(explore("one owner", ONE_OWNER, ALL_STEPS), None);
}

#[test]
fn no_state_within_steps_of_two_falls_shows_a_stale_value() {
    assert_eq!(explore("two falls", TWO_FALLS, 18), None);
}

#[test]
fn no_state_within_steps_of_a_new_layout_shows_a_stale_value() {
    assert_eq!(explore("new layout", NEW_LAYOUT, 15), None);
}

#[test]
fn no_state_within_steps_of_a_crash_shows_a_stale_value() {
    assert_eq!(explore("crash", CRASH, 11), None);
}

/// Expects that a rule is needed in a small cluster, and prints how it is violated without the
/// rule.
fn needs(rule: Rule, model: Small) {
    let mutant = Small {
        rules: Rules::without(rule),
        ..model
    };
    let path = explore(&format!("without {rule:?}"), mutant, ALL_STEPS);
    println!("{:#?}", path.expect("a stale value is reachable"));
}

#[test]
fn without_all_owners_an_owner_is_behind() {
    needs(Rule::AllOwners, TWO_OWNERS);
}

#[test]
fn without_a_second_store_the_feed_misses_a_write_whose_epoch_changed() {
    needs(Rule::StoreAgain, TWO_OWNERS);
}

#[test]
fn without_leases_a_failed_owner_is_behind() {
    needs(Rule::Lease, TWO_OWNERS);
}

#[test]
fn without_ranges_a_failed_owner_returns_with_a_higher_version() {
    needs(Rule::Range, TWO_OWNERS);
}

#[test]
fn without_floors_a_stand_in_is_behind() {
    let two_members = Small {
        members: 2,
        ..TWO_FALLS
    };
    needs(Rule::Floor, two_members);
}
