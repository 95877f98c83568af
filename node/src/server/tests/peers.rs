//! Nodes as other members see them.

use fonn_base::metrics::Metrics;
use fonn_disk_tier::levels::CodecChoice;
use fonn_proto::peer::hello::Rejection;
use fonn_proto::peer::{Entry, Envelope, Refusal, Reply, Request, SlotSet};
use fonn_proto::{Command, ExpirySpec, Get, Outcome, Store};
use fonn_rpc::{Answer, Client, PeerMetrics, Timing};
use tempfile::TempDir;

use super::*;
use crate::server::Identity;

/// A node with a disk.
fn node(dir: &TempDir) -> Node {
    Node::start(Options {
        disk: Some(DiskOptions {
            dir: dir.path().join("data"),
            budget_bytes: 256 << 20,
            durability: Durability::Batched,
            fresh: CodecChoice::none(),
            compacted: CodecChoice::none(),
            codec_min_bytes: 256,
            value_len_max: VALUE_LEN_MAX,
            queue_bytes_max: 8 << 20,
            memory_bytes: 4 << 20,
            read_threads: 1,
            compaction_percent: 0,
            write_bytes_per_sec_max: None,
            room_wait: fonn_disk_tier::ROOM_WAIT,
        }),
        ..Options::default()
    })
}

fn client(node: &Node) -> Client {
    // A node that stands still for a while is waited for.
    let options = fonn_rpc::Options {
        connect_timeout: PATIENCE,
        silence_max: PATIENCE,
        ..fonn_rpc::Options::new(node.addr.to_string(), "router")
    };
    Client::start(options, PeerMetrics::register(&Metrics::new()).stats())
}

async fn call(client: &Client, request: &Request<'_>) -> Answer {
    let envelope = Envelope::default();
    client
        .call(request, envelope, None, PATIENCE)
        .await
        .unwrap()
}

fn get(key: &str) -> Request<'_> {
    Request::Command(Command::Get(Get::new(key.as_bytes())))
}

fn set<'a>(key: &'a str, value: &'a [u8]) -> Request<'a> {
    let store = Store::set(key.as_bytes(), value, 0, ExpirySpec::Never);
    Request::Command(Command::Store(store))
}

fn value(answer: &Answer) -> Option<Vec<u8>> {
    match answer.reply().unwrap() {
        Reply::Outcome(Outcome::Hit(hit)) => Some(hit.value.as_slice().to_vec()),
        Reply::Outcome(Outcome::Miss) => None,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_a_router_writes_is_what_clients_read() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir);
    let client = client(&node);
    let stored = call(&client, &set("k", b"from a router")).await;
    let stored = stored.reply().unwrap();
    assert!(
        matches!(stored, Reply::Outcome(Outcome::Stored(_))),
        "{stored:?}"
    );
    let mut other = node.connect();
    other.write_all(b"get k\r\nset l 5 0 3\r\nabc\r\n").unwrap();
    expect(
        &mut other,
        b"VALUE k 0 13\r\nfrom a router\r\nEND\r\nSTORED\r\n",
    );
    assert_eq!(value(&call(&client, &get("l")).await).unwrap(), b"abc");
    assert_eq!(value(&call(&client, &get("m")).await), None);
}

#[tokio::test]
async fn many_writes_and_reads_at_once_are_each_answered_rightly() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir);
    let client = client(&node);
    let mut pending = Vec::new();
    let timing = Timing {
        now: Instant::now(),
        timeout: PATIENCE,
    };
    let begin = |request: &Request<'_>| {
        let begun = client.begin(request, Envelope::default(), None, timing);
        begun.unwrap()
    };
    for round in 0..20_usize {
        for number in 0..50_usize {
            let key = format!("key-{number}");
            let text = format!("{round} {number} ").repeat(1 + number * 3);
            pending.push((None, begin(&set(&key, text.as_bytes()))));
            pending.push((Some(text), begin(&get(&key))));
        }
    }
    for (expected, pending) in pending {
        let answer = pending.await.unwrap();
        match expected {
            Some(text) => assert_eq!(value(&answer).unwrap(), text.as_bytes()),
            None => assert!(matches!(
                answer.reply().unwrap(),
                Reply::Outcome(Outcome::Stored(_))
            )),
        }
    }
}

#[tokio::test]
async fn a_node_without_a_cluster_takes_no_entries_and_gives_away_no_slots() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir);
    let client = client(&node);
    call(&client, &set("k", b"own")).await;
    let put = Request::Put {
        entry: Entry::tombstone(0, b"k", 1 << 60),
        again: false,
    };
    let pages = Request::FetchSlots {
        slots: SlotSet::all(),
        after: None,
        cursor: &[],
        len_max: 20_000,
    };
    for request in [put, pages] {
        let refused = call(&client, &request).await;
        let unsupported = Reply::Refused(Refusal::Unsupported);
        assert_eq!(refused.reply().unwrap(), unsupported);
    }
    assert_eq!(value(&call(&client, &get("k")).await).unwrap(), b"own");
    let unknown = call(&client, &Request::Fetch { key: b"unknown" }).await;
    assert_eq!(unknown.reply().unwrap(), Reply::Unknown);
}

#[test]
fn members_on_other_machines_are_let_in_if_the_node_is_open() {
    let closed = Identity::default();
    let verdict = |from: &str| super::super::peer::greet(&closed, "", 1, from).1;
    for near in ["127.0.0.1:5", "[::1]:5", "[::ffff:127.0.0.1]:5", "unix"] {
        assert_eq!(verdict(near), Ok(()), "{near}");
    }
    for far in ["10.0.0.1:5", "[2001:db8::1]:5", "?"] {
        assert_eq!(verdict(far), Err(Rejection::NotAllowed), "{far}");
    }
    let open = Identity {
        name: "node".to_owned(),
        is_open: true,
        ..Identity::default()
    };
    let (hello, verdict) = super::super::peer::greet(&open, "7", 1, "10.0.0.1:5");
    assert_eq!(verdict, Ok(()));
    assert_eq!((hello.name.as_str(), hello.version), ("node", open.version));
    assert_eq!(hello.cluster, "7");
}
