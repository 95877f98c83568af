//! What each role may do, in every protocol, at a router and at a member.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use prost_reflect::MethodDescriptor;
use tonic::Code;

use fonn_tests::client::{BinaryClient, RespClient, RespReply, TextClient, opcode, status};
use fonn_tests::reflection::Reflected;
use fonn_tests::secured::{PASSWORD, Secured, log_in};

/// What a command needs; a higher role has this too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Needs {
    /// Not even a login.
    Nothing,
    Read,
    Write,
    Admin,
}
use Needs::{Admin, Nothing, Read, Write};

/// Users, and what they have; none is no user.
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
    (Nothing, "verbosity 1"),
    (Read, "get k"),
    (Read, "gets k l"),
    (Read, "mg k v"),
    (Read, "me k"),
    (Read, "stats"),
    (Read, "stats items"),
    (Read, "stats slabs"),
    (Read, "stats sizes"),
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
    // They tell nothing of what is stored, nor of its users.
    (Nothing, "PING"),
    (Nothing, "OBJECT HELP"),
    (Nothing, "ECHO x"),
    (Nothing, "SELECT 0"),
    (Nothing, "HELLO"),
    (Nothing, "CLIENT SETINFO LIB-NAME x"),
    (Nothing, "CLIENT SETNAME x"),
    (Nothing, "CLIENT GETNAME"),
    (Nothing, "CLIENT ID"),
    (Nothing, "CLIENT NO-EVICT ON"),
    (Nothing, "CLIENT NO-TOUCH OFF"),
    (Nothing, "COMMAND"),
    (Nothing, "COMMAND COUNT"),
    (Nothing, "COMMAND DOCS GET"),
    (Nothing, "COMMAND INFO GET"),
    (Read, "CLIENT INFO"),
    (Read, "GET k"),
    (Read, "MGET k l"),
    (Read, "STRLEN k"),
    (Read, "GETRANGE k 0 1"),
    (Read, "SUBSTR k 0 1"),
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
    (Read, "TIME"),
    (Read, "OBJECT ENCODING k"),
    (Read, "OBJECT FREQ k"),
    (Read, "OBJECT IDLETIME k"),
    (Read, "GETBIT k 1"),
    (Read, "BITCOUNT k"),
    (Read, "LCS k l"),
    (Read, "WATCH k"),
    (Write, "SETBIT k 1 1"),
    (Write, "COPY {k} {k}2"),
    (Write, "RENAME {k} {k}2"),
    (Write, "RENAMENX {k}2 {k}"),
    (Admin, "KEYS *"),
    (Admin, "CONFIG SET log info"),
    (Write, "SET k 1"),
    (Write, "SETNX k 1"),
    // It changes when the entry was used last, and nothing else.
    (Write, "TOUCH k"),
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
    (Admin, "CONFIG RESETSTAT"),
    // A client that has used one of these may be sent to another member.
    (Nothing, "READONLY"),
    (Nothing, "READWRITE"),
    (Nothing, "ASKING"),
    (Nothing, "CLUSTER KEYSLOT k"),
    (Nothing, "CLUSTER HELP"),
    (Nothing, "CLUSTER LINKS"),
    (Read, "CLUSTER SLOTS"),
    (Read, "CLUSTER SHARDS"),
    (Read, "CLUSTER NODES"),
    (Read, "CLUSTER MYID"),
    (Read, "CLUSTER MYSHARDID"),
    (Read, "CLUSTER INFO"),
    (Read, "CLUSTER COUNTKEYSINSLOT 1"),
    (Read, "CLUSTER COUNT-FAILURE-REPORTS x"),
    (Read, "CLUSTER REPLICAS x"),
    (Read, "CLUSTER SLAVES x"),
];

/// What changes the login, or ends the connection.
const RESP_APART: [&str; 7] = [
    "AUTH", "QUIT", "RESET", "MULTI", "EXEC", "DISCARD", "UNWATCH",
];

