//! The client against a node that does what the test says, over real sockets.

mod faults;
mod pieces;

use std::time::{Duration, Instant};

use crate::testing::Node;
use bytes::Bytes;
use fonn_proto::outcome::{Hit, Value};
use fonn_proto::peer::{Envelope, Refusal, Reply, Request};
use fonn_proto::{Command, ExpirySpec, Get, Outcome, Store};

use fonn_base::breaker::Position;
use fonn_base::metrics::Metrics;

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn options(node: &Node) -> Options {
    Options {
        tick: Duration::from_millis(2),
        ..Options::new(node.address(), "test")
    }
}

fn start(options: Options) -> Client {
    Client::start(options, PeerMetrics::register(&Metrics::new()).stats())
}

fn get(key: &[u8]) -> Request<'_> {
    Request::Command(Command::Get(Get::new(key)))
}

fn begin(client: &Client, key: &[u8], timeout: Duration) -> Result<Pending, CallError> {
    begin_at(client, key, timeout, Instant::now())
}

fn begin_at(
    client: &Client,
    key: &[u8],
    timeout: Duration,
    now: Instant,
) -> Result<Pending, CallError> {
    let timing = Timing { now, timeout };
    client.begin(&get(key), Envelope::default(), None, timing)
}

/// A hit with this value.
fn hit(value: &[u8]) -> Reply<'_> {
    Reply::Outcome(Outcome::Hit(Hit {
        value: Value::Copied(value),
        value_len: value.len(),
        flags: 0,
        version: 1,
        ttl_ms: None,
        expires_at_ms: None,
        idle_s: 0,
        fetched_before: false,
        stale: false,
        won: false,
        lost: false,
    }))
}

