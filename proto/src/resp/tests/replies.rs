//! Outcomes that a Redis server was not recorded with: failures, large values, times.

use bytes::Bytes;

use super::model::NOW_MS;
use super::{Client, LIMITS, Model, Parser};
use crate::command::{Command, ExpirySpec, StoreMode};
use crate::outcome::{Failure, Hit, Outcome, Value};
use crate::request::{Body, LateReply, ServerCommand, ServerOutcome, StatsKind, Step};
use crate::{Arith, ArithOp, Batch, BatchStep, Get, Out, Store};

/// The bodies of requests given as inline commands, as `Debug` shows them.
fn body(line: &str) -> String {
    let mut parser = Parser::new(LIMITS, 7);
    let bytes = format!("{line}\r\n").into_bytes();
    match parser.parse(&bytes) {
        Step::Request { request, len } if len == bytes.len() => format!("{:?}", request.body),
        other => panic!("{other:?}"),
    }
}

fn data(command: Command<'_>) -> String {
    format!("{:?}", Body::Data([command].into_iter().collect()))
}

#[test]
fn requests_become_the_commands_they_mean() {
    let get = Get::new(b"k");
    let set = Store::set(b"k", b"v", 0, ExpirySpec::Never);
    for (line, command) in [
        ("GET k", Command::Get(get.clone())),
        (
            "GETDEL k",
            Command::Get(Get {
                delete: true,
                ..get.clone()
            }),
        ),
        ("GETEX k", Command::Get(get.clone())),
        (
            "GETEX k PERSIST",
            Command::Get(Get {
                touch: Some(ExpirySpec::Never),
                ..get.clone()
            }),
        ),
        (
            "GETEX k PXAT 5",
            Command::Get(Get {
                touch: Some(ExpirySpec::AtMs(5)),
                ..get.clone()
            }),
        ),
        (
            "STRLEN k",
            Command::Get(Get {
                want_value: false,
                ..get.clone()
            }),
        ),
        ("EXISTS k", Command::Get(Get::facts(b"k"))),
        ("TTL k", Command::Get(Get::facts(b"k"))),
        ("TYPE k", Command::Get(Get::facts(b"k"))),
        ("SET k v", Command::Store(set.clone())),
        (
            "SET k v NX EX 5",
            Command::Store(Store {
                mode: StoreMode::Add,
                expiry: ExpirySpec::InMs(5000),
                ..set.clone()
            }),
        ),
        (
            "SET k v XX KEEPTTL GET",
            Command::Store(Store {
                mode: StoreMode::Replace,
                expiry: ExpirySpec::Keep,
                want_previous: true,
                ..set.clone()
            }),
        ),
        (
            "SET k v EXAT 1750000000",
            Command::Store(Store {
                expiry: ExpirySpec::AtMs(NOW_MS),
                ..set.clone()
            }),
        ),
        (
            "PSETEX k 7 v",
            Command::Store(Store {
                expiry: ExpirySpec::InMs(7),
                ..set.clone()
            }),
        ),
        (
            "SETNX k v",
            Command::Store(Store {
                mode: StoreMode::Add,
                ..set.clone()
            }),
        ),
        (
            "APPEND k v",
            Command::Store(Store {
                mode: StoreMode::Append,
                vivify: Some(ExpirySpec::Never),
                ..set.clone()
            }),
        ),
        (
            "DECRBY k 5",
            Command::Arith(Arith {
                key: b"k",
                op: ArithOp::Signed(-5),
                initial: None,
                absent_is_zero: true,
                touch: None,
                compare: None,
                new_version: None,
            }),
        ),
    ] {
        assert_eq!(body(line), data(command), "{line}");
    }
}

fn set<'a>(key: &'a [u8], value: &'a [u8]) -> BatchStep<'a> {
    BatchStep::Command(Command::Store(Store::set(key, value, 0, ExpirySpec::Never)))
}

#[test]
fn requests_about_the_server_become_server_commands() {
    for (line, command) in [
        ("DBSIZE", ServerCommand::Count),
        ("RANDOMKEY", ServerCommand::RandomKey),
        (
            "FLUSHDB",
            ServerCommand::Flush {
                all_databases: false,
                delay_s: 0,
            },
        ),
        (
            "FLUSHALL async",
            ServerCommand::Flush {
                all_databases: true,
                delay_s: 0,
            },
        ),
        ("INFO", ServerCommand::Info(vec![])),
        (
            "INFO Server MEMORY",
            ServerCommand::Info(vec!["server".into(), "memory".into()]),
        ),
        (
            "CONFIG GET a* b",
            ServerCommand::ConfigGet(vec![b"a*", b"b"]),
        ),
        ("CONFIG RESETSTAT", ServerCommand::Stats(StatsKind::Reset)),
        (
            "SCAN 0",
            ServerCommand::Scan {
                cursor: 0,
                pattern: None,
                count: 10,
            },
        ),
        (
            "SCAN 7 COUNT 5 MATCH a*",
            ServerCommand::Scan {
                cursor: 7,
                pattern: Some(b"a*"),
                count: 5,
            },
        ),
        (
            "MSETNX a 1 b 2",
            ServerCommand::Atomic(Batch {
                all_absent: true,
                steps: vec![set(b"a", b"1"), set(b"b", b"2")],
                ..Batch::default()
            }),
        ),
    ] {
        assert_eq!(body(line), format!("{:?}", Body::Server(command)), "{line}");
    }
}