/// Code, key, extras and value.
pub(crate) type Request = (u8, &'static str, &'static [u8], &'static [u8]);

pub(crate) const BINARY: &[(Needs, Request)] = &[
    (Nothing, (opcode::VERSION, "", &[], &[])),
    (Nothing, (opcode::NOOP, "", &[], &[])),
    (Nothing, (0x1b, "", &[0; 4], &[])),
    (Nothing, (0x20, "", &[], &[])),
    (Read, (opcode::GET, "k", &[], &[])),
    (Read, (opcode::GETK, "k", &[], &[])),
    (Read, (opcode::GETQ, "k", &[], &[])),
    (Read, (opcode::GETKQ, "k", &[], &[])),
    (Read, (opcode::STAT, "", &[], &[])),
    (Write, (opcode::SET, "k", &[0; 8], b"1")),
    (Write, (opcode::ADD, "k", &[0; 8], b"1")),
    (Write, (opcode::REPLACE, "k", &[0; 8], b"1")),
    (Write, (opcode::APPEND, "k", &[], b"1")),
    (Write, (opcode::PREPEND, "k", &[], b"1")),
    (Write, (opcode::INCREMENT, "k", &[0; 20], &[])),
    (Write, (opcode::DECREMENT, "k", &[0; 20], &[])),
    (Write, (opcode::TOUCH, "k", &[0; 4], &[])),
    (Write, (opcode::GAT, "k", &[0; 4], &[])),
    (Write, (0x23, "k", &[0; 4], &[])),
    (Write, (opcode::DELETE, "k", &[], &[])),
    (Write, (opcode::FLUSH, "", &[], &[])),
    // The quiet ones.
    (Write, (opcode::SETQ, "k", &[0; 8], b"1")),
    (Write, (0x12, "k", &[0; 8], b"1")),
    (Write, (0x13, "k", &[0; 8], b"1")),
    (Write, (0x15, "k", &[0; 20], &[])),
    (Write, (0x16, "k", &[0; 20], &[])),
    (Write, (0x19, "k", &[], b"1")),
    (Write, (0x1a, "k", &[], b"1")),
    (Write, (0x1e, "k", &[0; 4], &[])),
    (Write, (0x24, "k", &[0; 4], &[])),
    (Write, (0x14, "k", &[], &[])),
    (Write, (0x18, "", &[], &[])),
    (Admin, (opcode::STAT, "settings", &[], &[])),
    (Admin, (opcode::STAT, "conns", &[], &[])),
    (Admin, (opcode::STAT, "reset", &[], &[])),
];

const SASL_AUTH: u8 = 0x21;
const SASL_STEP: u8 = 0x22;
const AUTH_ERROR: u16 = 0x20;

/// What changes the login, or ends the connection.
const BINARY_APART: [u8; 4] = [opcode::QUIT, 0x17, SASL_AUTH, SASL_STEP];

/// The service that routers have of their own.
const ROUTER: &str = "fonn.v1.Router/";

/// The calls of the admin port. It is not looked up in the table by which processes go, but held
/// against it.
const CALLS: &[(Needs, &str)] = &[
    (Nothing, "grpc.health.v1.Health/Check"),
    (Nothing, "grpc.health.v1.Health/Watch"),
    (
        Read,
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    ),
    (Read, "fonn.v1.Admin/Status"),
    (Read, "fonn.v1.Admin/Key"),
    (Read, "fonn.v1.Admin/ListNamespaces"),
    (Read, "fonn.v1.Cold/ListSegments"),
    (Read, "fonn.v1.Membership/Map"),
    (Read, "fonn.v1.Router/Status"),
    (Read, "fonn.v1.Telemetry/Watch"),
    (Read, "fonn.v1.Telemetry/Events"),
    (Admin, "fonn.v1.Tools/Uses"),
    (Write, "fonn.v1.Admin/DeleteKey"),
    (Write, "fonn.v1.Admin/Flush"),
    (Admin, "fonn.v1.Admin/CountWritten"),
    (Admin, "fonn.v1.Admin/Purge"),
    (Admin, "fonn.v1.Admin/Warm"),
    (Admin, "fonn.v1.Admin/SetCodec"),
    (Admin, "fonn.v1.Cold/Doctor"),
    (Admin, "fonn.v1.Cold/InspectSegment"),
    (Admin, "fonn.v1.Cold/Verify"),
    (Admin, "fonn.v1.Cold/Rebuild"),
    (Admin, "fonn.v1.Membership/Drain"),
    (Admin, "fonn.v1.Membership/Remove"),
    (Admin, "fonn.v1.Membership/SetWeight"),
    (Admin, "fonn.v1.Membership/SetReplicas"),
    (Admin, "fonn.v1.Settings/Config"),
    (Admin, "fonn.v1.Users/List"),
    (Admin, "fonn.v1.Users/Put"),
    (Admin, "fonn.v1.Users/Remove"),
];

/// Whether a text command is refused to that user for its role.
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
        let answers = client.answers(*code, key, extras, value)?;
        let is_refused = answers.iter().any(|it| it.status == AUTH_ERROR);
        note("binary", *needs, &format!("{code:#04x} {key}"), is_refused);
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

/// The commands that a server describes, containers by their subcommands: `CONFIG GET`.
fn described(client: &mut RespClient) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let mut open = client.command("COMMAND")?.array()?;
    while let Some(row) = open.pop() {
        let parts = row.array()?;
        let name = parts.first().context("no name")?.clone();
        let name = String::from_utf8(name.bulk()?.context("no name")?)?;
        let RespReply::Array(below) = parts.last().context("no subcommands")? else {
            anyhow::bail!("{name}: {parts:?}");
        };
        // `COMMAND` is a command by itself, too.
        if below.is_empty() || name == "command" {
            names.insert(name.to_uppercase().replace('|', " "));
        }
        open.extend(below.iter().cloned());
    }
    Ok(names)
}

