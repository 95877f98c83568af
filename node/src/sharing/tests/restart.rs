//! A member that is restarted before it has copied its slots: it asks the earlier owners, or shows
//! nothing older.

use super::missing::{restart_by, start_on};
use super::*;
use crate::sharing::notes::load;

/// Three members, the second of which keeps its notes.
struct Trio {
    disk: TempDir,
    a: Member,
    b: Member,
    c: Member,
}

impl Trio {
    fn start() -> Self {
        let disk = tempfile::tempdir().unwrap();
        let [a, c] = ["a", "c"].map(Member::start);
        let b = start_on("b", &disk);
        Self { disk, a, b, c }
    }

    /// The map of an epoch: b has all, then a, and then b takes over from a what c does not have.
    fn map(&self, epoch: u64) -> Topology {
        let states = match epoch {
            1 => [Draining, Active, Draining],
            2 => [Active, Draining, Draining],
            _ => [Draining, Active, Active],
        };
        self.map_of(epoch, states)
    }

    fn map_of(&self, epoch: u64, [a, b, c]: [MemberState; 3]) -> Topology {
        map(epoch, 1, &[(&self.a, a), (&self.b, b), (&self.c, c)])
    }

    fn without_a(&self, epoch: u64, of_b: MemberState) -> Topology {
        map(epoch, 1, &[(&self.b, of_b), (&self.c, Active)])
    }

    /// A key that b takes over from a, where c would stand in for b. It has an older value at b.
    fn hand_over(&self, seen_by_b: u64) -> String {
        let taken = self.map(3);
        let stand_in = self.map_of(3, [Active, Down, Active]);
        let mut keys = (0..).map(|nth| key_of(&taken, &self.b, nth));
        let key = keys.find(|key| stand_in.owners(slot(key.as_bytes())).next().unwrap().id == "c");
        let key = key.unwrap();
        for epoch in 1..=3 {
            let map = self.map(epoch);
            go_by(&[&self.a, &self.c], &map);
            if epoch <= seen_by_b {
                self.b.sharing.go_by(map, true);
            }
            match epoch {
                1 => assert_eq!(self.b.client().set(&key, "old"), "STORED"),
                2 => assert_eq!(self.a.client().set(&key, "new"), "STORED"),
                _ => {}
            }
        }
        key
    }

    /// b ends as if its process had been killed, and is started on its disk.
    fn restart_b(self) -> Self {
        let Self { disk, a, b, c } = self;
        drop(b);
        let b = start_on("b", &disk);
        Self { disk, a, b, c }
    }

    /// b applies a map, up since an epoch.
    fn b_goes_by(&self, map: &Topology, since: u64) {
        let since = |id: &str| if id == "b" { since } else { 1 };
        let is_unbroken = since("b") <= self.b.sharing.epoch();
        self.b.sharing.go_by_since(map.clone(), is_unbroken, &since);
    }

    /// b has asked all that it can about a key, and has it not; it takes the next value.
    fn b_shows_nothing_older(&self, key: &str, case: std::fmt::Arguments<'_>) {
        self.b.take_over();
        until("the other one has told", || self.b.is_filled());
        let mut client = self.b.client();
        assert_eq!(client.get(key), None, "{case}");
        assert_eq!(client.set(key, "later"), "STORED", "{case}");
        assert_eq!(client.get(key).as_deref(), Some("later"), "{case}");
    }

    /// The members noted for a slot of a key.
    fn noted(&self, key: &str) -> Vec<String> {
        let noted = load(self.disk.path()).unwrap();
        let of_key = noted.sources.iter();
        let of_key = of_key.filter(|(_, slots)| slots.contains(slot(key.as_bytes())));
        of_key.map(|((id, _), _)| id.to_string()).collect()
    }
}

#[test]
fn a_member_restarted_before_it_has_a_slot_asks_the_former_owner_and_not_the_stand_in() {
    let trio = Trio::start();
    let key = trio.hand_over(3);
    let trio = trio.restart_b();
    restart_by(&trio.b, &trio.map(3));
    assert_eq!(trio.b.client().get(&key).as_deref(), Some("new"));
    trio.b.take_over();
    until("all is taken over", || trio.b.is_filled());
    assert_eq!(trio.b.client().get(&key).as_deref(), Some("new"));
}

