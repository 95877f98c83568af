//! Large requests, of which the kernel tells when much of them is there.

use super::*;
use crate::low_water::LOW_WATER;
use crate::{Budget as _, Reservation, Service as _};

const LEN: usize = 2 << 20;

fn set_head(key: &str, len: usize) -> Vec<u8> {
    format!("set {key} 0 0 {len}\r\n").into_bytes()
}

#[test]
fn a_large_set_in_pieces_of_any_length_is_answered_and_so_is_what_follows_it() {
    let running = Running::start(Manner::AtOnce);
    let mut client = running.connect();
    let value: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let mut request = set_head("k", LEN);
    request.extend_from_slice(&value);
    request.extend_from_slice(b"\r\n");
    let pieces = [
        request.len(),
        LOW_WATER + 1,
        LOW_WATER,
        LOW_WATER - 1,
        100_000,
        16_384,
        // All but one byte of it, then that.
        request.len() - 1,
    ];
    for piece in pieces {
        for part in request.chunks(piece) {
            client.write_all(part).unwrap();
        }
        expect(&mut client, b"STORED\r\n");
        // A few bytes are enough again, at once and in two steps.
        client.write_all(b"version\r\n").unwrap();
        let version = format!("VERSION {}\r\n", fonn_proto::memcached::VERSION);
        expect(&mut client, version.as_bytes());
        client.write_all(b"get ").unwrap();
        client.write_all(b"none\r\n").unwrap();
        expect(&mut client, b"END\r\n");
    }
    client.write_all(b"get k\r\n").unwrap();
    expect(&mut client, format!("VALUE k 0 {LEN}\r\n").as_bytes());
    let mut got = vec![0; LEN];
    client.read_exact(&mut got).unwrap();
    assert!(got == value);
    expect(&mut client, b"\r\nEND\r\n");
}

#[test]
fn what_a_slow_client_has_sent_of_a_large_set_is_taken_in_though_it_is_little() {
    let running = Running::start(Manner::AtOnce);
    let mut client = running.connect();
    let received = || running.service().counted(Event::BytesRead);
    let head = set_head("k", LEN);
    client.write_all(&head).unwrap();
    let mut sent = head.len();
    for _ in 0..2 {
        // By itself it would not wake the connection.
        let piece = vec![b'v'; LOW_WATER / 4];
        client.write_all(&piece).unwrap();
        sent += piece.len();
        until("it is received", || received() == sent as u64);
    }
    client
        .write_all(&vec![b'v'; LEN - 2 * (LOW_WATER / 4)])
        .unwrap();
    client.write_all(b"\r\n").unwrap();
    expect(&mut client, b"STORED\r\n");
}

#[test]
fn the_rest_of_a_set_that_was_refused_on_its_way_is_taken_in_though_it_is_little() {
    const REST: usize = LOW_WATER / 4;
    let tuning = Tuning {
        memory_wait: Duration::from_millis(50),
        ..Tuning::default()
    };
    let running = Running::tuned(Manner::AtOnce, Security::default(), tuning);
    let shared: &Shared<Fake> = running.shared();
    let received = || running.service().counted(Event::BytesRead) as usize;
    let head = set_head("k", LEN);
    // The oldest request would not wait.
    let mut oldest = running.connect();
    oldest.write_all(&head).unwrap();
    until("an older one is announced", || shared.reserved_bytes() > 0);
    let mut client = running.connect();
    client.write_all(&head).unwrap();
    client.write_all(&[b'v'; REST]).unwrap();
    until("a part is received", || received() == 2 * head.len() + REST);
    // There is no memory for all that comes now.
    let left = shared.service.budget().bytes_max() - shared.reserved_bytes();
    let all = Reservation::try_make(shared, None, left).unwrap();
    client.write_all(&vec![b'v'; LEN - 2 * REST]).unwrap();
    let is_refused = || running.service().counted(Event::Busy) == 1;
    until("it is refused", is_refused);
    drop(all);
    client.write_all(&[b'v'; REST]).unwrap();
    client.write_all(b"\r\nget k\r\n").unwrap();
    expect(&mut client, b"SERVER_ERROR busy\r\nEND\r\n");
}

