//! What is tried again, and what is not, when a member does not answer.

use std::sync::Arc;

use fonn_base::metrics::Metrics;
use fonn_proto::member::{Member, MemberState};
use fonn_proto::outcome::{Stored, Value};
use fonn_proto::peer::Refusal;
use fonn_proto::placement::{Placed, SLOT_COUNT, Table};
use fonn_proto::{ExpirySpec, Get, Hit, Redirects, Store, WriterId};
use fonn_rpc::testing::Node;
use fonn_rpc::{Options, PeerMetrics};

use super::*;
use crate::{Map, Topology};

const PATIENCE: Duration = Duration::from_secs(60);
const NAMES: [&str; 2] = ["a", "b"];

/// The owners of all slots among so many members, which all own each.
fn table(count: usize) -> Table {
    let placed = NAMES.map(|id| Placed {
        id,
        zone: "z",
        weight: 100,
    });
    Table::new(&placed[..count], count).unwrap()
}

/// Sends to the one member that owns all.
fn forwarder(node: &Node) -> Forwarder {
    forwarder_to(&[node])
}

/// A topology of members that own all slots. The member `down`, by position, is down.
fn topology(epoch: u64, nodes: &[&Node], down: Option<usize>) -> Topology {
    let table = table(nodes.len());
    let member = |(at, (id, node)): (usize, (&str, &&Node))| Member {
        id: id.to_owned(),
        client_address: node.address(),
        state: match down == Some(at) {
            true => MemberState::Down,
            false => MemberState::Active,
        },
        ..Member::default()
    };
    let members = NAMES.into_iter().zip(nodes).enumerate().map(member);
    let owners = (0..SLOT_COUNT)
        .map(|slot| Some(table.owners(slot)))
        .collect();
    Topology::new(epoch, members.collect(), owners).unwrap()
}

/// Sends to members that own all slots.
fn forwarder_to(nodes: &[&Node]) -> Forwarder {
    let map = Map::default();
    map.offer(topology(1, nodes, None));
    let options = Options {
        tick: Duration::from_millis(2),
        // A machine may stand still for a while, and that is no member's silence.
        silence_max: Duration::from_secs(2),
        ..Options::new("", "test")
    };
    forwarder_of(map, options)
}

fn forwarder_of(map: Map, options: Options) -> Forwarder {
    let metrics = PeerMetrics::register(&Metrics::new());
    Forwarder::new(Upstreams::new(Arc::new(map), options, metrics), PATIENCE)
}

/// What comes of a command.
async fn carried_out(forwarder: &Forwarder, command: &Command<'_>) -> Came {
    let job = Job {
        space: Space::default(),
        command,
        source: None,
        base: None,
        routed_by: None,
        redirects: Redirects::Never,
        writer: WriterId::NONE,
    };
    match forwarder.begin(&job).await {
        Ok(came) => came,
        Err(again) => forwarder.again(&job, again).await,
    }
}

#[tokio::test]
async fn a_set_is_repeated_when_the_member_ended_the_connection() {
    let node = Node::bind().await;
    let forwarder = forwarder(&node);
    let set = Command::Store(Store::set(b"k", b"v", 0, ExpirySpec::Never));
    let member = async {
        let mut connection = node.accept().await;
        connection.request().await;
        drop(connection);
        let mut connection = node.accept().await;
        let request = connection.request().await;
        let stored = Stored {
            version: 7,
            value_len: 1,
            previous: None,
        };
        let reply = Reply::Outcome(Outcome::Stored(stored));
        connection.reply(&request, &reply).await;
        connection
    };
    let (came, _connection) = tokio::join!(carried_out(&forwarder, &set), member);
    assert!(matches!(came.outcome(), Outcome::Stored(it) if it.version == 7));
}

