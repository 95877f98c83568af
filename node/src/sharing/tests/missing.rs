//! Former owners that are down: other members' copies are older than what such an owner may have
//! acknowledged.

use super::*;
use crate::sharing::missing::{Known, load};

/// Options of a member that is started again on `disk`.
fn on(disk: &TempDir) -> impl Fn(&TempDir) -> EngineOptions + '_ {
    |_| options(disk)
}

pub(super) fn start_on(name: &str, disk: &TempDir) -> Member {
    // The threads of the one before are still at it.
    until("the disk is free", || {
        let lock = std::fs::File::create(disk.path().join("LOCK")).unwrap();
        lock.try_lock().is_ok()
    });
    let member = Member::start_in(name, tempfile::tempdir().unwrap(), on(disk));
    member.sharing.note_in(disk.path());
    member
}

/// A member is told a map by which it and all that are down have been so since long ago.
pub(super) fn restart_by(member: &Member, map: &Topology) {
    member.sharing.go_by_since(map.clone(), false, &|_| 0);
}

/// They apply their first map, and know that no member had their slots before.
pub(super) fn settle(members: &[&Member], map: &Topology) {
    go_by(members, map);
    members.iter().for_each(|it| it.take_over());
    until("all is taken over", || {
        members.iter().all(|it| it.is_filled())
    });
}

#[test]
fn two_that_fall_in_turn_show_nothing_older_than_what_the_other_acknowledged() {
    // Of three the one that comes back has seen all maps, or missed that by which the other one
    // stood in.
    for has_seen_all in [true, false] {
        let [a, b] = ["a", "b"].map(Member::start);
        let first = map(1, 1, &[(&a, Active), (&b, Active)]);
        go_by(&[&a, &b], &first);
        let [over, deleted, kept, again] = [0, 1, 2, 3].map(|nth| key_of(&first, &a, nth));
        let (mut at_a, mut at_b) = (a.client(), b.client());
        for key in [&over, &deleted, &kept, &again] {
            assert_eq!(at_a.set(key, "a"), "STORED");
        }
        let second = map(2, 1, &[(&a, Down), (&b, Active)]);
        go_by(&[&b], &second);
        assert_eq!(at_b.set(&over, "b"), "STORED");
        assert_eq!(at_b.set(&again, "b"), "STORED");
        assert_eq!(at_b.set(&deleted, "b"), "STORED");
        assert_eq!(at_b.delete(&deleted), "DELETED");
        // It falls before the other one is back, and could have been asked.
        let third = map(3, 1, &[(&a, Active), (&b, Down)]);
        if has_seen_all {
            a.sharing.go_by(second, false);
        }
        a.sharing.go_by(third, false);
        a.take_over();
        until("nobody is there to be asked", || a.is_filled());
        for key in [&over, &deleted, &kept] {
            assert_eq!(at_a.get(key), None, "{key}, {has_seen_all}");
        }
        // What is written now shows, and what was here does not get in its way.
        assert_eq!(at_a.get(&again), None);
        let added = at_a.ask(&format!("add {again} 0 0 5\r\nlater\r\n"));
        assert_eq!(added, "STORED");
        assert_eq!(at_a.get(&again).as_deref(), Some("later"));
        assert_eq!(at_a.delete(&over), "NOT_FOUND");

        let fourth = map(4, 1, &[(&a, Active), (&b, Active)]);
        a.sharing.go_by(fourth.clone(), true);
        b.sharing.go_by(fourth, false);
        until("b was asked", || a.is_filled());
        assert_eq!(at_a.get(&deleted), None);
        assert_eq!(at_a.get(&kept).as_deref(), Some("a"), "nobody overwrote it");
        assert_eq!(at_a.get(&again).as_deref(), Some("later"));
    }
}

#[test]
fn what_the_other_one_wrote_shows_when_it_is_back() {
    let [a, b] = ["a", "b"].map(Member::start);
    let first = map(1, 1, &[(&a, Active), (&b, Active)]);
    go_by(&[&a, &b], &first);
    let key = key_of(&first, &a, 0);
    let (mut at_a, mut at_b) = (a.client(), b.client());
    assert_eq!(at_a.set(&key, "a"), "STORED");
    go_by(&[&b], &map(2, 1, &[(&a, Down), (&b, Active)]));
    assert_eq!(at_b.set(&key, "b"), "STORED");
    a.sharing
        .go_by(map(3, 1, &[(&a, Active), (&b, Down)]), false);
    assert_eq!(at_a.get(&key), None);
    let fourth = map(4, 1, &[(&a, Active), (&b, Active)]);
    a.sharing.go_by(fourth.clone(), true);
    b.sharing.go_by(fourth, false);
    assert_eq!(at_a.get(&key).as_deref(), Some("b"));
}

#[test]
fn what_one_had_whose_disk_is_lost_is_not_waited_for() {
    let [a, b] = ["a", "b"].map(Member::start);
    let first = map(1, 1, &[(&a, Active), (&b, Active)]);
    go_by(&[&a, &b], &first);
    let key = key_of(&first, &a, 0);
    assert_eq!(a.client().set(&key, "a"), "STORED");
    go_by(&[&b], &map(2, 1, &[(&a, Down), (&b, Active)]));
    assert_eq!(b.client().set(&key, "b"), "STORED");
    a.sharing
        .go_by(map(3, 1, &[(&a, Active), (&b, Down)]), false);
    assert_eq!(a.client().get(&key), None);
    // It is removed for good: no member will ever know better.
    go_by(&[&a], &map(4, 1, &[(&a, Active)]));
    assert_eq!(a.client().get(&key).as_deref(), Some("a"));
}

