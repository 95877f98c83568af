//! Hedged reads, which another owner answers than the primary.

use std::net::{Shutdown, TcpListener};

use fonn_forward::{Came, Event as Sent};
use fonn_proto::{Command, ExpirySpec, Get, Outcome, Redirects, Store, WriterId};
use fonn_server::{Answered as _, Job};
use parking_lot::{Condvar, Mutex};

use super::*;

/// What a router has, without its clients: each thread that uses it is one of its reactors.
pub(super) struct Router(Forwarder);

pub(super) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

impl Router {
    pub(super) fn start(map: Topology) -> Self {
        let maps = Arc::new(Map::default());
        maps.offer(map);
        let metrics = PeerMetrics::register(&Metrics::new());
        let upstreams = Upstreams::new(maps, peers("", "router"), metrics);
        Self(Forwarder::new(upstreams, PATIENCE).with_hedges())
    }

    async fn execute(&self, command: &Command<'_>) -> Came {
        let job = Job {
            space: Space::default(),
            command,
            source: None,
            base: None,
            is_routed: false,
            redirects: Redirects::Never,
            writer: WriterId::NONE,
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

#[test]
fn an_owner_shows_its_copy_and_other_members_show_none() {
    let mut members = ["a", "b", "c"].map(Member::start);
    let first = settled(&members, 2);
    let key = key_of(&first, &members[0], 0);
    let owners: Vec<String> = first
        .owners(slot(key.as_bytes()))
        .map(|it| it.id.clone())
        .collect();
    assert_eq!(members[0].client().set(&key, "x"), "STORED");
    let second = members.iter().position(|it| it.name == owners[1]).unwrap();
    let read = |member: &Member| {
        let (sharing, engine) = (Arc::clone(&member.sharing), Arc::clone(&member.engine));
        let mut is_hit = false;
        let get = Get::new(key.as_bytes());
        let mut acks = crate::engine::Acks::default();
        runtime().block_on(sharing.read_copy(
            &engine,
            Space::default(),
            &get,
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
    assert!(read(&members[second]));
    let third = (0..3).find(|nth| !owners.contains(&members[*nth].name));
    assert!(!read(&members[third.unwrap()]), "it is no owner");
    members[0].kill();
    assert!(read(&members[second]), "what was acknowledged is here");
}

/// A way to a member that can be closed: bytes wait there until it is open again.
pub(super) struct Gate {
    address: String,
    state: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    pub(super) fn before(member: &Member) -> Self {
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

    pub(super) fn set_open(&self, is_open: bool) {
        *self.state.0.lock() = is_open;
        self.state.1.notify_all();
    }

    /// A map in which the member is reached through the gate.
    pub(super) fn on(&self, map: &Topology, member: &Member) -> Topology {
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
fn a_read_that_its_owner_is_slow_to_answer_is_answered_by_the_next_one() {
    let members = ["a", "b", "c"].map(Member::start);
    let first = settled(&members, 2);
    let gate = Gate::before(&members[0]);
    let router = Router::start(gate.on(&first, &members[0]));
    // A machine under load hedges what is not slow as well: within the budget there has to be room
    // for each of them twice.
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
        // What the other one has not is no answer: a slow member may have it.
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