fn value(answer: &Answer) -> Vec<u8> {
    match answer.reply().unwrap() {
        Reply::Outcome(Outcome::Hit(hit)) => hit.value.as_slice().to_vec(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn replies_out_of_order_find_their_callers_and_requests_go_out_in_one_write() {
    let node = Node::bind().await;
    let client = start(options(&node));
    let keys: Vec<String> = (0..100).map(|number| format!("key-{number}")).collect();
    let pending: Vec<_> = keys
        .iter()
        .map(|key| begin(&client, key.as_bytes(), LONG).unwrap())
        .collect();
    let mut connection = node.accept().await;
    let mut requests = Vec::new();
    for _ in &keys {
        requests.push(connection.request().await);
    }
    assert_eq!(client.health().in_flight, 100);
    for request in requests.iter().rev() {
        connection.reply(request, &hit(&request.key())).await;
    }
    for (pending, key) in pending.into_iter().zip(&keys) {
        assert_eq!(value(&pending.await.unwrap()), key.as_bytes());
    }
    assert_eq!(client.usage(), (0, 0));
    assert_eq!(client.stats().writes.get(), 1);
    assert!(client.latency_high() > Duration::ZERO);
}

#[tokio::test]
async fn requests_of_all_that_can_run_go_out_in_one_write() {
    let node = Node::bind().await;
    let client = start(options(&node));
    let first = begin(&client, b"first", LONG).unwrap();
    let mut connection = node.accept().await;
    let request = connection.request().await;
    connection.reply(&request, &hit(b"value")).await;
    first.await.unwrap();
    assert_eq!(client.stats().writes.get(), 1);

    // The connection's task is woken before those that ask next have run.
    let begun = [b"second", b"third."].map(|key| begin(&client, key, LONG).unwrap());
    let asks = |key: &'static [u8]| {
        let client = client.clone();
        tokio::spawn(async move { begin(&client, key, LONG).unwrap().await })
    };
    let others = [asks(b"fourth"), asks(b"fifth")];
    for _ in 0..4 {
        let request = connection.request().await;
        connection.reply(&request, &hit(&request.key())).await;
    }
    for (pending, key) in begun.into_iter().zip([b"second", b"third."]) {
        assert_eq!(value(&pending.await.unwrap()), key);
    }
    for (other, key) in others.into_iter().zip([&b"fourth"[..], b"fifth"]) {
        assert_eq!(value(&other.await.unwrap().unwrap()), key);
    }
    assert_eq!(client.stats().writes.get(), 2);

    // One that is alone does not wait for others.
    let alone = begin(&client, b"alone", LONG).unwrap();
    tokio::task::yield_now().await;
    assert_eq!(client.stats().writes.get(), 3);
    let request = connection.request().await;
    connection.reply(&request, &hit(b"value")).await;
    alone.await.unwrap();
}

#[tokio::test]
async fn large_and_small_replies_in_any_turn_are_those_that_were_sent() {
    let node = Node::bind().await;
    let client = start(options(&node));
    // Behind a large one the next is read head first; one that is small after all, and several at
    // once.
    let lens = [
        100_000, 70_000, 10, 5, 100_000, 40_000, 70_000, 1_900, 30_000, 10,
    ];
    let keys: Vec<String> = (0..lens.len())
        .map(|number| format!("key-{number}"))
        .collect();
    let pending: Vec<_> = keys
        .iter()
        .map(|key| begin(&client, key.as_bytes(), LONG).unwrap())
        .collect();
    let mut connection = node.accept().await;
    let mut requests = Vec::new();
    for _ in &keys {
        requests.push(connection.request().await);
    }
    let value_of = |at: usize| vec![b'a' + at as u8; lens[at]];
    let answer = async {
        for (at, request) in requests.iter().enumerate() {
            connection.reply(request, &hit(&value_of(at))).await;
        }
    };
    let take = async {
        for (at, pending) in pending.into_iter().enumerate() {
            assert!(value(&pending.await.unwrap()) == value_of(at), "reply {at}");
        }
    };
    tokio::join!(answer, take);
    assert_eq!(client.usage(), (0, 0));
}

#[tokio::test]
async fn a_connection_cut_inside_a_reply_tells_its_callers_and_the_next_one_is_new() {
    let node = Node::bind().await;
    let client = start(options(&node));
    let first = begin(&client, b"first", LONG).unwrap();
    let second = begin(&client, b"second", LONG).unwrap();
    let mut connection = node.accept().await;
    let requests = [connection.request().await, connection.request().await];
    connection.reply(&requests[0], &hit(b"whole")).await;
    connection
        .part_of_reply(&requests[1], &hit(b"never seen"), 40)
        .await;
    drop(connection);
    assert_eq!(value(&first.await.unwrap()), b"whole");
    assert_eq!(second.await.unwrap_err(), CallError::Closed);
    let third = begin(&client, b"third", LONG).unwrap();
    let mut connection = node.accept().await;
    let request = connection.request().await;
    connection.reply(&request, &hit(b"new")).await;
    assert_eq!(value(&third.await.unwrap()), b"new");
    assert_eq!(client.usage(), (0, 0));
}

#[tokio::test]
async fn a_late_reply_is_dropped_and_others_are_not_delayed() {
    let node = Node::bind().await;
    let client = start(options(&node));
    let slow = begin(&client, b"slow", Duration::from_millis(30)).unwrap();
    let mut connection = node.accept().await;
    let slow_request = connection.request().await;
    assert_eq!(slow.await.unwrap_err(), CallError::TimedOut);
    assert_eq!(client.usage().0, 1, "its id is still on the wire");
    let quick = begin(&client, b"quick", LONG).unwrap();
    let quick_request = connection.request().await;
    assert_ne!(slow_request.id(), quick_request.id());
    connection.reply(&slow_request, &hit(b"too late")).await;
    connection.reply(&quick_request, &hit(b"in time")).await;
    assert_eq!(value(&quick.await.unwrap()), b"in time");
    assert_eq!(client.usage(), (0, 0));
    assert_eq!(client.stats().late.get(), 1);
    assert_eq!(client.stats().timed_out.get(), 1);
}

#[tokio::test]
async fn callers_that_go_away_leave_nothing_behind() {
    let node = Node::bind().await;
    let client = start(options(&node));
    let unsent = begin(&client, b"unsent", LONG).unwrap();
    drop(unsent);
    let sent = begin(&client, b"sent", LONG).unwrap();
    let answered = begin(&client, b"answered", LONG).unwrap();
    let kept = begin(&client, b"kept", LONG).unwrap();
    let mut connection = node.accept().await;
    let requests = [
        connection.request().await,
        connection.request().await,
        connection.request().await,
        connection.request().await,
    ];
    drop(sent);
    for request in &requests {
        connection.reply(request, &hit(&request.key())).await;
    }
    assert_eq!(value(&kept.await.unwrap()), b"kept");
    assert_eq!(client.usage(), (1, 0), "an answer waits");
    drop(answered);
    assert_eq!(client.usage(), (0, 0));
}

#[tokio::test]
async fn one_request_too_many_is_busy_at_once() {
    let node = Node::bind().await;
    let client = start(Options {
        requests_max: 2,
        ..options(&node)
    });
    let first = begin(&client, b"1", LONG).unwrap();
    let _second = begin(&client, b"2", LONG).unwrap();
    assert_eq!(begin(&client, b"3", LONG).unwrap_err(), CallError::Busy);
    let mut connection = node.accept().await;
    let request = connection.request().await;
    connection.reply(&request, &hit(b"1")).await;
    first.await.unwrap();
    assert!(begin(&client, b"3", LONG).is_ok());
    assert_eq!(client.stats().busy.get(), 1);
}

#[tokio::test]
async fn requests_are_bounded_in_bytes_and_an_answer_that_is_not_taken_keeps_none_out() {
    let node = Node::bind().await;
    let client = start(Options {
        bytes_max: 4000,
        ..options(&node)
    });
    let big = vec![7; 100_000];
    let store = |value| {
        Request::Command(Command::Store(Store::set(
            b"k",
            value,
            0,
            ExpirySpec::Never,
        )))
    };
    let send = |value| {
        let timing = Timing {
            now: Instant::now(),
            timeout: LONG,
        };
        client.begin(&store(value), Envelope::default(), None, timing)
    };
    let first = send(&big).expect("one is always taken");
    assert_eq!(send(b"small").unwrap_err(), CallError::Busy);
    let mut connection = node.accept().await;
    let request = connection.request().await;
    connection.reply(&request, &hit(&[8; 5000])).await;
    while client.health().in_flight > 0 {
        tokio::task::yield_now().await;
    }
    // An answer of 5000 bytes waits for its caller.
    assert_eq!(client.usage(), (1, 0));
    assert!(send(b"small").is_ok());
    first.await.unwrap();
}

#[tokio::test]
async fn requests_in_flight_are_counted_on_both_connections() {
    let node = Node::bind().await;
    let client = start(options(&node));
    let large = |key: &[u8]| {
        let timing = Timing {
            now: Instant::now(),
            timeout: LONG,
        };
        let pending = client.begin_large(&get(key), Envelope::default(), None, timing);
        pending.unwrap()
    };
    let pending = [
        begin(&client, b"small", LONG).unwrap(),
        large(b"large"),
        large(b"other"),
    ];
    assert_eq!(client.stats().in_flight(), 3);
    client.close(CallError::Down);
    for pending in pending {
        pending.await.unwrap_err();
    }
    assert_eq!(client.stats().in_flight(), 0);
}

#[tokio::test]
async fn a_reply_too_long_for_small_ones_is_fetched_on_the_connection_for_large_ones() {
    let node = Node::bind().await;
    let client = start(Options {
        small_len_max: 100_000,
        ..options(&node)
    });
    let large = Bytes::from(vec![9; 3_000_000]);
    let serve = async {
        let mut small = node.accept().await;
        assert_eq!(small.hello.body_len_max, 100_000);
        let request = small.request().await;
        small
            .reply(&request, &Reply::Refused(Refusal::TooLong))
            .await;
        let mut lane = node.accept().await;
        assert!(lane.hello.body_len_max > 3_000_000);
        let request = lane.request().await;
        lane.reply(&request, &hit(&large)).await;
        // What cannot be repeated goes there at once, and large values too.
        let request = lane.request().await;
        lane.reply(&request, &hit(b"taken")).await;
        let request = lane.request().await;
        assert_eq!(request.key(), b"k");
        lane.reply(&request, &Reply::Outcome(Outcome::Miss)).await;
        (small, lane)
    };
    let calls = async {
        let key = get(b"key");
        let answer = client
            .call(&key, Envelope::default(), None, LONG)
            .await
            .unwrap();
        let Reply::Outcome(Outcome::Hit(hit)) = answer.reply().unwrap() else {
            panic!("a hit");
        };
        assert!(matches!(&hit.value, Value::Shared(shared) if *shared == large));
        let take = Request::Command(Command::Get(Get {
            delete: true,
            ..Get::new(b"key")
        }));
        client
            .call(&take, Envelope::default(), None, LONG)
            .await
            .unwrap();
        let store = Store::set(b"k", &large, 0, ExpirySpec::Never);
        let store = Request::Command(Command::Store(store));
        client
            .call(&store, Envelope::default(), Some(&large), LONG)
            .await
            .unwrap();
    };
    tokio::join!(serve, calls);
    assert_eq!(client.usage(), (0, 0));
}

#[tokio::test]
async fn an_answer_to_no_question_and_a_damaged_one_end_the_connection() {
    for is_damaged in [false, true] {
        let node = Node::bind().await;
        let client = start(options(&node));
        let pending = begin(&client, b"key", LONG).unwrap();
        let mut connection = node.accept().await;
        let request = connection.request().await;
        if is_damaged {
            connection.damaged_reply(&request, &hit(b"value")).await;
        } else {
            connection.stray_reply(&request, &hit(b"value")).await;
        }
        assert_eq!(pending.await.unwrap_err(), CallError::Lost);
    }
}

#[tokio::test]
async fn a_member_that_cannot_be_reached_is_not_asked_for_a_while() {
    let node = Node::bind().await;
    let options = options(&node);
    drop(node);
    let client = start(options);
    let mut refused = 0;
    for _ in 0..50 {
        match begin(&client, b"key", LONG) {
            Ok(pending) => assert_eq!(pending.await.unwrap_err(), CallError::Unavailable),
            Err(error) => {
                assert_eq!(error, CallError::Unavailable);
                refused += 1;
            }
        }
    }
    assert!(refused >= 40, "{refused}");
    assert_eq!(client.stats().connections.get(), 0);
    assert_eq!(client.usage(), (0, 0));
}

#[tokio::test]
async fn a_member_that_comes_back_is_asked_again() {
    let node = Node::bind().await;
    let client = start(options(&node));
    // As many connections as open the breaker.
    for _ in 0..3 {
        let pending = begin(&client, b"key", LONG).unwrap();
        let mut connection = node.accept().await;
        connection.request().await;
        drop(connection);
        assert_eq!(pending.await.unwrap_err(), CallError::Closed);
    }
    assert_eq!(client.health().breaker, Position::Open);
    let (pending, now) = loop {
        let now = Instant::now();
        match begin_at(&client, b"key", LONG, now) {
            Ok(pending) => break (pending, now),
            Err(error) => assert_eq!(error, CallError::Unavailable),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    // At the same time: another one may try when the first has said nothing for a second.
    let other = begin_at(&client, b"other", LONG, now);
    assert!(other.is_err(), "one tries first");
    let mut connection = node.accept().await;
    let request = connection.request().await;
    connection.reply(&request, &hit(b"back")).await;
    assert_eq!(value(&pending.await.unwrap()), b"back");
    assert_eq!(client.health().breaker, Position::Closed);
}

#[tokio::test]
async fn a_member_that_is_silent_loses_the_connection() {
    let node = Node::bind().await;
    let client = start(Options {
        silence_max: Duration::from_millis(60),
        ..options(&node)
    });
    let pending = begin(&client, b"key", LONG).unwrap();
    let mut connection = node.accept().await;
    connection.request().await;
    assert_eq!(pending.await.unwrap_err(), CallError::Lost);
    assert!(connection.is_over().await);
}

#[tokio::test]
async fn a_member_that_refuses_us_or_never_says_hello_is_unavailable() {
    let node = Node::bind().await;
    let client = start(Options {
        connect_timeout: Duration::from_millis(50),
        ..options(&node)
    });
    let pending = begin(&client, b"key", LONG).unwrap();
    node.reject().await;
    assert_eq!(pending.await.unwrap_err(), CallError::Unavailable);
    let pending = begin(&client, b"key", LONG).unwrap();
    let _silent = node.accept_silently().await;
    assert_eq!(pending.await.unwrap_err(), CallError::Unavailable);
    // A deadline counts while the connection is being made too, until the hello arrives.
    let client = start(Options {
        connect_timeout: LONG,
        ..options(&node)
    });
    let pending = begin(&client, b"key", Duration::from_millis(10)).unwrap();
    assert_eq!(pending.await.unwrap_err(), CallError::TimedOut);
}

#[tokio::test]
async fn the_last_handle_ends_the_connections_and_closing_tells_the_callers() {
    let node = Node::bind().await;
    let client = start(options(&node));
    let pending = begin(&client, b"key", LONG).unwrap();
    let mut connection = node.accept().await;
    connection.request().await;
    let other = client.clone();
    drop(client);
    other.close(CallError::Down);
    assert_eq!(pending.await.unwrap_err(), CallError::Down);
    assert!(connection.is_over().await);
    assert_eq!(
        begin(&other, b"key", LONG).unwrap_err(),
        CallError::Unavailable
    );

    let client = start(options(&node));
    let pending = begin(&client, b"key", LONG).unwrap();
    let mut connection = node.accept().await;
    connection.request().await;
    drop(client);
    assert!(connection.is_over().await);
    assert_eq!(pending.await.unwrap_err(), CallError::Lost);
}
