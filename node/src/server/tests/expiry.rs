//! Time as clients see it: to the millisecond.

use super::*;

/// What one integer reply says.
fn integer(client: &mut TcpStream, request: &[u8]) -> i64 {
    client.write_all(request).unwrap();
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    let line = String::from_utf8(line).unwrap();
    line[1..].trim_end().parse().unwrap()
}

#[test]
fn an_entry_is_not_served_after_its_last_millisecond() {
    let node = Node::start(Options::default());
    let mut client = node.connect();
    for _ in 0..50 {
        exchange(
            &mut client,
            &resp(&[b"SET", b"k", b"v", b"PX", b"1"]),
            b"+OK\r\n",
        );
        // It may have been stored at the end of a millisecond.
        std::thread::sleep(Duration::from_millis(2));
        exchange(&mut client, &resp(&[b"GET", b"k"]), b"$-1\r\n");
    }
}

#[test]
fn a_client_is_not_told_more_time_than_it_asked_for() {
    let node = Node::start(Options::default());
    let mut client = node.connect();
    let now_ms = || {
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        i64::try_from(since.as_millis()).unwrap()
    };
    for _ in 0..50 {
        let at_ms = (now_ms() + 10_000).to_string();
        exchange(
            &mut client,
            &resp(&[b"SET", b"k", b"v", b"PXAT", at_ms.as_bytes()]),
            b"+OK\r\n",
        );
        let left = integer(&mut client, &resp(&[b"PTTL", b"k"]));
        assert!(left <= 10_000, "{left}");
    }
}
