//! A server whose commands are held until the test lets them go, asked by the client of members.

mod encrypted;

use std::time::{Duration, Instant};

use fonn_base::metrics::Metrics;
use fonn_proto::outcome::Stored;
use fonn_proto::peer::hello::Hello;
use fonn_proto::peer::{Entry, Envelope, HEAD_LEN, Kind, Refusal, Reply, Request, Step, next};
use fonn_proto::{Command, Delete, ExpirySpec, Failure, Get, Out, Outcome, ServerCommand, Store};
use fonn_rpc::{Answer, Client, Options, PeerMetrics, Pending, Timing};
use std::io::{Read, Write};
use std::task::{Context, Waker};

use crate::tests::fake::Manner;
use crate::tests::{PATIENCE, Running, until};
use crate::{Budget as _, Event, Service as _};

fn client(running: &Running) -> Client {
    let options = Options::new(running.address(), "router");
    Client::start(options, PeerMetrics::register(&Metrics::new()).stats())
}

fn ask(client: &Client, request: &Request<'_>) -> Pending {
    let timing = Timing {
        now: Instant::now(),
        timeout: PATIENCE,
    };
    client
        .begin(request, Envelope::default(), None, timing)
        .unwrap()
}

fn get(key: &[u8]) -> Request<'_> {
    Request::Command(Command::Get(Get::new(key)))
}

fn set<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    Request::Command(Command::Store(Store::set(key, value, 0, ExpirySpec::Never)))
}

fn value(answer: &Answer) -> Option<Vec<u8>> {
    match answer.reply().unwrap() {
        Reply::Outcome(Outcome::Hit(hit)) => Some(hit.value.as_slice().to_vec()),
        Reply::Outcome(Outcome::Miss) => None,
        other => panic!("{other:?}"),
    }
}

/// Waits, without holding up the client's tasks.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn what_waits_does_not_delay_what_is_at_hand() {
    let running = Running::start(Manner::Held);
    running.service().put(b"hot", b"at hand".to_vec());
    running.service().put(b"cold", b"far away".to_vec());
    let client = client(&running);
    let slow = ask(&client, &get(b"cold"));
    for _ in 0..3 {
        let quick = ask(&client, &get(b"hot")).await.unwrap();
        assert_eq!(value(&quick).unwrap(), b"at hand");
    }
    let pong = ask(&client, &Request::Ping).await.unwrap();
    assert_eq!(pong.reply().unwrap(), Reply::Pong);
    assert_eq!(client.health().in_flight, 1);
    eventually("it is begun", || running.service().release(1) == 1).await;
    assert_eq!(value(&slow.await.unwrap()).unwrap(), b"far away");
}

#[tokio::test]
async fn commands_on_one_key_are_executed_in_order() {
    let running = Running::start(Manner::Held);
    let client = client(&running);
    let pending = [
        ask(&client, &get(b"k")),
        ask(&client, &set(b"k", b"one")),
        ask(&client, &get(b"k")),
        ask(
            &client,
            &Request::Command(Command::Delete(Delete::new(b"k"))),
        ),
        ask(&client, &get(b"k")),
        ask(&client, &get(b"other")),
    ];
    let service = running.service();
    eventually("one of each key is begun", || service.executed() == 2).await;
    // The others of the key wait for it.
    let mut done = 0;
    while done < pending.len() {
        eventually("one is held", || service.in_flight() > 0).await;
        assert!(service.in_flight() <= 2);
        done += service.release(1);
    }
    let mut replies = Vec::new();
    for pending in pending {
        replies.push(pending.await.unwrap());
    }
    assert_eq!(value(&replies[0]), None);
    let Reply::Outcome(Outcome::Stored(Stored { .. })) = replies[1].reply().unwrap() else {
        panic!("stored");
    };
    assert_eq!(value(&replies[2]).unwrap(), b"one");
    assert_eq!(value(&replies[4]), None);
    assert_eq!(value(&replies[5]), None);
}

