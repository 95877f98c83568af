//! The bytes on the wire: pipelines, quiet requests, odd splits, broken requests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use fonn_tests::client::{
    BinaryClient, Dialect, RespClient, RespReply, TextClient, binary_request, opcode, resp_request,
    status,
};
use fonn_tests::node::FonnNode;
use fonn_tests::rng::Rng;

/// A set and a get of `key` as one dialect writes them, and what must come back.
fn exchange(dialect: Dialect, key: &str) -> (Vec<u8>, Vec<u8>) {
    let (set, get, reply) = match dialect {
        Dialect::Text => (
            format!("set {key} 5 0 3\r\nabc\r\n"),
            format!("get {key}\r\n"),
            format!("STORED\r\nVALUE {key} 5 3\r\nabc\r\nEND\r\n"),
        ),
        Dialect::Meta => (
            format!("ms {key} 3\r\nabc\r\n"),
            format!("mg {key} v\r\n"),
            "HD\r\nVA 3\r\nabc\r\n".to_owned(),
        ),
        Dialect::Resp => (
            format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$3\r\nabc\r\n",
                key.len()
            ),
            format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()),
            "+OK\r\n$3\r\nabc\r\n".to_owned(),
        ),
        Dialect::Binary => {
            let set = binary_request(opcode::SET, key.as_bytes(), &[0; 8], b"abc", 0, 1);
            let get = binary_request(opcode::GETQ, key.as_bytes(), &[], &[], 0, 2);
            return ([set, get].concat(), Vec::new());
        }
    };
    ([set, get].concat().into_bytes(), reply.into_bytes())
}

/// Checks the answer to [`exchange`].
fn expect_answer(dialect: Dialect, stream: &TcpStream, expected: &[u8]) -> Result<()> {
    let mut stream = stream;
    if dialect != Dialect::Binary {
        let mut reply = vec![0; expected.len()];
        stream.read_exact(&mut reply)?;
        assert_eq!(
            String::from_utf8_lossy(&reply),
            String::from_utf8_lossy(expected)
        );
        return Ok(());
    }
    let mut replies = vec![0; 24 + 24 + 4 + 3];
    stream.read_exact(&mut replies)?;
    let (set, get) = replies.split_at(24);
    assert_eq!((set[1], &set[6..8], set[15]), (opcode::SET, &[0, 0][..], 1));
    assert_eq!(
        (get[1], &get[6..8], get[15]),
        (opcode::GETQ, &[0, 0][..], 2)
    );
    assert_eq!(&get[28..], b"abc");
    Ok(())
}

