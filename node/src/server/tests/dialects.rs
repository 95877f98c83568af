//! What every dialect needs of the connection: cut requests, refused values, large values.

use std::io::BufRead as _;

use super::*;

const SET: u8 = 0x01;
const GET: u8 = 0x00;

#[test]
fn requests_of_every_dialect_may_arrive_byte_by_byte() {
    let node = Node::start(Options::default());
    let text = [&b"set t 7 0 3\r\nabc\r\nget t\r\nms m 3\r\nxyz\r\nmg m v\r\nmn\r\n"[..]].concat();
    let text_reply = b"STORED\r\nVALUE t 7 3\r\nabc\r\nEND\r\nHD\r\nVA 3\r\nxyz\r\nMN\r\n";
    let resp_requests = [
        resp(&[b"SET", b"r", b"v"]),
        resp(&[b"GET", b"r"]),
        b"PING\r\n".to_vec(),
    ]
    .concat();
    for (request, reply) in [
        (&text, &text_reply[..]),
        (&resp_requests, b"+OK\r\n$1\r\nv\r\n+PONG\r\n"),
    ] {
        let mut client = node.connect();
        for byte in request {
            client.write_all(&[*byte]).unwrap();
        }
        expect(&mut client, reply);
    }
    let mut client = node.connect();
    let requests = [
        binary(SET, 1, &[0; 8], b"b", b"value"),
        binary(GET, 2, &[], b"b", b""),
    ]
    .concat();
    for byte in requests {
        client.write_all(&[byte]).unwrap();
    }
    assert_eq!(binary_reply(&mut client), (0, 1, Vec::new()));
    assert_eq!(binary_reply(&mut client), (0, 2, b"\0\0\0\0value".to_vec()));
}

#[test]
fn a_request_is_about_the_database_that_was_selected_before_it() {
    let node = Node::start(Options::default());
    let requests = [
        resp(&[b"SET", b"k", b"zero"]),
        resp(&[b"SELECT", b"1"]),
        resp(&[b"GET", b"k"]),
        resp(&[b"SET", b"k", b"one"]),
        resp(&[b"SELECT", b"0"]),
        resp(&[b"GET", b"k"]),
    ]
    .concat();
    let replies = b"+OK\r\n+OK\r\n$-1\r\n+OK\r\n+OK\r\n$4\r\nzero\r\n";
    exchange(&mut node.connect(), &requests, replies);
}

#[test]
fn a_value_over_the_limit_is_refused_in_every_dialect_and_the_connection_stays_in_step() {
    refuses_for_size(Options::default(), VALUE_LEN_MAX + 1);
}

/// To be told that the server is busy would have the client try again for ever.
#[test]
fn a_value_that_does_not_fit_the_memory_for_requests_is_too_large_and_not_refused_as_busy() {
    let options = Options {
        ram_budget: 4 << 20,
        ..Options::default()
    };
    refuses_for_size(options, 2 << 20);
}

fn refuses_for_size(options: Options, len: usize) {
    let node = Node::start(options);
    let value = vec![b'x'; len];
    exchange(&mut node.connect(), &text_set("k", b"old"), b"STORED\r\n");

    let mut client = node.connect();
    let request = [text_set("k", &value), b"get k\r\n".to_vec()].concat();
    exchange(
        &mut client,
        &request,
        b"SERVER_ERROR object too large for cache\r\nEND\r\n",
    );

    let mut client = node.connect();
    let request = [resp(&[b"SET", b"k", &value]), resp(&[b"PING"])].concat();
    client.write_all(&request).unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"+PONG\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        reply.push(byte[0]);
    }
    assert!(reply.starts_with(b"-ERR"), "{}", reply.escape_ascii());

    let mut client = node.connect();
    client
        .write_all(&binary(SET, 5, &[0; 8], b"k", &value))
        .unwrap();
    client.write_all(&binary(GET, 6, &[], b"k", b"")).unwrap();
    assert_eq!(binary_reply(&mut client), (3, 5, Vec::new()));
    assert_eq!(binary_reply(&mut client), (1, 6, b"Not found".to_vec()));
    assert_eq!(node.count(Counter::StoreTooLarge), 3);
}

