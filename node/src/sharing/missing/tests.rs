use fonn_forward::MemberState::{Active, Down, Draining, Joining};

use super::*;
use crate::sharing::tests::maps::map;

/// A member that goes by one map after the other.
struct Follower {
    own: &'static str,
    map: Option<Topology>,
    holdings: Holdings,
    missing: Missing,
    known: Option<Known>,
}

impl Follower {
    fn start(own: &'static str) -> Self {
        Self {
            own,
            map: None,
            holdings: Holdings::default(),
            missing: Missing::default(),
            known: None,
        }
    }

    /// Applies a map at a time; no member was up last since a later epoch than `since`.
    fn go_by(&mut self, new: &Topology, since: u64, now: Version) {
        let step = Step {
            own: self.own,
            old: self.map.as_ref(),
            is_unbroken: self.map.is_some(),
            new,
        };
        let known = self.map.as_ref().map(Known::of).or(self.known.take());
        let missing = self.missing.follow(Change {
            step,
            holdings: &self.holdings,
            known: known.as_ref(),
            since: &|_| since,
            now,
        });
        let holdings = self.holdings.follow(step);
        (self.missing, self.holdings) = (missing, holdings);
        self.map = Some(new.clone());
    }

    /// Nothing is lacked any more.
    fn settle(&mut self, source: &str) {
        (0..SLOT_COUNT).for_each(|slot| self.holdings.settle(slot, source));
    }

    fn of(&self, id: &str) -> SlotSet {
        let found = self.missing.iter().find(|(of, _)| ***of == *id);
        found.map_or_else(SlotSet::new, |(_, slots)| slots.clone())
    }
}

/// The slots of which a member is the first owner.
fn owned(map: &Topology, id: &str) -> SlotSet {
    let is_first = |slot: &u16| map.owners(*slot).next().is_some_and(|it| it.id == id);
    (0..SLOT_COUNT).filter(is_first).collect()
}

#[test]
fn an_only_owner_that_fell_is_missing_for_its_slots_until_it_is_back() {
    let all = map(1, 1, &[("a", Active), ("b", Active), ("c", Active)]);
    let without_a = map(2, 1, &[("a", Down), ("b", Active), ("c", Active)]);
    let c_alone = map(3, 1, &[("a", Down), ("b", Down), ("c", Active)]);
    let a_is_back = map(4, 1, &[("a", Active), ("b", Down), ("c", Active)]);
    let mut c = Follower::start("c");
    c.go_by(&all, 0, 100);
    c.settle("a");
    c.settle("b");
    c.go_by(&without_a, 0, 200);
    assert_eq!(c.of("a"), owned(&all, "a"));
    c.settle("b");
    c.go_by(&c_alone, 0, 300);
    // Of those that b had for a, both may know.
    assert_eq!(c.of("a"), owned(&all, "a"));
    assert_eq!(c.of("b"), owned(&without_a, "b"));
    for slot in 0..SLOT_COUNT {
        let (of_a, of_b) = (c.of("a").contains(slot), c.of("b").contains(slot));
        let doubted = match (of_a, of_b) {
            (_, true) => 300,
            (true, false) => 200,
            (false, false) => 0,
        };
        assert_eq!(c.missing.doubted(slot), doubted, "{slot}");
    }
    c.go_by(&a_is_back, 0, 400);
    assert_eq!(c.of("a"), SlotSet::new());
    assert_eq!(c.of("b"), owned(&without_a, "b"));
    // a itself, which saw all of that as well, must not show what b wrote over.
    let mut a = Follower::start("a");
    for (map, now) in [&all, &without_a, &c_alone, &a_is_back]
        .into_iter()
        .zip([100, 210, 310, 410])
    {
        a.go_by(map, 0, now);
        a.settle("b");
        a.settle("c");
    }
    assert_eq!(a.of("b"), owned(&without_a, "b"));
    let had = (0..SLOT_COUNT).filter(|slot| owned(&all, "a").contains(*slot));
    let went_to_b: Vec<u16> = had.filter(|slot| a.of("b").contains(*slot)).collect();
    assert!(went_to_b.len() > 1000);
    assert!(went_to_b.iter().all(|slot| a.missing.doubted(*slot) == 310));
}