#[tokio::test]
async fn a_read_that_is_late_is_given_up_at_its_turn_alone() {
    let node = Node::bind().await;
    let forwarder = forwarder(&node);
    let get = Command::Get(Get::new(b"k"));
    let job = Job::own(Space::default(), &get);
    let late = || {
        let mut begun = forwarder.begin(&job);
        begun.late_at = Some(Instant::now());
        begun
    };
    let again = late().await.err();
    assert!(matches!(again.map(|it| it.obstacle), Some(Obstacle::Late)));
    let mut begun = late();
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(begun.poll_ahead(&mut cx).is_pending());
    let member = async {
        let mut connection = node.accept().await;
        // The read that was given up comes first.
        for _ in 0..2 {
            let request = connection.request().await;
            let reply = Reply::Outcome(Outcome::Miss);
            connection.reply(&request, &reply).await;
        }
        connection
    };
    let came = std::future::poll_fn(|cx| begun.poll_ahead(cx));
    let (came, _connection) = tokio::join!(came, member);
    assert!(matches!(came.unwrap().outcome(), Outcome::Miss));
}

#[tokio::test]
async fn a_member_that_is_behind_on_the_map_is_waited_for_and_asked_ever_less_often() {
    let node = Node::bind().await;
    let forwarder = forwarder(&node);
    let set = Command::Store(Store::set(b"k", b"v", 0, ExpirySpec::Never));
    let member = async {
        let mut connection = node.accept().await;
        let (begun, mut asked) = (Instant::now(), 0);
        loop {
            let request = connection.request().await;
            asked += 1;
            if begun.elapsed() >= Duration::from_millis(1500) && asked > 4 {
                let stored = Stored {
                    version: 7,
                    value_len: 1,
                    previous: None,
                };
                let reply = Reply::Outcome(Outcome::Stored(stored));
                connection.reply(&request, &reply).await;
                return (connection, asked);
            }
            connection.reply(&request, &Reply::WrongOwner).await;
        }
    };
    let (came, (_connection, asked)) = tokio::join!(carried_out(&forwarder, &set), member);
    assert!(matches!(came.outcome(), Outcome::Stored(it) if it.version == 7));
    // 20, 40, 80 and 160 ms, then 200 each.
    assert!(asked <= 4 + 7 + 2, "{asked}");
}

#[tokio::test]
async fn a_set_that_may_still_be_carried_out_is_refused_and_not_repeated() {
    let node = Node::bind().await;
    let forwarder = forwarder(&node);
    let set = Command::Store(Store::set(b"k", b"v", 0, ExpirySpec::Never));
    let member = async {
        // It has the request, says nothing, and is given up.
        let mut connection = node.accept().await;
        connection.request().await;
        assert!(connection.is_over().await);
        node.accept().await;
        panic!("it was sent once more");
    };
    tokio::select! {
        came = carried_out(&forwarder, &set) => {
            assert_eq!(came.outcome(), Outcome::Failed(Failure::Busy));
        }
        () = member => {}
    }
}

#[tokio::test]
async fn reads_that_were_sent_are_sent_to_the_next_owner_within_a_budget() {
    const READS: usize = 300;
    let (silent, next) = (Node::bind().await, Node::bind().await);
    let mut forwarder = forwarder_to(&[&silent, &next]);
    forwarder.retries = Budget::new(RETRY_PRICE, 20);
    let owners = table(2);
    let is_of_silent =
        |key: &String| owners.owners(placement::slot(key.as_bytes())).positions()[0] == 0;
    let keys = (0..)
        .map(|number| format!("key-{number}"))
        .filter(is_of_silent);
    let keys: Vec<String> = keys.take(READS).collect();
    let reads = || async {
        let commands: Vec<_> = keys
            .iter()
            .map(|key| Command::Get(Get::new(key.as_bytes())))
            .collect();
        let read = commands
            .iter()
            .map(|command| carried_out(&forwarder, command));
        let came = futures_util::future::join_all(read).await;
        came.iter()
            .filter(|it| matches!(it.outcome(), Outcome::Hit(_)))
            .count()
    };
    let answering = async {
        let mut connection = next.accept().await;
        loop {
            let request = connection.request().await;
            let hit = Reply::Outcome(Outcome::Hit(hit()));
            connection.reply(&request, &hit).await;
        }
    };
    // It takes everything and says nothing, until it is given up.
    let taking = async {
        let mut connection = silent.accept().await;
        let mut taken = 0;
        while connection.try_request().await.is_some() {
            taken += 1;
        }
        drop(silent);
        assert_eq!(taken, READS);
        std::future::pending::<()>().await
    };
    let storm = async {
        let hits = reads().await;
        // The burst: there was no room beside it for what they earned.
        assert_eq!(hits, 20);
        let denied = forwarder.events().total(Event::RetryDenied);
        assert_eq!(denied as usize, READS - hits);
        // An unreachable member gets no read: the next owner has it instead.
        assert_eq!(reads().await, READS);
        assert_eq!(forwarder.events().total(Event::RetryDenied), denied);
    };
    tokio::select! {
        () = storm => {}
        () = answering => {}
        () = taking => {}
    }
}