fn failing(failure: Failure) -> Client {
    let model = Model {
        failing: Some((b"bad".to_vec(), failure)),
        ..Model::default()
    };
    Client {
        model,
        ..Client::new()
    }
}

#[test]
fn each_failure_has_its_words() {
    for (failure, words) in [
        (
            Failure::Busy,
            "TRYAGAIN the server is busy, try again later",
        ),
        (
            Failure::OutOfSpace,
            "OOM command not allowed when memory or disk space is used up",
        ),
        (Failure::TooLarge, "ERR value is too large"),
        (
            Failure::ReadOnly,
            "NOPERM this user has no permissions to change anything",
        ),
        (Failure::AuthRequired, "NOAUTH Authentication required."),
        (
            Failure::Unavailable,
            "ERR unavailable, the storage of this key cannot be reached",
        ),
    ] {
        let mut client = failing(failure);
        for request in [
            "GET bad",
            "SET bad v",
            "SET bad v GET",
            "APPEND bad v",
            "SETRANGE bad 1 v",
            "INCR bad",
            "INCRBYFLOAT bad 1",
            "EXPIRE bad 1",
            "TTL bad",
            "TYPE bad",
            "STRLEN bad",
            "GETRANGE bad 0 1",
            "DEL a bad b",
            "EXISTS bad a",
            "MSET a 1 bad 2 b 3",
            "MGET bad a",
        ] {
            let extends = request.starts_with("APPEND") || request.starts_with("SETRANGE");
            let words = match failure {
                Failure::TooLarge if extends => {
                    "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
                }
                _ => words,
            };
            let reply = format!("-{words}\\r\\n");
            assert_eq!(client.words(request), reply, "{request}");
        }
        let reply = format!("-{words}\\r\\n");
        let mut out = Out::new();
        LateReply::Resp.failure(failure, &mut out);
        assert_eq!(out.to_vec().escape_ascii().to_string(), reply);
    }
}

#[test]
fn a_failure_within_a_begun_array_is_a_miss() {
    let mut client = failing(Failure::Unavailable);
    client.words("SET a 1");
    assert_eq!(
        client.words("MGET a bad a"),
        "*3\\r\\n$1\\r\\n1\\r\\n$-1\\r\\n$1\\r\\n1\\r\\n"
    );
}

#[test]
fn a_number_that_overflows_is_refused_in_the_words_of_its_kind() {
    let mut client = Client::new();
    client.words("SET n 9223372036854775807");
    assert_eq!(
        client.words("INCR n"),
        "-ERR increment or decrement would overflow\\r\\n"
    );
    client.words("SET f 1.7e308");
    assert_eq!(
        client.words("INCRBYFLOAT f 1.7e308"),
        "-ERR increment would produce NaN or Infinity\\r\\n"
    );
}

fn reply_to(line: &str, outcome: &Outcome<'_>) -> Out {
    let mut parser = Parser::new(LIMITS, 7);
    let mut out = Out::new();
    let bytes = format!("{line}\r\n").into_bytes();
    let Step::Request { mut request, .. } = parser.parse(&bytes) else {
        panic!("is complete")
    };
    let Body::Data(commands) = &request.body else {
        panic!("{:?}", request.body)
    };
    request.reply.each(&commands[0], outcome, &mut out);
    request.reply.finish(&mut out);
    out
}

