//! The meta protocol of memcached.

use std::net::SocketAddr;

use anyhow::Result;
use fonn_tests::rng::Rng;

use crate::sequence::{Generator, Real, Replies, Side, compare, pick};
use crate::text::{Command, key};
use crate::tokens::{Tokens, primed};
use crate::wire::Wire;

struct Connection {
    wire: Wire,
    tokens: Tokens,
}

impl Side<Command> for Connection {
    fn connect(addr: SocketAddr) -> Result<Self> {
        Ok(Self {
            wire: primed(addr)?,
            tokens: Tokens::default(),
        })
    }

    fn call(&mut self, command: &Command) -> Result<Vec<u8>> {
        let key = command.0.split(' ').nth(1).unwrap_or_default();
        let line = command
            .0
            .replace("{cas}", &self.tokens.last(key).to_string())
            .replace("{old}", &self.tokens.first(key).to_string());
        // A no-op with arguments is also the end of its own reply.
        let end = if line.starts_with("mn") { "" } else { "mn\r\n" };
        self.wire.send(format!("{line}\r\n{end}").as_bytes())?;
        let reply = self.wire.until_no_op()?;
        Ok(self.named(key, &reply))
    }
}

impl Connection {
    /// A reply with the names of its tokens: row `cas`.
    fn named(&mut self, key: &str, reply: &[u8]) -> Vec<u8> {
        let end = reply.windows(2).position(|it| it == b"\r\n");
        let (line, block) = reply.split_at(end.unwrap_or(0));
        let is_reply = ["HD", "VA", "EN", "NS", "EX", "NF"];
        if !is_reply
            .iter()
            .any(|code| line.starts_with(code.as_bytes()))
        {
            return reply.to_vec();
        }
        let line = String::from_utf8_lossy(line);
        let words = line.split(' ').map(|word| {
            match word.strip_prefix('c').and_then(|it| it.parse().ok()) {
                Some(token) => format!("c{}", self.tokens.name(key, token)),
                None => word.to_owned(),
            }
        });
        let mut named = words.collect::<Vec<_>>().join(" ").into_bytes();
        named.extend_from_slice(block);
        named
    }
}

/// No number gets shorter: row `decr`.
const VALUES: [&str; 6] = ["", "v", "value", "70000", "50000", "a b\0c"];

/// `T` is far enough away for nothing to expire within a sequence, or has passed already.
const GET_FLAGS: &[&str] = &[
    "v", "v", "f", "c", "t", "s", "k", "O123", "q", "u", "h", "l", "T90000", "T-1", "R30",
    "R95000", "R0", "N80000", "N0",
];
/// Without `E`, `N`, `s` and `x`: row `meta later`.
const STORE_FLAGS: &[&str] = &[
    "c",
    "k",
    "O9",
    "q",
    "F5",
    "F4294967295",
    "T90000",
    "T0",
    "T2000000000",
    "T-1",
    "I",
    "MA",
    "MP",
    "ME",
    "MR",
    "MS",
    "Ma",
    "Mappend",
    "C{cas}",
    "C{old}",
    "C1",
    "C18446744073709551615",
    "C0",
];
const DELETE_FLAGS: &[&str] = &[
    "q", "k", "O7", "I", "I", "T90000", "T-1", "C{cas}", "C{old}", "C1", "C0",
];
/// Without `q` where `N` creates: row `meta q`.
const ARITH_FLAGS: &[&str] = &[
    "v", "c", "t", "k", "O1", "D3", "D0", "Dx", "MI", "MD", "Mi", "M+", "M-", "Mx", "T90000",
    "T-1", "N90000", "N0", "J50000", "J60000", "C{cas}", "C{old}", "C1", "q",
];
/// What is wrong wherever it stands.
const WRONG_FLAGS: &[&str] = &[
    "y",
    "Cx",
    "C",
    "C-1",
    "Tx",
    "T",
    "F-1",
    "Fx",
    "Rx",
    "Nx",
    "v",
    "S1",
    "D1",
    "J1",
    "!",
    "\u{e9}",
    "O1234567890123456789012345678901",
];
const WRONG_LINES: &[&str] = &[
    "mg",
    "ms",
    "ms K",
    "md",
    "ma",
    "mx K",
    "ms K x",
    "ms K -1",
    "ms K 1x\r\nv",
    "mg  K  v",
    "MG K v",
    "ms K  1 \r\nv",
    "mg K v v",
    "md K q q",
    "ma K N0 N0",
    "mn K",
    "mn v",
    "mg K\tv",
    "mg LONG v",
    "md LONG q",
    "ma LONG",
    "mg b b",
    "mg QQ= b",
    "md Q!Q= b k",
    "ma QQ b",
    "ms QQ= 1 b\r\nv",
    "ms K 2\r\nv\r\n",
    "ms K 1 S100\r\nv",
    // Row `meta opaque`.
    "mg K O12345678901234567890123456789012",
    "ms K 1 O12345678901234567890123456789012\r\nv",
];