fn connect(node: &FonnNode) -> Result<TcpStream> {
    let stream = TcpStream::connect(node.addr())?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[test]
fn requests_may_arrive_a_byte_at_a_time() -> Result<()> {
    let node = FonnNode::start()?;
    for dialect in Dialect::ALL {
        let mut stream = connect(&node)?;
        let (request, reply) = exchange(dialect, "slow");
        for byte in request {
            stream.write_all(&[byte])?;
            thread::yield_now();
        }
        expect_answer(dialect, &stream, &reply).with_context(|| format!("{dialect:?}"))?;
    }
    Ok(())
}

#[test]
fn requests_may_be_split_anywhere() -> Result<()> {
    let node = FonnNode::start()?;
    for dialect in Dialect::ALL {
        let mut stream = connect(&node)?;
        let (request, reply) = exchange(dialect, "split");
        for at in 1..request.len() {
            let (head, tail) = request.split_at(at);
            stream.write_all(head)?;
            // Lets the head arrive alone most of the time; the result may not depend on it.
            thread::sleep(Duration::from_micros(300));
            stream.write_all(tail)?;
            expect_answer(dialect, &stream, &reply)
                .with_context(|| format!("{dialect:?} split at {at}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_truncated_request_leaves_nothing_behind() -> Result<()> {
    let node = FonnNode::start()?;
    for dialect in Dialect::ALL {
        let key = format!("cut-{dialect:?}");
        let request = match dialect {
            Dialect::Text => format!("set {key} 0 0 10\r\n0123456789\r\n").into_bytes(),
            Dialect::Meta => format!("ms {key} 10\r\n0123456789\r\n").into_bytes(),
            Dialect::Resp => resp_request(&[b"SET", key.as_bytes(), b"0123456789"]),
            Dialect::Binary => {
                binary_request(opcode::SET, key.as_bytes(), &[0; 8], b"0123456789", 0, 0)
            }
        };
        for len in 0..request.len() {
            let mut stream = connect(&node)?;
            stream.write_all(&request[..len])?;
            stream.shutdown(Shutdown::Write)?;
            let mut reply = Vec::new();
            stream.read_to_end(&mut reply)?;
        }
        let got = dialect.connect(node.addr())?.get(&key)?;
        assert_eq!(got, None, "{dialect:?}: part of a request was executed");
    }
    Ok(())
}

#[test]
fn long_pipelines_are_answered_in_order() -> Result<()> {
    const COUNT: usize = 5000;
    let node = FonnNode::start()?;
    let mut text = node.text()?;
    let sets: String = (0..COUNT)
        .map(|n| format!("set k{n} 0 0 {}\r\n{n}\r\n", n.to_string().len()))
        .collect();
    let gets: String = (0..COUNT).map(|n| format!("get k{n}\r\n")).collect();
    let writer = text.socket().try_clone()?;
    thread::scope(|scope| -> Result<()> {
        let sender = scope.spawn(move || (&writer).write_all([sets, gets].concat().as_bytes()));
        for n in 0..COUNT {
            assert_eq!(text.line()?, "STORED", "set {n}");
        }
        for n in 0..COUNT {
            let items = text.read_items()?;
            assert_eq!(items[0].value, n.to_string().into_bytes(), "get {n}");
        }
        sender.join().expect("the sender does not panic")?;
        Ok(())
    })?;

    let mut binary = node.binary()?;
    let requests: Vec<u8> = (0..COUNT)
        .flat_map(|n| {
            binary_request(
                opcode::GETK,
                format!("k{n}").as_bytes(),
                &[],
                &[],
                0,
                n as u32,
            )
        })
        .collect();
    let writer = binary.socket().try_clone()?;
    thread::scope(|scope| -> Result<()> {
        let sender = scope.spawn(move || (&writer).write_all(&requests));
        for n in 0..COUNT {
            let reply = binary.reply()?;
            assert_eq!((reply.opaque, reply.status), (n as u32, status::OK));
            assert_eq!(
                (reply.key, reply.value),
                (format!("k{n}").into_bytes(), n.to_string().into_bytes())
            );
        }
        sender.join().expect("the sender does not panic")?;
        Ok(())
    })?;

    let mut resp = node.resp()?;
    let requests: Vec<u8> = (0..COUNT)
        .flat_map(|n| resp_request(&[b"GET", format!("k{n}").as_bytes()]))
        .collect();
    let writer = resp.socket().try_clone()?;
    thread::scope(|scope| -> Result<()> {
        let sender = scope.spawn(move || (&writer).write_all(&requests));
        for n in 0..COUNT {
            assert_eq!(resp.reply()?, RespReply::Bulk(n.to_string().into_bytes()));
        }
        sender.join().expect("the sender does not panic")?;
        Ok(())
    })
}

#[test]
fn many_keys_in_one_get_come_back_in_order() -> Result<()> {
    let node = FonnNode::start()?;
    let (mut text, mut resp) = (node.text()?, node.resp()?);
    let keys: Vec<String> = (0..500).map(|n| format!("key-{n}")).collect();
    for key in keys.iter().step_by(2) {
        text.store(&format!("set {key} 0 0 {}", key.len()), key.as_bytes())?;
    }
    let items = text.items(&format!("get {}", keys.join(" ")))?;
    let got: Vec<&str> = items.iter().map(|item| item.key.as_str()).collect();
    assert_eq!(
        got,
        keys.iter()
            .step_by(2)
            .map(String::as_str)
            .collect::<Vec<_>>()
    );
    let values = resp.command(&format!("MGET {}", keys.join(" ")))?.array()?;
    for (index, (key, value)) in keys.iter().zip(values).enumerate() {
        let expected = (index % 2 == 0).then(|| key.clone().into_bytes());
        assert_eq!(value.bulk()?, expected);
    }
    Ok(())
}

#[test]
fn quiet_requests_say_nothing_and_are_done() -> Result<()> {
    let node = FonnNode::start()?;
    let mut text = node.text()?;
    text.send(b"set a 0 0 1 noreply\r\n1\r\nincr a 4 noreply\r\nget a\r\n")?;
    assert_eq!(text.read_items()?[0].value, b"5");
    text.send(b"delete a noreply\r\nadd a 0 0 1 noreply\r\n7\r\ntouch a 100 noreply\r\nget a\r\n")?;
    assert_eq!(text.read_items()?[0].value, b"7");
    text.send(b"flush_all noreply\r\nget a\r\n")?;
    assert_eq!(text.read_items()?, vec![]);
    text.send(b"ms m 1 q\r\nx\r\nmg absent v q\r\nmg m v q\r\nmn\r\n")?;
    assert_eq!(
        (text.line()?, text.line()?, text.line()?),
        ("VA 1".into(), "x".into(), "MN".into())
    );

    let mut binary = node.binary()?;
    let request = [
        binary_request(opcode::SETQ, b"b", &[0; 8], b"v", 0, 1),
        binary_request(opcode::GETKQ, b"absent", &[], &[], 0, 2),
        binary_request(opcode::GETKQ, b"b", &[], &[], 0, 3),
        binary_request(opcode::NOOP, b"", &[], &[], 0, 4),
    ];
    binary.send(&request.concat())?;
    let reply = binary.reply()?;
    assert_eq!(
        (reply.opaque, reply.key.as_slice(), reply.value.as_slice()),
        (3, &b"b"[..], &b"v"[..])
    );
    assert_eq!(binary.reply()?.opaque, 4);
    Ok(())
}

#[test]
fn errors_keep_the_connection_in_step() -> Result<()> {
    let node = FonnNode::start()?;
    let mut text = node.text()?;
    assert_eq!(text.command("nonsense")?, "ERROR");
    assert!(
        text.command(&format!("get {}", "k".repeat(251)))?
            .starts_with("CLIENT_ERROR")
    );
    assert!(
        text.store("set k 0 0 2", b"abcdef")?
            .starts_with("CLIENT_ERROR")
    );
    // What follows a bad data block is not defined further than that the stream recovers.
    text.send(b"\r\nget k\r\n")?;
    while text.line()? != "END" {}
    assert_eq!(
        text.command("incr k notanumber")?,
        "CLIENT_ERROR invalid numeric delta argument"
    );
    assert_eq!(
        text.store(&format!("set {} 0 0 1", "k".repeat(250)), b"v")?,
        "STORED"
    );

    let mut resp = node.resp()?;
    for bad in [
        "GET",
        "SET k",
        "SET k v NX XX",
        "EXPIRE k many",
        "INCRBY k x",
        "FLY k",
    ] {
        assert!(matches!(resp.command(bad)?, RespReply::Error(_)), "{bad}");
        assert_eq!(
            resp.command("PING")?,
            RespReply::Simple("PONG".into()),
            "after {bad}"
        );
    }

    let mut binary = node.binary()?;
    // A set without extras, a get with a value, a key where none belongs.
    for (operation, key, extras, value) in [
        (opcode::SET, "k", &b""[..], &b"v"[..]),
        (opcode::GET, "k", b"", b"value"),
        (opcode::NOOP, "k", b"", b""),
        (opcode::GET, "", b"", b""),
    ] {
        let reply = binary.call(operation, key, extras, value, 0)?;
        assert_eq!(reply.status, status::INVALID, "{operation:#x}");
        assert_eq!(
            binary.call(opcode::NOOP, "", &[], &[], 0)?.status,
            status::OK
        );
    }
    Ok(())
}

#[test]
fn random_bytes_harm_no_client() -> Result<()> {
    let seed = 0x0066_6f6e_6e00;
    let node = FonnNode::start()?;
    node.text()?.store("set witness 0 0 4", b"here")?;
    let mut rng = Rng::new(seed);
    for _ in 0..300 {
        let mut bytes: Vec<u8> = (0..rng.below(400)).map(|_| rng.next_u64() as u8).collect();
        // Half of them start like a protocol.
        let starts: [&[u8]; 6] = [
            b"\x80\x01",
            b"*3\r\n$",
            b"set k 0 0 ",
            b"mg ",
            b"get ",
            b"\x80\x00\x00\xff",
        ];
        if let Some(start) = starts.get(rng.below(12) as usize) {
            bytes.splice(0..0, start.iter().copied());
        }
        let mut stream = connect(&node)?;
        // The server may close before all is written.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
    }
    assert_eq!(
        node.text()?.items("get witness")?[0].value,
        b"here",
        "seed {seed:#x}"
    );
    Ok(())
}

/// The write pattern of sccache's memcached client: a header in ten small writes with Nagle's
/// algorithm on. A server that does not acknowledge the first byte at once makes each request
/// wait for its own delayed acknowledgement, 40 ms or more.
#[test]
fn a_header_in_ten_small_writes_costs_no_delayed_acknowledgement() -> Result<()> {
    let node = FonnNode::start()?;
    node.binary()?
        .store(opcode::SET, "k", &[7; 1000], 0, 0, 0)?;
    let client = BinaryClient::connect(node.addr())?;
    client.socket().set_nodelay(false)?;
    let mut client = client;
    let mut took = Vec::new();
    for _ in 0..60 {
        let started = Instant::now();
        for (operation, key) in [(opcode::VERSION, ""), (opcode::GET, "k")] {
            let request = binary_request(operation, key.as_bytes(), &[], &[], 0, 0);
            let mut at = 0;
            for len in [1, 1, 2, 1, 1, 2, 4, 4, 8, key.len()] {
                client.send(&request[at..at + len])?;
                at += len;
            }
            assert_eq!(client.reply()?.status, status::OK);
        }
        took.push(started.elapsed());
    }
    // The kernel acknowledges the first segments of a connection at once by itself.
    let mut took = took.split_off(20);
    took.sort();
    // A delayed acknowledgement takes 40 ms, whatever the machine does. On a busy machine most
    // lookups may take that long for want of a processor, so the fast ones are what tells.
    let fast = took[took.len() / 10];
    assert!(fast < Duration::from_millis(35), "a lookup takes {fast:?}");
    Ok(())
}

#[test]
fn the_clients_of_the_field_get_the_answers_they_wait_for() -> Result<()> {
    let node = FonnNode::start()?;
    // Redis clients introduce themselves; PING must be PONG before every reuse.
    let mut resp: RespClient = node.resp()?;
    resp.command("CLIENT SETINFO LIB-NAME redis-rs")?.ok()?;
    resp.command("CLIENT SETINFO LIB-VER 1.2")?.ok()?;
    assert_eq!(resp.command("PING")?, RespReply::Simple("PONG".into()));
    resp.command("SETEX k 100 v")?.ok()?;
    assert_eq!(resp.command("EXISTS k")?.integer()?, 1);
    assert!(
        matches!(resp.command("LPUSH list a")?, RespReply::Error(text) if text.starts_with("ERR unknown command"))
    );
    let hello = resp.command("HELLO 3")?;
    assert!(
        matches!(&hello, RespReply::Map(pairs) if !pairs.is_empty()),
        "{hello:?}"
    );
    assert_eq!(resp.command("GET absent")?, RespReply::Null);
    // An inline command, as typed into a terminal.
    resp.send(b"GET k\r\n")?;
    assert_eq!(resp.reply()?, RespReply::Bulk(b"v".to_vec()));

    // memcached binary: VERSION before each request; a version is what clients parse.
    let version = node.binary()?.call(opcode::VERSION, "", &[], &[], 0)?;
    assert_eq!(version.status, status::OK);
    assert!(!version.value.is_empty() && version.extras.is_empty());
    // A miss says so, as memcached's does. Other errors have no body: some clients do not read one.
    let mut binary = node.binary()?;
    let missing = binary.call(opcode::GET, "absent", &[], &[], 0)?;
    assert_eq!(
        (missing.status, missing.value.as_slice()),
        (status::NOT_FOUND, &b"Not found"[..])
    );
    let unknown = binary.call(0x7f, "", &[], &[], 0)?;
    assert_eq!(unknown.status, status::UNKNOWN_COMMAND);
    assert_eq!(
        binary.call(opcode::NOOP, "", &[], &[], 0)?.status,
        status::OK
    );

    let mut text: TextClient = node.text()?;
    assert!(text.command("version")?.starts_with("VERSION "));
    assert_eq!(text.command("verbosity 1")?, "OK");
    let stats = text.stats("stats")?;
    for name in [
        "pid",
        "uptime",
        "version",
        "curr_connections",
        "get_hits",
        "get_misses",
        "bytes",
    ] {
        assert!(
            stats.iter().any(|(known, _)| known == name),
            "stats has no {name}"
        );
    }
    text.send(b"quit\r\n")?;
    assert!(text.at_end()?);
    Ok(())
}

#[test]
fn stats_of_each_kind_are_told_in_text_and_in_binary() -> Result<()> {
    let node = FonnNode::start()?;
    let mut text = node.text()?;
    let mut binary = node.binary()?;
    for number in 0..7 {
        assert_eq!(text.store(&format!("set k{number} 0 0 1"), b"v")?, "STORED");
        text.items(&format!("get k{number}"))?;
    }
    // A binary client gets a packet a row, and one without a name at the end.
    let mut rows = |kind: &str| -> Result<Vec<(String, String)>> {
        binary.send(&binary_request(
            opcode::STAT,
            kind.as_bytes(),
            &[],
            &[],
            0,
            7,
        ))?;
        let mut rows = Vec::new();
        loop {
            let reply = binary.reply()?;
            assert_eq!((reply.status, reply.opaque), (status::OK, 7), "{kind}");
            if reply.key.is_empty() {
                return Ok(rows);
            }
            rows.push((
                String::from_utf8(reply.key)?,
                String::from_utf8(reply.value)?,
            ));
        }
    };
    let found = |rows: &[(String, String)], name: &str| {
        let row = rows.iter().find(|(known, _)| known == name);
        row.map(|(_, value)| value.clone())
    };
    for rows in [text.stats("stats items")?, rows("items")?] {
        assert_eq!(found(&rows, "items:1:number").as_deref(), Some("7"));
        assert!(found(&rows, "items:1:mem_requested").is_some(), "{rows:?}");
    }
    for rows in [text.stats("stats settings")?, rows("settings")?] {
        let threads = found(&rows, "threads");
        assert_eq!(threads.as_deref(), Some("2"), "{rows:?}");
    }
    for rows in [text.stats("stats conns")?, rows("conns")?] {
        let protocols = rows.iter().filter(|(name, _)| name.ends_with(":protocol"));
        let protocols: Vec<_> = protocols.map(|(_, protocol)| protocol.as_str()).collect();
        assert_eq!(protocols.len(), 2, "{rows:?}");
        for protocol in ["text", "binary"] {
            assert!(protocols.contains(&protocol), "{rows:?}");
        }
    }
    for kind in ["sizes", "slabs"] {
        assert_eq!(text.stats(&format!("stats {kind}"))?, []);
    }
    // Counters begin again; what there is stays.
    for is_text in [true, false] {
        text.items("get k0")?;
        assert_ne!(
            found(&text.stats("stats")?, "get_hits").as_deref(),
            Some("0")
        );
        match is_text {
            true => assert_eq!(text.command("stats reset")?, "RESET"),
            false => assert_eq!(rows("reset")?, []),
        }
        let rows = text.stats("stats")?;
        for (name, value) in [("get_hits", "0"), ("cmd_set", "0"), ("curr_items", "7")] {
            assert_eq!(found(&rows, name).as_deref(), Some(value), "{name}");
        }
    }
    Ok(())
}
