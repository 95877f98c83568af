use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::request::{Body, Reply};

fn found(dialect: Dialect) -> Detection {
    Detection::Found(dialect)
}

/// The decision, made byte by byte, after checking that it is made once and stays.
fn detect_gradually(bytes: &[u8]) -> Detection {
    let mut wanted = 1;
    let mut decided = None;
    for len in 0..=bytes.len() {
        let now = detect(&bytes[..len]);
        match (decided, now) {
            (None, Detection::Need { total }) => {
                assert!(len < total && total <= DETECT_LEN_MAX, "{len} {total}");
                assert!(len == 0 || len >= wanted, "asked for {wanted}");
                wanted = total;
            }
            (None, decision) => decided = Some(decision),
            (Some(before), now) => assert_eq!(before, now, "changed at {len} bytes"),
        }
    }
    decided.unwrap_or(Detection::Need { total: wanted })
}

#[test]
fn binary_is_known_from_its_first_byte() {
    assert_eq!(detect(&[0x80]), found(Dialect::Binary));
    assert_eq!(detect(b"\x80\x0b\0\0"), found(Dialect::Binary));
}

#[test]
fn resp_is_known_from_its_type_byte() {
    for first in b"*$+-:_#,(!=%~>|" {
        assert_eq!(
            detect(&[*first]),
            found(Dialect::Resp),
            "{}",
            char::from(*first)
        );
    }
    assert_eq!(detect(b"*1\r\n$4\r\nPING\r\n"), found(Dialect::Resp));
}

#[test]
fn every_command_of_memcached_is_text() {
    for line in [
        "get key",
        "gets key",
        "gat 0 key",
        "gats 0 key",
        "set k 0 0 1",
        "add k 0 0 1",
        "replace k 0 0 1",
        "append k 0 0 1",
        "prepend k 0 0 1",
        "cas k 0 0 1 2",
        "delete k",
        "incr k 1",
        "decr k 1",
        "touch k 0",
        "flush_all",
        "flush_all noreply",
        "verbosity 1",
        "stats",
        "stats items",
        "version",
        "quit",
        "shutdown",
        "watch fetchers",
        "mg key v",
        "ms key 1",
        "md key",
        "ma key",
        "me key",
        "mn",
        "lru tune",
        "slabs automove 1",
    ] {
        let line = format!("{line}\r\n");
        assert_eq!(
            detect_gradually(line.as_bytes()),
            found(Dialect::Text),
            "{line}"
        );
    }
}

#[test]
fn words_that_only_redis_knows_are_resp_in_any_case() {
    for word in [
        "ping",
        "echo",
        "info",
        "hello",
        "auth",
        "select",
        "command",
        "client",
        "config",
        "dbsize",
        "setex",
        "psetex",
        "setnx",
        "getset",
        "getdel",
        "getex",
        "mget",
        "mset",
        "msetnx",
        "strlen",
        "getrange",
        "setrange",
        "incrby",
        "decrby",
        "incrbyfloat",
        "del",
        "unlink",
        "exists",
        "expire",
        "pexpire",
        "expireat",
        "pexpireat",
        "expiretime",
        "pexpiretime",
        "ttl",
        "pttl",
        "persist",
        "type",
        "scan",
        "randomkey",
        "flushdb",
        "flushall",
        "reset",
        "cluster",
        "setbit",
        "getbit",
        "bitcount",
        "renamenx",
        "lcs",
        "hget",
    ] {
        for word in [
            word.to_owned(),
            word.to_uppercase(),
            format!("{}{}", &word[..1].to_uppercase(), &word[1..]),
        ] {
            for line in [
                format!("{word}\r\n"),
                format!("{word} 1\r\n"),
                format!("{word}\n"),
            ] {
                assert_eq!(
                    detect_gradually(line.as_bytes()),
                    found(Dialect::Resp),
                    "{line}"
                );
            }
        }
    }
}

#[test]
fn what_both_know_is_memcached_in_lower_case_and_resp_in_upper_case() {
    for word in [
        "get", "set", "append", "incr", "decr", "touch", "quit", "shutdown",
    ] {
        let line = format!("{word} key\r\n");
        assert_eq!(
            detect_gradually(line.as_bytes()),
            found(Dialect::Text),
            "{line}"
        );
        let line = line.to_uppercase();
        assert_eq!(
            detect_gradually(line.as_bytes()),
            found(Dialect::Resp),
            "{line}"
        );
    }
    assert_eq!(detect(b"Get key\r\n"), found(Dialect::Resp));
    // A key that starts with a slash is HTTP only in upper case.
    assert_eq!(detect(b"get /index.html\r\n"), found(Dialect::Text));
}