#[test]
fn with_two_owners_one_that_fell_is_not_missing_and_both_are() {
    let rows = |of_a, of_b| [("a", of_a), ("b", of_b), ("c", Active), ("d", Active)];
    let all = map(1, 2, &rows(Active, Active));
    let mut d = Follower::start("d");
    d.go_by(&all, 0, 100);
    ["a", "b", "c"].iter().for_each(|it| d.settle(it));
    let mut at_once = Follower {
        map: Some(all.clone()),
        holdings: d.holdings.clone(),
        ..Follower::start("d")
    };
    d.go_by(&map(2, 2, &rows(Down, Active)), 0, 200);
    assert_eq!(d.of("a"), SlotSet::new());
    at_once.go_by(&map(2, 2, &rows(Down, Down)), 0, 200);
    let of_both = |slot: &u16| all.owners(*slot).all(|it| it.id == "a" || it.id == "b");
    let of_both: SlotSet = (0..SLOT_COUNT).filter(of_both).collect();
    assert!(of_both.len() > 1000);
    assert_eq!(
        (at_once.of("a"), at_once.of("b")),
        (of_both.clone(), of_both)
    );
}

#[test]
fn a_member_to_ask_is_missing_where_its_failure_was_not_seen_whatever_others_say() {
    let of_a = map(1, 1, &[("a", Active), ("b", Draining), ("c", Draining)]);
    let of_b = map(2, 1, &[("a", Draining), ("b", Active), ("c", Draining)]);
    let fallen = map(12, 1, &[("a", Down), ("b", Active), ("c", Active)]);
    let removed = map(12, 1, &[("b", Active), ("c", Active)]);
    for (is_settled, is_restarted) in [(false, false), (false, true), (true, false), (true, true)] {
        let says = format!("settled: {is_settled}, restarted: {is_restarted}");
        let taking_over = || {
            let mut b = Follower::start("b");
            b.go_by(&of_a, 0, 100);
            b.settle("a");
            b.go_by(&of_b, 0, 200);
            if is_settled {
                b.settle("a");
            }
            let again = Follower {
                known: Some(Known::of(&of_b)),
                holdings: Holdings::of_sources(2, Some(&of_b), "b", &b.holdings.sources()),
                ..Follower::start("b")
            };
            if is_restarted { again } else { b }
        };
        let expected = if is_settled { 0 } else { 300 };
        let mut b = taking_over();
        // Others know what there is to know of a member that came up by this map.
        b.go_by(&fallen, 12, 300);
        assert_eq!(b.of("a"), SlotSet::all(), "{says}");
        b.missing.trust(&SlotSet::all(), |_, _| false);
        assert_eq!(b.missing.doubted(7), expected, "{says}");
        // A drain does not wait for a member that is down.
        let mut b = taking_over();
        b.go_by(&removed, 12, 300);
        assert_eq!(b.missing.iter().count(), 0, "nobody can come back");
        assert_eq!(b.missing.doubted(7), expected, "{says}");
    }
    // By an older map it may be none yet.
    let mut b = Follower::start("b");
    b.go_by(&of_a, 0, 100);
    b.go_by(&of_b, 0, 200);
    let mut again = Follower {
        holdings: Holdings::of_sources(2, Some(&of_b), "b", &b.holdings.sources()),
        ..Follower::start("b")
    };
    again.go_by(&map(1, 1, &[("b", Active), ("c", Active)]), 0, 300);
    assert_eq!(again.missing, Missing::default());
}

#[test]
fn a_member_that_fails_before_it_was_asked_about_a_slot_is_missing() {
    let of_a = map(1, 1, &[("a", Active), ("b", Draining)]);
    let of_b = map(2, 1, &[("a", Draining), ("b", Active)]);
    let without_a = map(3, 1, &[("a", Down), ("b", Active)]);
    for is_settled in [false, true] {
        let mut b = Follower::start("b");
        b.go_by(&of_a, 0, 100);
        b.go_by(&of_b, 0, 200);
        if is_settled {
            b.settle("a");
        }
        b.go_by(&without_a, 0, 300);
        let expected = if is_settled { 0 } else { u32::from(SLOT_COUNT) };
        assert_eq!(b.of("a").len(), expected);
    }
}