#[tokio::test]
async fn a_command_without_a_waiting_caller_is_not_executed() {
    let running = Running::start(Manner::Held);
    let client = client(&running);
    let service = running.service();
    let first = ask(&client, &set(b"k", b"one"));
    eventually("it is begun", || service.executed() == 1).await;
    // The second request waits for the first, longer than its caller does; the one behind it does
    // not give up.
    let timing = Timing {
        now: Instant::now(),
        timeout: Duration::from_millis(20),
    };
    let second = set(b"k", b"two");
    let second = client.begin(&second, Envelope::default(), None, timing);
    let third = ask(&client, &get(b"k"));
    // Both are there, and then as much time passes.
    ask(&client, &Request::Ping).await.unwrap();
    tokio::time::sleep(timing.timeout * 2).await;
    assert_eq!(
        second.unwrap().await.unwrap_err(),
        fonn_rpc::CallError::TimedOut
    );
    eventually("the first goes on", || service.release(1) == 1).await;
    eventually("the third is begun", || service.executed() == 2).await;
    eventually("the third goes on", || service.release(1) == 1).await;
    first.await.unwrap();
    assert_eq!(value(&third.await.unwrap()).unwrap(), b"one");
    assert_eq!(service.executed(), 2);
}

#[tokio::test]
async fn a_write_that_is_not_acknowledged_is_refused() {
    let running = Running::start(Manner::AtOnce);
    let client = client(&running);
    let failed = ask(&client, &set(b"fail", b"v")).await.unwrap();
    let expected = Reply::Outcome(Outcome::Failed(Failure::OutOfSpace));
    assert_eq!(failed.reply().unwrap(), expected);
    let kept = ask(&client, &set(b"key", b"v")).await.unwrap();
    assert!(matches!(
        kept.reply().unwrap(),
        Reply::Outcome(Outcome::Stored(_))
    ));
}

#[tokio::test]
async fn entries_taken_in_passing_are_answered_each_by_its_own_acknowledgement() {
    let running = Running::start(Manner::Held);
    let client = client(&running);
    let keys = ["now a", "now fail", "now b"];
    // All are sent in one piece.
    let asked = keys.map(|key| {
        let entry = Entry::tombstone(0, key.as_bytes(), 1);
        ask(
            &client,
            &Request::Put {
                entry,
                again: false,
            },
        )
    });
    let failed = Reply::Outcome(Outcome::Failed(Failure::OutOfSpace));
    for (asked, expected) in asked
        .into_iter()
        .zip([Reply::Applied, failed, Reply::Applied])
    {
        assert_eq!(asked.await.unwrap().reply().unwrap(), expected);
    }
    // One that may have been taken before needs more than that.
    let entry = Entry::tombstone(0, b"now a", 1);
    let again = ask(&client, &Request::Put { entry, again: true });
    let again = again.await.unwrap();
    let unsupported = Reply::Refused(Refusal::Unsupported);
    assert_eq!(again.reply().unwrap(), unsupported);
}

#[tokio::test]
async fn stores_in_passing_are_answered_when_they_are_acknowledged_and_replicated() {
    let running = Running::start(Manner::Held);
    let (client, service) = (client(&running), running.service());
    let stored = ask(&client, &set(b"now k", b"v")).await.unwrap();
    let is_stored = |answer: &Answer| {
        let reply = answer.reply().unwrap();
        matches!(reply, Reply::Outcome(Outcome::Stored(_)))
    };
    assert!(is_stored(&stored));
    let failed = ask(&client, &set(b"now fail", b"v")).await.unwrap();
    let expected = Reply::Outcome(Outcome::Failed(Failure::OutOfSpace));
    assert_eq!(failed.reply().unwrap(), expected);
    let later = ask(&client, &set(b"now later", b"v"));
    let elsewhere = ask(&client, &set(b"now later else", b"v"));
    eventually("they wait", || service.in_flight() == 2).await;
    // Others do not wait for them.
    assert!(is_stored(
        &ask(&client, &set(b"now k", b"v")).await.unwrap()
    ));
    assert_eq!(service.release(2), 2);
    assert!(is_stored(&later.await.unwrap()));
    let elsewhere = elsewhere.await.unwrap();
    assert_eq!(elsewhere.reply().unwrap(), Reply::WrongOwner);
}