#[test]
fn a_member_restarted_behind_a_map_that_it_did_not_apply_asks_the_former_owners() {
    let trio = Trio::start();
    let key = trio.hand_over(2);
    let trio = trio.restart_b();
    restart_by(&trio.b, &trio.map(3));
    assert_eq!(trio.b.client().get(&key).as_deref(), Some("new"));
}

#[test]
fn an_owner_that_fails_while_the_next_owner_is_down_is_missing() {
    // The maps of the meantime are gone by in turn, or the newest alone.
    for is_in_turn in [true, false] {
        let trio = Trio::start();
        let key = trio.hand_over(3);
        let trio = trio.restart_b();
        let maps = [
            trio.map(3),
            trio.map_of(4, [Down, Down, Active]),
            trio.map_of(5, [Down, Active, Active]),
        ];
        go_by(&[&trio.c], &maps[1]);
        go_by(&[&trio.c], &maps[2]);
        let first = if is_in_turn { 0 } else { 2 };
        for (map, since) in maps.iter().zip([1, 1, 5]).skip(first) {
            trio.b_goes_by(map, since);
        }
        // The other one knows of no member that is missing for the key.
        trio.b.take_over();
        until("the other one has told", || trio.b.is_filled());
        let mut client = trio.b.client();
        assert_eq!(client.get(&key), None, "in turn: {is_in_turn}");
        // It is back.
        let sixth = trio.map_of(6, [Draining, Active, Active]);
        trio.a.sharing.go_by(sixth.clone(), false);
        go_by(&[&trio.b, &trio.c], &sixth);
        assert_eq!(client.get(&key).as_deref(), Some("new"));
    }
}

#[test]
fn a_drain_ends_without_a_member_that_is_down_which_shows_nothing_older() {
    for is_in_turn in [true, false] {
        let trio = Trio::start();
        let key = trio.hand_over(3);
        let trio = trio.restart_b();
        let maps = [
            trio.map(3),
            trio.map_of(4, [Draining, Down, Active]),
            trio.without_a(5, Down),
            trio.without_a(6, Active),
        ];
        go_by(&[&trio.a, &trio.c], &maps[1]);
        trio.c.take_over();
        until("all is taken over", || trio.c.is_filled());
        let sharing = Arc::clone(&trio.c.sharing);
        let runtime = trio.c.background.as_ref().unwrap();
        let needed = runtime.block_on(async move { sharing.needed_from("a", 4).await });
        assert_eq!(
            needed,
            Ok(0),
            "nobody waits for a machine that may not return"
        );
        go_by(&[&trio.c], &maps[2]);
        go_by(&[&trio.c], &maps[3]);
        let first = if is_in_turn { 0 } else { 3 };
        for (map, since) in maps.iter().zip([1, 1, 1, 6]).skip(first) {
            trio.b_goes_by(map, since);
        }
        trio.b_shows_nothing_older(&key, format_args!("in turn: {is_in_turn}"));
    }
}

#[test]
fn a_member_that_misses_many_maps_shows_nothing_older_than_what_it_was_to_ask_for() {
    for is_removed in [true, false] {
        let trio = Trio::start();
        let key = trio.hand_over(3);
        // It does not hear of its own fall, nor of any map until it is back; the other one has seen
        // all.
        let last = 14;
        let map_of = |epoch| {
            let of_b = if epoch == last { Active } else { Down };
            match is_removed && epoch > 4 {
                true => trio.without_a(epoch, of_b),
                false => trio.map_of(epoch, [Down, of_b, Active]),
            }
        };
        (4..=last).for_each(|epoch| go_by(&[&trio.c], &map_of(epoch)));
        trio.b_goes_by(&map_of(last), last);
        trio.b_shows_nothing_older(&key, format_args!("removed: {is_removed}"));
    }
}

