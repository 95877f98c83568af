use std::collections::BTreeSet;

use fonn_base::hlc;
use fonn_proto::member::MemberState;
use proptest::prelude::*;

use super::records::{RECORD_LEN_MAX, RECORDS_LEN_MAX, RECORDS_MAX, TOGETHER_MAX};
use super::settle::{asks_to_sync, reports, settle, settle_up};
use super::*;
use crate::map::{self, Map};

fn info(id: &str, raft_id: RaftId) -> MemberInfo {
    MemberInfo {
        id: id.to_owned(),
        raft_id,
        client_address: format!("{id}:11211"),
        cluster_address: format!("{id}:11290"),
        zone: "z".to_owned(),
        weight: 100,
        version: "0.1.0".to_owned(),
    }
}

fn formed() -> State {
    let mut state = State::default();
    let founder = info("a", 1);
    let outcome = state.apply(Change::Form {
        cluster: 9,
        founder,
        version: 0,
        down_after_ms: 1500,
    });
    assert_eq!(outcome, Outcome::Applied { epoch: 1 });
    state
}

/// The members that own slots.
fn owners(state: &State) -> BTreeSet<String> {
    let map = Map::new(state);
    let slots = 0..fonn_proto::placement::SLOT_COUNT;
    slots
        .flat_map(|slot| map.owners(slot).map(|it| it.id.clone()).collect::<Vec<_>>())
        .collect()
}

/// None if the member is removed.
fn state_of(state: &State, id: &str) -> Option<MemberState> {
    state.members.get(id).map(Member::state)
}

#[test]
fn the_slots_of_a_member_that_is_missed_get_other_owners_until_it_is_back() {
    let mut state = formed();
    for (id, raft_id) in [("b", 2), ("c", 3)] {
        state.apply(Change::Join(info(id, raft_id)));
        state.apply(Change::Activate(raft_id));
    }
    state.apply(Change::SetReplicas(2));
    settle(&mut state);
    let miss = Change::Miss(3);
    let before = state.clone();
    state.apply(miss.clone());
    assert_eq!(state, before, "it is not down");
    let owners_of = |state: &State, slot| Map::new(state).owners(slot).count();
    state.apply(Change::Down(3));
    assert!((0..100).any(|slot| owners_of(&state, slot) == 1));
    state.apply(miss);
    assert!(state.is_moving());
    settle_up(&mut state);
    assert!((0..100).all(|slot| owners_of(&state, slot) == 2));
    assert_eq!(owners(&state), ["a", "b"].map(str::to_owned).into());
    settle(&mut state);
    assert_eq!(owners(&state).len(), 3);
}

#[test]
fn a_member_joins_becomes_active_falls_returns_drains_and_goes() {
    let mut state = formed();
    let raft_id = 2;
    let sync = |applied| Change::Sync {
        raft_id,
        applied,
        started: 1,
    };
    let in_sync = |applied| Change::InSync { raft_id, applied };
    for (change, expected, epoch) in [
        (Change::Join(info("b", 2)), Some(MemberState::Joining), 2),
        (sync(2), Some(MemberState::Joining), 3),
        (in_sync(3), Some(MemberState::Joining), 4),
        (Change::Activate(2), Some(MemberState::Active), 5),
        (Change::Down(2), Some(MemberState::Down), 6),
        (sync(6), Some(MemberState::Active), 7),
        (
            Change::Drain { id: "b".into() },
            Some(MemberState::Draining),
            8,
        ),
        (
            Change::Remove { id: "b".into() },
            Some(MemberState::Draining),
            9,
        ),
        (Change::Down(2), Some(MemberState::Down), 10),
        (Change::Remove { id: "b".into() }, None, 11),
    ] {
        // Twice: the second time it holds already.
        for _ in 0..2 {
            assert_eq!(
                state.apply(change.clone()),
                Outcome::Applied { epoch },
                "{change:?}"
            );
            assert_eq!(state_of(&state, "b"), expected);
        }
    }
}