fn hit() -> Hit<'static> {
    Hit {
        value: Value::Copied(b"v"),
        value_len: 1,
        flags: 0,
        version: 1,
        ttl_ms: None,
        expires_at_ms: None,
        idle_s: 0,
        fetched_before: false,
        stale: false,
        won: false,
        lost: false,
    }
}

#[test]
fn only_what_does_no_harm_twice_is_repeated() {
    let set = Store::set(b"k", b"v", 0, ExpirySpec::Never);
    let add = Store {
        mode: StoreMode::Add,
        ..set.clone()
    };
    let cas = Store {
        compare: Some(1),
        ..set.clone()
    };
    let taking = Get {
        delete: true,
        ..Get::new(b"k")
    };
    assert!(is_repeatable(&Command::Store(set)));
    assert!(is_repeatable(&Command::Get(Get::new(b"k"))));
    assert!(!is_repeatable(&Command::Store(add)));
    assert!(!is_repeatable(&Command::Store(cas)));
    assert!(!is_repeatable(&Command::Get(taking)));
}

/// The forwarder to a silent member that owns `key` first, and to the next owner. The connection to
/// the silent member ends by nothing but a topology.
async fn before_a_silent_member() -> (Forwarder, Node, Node, String) {
    let (silent, next) = (Node::bind().await, Node::bind().await);
    let map = Map::default();
    map.offer(topology(1, &[&silent, &next], None));
    let options = Options {
        silence_max: PATIENCE,
        ..Options::new("", "test")
    };
    let forwarder = forwarder_of(map, options);
    let owners = table(2);
    let mut keys = (0..).map(|number| format!("key-{number}"));
    let key = keys.find(|key| owners.owners(placement::slot(key.as_bytes())).positions()[0] == 0);
    (forwarder, silent, next, key.unwrap())
}

/// What comes of a command that a silent member has received when the cluster declares it down.
/// `next` answers what reaches the next owner.
async fn after_the_declaration(command: fn(&[u8]) -> Command<'_>, next: &Outcome<'_>) -> Came {
    let (forwarder, silent, second, key) = before_a_silent_member().await;
    let command = command(key.as_bytes());
    let declaring = async {
        let mut connection = silent.accept().await;
        connection.request().await;
        let down = topology(2, &[&silent, &second], Some(0));
        assert!(forwarder.upstreams().map().offer(down));
        assert!(connection.is_over().await);
        let mut connection = second.accept().await;
        let request = connection.request().await;
        connection
            .reply(&request, &Reply::Outcome(next.clone()))
            .await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        came = carried_out(&forwarder, &command) => came,
        () = declaring => unreachable!("it waits for ever"),
    }
}

#[tokio::test]
async fn a_read_under_way_goes_to_the_next_owner_when_its_member_is_declared_down() {
    let came = after_the_declaration(|key| Command::Get(Get::new(key)), &Outcome::Hit(hit())).await;
    assert!(matches!(came.outcome(), Outcome::Hit(_)), "{came:?}");
}

