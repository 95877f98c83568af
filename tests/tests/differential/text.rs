//! The text protocol of memcached.

use std::fmt;
use std::net::SocketAddr;

use anyhow::Result;
use fonn_tests::rng::Rng;

use crate::sequence::{Generator, Real, Replies, Side, compare, pick};
use crate::tokens::{Tokens, primed};
use crate::wire::Wire;

/// One command. `{cas}` in it stands for the token that the server told last for the key.
pub struct Command(pub String);

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_debug())
    }
}

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
            .replace("{cas}", &self.tokens.last(key).to_string());
        self.wire.send(format!("{line}\r\nmn\r\n").as_bytes())?;
        let reply = self.wire.until_no_op()?;
        // `VALUE key flags length token`
        let reply = String::from_utf8_lossy(&reply).into_owned();
        let named = reply.split_inclusive("\r\n").map(|line| {
            let words: Vec<&str> = line.trim_end().split(' ').collect();
            match (
                words.as_slice(),
                words.get(4).and_then(|it| it.parse().ok()),
            ) {
                (["VALUE", rest @ .., _], Some(token)) => {
                    let name = self.tokens.name(rest[0], token);
                    format!("VALUE {} {name}\r\n", rest.join(" "))
                }
                _ => line.to_owned(),
            }
        });
        Ok(named.collect::<String>().into_bytes())
    }
}

const VALUES: [&str; 5] = ["", "v", "value", "10", "a b c"];
const TIMES: [&str; 5] = ["0", "1000", "100000", "2000000000", "-1"];
const NUMBERS: [&str; 5] = ["0", "1", "5", "-1", "x"];

/// No number gets shorter: row `decr`. `K` is a key, `C` the key of a counter, `V` length and
/// value, `T` a time, `N` a number.
const TEMPLATES: &[&str] = &[
    "get K",
    "get K K",
    "gets K",
    "gets K",
    "gat T K",
    "gats T K K",
    "set K 5 T V",
    "set K 0 0 V",
    "set K 4294967295 T V",
    "add K 1 T V",
    "replace K 2 T V",
    "append K 9 0 V",
    "prepend K 9 0 V",
    "cas K 3 T V {cas}",
    "cas K 3 0 V 1",
    "delete K",
    "delete K 0",
    "delete K 1",
    "touch K T",
    "incr K N",
    "decr K x",
    "decr K -1",
    "set C 0 0 5\r\n50000",
    "incr C 7",
    "decr C 3",
    "get C",
    "touch K",
    "set K 0 0 V noreply",
    "delete K noreply",
    "incr K 1 noreply",
    "touch K T noreply",
    "get",
    "gets",
    "gat T",
    "incr K",
    "delete",
    "bogus K",
    "verbosity 1",
    "GET K",
    "set K 0 0",
    "set K 0 0 x",
    "incr K 1 2 3",
];

pub fn key(rng: &mut Rng, seed: u64) -> String {
    format!("{seed:x}-{}", rng.below(4))
}

/// The length of a value and, behind the line, the value itself.
fn with_value(template: &str, rng: &mut Rng) -> String {
    match template.split_once(" V") {
        None => template.to_owned(),
        Some((before, behind)) => {
            let value = pick(rng, &VALUES);
            format!("{before} {}{behind}\r\n{value}", value.len())
        }
    }
}

fn generator(seed: u64) -> Generator<Command> {
    Box::new(move |rng| generate(rng, seed))
}

fn generate(rng: &mut Rng, seed: u64) -> Command {
    let template = with_value(pick(rng, TEMPLATES), rng);
    let (line, block) = match template.split_once("\r\n") {
        Some((line, block)) => (line, Some(block)),
        None => (template.as_str(), None),
    };
    let words = line.split(' ').map(|word| match word {
        "K" => key(rng, seed),
        "C" => format!("{seed:x}-counter"),
        "T" => pick(rng, &TIMES).to_owned(),
        "N" => pick(rng, &NUMBERS).to_owned(),
        other => other.to_owned(),
    });
    let mut text = words.collect::<Vec<_>>().join(" ");
    if let Some(block) = block {
        text.push_str("\r\n");
        text.push_str(block);
    }
    Command(text)
}

#[test]
fn generated_text_commands_are_answered_as_by_memcached() -> Result<()> {
    let is_same = |_: &Command, replies: Replies<'_>| replies.expected == replies.got;
    compare::<Command, Connection>("memcached text", Real::Memcached, generator, is_same)
}