#[test]
fn a_change_that_one_member_does_not_know_is_refused_and_names_it() {
    let mut state = formed();
    state.apply(Change::Join(MemberInfo {
        version: "0.2.3".to_owned(),
        ..info("b", 2)
    }));
    assert_eq!(state.lowest(), MinorVersion(0, 1));
    assert_eq!(state.check_version(MinorVersion::FIRST), Ok(()));
    assert_eq!(state.check_version(MinorVersion(0, 1)), Ok(()));
    let refused = state.check_version(MinorVersion(0, 2)).unwrap_err();
    assert!(
        refused.to_string().contains("\"a\" runs version \"0.1.0\""),
        "{refused}"
    );
    // A member that is down comes back as it was.
    state.apply(Change::Down(1));
    state.check_version(MinorVersion(0, 2)).unwrap_err();
    state.apply(Change::Join(MemberInfo {
        version: "0.2.0".to_owned(),
        ..info("a", 1)
    }));
    assert_eq!(state.check_version(MinorVersion(0, 2)), Ok(()));
    state.check_version(MinorVersion(0, 3)).unwrap_err();
}

#[test]
fn a_change_of_an_unknown_kind_changes_nothing_and_stays_as_it_is() {
    let mut state = formed();
    let before = state.clone();
    for text in [
        r#"{"Paint":{"in":"red"}}"#,
        r#""Sleep""#,
        r#"{"PutTogether":{"puts":[{"kind":"Paint","name":"x","record":null}],"revision":0}}"#,
        r#"{"SetReplicas":70000}"#,
    ] {
        let change: Change = serde_json::from_str(text).unwrap();
        assert!(change.is_unknown(), "{text}");
        assert_eq!(serde_json::to_string(&change).unwrap(), text);
        let outcome = state.apply(change);
        assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
        assert_eq!(state, before);
    }
}

#[test]
fn a_member_that_does_not_understand_what_was_agreed_on_is_not_taken_in() {
    let mut state = formed();
    let text = serde_json::to_string(&state).unwrap();
    assert!(
        !text.contains("needs"),
        "older versions do not know it: {text}"
    );
    state.needs = MinorVersion(0, 2);
    let outcome = state.apply(Change::Join(info("b", 2)));
    let Outcome::Refused(why) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(
        why.to_string().contains("start the node with 0.2 or newer"),
        "{why}"
    );
    let newer = MemberInfo {
        version: "0.2.0".to_owned(),
        ..info("b", 2)
    };
    assert!(matches!(
        state.apply(Change::Join(newer)),
        Outcome::Applied { .. }
    ));
}

#[test]
fn a_removed_disk_cannot_return_and_an_empty_one_can() {
    let mut state = formed();
    state.apply(Change::Join(info("b", 2)));
    state.apply(Change::Remove { id: "b".into() });
    let refused = Outcome::Refused(Refusal::Removed("b".into()));
    assert_eq!(state.apply(Change::Join(info("b", 2))), refused);
    state.apply(Change::Join(info("b", 3)));
    assert_eq!(state_of(&state, "b"), Some(MemberState::Joining));
    assert_eq!(state.members["b"].info.raft_id, 3);
}

#[test]
fn a_member_that_is_to_be_removed_stays_until_it_is_down_and_does_not_return() {
    let mut state = formed();
    state.apply(Change::Join(info("b", 2)));
    state.apply(Change::Activate(2));
    settle(&mut state);
    let remove = Change::Remove { id: "b".into() };
    state.apply(remove.clone());
    assert!(state.is_moving() && !state.members["b"].gets_leases());
    let leaving = state.clone();
    state.apply(Change::Drain { id: "b".into() });
    assert_eq!(state, leaving, "a drain does not keep it");
    let refused = Outcome::Refused(Refusal::Removed("b".into()));
    assert_eq!(state.apply(Change::Activate(2)), refused);
    assert_eq!(state, leaving, "nor does the end of a drain");
    state.apply(Change::Down(2));
    assert_eq!(state.apply(asks_to_sync(&state, "b")), refused);
    state.apply(Change::Join(info("b", 3)));
    assert_eq!(state.members["b"].phase, Phase::Active);
    state = leaving;
    state.apply(Change::Down(2));
    state.apply(remove);
    assert_eq!(state_of(&state, "b"), None);
    assert_eq!(state.apply(Change::Join(info("b", 2))), refused);
    settle_up(&mut state);
    assert!(!state.is_moving());
}

