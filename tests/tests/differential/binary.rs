//! The binary protocol of memcached.

use std::fmt;
use std::net::SocketAddr;

use anyhow::Result;
use fonn_tests::rng::Rng;

use crate::packet::{Cas, Reply, Request};
use crate::sequence::{Generator, Real, Replies, Side, compare, pick};
use crate::text::key;
use crate::tokens::{Tokens, UNUSED, primed};
use crate::wire::Wire;

const NO_OP: u8 = 0x0a;
const QUIT: [u8; 2] = [0x07, 0x17];
const VERSION: u8 = 0x0b;
const STAT: u8 = 0x10;
const SASL: [u8; 3] = [0x20, 0x21, 0x22];

/// Status of a miss, the one error whose body is compared.
const NOT_FOUND: u16 = 1;

enum Command {
    /// A request whose lengths fit its opcode.
    Request(Request),
    /// A request whose lengths do not: row `binary lengths`.
    Malformed(Request),
    /// What the meta protocol tells of a key: its flags and its time to live.
    Facts(String),
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(request) => write!(f, "{request}"),
            Self::Malformed(request) => write!(f, "malformed {request}"),
            Self::Facts(key) => write!(f, "mg {key} f t s"),
        }
    }
}

struct Connection {
    addr: SocketAddr,
    wire: Wire,
    meta: Wire,
    tokens: Tokens,
}

impl Side<Command> for Connection {
    fn connect(addr: SocketAddr) -> Result<Self> {
        Ok(Self {
            addr,
            wire: Wire::connect(addr)?,
            meta: primed(addr)?,
            tokens: Tokens::default(),
        })
    }

    fn call(&mut self, command: &Command) -> Result<Vec<u8>> {
        let told = match command {
            Command::Request(request) => self.request(request)?,
            Command::Malformed(request) => {
                self.wire.send(&request.encode(0))?;
                let reply = self.wire.packet()?;
                let told = self.told(&request.key, &reply)?;
                // Memcached closes the connection, Fonn does not.
                self.wire = Wire::connect(self.addr)?;
                told
            }
            Command::Facts(key) => {
                self.meta
                    .send(format!("mg {key} f t s\r\nmn\r\n").as_bytes())?;
                return self.meta.until_no_op();
            }
        };
        Ok(told.into_bytes())
    }
}

impl Connection {
    /// All replies to a request, up to that of a no-op behind it or to the end of the connection.
    fn request(&mut self, request: &Request) -> Result<String> {
        let cas = match request.cas {
            Cas::None => 0,
            Cas::Last => self.tokens.last(&request.key),
            Cas::Old => self.tokens.first(&request.key),
            Cas::Unused => UNUSED,
        };
        let mut bytes = request.encode(cas);
        let mut told = String::new();
        if QUIT.contains(&request.opcode) {
            self.wire.send(&bytes)?;
            while !self.wire.is_at_end()? {
                let reply = self.wire.packet()?;
                told += &self.told(&request.key, &reply)?;
            }
            self.wire = Wire::connect(self.addr)?;
            return Ok(told + "closed");
        }
        bytes.extend(Request::bare(NO_OP).encode(0));
        self.wire.send(&bytes)?;
        // The reply to a no-op that is itself the command comes first.
        let mut ends = if request.opcode == NO_OP { 2 } else { 1 };
        loop {
            let reply = self.wire.packet()?;
            ends -= usize::from(reply.get(1) == Some(&NO_OP));
            if ends == 0 {
                return Ok(told);
            }
            told += &self.told(&request.key, &reply)?;
        }
    }

