//! What each role may do, in every protocol, at a router and at a member.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};

use fonn_tests::client::{BinaryClient, RespClient, RespReply, TextClient, opcode};
use fonn_tests::secured::{PASSWORD, Secured, log_in};

/// What a command needs; who has more has this too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Needs {
    /// Not even a login.
    Nothing,
    Read,
    Write,
    Admin,
}
use Needs::{Admin, Nothing, Read, Write};

/// Users, and what they have; none is nobody.
const USERS: [(Option<&str>, Needs); 4] = [
    (None, Nothing),
    (Some("dev"), Read),
    (Some("ci"), Write),
    (Some("root"), Admin),
];

/// The classic commands and the meta commands.
pub(crate) const TEXT: &[(Needs, &str)] = &[
    (Nothing, "version"),
    (Nothing, "mn"),
    (Read, "get k"),
    (Read, "gets k l"),
    (Read, "mg k v"),
    (Read, "me k"),
    (Read, "stats"),
    (Read, "stats items"),
    (Write, "set k 0 0 1\r\nv"),
    (Write, "add k 0 0 1\r\nv"),
    (Write, "replace k 0 0 1\r\nv"),
    (Write, "append k 0 0 1\r\nv"),
    (Write, "prepend k 0 0 1\r\nv"),
    (Write, "cas k 0 0 1 7\r\nv"),
    (Write, "incr k 1"),
    (Write, "decr k 1"),
    (Write, "touch k 100"),
    (Write, "gat 100 k"),
    (Write, "gats 100 k"),
    (Write, "mg k v T100"),
    (Write, "mg absent v N100"),
    (Write, "ms k 1\r\nv"),
    (Write, "ma k"),
    (Write, "md k"),
    (Write, "delete k"),
    (Write, "flush_all"),
    (Admin, "stats settings"),
    (Admin, "stats conns"),
    (Admin, "stats reset"),
];

pub(crate) const RESP: &[(Needs, &str)] = &[
    (Read, "GET k"),
    (Read, "MGET k l"),
    (Read, "STRLEN k"),
    (Read, "GETRANGE k 0 1"),
    (Read, "EXISTS k"),
    (Read, "TTL k"),
    (Read, "PTTL k"),
    (Read, "EXPIRETIME k"),
    (Read, "PEXPIRETIME k"),
    (Read, "TYPE k"),
    (Read, "DBSIZE"),
    (Read, "SCAN 0"),
    (Read, "RANDOMKEY"),
    (Read, "INFO"),
    (Write, "SET k 1"),
    (Write, "SETNX k 1"),
    (Write, "SETEX k 100 1"),
    (Write, "PSETEX k 100000 1"),
    (Write, "GETSET k 1"),
    (Write, "GETEX k EX 100"),
    (Write, "MSET k 1 l 2"),
    (Write, "MSETNX k 1 l 2"),
    (Write, "APPEND k 1"),
    (Write, "SETRANGE k 1 1"),
    (Write, "INCR k"),
    (Write, "DECR k"),
    (Write, "INCRBY k 2"),
    (Write, "DECRBY k 2"),
    (Write, "INCRBYFLOAT k 2"),
    (Write, "EXPIRE k 100"),
    (Write, "PEXPIRE k 100000"),
    (Write, "EXPIREAT k 4000000000"),
    (Write, "PEXPIREAT k 4000000000000"),
    (Write, "PERSIST k"),
    (Write, "GETDEL k"),
    (Write, "DEL k"),
    (Write, "UNLINK k"),
    (Write, "FLUSHDB"),
    (Write, "FLUSHALL"),
    (Admin, "CONFIG GET *"),
];

