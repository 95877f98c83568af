//! Reads that other owners answer than the first: of hot keys, and of members that are slow.

use std::net::{Shutdown, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fonn_proto::{Command, ExpirySpec, Get, Outcome, Redirects, Store};
use fonn_runtime::route::{Came, Event as Sent, HotOptions};
use fonn_runtime::serve::{Answered as _, Job};
use parking_lot::{Condvar, Mutex};

use super::super::metrics::Event;
use super::*;

/// What a router has, without its clients: each thread that uses it is one of its reactors.
pub(super) struct Router(Forwarder);

pub(super) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

impl Router {
    pub(super) fn start(map: Topology) -> Self {
        Self::start_with(
            map,
            HotOptions {
                reads_min: 20,
                ..HotOptions::default()
            },
        )
    }

    fn start_with(map: Topology, hot: HotOptions) -> Self {
        let maps = Arc::new(Map::default());
        maps.offer(map);
        let metrics = PeerMetrics::register(&Metrics::new());
        let upstreams = Upstreams::new(maps, peers("", "router"), metrics);
        Self(Forwarder::new(upstreams, PATIENCE).with_copies(hot))
    }

    async fn execute(&self, command: &Command<'_>) -> Came {
        let job = Job {
            space: Space::default(),
            command,
            source: None,
            base: None,
            is_routed: false,
            redirects: Redirects::Never,
        };
        match self.0.begin(&job).await {
            Ok(came) => came,
            Err(again) => self.0.again(&job, again).await,
        }
    }

    pub(super) async fn get(&self, key: &str) -> Option<String> {
        let came = self.execute(&Command::Get(Get::new(key.as_bytes()))).await;
        match came.outcome() {
            Outcome::Hit(hit) => Some(String::from_utf8(hit.value.as_slice().to_vec()).unwrap()),
            Outcome::Miss => None,
            other => panic!("{key}: {other:?}"),
        }
    }

    pub(super) async fn set(&self, key: &str, value: &str) {
        let (key, value) = (key.as_bytes(), value.as_bytes());
        let set = Command::Store(Store::set(key, value, 0, ExpirySpec::Never));
        let came = self.execute(&set).await;
        assert!(matches!(came.outcome(), Outcome::Stored(_)), "{came:?}");
    }

    async fn delete(&self, key: &str) {
        let delete = Command::Delete(fonn_proto::Delete::new(key.as_bytes()));
        let came = self.execute(&delete).await;
        assert!(
            matches!(came.outcome(), Outcome::Deleted { .. }),
            "{came:?}"
        );
    }

    fn total(&self, event: Sent) -> u64 {
        self.0.events().total(event)
    }
}

/// All three have all slots, and lack nothing.
pub(super) fn settled(members: &[Member; 3], replicas: usize) -> Topology {
    let all: Vec<_> = members.iter().map(|it| (it, Active)).collect();
    let first = map(1, replicas, &all);
    go_by(&members.each_ref(), &first);
    members.iter().for_each(Member::take_over);
    until("all is taken over", || {
        members.iter().all(Member::is_filled)
    });
    first
}

/// Which writes there may be for a read to see; each has a number, every fifth one deletes.
#[derive(Default)]
struct History {
    begun: AtomicU64,
    acknowledged: AtomicU64,
    /// The newest that a read that is over has seen.
    seen: AtomicU64,
}

impl History {
    fn is_delete(number: u64) -> bool {
        number.is_multiple_of(5)
    }

    /// Checks a read that began when the floor was `oldest`.
    fn check(&self, oldest: u64, found: Option<&str>) {
        let newest = self.begun.load(Ordering::SeqCst);
        match found {
            Some(found) => {
                let number: u64 = found.parse().unwrap();
                assert!(number >= oldest, "{number}, although {oldest} was there");
                assert!(number <= newest);
                self.seen.fetch_max(number, Ordering::SeqCst);
            }
            None => assert!(
                (oldest..=newest).any(Self::is_delete),
                "a miss, between {oldest} and {newest}"
            ),
        }
    }

    fn oldest(&self) -> u64 {
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        acknowledged.max(self.seen.load(Ordering::SeqCst))
    }
}

#[test]
fn a_hot_key_is_read_from_all_owners_and_no_read_is_older_than_what_was_seen() {
    const WRITES: u64 = 400;
    const COPIES: u64 = 200;
    let members = ["a", "b", "c"].map(Member::start);
    let first = settled(&members, 3);
    // Hot from its first read on, and again a moment after a copy was not there to be shown: what is read from copies is so many, however
    // slow the machine is.
    let hot = HotOptions {
        reads_min: 1,
        window: Duration::from_millis(5),
        ..HotOptions::default()
    };
    let routers = [first.clone(), first.clone()].map(|map| Router::start_with(map, hot));
    let key = key_of(&first, &members[0], 0);
    let (history, is_over) = (History::default(), AtomicBool::new(false));
    runtime().block_on(routers[0].set(&key, "0"));
    std::thread::scope(|scope| {
        let (history, is_over, key) = (&history, &is_over, &key);
        let readers: Vec<_> = (0..4)
            .map(|reader| {
                let router = &routers[reader % 2];
                scope.spawn(move || {
                    runtime().block_on(async {
                        while !is_over.load(Ordering::SeqCst) {
                            let oldest = history.oldest();
                            // Some at a time: their questions to the first owner are asked together.
                            let reads = (0..4).map(|_| router.get(key));
                            for found in futures_util::future::join_all(reads).await {
                                history.check(oldest, found.as_deref());
                            }
                        }
                    });
                })
            })
            .collect();
        let goes_on = || !readers.iter().any(|it| it.is_finished());
        let copies = |member: &Member| member.sharing.events.total(Event::CopyRead);
        runtime().block_on(async {
            let mut number = 0;
            let begun = Instant::now();
            // Until enough was read from either copy, and written meanwhile.
            while goes_on()
                && (number < WRITES || members[1..].iter().any(|it| copies(it) < COPIES))
                && begun.elapsed() < 10 * PATIENCE
            {
                number += 1;
                history.begun.store(number, Ordering::SeqCst);
                match History::is_delete(number) {
                    true => routers[1].delete(key).await,
                    false => routers[1].set(key, &number.to_string()).await,
                }
                history.acknowledged.store(number, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        is_over.store(true, Ordering::SeqCst);
    });
    for member in &members[1..] {
        let total = |event| member.sharing.events.total(event);
        let read = total(Event::CopyRead);
        assert!(read >= COPIES, "{read}");
        // One question does for many.
        let read = total(Event::CopyRead) + total(Event::CopyDenied);
        assert!(total(Event::CopyConfirmed) < read);
    }
    assert!(routers[0].total(Sent::SpreadRead) > 0);
}

#[test]
fn a_key_that_is_read_seldom_or_has_one_owner_is_read_from_the_first() {
    let members = ["a", "b", "c"].map(Member::start);
    let first = settled(&members, 1);
    let router = Router::start(first.clone());
    let (hot, all): (_, Vec<_>) = (
        key_of(&first, &members[0], 0),
        (0..100).map(|nth| format!("key-{nth}")).collect(),
    );
    let three = map(2, 3, &members.each_ref().map(|it| (it, Active)));
    runtime().block_on(async {
        router.set(&hot, "x").await;
        for _ in 0..200 {
            assert_eq!(router.get(&hot).await.as_deref(), Some("x"));
        }
        assert_eq!(router.total(Sent::SpreadRead), 0, "there is one owner");
        go_by(&members.each_ref(), &three);
        until("all is taken over", || {
            members.iter().all(Member::is_filled)
        });
        router.0.upstreams().map().offer(three.clone());
        for key in &all {
            let _ = router.get(key).await;
        }
        assert_eq!(router.total(Sent::SpreadRead), 0, "each was read once");
        // A copy that is late to be confirmed is not asked again for a while.
        let begun = Instant::now();
        while router.total(Sent::SpreadRead) <= 50 {
            assert!(begun.elapsed() < PATIENCE, "it is not spread");
            assert_eq!(router.get(&hot).await.as_deref(), Some("x"));
        }
    });
}

#[test]
fn a_copy_that_nobody_confirms_is_not_shown() {
    let mut members = ["a", "b", "c"].map(Member::start);
    let first = settled(&members, 2);
    let key = key_of(&first, &members[0], 0);
    let owners: Vec<String> = first
        .owners(slot(key.as_bytes()))
        .map(|it| it.id.clone())
        .collect();
    assert_eq!(members[0].client().set(&key, "x"), "STORED");
    let second = members.iter().position(|it| it.name == owners[1]).unwrap();
    let read = |member: &Member, is_confirmed| {
        let (sharing, engine) = (Arc::clone(&member.sharing), Arc::clone(&member.engine));
        let mut is_hit = false;
        let get = Get::new(key.as_bytes());
        let mut acks = crate::engine::Acks::default();
        runtime().block_on(sharing.read_copy(
            &engine,
            Space::default(),
            &get,
            is_confirmed,
            &mut acks,
            |reply| {
                is_hit = matches!(
                    reply,
                    fonn_proto::peer::Reply::Outcome(Outcome::Hit(hit)) if hit.value.as_slice() == b"x"
                );
            },
        ));
        is_hit
    };
    // It has 100 ms, which a machine under load may need for other things.
    until("it is confirmed", || read(&members[second], true));
    assert!(read(&members[second], false));
    let third = (0..3).find(|nth| !owners.contains(&members[*nth].name));
    assert!(!read(&members[third.unwrap()], true), "it is no owner");
    members[0].kill();
    assert!(
        !read(&members[second], true),
        "who could confirm it is gone"
    );
    assert!(
        read(&members[second], false),
        "what was acknowledged is here"
    );
}

/// A way to a member that can be closed: bytes wait there until it is open again.
struct Gate {
    address: String,
    state: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    fn before(member: &Member) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new((Mutex::new(true), Condvar::new()));
        let (to, opened) = (member.address.clone(), Arc::clone(&state));
        // Threads of a test process end with it.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&to)) else {
                    return;
                };
                for (mut from, mut to) in [
                    (client.try_clone().unwrap(), server.try_clone().unwrap()),
                    (server, client),
                ] {
                    let opened = Arc::clone(&opened);
                    std::thread::spawn(move || {
                        let mut bytes = [0; 16 << 10];
                        while let Ok(len @ 1..) = from.read(&mut bytes) {
                            let (is_open, changed) = &*opened;
                            changed.wait_while(&mut is_open.lock(), |is_open| !*is_open);
                            if to.write_all(&bytes[..len]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Self { address, state }
    }

    fn set_open(&self, is_open: bool) {
        *self.state.0.lock() = is_open;
        self.state.1.notify_all();
    }

    /// A map in which the member is reached through the gate.
    fn on(&self, map: &Topology, member: &Member) -> Topology {
        let rows = map.members().iter().cloned().map(|row| Row {
            address: match row.id == member.name {
                true => self.address.clone(),
                false => row.address,
            },
            ..row
        });
        placed(map.epoch(), map.positions(0).len(), rows.collect()).unwrap()
    }
}

#[test]
fn who_has_seen_a_write_that_is_under_way_does_not_see_the_entry_before_it() {
    let members = ["a", "b", "c"].map(Member::start);
    let [a, b, _] = &members;
    let first = settled(&members, 3);
    // What is given to b waits; b itself is asked without a detour.
    let gate = Gate::before(b);
    let through = map(2, 3, &members.each_ref().map(|it| (it, Active)));
    go_by(&members.each_ref(), &gate.on(&through, b));
    until("all is taken over", || {
        members.iter().all(Member::is_filled)
    });
    let router = Router::start(through);
    let key = key_of(&first, a, 0);
    assert_eq!(a.client().set(&key, "old"), "STORED");
    let copies = || b.sharing.events.total(Event::CopyRead);
    runtime().block_on(async {
        while copies() < 50 {
            assert_eq!(router.get(&key).await.as_deref(), Some("old"));
        }
        gate.set_open(false);
        let (mut writer, to) = (a.client(), key.clone());
        let writing = std::thread::spawn(move || writer.set(&to, "new"));
        while a.client().get(&key).as_deref() != Some("new") {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // b has the old entry as yet, and is asked in its turn.
        let denied = b.sharing.events.total(Event::CopyDenied);
        while b.sharing.events.total(Event::CopyDenied) == denied && !writing.is_finished() {
            assert_eq!(router.get(&key).await.as_deref(), Some("new"));
        }
        assert!(
            b.sharing.events.total(Event::CopyDenied) > denied,
            "it was not asked"
        );
        gate.set_open(true);
        assert_eq!(writing.join().unwrap(), "STORED");
        let before = copies();
        while copies() < before + 10 {
            assert_eq!(router.get(&key).await.as_deref(), Some("new"));
        }
    });
}

#[test]
fn a_read_that_its_owner_is_slow_to_answer_is_answered_by_the_next_one() {
    let members = ["a", "b", "c"].map(Member::start);
    let first = settled(&members, 2);
    let gate = Gate::before(&members[0]);
    let router = Router::start(gate.on(&first, &members[0]));
    // A machine under load hedges what is not slow as well: within the budget there has to be room for each of them twice.
    let keys: Vec<String> = (0..8).map(|nth| key_of(&first, &members[0], nth)).collect();
    runtime().block_on(async {
        for key in &keys {
            router.set(key, key).await;
            assert_eq!(router.get(key).await.as_ref(), Some(key));
        }
        gate.set_open(false);
        // A machine under load may have hedged before.
        let before = (router.total(Sent::HedgeWon), router.total(Sent::Hedged));
        let since = || {
            let now = (router.total(Sent::HedgeWon), router.total(Sent::Hedged));
            (now.0 - before.0, now.1 - before.1)
        };
        for key in &keys {
            let begun = Instant::now();
            assert_eq!(router.get(key).await.as_ref(), Some(key));
            assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
        }
        assert_eq!(since().0, keys.len() as u64);
        // What the other one has not is no answer: who is slow may have it.
        let missing = key_of(&first, &members[0], 1000);
        let late = router.get(&missing);
        let opened = async {
            while since().1 <= keys.len() as u64 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            gate.set_open(true);
        };
        let (found, ()) = futures_util::future::join(late, opened).await;
        assert_eq!(found, None);
        assert_eq!(since().0, keys.len() as u64);
    });
}

#[test]
fn reads_are_hedged_within_a_budget_and_the_others_wait() {
    const READS: usize = 200;
    let members = ["a", "b", "c"].map(Member::start);
    let first = settled(&members, 2);
    let gate = Gate::before(&members[0]);
    let router = Router::start(gate.on(&first, &members[0]));
    let keys: Vec<String> = (0..READS)
        .map(|nth| key_of(&first, &members[0], nth))
        .collect();
    runtime().block_on(async {
        for key in &keys {
            router.set(key, key).await;
        }
        gate.set_open(false);
        let reads = futures_util::future::join_all(keys.iter().map(|key| router.get(key)));
        let opened = async {
            let is_told = || {
                let all = router.total(Sent::Hedged) + router.total(Sent::HedgeDenied);
                all >= READS as u64 && router.total(Sent::HedgeWon) >= 32
            };
            let begun = Instant::now();
            while !is_told() && begun.elapsed() < PATIENCE / 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            gate.set_open(true);
        };
        let (found, ()) = futures_util::future::join(reads, opened).await;
        for (found, key) in found.iter().zip(&keys) {
            assert_eq!(found.as_ref(), Some(key));
        }
    });
    let hedged = router.total(Sent::Hedged);
    assert!((32..=32 + READS as u64 / 20).contains(&hedged), "{hedged}");
    assert!(router.total(Sent::HedgeWon) >= 16);
}
