//! What members know of routers, told by pings between models of them.

use super::*;

const PERIOD: Duration = Duration::from_millis(250);

/// Members that ping each other; the first of them vote.
struct World {
    members: Vec<Option<Known>>,
    voters: usize,
    now: Instant,
}

impl World {
    fn new(count: usize, voters: usize) -> Self {
        let first = |at: usize| Known::new(1000 * at as u64 + 1);
        Self {
            members: (0..count).map(|at| Some(first(at))).collect(),
            voters,
            now: Instant::now(),
        }
    }

    fn at(&mut self, at: usize) -> &mut Known {
        self.members[at].as_mut().unwrap()
    }

    /// Every voter asks all members. How many lists were told.
    fn round(&mut self) -> usize {
        self.now += PERIOD;
        let now = self.now;
        let mut told = 0;
        for known in self.members.iter_mut().flatten() {
            known.refresh(now);
        }
        for voter in 0..self.voters {
            for other in 0..self.members.len() {
                if voter == other || self.members[voter].is_none() || self.members[other].is_none()
                {
                    continue;
                }
                let question = self.at(voter).question(other as RaftId);
                let answer = self.at(other).asked(voter as RaftId, &question, now);
                self.at(voter).answered(other as RaftId, &answer, now);
                self.at(voter).refresh(now);
                self.at(other).refresh(now);
                told += [question, answer]
                    .iter()
                    .filter(|it| it.list.is_some())
                    .count();
            }
        }
        told
    }

    fn rounds(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.round();
        }
    }

    /// All members know these.
    fn all_know(&self, wanted: &[&str]) -> bool {
        let mut known = self.members.iter().flatten();
        known.all(|it| it.all.iter().eq(wanted.iter()))
    }
}

#[test]
fn every_member_knows_of_the_routers_at_all_others_within_two_rounds() {
    for (count, voters) in [(1, 1), (2, 1), (3, 3), (7, 5)] {
        let mut world = World::new(count, voters);
        let names: Vec<String> = (0..count).map(|at| format!("r{at}:1")).collect();
        for (at, name) in names.iter().enumerate() {
            assert!(world.at(at).attach(name));
        }
        world.round();
        world.round();
        let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(world.all_know(&wanted), "{count} members, {voters} voters");
    }
}

#[test]
fn a_list_is_told_again_only_when_it_has_changed() {
    let mut world = World::new(5, 3);
    world.at(4).attach("r4:1");
    world.round();
    world.round();
    assert!(world.round() == 0 && world.round() == 0);
    world.at(0).attach("r0:1");
    assert!(world.round() + world.round() > 0);
    assert!(world.all_know(&["r0:1", "r4:1"]));
    assert_eq!(world.round(), 0);
    // One that has started again knows nothing, and has other numbers: it says so in its first
    // answers.
    world.members[3] = Some(Known::new(77));
    assert!(world.round() + world.round() > 0);
    assert!(world.all_know(&["r0:1", "r4:1"]));
    assert_eq!(world.round(), 0);
}

#[test]
fn a_router_that_is_gone_is_forgotten_everywhere_and_one_that_moves_is_not() {
    let mut world = World::new(5, 3);
    for at in [0, 4] {
        world.at(at).attach(&format!("r{at}:1"));
    }
    world.rounds(2 * PERIOD);
    // It goes on at another member before it is missed.
    let now = world.now;
    world.at(4).detach("r4:1", now);
    world.round();
    world.at(3).attach("r4:1");
    for _ in 0..20 {
        world.round();
        assert!(world.all_know(&["r0:1", "r4:1"]));
    }
    // And then it is gone.
    let now = world.now;
    world.at(3).detach("r4:1", now);
    world.rounds(LINGER + 3 * PERIOD);
    assert!(world.all_know(&["r0:1"]));
}

#[test]
fn what_a_member_told_that_is_gone_is_forgotten() {
    // The one that asks all, and one that does not.
    for gone in [0, 3] {
        let mut world = World::new(4, 3);
        world.at(gone).attach("r:1");
        world.rounds(2 * PERIOD);
        assert!(world.all_know(&["r:1"]));
        world.members[gone] = None;
        world.rounds(HEARD_MAX + 3 * PERIOD);
        assert!(world.all_know(&[]), "member {gone}");
        assert!(
            world
                .members
                .iter()
                .flatten()
                .all(|it| it.others.len() <= 3)
        );
    }
}

#[test]
fn two_streams_of_one_router_are_one_router() {
    let (mut known, now) = (Known::new(1), Instant::now());
    assert!(known.attach("r:1") && known.attach("r:1"));
    known.detach("r:1", now);
    known.refresh(now + 2 * LINGER);
    assert_eq!(known.all.len(), 1);
    known.detach("r:1", now + 2 * LINGER);
    known.refresh(now + 4 * LINGER);
    assert_eq!(known.all.len(), 0);
}

#[test]
fn what_is_told_is_bounded_and_checked() {
    let (mut known, now) = (Known::new(1), Instant::now());
    for port in 1..=ROUTERS_MAX {
        assert!(known.attach(&format!("r:{port}")));
    }
    assert!(!known.attach("r:9999"));
    assert!(known.attach("r:1"), "that is one of them");
    let addresses = (1..=9000).map(|port| format!("s:{port}"));
    let hostile = ["a b:1", "", "x\r\nINJECTED:1", "0.0.0.0:1"].map(str::to_owned);
    let news = RouterNews {
        revision: 7,
        list: Some(RouterList {
            addresses: hostile.into_iter().chain(addresses).collect(),
        }),
        heard: 0,
    };
    known.asked(9, &news, now);
    known.refresh(now);
    assert_eq!(known.all.len(), ROUTERS_MAX);
    assert!(known.all.iter().all(|it| is_router_address(it)));
    // A revision that is not here says nothing.
    let unknown = RouterNews {
        revision: 8,
        list: None,
        heard: 0,
    };
    let answer = known.asked(8, &unknown, now);
    assert_eq!(answer.heard, 0);
    assert_eq!(answer.list.map(|it| it.addresses.len()), Some(ROUTERS_MAX));
}

#[test]
fn routers_on_loopback_are_told_where_the_cluster_is_on_one_machine_alone() {
    let (here, there) = (Routers::new("127.0.0.1:1"), Routers::new("10.0.0.1:1"));
    assert!(here.attach("127.0.0.1:2").is_some());
    assert!(there.attach("127.0.0.1:2").is_none());
    assert!(there.attach("localhost:2").is_none());
    assert!(there.attach("").is_none());
    let router = there.attach("10.0.0.2:2");
    assert_eq!(**there.all().borrow(), ["10.0.0.2:2".to_owned()]);
    drop(router);
    there.refresh(Instant::now() + LINGER);
    assert!(there.all().borrow().is_empty());
}
