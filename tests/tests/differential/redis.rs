//! Redis: strings, keys, expiry, bits, transactions, frames.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use anyhow::Result;
use fonn_tests::client::resp_request;
use fonn_tests::rng::Rng;

use crate::redis_words::{
    FLOATS, FRAMES, FREQUENT, INLINE, INTEGERS, NOT_QUEUED, OFFSETS, OTHERS, QUEUED, TEMPLATES,
    VALUES, WATCHING,
};
use crate::sequence::{Generator, Real, Replies, Side, compare, pick};
use crate::wire::Wire;

enum Command {
    /// The words of a request.
    Words(Vec<Vec<u8>>),
    /// The words of a request that another connection sends.
    Other(Vec<Vec<u8>>),
    /// A request on a line.
    Inline(String),
    /// All keys that `SCAN` or `KEYS` finds for this pattern.
    Scan(Vec<&'static str>, String),
    /// Bytes on a connection of their own, up to its end.
    Frame(&'static [u8]),
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |words: &[Vec<u8>]| {
            let words = words.iter().map(|word| word.escape_ascii().to_string());
            words.collect::<Vec<_>>().join(" ")
        };
        match self {
            Self::Words(words) => f.write_str(&line(words)),
            Self::Other(words) => write!(f, "other connection: {}", line(words)),
            Self::Inline(text) => write!(f, "inline: {text}"),
            Self::Scan(words, pattern) => write!(f, "all of {} {pattern}", words.join(" ")),
            Self::Frame(bytes) => write!(f, "frame {}", bytes.escape_ascii()),
        }
    }
}

struct Connection {
    addr: SocketAddr,
    wire: Wire,
    other: Wire,
}

impl Side<Command> for Connection {
    fn connect(addr: SocketAddr) -> Result<Self> {
        let mut wire = Wire::connect(addr)?;
        // The first bytes of a connection choose its dialect.
        wire.send(&resp_request(&[b"PING"]))?;
        wire.resp()?;
        Ok(Self {
            addr,
            wire,
            other: Wire::connect(addr)?,
        })
    }

    fn call(&mut self, command: &Command) -> Result<Vec<u8>> {
        let request = |words: &[Vec<u8>]| {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            resp_request(&words)
        };
        match command {
            Command::Words(words) => {
                self.wire.send(&request(words))?;
                self.wire.resp()
            }
            Command::Other(words) => {
                self.other.send(&request(words))?;
                self.other.resp()
            }
            Command::Inline(line) => {
                self.wire.send(format!("{line}\r\n").as_bytes())?;
                self.wire.resp()
            }
            Command::Scan(words, pattern) => self.scan(words, pattern),
            Command::Frame(bytes) => {
                let (ping, quit) = (resp_request(&[b"PING"]), resp_request(&[b"QUIT"]));
                let mut wire = Wire::connect(self.addr)?;
                wire.send(&[&ping, *bytes, &quit].concat())?;
                wire.until_end()
            }
        }
    }
}

impl Connection {
    /// Row `scan`: the pages are cut elsewhere, so the keys of all pages are compared.
    fn scan(&mut self, words: &[&str], pattern: &str) -> Result<Vec<u8>> {
        let mut keys = BTreeSet::new();
        let mut cursor = b"0".to_vec();
        loop {
            let mut request: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            if words[0] == "SCAN" {
                request.splice(1..1, [&cursor[..], b"MATCH", pattern.as_bytes()]);
            } else {
                request.push(pattern.as_bytes());
            }
            self.wire.send(&resp_request(&request))?;
            let reply = self.wire.resp()?;
            let mut strings = strings(&reply);
            cursor = match words[0] {
                "SCAN" if strings.is_empty() => return Ok(reply),
                "SCAN" => strings.remove(0),
                _ => b"0".to_vec(),
            };
            keys.extend(strings);
            if cursor == b"0" {
                let keys: Vec<_> = keys.into_iter().collect();
                return Ok(keys.join(&b' '));
            }
        }
    }
}

/// The bulk strings of a reply.
fn strings(reply: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = reply;
    while let Some(end) = rest.windows(2).position(|it| it == b"\r\n") {
        let (line, behind) = (&rest[..end], &rest[end + 2..]);
        rest = behind;
        let len = line
            .strip_prefix(b"$")
            .and_then(|len| std::str::from_utf8(len).ok());
        if let Some(len) = len.and_then(|len| len.parse::<usize>().ok()) {
            found.push(behind[..len].to_vec());
            rest = &behind[len + 2..];
        }
    }
    found
}

/// What a connection was led to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Plain,
    Watching,
    Queueing,
}

/// Times to live are never twice the same, and thousands of seconds apart: it does not matter for
/// `GT` and `LT`, nor for the row `watch`, when a server reads its clock.
struct Times(u64);

impl Times {
    fn next(&mut self) -> u64 {
        const COUNT: u64 = 10_007;
        self.0 += 1;
        (self.0 * 7919 % COUNT + 1) * 10_000
    }
}

struct Sequence {
    seed: u64,
    state: State,
    times: Times,
    is_first: bool,
}

