use proptest::prelude::*;

use super::*;

fn member(raft_id: RaftId, zone: &str) -> Candidate<'_> {
    Candidate {
        raft_id,
        zone,
        is_active: true,
        is_draining: false,
        is_ready: true,
        is_lost: false,
    }
}

fn ids(ids: impl IntoIterator<Item = RaftId>) -> BTreeSet<RaftId> {
    ids.into_iter().collect()
}

#[test]
fn one_three_or_five_vote() {
    for (count, voters) in [
        (1, 1),
        (2, 1),
        (3, 3),
        (4, 3),
        (6, 3),
        (7, 5),
        (8, 5),
        (100, 5),
    ] {
        let all: Vec<Candidate<'_>> = (1..=count).map(|id| member(id, "z")).collect();
        let planned = plan(&all, &ids([1]), 1);
        assert_eq!(planned.len(), voters, "of {count}");
        assert!(planned.contains(&1));
        assert_eq!(plan(&all, &planned, 1), planned, "it stays so");
    }
}

#[test]
fn a_member_that_cannot_follow_yet_does_not_vote() {
    let mut all = [member(1, "z"), member(2, "z"), member(3, "z")];
    all[2].is_ready = false;
    assert_eq!(
        plan(&all, &ids([1]), 1),
        ids([1]),
        "two would tolerate no loss"
    );
    all[2].is_ready = true;
    all[2].is_active = false;
    assert_eq!(plan(&all, &ids([1]), 1), ids([1]));
    all[2].is_active = true;
    assert_eq!(plan(&all, &ids([1]), 1), ids([1, 2, 3]));
}

#[test]
fn a_voter_that_is_silent_for_long_is_replaced_if_another_is_able() {
    let mut all = vec![member(1, "z"), member(2, "z"), member(3, "z")];
    all[1].is_ready = false;
    assert_eq!(
        plan(&all, &ids([1, 2, 3]), 1),
        ids([1, 2, 3]),
        "silent for a moment"
    );
    all[1].is_lost = true;
    assert_eq!(
        plan(&all, &ids([1, 2, 3]), 1),
        ids([1, 2, 3]),
        "nobody else"
    );
    all.push(member(4, "z"));
    assert_eq!(plan(&all, &ids([1, 2, 3]), 1), ids([1, 3, 4]));
}

#[test]
fn a_voter_that_drains_is_replaced_and_three_members_less_one_are_one_voter() {
    let mut all = vec![
        member(1, "z"),
        member(2, "z"),
        member(3, "z"),
        member(4, "z"),
    ];
    all[0].is_draining = true;
    all[0].is_active = false;
    assert_eq!(plan(&all, &ids([1, 2, 3]), 1), ids([2, 3, 4]));
    all.pop();
    assert_eq!(plan(&all, &ids([1, 2, 3]), 2), ids([2]));
}

#[test]
fn an_incarnation_that_lost_its_disk_is_replaced_at_once() {
    // 3 is no longer a candidate; its successor 9 has yet to follow.
    let mut all = [member(1, "z"), member(2, "z"), member(9, "z")];
    all[2].is_active = false;
    all[2].is_ready = false;
    assert_eq!(plan(&all, &ids([1, 2, 3]), 1), ids([1, 2]));
    all[2] = member(9, "z");
    assert_eq!(plan(&all, &ids([1, 2]), 1), ids([1, 2, 9]));
}

#[test]
fn voters_stand_in_different_zones() {
    let zones = ["a", "a", "a", "b", "b", "c"];
    let all: Vec<Candidate<'_>> = (1..)
        .zip(zones)
        .map(|(id, zone)| member(id, zone))
        .collect();
    let mut voters = plan(&all, &ids([1]), 1);
    assert_eq!(voters, ids([1, 4, 6]));
    // Voters from before the other zones were there move one at a time.
    voters = ids([1, 2, 3]);
    for _ in 0..2 {
        let next = plan(&all, &voters, 1);
        assert_eq!(next.difference(&voters).count(), 1);
        voters = next;
    }
    assert_eq!(voters, ids([1, 4, 6]));
    assert_eq!(plan(&all, &voters, 1), voters);
}

proptest! {
    #[test]
    fn any_plan_is_sound(
        flags in prop::collection::vec((0..3usize, any::<[bool; 4]>()), 1..12),
        current in prop::collection::btree_set(0..14u64, 1..6),
    ) {
        let zones = ["a", "b", "c"];
        let all: Vec<Candidate<'_>> = (0..)
            .zip(&flags)
            .map(|(raft_id, &(zone, [is_active, is_draining, is_ready, is_lost]))| Candidate {
                raft_id,
                zone: zones[zone],
                is_active: is_active && !is_draining,
                is_draining,
                is_ready: is_ready && !is_lost,
                is_lost,
            })
            .collect();
        let leader = 0;
        let planned = plan(&all, &current, leader);
        let find = |id: &RaftId| all.iter().find(|it| it.raft_id == *id);
        prop_assert!(planned.len() <= 5);
        for id in &planned {
            let it = find(id);
            prop_assert!(it.is_some(), "a stranger votes: {id}");
            let it = it.unwrap();
            prop_assert!(current.contains(id) || (it.is_active && it.is_ready), "not able: {it:?}");
        }
        // Present voters are never given up without a replacement.
        let here = current.iter().filter_map(find).filter(|it| !it.is_draining).count();
        let target = voter_count(all.iter().filter(|it| !it.is_draining).count());
        prop_assert!(planned.len() >= here.min(target));
        if planned.len() > current.len() {
            prop_assert!(planned.len() % 2 == 1, "{planned:?} from {current:?}");
        }
        // It comes to rest.
        let mut settled = planned;
        for _ in 0..8 {
            settled = plan(&all, &settled, leader);
        }
        prop_assert_eq!(plan(&all, &settled, leader), settled);
    }
}