#[test]
fn an_unseen_failure_may_concern_any_slot_until_a_member_tells() {
    let now = map(9, 1, &[("a", Down), ("b", Active), ("c", Active)]);
    let mut b = Follower::start("b");
    b.go_by(&now, 9, 300);
    assert_eq!(b.of("a"), SlotSet::all());
    assert_eq!(b.missing.doubted(7), 300);
    let [told, denied, open] = [7, 8, 9];
    let asked: SlotSet = [told, denied].into_iter().collect();
    b.missing
        .trust(&asked, |id, slot| id == "a" && slot == told);
    let doubted = [told, denied, open].map(|slot| b.missing.doubted(slot));
    assert_eq!(doubted, [300, 0, 300]);
    // What was seen no member denies.
    b.missing.add("a", &[denied].into_iter().collect(), 200);
    b.missing.trust(&SlotSet::all(), |_, _| false);
    let doubted = [told, denied, open].map(|slot| b.missing.doubted(slot));
    assert_eq!(doubted, [0, 200, 0]);
    // Behind a gap it may have come and gone.
    let mut later = Follower {
        map: Some(map(3, 1, &[("a", Down), ("b", Active), ("c", Active)])),
        ..Follower::start("b")
    };
    later.go_by(&now, 3, 300);
    assert_eq!(
        later.of("a"),
        SlotSet::new(),
        "it was down by the third map, and since"
    );
    let mut later = Follower {
        map: Some(map(3, 1, &[("a", Down), ("b", Active), ("c", Active)])),
        ..Follower::start("b")
    };
    later.go_by(&now, 4, 300);
    assert_eq!(later.of("a"), SlotSet::all());
}

#[test]
fn only_members_that_can_know_end_a_guess() {
    let all_up = |epoch| map(epoch, 1, &[("a", Active), ("b", Active), ("c", Active)]);
    let without_a = |epoch| map(epoch, 1, &[("a", Down), ("b", Active), ("c", Active)]);
    let known = |epoch| Some(Known::of(&all_up(epoch)));
    let settled = |epoch| known(epoch).map(Known::settled);
    // Since when b is up, what it has noted, and whether others know.
    for (since, known, is_ended) in [
        (9, None, true),
        (8, None, false),
        (8, settled(8), true),
        (8, known(8), false),
        (7, settled(7), false),
        (7, known(9), true),
    ] {
        let says = format!("{since}, {known:?}");
        let mut b = Follower {
            known,
            ..Follower::start("b")
        };
        b.go_by(&without_a(9), since, 300);
        assert_eq!(b.of("a"), SlotSet::all(), "{says}");
        b.missing.trust(&SlotSet::all(), |_, _| false);
        assert_eq!(b.of("a").is_empty(), is_ended, "{says}");
    }
    // It may have had slots by a map that it misses later.
    let mut b = Follower::start("b");
    b.go_by(&without_a(9), 9, 300);
    b.go_by(&without_a(11), 9, 400);
    b.missing.trust(&SlotSet::all(), |_, _| false);
    assert_eq!(b.of("a"), SlotSet::all());
    assert_eq!(b.missing.doubted(7), 300);
}

