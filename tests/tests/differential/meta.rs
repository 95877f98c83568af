//! The meta protocol of memcached.

use std::net::SocketAddr;

use anyhow::Result;
use fonn_tests::rng::Rng;

use crate::sequence::{Real, Side, compare, pick};
use crate::text::{Command, Tokens, key};
use crate::wire::Wire;

struct Connection {
    wire: Wire,
    tokens: Tokens,
}

impl Side<Command> for Connection {
    fn connect(addr: SocketAddr) -> Result<Self> {
        Ok(Self {
            wire: Wire::connect_text(addr)?,
            tokens: Tokens::default(),
        })
    }

    fn call(&mut self, command: &Command) -> Result<Vec<u8>> {
        let last = self.tokens.last;
        let line = command
            .0
            .replace("{cas}", &last.to_string())
            .replace("{lower}", &last.saturating_sub(1).max(1).to_string());
        self.wire.send(format!("{line}\r\nmn\r\n").as_bytes())?;
        let reply = self.wire.until_no_op()?;
        let reply = String::from_utf8_lossy(&reply).into_owned();
        let lines = reply.split_inclusive("\r\n").map(|line| self.named(line));
        Ok(lines.collect::<String>().into_bytes())
    }
}

impl Connection {
    /// A line with the names of its tokens, and with times in hundreds of seconds: rows `cas` and
    /// `clock`.
    fn named(&mut self, line: &str) -> String {
        let is_reply = ["HD", "VA", "EN", "NS", "EX", "NF"].contains(&&line[..line.len().min(2)]);
        if !is_reply {
            return line.to_owned();
        }
        let words = line.trim_end().split(' ').map(|word| {
            let number = || word.get(1..).and_then(|it| it.parse::<u64>().ok());
            match (word.as_bytes().first(), number()) {
                (Some(b'c'), Some(token)) => format!("c{}", self.tokens.name(token)),
                (Some(b't'), Some(time)) => format!("t{}", (time + 50) / 100),
                // It takes a second to be told apart from none.
                (Some(b'l'), Some(_)) => "l".to_owned(),
                _ => word.to_owned(),
            }
        });
        words.collect::<Vec<_>>().join(" ") + "\r\n"
    }
}

/// No number gets shorter: row `decr`.
const VALUES: [&str; 5] = ["", "v", "value", "70000", "50000"];
/// No `N`: row `meta vivify`.
const GET_FLAGS: [&str; 12] = [
    "v", "f", "c", "t", "s", "k", "O123", "q", "u", "h", "l", "T90000",
];
const STORE_FLAGS: [&str; 13] = [
    "c", "k", "O9", "q", "F5", "T90000", "T0", "I", "MA", "MP", "ME", "MR", "MS",
];
const DELETE_FLAGS: [&str; 6] = ["q", "k", "O7", "I", "T90000", "C{cas}"];
const ARITH_FLAGS: [&str; 10] = [
    "v",
    "c",
    "t",
    "k",
    "O1",
    "D3",
    "MI",
    "MD",
    "T90000",
    "N90000 J50000",
];

/// Some flags, each at most once, and at most one mode.
fn flags(rng: &mut Rng, choices: &[&str]) -> String {
    let mut chosen: Vec<&str> = Vec::new();
    for _ in 0..rng.below(5) {
        let flag = pick(rng, choices);
        if !chosen.iter().any(|it| it[..1] == flag[..1]) {
            chosen.push(flag);
        }
    }
    chosen.iter().map(|flag| format!(" {flag}")).collect()
}

fn generator(seed: u64) -> Box<dyn FnMut(&mut Rng) -> Command> {
    Box::new(move |rng| generate(rng, seed))
}

fn generate(rng: &mut Rng, seed: u64) -> Command {
    let key = key(rng, seed);
    Command(match rng.below(20) {
        0..7 => format!("mg {key}{}", flags(rng, &GET_FLAGS)),
        7 => format!("mg {key} R30 v t"),
        8..12 => {
            let value = pick(rng, &VALUES);
            format!(
                "ms {key} {}{}\r\n{value}",
                value.len(),
                flags(rng, &STORE_FLAGS)
            )
        }
        12 => {
            let token = pick(
                rng,
                &["C{cas}", "C{lower}", "C{lower} I", "C{lower} I T90", "C1"],
            );
            format!("ms {key} 1 {token} c\r\nx")
        }
        // A token that may be used, then a stale entry, then one that is older.
        13 => format!("mg {key} c v"),
        14 => format!("md {key} I T90000"),
        15..17 => format!("md {key}{}", flags(rng, &DELETE_FLAGS)),
        17 => format!("ma {key}{}", flags(rng, &ARITH_FLAGS)),
        18 => pick(
            rng,
            &["mg", "ms a", "ms a x", "md", "ma", "mg a C", "ma a Dx"],
        )
        .to_owned(),
        _ => format!("get {key}"),
    })
}

#[test]
fn generated_meta_commands_are_answered_as_by_memcached() -> Result<()> {
    let is_same = |_: &Command, expected: &[u8], got: &[u8]| expected == got;
    compare::<Command, Connection>(Real::Memcached, generator, is_same)
}
