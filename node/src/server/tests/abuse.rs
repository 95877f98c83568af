//! Clients that hold memory or time: each is bounded, and no other client suffers.

use super::*;

const GET: u8 = 0x00;
const SET: u8 = 0x01;

/// Of a budget of 4 MiB for entries and 2 MiB for requests, a value that leaves nothing for others.
const LARGE_LEN: usize = 2_060_000;

/// Sends all of a large set but its end, and waits until the node holds it.
fn hold_memory(node: &Node, client: &mut TcpStream) {
    let missing = 100;
    let request = text_set("big", &vec![b'y'; LARGE_LEN]);
    let sent = request.len() - missing;
    let received = node.count(Counter::BytesRead) + sent as u64;
    client.write_all(&request[..sent]).unwrap();
    // The server reserves memory a step ahead of the bytes, so memory alone does not tell that they
    // came.
    until("it holds memory", || {
        node.count(Counter::BytesRead) == received && node.shared.reserved_bytes() >= sent
    });
}

/// Sends the rest.
fn end_large_set(client: &mut TcpStream) {
    let rest = [&[b'y'; 98][..], b"\r\n"].concat();
    exchange(client, &rest, b"STORED\r\n");
}

fn tuned(tuning: Tuning) -> Options {
    Options {
        tuning,
        ..Options::default()
    }
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_request_is_cut_off() {
    let node = Node::start(tuned(Tuning {
        stall_max: Duration::from_millis(50),
        ..Tuning::default()
    }));
    let mut idle = node.connect();
    let starts = [
        &b"g"[..],
        b"get k",
        b"\x80",
        b"*2\r\n",
        b"set k 0 0 100000\r\nabc",
    ];
    for (index, start) in starts.iter().enumerate() {
        let mut client = node.connect();
        client.write_all(start).unwrap();
        expect_end(&mut client);
        assert_eq!(node.count(Counter::ConnectionsStalled), index as u64 + 1);
    }
    // Waiting for a request is no stall.
    exchange(&mut idle, b"mn\r\n", b"MN\r\n");
    until("all memory is free", || node.shared.reserved_bytes() == 0);
}

#[test]
fn a_client_that_does_not_read_is_cut_off_and_what_it_held_is_free() {
    let node = Node::start(tuned(Tuning {
        // Longer than this test may be kept from sending the value.
        stall_max: Duration::from_secs(10),
        ..Tuning::default()
    }));
    exchange(
        &mut node.connect(),
        &text_set("k", &vec![b'v'; 1 << 20]),
        b"STORED\r\n",
    );
    let mut client = node.connect_with_a_small_window();
    client.write_all(&b"get k\r\n".repeat(100)).unwrap();
    until("it is cut off", || {
        node.count(Counter::ConnectionsStalled) == 1
    });
    until("it is gone", || node.shared.registry.is_empty());
    until("what it held is free", || node.shared.unsent_bytes() == 0);
}

#[test]
fn unread_replies_are_bounded_for_all_clients_together() {
    let node = Node::start(Options {
        ram_budget: 8 << 20,
        ..Options::default()
    });
    exchange(
        &mut node.connect(),
        &text_set("k", &vec![b'v'; 1 << 20]),
        b"STORED\r\n",
    );
    let most = node.shared.service.engine.inflight_max();
    let mut greedy = Vec::new();
    for served in 0..40 {
        let mut client = node.connect_with_a_small_window();
        client.write_all(&b"get k\r\n".repeat(50)).unwrap();
        greedy.push(client);
        until("it is served", || {
            node.count(Counter::Connections) > served + 1
                && node
                    .shared
                    .registry
                    .list()
                    .iter()
                    .all(|it| !it.idle || it.dialect == "unknown")
        });
        assert!(node.shared.unsent_bytes() <= most);
    }
    until("the first ones are cut off", || {
        node.count(Counter::ConnectionsStalled) > 5
    });
    assert!(node.shared.unsent_bytes() <= most);
    // The last one came when there was room again: it may still read all that it asked for.
    let mut last = greedy.pop().unwrap();
    drop(greedy);
    let value = [
        &b"VALUE k 0 1048576\r\n"[..],
        &vec![b'v'; 1 << 20],
        b"\r\nEND\r\n",
    ]
    .concat();
    for _ in 0..50 {
        expect(&mut last, &value);
    }
}

#[test]
fn a_request_that_finds_no_memory_is_refused_as_busy_and_the_connection_stays_in_step() {
    let node = Node::start(Options {
        ram_budget: 4 << 20,
        ..tuned(Tuning {
            memory_wait: Duration::from_millis(20),
            // The holder of the memory may be slow.
            contended_window: PATIENCE,
            ..Tuning::default()
        })
    });
    let mut holder = node.connect_from([127, 0, 0, 2]);
    hold_memory(&node, &mut holder);
    let value = vec![b'x'; 500_000];

    let mut text = node.connect();
    let requests = [text_set("k", &value), b"get k\r\n".to_vec()].concat();
    exchange(&mut text, &requests, b"SERVER_ERROR busy\r\nEND\r\n");

    let mut resp_client = node.connect();
    let requests = [resp(&[b"SET", b"k", &value]), resp(&[b"GET", b"k"])].concat();
    exchange(
        &mut resp_client,
        &requests,
        b"-TRYAGAIN the server is busy, try again later\r\n$-1\r\n",
    );

    let mut client = node.connect();
    client
        .write_all(&binary(SET, 9, &[0; 8], b"k", &value))
        .unwrap();
    assert_eq!(binary_reply(&mut client), (0x85, 9, Vec::new()));
    client.write_all(&binary(0x0a, 10, &[], b"", b"")).unwrap();
    assert_eq!(binary_reply(&mut client), (0, 10, Vec::new()));
    assert_eq!(node.count(Counter::Busy), 3);

    // Small requests need no reservation, and the large one goes on.
    exchange(&mut text, &text_set("k", b"v"), b"STORED\r\n");
    end_large_set(&mut holder);
    exchange(&mut text, &text_set("k", &value), b"STORED\r\n");
    until("all memory is free", || node.shared.reserved_bytes() == 0);
}

/// As sccache sends its headers: in ten writes.
#[test]
fn a_small_request_that_comes_in_pieces_waits_for_no_memory() {
    let node = Node::start(Options {
        ram_budget: 4 << 20,
        ..tuned(Tuning {
            memory_wait: PATIENCE,
            contended_window: PATIENCE,
            ..Tuning::default()
        })
    });
    let mut holder = node.connect_from([127, 0, 0, 2]);
    hold_memory(&node, &mut holder);
    let held = node.shared.reserved_bytes();
    let mut received = node.count(Counter::BytesRead);
    let mut send = |client: &mut TcpStream, bytes: &[u8]| {
        client.write_all(bytes).unwrap();
        received += bytes.len() as u64;
        // On its one reactor nothing comes between that and what the server does about it.
        until("it is received", || {
            node.count(Counter::BytesRead) == received
        });
    };
    let mut waiting = node.connect();
    send(&mut waiting, b"set next 0 0 1900000\r\nabc");

    let mut client = node.connect();
    for opaque in 1..=3 {
        for piece in binary(GET, opaque, &[], b"absent", b"").chunks(3) {
            send(&mut client, piece);
            assert_eq!(node.shared.reserved_bytes(), held);
        }
        let (status, of, _) = binary_reply(&mut client);
        assert_eq!((status, of), (1, opaque));
    }
    assert_eq!(node.count(Counter::Busy), 0);
}

#[test]
fn a_slow_sender_loses_its_memory_to_waiting_clients_and_keeps_it_otherwise() {
    let node = Node::start(Options {
        ram_budget: 4 << 20,
        ..tuned(Tuning {
            contended_window: Duration::from_millis(1),
            contended_rate_min: u64::MAX,
            memory_wait: PATIENCE,
            ..Tuning::default()
        })
    });
    let mut holder = node.connect_from([127, 0, 0, 2]);
    hold_memory(&node, &mut holder);
    std::thread::sleep(Duration::from_millis(20));
    holder.write_all(b"d").unwrap();
    assert_eq!(node.count(Counter::ConnectionsStalled), 0);
    let request = text_set("k", &vec![b'x'; 1_800_000]);
    exchange(&mut node.connect(), &request, b"STORED\r\n");
    assert_eq!(node.count(Counter::ConnectionsStalled), 1);
    assert_eq!(holder.read(&mut [0; 1]).unwrap_or(0), 0);
}

#[test]
fn two_large_sets_that_wait_for_each_other_are_both_carried_out() {
    // What is reserved for it is twice as much at most, and both fit.
    const HALF: usize = 750_000;
    let node = Node::start(Options {
        ram_budget: 4 << 20,
        ..tuned(Tuning {
            memory_wait: PATIENCE,
            contended_window: PATIENCE,
            ..Tuning::default()
        })
    });
    let request = text_set("k", &vec![b'x'; 2_000_000]);
    let mut older = node.connect();
    older.write_all(&request[..HALF]).unwrap();
    until("the older one is received", || {
        node.count(Counter::BytesRead) == HALF as u64
    });
    let mut newer = node.connect_from([127, 0, 0, 2]);
    newer.write_all(&request[..HALF]).unwrap();
    until("the newer one holds the rest of the memory", || {
        node.count(Counter::BytesRead) > HALF as u64 + 500_000
    });
    older.write_all(&request[HALF..]).unwrap();
    expect(&mut older, b"STORED\r\n");
    newer.write_all(&request[HALF..]).unwrap();
    expect(&mut newer, b"STORED\r\n");
    until("all memory is free", || node.shared.reserved_bytes() == 0);
}

#[test]
fn one_source_cannot_hold_the_memory_that_the_requests_of_another_need() {
    let node = Node::start(Options {
        ram_budget: 4 << 20,
        ..tuned(Tuning {
            memory_wait: Duration::from_millis(20),
            contended_window: PATIENCE,
            ..Tuning::default()
        })
    });
    // Half a megabyte each, of which three would fit, and no end.
    let part = [b"set k 0 0 1500000\r\n", &[b'x'; 500_000][..]].concat();
    let mut greedy: Vec<TcpStream> = (0..6).map(|_| node.connect_from([127, 0, 0, 2])).collect();
    for client in &mut greedy {
        client.write_all(&part).unwrap();
    }
    until("most of them are refused", || {
        node.count(Counter::Busy) >= 4
    });
    assert!(node.shared.reserved_bytes() <= (1 << 20) + 600_000);
    let request = text_set("mine", &vec![b'y'; 400_000]);
    exchange(&mut node.connect(), &request, b"STORED\r\n");
}

#[test]
fn replies_to_many_keys_are_sent_as_they_come_also_behind_writes() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(Options {
        disk: Some(DiskOptions {
            dir: dir.path().to_owned(),
            budget_bytes: 64 << 20,
            durability: Durability::Batched,
            fresh: fonn_disk_tier::levels::CodecChoice::none(),
            compacted: fonn_disk_tier::levels::CodecChoice::none(),
            codec_min_bytes: 256,
            value_len_max: VALUE_LEN_MAX,
            queue_bytes_max: 4 << 20,
            memory_bytes: 16 << 20,
            read_threads: 2,
            compaction_percent: 0,
            write_bytes_per_sec_max: None,
            room_wait: fonn_disk_tier::ROOM_WAIT,
        }),
        ..Options::default()
    });
    let value = vec![b'v'; 256 * 1024];
    exchange(&mut node.connect(), &text_set("k", &value), b"STORED\r\n");
    let mut client = node.connect_with_a_small_window();
    // The write is not on disk yet when the values come, half a gigabyte of them.
    let request = [
        text_set("a", b"a"),
        b"get".to_vec(),
        b" k".repeat(2000),
        b"\r\n".to_vec(),
    ]
    .concat();
    client.write_all(&request).unwrap();
    until("nothing more can be sent", || {
        node.shared.unsent_bytes() > 0
    });
    assert!(node.shared.unsent_bytes() < 1 << 20);
    expect(&mut client, b"STORED\r\n");
    let item = [&b"VALUE k 0 262144\r\n"[..], &value, b"\r\n"].concat();
    for _ in 0..2000 {
        expect(&mut client, &item);
    }
    exchange(&mut client, b"", b"END\r\n");
}

#[test]
fn a_request_of_very_many_arguments_takes_time_in_proportion() {
    let node = Node::start(Options::default());
    let mut client = node.connect();
    let mut args: Vec<&[u8]> = vec![b"MGET"];
    args.resize(200_000, b"no-such-key");
    let start = Instant::now();
    client.write_all(&resp(&args)).unwrap();
    let replies = [&b"*199999\r\n"[..], &b"$-1\r\n".repeat(199_999)].concat();
    expect(&mut client, &replies);
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

#[test]
fn serving_a_connection_takes_little_memory() {
    let len = fonn_server::task_len::<Tiers>();
    assert!(len <= 4352, "{len} bytes");
}
