//! How connections end: broken protocols, limits, panics, the end of the server.

use super::*;

#[test]
fn a_broken_protocol_is_counted_and_the_last_reply_arrives_before_the_end() {
    let node = Node::start(Options::default());
    let mut broken = b"*1\r\n$4\r\nPING\r\n*1\r\n$x\r\n".to_vec();
    // More than is read before the connection ends: closing on it would be a reset.
    broken.extend(vec![b'z'; 200_000]);
    let mut client = node.connect();
    client.write_all(&broken).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut reply = Vec::new();
    client.read_to_end(&mut reply).unwrap();
    assert_eq!(
        reply.escape_ascii().to_string(),
        "+PONG\\r\\n-ERR Protocol error: invalid bulk length\\r\\n"
    );
    assert_eq!(node.count(Counter::ProtocolErrors), 1);

    let strangers = [
        &b"\x16\x03\x01\x02\x00\x01"[..],
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\nset k 0 0 1\r\nx\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x01\x02\x03",
    ];
    for (index, stranger) in strangers.iter().enumerate() {
        let mut client = node.connect();
        client.write_all(stranger).unwrap();
        expect_end(&mut client);
        assert_eq!(node.count(Counter::ProtocolErrors), 2 + index as u64);
    }
    let mut client = node.connect();
    exchange(&mut client, b"quit\r\n", b"");
    expect_end(&mut client);
    assert_eq!(node.count(Counter::ProtocolErrors), 5);
    exchange(&mut node.connect(), b"get k\r\n", b"END\r\n");
}

#[test]
fn connections_over_the_limit_are_closed_at_once_and_counted() {
    let node = Node::start(Options {
        connections_max: 2,
        ..Options::default()
    });
    let mut kept = [node.connect(), node.connect()];
    for client in &mut kept {
        exchange(client, b"mn\r\n", b"MN\r\n");
    }
    assert_eq!(node.connect().read(&mut [0; 1]).unwrap_or(0), 0);
    until("it is counted", || {
        node.count(Counter::ConnectionsRejected) == 1
    });
    drop(kept);
    until("there is room", || node.shared.registry.is_empty());
    exchange(&mut node.connect(), b"mn\r\n", b"MN\r\n");
}

#[test]
fn idle_connections_end_at_once_when_the_server_drains() {
    let mut node = Node::start(Options::default());
    let mut clients: Vec<_> = (0..50).map(|_| node.connect()).collect();
    for client in &mut clients {
        exchange(client, b"mn\r\n", b"MN\r\n");
    }
    assert!(node.drain(PATIENCE) < PATIENCE / 3 * 2);
    clients.iter_mut().for_each(expect_end);
}

#[test]
fn requests_that_arrived_are_answered_when_the_server_drains() {
    let mut node = Node::start(Options::default());
    let mut client = node.connect();
    exchange(&mut client, &text_set("k", b"v"), b"STORED\r\n");
    // The rest of this request comes while the server drains.
    client.write_all(b"set l 0 0 3\r\nab").unwrap();
    until("it is being received", || {
        node.shared.registry.list().iter().all(|it| !it.idle)
            && node.count(Counter::BytesRead) == 31
    });
    let shared = Arc::clone(&node.shared);
    std::thread::scope(|scope| {
        scope.spawn(|| node.drain(PATIENCE));
        until("it drains", || shared.is_draining());
        exchange(
            &mut client,
            b"c\r\nget k\r\n",
            b"STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n",
        );
        expect_end(&mut client);
    });
}

#[test]
fn a_stuck_client_does_not_keep_the_server_from_ending() {
    let mut node = Node::start(Options::default());
    let mut client = node.connect();
    client.write_all(b"set l 0 0 3\r\nab").unwrap();
    until("it is being received", || {
        node.count(Counter::BytesRead) == 15
    });
    assert!(node.drain(Duration::from_millis(100)) < PATIENCE / 3 * 2);
    assert!(node.shared.registry.is_empty());
    assert_eq!(client.read(&mut [0; 1]).unwrap_or(0), 0);
}

#[test]
fn a_client_that_never_stops_sending_does_not_keep_the_server_from_ending() {
    let mut node = Node::start(Options {
        tuning: Tuning {
            drain_busy: Duration::from_millis(50),
            linger: Duration::from_millis(50),
            ..Tuning::default()
        },
        ..Options::default()
    });
    let client = node.connect();
    let (mut reader, mut writer) = (client.try_clone().unwrap(), client);
    let sending = std::thread::spawn(move || {
        let requests = b"get k\r\n".repeat(1000);
        while writer.write_all(&requests).is_ok() {}
    });
    let reading = std::thread::spawn(move || {
        let mut buf = vec![0; 65536];
        while reader.read(&mut buf).is_ok_and(|count| count > 0) {}
    });
    until("requests are served", || {
        node.count(Counter::CmdGet) > 10_000
    });
    assert!(node.drain(PATIENCE) < PATIENCE / 3 * 2);
    sending.join().unwrap();
    reading.join().unwrap();
}