#[test]
fn an_empty_disk_is_a_new_incarnation_that_old_decisions_do_not_reach() {
    let mut state = formed();
    state.apply(Change::Join(info("b", 2)));
    state.apply(Change::Activate(2));
    settle(&mut state);
    let number = state.members["b"].number;
    state.apply(Change::Join(info("b", 3)));
    // It keeps its place in the layout, and copies its slots before it owns them again.
    assert_eq!(state_of(&state, "b"), Some(MemberState::Down));
    assert_eq!(state.members["b"].number, number);
    assert_eq!(owners(&state), ["a".to_owned()].into());
    let unknown = Outcome::Refused(Refusal::UnknownRaftId(2));
    assert_eq!(state.apply(Change::Down(2)), unknown);
    assert_eq!(state.apply(Change::Activate(2)), unknown);
    settle(&mut state);
    assert_eq!(owners(&state), ["a", "b"].map(String::from).into());
}

#[test]
fn no_member_joins_at_the_address_of_another_unless_that_has_failed() {
    let mut state = formed();
    let taken = |id: &str, raft_id| MemberInfo {
        client_address: info("a", 1).client_address,
        ..info(id, raft_id)
    };
    let refused = |outcome| matches!(outcome, Outcome::Refused(Refusal::Invalid(_)));
    assert!(refused(state.apply(Change::Join(taken("b", 2)))));
    state.apply(Change::Join(info("b", 2)));
    assert!(
        refused(state.apply(Change::Join(taken("b", 2)))),
        "nor later"
    );
    assert!(!refused(state.apply(Change::Join(info("a", 1)))), "its own");
    settle(&mut state);
    state.apply(Change::Down(2));
    let at_b = MemberInfo {
        client_address: info("b", 2).client_address,
        ..info("c", 3)
    };
    assert!(!refused(state.apply(Change::Join(at_b))), "b has failed");
    state.apply(Change::Down(1));
    let at_a = taken("d", 4);
    assert!(!refused(state.apply(Change::Join(at_a))), "the founder too");
}

#[test]
fn a_failed_member_does_not_return_at_the_address_of_a_member_that_has_not_failed() {
    let mut state = formed();
    let refused = |outcome| matches!(outcome, Outcome::Refused(Refusal::Invalid(_)));
    state.apply(Change::Join(info("b", 2)));
    state.apply(Change::Activate(2));
    settle(&mut state);
    state.apply(Change::Down(2));
    let at_b = MemberInfo {
        client_address: info("b", 2).client_address,
        ..info("c", 3)
    };
    state.apply(Change::Join(at_b));
    assert!(refused(state.apply(asks_to_sync(&state, "b"))), "c joins");
    state.apply(asks_to_sync(&state, "c"));
    state.apply(Change::Activate(3));
    assert!(refused(state.apply(asks_to_sync(&state, "b"))), "c serves");
    assert_eq!(state_of(&state, "b"), Some(MemberState::Down));
    state.apply(Change::Down(3));
    assert!(!refused(state.apply(asks_to_sync(&state, "b"))));
    assert!(refused(state.apply(asks_to_sync(&state, "c"))), "b serves");
}

#[test]
fn the_last_active_member_keeps_its_slots() {
    let mut state = formed();
    state.apply(Change::Join(info("b", 2)));
    let refused = Outcome::Refused(Refusal::LastActive("a".into()));
    assert_eq!(state.apply(Change::Drain { id: "a".into() }), refused);
    assert_eq!(state.apply(Change::Remove { id: "a".into() }), refused);
    state.apply(Change::Activate(2));
    assert!(matches!(
        state.apply(Change::Drain { id: "a".into() }),
        Outcome::Applied { .. }
    ));
}

#[test]
fn a_cluster_is_formed_once_and_first() {
    let mut state = State::default();
    let refused = Outcome::Refused(Refusal::NotFormed);
    assert_eq!(state.apply(Change::Join(info("b", 2))), refused);
    let mut state = formed();
    let again = Change::Form {
        cluster: 8,
        founder: info("b", 2),
        version: 0,
        down_after_ms: 1500,
    };
    assert_eq!(state.apply(again), Outcome::Refused(Refusal::AlreadyFormed));
}