#[tokio::test]
async fn large_values_go_both_ways_and_too_large_ones_are_refused_in_step() {
    let running = Running::start(Manner::AtOnce);
    let client = client(&running);
    let large = vec![7; 3 << 20];
    let call = async |request: &Request<'_>| {
        let answer = client.call(request, Envelope::default(), None, PATIENCE);
        answer.await.unwrap()
    };
    call(&set(b"large", &large)).await;
    assert_eq!(value(&call(&get(b"large")).await).unwrap(), large);
    running.service().put(b"hot large", large.clone());
    assert_eq!(value(&call(&get(b"hot large")).await).unwrap(), large);
    // The client knows how much the node takes, and does not even send it.
    let too_large = vec![7; 5 << 20];
    let request = set(b"k", &too_large);
    let refused = client.call(&request, Envelope::default(), None, PATIENCE);
    assert_eq!(refused.await.unwrap_err(), fonn_rpc::CallError::TooLong);
    assert_eq!(value(&call(&get(b"k")).await), None);
}

#[tokio::test]
async fn server_commands_are_executed_and_what_is_not_spoken_is_refused() {
    let running = Running::start(Manner::AtOnce);
    let client = client(&running);
    ask(&client, &set(b"k", b"v")).await.unwrap();
    let count = ask(&client, &Request::Server(ServerCommand::Count));
    let count = count.await.unwrap();
    let expected = fonn_proto::request::ServerOutcome::Integer(1);
    assert_eq!(count.reply().unwrap(), Reply::Server(expected));
    let settings = ServerCommand::ConfigSet(vec![(b"log", b"debug")]);
    for request in [Request::Fetch { key: b"k" }, Request::Server(settings)] {
        let answer = ask(&client, &request).await.unwrap();
        let expected = Reply::Refused(Refusal::Unsupported);
        assert_eq!(answer.reply().unwrap(), expected, "{request:?}");
    }
}

/// A peer that is not ours, byte by byte.
fn raw(running: &Running) -> std::net::TcpStream {
    let mut stream = running.connect();
    let mut out = Out::new();
    Hello::new("raw", "", 1 << 20).encode(Ok(()), &mut out);
    for byte in out.to_vec() {
        stream.write_all(&[byte]).unwrap();
    }
    let mut hello = [0; 16];
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(hello[..5], *b"\xfaFNP\0");
    let mut name = vec![0; usize::from(hello[5])];
    stream.read_exact(&mut name).unwrap();
    stream
}

fn frame(request: &Request<'_>) -> Vec<u8> {
    let mut out = Out::new();
    request
        .encode(Envelope::default(), u32::MAX, None, &mut out)
        .unwrap();
    out.to_vec()
}

