//! Arrays, inline commands, limits and broken streams, however the bytes are cut.

use proptest::prelude::*;

use super::{Client, LIMITS, Parser, array};
use crate::drive::drive;
use crate::request::{Limits, Step};
use crate::resp::frame::{ARGUMENT_COUNT_MAX, ARGUMENT_LEN_MAX, REQUEST_LEN_ABOVE_VALUE_MAX};

const SMALL: Limits = Limits { value_len_max: 100 };

fn driven(limits: Limits, bytes: &[u8], reads: &[usize]) -> Vec<String> {
    drive(&mut Parser::new(limits, 7), Parser::parse, bytes, reads)
}

#[test]
fn empty_requests_are_skipped() {
    for bytes in ["*0\r\n", "*-1\r\n", "*-5\r\n", "\r\n", "\n", "  \t\r\n"] {
        let bytes = [bytes.as_bytes(), b"PING\r\n"].concat();
        assert_eq!(
            Client::new().send(&bytes),
            "+PONG\\r\\n",
            "{}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn broken_framing_is_answered_once_and_closes() {
    for (bytes, reason) in [
        ("*01\r\n", "invalid multibulk length"),
        ("*+1\r\n", "invalid multibulk length"),
        ("*x\r\n", "invalid multibulk length"),
        ("*\r\n", "invalid multibulk length"),
        ("*-0\r\n", "invalid multibulk length"),
        ("*1\rx", "invalid multibulk length"),
        ("*1048577\r\n", "invalid multibulk length"),
        ("*9999999999999999999", "invalid multibulk length"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$04\r\n", "invalid bulk length"),
        ("*1\r\n$x\r\n", "invalid bulk length"),
        ("*1\r\n$\r\n", "invalid bulk length"),
        ("*1\r\n$536870913\r\n", "invalid bulk length"),
        (
            "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000000000\r\n",
            "invalid bulk length",
        ),
        ("*3000000000\r\n", "invalid multibulk length"),
        ("*\0payload", "invalid multibulk length"),
        ("*1\r\nPING\r\n", "expected \\'$\\', got \\'P\\'"),
        ("*1\r\n\r\n", "expected \\'$\\', got \\' \\'"),
        ("*1\r\n:4\r\n", "expected \\'$\\', got \\':\\'"),
        ("*1\r\n$4\r\nPINGxx", "expected CRLF behind the bulk string"),
        ("*2\r\n$4\r\nPING\r\n*1", "expected \\'$\\', got \\'*\\'"),
        ("PING \"a\"b\r\n", "unbalanced quotes in request"),
        ("PING 'a\r\n", "unbalanced quotes in request"),
    ] {
        let bytes = [b"PING\r\n", bytes.as_bytes(), b"PING\r\n"].concat();
        let expected = format!("+PONG\\r\\n-ERR Protocol error: {reason}\\r\\n<closed>");
        assert_eq!(
            Client::new().send(&bytes),
            expected,
            "{}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn an_inline_command_without_end_is_too_big_at_64_kib() {
    let mut line = vec![b'x'; ARGUMENT_LEN_MAX - 1];
    assert_eq!(Client::new().send(&line), "");
    line.push(b'x');
    let expected = "-ERR Protocol error: too big inline request\\r\\n<closed>";
    assert_eq!(Client::new().send(&line), expected);
    line[ARGUMENT_LEN_MAX - 1] = b'\n';
    assert!(
        Client::new()
            .send(&line)
            .starts_with("-ERR unknown command \\'xxx")
    );
}

#[test]
fn web_requests_are_cut_off_without_an_answer() {
    let client = || Client::new();
    assert_eq!(
        client().send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\nSET k v\r\n"),
        "<closed>"
    );
    assert_eq!(client().send(b"host: x\r\nSET k v\r\n"), "<closed>");
    assert!(
        client()
            .send(b"GET / HTTP/1.1\r\nHost: x\r\n")
            .ends_with("command\\r\\n<closed>")
    );
}

#[test]
fn a_value_over_the_limit_is_swallowed_and_the_stream_stays_in_step() {
    let mut client = Client::with_limits(SMALL);
    let big = vec![b'$'; 101];
    let error = "-ERR value is too large (max 100 bytes)\\r\\n";
    let refused: [&[&[u8]]; 8] = [
        &[b"SET", b"k", &big],
        &[b"SET", b"k", &big, b"EX", b"10"],
        &[b"setex", b"k", b"10", &big],
        &[b"MSET", b"a", b"1", b"k", &big, b"b", b"2"],
        &[b"MSET", b"a", &big, b"k", &big],
        &[b"APPEND", b"k", &big],
        &[b"SETRANGE", b"k", b"0", &big],
        &[b"SETRANGE", b"k", b"100", b"x"],
    ];
    let extending = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\\r\\n";
    for args in refused {
        let error = match args[0] {
            b"APPEND" | b"SETRANGE" => extending,
            _ => error,
        };
        assert_eq!(client.call(args), error, "{}", args[0].escape_ascii());
        assert_eq!(client.words("GET k"), "$-1\\r\\n");
    }
    assert_eq!(client.call(&[b"SET", b"k", &big[..100]]), "+OK\\r\\n");
    let inline = [b"SET k ", &big[..], b"\r\nPING\r\n"].concat();
    assert_eq!(client.send(&inline), format!("{error}+PONG\\r\\n"));
    // Only values may be longer than other arguments.
    let limits = Limits {
        value_len_max: ARGUMENT_LEN_MAX * 2,
    };
    let value = vec![b'v'; ARGUMENT_LEN_MAX * 2];
    assert_eq!(
        Client::with_limits(limits).call(&[b"SET", b"k", &value]),
        "+OK\\r\\n"
    );
}

#[test]
fn a_set_that_is_refused_for_its_size_removes_the_old_value() {
    let big = [b'v'; 101];
    let cases: [(&[&[u8]], bool); 12] = [
        (&[b"SET", b"k", &big], true),
        (&[b"set", b"k", &big, b"EX", b"10"], true),
        (&[b"SET", b"k", &big, b"KEEPTTL", b"GET"], true),
        (&[b"SETEX", b"k", b"10", &big], true),
        (&[b"PSETEX", b"k", b"10", &big], true),
        (&[b"GETSET", b"k", &big], true),
        (&[b"SET", b"k", &big, b"NX"], false),
        (&[b"SET", b"k", &big, b"EX", b"10", b"xx"], false),
        (&[b"SETNX", b"k", &big], false),
        (&[b"APPEND", b"k", &big], false),
        (&[b"MSETNX", b"k", &big], false),
        // Not for its size.
        (&[b"SET", b"k", b"v", &[b'x'; ARGUMENT_LEN_MAX + 1]], false),
    ];
    for (args, is_removed) in cases {
        let mut client = Client::with_limits(SMALL);
        assert_eq!(client.words("SELECT 3"), "+OK\\r\\n");
        assert_eq!(client.words("SET k old"), "+OK\\r\\n");
        // Each byte in a read of its own, so that nothing of it is there when it is refused.
        let name = args[0].escape_ascii();
        let bytes = array(args);
        let requests = driven(SMALL, &bytes, &[1]);
        assert_eq!(requests, driven(SMALL, &bytes, &[]), "{name}");
        let answer = client.send(&bytes);
        assert!(answer.starts_with("-ERR"), "{name}: {answer}");
        let found = match is_removed {
            true => "$-1\\r\\n",
            false => "$3\\r\\nold\\r\\n",
        };
        assert_eq!(client.words("GET k"), found, "{name}");
    }
}

#[test]
fn over_long_keys_and_arguments_are_refused() {
    let mut client = Client::new();
    let key = vec![b'k'; 32 * 1024];
    let (longer, huge) = ([&key[..], b"k"].concat(), vec![b'x'; ARGUMENT_LEN_MAX + 1]);
    let too_long = "-ERR key is too long (max 32768 bytes)\\r\\n";
    assert_eq!(client.call(&[b"SET", &key, b"v"]), "+OK\\r\\n");
    assert_eq!(client.call(&[b"SET", b"", b"v"]), "+OK\\r\\n");
    for key in [&longer, &huge] {
        let refused: [&[&[u8]]; 8] = [
            &[b"GET", key],
            &[b"SET", key, b"v"],
            &[b"MGET", b"a", key, b"b"],
            &[b"DEL", key],
            &[b"MSET", b"a", b"b", key, b"c"],
            &[b"MSETNX", b"a", b"b", key, b"c"],
            &[b"INCR", key],
            &[b"EXPIRE", key, b"1"],
        ];
        for args in refused {
            assert_eq!(client.call(args), too_long, "{}", args[0].escape_ascii());
        }
    }
    let too_long = "-ERR argument is too long (max 65536 bytes)\\r\\n";
    assert_eq!(client.call(&[b"ECHO", &huge]), too_long);
    assert_eq!(client.call(&[&huge, b"a"]), too_long);
    assert_eq!(client.call(&[b"SET", b"k", b"v", &huge]), too_long);
    let unknown = "-ERR unknown command \\'LPUSH\\', with args beginning with: \\'a\\' \\r\\n";
    assert_eq!(client.call(&[b"LPUSH", b"a", &huge, b"b"]), unknown);
    assert_eq!(client.words("PING"), "+PONG\\r\\n");
}

#[test]
fn a_request_of_many_large_values_is_refused_as_a_whole() {
    let limits = Limits {
        value_len_max: REQUEST_LEN_ABOVE_VALUE_MAX,
    };
    let value = vec![b'v'; REQUEST_LEN_ABOVE_VALUE_MAX / 2];
    let mut bytes = array(&[
        b"MSET", b"a", &value, b"b", &value, b"c", &value, b"d", &value,
    ]);
    bytes.extend(b"PING\r\n");
    let expected = "-ERR request is too large (max 134217728 bytes)\\r\\n+PONG\\r\\n";
    assert_eq!(Client::with_limits(limits).send(&bytes), expected);
}

#[test]
fn need_tells_the_end_of_a_bulk_string_as_soon_as_it_is_known() {
    let mut parser = Parser::new(LIMITS, 7);
    let header = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n";
    let Step::Need { total } = parser.parse(header) else {
        panic!("is incomplete")
    };
    assert_eq!(total, header.len() + 1_000_002);
}

#[test]
fn a_refused_value_is_dropped_without_being_kept() {
    let mut parser = Parser::new(SMALL, 7);
    let header = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$500000000\r\nxx";
    let Step::Skip { len } = parser.parse(header) else {
        panic!("is not kept")
    };
    assert_eq!(len, header.len() as u64 - 2 + 500_000_000);
    assert!(matches!(parser.parse(b""), Step::Need { total: 2 }));
    let Step::Request { request, len } = parser.parse(b"\r\nPING") else {
        panic!("is complete")
    };
    assert_eq!(len, 2);
    assert!(format!("{request:?}").contains("value is too large (max 100 bytes)"));
}

/// Feeds bytes one by one, as slowly as a network can, and returns how often the parser was asked.
fn asked_byte_by_byte(parser: &mut Parser, bytes: &[u8]) -> usize {
    let (mut start, mut needed, mut asked) = (0, 1, 0);
    for end in 1..=bytes.len() {
        if end < start + needed {
            continue;
        }
        asked += 1;
        match parser.parse(&bytes[start..end]) {
            Step::Need { total } => needed = total,
            Step::Skip { len } => (start, needed) = (start + len as usize, 1),
            Step::Request { len, .. } => (start, needed) = (start + len, 1),
        }
    }
    assert_eq!(start, bytes.len(), "everything was consumed");
    asked
}

#[test]
fn a_million_arguments_arriving_byte_by_byte_are_read_in_linear_time() {
    // Reading from the start again at each call would look at 10^13 bytes.
    let keys = vec![&b"k"[..]; ARGUMENT_COUNT_MAX - 1];
    let bytes = array(&[&[&b"MGET"[..]], &keys[..]].concat());
    let asked = asked_byte_by_byte(&mut Parser::new(LIMITS, 7), &bytes);
    assert!(asked <= bytes.len());
    // The same where the whole request is only swallowed.
    let huge = vec![b'x'; ARGUMENT_LEN_MAX + 1];
    let bytes = array(&[&[&b"MGET"[..], &huge], &keys[1..]].concat());
    asked_byte_by_byte(&mut Parser::new(LIMITS, 7), &bytes);
}

#[test]
fn a_long_inline_command_arriving_byte_by_byte_is_searched_once() {
    let line = [&vec![b'a'; ARGUMENT_LEN_MAX - 1][..], b"\n"].concat();
    for _ in 0..20 {
        asked_byte_by_byte(&mut Parser::new(LIMITS, 7), &line);
    }
}

fn argument() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        "GET",
        "set",
        "MGET",
        "mset",
        "DEL",
        "ping",
        "HELLO",
        "2",
        "3",
        "SELECT",
        "CLIENT",
        "INFO",
        "setname",
        "COMMAND",
        "docs",
        "EX",
        "10",
        "NX",
        "SCAN",
        "0",
        "MATCH",
        "k",
        "GETRANGE",
        "INCRBYFLOAT",
        "1.5",
        "-1",
        "QUIT",
        "AUTH",
        "APPEND",
        "SETRANGE",
        "GETEX",
        "CONFIG",
    ];
    prop_oneof![
        6 => prop::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        2 => prop::collection::vec(any::<u8>(), 0..12),
        1 => (90_usize..120).prop_map(|len| vec![b'v'; len]),
    ]
}

/// Streams of requests, most of them well-formed, with some bytes changed.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let request = prop_oneof![
        6 => prop::collection::vec(argument(), 1..6)
            .prop_map(|args| array(&args.iter().map(Vec::as_slice).collect::<Vec<_>>())),
        1 => prop::collection::vec(any::<u8>(), 0..20),
        1 => "(GET|SET|PING|HELLO 3)( [a-z\"'\\\\]{0,5}){0,3}\r\n".prop_map(String::into_bytes),
        1 => Just(b"*2\r\n$70000\r\n".to_vec()),
    ];
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    (prop::collection::vec(request, 0..8), damage, any::<bool>()).prop_map(
        |(requests, damage, damaged)| {
            let mut bytes = requests.concat();
            let damaged = damaged && !bytes.is_empty();
            for (index, byte) in damage.into_iter().filter(|_| damaged) {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_cut_of_the_stream_gives_the_same_requests(
        bytes in stream(),
        reads in prop::collection::vec(1_usize..40, 1..10),
    ) {
        let whole = driven(SMALL, &bytes, &[]);
        prop_assert_eq!(&driven(SMALL, &bytes, &[1]), &whole);
        prop_assert_eq!(&driven(SMALL, &bytes, &reads), &whole);
    }

    #[test]
    fn random_bytes_never_break_the_contract_of_a_parser(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        text in "[*$\r\n0-9A-Za-z \"']{0,200}",
    ) {
        driven(SMALL, &bytes, &[3]);
        driven(SMALL, text.as_bytes(), &[2]);
    }

    #[test]
    fn a_stream_of_requests_is_answered_request_by_request(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..20),
    ) {
        let mut client = Client::new();
        let (mut bytes, mut expected) = (Vec::new(), String::new());
        for value in &values {
            bytes.extend(array(&[b"SET", b"k", value]));
            bytes.extend(array(&[b"GET", b"k"]));
            let escaped = value.escape_ascii();
            expected.push_str(&format!("+OK\\r\\n${}\\r\\n{escaped}\\r\\n", value.len()));
        }
        prop_assert_eq!(client.send(&bytes), expected);
    }
}

#[test]
fn patterns_are_short_and_so_are_lists_of_names() {
    let mut client = Client::new();
    let pattern = "a".repeat(256);
    for request in ["KEYS", "SCAN 0 MATCH", "CONFIG GET save"] {
        let taken = client.words(&format!("{request} {pattern}"));
        assert!(!taken.starts_with('-'), "{request}: {taken}");
        let refused = client.words(&format!("{request} {pattern}*"));
        let expected = "-ERR pattern is too long (max 256 bytes)\\r\\n";
        assert_eq!(refused, expected, "{request}");
    }
    for (request, name) in [("INFO", "info"), ("CONFIG GET", "config|get")] {
        let taken = client.words(&format!("{request}{}", " a".repeat(64)));
        assert!(!taken.starts_with('-'), "{request}: {taken}");
        let refused = client.words(&format!("{request}{}", " a".repeat(65)));
        let expected = format!("-ERR too many arguments for \\'{name}\\' command (max 64)\\r\\n");
        assert_eq!(refused, expected);
    }
}

#[test]
fn a_plain_get_is_read_as_it_would_be_on_the_long_way() {
    // The name in small letters makes it another request than the plain one.
    let read = |before: &[u8], name: &str, key: &str, end: &str| {
        let mut parser = Parser::new(LIMITS, 7);
        let mut start = 0;
        while start < before.len() {
            let Step::Request { len, .. } = parser.parse(&before[start..]) else {
                panic!("{}", before.escape_ascii());
            };
            start += len;
        }
        let bytes = format!("*2\r\n$3\r\n{name}\r\n${}\r\n{key}{end}", key.len());
        format!("{:?}", parser.parse(bytes.as_bytes()))
    };
    let sessions: [&[u8]; 5] = [
        b"",
        b"GET key\r\n",
        b"SELECT 3\r\nHELLO 3\r\nCLIENT NO-TOUCH ON\r\n",
        b"CLUSTER SLOTS\r\nREADONLY\r\n",
        b"CLUSTER SLOTS\r\nASKING\r\n",
    ];
    let keys = ["", "k", "\r\n", "0123456789"].map(str::to_owned);
    let long_keys = [99, 100, 32 << 10, (32 << 10) + 1].map(|len| "k".repeat(len));
    for before in sessions {
        for key in keys.iter().chain(&long_keys) {
            for end in ["\r\n", "\r\nPING", "", "\r", "xx"] {
                assert_eq!(
                    read(before, "GET", key, end),
                    read(before, "get", key, end),
                    "{} byte(s), {end:?} behind",
                    key.len()
                );
            }
        }
    }
}