#[test]
fn what_is_not_allowed_is_refused_and_changes_nothing() {
    let state = formed();
    let long = "x".repeat(70_000);
    let put = |name: &str, record: &str| Change::PutTogether {
        revision: 0,
        puts: vec![Put {
            kind: RecordKind::User,
            name: name.to_owned(),
            record: Some(Record(record.to_owned())),
        }],
    };
    let odd = |change: fn(&mut MemberInfo)| {
        let mut info = info("b", 2);
        change(&mut info);
        Change::Join(info)
    };
    for change in [
        Change::SetReplicas(0),
        Change::SetReplicas(4),
        put("", "x"),
        put(&long, "x"),
        put("x", &long),
        odd(|it| it.id = "a b".into()),
        odd(|it| it.id = String::new()),
        odd(|it| it.zone = "ü".into()),
        odd(|it| it.raft_id = 0),
        odd(|it| it.raft_id = 1),
        odd(|it| it.cluster_address = "host".into()),
        odd(|it| it.client_address = "host:0".into()),
        // Topologies refuse these.
        odd(|it| it.client_address = "fe80::1:11211".into()),
        odd(|it| it.cluster_address = "a b:1".into()),
        odd(|it| it.version = "v".repeat(300)),
    ] {
        let mut changed = state.clone();
        let outcome = changed.apply(change.clone());
        assert!(
            matches!(outcome, Outcome::Refused(_)),
            "{change:?}: {outcome:?}"
        );
        assert_eq!(changed, state, "{change:?}");
    }
}

#[test]
fn records_are_bounded_in_count_and_bytes() {
    let put_all = |count: usize, len: usize| {
        let mut state = formed();
        loop {
            let first = state.namespaces.len();
            let put = |number: usize| Put {
                kind: RecordKind::Namespace,
                name: number.to_string(),
                record: Some(Record("x".repeat(len))),
            };
            let change = Change::PutTogether {
                revision: state.users_revision,
                puts: (first..first + count).map(put).collect(),
            };
            if matches!(state.apply(change), Outcome::Refused(_)) {
                return state;
            }
        }
    };
    assert_eq!(put_all(TOGETHER_MAX, 0).namespaces.len(), RECORDS_MAX);
    let state = put_all(1, RECORD_LEN_MAX);
    let bytes: usize = state.namespaces.values().map(|it| it.0.len()).sum();
    assert!(bytes <= RECORDS_LEN_MAX && bytes > RECORDS_LEN_MAX - 2 * RECORD_LEN_MAX);
    assert_eq!(state.epoch, 1);
}

#[test]
fn records_change_together_or_not_at_all() {
    let put = |kind, name: &str, record: Option<&str>| Put {
        kind,
        name: name.to_owned(),
        record: record.map(|it| Record(it.to_owned())),
    };
    let mut state = formed();
    let both = Change::PutTogether {
        revision: 0,
        puts: vec![
            put(RecordKind::User, "ci", Some("u")),
            put(RecordKind::Namespace, "main", Some("n")),
        ],
    };
    // Twice: a caller that lost the answer asks again.
    for _ in 0..2 {
        let outcome = state.apply(both.clone());
        assert_eq!(outcome, Outcome::Applied { epoch: 1 });
        assert_eq!((state.users.len(), state.namespaces.len()), (1, 1));
    }
    let revision = state.users_revision;
    assert!(revision > 0);
    let before = state.clone();
    let late = Change::PutTogether {
        revision: 0,
        puts: vec![put(RecordKind::User, "ci", None)],
    };
    assert_eq!(state.apply(late), Outcome::Refused(Refusal::Stale));
    let half = Change::PutTogether {
        revision,
        puts: vec![
            put(RecordKind::User, "ci", None),
            put(RecordKind::Namespace, "", Some("n")),
        ],
    };
    assert!(matches!(
        state.apply(half),
        Outcome::Refused(Refusal::Invalid(_))
    ));
    let many = Change::PutTogether {
        revision,
        puts: vec![put(RecordKind::User, "x", Some("u")); TOGETHER_MAX + 1],
    };
    assert!(matches!(
        state.apply(many),
        Outcome::Refused(Refusal::Full { .. })
    ));
    assert_eq!(state, before);
}

