use fonn_proto::member::MemberState;
use proptest::prelude::*;

use super::*;

fn member(id: &str, port: u16) -> Member {
    Member {
        id: id.to_owned(),
        client_address: format!("{id}.example:{port}"),
        state: MemberState::Active,
        ..Member::default()
    }
}

fn three() -> Vec<Member> {
    vec![member("a", 1), member("b", 2), member("c", 3)]
}

fn row(positions: &[u16]) -> Option<Owners> {
    Owners::new(positions)
}

fn rows(slot_owners: impl Fn(u16) -> Vec<u16>) -> Vec<Option<Owners>> {
    (0..SLOT_COUNT)
        .map(|slot| row(&slot_owners(slot)))
        .collect()
}

/// The first half belongs to a, then b; the second to b, then c.
fn halves(members: Vec<Member>) -> Topology {
    let owners = rows(|slot| if slot < 8192 { vec![0, 1] } else { vec![1, 2] });
    Topology::new(7, members, owners).unwrap()
}

fn ids<'a>(members: impl Iterator<Item = &'a Member>) -> Vec<&'a str> {
    members.map(|member| member.id.as_str()).collect()
}

#[test]
fn owners_are_found_by_slot_and_rank() {
    let topology = halves(three());
    assert_eq!(ids(topology.owners(0)), ["a", "b"]);
    assert_eq!(ids(topology.owners(8191)), ["a", "b"]);
    assert_eq!(ids(topology.owners(8192)), ["b", "c"]);
    assert_eq!(ids(topology.owners(SLOT_COUNT - 1)), ["b", "c"]);
    assert_eq!(topology.owners(SLOT_COUNT).count(), 0);
    assert_eq!(topology.member("c").unwrap().client_address, "c.example:3");
    assert_eq!(topology.member("d"), None);
    assert_eq!((topology.epoch(), topology.members().len()), (7, 3));
}

#[test]
fn the_next_in_rank_serves_for_a_member_that_is_down() {
    let mut members = three();
    assert_eq!(halves(members.clone()).serving(0).unwrap().id, "a");
    members[0].state = MemberState::Draining;
    assert_eq!(halves(members.clone()).serving(0).unwrap().id, "a");
    members[0].state = MemberState::Down;
    assert_eq!(halves(members.clone()).serving(0).unwrap().id, "b");
    members[1].state = MemberState::Joining;
    let topology = halves(members);
    assert_eq!(topology.serving(0), None);
    assert_eq!(topology.serving(9000).unwrap().id, "c");
    assert_eq!(topology.serving(SLOT_COUNT), None);
}

#[test]
fn a_slot_without_owners_is_served_by_no_member() {
    let owners = rows(|slot| if slot == 5 { vec![] } else { vec![1] });
    let topology = Topology::new(7, three(), owners).unwrap();
    assert_eq!(topology.serving(5), None);
    assert_eq!(topology.serving(6).unwrap().id, "b");
    assert_eq!(topology.owners(5).count(), 0);
}

#[test]
fn a_map_that_breaks_an_invariant_is_refused() {
    let all_a = || rows(|_| vec![0]);
    let refusal = |members, owners| Topology::new(1, members, owners).unwrap_err();
    assert_eq!(refusal(vec![], all_a()), TopologyError::NoMembers);
    let twice = vec![member("a", 1), member("a", 2)];
    assert_eq!(
        refusal(twice, all_a()),
        TopologyError::MemberId { id: "a".to_owned() }
    );
    let unnamed = vec![member("a", 1), member("", 2)];
    assert_eq!(
        refusal(unnamed, all_a()),
        TopologyError::MemberId { id: String::new() }
    );
    let same_address = Member {
        id: "b".to_owned(),
        ..member("a", 1)
    };
    let error = refusal(vec![member("a", 1), same_address.clone()], all_a());
    assert!(matches!(error, TopologyError::Address { id, .. } if id == "b"));
    let gone = Member {
        state: MemberState::Down,
        ..same_address
    };
    assert!(Topology::new(1, vec![member("a", 1), gone], all_a()).is_ok());
    let owners = rows(|slot| if slot == 9999 { vec![1, 3] } else { vec![0] });
    let expected = TopologyError::UnknownOwner {
        slot: 9999,
        position: 3,
    };
    assert_eq!(refusal(three(), owners), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn owners_are_one_to_three_different_positions(ranked in proptest::collection::vec(0u16..5, 0..6)) {
        let distinct: HashSet<u16> = ranked.iter().copied().collect();
        let is_valid = (1..=3).contains(&ranked.len()) && distinct.len() == ranked.len();
        match Owners::new(&ranked) {
            Some(owners) => {
                prop_assert!(is_valid);
                prop_assert_eq!(owners.positions(), ranked.as_slice());
            }
            None => prop_assert!(!is_valid),
        }
    }
}