#[tokio::test]
async fn a_set_under_way_is_repeated_when_its_member_is_declared_down() {
    let stored = Outcome::Stored(Stored {
        version: 7,
        value_len: 1,
        previous: None,
    });
    fn set(key: &[u8]) -> Command<'_> {
        Command::Store(Store::set(key, b"v", 0, ExpirySpec::Never))
    }
    let came = after_the_declaration(set, &stored).await;
    assert!(matches!(came.outcome(), Outcome::Stored(it) if it.version == 7));
}

#[tokio::test]
async fn a_write_under_way_that_must_not_happen_twice_is_busy_when_its_member_is_declared_down() {
    fn add(key: &[u8]) -> Command<'_> {
        Command::Store(Store {
            mode: StoreMode::Add,
            ..Store::set(key, b"v", 0, ExpirySpec::Never)
        })
    }
    let came = after_the_declaration(add, &Outcome::NotStored(None)).await;
    assert_eq!(came.outcome(), Outcome::Failed(Failure::Busy));
}

#[tokio::test]
async fn a_member_that_serves_again_gets_new_connections() {
    let (forwarder, silent, second, key) = before_a_silent_member().await;
    let map = forwarder.upstreams().map();
    let get = Command::Get(Get::new(key.as_bytes()));
    let returning = async {
        let mut connection = silent.accept().await;
        connection.request().await;
        // No request of this thread sees the topology in between.
        assert!(map.offer(topology(2, &[&silent, &second], Some(0))));
        assert!(map.offer(topology(3, &[&silent, &second], None)));
        assert!(connection.is_over().await);
        let mut connection = silent.accept().await;
        let request = connection.request().await;
        connection
            .reply(&request, &Reply::Outcome(Outcome::Hit(hit())))
            .await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        came = carried_out(&forwarder, &get) => {
            assert!(matches!(came.outcome(), Outcome::Hit(_)), "{came:?}");
        }
        () = returning => {}
    }
}

#[tokio::test]
async fn a_late_read_of_a_long_value_gets_it_from_the_next_owner_for_one_hedge() {
    let (forwarder, silent, second, key) = before_a_silent_member().await;
    let forwarder = forwarder.with_hedges();
    let get = Command::Get(Get::new(key.as_bytes()));
    let owners = async {
        let mut first = silent.accept().await;
        first.request().await;
        let mut small = second.accept().await;
        let request = small.request().await;
        let too_long = Reply::Refused(Refusal::TooLong);
        small.reply(&request, &too_long).await;
        let mut large = second.accept().await;
        let request = large.request().await;
        let hit = Reply::Outcome(Outcome::Hit(hit()));
        large.reply(&request, &hit).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        came = carried_out(&forwarder, &get) => {
            assert!(matches!(came.outcome(), Outcome::Hit(_)), "{came:?}");
        }
        () = owners => {}
    }
    let total = |event| forwarder.events().total(event);
    assert_eq!((total(Event::Hedged), total(Event::HedgeWon)), (1, 1));
}

#[test]
fn a_router_lags_from_the_first_sight_of_a_newer_epoch_until_it_applies_it() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (one, other) = (Node::bind().await, Node::bind().await);
        let map = Map::default();
        map.offer(topology(1, &[&one, &other], None));
        let later = || Instant::now() + Duration::from_secs(5);
        assert_eq!(map.lag(later()), Duration::ZERO);
        map.want(1);
        assert_eq!(map.lag(later()), Duration::ZERO);
        map.want(3);
        assert!(map.lag(later()) >= Duration::from_secs(4));
        map.offer(topology(2, &[&one, &other], None));
        assert!(map.lag(later()) >= Duration::from_secs(4));
        map.offer(topology(3, &[&one, &other], None));
        assert_eq!(map.lag(later()), Duration::ZERO);
    });
}