#[test]
fn http_is_refused() {
    for request in [
        "GET / HTTP/1.1\r\n",
        "GET /path HTTP/1.1\r\n",
        "POST / HTTP/1.1\r\n",
        "POST /x HTTP/1.0\r\n",
        "HEAD / HTTP/1.1\r\n",
        "PUT /x HTTP/1.1\r\n",
        "DELETE /x HTTP/1.1\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "PATCH /x HTTP/1.1\r\n",
        "CONNECT host:80 HTTP/1.1\r\n",
        "TRACE / HTTP/1.1\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "Host: example.org\r\n",
        "host: example.org\r\n",
        "Host:example.org\r\n",
    ] {
        assert_eq!(
            detect_gradually(request.as_bytes()),
            Detection::Refused,
            "{request}"
        );
    }
}

#[test]
fn an_upper_case_get_waits_for_the_byte_that_tells_http_from_redis() {
    assert_eq!(detect(b"GET"), Detection::Need { total: 4 });
    assert_eq!(detect(b"GET "), Detection::Need { total: 5 });
    assert_eq!(detect(b"GET k"), found(Dialect::Resp));
    assert_eq!(detect(b"GET /"), Detection::Refused);
    assert_eq!(detect(b"GET\r"), found(Dialect::Resp));
}

#[test]
fn tls_and_other_bytes_are_refused() {
    assert_eq!(detect(b"\x16\x03\x01"), Detection::Refused);
    for first in [0x01, 0x7f, 0x81, 0xc3, 0xff] {
        assert_eq!(detect(&[first]), Detection::Refused, "{first:#04x}");
    }
}

#[test]
fn blank_and_unknown_beginnings_are_text() {
    for line in [
        "\r\nget k\r\n",
        "\nnonsense\n",
        "\r\n\r\n set k 0 0 1\r\n",
        "set k 0 0 1",
        "set k -1 0 1",
        "set k\r\nx",
        "set \"\"\"k\"\"\" 0 0 1",
        " get k\r\n",
        "\tx",
        "nonsense\r\n",
        "{\"json\": 1}\r\n",
        "1\n",
    ] {
        assert_eq!(
            detect_gradually(line.as_bytes()),
            found(Dialect::Text),
            "{line:?}"
        );
    }
}

#[test]
fn a_client_of_redis_that_is_out_of_step_is_one_of_redis() {
    for bytes in [
        // An empty query, which Redis does not answer.
        &b"\r\n*1\r\n$4\r\nPING\r\n"[..],
        b"\n\r\n\nPING\r\n",
        b"\r\nset k v\r\n",
        b"\0",
        // No flags of memcached.
        b"set k v\r\n",
        b"set \"\"\"test-key\"\"\" test-value\r\n",
    ] {
        assert_eq!(
            detect_gradually(bytes),
            found(Dialect::Resp),
            "{}",
            bytes.escape_ascii()
        );
    }
    // Empty lines alone decide nothing, but not for ever.
    assert_eq!(detect(b"\r\n"), Detection::Need { total: 3 });
    assert_eq!(detect(&[b'\n'; DETECT_LEN_MAX]), found(Dialect::Text));
    for refused in [&b"\r\nPOST / HTTP/1.1\r\n"[..], b"\r\n\x16\x03\x01"] {
        assert_eq!(detect_gradually(refused), Detection::Refused);
    }
}

/// What an unauthenticated client is told, and how many bytes the parser asked to hold for it.
fn told(dialect: Dialect, bytes: &[u8]) -> (String, usize) {
    let limits = Limits {
        value_len_max: 256 << 20,
    };
    let mut session = Session::new(dialect, limits, 1);
    session.set_authenticated(false);
    let (mut start, mut held) = (0, 0);
    let mut out = crate::Out::new();
    while start < bytes.len() {
        match session.parse(&bytes[start..]) {
            Step::Need { total } => {
                held = total;
                break;
            }
            Step::Skip { len } => start = start.saturating_add(len as usize),
            Step::Request { mut request, len } => {
                start = start.saturating_add(len);
                request.reply.finish(&mut out);
                if matches!(request.body, Body::Broken) {
                    out.put(b"<closed>");
                    break;
                }
            }
        }
    }
    (String::from_utf8_lossy(&out.to_vec()).into_owned(), held)
}

