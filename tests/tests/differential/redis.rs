//! Redis: strings, keys, expiry, bits, transactions.

use std::fmt;
use std::net::SocketAddr;

use anyhow::Result;
use fonn_tests::client::resp_request;
use fonn_tests::rng::Rng;

use crate::sequence::{Real, Side, compare, pick};
use crate::wire::Wire;

/// One command: its words.
struct Command(Vec<Vec<u8>>);

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.0.iter().map(|word| word.escape_ascii().to_string());
        write!(f, "{}", words.collect::<Vec<_>>().join(" "))
    }
}

struct Connection(Wire);

impl Side<Command> for Connection {
    fn connect(addr: SocketAddr) -> Result<Self> {
        Ok(Self(Wire::connect(addr)?))
    }

    fn call(&mut self, command: &Command) -> Result<Vec<u8>> {
        let words: Vec<&[u8]> = command.0.iter().map(Vec::as_slice).collect();
        self.0.send(&resp_request(&words))?;
        self.0.resp()
    }
}

/// Bytes of values; some are numbers of each kind.
const VALUES: [&[u8]; 14] = [
    b"",
    b"v",
    b"value",
    b"0",
    b"10",
    b"-7",
    b"007",
    b"9223372036854775807",
    b"3.5",
    b"abcabc",
    b"a\r\nb\x00c",
    b"12345678901234567890",
    b"0123456789012345678901234567890123456789012345",
    b"ohmytext",
];

const INTEGERS: [&[u8]; 12] = [
    b"0",
    b"1",
    b"2",
    b"-1",
    b"-3",
    b"5",
    b"17",
    b"100",
    b"abc",
    b"",
    b"9223372036854775807",
    b"-9223372036854775808",
];

/// Far enough away for nothing to expire within a sequence.
const SECONDS: [&[u8]; 6] = [b"1000", b"5000", b"100000", b"0", b"-5", b"x"];
const MILLISECONDS: [&[u8]; 4] = [b"1000000", b"5000000", b"-1", b"1.5"];
/// Exact in both formats: row `incrbyfloat`.
const FLOATS: [&[u8]; 6] = [b"0.5", b"-2.25", b"3", b"1e3", b"x", b""];
const OFFSETS: [&[u8]; 7] = [b"0", b"3", b"7", b"8", b"100", b"-1", b"x"];

/// A GETEX has a valid time: row `getex`. The templates: `K` is a key, `N` that of a number with a fraction, `V` a value, `I` an integer, `S`
/// seconds, `M` milliseconds, `A` and `B` moments, `F` a number with a fraction, `O` an offset. Other words
/// stand for themselves.
const TEMPLATES: &[&str] = &[
    "GET K",
    "GET K",
    "SET K V",
    "SET K V",
    "SET K V",
    "SETNX K V",
    "SETEX K S V",
    "PSETEX K M V",
    "GETSET K V",
    "GETDEL K",
    "GETEX K",
    "GETEX K EX 2000",
    "GETEX K PX 3000000",
    "GETEX K EXAT A",
    "GETEX K PXAT B",
    "GETEX K PERSIST",
    "GETEX K KEEPTTL",
    "SET K V EX S",
    "SET K V PX M",
    "SET K V EXAT A",
    "SET K V PXAT B",
    "SET K V KEEPTTL",
    "SET K V NX",
    "SET K V XX",
    "SET K V NX XX",
    "SET K V GET",
    "SET K V NX GET",
    "SET K V XX GET EX S",
    "SET K V EX",
    "SET K V BOGUS",
    "MGET K K K",
    "MSET K V K V",
    "MSET K V K",
    "MSETNX K V K V",
    "APPEND K V",
    "STRLEN K",
    "GETRANGE K I I",
    "SUBSTR K I I",
    "SETRANGE K O V",
    "INCR K",
    "DECR K",
    "INCRBY K I",
    "DECRBY K I",
    "SET N F",
    "INCRBYFLOAT N F",
    "INCRBYFLOAT N F",
    "DEL K K",
    "UNLINK K",
    "EXISTS K K K",
    "TOUCH K K",
    "EXPIRE K S",
    "EXPIRE K S NX",
    "EXPIRE K S XX",
    "EXPIRE K S GT",
    "EXPIRE K S LT",
    "EXPIRE K S XX LT",
    "EXPIRE K S GT XX",
    "EXPIRE K S NX GT",
    "EXPIRE K S GT LT",
    "EXPIRE K S BOGUS",
    "PEXPIRE K M",
    "EXPIREAT K A",
    "PEXPIREAT K B",
    "TTL K",
    "PTTL K",
    "EXPIRETIME K",
    "PEXPIRETIME K",
    "PERSIST K",
    "TYPE K",
    "GETBIT K O",
    "SETBIT K O 1",
    "SETBIT K O 0",
    "SETBIT K O I",
    "BITCOUNT K",
    "BITCOUNT K I I",
    "BITCOUNT K I I BIT",
    "BITCOUNT K I I BYTE",
    "BITCOUNT K I",
    "BITCOUNT K I I X",
    "LCS K K",
    "LCS K K LEN",
    "LCS K K IDX",
    "LCS K K IDX WITHMATCHLEN MINMATCHLEN I",
    "LCS K K LEN IDX",
    "COPY K K",
    "COPY K K REPLACE",
    "COPY K K DB 3 REPLACE",
    "COPY K K DB I",
    "RENAME K K",
    "RENAMENX K K",
    "OBJECT FREQ K",
    "OBJECT NOSUCH K",
    "OBJECT",
    "PING",
    "PING V",
    "PING V V",
    "ECHO V",
    "SELECT I",
    "SELECT 3",
    "SELECT 0",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH K",
    "WATCH K K",
    "WATCH",
    "UNWATCH",
    "MULTI V",
    "EXEC V",
    "NOSUCH K V",
    "GET",
    "SET K",
    "SCAN 0 COUNT",
    "SCAN 0 BOGUS V",
    "SCAN x",
];