#[test]
fn whose_disk_is_gone_is_not_missing_and_what_one_had_that_was_removed_stays_doubted() {
    let all = map(1, 1, &[("a", Active), ("b", Active), ("c", Active)]);
    let followed = |maps: &[Topology]| {
        let mut c = Follower::start("c");
        for (map, now) in std::iter::once(&all).chain(maps).zip([100, 200, 300, 400]) {
            c.go_by(map, 0, now);
            c.settle("a");
            c.settle("b");
        }
        c.missing
    };
    let down = map(2, 1, &[("a", Down), ("b", Active), ("c", Active)]);
    let joining = map(3, 1, &[("a", Joining), ("b", Active), ("c", Active)]);
    let removed = |epoch| map(epoch, 1, &[("b", Active), ("c", Active)]);
    assert_eq!(followed(&[down.clone(), joining]), Missing::default());
    assert_eq!(followed(&[down, removed(3)]), Missing::default());
    let missing = followed(&[removed(2), map(3, 1, &[("b", Active), ("c", Active)])]);
    assert_eq!(missing.iter().count(), 0, "nobody can come back");
    for slot in 0..SLOT_COUNT {
        let expected = if owned(&all, "a").contains(slot) {
            200
        } else {
            0
        };
        assert_eq!(missing.doubted(slot), expected, "{slot}");
    }
}

#[test]
fn what_an_owner_asks_for_is_its_own_business_when_the_source_is_removed() {
    let of_a = map(1, 1, &[("a", Active), ("b", Draining), ("c", Draining)]);
    let of_b = map(2, 1, &[("a", Draining), ("b", Active), ("c", Draining)]);
    let of_c = map(3, 1, &[("a", Draining), ("b", Draining), ("c", Active)]);
    for (epoch, is_restarted) in [(4, false), (12, false), (12, true)] {
        let removed = map(epoch, 1, &[("b", Draining), ("c", Active)]);
        let fallen = map(epoch, 1, &[("a", Down), ("b", Draining), ("c", Active)]);
        for last in [&of_b, &of_c] {
            let follower = || {
                let mut b = Follower::start("b");
                b.go_by(&of_a, 0, 100);
                b.settle("a");
                b.go_by(&of_b, 0, 200);
                if last.epoch() == 3 {
                    b.go_by(&of_c, 0, 250);
                }
                assert!(b.holdings.get(7).unwrap().asks("a"), "it has not asked");
                let holdings =
                    Holdings::of_sources(last.epoch(), Some(last), "b", &b.holdings.sources());
                match is_restarted {
                    true => Follower {
                        known: Some(Known::of(last)),
                        holdings,
                        ..Follower::start("b")
                    },
                    false => b,
                }
            };
            let says = format!("{epoch}, restarted: {is_restarted}, by {}", last.epoch());
            let is_owner = last.epoch() == 2;
            let mut b = follower();
            b.go_by(&removed, 0, 300);
            let expected = if is_owner { 300 } else { 0 };
            assert_eq!(b.missing.doubted(7), expected, "{says}");
            // A failed member can be back, and is asked by the owner of the slot by then.
            let mut b = follower();
            b.go_by(&fallen, epoch, 300);
            b.missing.trust(&SlotSet::all(), |_, _| false);
            assert_eq!(b.missing.doubted(7), 300, "{says}");
        }
    }
}

#[test]
fn what_was_written_since_a_removal_is_not_doubted_for_the_next_one() {
    let mut missing = Missing::default();
    missing.add_removed((0..10).collect(), 100);
    missing.add_removed((5..20).collect(), 200);
    missing.add_removed(SlotSet::new(), 300);
    let doubted = [4, 5, 9, 19, 20].map(|slot| missing.doubted(slot));
    assert_eq!(doubted, [100, 200, 200, 200, 0]);
    let dir = tempfile::tempdir().unwrap();
    let known = Known::of(&map(1, 1, &[("a", Active)]));
    save(dir.path(), &known, &missing).unwrap();
    assert_eq!(load(dir.path()).unwrap().1, missing);
    // All is covered by the last one.
    missing.add_removed((0..30).collect(), 400);
    assert_eq!(missing.removed.len(), 1);
}