#[test]
fn a_large_set_is_charged_for_what_has_come_of_it() {
    // It may be charged for as much again as has come.
    const AHEAD: usize = 64 * 1024;
    let running = Running::start(Manner::AtOnce);
    let reserved = || running.shared().reserved_bytes();
    let received = || running.service().counted(Event::BytesRead) as usize;
    let mut client = running.connect();
    let head = set_head("k", 4 << 20);
    client.write_all(&head).unwrap();
    until("it is announced", || reserved() > 0);
    assert!(reserved() <= 2 * AHEAD, "{} for nothing", reserved());
    let mut sent = head.len();
    for piece in [AHEAD, 200_000, 1_000_000] {
        client.write_all(&vec![b'v'; piece]).unwrap();
        sent += piece;
        until("it is received", || received() == sent);
        let charged = reserved();
        assert!(
            (sent..=2 * sent + 2 * AHEAD).contains(&charged),
            "{charged} for {sent}"
        );
    }
    client
        .write_all(&vec![b'v'; (4 << 20) + head.len() - sent])
        .unwrap();
    client.write_all(b"\r\n").unwrap();
    expect(&mut client, b"STORED\r\n");
    until("nothing is reserved", || reserved() == 0);
}

#[test]
fn the_arguments_of_a_large_request_are_charged_before_commands_are_made_of_them() {
    const KEYS: usize = 200_000;
    let running = Running::start(Manner::AtOnce);
    let reserved = || running.shared().reserved_bytes();
    let received = || running.service().counted(Event::BytesRead) as usize;
    let mut client = running.connect();
    let head = format!("*{}\r\n$3\r\nDEL\r\n", KEYS + 1).into_bytes();
    let keys = b"$0\r\n\r\n".repeat(KEYS - 1);
    client.write_all(&head).unwrap();
    client.write_all(&keys).unwrap();
    until("all but one have come", || {
        received() == head.len() + keys.len()
    });
    // Each of 6 bytes makes a command of a hundred and more.
    until("they are charged", || reserved() > KEYS * 100);
    client.write_all(b"$0\r\n\r\n").unwrap();
    expect(&mut client, b":0\r\n");
    until("nothing is reserved", || reserved() == 0);
    // More than the budget is refused, and the connection stays in step.
    let count = 700_000;
    client
        .write_all(format!("*{count}\r\n$3\r\nDEL\r\n").as_bytes())
        .unwrap();
    client.write_all(&b"$0\r\n\r\n".repeat(count - 1)).unwrap();
    client.write_all(b"PING\r\n").unwrap();
    expect(
        &mut client,
        b"-TRYAGAIN the server is busy, try again later\r\n+PONG\r\n",
    );
    assert_eq!(reserved(), 0);
}

#[test]
fn requests_that_wait_for_each_others_memory_are_all_carried_out() {
    // Together they are three times the share of their source.
    const CLIENTS: usize = 24;
    let running = Running::start(Manner::AtOnce);
    let received = || running.service().counted(Event::BytesRead) as usize;
    let len = running.service().value_len_max();
    let value = vec![b'v'; len];
    // Of each so much that what is reserved for it stays within the share.
    let first = len / 6;
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| running.connect()).collect();
    let mut sent = 0;
    // A first part of each is received before the second part of any.
    for client in &mut clients {
        let head = set_head("k", len);
        client.write_all(&head).unwrap();
        client.write_all(&value[..first]).unwrap();
        sent += head.len() + first;
    }
    until("a part of each is received", || received() == sent);
    std::thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(|| {
                client.write_all(&value[first..]).unwrap();
                client.write_all(b"\r\n").unwrap();
                expect(client, b"STORED\r\n");
            });
        }
    });
    assert_eq!(running.service().counted(Event::Busy), 0);
}

#[test]
fn of_a_large_set_whose_client_goes_in_the_middle_nothing_stays() {
    let running = Running::start(Manner::AtOnce);
    let mut other = running.connect();
    other.write_all(b"set k 0 0 3\r\nold\r\n").unwrap();
    expect(&mut other, b"STORED\r\n");
    let reserved = || running.shared().reserved_bytes();
    for sent in [0, 1, LOW_WATER / 2, LOW_WATER + 1, LEN - 1, LEN] {
        assert_eq!((running.shared().registry.len(), reserved()), (1, 0));
        let mut client = running.connect();
        client.write_all(&set_head("k", LEN)).unwrap();
        client.write_all(&vec![b'v'; sent]).unwrap();
        until("memory is reserved for what has come", || reserved() > sent);
        other.write_all(b"get k\r\n").unwrap();
        expect(&mut other, b"VALUE k 0 3\r\nold\r\nEND\r\n");
        drop(client);
        until("its connection has ended", || {
            running.shared().registry.len() == 1
        });
        assert_eq!(reserved(), 0, "after {sent} bytes");
        other.write_all(b"get k\r\n").unwrap();
        expect(&mut other, b"VALUE k 0 3\r\nold\r\nEND\r\n");
    }
}