#[test]
fn a_client_that_has_not_logged_in_has_small_requests_held_and_no_others() {
    use crate::request::{UNAUTHENTICATED_ARGUMENT_COUNT_MAX, UNAUTHENTICATED_LEN_MAX};
    let packet = |opcode: u8, key_len: u8, extras: u8, body_len: u32| {
        let mut bytes = vec![0x80, opcode, 0, key_len, extras, 0, 0, 0];
        bytes.extend(body_len.to_be_bytes());
        bytes.extend([0; 12]);
        bytes
    };
    let unauthenticated = "-ERR Protocol error: unauthenticated";
    let many = "PING ".repeat(UNAUTHENTICATED_ARGUMENT_COUNT_MAX + 1);
    for (dialect, bytes, told_first) in [
        (
            Dialect::Text,
            b"set k 0 0 178956400\r\n".to_vec(),
            "CLIENT_ERROR unauthenticated",
        ),
        (
            Dialect::Text,
            b"set k 0 0 2049\r\n".to_vec(),
            "CLIENT_ERROR unauthenticated",
        ),
        (
            Dialect::Text,
            b"ms k 2049\r\n".to_vec(),
            "CLIENT_ERROR unauthenticated",
        ),
        (
            Dialect::Text,
            b"set k x 0 2049\r\n".to_vec(),
            "CLIENT_ERROR unauthenticated",
        ),
        (
            Dialect::Text,
            format!("get {}", "k ".repeat(1100)).into_bytes(),
            "CLIENT_ERROR line too long",
        ),
        (Dialect::Binary, packet(0x01, 1, 8, 200 << 20), "\u{fffd}"),
        (Dialect::Binary, packet(0x01, 1, 8, 16 << 10), "\u{fffd}"),
        (Dialect::Resp, b"*11\r\n".to_vec(), unauthenticated),
        (
            Dialect::Resp,
            b"*1048576\r\n$3\r\nDEL\r\n".to_vec(),
            unauthenticated,
        ),
        (
            Dialect::Resp,
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16384\r\n".to_vec(),
            unauthenticated,
        ),
        (
            Dialect::Resp,
            format!("*2\r\n$9000\r\n{}\r\n$9000\r\n", "x".repeat(9000)).into_bytes(),
            unauthenticated,
        ),
        (
            Dialect::Resp,
            format!("{many}\r\n").into_bytes(),
            unauthenticated,
        ),
        (
            Dialect::Resp,
            vec![b'x'; UNAUTHENTICATED_LEN_MAX],
            "-ERR Protocol error: too big inline",
        ),
    ] {
        let (told, held) = told(dialect, &bytes);
        let bytes = bytes[..bytes.len().min(60)].escape_ascii();
        assert!(told.ends_with("<closed>"), "{bytes}: {told}");
        assert!(told.starts_with(told_first), "{bytes}: {told}");
        assert_eq!(held, 0, "{bytes}");
    }
    // What a login takes, as long as it may be.
    for (dialect, bytes) in [
        (Dialect::Text, b"set k 0 0 2048\r\n".to_vec()),
        (Dialect::Binary, packet(0x21, 5, 0, 4096)),
        (
            Dialect::Resp,
            b"*7\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$64\r\n".to_vec(),
        ),
        (Dialect::Resp, b"*2\r\n$4\r\nAUTH\r\n$1024\r\n".to_vec()),
    ] {
        let (told, held) = told(dialect, &bytes);
        assert_eq!(told, "", "{}", bytes.escape_ascii());
        assert!((1..=UNAUTHENTICATED_LEN_MAX).contains(&held), "{held}");
    }
    // No command is made for each key.
    let mut session = Session::new(
        Dialect::Text,
        Limits {
            value_len_max: 1000,
        },
        1,
    );
    session.set_authenticated(false);
    let Step::Request { request, .. } = session.parse(b"get a b c d\r\n") else {
        panic!("complete");
    };
    assert!(matches!(request.body, Body::Data(commands) if commands.is_empty()));
}