#[test]
fn what_is_taken_over_is_noted_before_its_source_is_said_to_be_needed_no_more() {
    let trio = Trio::start();
    let key = trio.hand_over(3);
    assert!(trio.noted(&key).contains(&"a".to_owned()));
    trio.c.take_over();
    trio.b.take_over();
    let needed = || {
        let sharing = Arc::clone(&trio.c.sharing);
        let runtime = trio.c.background.as_ref().unwrap();
        runtime.block_on(async move { sharing.needed_from("a", 3).await })
    };
    until("nothing is needed", || needed() == Ok(0));
    assert!(!trio.noted(&key).contains(&"a".to_owned()));
    until("nothing is lacked", || trio.b.is_filled());
    assert_eq!(trio.noted(&key), Vec::<String>::new());
}

#[test]
fn what_was_never_copied_is_left_to_the_member_that_has_it_by_now() {
    let trio = Trio::start();
    let key = trio.hand_over(3);
    let leave = || {
        let sharing = Arc::clone(&trio.b.sharing);
        let generation = *sharing.changes.borrow();
        let runtime = trio.b.background.as_ref().unwrap();
        runtime.block_on(async move { sharing.leave_behind(generation).await })
    };
    // It loses the slots before it has asked.
    let fourth = trio.map_of(4, [Draining, Draining, Active]);
    go_by(&[&trio.a, &trio.b, &trio.c], &fourth);
    assert!(!leave(), "who has them asks about them still");
    // A draining member stays until the new owner has been told of it, and has asked it.
    let needed = || {
        let sharing = Arc::clone(&trio.c.sharing);
        let runtime = trio.c.background.as_ref().unwrap();
        runtime.block_on(async move { sharing.needed_from("a", 4).await.unwrap() })
    };
    assert!(needed() > 0, "the second one would name it");
    let has_sources = || {
        let held = trio.b.sharing.held.lock();
        let holding = held.holdings.get(slot(key.as_bytes())).unwrap();
        !holding.sources.is_empty()
    };
    assert!(has_sources());
    trio.c.take_over();
    until("all is taken over", || trio.c.is_filled());
    assert!(leave());
    assert!(!has_sources());
    assert_eq!(needed(), 0);
    assert_eq!(trio.c.client().get(&key).as_deref(), Some("new"));
}

#[test]
fn a_member_that_is_down_may_have_to_be_told_again_so_no_other_forgets_meanwhile() {
    let disk = tempfile::tempdir().unwrap();
    let [a, b, d] = ["a", "b", "d"].map(Member::start);
    let c = start_on("c", &disk);
    let by = |epoch, of_a, of_b, (c, of_c): (&Member, _), of_d| {
        map(epoch, 1, &[(&a, of_a), (&b, of_b), (c, of_c), (&d, of_d)])
    };
    // b has all, then a, then b again, which has not asked yet when c takes over from it.
    let maps = [
        by(1, Draining, Active, (&c, Draining), Draining),
        by(2, Active, Draining, (&c, Draining), Draining),
        by(3, Draining, Active, (&c, Draining), Draining),
        by(4, Draining, Draining, (&c, Active), Draining),
    ];
    for (map, value) in maps
        .iter()
        .zip([Some((&b, "old")), Some((&a, "new")), None, None])
    {
        go_by(&[&a, &b, &c, &d], map);
        if let Some((owner, value)) = value {
            assert_eq!(owner.client().set("k", value), "STORED");
        }
    }
    // c ends before it has asked, and d stands in for it, which lacks nothing.
    drop(c);
    let c = start_on("c", &disk);
    let fifth = by(5, Draining, Draining, (&c, Down), Active);
    go_by(&[&a, &b, &d], &fifth);
    d.take_over();
    until("d has found out that it lacks nothing", || d.is_filled());
    let sharing = Arc::clone(&b.sharing);
    let generation = *sharing.changes.borrow();
    let runtime = b.background.as_ref().unwrap();
    assert!(!runtime.block_on(async move { sharing.leave_behind(generation).await }));

    // It comes back by the maps of the meantime, in turn.
    let sixth = by(6, Draining, Draining, (&c, Active), Draining);
    go_by(&[&a, &b, &d], &sixth);
    for (map, since) in [(fifth, 1), (sixth, 6)] {
        let since = |id: &str| if id == "c" { since } else { 1 };
        c.sharing.go_by_since(map, false, &since);
    }
    assert_eq!(c.client().get("k").as_deref(), Some("new"));
}