/// Code, key, extras and value.
pub(crate) type Request = (u8, &'static str, &'static [u8], &'static [u8]);

pub(crate) const BINARY: &[(Needs, Request)] = &[
    (Nothing, (opcode::VERSION, "", &[], &[])),
    (Nothing, (opcode::NOOP, "", &[], &[])),
    (Read, (opcode::GET, "k", &[], &[])),
    (Read, (opcode::GETK, "k", &[], &[])),
    (Write, (opcode::SET, "k", &[0; 8], b"1")),
    (Write, (opcode::ADD, "k", &[0; 8], b"1")),
    (Write, (opcode::REPLACE, "k", &[0; 8], b"1")),
    (Write, (opcode::APPEND, "k", &[], b"1")),
    (Write, (opcode::PREPEND, "k", &[], b"1")),
    (Write, (opcode::INCREMENT, "k", &[0; 20], &[])),
    (Write, (opcode::DECREMENT, "k", &[0; 20], &[])),
    (Write, (opcode::TOUCH, "k", &[0; 4], &[])),
    (Write, (opcode::GAT, "k", &[0; 4], &[])),
    (Write, (opcode::DELETE, "k", &[], &[])),
    (Write, (opcode::FLUSH, "", &[], &[])),
    (Admin, (opcode::STAT, "settings", &[], &[])),
    (Admin, (opcode::STAT, "reset", &[], &[])),
];

const SASL_AUTH: u8 = 0x21;
const AUTH_ERROR: u16 = 0x20;

/// Whether a text command is refused to that user for who it is.
fn is_refused_as_text(door: SocketAddr, user: Option<&str>, command: &str) -> Result<bool> {
    let mut client = match user {
        Some(user) => log_in(door, user)?,
        None => TextClient::connect(door)?,
    };
    client.send(format!("{command}\r\nmn\r\n").as_bytes())?;
    let mut ends = if command == "mn" { 2 } else { 1 };
    let mut reply = String::new();
    while ends > 0 {
        let line = client.line()?;
        ends -= usize::from(line == "MN");
        reply.push_str(&line);
    }
    let refusals = [
        "unauthenticated",
        "authentication failure",
        "read-only user",
    ];
    Ok(refusals.iter().any(|it| reply.contains(it)))
}

fn is_refused_as_resp(client: &mut RespClient, command: &str) -> Result<bool> {
    Ok(match client.command(command)? {
        RespReply::Error(text) => ["NOAUTH", "NOPERM"].iter().any(|it| text.starts_with(it)),
        _ => false,
    })
}

/// What is not as it should be, at one address and for one user.
fn differences(door: SocketAddr, user: Option<&str>, has: Needs) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let mut note = |protocol: &str, needs: Needs, command: &str, is_refused: bool| {
        if is_refused != (has < needs) {
            wrong.push(format!(
                "{protocol} {command:?} needs {needs:?}: refused {is_refused}"
            ));
        }
    };
    for (needs, command) in TEXT {
        note(
            "text",
            *needs,
            command,
            is_refused_as_text(door, user, command)?,
        );
    }
    let mut client = RespClient::connect(door)?;
    if let Some(user) = user {
        client.command(&format!("AUTH {user} {PASSWORD}"))?.ok()?;
    }
    for (needs, command) in RESP {
        note(
            "resp",
            *needs,
            command,
            is_refused_as_resp(&mut client, command)?,
        );
    }
    let mut client = BinaryClient::connect(door)?;
    if let Some(user) = user {
        let login = format!("\0{user}\0{PASSWORD}");
        let reply = client.call(SASL_AUTH, "PLAIN", &[], login.as_bytes(), 0)?;
        ensure!(reply.status == 0, "{user}: {reply:?}");
    }
    for (needs, (code, key, extras, value)) in BINARY {
        let reply = client.call(*code, key, extras, value, 0)?;
        let command = format!("{code:#04x} {key}");
        note("binary", *needs, &command, reply.status == AUTH_ERROR);
    }
    Ok(wrong)
}

#[test]
fn each_role_may_do_what_it_may_in_every_protocol_at_routers_and_members() -> Result<()> {
    let secured = Secured::start()?;
    let doors = [
        ("the router", secured.router.addr()),
        ("a member", secured.nodes[0].addr()),
    ];
    for (what, door) in doors {
        for (user, has) in USERS {
            let wrong =
                differences(door, user, has).with_context(|| format!("{user:?} at {what}"))?;
            ensure!(wrong.is_empty(), "{user:?} at {what}: {wrong:#?}");
        }
    }
    Ok(())
}