#[test]
fn no_command_that_is_known_is_missing_from_the_tables() -> Result<()> {
    let secured = Secured::start()?;
    for door in [secured.router.addr(), secured.nodes[0].addr()] {
        let mut client = RespClient::connect(door)?;
        client.command(&format!("AUTH root {PASSWORD}"))?.ok()?;
        let names = described(&mut client)?;
        ensure!(names.len() > 60, "{names:?}");
        let rows = RESP.iter().map(|(_, command)| *command).chain(RESP_APART);
        let rows: Vec<&str> = rows.collect();
        let has_row = |name: &&String| {
            let is_of = |row: &&str| row.strip_prefix(name.as_str()).is_some_and(is_end);
            rows.iter().any(is_of)
        };
        let missing: Vec<_> = names.iter().filter(|name| !has_row(name)).collect();
        ensure!(missing.is_empty(), "no rows at {door}: {missing:?}");

        let mut client = BinaryClient::connect(door)?;
        let login = format!("\0root\0{PASSWORD}");
        let reply = client.call(SASL_AUTH, "PLAIN", &[], login.as_bytes(), 0)?;
        ensure!(reply.status == 0, "{reply:?}");
        for code in (0..=u8::MAX).filter(|code| !BINARY_APART.contains(code)) {
            let answers = client.answers(code, "", &[], &[])?;
            let is_unknown = answers
                .iter()
                .any(|it| it.status == status::UNKNOWN_COMMAND);
            let has_row = BINARY.iter().any(|(_, row)| row.0 == code);
            ensure!(is_unknown != has_row, "{code:#04x} at {door}: {answers:?}");
        }
    }
    Ok(())
}

/// Whether a command's name ends before this.
fn is_end(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with(' ')
}

/// All methods of all services that a port lists.
fn methods(port: &Reflected) -> Result<Vec<MethodDescriptor>> {
    let mut all = Vec::new();
    for service in port.services()? {
        all.extend(port.methods(&service)?);
    }
    Ok(all)
}

fn path(method: &MethodDescriptor) -> String {
    format!("{}/{}", method.parent_service().full_name(), method.name())
}

#[test]
fn each_role_may_call_what_it_may_at_routers_and_members_and_by_way_of_them() -> Result<()> {
    let secured = Secured::start()?;
    let (router, member) = (secured.router.admin(), secured.nodes[0].admin());
    for (what, door, asked) in [
        ("the router", router, None),
        ("the router, of `b`", router, Some("b")),
        ("a member", member, None),
        ("a member, of `b`", member, Some("b")),
    ] {
        let door = door.to_string();
        let listed = methods(&Reflected::connect(&door, Some(("root", PASSWORD)))?)?;
        let found: BTreeSet<String> = listed.iter().map(path).collect();
        let is_router = door == router.to_string();
        let rows = CALLS
            .iter()
            .filter(|(_, name)| is_router || !name.starts_with(ROUTER))
            .map(|(_, name)| (*name).to_owned());
        ensure!(
            found == rows.collect::<BTreeSet<_>>(),
            "{what} lists {found:?}"
        );
        for (user, has) in USERS {
            let mut port = Reflected::connect(&door, user.map(|user| (user, PASSWORD)))?;
            if let Some(asked) = asked {
                port = port.for_member(asked)?;
            }
            let refusal = match has {
                Nothing => Code::Unauthenticated,
                _ => Code::PermissionDenied,
            };
            // A member has no service of routers.
            let is_here = |name: &str| asked.is_none() || !name.starts_with(ROUTER);
            for method in listed.iter().filter(|it| is_here(&path(it))) {
                let name = path(method);
                let row = CALLS.iter().find(|(_, row)| *row == name);
                let (needs, _) = row.context("no row")?;
                let code = port.begin(method)?;
                let is_refused = matches!(code, Code::Unauthenticated | Code::PermissionDenied);
                ensure!(
                    is_refused == (has < *needs) && (!is_refused || code == refusal),
                    "{name} as {user:?} at {what}: {code:?}"
                );
            }
        }
    }
    Ok(())
}