#[test]
fn a_restart_does_not_forget_missing_members_nor_doubt_what_no_other_member_had() {
    let disk = tempfile::tempdir().unwrap();
    let a = Member::start("a");
    let b = start_on("b", &disk);
    let first = map(1, 1, &[(&a, Active), (&b, Active)]);
    settle(&[&a, &b], &first);
    until("it is noted that nothing is lacked", || {
        load(disk.path()).is_some_and(|(known, _)| known == Known::of(&first).settled())
    });
    let (of_a, of_b) = (key_of(&first, &a, 0), key_of(&first, &b, 0));
    // b has an older copy of what is a's.
    go_by(&[&a, &b], &map(2, 1, &[(&a, Draining), (&b, Active)]));
    for key in [&of_a, &of_b] {
        assert_eq!(b.client().set(key, "b"), "STORED");
    }
    go_by(&[&a, &b], &map(3, 1, &[(&a, Active), (&b, Active)]));
    until("all is taken over", || a.is_filled() && b.is_filled());
    assert_eq!(a.client().set(&of_a, "a"), "STORED");
    let fallen = map(4, 1, &[(&a, Down), (&b, Active)]);
    go_by(&[&b], &fallen);
    assert_eq!(b.client().get(&of_a), None);
    drop(b);
    let b = start_on("b", &disk);
    restart_by(&b, &map(4, 1, &[(&a, Down), (&b, Active)]));
    assert_eq!(b.client().get(&of_a), None);
    assert_eq!(b.client().get(&of_b).as_deref(), Some("b"));
    // Without the notes any member that is down may have had any slot.
    drop(b);
    std::fs::remove_file(disk.path().join("missing")).unwrap();
    let b = start_on("b", &disk);
    restart_by(&b, &map(4, 1, &[(&a, Down), (&b, Active)]));
    assert_eq!(b.client().get(&of_a), None);
    assert_eq!(b.client().get(&of_b), None);
}

#[test]
fn a_member_that_was_up_by_an_unseen_map_believes_no_other_that_none_is_missing() {
    let disk = tempfile::tempdir().unwrap();
    let a = start_on("a", &disk);
    let [b, c] = ["b", "c"].map(Member::start);
    let first = map(1, 1, &[(&a, Active), (&b, Active), (&c, Active)]);
    settle(&[&a, &b, &c], &first);
    let second = map(2, 1, &[(&a, Down), (&b, Active), (&c, Active)]);
    let mut keys = (0..).map(|nth| key_of(&first, &a, nth));
    let key = keys.find(|key| second.owners(slot(key.as_bytes())).next().unwrap().id == "b");
    let key = key.unwrap();
    assert_eq!(a.client().set(&key, "a"), "STORED");
    drop(a);
    go_by(&[&b, &c], &second);
    assert_eq!(b.client().set(&key, "b"), "STORED");
    // By the third map it is up, and has the key, which it cannot take over before the other one
    // falls.
    let a = start_on("a", &disk);
    go_by(
        &[&b, &c],
        &map(3, 1, &[(&a, Active), (&b, Active), (&c, Active)]),
    );
    let fourth = map(4, 1, &[(&a, Active), (&b, Down), (&c, Active)]);
    go_by(&[&c], &fourth);
    a.sharing.go_by_since(fourth, false, &|_| 3);
    a.take_over();
    until("the third one has told", || a.is_filled());
    assert_eq!(a.client().get(&key), None);
    // It is back.
    let fifth = map(5, 1, &[(&a, Active), (&b, Active), (&c, Active)]);
    b.sharing.go_by(fifth.clone(), false);
    go_by(&[&a, &c], &fifth);
    assert_eq!(a.client().get(&key).as_deref(), Some("b"));
}

#[test]
fn a_member_that_joins_while_another_is_down_shows_what_it_copies() {
    let members = ["a", "b", "c"].map(Member::start);
    let [a, b, c] = &members;
    let first = map(1, 1, &[(a, Active), (b, Active)]);
    settle(&[a, b], &first);
    let joined = map(3, 1, &[(a, Down), (b, Active), (c, Active)]);
    let moved = |owner: &Member| {
        let keys = (0..).map(|nth| key_of(&joined, c, nth));
        let mut of = keys.filter(|key| {
            let before = first.owners(slot(key.as_bytes())).next().unwrap();
            before.id == owner.name
        });
        of.next().unwrap()
    };
    let (of_a, of_b) = (moved(a), moved(b));
    assert_eq!(a.client().set(&of_a, "a"), "STORED");
    assert_eq!(b.client().set(&of_b, "b"), "STORED");
    go_by(&[b], &map(2, 1, &[(a, Down), (b, Active)]));
    // c has seen nothing of all that.
    go_by(&[b, c], &joined);
    assert_eq!(c.client().get(&of_b).as_deref(), Some("b"));
    c.take_over();
    until("all is taken over", || c.is_filled());
    assert_eq!(c.client().get(&of_b).as_deref(), Some("b"));
    assert_eq!(c.client().get(&of_a), None);
}
