//! What is tried again, and what is not, when a member does not answer.

use std::sync::Arc;

use fonn_proto::outcome::Stored;
use fonn_proto::placement::{Placed, SLOT_COUNT, Table};
use fonn_proto::{ExpirySpec, Get, Redirects, Store};

use super::*;
use crate::metrics::Metrics;
use crate::peer::tests::node::Node;
use crate::peer::{Options, PeerMetrics};
use crate::route::{Map, Member, MemberState, Topology};

const PATIENCE: Duration = Duration::from_secs(60);

/// Sends to the one member that owns all.
fn forwarder(node: &Node) -> Forwarder {
    let table = Table::new(
        &[Placed {
            id: "a",
            zone: "z",
            weight: 100,
        }],
        1,
    );
    let table = table.unwrap();
    let member = Member {
        id: "a".to_owned(),
        address: node.address(),
        cluster_address: String::new(),
        zone: "z".to_owned(),
        weight: 100,
        share: 100,
        state: MemberState::Active,
    };
    let owners = (0..SLOT_COUNT).map(|slot| table.owners(slot)).collect();
    let map = Map::default();
    map.offer(Topology::new(1, vec![member], owners).unwrap());
    let options = Options {
        tick: Duration::from_millis(2),
        silence_max: Duration::from_millis(60),
        ..Options::new("", "test")
    };
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
        is_routed: false,
        redirects: Redirects::Never,
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