#[test]
fn a_word_without_end_is_decided_at_the_limit() {
    let lower = [b'x'; 40];
    assert_eq!(detect(&lower[..31]), Detection::Need { total: 32 });
    assert_eq!(detect_gradually(&lower), found(Dialect::Text));
    assert_eq!(detect_gradually(&[b'X'; 40]), found(Dialect::Resp));
}

#[test]
fn a_session_parses_in_the_dialect_that_was_found() {
    let limits = Limits {
        value_len_max: 1000,
    };
    let noop = [&[0x80, 0x0a], &[0; 22][..]].concat();
    for (dialect, bytes) in [
        (Dialect::Text, &b"version\r\n"[..]),
        (Dialect::Binary, &noop),
        (Dialect::Resp, b"*1\r\n$4\r\nPING\r\n"),
    ] {
        assert_eq!(detect(bytes), found(dialect));
        let mut session = Session::new(dialect, limits, 1);
        assert_eq!(session.dialect(), dialect);
        let Step::Request { request, len } = session.parse(bytes) else {
            panic!("no request in {dialect:?}")
        };
        assert_eq!(len, bytes.len());
        assert!(matches!(request.body, Body::Answer));
        let worded_by = match request.reply {
            Reply::Text(_) | Reply::Meta(_) => Dialect::Text,
            Reply::Binary(_) => Dialect::Binary,
            Reply::Resp(_) => Dialect::Resp,
        };
        assert_eq!(worded_by, dialect);
    }
}

#[test]
fn dialects_have_different_names() {
    let names: std::collections::HashSet<_> = Dialect::ALL.map(Dialect::name).into();
    assert_eq!(names.len(), Dialect::ALL.len());
}

proptest! {
    #[test]
    fn the_decision_depends_on_the_bytes_alone(
        bytes in prop_oneof![
            vec(any::<u8>(), 0..50),
            vec(0x20_u8..0x7f, 0..50),
            vec(prop_oneof![Just(b'G'), Just(b'E'), Just(b'T'), Just(b' '), Just(b'/')], 0..8),
        ]
    ) {
        let decision = detect_gradually(&bytes);
        if bytes.len() >= DETECT_LEN_MAX {
            let is_open = matches!(decision, Detection::Need { .. });
            prop_assert!(!is_open);
        }
    }
}

#[test]
fn a_request_that_is_refused_while_it_arrives_is_skipped_and_answered_so() {
    let limits = Limits {
        value_len_max: 1000,
    };
    let binary_set = [
        &[0x80, 1, 0, 1, 8, 0, 0, 0, 0, 0, 0, 209, 0, 0, 0, 7][..],
        &[0; 16],
        b"k",
        &[b'v'; 200],
    ]
    .concat();
    let value = "v".repeat(200);
    let text_set = format!("set k 0 0 200\r\n{value}\r\n").into_bytes();
    let resp_set = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$200\r\n{value}\r\n").into_bytes();
    for (dialect, request) in [
        (Dialect::Text, &text_set),
        (Dialect::Binary, &binary_set),
        (Dialect::Resp, &resp_set),
    ] {
        // Where its value begins, in the middle of it, and in front of its last byte.
        for cut in [request.len() - 202, request.len() - 100, request.len() - 1] {
            let mut session = Session::new(dialect, limits, 1);
            let stream = [request.as_slice(), request.as_slice()].concat();
            assert!(matches!(session.parse(&stream[..cut]), Step::Need { .. }));
            session.refuse(Failure::Busy);
            let Step::Skip { len } = session.parse(&stream[..cut]) else {
                panic!("{dialect:?} cut at {cut}: not skipped");
            };
            let mut at = len as usize;
            assert!(at <= request.len());
            let mut answers = Vec::new();
            while at < stream.len() {
                match session.parse(&stream[at..]) {
                    Step::Skip { len } => at += len as usize,
                    Step::Request { request, len } => {
                        at += len;
                        answers.push(matches!(request.body, Body::Answer));
                    }
                    Step::Need { total } => panic!("{dialect:?} cut at {cut}: needs {total}"),
                }
            }
            assert_eq!(answers, [true, false], "{dialect:?} cut at {cut}");
        }
    }
}