fn hit(value: Value<'_>, ttl_ms: Option<u64>) -> Outcome<'_> {
    Outcome::Hit(Hit {
        value_len: value.as_slice().len(),
        value,
        flags: 0,
        version: 1,
        ttl_ms,
        expires_at_ms: ttl_ms.map(|ttl_ms| NOW_MS + ttl_ms),
        idle_s: 0,
        fetched_before: false,
        stale: false,
        won: false,
        lost: false,
    })
}

#[test]
fn times_are_rounded_to_the_nearest_second() {
    for (ttl_ms, ttl, expiretime) in [
        (Some(499), ":0\r\n", ":1750000000\r\n"),
        (Some(500), ":1\r\n", ":1750000001\r\n"),
        (Some(1499), ":1\r\n", ":1750000001\r\n"),
        (None, ":-1\r\n", ":-1\r\n"),
    ] {
        let outcome = hit(Value::Copied(b""), ttl_ms);
        assert_eq!(reply_to("TTL k", &outcome).to_vec(), ttl.as_bytes());
        assert_eq!(
            reply_to("EXPIRETIME k", &outcome).to_vec(),
            expiretime.as_bytes()
        );
    }
    let outcome = hit(Value::Copied(b""), Some(499));
    assert_eq!(reply_to("PTTL k", &outcome).to_vec(), b":499\r\n");
    assert_eq!(
        reply_to("PEXPIRETIME k", &outcome).to_vec(),
        b":1750000000499\r\n"
    );
}

#[test]
fn large_values_are_sent_from_where_they_are() {
    let value = Bytes::from(vec![b'v'; 100_000]);
    let outcome = hit(Value::Shared(value.clone()), None);
    for (line, range) in [("GET k", 0..100_000), ("GETRANGE k 1 -2", 1..99_999)] {
        let out = reply_to(line, &outcome);
        let mut slices = [std::io::IoSlice::new(b""); 4];
        assert_eq!(out.io_slices(&mut slices), 3);
        assert_eq!(
            slices[0].to_vec(),
            format!("${}\r\n", range.len()).into_bytes()
        );
        assert_eq!(slices[1].as_ptr(), value[range.clone()].as_ptr());
        assert_eq!((slices[1].len(), &*slices[2]), (range.len(), &b"\r\n"[..]));
    }
}

#[test]
fn server_outcomes_have_a_form_in_each_protocol() {
    let pairs = ServerOutcome::Pairs(vec![("a".into(), "1".into()), ("b".into(), String::new())]);
    let scan = ServerOutcome::Scan {
        cursor: u64::MAX,
        keys: vec![b"k".to_vec()],
    };
    for (line, outcome, resp2, resp3) in [
        (
            "CONFIG GET *",
            pairs,
            "*4\\r\\n$1\\r\\na\\r\\n$1\\r\\n1\\r\\n$1\\r\\nb\\r\\n$0\\r\\n\\r\\n",
            "%2\\r\\n$1\\r\\na\\r\\n$1\\r\\n1\\r\\n$1\\r\\nb\\r\\n$0\\r\\n\\r\\n",
        ),
        (
            "INFO",
            ServerOutcome::Text("a:1\r\n".into()),
            "$5\\r\\na:1\\r\\n\\r\\n",
            "=9\\r\\ntxt:a:1\\r\\n\\r\\n",
        ),
        ("DBSIZE", ServerOutcome::Integer(3), ":3\\r\\n", ":3\\r\\n"),
        (
            "SCAN 0",
            scan,
            "*2\\r\\n$20\\r\\n18446744073709551615\\r\\n*1\\r\\n$1\\r\\nk\\r\\n",
            "*2\\r\\n$20\\r\\n18446744073709551615\\r\\n*1\\r\\n$1\\r\\nk\\r\\n",
        ),
        (
            "SCAN 5",
            ServerOutcome::InvalidCursor,
            "-ERR invalid cursor\\r\\n",
            "-ERR invalid cursor\\r\\n",
        ),
        (
            "RANDOMKEY",
            ServerOutcome::Key(None),
            "$-1\\r\\n",
            "_\\r\\n",
        ),
        (
            "RANDOMKEY",
            ServerOutcome::Key(Some(b"k".to_vec())),
            "$1\\r\\nk\\r\\n",
            "$1\\r\\nk\\r\\n",
        ),
        ("MSETNX a 1", ServerOutcome::Changed, ":0\\r\\n", ":0\\r\\n"),
        (
            "FLUSHALL",
            ServerOutcome::Failed(Failure::ReadOnly),
            "-NOPERM this user has no permissions to change anything\\r\\n",
            "-NOPERM this user has no permissions to change anything\\r\\n",
        ),
    ] {
        for (mut client, expected) in [(Client::new(), resp2), (Client::resp3(), resp3)] {
            client.model.server = Some(outcome.clone());
            assert_eq!(client.words(line), expected, "{line}");
        }
    }
}

#[test]
fn expiries_beyond_the_range_of_64_bits_are_invalid() {
    let mut client = Client::new();
    for (request, name) in [
        ("SET k v PX 9223372036854775807", "set"),
        ("SET k v EX 9223372036854776", "set"),
        ("SETEX k 9223372036854775807 v", "setex"),
        ("PEXPIRE k 9223372036854775807", "pexpire"),
        ("EXPIREAT k -9223372036854775807", "expireat"),
        ("GETEX k EX 0", "getex"),
    ] {
        let expected = format!("-ERR invalid expire time in \\'{name}\\' command\\r\\n");
        assert_eq!(client.words(request), expected, "{request}");
    }
}

#[test]
fn pairs_that_are_stored_all_or_none_are_bounded_in_number() {
    let line = |pairs: usize| format!("MSETNX{}", " k v".repeat(pairs));
    let mut client = Client::new();
    assert_eq!(client.words(&line(256)), ":1\\r\\n");
    assert_eq!(client.words(&line(256)), ":0\\r\\n");
    assert_eq!(
        client.words(&line(257)),
        "-ERR too many pairs for \\'msetnx\\' command (max 256)\\r\\n"
    );
}