/// Some flags. Flags that are repeated are an error, and so are rare.
fn flags(rng: &mut Rng, choices: &[&'static str]) -> Vec<&'static str> {
    let mut chosen: Vec<&str> = Vec::new();
    for _ in 0..rng.below(6) {
        let flag = pick(rng, choices);
        let is_new = !chosen.iter().any(|it| it[..1] == flag[..1]);
        if is_new || rng.chance(0.02) {
            chosen.push(flag);
        }
    }
    if rng.chance(0.03) {
        chosen.push(pick(rng, WRONG_FLAGS));
    }
    chosen
}

/// Whether one of the flags begins with this letter.
fn has(flags: &[&str], letter: char) -> bool {
    flags.iter().any(|flag| flag.starts_with(letter))
}

fn generator(seed: u64) -> Generator<Command> {
    Box::new(move |rng| {
        // A key that is also base64: 16 digits and a group of four.
        let is_base64 = rng.chance(0.2);
        let key = if is_base64 {
            let end = pick(rng, &["key0", "key1", "eQ==", "eTA="]);
            format!("{seed:016x}{end}")
        } else {
            key(rng, seed)
        };
        let (line, value) = generate(rng, &key, is_base64);
        let line = if is_base64 { line + " b" } else { line };
        Command(match value {
            Some(value) => format!("{line}\r\n{value}"),
            None => line,
        })
    })
}

/// Flags without what has a row, as the end of a line.
fn compared(mut flags: Vec<&'static str>, is_base64: bool) -> String {
    // Row `meta order`: memcached goes through the flags from left to right.
    flags.sort_by_key(|flag| match flag.as_bytes().first() {
        Some(b'R') => 0,
        Some(b'T') => 1,
        _ => 2,
    });
    if flags.contains(&"T-1") {
        flags.retain(|flag| *flag != "t");
    }
    // Row `meta key`: memcached returns the key of an entry undecoded that was created by `N`, or
    // extended.
    if is_base64 {
        flags.retain(|flag| !flag.starts_with('N') && !["MA", "MP"].contains(flag));
    }
    // Row `meta vivify`.
    if has(&flags, 'N') {
        flags.retain(|flag| *flag != "t" && !flag.starts_with('T'));
    }
    flags.iter().map(|it| format!(" {it}")).collect()
}

/// A line, and the value behind it.
fn generate(rng: &mut Rng, key: &str, is_base64: bool) -> (String, Option<&'static str>) {
    let join = |flags| compared(flags, is_base64);
    let line = match rng.below(24) {
        0..8 => {
            format!("mg {key}{}", join(flags(rng, GET_FLAGS)))
        }
        8..13 => {
            let value = pick(rng, &VALUES);
            let flags = join(flags(rng, STORE_FLAGS));
            return (format!("ms {key} {}{flags}", value.len()), Some(value));
        }
        13 => {
            let token = pick(
                rng,
                &[
                    "C{cas}",
                    "C{old} I",
                    "C1 I",
                    "C1 I T90 q",
                    "C1",
                    "C{cas} I MR",
                    "C{old} I MR",
                ],
            );
            return (format!("ms {key} 1 {token} c F3"), Some("x"));
        }
        // A token that may be used, a stale entry, and the reads that recache it.
        14..16 => format!("mg {key} c v t"),
        16 => format!("md {key} I T90000"),
        17 => format!("mg {key} R95000 v c"),
        18..20 => format!("md {key}{}", join(flags(rng, DELETE_FLAGS))),
        20..23 => {
            let mut flags = flags(rng, ARITH_FLAGS);
            if has(&flags, 'N') {
                flags.retain(|flag| *flag != "q");
            }
            format!("ma {key}{}", join(flags))
        }
        _ => {
            let line = pick(rng, WRONG_LINES).replace('K', key);
            return (line.replace("LONG", &"l".repeat(251)), None);
        }
    };
    (line, None)
}

#[test]
fn generated_meta_commands_are_answered_as_by_memcached() -> Result<()> {
    // Seconds left to live and seconds since the last use.
    let is_same = |_: &Command, replies: Replies<'_>| replies.are_same_but_for_times(b"tl");
    compare::<Command, Connection>("memcached meta", Real::Memcached, generator, is_same)
}
