use proptest::prelude::*;

use super::*;

fn member(port: u16) -> ClusterMember {
    ClusterMember {
        id: NodeId::of_name(&port.to_string()),
        host: "10.0.0.1".to_owned(),
        port,
        health: Health::Online,
    }
}

fn range(first: u16, last: u16, owners: &[u16]) -> SlotRange {
    SlotRange {
        first,
        last,
        owners: Owners::new(owners).expect("one to three owners"),
    }
}

fn view(me: u16, ranges: Vec<SlotRange>) -> Option<ClusterView> {
    ClusterView::new(7, me, vec![member(1), member(2), member(3)], ranges)
}

#[test]
fn ids_are_forty_digits_and_stay_as_they_are() {
    let digits = |name| NodeId::of_name(name).to_string();
    assert_eq!(digits(""), "36178ff42bee28e5d4a59cfe3d1b3a34a2a11f1e");
    assert_eq!(digits("node-1"), "ba403918cbd223c26d93e430c0a36bc6cbdbf930");
    assert_eq!(
        NodeId::of_name("node-1").shard().to_string(),
        "619d251e0c5b82a9404e9e1d4bb338bc20ba6556"
    );
    let mut all: Vec<_> = (0..10_000)
        .map(|it| NodeId::of_name(&format!("node-{it}")))
        .collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 10_000);
    // No part of one is a part of another's.
    for part in [0..8, 8..16, 12..20] {
        let mut parts: Vec<_> = all.iter().map(|id| &id.as_bytes()[part.clone()]).collect();
        parts.sort_unstable();
        parts.dedup();
        assert_eq!(parts.len(), 10_000, "{part:?}");
    }
}

#[test]
fn a_router_owns_all_slots_at_its_address() {
    let view = ClusterView::of_router("cache.example:7001").expect("is an address");
    let member = &view.members()[0];
    assert_eq!((member.host.as_str(), member.port), ("cache.example", 7001));
    assert_eq!(member.id, NodeId::of_name("router cache.example:7001"));
    assert!((0..SLOT_COUNT).all(|slot| view.owners(slot).is_some()));
    assert!((0..SLOT_COUNT).all(|slot| view.moved(slot, Redirects::Never).is_none()));
    assert_eq!(ClusterView::of_router("no address"), None);
}

#[test]
fn views_that_break_an_invariant_are_refused() {
    assert!(view(2, vec![range(0, 5, &[0]), range(6, 16_383, &[1, 2])]).is_some());
    assert!(view(0, Vec::new()).is_some());
    for (what, wrong) in [
        ("nobody tells it", view(3, Vec::new())),
        ("an owner is no member", view(0, vec![range(0, 5, &[0, 3])])),
        (
            "there is no such slot",
            view(0, vec![range(0, 16_384, &[0])]),
        ),
        ("it ends before it begins", view(0, vec![range(5, 4, &[0])])),
        (
            "two have a slot in common",
            view(0, vec![range(0, 5, &[0]), range(5, 6, &[1])]),
        ),
        (
            "they are not in order",
            view(0, vec![range(6, 7, &[0]), range(0, 5, &[1])]),
        ),
    ] {
        assert!(wrong.is_none(), "{what}");
    }
}

#[test]
fn a_lone_process_owns_all_slots() {
    let address = "[::ffff:127.0.0.1]:11211".parse().ok();
    let alone = ClusterView::alone("x", address);
    assert_eq!(alone.members()[0].host, "127.0.0.1");
    assert_eq!(alone.members()[0].port, 11_211);
    assert_eq!(alone.members()[0].id, NodeId::of_name("x"));
    assert!((0..SLOT_COUNT).all(|slot| alone.owners(slot).is_some()));
    for redirects in [Redirects::Never, Redirects::ToPrimary, Redirects::ToOwner] {
        assert!((0..SLOT_COUNT).all(|slot| alone.moved(slot, redirects).is_none()));
    }
    let by_unix_socket = ClusterView::alone("x", None);
    assert_eq!(by_unix_socket.members()[0].host, "");
}

#[test]
fn a_client_is_sent_to_the_primary_unless_it_may_stay() {
    let ranges = || {
        vec![
            range(0, 5, &[0, 1]),
            range(6, 10, &[1, 0]),
            range(12, 12, &[2]),
        ]
    };
    let view = view(0, ranges()).expect("is right");
    let port = |slot, redirects| view.moved(slot, redirects).map(|moved| moved.port);
    use Redirects::{Never, ToOwner, ToPrimary};
    // Its primary, its replica, no owner of it, and a slot without owners.
    assert_eq!(port(5, ToPrimary), None);
    assert_eq!(port(6, ToPrimary), Some(2));
    assert_eq!(port(12, ToPrimary), Some(3));
    assert_eq!(port(11, ToPrimary), None);
    assert_eq!(port(6, ToOwner), None);
    assert_eq!(port(12, ToOwner), Some(3));
    assert_eq!(port(12, Never), None);
    let moved = view.moved(12, ToPrimary);
    assert_eq!(
        moved,
        Some(Moved {
            slot: 12,
            host: "10.0.0.1".to_owned(),
            port: 3
        })
    );
}

#[test]
fn only_a_member_with_nothing_but_copies_of_one_other_replicates_it() {
    let replica = view(0, vec![range(0, 5, &[0, 1]), range(6, 10, &[0, 1, 2])]);
    let replica = replica.expect("is right");
    assert_eq!(
        [0, 1, 2].map(|it| replica.primary_of(it)),
        [None, Some(0), Some(0)]
    );
    let mixed = view(0, vec![range(0, 5, &[0, 2]), range(6, 10, &[1, 2])]);
    let mixed = mixed.expect("is right");
    assert_eq!([0, 1, 2].map(|it| mixed.primary_of(it)), [None; 3]);
}

proptest! {
    #[test]
    fn ranges_tell_the_owners_of_each_slot(
        cuts in prop::collection::vec((0..SLOT_COUNT, 0..4_usize), 0..40),
    ) {
        let rows = [None, Owners::new(&[0]), Owners::new(&[1, 0]), Owners::new(&[2, 1, 0])];
        let mut owners = vec![None; usize::from(SLOT_COUNT)];
        for (from, row) in cuts {
            owners[usize::from(from)..].fill(rows[row]);
        }
        let view = view(1, ranges(|slot| owners[usize::from(slot)])).expect("is in order");
        for (slot, owners) in (0..SLOT_COUNT).zip(&owners) {
            prop_assert_eq!(view.owners(slot), *owners);
        }
        let neighbors = view.ranges().windows(2);
        let are_apart = |pair: &[SlotRange]| {
            pair[0].last + 1 < pair[1].first || pair[0].owners != pair[1].owners
        };
        prop_assert!(neighbors.into_iter().all(are_apart));
    }
}