#[test]
fn a_large_value_is_right_with_small_requests_in_the_same_segment() {
    let node = Node::start(Options::default());
    let value: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    let mut client = node.connect();
    let requests = [
        text_set("big", &value),
        text_set("small", b"s"),
        b"get big small\r\nget small\r\n".to_vec(),
    ]
    .concat();
    let replies = [
        &b"STORED\r\nSTORED\r\nVALUE big 0 1048576\r\n"[..],
        &value,
        b"\r\nVALUE small 0 1\r\ns\r\nEND\r\nVALUE small 0 1\r\ns\r\nEND\r\n",
    ]
    .concat();
    exchange(&mut client, &requests, &replies);
    // Cut where the body has begun, and where it has almost ended.
    for cut in [100, 20_000, 70_000, (1 << 20) + 20] {
        let mut client = node.connect();
        client.write_all(&requests[..cut]).unwrap();
        until("the first part was read", || {
            node.shared.registry.list().iter().any(|it| it.idle)
                || node.count(Counter::BytesRead) >= cut as u64
        });
        exchange(&mut client, &requests[cut..], &replies);
    }
}

#[test]
fn a_client_that_stops_sending_gets_the_replies_to_all_it_sent() {
    let node = Node::start(Options::default());
    let mut client = node.connect();
    exchange(&mut client, &text_set("k", b"v"), b"STORED\r\n");
    let mut sender = client.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        sender.write_all(&b"get k\r\n".repeat(50_000)).unwrap();
        // And a request that never gets complete.
        sender.write_all(b"get k").unwrap();
        sender.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut replies = Vec::new();
    client.read_to_end(&mut replies).unwrap();
    writer.join().unwrap();
    assert!(replies == b"VALUE k 0 1\r\nv\r\nEND\r\n".repeat(50_000));
}

#[test]
fn a_read_is_worded_alike_whether_it_takes_the_short_way_or_changes_something() {
    let node = Node::start(Options::default());
    let mut client = node.connect();
    let mut redis = node.connect();
    for len in [0, 1, 100, 1024, 1025, 4096, 4097, 20_000] {
        let value = vec![b'v'; len];
        exchange(&mut client, &text_set("key", &value), b"STORED\r\n");
        let text = [
            format!("VALUE key 0 {len}\r\n").as_bytes(),
            &value,
            b"\r\nEND\r\n",
        ]
        .concat();
        exchange(&mut client, b"get key\r\n", &text);
        exchange(&mut client, b"gat 0 key\r\n", &text);
        let meta = [format!("VA {len} t-1\r\n").as_bytes(), &value, b"\r\n"].concat();
        exchange(&mut client, b"mg key v t\r\n", &meta);
        exchange(&mut client, b"mg key v t T0\r\n", &meta);
        let bulk = [format!("${len}\r\n").as_bytes(), &value, b"\r\n"].concat();
        exchange(&mut redis, &resp(&[b"GET", b"key"]), &bulk);
        exchange(&mut redis, &resp(&[b"GETEX", b"key", b"PERSIST"]), &bulk);
    }
}

#[test]
fn every_read_of_a_batch_is_counted_before_its_statistics_are_told() {
    let node = Node::start(Options::default());
    let batch = b"set k 0 0 1\r\nv\r\nget k\r\nget k absent k\r\nget absent\r\nstats\r\n";
    let mut client = node.connect();
    client.write_all(batch).unwrap();
    let value = "VALUE k 0 1\r\nv\r\n";
    let replies = format!("STORED\r\n{value}END\r\n{value}{value}END\r\nEND\r\n");
    expect(&mut client, replies.as_bytes());
    let lines = std::io::BufReader::new(client).lines();
    let stats: Vec<String> = lines
        .map(|line| line.unwrap())
        .take_while(|line| line != "END")
        .collect();
    for expected in ["STAT cmd_get 5", "STAT get_hits 3", "STAT get_misses 2"] {
        assert!(
            stats.iter().any(|line| line == expected),
            "{expected}: {stats:?}"
        );
    }
}