    /// A reply in words, with the name of its token (row `cas`) and without the text of an error
    /// (row `binary error bodies`).
    fn told(&mut self, key: &str, reply: &[u8]) -> Result<String> {
        let reply = Reply::decode(reply).ok_or_else(|| {
            let reply = reply.escape_ascii();
            anyhow::anyhow!("a packet whose lengths do not fit: {reply}")
        })?;
        let Reply {
            opcode,
            status,
            opaque,
            cas,
            extras,
            key: told_key,
            mut value,
        } = reply;
        // Row `stats`: only the end of statistics is compared.
        if opcode == STAT && !told_key.is_empty() {
            return Ok(String::new());
        }
        if opcode == VERSION && status == 0 {
            value.truncate("1.6.18".len());
        }
        let body = if status > NOT_FOUND {
            String::new()
        } else {
            let (told_key, value) = (told_key.escape_ascii(), value.escape_ascii());
            format!(" extras {extras:02x?} key \"{told_key}\" value \"{value}\"")
        };
        let (opaque, cas) = (opaque.escape_ascii(), self.tokens.name(key, cas));
        Ok(format!(
            "{opcode:#04x} status {status:#x} opaque {opaque} cas {cas}{body}\n"
        ))
    }
}

/// No number gets shorter: row `decr`.
const VALUES: [&str; 6] = ["", "v", "value", "70000", "50000", "a\r\n\0b"];
/// Never, relative, a Unix time in the future, one in the past, the last one.
const TIMES: [u32; 6] = [0, 1000, 100_000, 2_000_000_000, 3_000_000, u32::MAX];
const FLAGS: [u32; 3] = [0, 7, u32::MAX];
const INITIAL: [u64; 3] = [50_000, 70_000, 18_446_744_073_709_550_000];

const GETS: [u8; 4] = [0x00, 0x09, 0x0c, 0x0d];
const STORES: [u8; 6] = [0x01, 0x02, 0x03, 0x11, 0x12, 0x13];
const EXTENDS: [u8; 4] = [0x0e, 0x0f, 0x19, 0x1a];
const DELETES: [u8; 2] = [0x04, 0x14];
const ARITH: [u8; 4] = [0x05, 0x06, 0x15, 0x16];
const TOUCHES: [u8; 5] = [0x1c, 0x1d, 0x1e, 0x23, 0x24];
const FLUSHES: [u8; 2] = [0x08, 0x18];
/// Opcodes without key and extras.
const BARE: [u8; 3] = [NO_OP, VERSION, STAT];
/// `RGet`, `TAP connect` and others that neither server knows.
const UNKNOWN: [u8; 7] = [0x1f, 0x25, 0x30, 0x3d, 0x40, 0x50, 0xff];

fn generator(seed: u64) -> Generator<Command> {
    Box::new(move |rng| generate(rng, seed))
}

fn generate(rng: &mut Rng, seed: u64) -> Command {
    let time = pick(rng, &TIMES).to_be_bytes();
    let cas = pick(
        rng,
        &[
            Cas::None,
            Cas::None,
            Cas::None,
            Cas::Last,
            Cas::Last,
            Cas::Old,
            Cas::Unused,
        ],
    );
    let mut request = Request::new(0, key(rng, seed));
    match rng.below(32) {
        0..7 => request.opcode = pick(rng, &GETS),
        7..13 => {
            request.opcode = pick(rng, &STORES);
            request.extras = [&pick(rng, &FLAGS).to_be_bytes()[..], &time].concat();
            request.value = pick(rng, &VALUES);
            request.cas = cas;
        }
        13..15 => {
            request.opcode = pick(rng, &EXTENDS);
            request.value = pick(rng, &VALUES);
            request.cas = cas;
        }
        15..19 => {
            request.opcode = pick(rng, &ARITH);
            let (delta, initial) = (pick(rng, &[0, 1, 3_u64]), pick(rng, &INITIAL));
            let numbers = [delta.to_be_bytes(), initial.to_be_bytes()].concat();
            let expiry = pick(rng, &[0, 100_000, u32::MAX, 0xffff_fffe]);
            request.extras = [&numbers[..], &expiry.to_be_bytes()].concat();
            request.cas = cas;
        }
        19..22 => {
            request.opcode = pick(rng, &TOUCHES);
            request.extras = time.to_vec();
        }
        22..24 => {
            request.opcode = pick(rng, &DELETES);
            request.cas = cas;
        }
        24 => return Command::Malformed(malformed(rng, request.key)),
        25 => request = server(rng),
        _ => return Command::Facts(request.key),
    }
    Command::Request(request)
}