#[test]
fn requests_that_arrive_in_pieces_and_too_long_ones_keep_the_stream_in_step() {
    let running = Running::start(Manner::AtOnce);
    let mut stream = raw(&running);
    let opcode = |stream: &mut std::net::TcpStream| {
        let mut head = [0; HEAD_LEN];
        stream.read_exact(&mut head).unwrap();
        (head[1], u16::from_le_bytes([head[2], head[3]]))
    };
    for byte in frame(&Request::Ping) {
        stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(opcode(&mut stream), (0x45, 0));
    let too_large = vec![1; 6 << 20];
    let mut bytes = frame(&set(b"k", &too_large));
    bytes.extend(frame(&Request::Ping));
    stream.write_all(&bytes).unwrap();
    assert_eq!(opcode(&mut stream), (0x47, 3), "refused as too long");
    assert_eq!(opcode(&mut stream), (0x45, 0));
    // Nonsense with a wrong checksum ends it.
    stream.write_all(&[0xfb; HEAD_LEN + 512]).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn work_is_bounded_and_dropped_with_its_connection() {
    let running = Running::start(Manner::Held);
    let mut stream = raw(&running);
    let mut sender = stream.try_clone().unwrap();
    let count = 3 * super::WORKS_MAX;
    let writer = std::thread::spawn(move || {
        for number in 0..count {
            let key = format!("key-{number}");
            if sender.write_all(&frame(&get(key.as_bytes()))).is_err() {
                return;
            }
        }
    });
    let service = running.service();
    until("much is begun", || service.in_flight() == super::WORKS_MAX);
    let (mut answered, mut reply) = (0, [0; HEAD_LEN]);
    while answered < count / 2 {
        for _ in 0..service.release(100) {
            stream.read_exact(&mut reply).unwrap();
            answered += 1;
        }
    }
    assert!(service.in_flight_most() <= super::WORKS_MAX);
    socket2::SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    drop(stream);
    writer.join().unwrap();
    // What was asked before the end of the stream is executed all the same.
    until("all is dropped or done", || {
        service.release(usize::MAX);
        service.in_flight() == 0 && running.shared().registry.is_empty()
    });
}

/// Reads so many replies; returns how many of them are misses.
fn read_replies(stream: &mut std::net::TcpStream, count: usize) -> usize {
    let (mut input, mut part) = (Vec::new(), vec![0; 1 << 16]);
    let (mut replies, mut misses) = (0, 0);
    while replies < count {
        if let Step::Frame { head, body, len } = next(Kind::Reply, &input, u32::MAX).unwrap() {
            let reply = Reply::decode(&head, body, None).unwrap();
            misses += usize::from(reply == Reply::Outcome(Outcome::Miss));
            replies += 1;
            input.drain(..len);
        } else {
            let len = stream.read(&mut part).unwrap();
            assert!(len > 0, "it ended after {replies} replies");
            input.extend_from_slice(&part[..len]);
        }
    }
    misses
}

/// More replies than the kernel takes while they are not read, each of about 1 MB.
const UNREAD: usize = 40;

/// A peer that asked for [`UNREAD`] replies, behind `first`, and does not read them.
fn unread(running: &Running, first: &[u8]) -> std::net::TcpStream {
    running.service().put(b"hot", vec![b'v'; 1_000_000]);
    let mut stream = raw(running);
    let gets = frame(&get(b"hot")).repeat(UNREAD);
    stream.write_all(&[first, &gets].concat()).unwrap();
    until("the peer is blocked", || {
        running.shared().unsent_bytes() > 0
    });
    stream
}

#[test]
fn work_goes_on_while_the_peer_does_not_read_and_is_answered_when_it_does() {
    let running = Running::start(Manner::Held);
    let mut stream = unread(&running, &frame(&get(b"cold")));
    until("it is begun", || running.service().release(1) == 1);
    until("it is done", || running.service().in_flight() == 0);
    assert_eq!(read_replies(&mut stream, UNREAD + 1), 1);
}

#[test]
fn a_peer_that_reads_slowly_is_not_cut_off_before_one_that_reads_nothing() {
    let running = Running::start(Manner::AtOnce);
    let mut stream = unread(&running, &[]);
    let shared = running.shared();
    let _other = running.connect();
    until("the other is there", || shared.registry.list().len() == 2);
    let other = shared.registry.get(shared.registry.list()[1].id).unwrap();
    let reads_nothing = shared.memory.hold_unsent(shared, &other, 40 << 20);
    let written = running.service().counted(Event::BytesWritten);
    let mut some = vec![0; 8_000_000];
    stream.read_exact(&mut some).unwrap();
    until("more is sent", || {
        running.service().counted(Event::BytesWritten) > written
    });
    // One byte too much.
    let left = running.service().budget().bytes_max() - shared.unsent_bytes();
    let _more = shared.memory.hold_unsent(shared, &other, left + 1);
    let noop = Context::from_waker(Waker::noop());
    assert!(reads_nothing.poll_cut_off(&noop).is_ready());
    // It can be read to the end.
    let end = UNREAD * 1_000_000 - some.len();
    stream.read_exact(&mut vec![0; end]).unwrap();
}

#[test]
fn draining_answers_what_was_asked_and_ends_the_connection() {
    let mut running = Running::start(Manner::Held);
    let mut stream = raw(&running);
    stream.write_all(&frame(&get(b"k"))).unwrap();
    until("it is begun", || running.service().in_flight() == 1);
    let shared = std::sync::Arc::clone(running.shared());
    let server = running.take();
    let drain = std::thread::spawn(move || server.drain(PATIENCE));
    until("it drains", || shared.is_draining());
    running.service().release(1);
    let mut reply = [0; HEAD_LEN];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[1], 0x02, "a miss");
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    drain.join().unwrap();
}