impl Sequence {
    fn word(&mut self, word: &str, rng: &mut Rng) -> Vec<u8> {
        const EPOCH_S: u64 = 4_000_000_000;
        let seed = self.seed;
        let choices: &[&[u8]] = match word {
            // Keys of one slot, which no other sequence has.
            "K" => return format!("{{{seed:x}}}{}", rng.below(4)).into_bytes(),
            "E" => return format!("{{{seed:x}}}encoded").into_bytes(),
            "N" => return format!("{{{seed:x}}}number").into_bytes(),
            "S" | "M" if rng.chance(0.2) => &[b"0", b"-5", b"x", b"1.5", b""],
            "S" => return self.times.next().to_string().into_bytes(),
            "M" => {
                return (self.times.next() * 1000 + 5_000_000)
                    .to_string()
                    .into_bytes();
            }
            "A" => return (EPOCH_S + self.times.next()).to_string().into_bytes(),
            "B" => {
                let at_ms = (EPOCH_S + self.times.next()) * 1000 + 5_000_000;
                return at_ms.to_string().into_bytes();
            }
            "V" => &VALUES,
            "I" => &INTEGERS,
            "F" => &FLOATS,
            "O" => &OFFSETS,
            other => return other.as_bytes().to_vec(),
        };
        pick(rng, choices).to_vec()
    }

    fn words(&mut self, template: &str, rng: &mut Rng) -> Vec<Vec<u8>> {
        let words = template.split(' ');
        words.map(|word| self.word(word, rng)).collect()
    }

    fn next(&mut self, rng: &mut Rng) -> Command {
        if std::mem::take(&mut self.is_first) && self.seed.is_multiple_of(2) {
            return Command::Words(self.words("HELLO 3", rng));
        }
        if self.state != State::Plain && rng.chance(0.1) {
            return Command::Other(self.words(pick(rng, OTHERS), rng));
        }
        if self.state == State::Plain && rng.chance(0.1) {
            return self.special(rng);
        }
        let choices = match self.state {
            State::Watching => WATCHING,
            State::Queueing if rng.chance(0.9) => QUEUED,
            State::Plain if rng.chance(0.3) => FREQUENT,
            State::Queueing | State::Plain => TEMPLATES,
        };
        let mut template = pick(rng, choices);
        let name = template.split(' ').next().unwrap_or_default();
        if self.state == State::Queueing && NOT_QUEUED.contains(&name) {
            template = "PING";
        }
        self.state = match template {
            "MULTI" => State::Queueing,
            "EXEC" | "DISCARD" | "RESET" => State::Plain,
            "UNWATCH" if self.state != State::Queueing => State::Plain,
            "WATCH K" | "WATCH K K" if self.state == State::Plain => State::Watching,
            _ => self.state,
        };
        Command::Words(self.words(template, rng))
    }

    /// What is no plain request.
    fn special(&mut self, rng: &mut Rng) -> Command {
        let seed = self.seed;
        match rng.below(5) {
            0 => Command::Frame(pick(rng, FRAMES)),
            1 => {
                let pattern = pick(rng, &["*", "[0-1]", "?", "[^0]", "*n*", "\\0", "none"]);
                // The brackets of a hash tag stand for themselves in a pattern.
                let pattern = format!("{{{seed:x}}}{pattern}");
                let words: &[&str] = pick(
                    rng,
                    &[
                        &["SCAN", "COUNT", "7"],
                        &["SCAN"],
                        &["SCAN", "TYPE", "string"],
                        &["SCAN", "TYPE", "list"],
                        &["KEYS"],
                    ],
                );
                Command::Scan(words.to_vec(), pattern)
            }
            2 => Command::Words(self.words(pick(rng, &["HELLO 2", "HELLO 3", "HELLO"]), rng)),
            _ => {
                let key = format!("{{{seed:x}}}{}", rng.below(4));
                Command::Inline(pick(rng, INLINE).replace('K', &key))
            }
        }
    }
}

fn generator(seed: u64) -> Generator<Command> {
    let mut sequence = Sequence {
        seed,
        state: State::Plain,
        times: Times(seed % 10_007),
        is_first: true,
    };
    Box::new(move |rng| sequence.next(rng))
}

/// The facts that `HELLO` tells on both servers.
const HELLO_FACTS: [&[u8]; 7] = [
    b"server", b"version", b"proto", b"id", b"mode", b"role", b"modules",
];

/// The unit of the integers in the reply to a command, in units a second, where they depend on the
/// clock: row `clock`.
fn unit(words: &[Vec<u8>]) -> Option<u64> {
    match words.first()?.as_slice() {
        b"TTL" | b"EXPIRETIME" | b"OBJECT" => Some(1),
        // A transaction may hold commands with either unit.
        b"PTTL" | b"PEXPIRETIME" | b"EXEC" => Some(1000),
        _ => None,
    }
}

fn is_same(command: &Command, replies: Replies<'_>) -> bool {
    let Replies { expected, got, .. } = replies;
    let Command::Words(words) = command else {
        return expected == got;
    };
    // Row `hello`.
    if words[0] == b"HELLO" && !expected.starts_with(b"-") {
        let (facts, told) = (HELLO_FACTS.iter().map(|it| it.to_vec()), strings(got));
        return expected.first() == got.first() && facts.into_iter().all(|it| told.contains(&it));
    }
    let Some(unit) = unit(words) else {
        return expected == got;
    };
    let slack_s = replies.slack_s * unit;
    Replies { slack_s, ..replies }.are_same_but_for_times(b":")
}

#[test]
fn generated_redis_commands_are_answered_as_by_redis() -> Result<()> {
    compare::<Command, Connection>("redis", Real::Redis, generator, is_same)
}