/// A request that is about the server or the connection. Verbosity is not among them: memcached
/// does not know it, and swallows the key and the extras of an unknown opcode twice, so it waits
/// for bytes that no client sends.
fn server(rng: &mut Rng) -> Request {
    match rng.below(8) {
        0 => Request::bare(pick(rng, &QUIT)),
        1 => Request {
            extras: pick(rng, &[&b""[..], &[0; 4], &100_000_u32.to_be_bytes()]).to_vec(),
            ..Request::bare(pick(rng, &FLUSHES))
        },
        2 => Request {
            value: "\0user\0password",
            ..Request::new(pick(rng, &SASL[1..]), "PLAIN".to_owned())
        },
        3 => Request::bare(SASL[0]),
        4 => Request {
            value: pick(rng, &VALUES),
            ..Request::bare(pick(rng, &UNKNOWN))
        },
        5 => Request::new(STAT, pick(rng, &["nosuch", "reset"]).to_owned()),
        _ => Request::bare(pick(rng, &BARE)),
    }
}

/// Extras, keys or values of lengths that the opcode does not have. All of the packet that
/// memcached waits for is sent, since its lengths are judged behind that.
fn malformed(rng: &mut Rng, key: String) -> Request {
    let extras = |opcode| {
        if STORES.contains(&opcode) {
            8
        } else if ARITH.contains(&opcode) {
            20
        } else if TOUCHES.contains(&opcode) {
            4
        } else {
            0
        }
    };
    let keyed = [&GETS[..], &STORES, &EXTENDS, &DELETES, &ARITH, &TOUCHES].concat();
    let opcode = pick(rng, &keyed);
    let request = Request {
        extras: vec![0; extras(opcode)],
        ..Request::new(opcode, key)
    };
    match rng.below(6) {
        0 => Request {
            extras: vec![0; extras(opcode) + 1 + rng.below(3) as usize],
            ..request
        },
        1 => Request {
            key: String::new(),
            ..request
        },
        2 => Request {
            key: "k".repeat(251),
            ..request
        },
        3 => Request {
            value: "value",
            extras: vec![0; extras(GETS[0])],
            opcode: pick(rng, &[GETS[0], GETS[3], DELETES[0]]),
            ..request
        },
        4 => Request {
            body_len: Some(rng.below(4) as u32),
            ..request
        },
        _ => Request {
            extras: vec![0; 3],
            ..Request::bare(pick(
                rng,
                &[NO_OP, VERSION, STAT, FLUSHES[0], QUIT[0], SASL[0]],
            ))
        },
    }
}

fn is_same(command: &Command, replies: Replies<'_>) -> bool {
    let (Command::Request(request) | Command::Malformed(request)) = command else {
        return replies.are_same_but_for_times(b"t");
    };
    let begins = |bytes: &[u8], status: &str| {
        let begin = format!("{:#04x} status {status}", request.opcode);
        bytes.starts_with(begin.as_bytes())
    };
    let Replies { expected, got, .. } = replies;
    // Row `binary lengths`: the body is shorter than the key and the extras in it.
    if matches!(command, Command::Malformed(_)) && begins(expected, "0x81 ") {
        return begins(got, "0x4 ");
    }
    match request.opcode {
        // Row `binary sasl`.
        0x20 if matches!(command, Command::Request(_)) => {
            begins(expected, "0x81 ") && begins(got, "0x0 ")
        }
        0x22 => begins(expected, "0x81 ") && begins(got, "0x20 "),
        _ => expected == got,
    }
}

#[test]
fn generated_binary_commands_are_answered_as_by_memcached() -> Result<()> {
    compare::<Command, Connection>("memcached binary", Real::Memcached, generator, is_same)
}