/// Behind `WATCH`: no key is removed, for which there is the row `watch`.
const WATCHING: &[&str] = &[
    "MULTI",
    "MULTI",
    "MULTI",
    "GET K",
    "SET K V",
    "APPEND K V",
    "INCR K",
    "SETBIT K O 1",
    "WATCH K",
    "UNWATCH",
    "EXEC",
];

/// What `MULTI` does not take: row `transaction commands`.
const NOT_QUEUED: [&str; 3] = ["SELECT", "MSETNX", "SCAN"];

/// What a connection was led to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Plain,
    Watching,
    Queueing,
}

fn word(word: &str, rng: &mut Rng, seed: u64) -> Vec<u8> {
    let choices: &[&[u8]] = match word {
        // Keys of one slot, which no other sequence has.
        "K" => return format!("{{{seed:x}}}{}", rng.below(4)).into_bytes(),
        "V" => &VALUES,
        "I" => &INTEGERS,
        "S" => &SECONDS,
        "M" => &MILLISECONDS,
        "N" => return format!("{{{seed:x}}}number").into_bytes(),
        // Another one each time: the row `watch` says why.
        "A" => {
            return (4_000_000_000 + rng.below(1 << 30))
                .to_string()
                .into_bytes();
        }
        "B" => {
            return (4_000_000_000_000 + rng.below(1 << 40))
                .to_string()
                .into_bytes();
        }
        "F" => &FLOATS,
        "O" => &OFFSETS,
        other => return other.as_bytes().to_vec(),
    };
    pick(rng, choices).to_vec()
}

fn generator(seed: u64) -> Box<dyn FnMut(&mut Rng) -> Command> {
    let mut state = State::Plain;
    Box::new(move |rng| {
        let mut template = pick(
            rng,
            if state == State::Watching {
                WATCHING
            } else {
                TEMPLATES
            },
        );
        let name = template.split(' ').next().unwrap_or_default();
        if state == State::Queueing && NOT_QUEUED.contains(&name) {
            template = "PING";
        }
        state = match template {
            "MULTI" => State::Queueing,
            "EXEC" | "EXEC V" | "DISCARD" | "UNWATCH" if state != State::Queueing => State::Plain,
            "EXEC" | "EXEC V" | "DISCARD" => State::Plain,
            "WATCH K" | "WATCH K K" if state == State::Plain => State::Watching,
            _ => state,
        };
        Command(template.split(' ').map(|it| word(it, rng, seed)).collect())
    })
}

/// Row `clock`: two servers do not look at the clock at the same moment. Numbers of a reply that counts
/// time may differ by some seconds.
fn is_same(command: &Command, expected: &[u8], got: &[u8]) -> bool {
    const SLACK_MS: u64 = 20_000;
    const CLOCKED: [&[u8]; 5] = [b"TTL", b"PTTL", b"EXPIRETIME", b"PEXPIRETIME", b"EXEC"];
    let is_clocked = command
        .0
        .first()
        .is_some_and(|name| CLOCKED.contains(&name.as_slice()));
    if expected == got || !is_clocked {
        return expected == got;
    }
    let lines = |bytes: &[u8]| -> Vec<Vec<u8>> {
        bytes
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect()
    };
    let (expected, got) = (lines(expected), lines(got));
    let number = |line: &[u8]| -> Option<i64> {
        let text = std::str::from_utf8(line).ok()?.strip_prefix(':')?;
        text.trim_end().parse().ok()
    };
    let is_close = |pair: (&Vec<u8>, &Vec<u8>)| {
        pair.0 == pair.1
            || match (number(pair.0), number(pair.1)) {
                (Some(expected), Some(got)) if expected > 900 && got > 900 => {
                    let slack = if expected < 200_000 {
                        SLACK_MS / 1000
                    } else {
                        SLACK_MS
                    };
                    expected.abs_diff(got) <= slack
                }
                _ => false,
            }
    };
    expected.len() == got.len() && expected.iter().zip(&got).all(is_close)
}

#[test]
fn generated_redis_commands_are_answered_as_by_redis() -> Result<()> {
    compare::<Command, Connection>(Real::Redis, generator, is_same)
}