#[test]
fn what_is_noted_outlives_a_restart_and_what_is_damaged_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(load(dir.path()), None);
    let all = map(1, 1, &[("a", Active), ("b", Active), ("c", Active)]);
    let without_a = map(2, 1, &[("a", Down), ("b", Active), ("c", Active)]);
    let mut c = Follower::start("c");
    c.go_by(&all, 0, 100);
    c.settle("a");
    c.go_by(&without_a, 1, 200);
    // What others tell adds slots, and says nothing new of those that are known.
    let known = owned(&all, "a");
    let other = (0..SLOT_COUNT).find(|slot| !known.contains(*slot)).unwrap();
    let mut told = known.clone();
    told.insert(other);
    c.missing.add("a", &told, 250);
    let slot = (0..SLOT_COUNT).find(|slot| known.contains(*slot)).unwrap();
    assert_eq!(
        [slot, other].map(|slot| c.missing.doubted(slot)),
        [200, 250]
    );
    c.missing.guessed.insert(
        Arc::from("x"),
        Lost {
            slots: [0, 5, 16_383].into_iter().collect(),
            up_to: u64::MAX >> 1,
        },
    );
    save(dir.path(), &Known::of(&without_a).settled(), &c.missing).unwrap();
    let (known, missing) = load(dir.path()).unwrap();
    assert_eq!(missing, c.missing);
    assert_eq!(known, Known::of(&without_a).settled());
    // It goes on by a later map, by which nothing has changed for a.
    let mut again = Follower {
        missing,
        known: Some(known.clone()),
        ..Follower::start("c")
    };
    let later = map(7, 1, &[("a", Down), ("b", Active), ("c", Active)]);
    again.go_by(&later, 1, 700);
    assert_eq!(again.missing.seen, c.missing.seen);
    assert_eq!(again.missing.told, c.missing.told);
    // Or by which a was there in between.
    again = Follower {
        missing: c.missing.clone(),
        known: Some(known),
        ..Follower::start("c")
    };
    again.go_by(&later, 5, 700);
    assert_eq!(again.of("a"), SlotSet::all());

    let path = dir.path().join(FILE);
    let bytes = std::fs::read(&path).unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    for damaged in [
        &bytes[..bytes.len() / 2],
        text.replace("\"layout\":1", "\"layout\":2").as_bytes(),
        text.replacen("\"slots\":\"", "\"slots\":\"0", 1).as_bytes(),
        b"",
    ] {
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(load(dir.path()), None);
    }
    // Where nothing can be written, what was there before is not believed either.
    std::fs::write(&path, bytes).unwrap();
    std::fs::create_dir(dir.path().join("missing.new")).unwrap();
    assert!(save(dir.path(), &Known::of(&all), &Missing::default()).is_err());
    assert_eq!(load(dir.path()), None);
}

/// The file as the version before has it, which refuses what it does not know.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is only read")]
struct StoredBefore {
    layout: u32,
    epoch: u64,
    down: Vec<String>,
    #[serde(default)]
    is_settled: bool,
    missing: Vec<LostBefore>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is only read")]
struct LostBefore {
    member: String,
    slots: String,
    up_to: Version,
    how: How,
}

#[test]
fn the_version_before_reads_the_notes_and_what_a_later_one_adds_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let all = map(1, 1, &[("a", Active), ("b", Active)]);
    let without_a = map(2, 1, &[("a", Down), ("b", Active)]);
    let mut b = Follower::start("b");
    b.go_by(&all, 0, 100);
    b.go_by(&without_a, 1, 200);
    save(dir.path(), &Known::of(&without_a).settled(), &b.missing).unwrap();
    let path = dir.path().join(FILE);
    let text = std::fs::read_to_string(&path).unwrap();
    let before: StoredBefore = serde_json::from_str(&text).unwrap();
    assert_eq!((before.layout, before.missing.len()), (1, 1));

    let later = text.replacen("{\"layout\"", "{\"more\":[1],\"layout\"", 1);
    let later = later.replacen("{\"member\"", "{\"more\":1,\"member\"", 1);
    assert!(serde_json::from_str::<StoredBefore>(&later).is_err());
    // And from before there was a note that nothing is lacked.
    let older = text.replace("\"is_settled\":true,", "");
    for (text, is_settled) in [(later, true), (older, false)] {
        assert!(std::fs::write(&path, text).is_ok());
        let (known, missing) = load(dir.path()).unwrap();
        assert_eq!(missing, b.missing);
        assert_eq!(known.is_settled, is_settled);
    }
}
