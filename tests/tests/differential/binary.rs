//! The binary protocol of memcached.

use std::fmt;
use std::net::SocketAddr;

use anyhow::Result;
use fonn_tests::rng::Rng;

use crate::sequence::{Real, Side, compare, pick};
use crate::text::{Tokens, key};
use crate::wire::Wire;

const NO_OP: u8 = 0x0a;

/// Status of a miss, the one error whose body is compared.
const NOT_FOUND: u16 = 1;

struct Command {
    opcode: u8,
    extras: Vec<u8>,
    key: String,
    value: &'static str,
    /// Whether the token that the server told last is sent along.
    has_cas: bool,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            opcode,
            extras,
            key,
            value,
            has_cas,
        } = self;
        write!(
            f,
            "{opcode:#04x} {extras:02x?} {key:?} {value:?} cas: {has_cas}"
        )
    }
}

fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let mut packet = vec![0x80, opcode];
    packet.extend((key.len() as u16).to_be_bytes());
    packet.extend([extras.len() as u8, 0, 0, 0]);
    packet.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    packet.extend(b"opaq");
    packet.extend(cas.to_be_bytes());
    packet.extend([extras, key, value].concat());
    packet
}

struct Connection {
    wire: Wire,
    tokens: Tokens,
}

impl Side<Command> for Connection {
    fn connect(addr: SocketAddr) -> Result<Self> {
        Ok(Self {
            wire: Wire::connect(addr)?,
            tokens: Tokens::default(),
        })
    }

    fn call(&mut self, command: &Command) -> Result<Vec<u8>> {
        let cas = if command.has_cas { self.tokens.last } else { 0 };
        let (key, value) = (command.key.as_bytes(), command.value.as_bytes());
        let request = packet(command.opcode, &command.extras, key, value, cas);
        self.wire
            .send(&[request, packet(NO_OP, &[], b"", b"", 0)].concat())?;
        let mut replies = Vec::new();
        loop {
            let reply = self.wire.packet()?;
            if reply[1] == NO_OP {
                return Ok(replies);
            }
            replies.extend(self.named(reply));
        }
    }
}

impl Connection {
    /// A reply with the name of its token (row `cas`), and without the text of an error (row
    /// `binary error bodies`).
    fn named(&mut self, mut reply: Vec<u8>) -> Vec<u8> {
        let status = u16::from_be_bytes([reply[6], reply[7]]);
        if status > NOT_FOUND {
            reply.truncate(24);
            reply[8..12].fill(0);
        }
        let mut token = [0; 8];
        token.copy_from_slice(&reply[16..24]);
        let name = self.tokens.name(u64::from_be_bytes(token));
        reply.splice(16..24, name.into_bytes());
        reply
    }
}

const VALUES: [&str; 5] = ["", "v", "value", "10", "50000"];
const TIMES: [u32; 4] = [0, 1000, 100_000, 2_000_000_000];

fn generator(seed: u64) -> Box<dyn FnMut(&mut Rng) -> Command> {
    Box::new(move |rng| generate(rng, seed))
}

fn generate(rng: &mut Rng, seed: u64) -> Command {
    const GETS: [u8; 4] = [0x00, 0x09, 0x0c, 0x0d];
    const STORES: [u8; 6] = [0x01, 0x02, 0x03, 0x11, 0x12, 0x13];
    const APPENDS: [u8; 4] = [0x0e, 0x0f, 0x19, 0x1a];
    const ARITH: [u8; 4] = [0x05, 0x06, 0x15, 0x16];
    const TOUCHES: [u8; 5] = [0x1c, 0x1d, 0x1e, 0x23, 0x24];
    let time = pick(rng, &TIMES).to_be_bytes();
    let mut command = Command {
        opcode: 0,
        extras: Vec::new(),
        key: key(rng, seed),
        value: "",
        has_cas: rng.chance(0.2),
    };
    match rng.below(12) {
        0..4 => {
            command.opcode = pick(rng, &GETS);
            command.has_cas = false;
        }
        4..7 => {
            command.opcode = pick(rng, &STORES);
            command.extras = [&7_u32.to_be_bytes()[..], &time].concat();
            command.value = pick(rng, &VALUES);
        }
        7 => {
            command.opcode = pick(rng, &APPENDS);
            command.value = pick(rng, &VALUES);
        }
        8 => {
            command.opcode = pick(rng, &ARITH);
            command.key = format!("{seed:x}-counter");
            let expiry = pick(rng, &[0, 0xffff_ffff_u32]);
            let numbers = [3_u64.to_be_bytes(), 50_000_u64.to_be_bytes()].concat();
            command.extras = [&numbers[..], &expiry.to_be_bytes()].concat();
            command.has_cas = false;
        }
        9 => {
            command.opcode = pick(rng, &TOUCHES);
            command.extras = time.to_vec();
            command.has_cas = false;
        }
        _ => command.opcode = pick(rng, &[0x04, 0x14]),
    }
    command
}

#[test]
fn generated_binary_commands_are_answered_as_by_memcached() -> Result<()> {
    let is_same = |_: &Command, expected: &[u8], got: &[u8]| expected == got;
    compare::<Command, Connection>(Real::Memcached, generator, is_same)
}