#[test]
fn the_text_of_a_record_is_never_shown() {
    let put = Put {
        kind: RecordKind::User,
        name: "u".to_owned(),
        record: Some(Record("secret".to_owned())),
    };
    let change = Change::PutTogether {
        revision: 0,
        puts: vec![put],
    };
    let mut state = formed();
    state.apply(change.clone());
    assert!(!format!("{state:?} {change:?}").contains("secret"));
}

#[test]
fn the_leader_extends_the_range_of_versions_before_the_clock_reaches_its_end() {
    let mut state = State::default();
    assert_eq!(state.extension(hlc::at_ms(5)), None, "before it is formed");
    state.apply(Change::Form {
        cluster: 9,
        founder: info("a", 1),
        version: hlc::at_ms(1_000_000),
        down_after_ms: 1500,
    });
    let range = state.versions;
    assert_eq!(range.base, hlc::at_ms(1_000_000));
    assert_eq!(range.ceiling - range.base, hlc::COUNT_RESERVE);
    for seconds in 0..100 {
        let clock = hlc::at_ms(1_000_000 + seconds * 1000);
        if let Some(change) = state.extension(clock) {
            assert_eq!(seconds % 11, 0, "not more often than it has to be");
            state.apply(change);
        }
        let follows = state.versions.ceiling - hlc::COUNT_RESERVE;
        assert!(follows >= clock + VERSIONS_LOW);
    }
    assert_eq!((state.epoch, state.versions.base), (1, range.base));
    // The clock is far behind: what was agreed on holds.
    assert_eq!(state.extension(0), None);
}

#[test]
fn removed_members_are_remembered_within_bounds() {
    let mut state = formed();
    for number in 2..(REMOVED_MAX as u64 + 50) {
        let id = format!("m{number}");
        state.apply(Change::Join(info(&id, number)));
        state.apply(Change::Remove { id });
    }
    assert_eq!(state.removed.len(), REMOVED_MAX);
    assert_eq!(state.members.len(), 1);
}

#[test]
fn a_member_owns_slots_when_it_has_copied_them_and_no_longer_when_it_is_down() {
    let mut state = formed();
    state.apply(Change::Join(info("b", 2)));
    state.apply(Change::Activate(2));
    state.apply(Change::ProposeLayout);
    let (only, both) = (["a".to_owned()].into(), ["a", "b"].map(String::from).into());
    // The layout waits for the member, which is not even up.
    state.apply(Change::ReplaceLayout);
    assert_eq!(owners(&state), only);
    settle(&mut state);
    assert_eq!(owners(&state), both);
    state.apply(Change::Down(2));
    assert_eq!(owners(&state), only);
    state.apply(Change::Down(1));
    assert_eq!(owners(&state), BTreeSet::new());
    // The first to return stands in for all slots.
    state.apply(asks_to_sync(&state, "b"));
    assert_eq!(owners(&state), ["b".to_owned()].into());
    settle(&mut state);
    assert_eq!(owners(&state), both);
}

#[test]
fn a_drained_member_owns_its_slots_until_the_others_have_copied_them() {
    let mut state = formed();
    for (id, raft_id) in [("b", 2), ("c", 3)] {
        state.apply(Change::Join(info(id, raft_id)));
        state.apply(Change::Activate(raft_id));
    }
    settle(&mut state);
    state.apply(Change::Drain { id: "b".into() });
    state.apply(Change::ProposeLayout);
    for id in ["a", "b"] {
        state.apply(reports(&state, id));
    }
    state.apply(Change::ReplaceLayout);
    assert!(owners(&state).contains("b"), "c has not reported");
    settle(&mut state);
    assert_eq!(owners(&state), ["a", "c"].map(String::from).into());
}

#[test]
fn the_number_of_a_removed_member_is_given_again_when_no_layout_has_it() {
    let mut state = formed();
    state.apply(Change::Join(info("b", 2)));
    state.apply(Change::Activate(2));
    settle(&mut state);
    state.apply(Change::Down(2));
    state.apply(Change::Remove { id: "b".into() });
    state.apply(Change::Join(info("c", 3)));
    assert_eq!(state.members["c"].number, 2, "the layout has the number 1");
    settle(&mut state);
    state.apply(Change::Join(info("d", 4)));
    assert_eq!(state.members["d"].number, 1);
}

fn changes() -> impl Strategy<Value = Change> {
    let id = || prop::sample::select(vec!["a", "b", "c", "d", "?"]).prop_map(str::to_owned);
    let raft_id = || 0..6u64;
    let any_info = (id(), raft_id(), 0..3u16).prop_map(|(id, raft_id, weight)| MemberInfo {
        weight,
        ..info(&id, raft_id)
    });
    let kind = prop::sample::select(vec![RecordKind::Namespace, RecordKind::User]);
    let record = prop::option::of("[ab]?".prop_map(Record));
    let put = (kind, id(), record).prop_map(|(kind, name, record)| Put { kind, name, record });
    prop_oneof![
        (0..3u64, any_info.clone(), any::<u64>()).prop_map(|(cluster, founder, version)| {
            Change::Form {
                cluster,
                founder,
                version,
                down_after_ms: 1500,
            }
        }),
        any_info.prop_map(Change::Join),
        raft_id().prop_map(Change::Activate),
        raft_id().prop_map(Change::Down),
        (raft_id(), 0..40u64, 0..3u64).prop_map(|(raft_id, applied, started)| {
            Change::Sync {
                raft_id,
                applied,
                started,
            }
        }),
        (raft_id(), 0..40u64).prop_map(|(raft_id, applied)| Change::InSync { raft_id, applied }),
        Just(Change::ProposeLayout),
        Just(Change::ReplaceLayout),
        id().prop_map(|id| Change::Drain { id }),
        id().prop_map(|id| Change::Remove { id }),
        (id(), 0..3u16).prop_map(|(id, weight)| Change::SetWeight { id, weight }),
        (0..5u8).prop_map(Change::SetReplicas),
        any::<u64>().prop_map(|ceiling| Change::ExtendVersions { ceiling }),
        raft_id().prop_map(Change::Miss),
        (0..4u64, prop::collection::vec(put, 0..4))
            .prop_map(|(revision, puts)| Change::PutTogether { revision, puts }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_epoch_counts_exactly_the_changes_of_the_map(
        changes in prop::collection::vec(changes(), 0..40)
    ) {
        let mut state = State::default();
        for change in changes {
            let before = state.clone();
            let outcome = state.apply(change.clone());
            let seen = |state: &State| {
                let placed = (state.placing.clone(), state.next.clone(), state.stand_ins.clone());
                let status = |it: &Member| (it.number, it.phase, it.sync, it.is_missed);
                let statuses: Vec<_> = state.members.values().map(status).collect();
                (state.cluster, state.replicas, map::members(state), placed, statuses)
            };
            let users = |state: &State| (state.users.clone(), state.namespaces.clone());
            let (then, now) = (before.users_revision, state.users_revision);
            prop_assert!(then <= now && (users(&before) == users(&state) || then < now));
            let altered = seen(&before) != seen(&state);
            prop_assert_eq!(state.epoch, before.epoch + u64::from(altered), "{:?}", change);
            let (old, new) = (before.versions, state.versions);
            match altered {
                true => prop_assert!(new.base >= old.ceiling && new.base < new.ceiling),
                false => prop_assert!(new.base == old.base && new.ceiling >= old.ceiling),
            }
            if matches!(outcome, Outcome::Refused(_)) {
                prop_assert_eq!(&before, &state, "{:?}", change);
            }
            let once = state.clone();
            state.apply(change.clone());
            prop_assert_eq!(&once, &state, "twice: {:?}", change);
        }
        let text = serde_json::to_vec(&state).unwrap();
        prop_assert_eq!(serde_json::from_slice::<State>(&text).unwrap(), state.clone());
        let raft_ids: BTreeSet<RaftId> = state.members.values().map(|it| it.info.raft_id).collect();
        prop_assert_eq!(raft_ids.len(), state.members.values().count());
    }

    #[test]
    fn a_change_survives_its_encoding(change in changes()) {
        let text = serde_json::to_vec(&change).unwrap();
        prop_assert_eq!(serde_json::from_slice::<Change>(&text).unwrap(), change);
    }
}
