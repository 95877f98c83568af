mod framing;
pub(in crate::memcached) mod model;
mod properties;
mod recorded;

use bytes::Bytes;
use smallvec::SmallVec;

use self::model::{VALUE_LEN_MAX, converse, said};
use super::*;
use crate::Out;
use crate::command::{
    Arith, ArithOp, Command, Delete, ExpireCondition, ExpirySpec, Get, Store, StoreMode, Touch,
};
use crate::outcome::{Failure, Hit, Number, Outcome, Stored, Value};
use crate::request::{
    Body, LateReply, Limits, Request, ServerCommand, ServerOutcome, StatsKind, Step,
};

/// Hands the only request in `bytes` to `check`.
fn with_request<R>(bytes: &[u8], check: impl FnOnce(Request<'_>) -> R) -> R {
    let mut parser = Parser::new(Limits {
        value_len_max: VALUE_LEN_MAX,
    });
    match parser.parse(bytes) {
        Step::Request { request, len } => {
            assert_eq!(len, bytes.len(), "all of {}", bytes.escape_ascii());
            check(request)
        }
        step => panic!("{step:?} for {}", bytes.escape_ascii()),
    }
}

fn assert_commands(bytes: &[u8], expected: &[Command<'_>]) {
    with_request(bytes, |request| match request.body {
        Body::Data(commands) => {
            assert_eq!(commands.as_slice(), expected, "{}", bytes.escape_ascii());
            assert_eq!(request.database, 0);
        }
        body => panic!("{body:?} for {}", bytes.escape_ascii()),
    });
}

fn assert_server(bytes: &[u8], expected: &ServerCommand<'_>) {
    with_request(bytes, |request| match &request.body {
        Body::Server(command) => assert_eq!(command, expected, "{}", bytes.escape_ascii()),
        body => panic!("{body:?} for {}", bytes.escape_ascii()),
    });
}

/// What the request in `bytes` answers to an outcome of its first command.
fn answer(bytes: &[u8], outcome: &Outcome<'_>) -> String {
    with_request(bytes, |request| {
        let Request {
            body: Body::Data(commands),
            mut reply,
            ..
        } = request
        else {
            panic!("no command in {}", bytes.escape_ascii());
        };
        let mut out = Out::new();
        reply.each(&commands[0], outcome, &mut out);
        reply.finish(&mut out);
        out.to_vec().escape_ascii().to_string()
    })
}

fn server_answer(bytes: &[u8], outcome: &ServerOutcome) -> String {
    with_request(bytes, |mut request| {
        let Body::Server(command) = &request.body else {
            panic!("no server command in {}", bytes.escape_ascii());
        };
        let mut out = Out::new();
        request.reply.server(command, outcome, &mut out);
        out.to_vec().escape_ascii().to_string()
    })
}

fn hit(value: &'static [u8]) -> Outcome<'static> {
    Outcome::Hit(Hit {
        value: Value::Copied(value),
        value_len: value.len(),
        flags: 7,
        version: 42,
        ttl_ms: None,
        expires_at_ms: None,
        idle_s: 0,
        fetched_before: false,
        stale: false,
        won: false,
        lost: false,
    })
}

#[test]
fn retrievals_carry_a_get_for_each_key() {
    let get = |key| Command::Get(Get::new(key));
    let gat = |key, touch| {
        Command::Get(Get {
            touch: Some(touch),
            ..Get::new(key)
        })
    };
    assert_commands(b"get a\r\n", &[get(b"a")]);
    assert_commands(b"gets a bb a\n", &[get(b"a"), get(b"bb"), get(b"a")]);
    assert_commands(b"gat 0 a\r\n", &[gat(b"a", ExpirySpec::Never)]);
    assert_commands(
        b"gats 60 a b\r\n",
        &[
            gat(b"a", ExpirySpec::InMs(60_000)),
            gat(b"b", ExpirySpec::InMs(60_000)),
        ],
    );
    assert_commands(b"gat -1 a\r\n", &[gat(b"a", ExpirySpec::Immediately)]);
}

#[test]
fn storage_commands_carry_flags_expiry_mode_and_version() {
    let set = |expiry| Store::set(b"k", b"abc", 5, expiry);
    let modes = [
        ("set", StoreMode::Set),
        ("add", StoreMode::Add),
        ("replace", StoreMode::Replace),
        ("append", StoreMode::Append),
        ("prepend", StoreMode::Prepend),
    ];
    for (verb, mode) in modes {
        let line = format!("{verb} k 5 0 3\r\nabc\r\n");
        let expected = Store {
            mode,
            ..set(ExpirySpec::Never)
        };
        assert_commands(line.as_bytes(), &[Command::Store(expected)]);
    }
    let compared = Store {
        compare: Some(u64::MAX),
        ..set(ExpirySpec::Never)
    };
    let cas = b"cas k 5 0 3 18446744073709551615 noreply\r\nabc\r\n";
    assert_commands(cas, &[Command::Store(compared)]);

    let expiries = [
        ("1", ExpirySpec::InMs(1000)),
        ("2592000", ExpirySpec::InMs(2_592_000_000)),
        ("2592001", ExpirySpec::AtMs(2_592_001_000)),
        ("1900000000", ExpirySpec::AtMs(1_900_000_000_000)),
        ("-1", ExpirySpec::Immediately),
        ("-9223372036854775808", ExpirySpec::Immediately),
    ];
    for (exptime, expiry) in expiries {
        let line = format!("set k 5 {exptime} 3\r\nabc\r\n");
        assert_commands(line.as_bytes(), &[Command::Store(set(expiry))]);
    }
}

#[test]
fn other_commands_carry_what_they_say() {
    let arith = |op| {
        Command::Arith(Arith {
            key: b"k",
            op,
            initial: None,
            absent_is_zero: false,
            touch: None,
            compare: None,
            new_version: None,
        })
    };
    assert_commands(b"incr k 5\r\n", &[arith(ArithOp::Increment(5))]);
    assert_commands(
        b"decr k 18446744073709551615\r\n",
        &[arith(ArithOp::Decrement(u64::MAX))],
    );
    assert_commands(b"delete k\r\n", &[Command::Delete(Delete::new(b"k"))]);
    assert_commands(b"delete k 0\r\n", &[Command::Delete(Delete::new(b"k"))]);
    // A key may be called noreply.
    assert_commands(
        b"delete noreply\r\n",
        &[Command::Delete(Delete::new(b"noreply"))],
    );
    let touch = Touch {
        key: b"k",
        expiry: ExpirySpec::InMs(9000),
        condition: ExpireCondition::Always,
    };
    assert_commands(b"touch k 9\r\n", &[Command::Touch(touch)]);
}

#[test]
fn server_commands_carry_what_they_say() {
    let flush = |delay_s| ServerCommand::Flush {
        all_databases: false,
        delay_s,
    };
    assert_server(b"flush_all\r\n", &flush(0));
    assert_server(b"flush_all noreply\r\n", &flush(0));
    assert_server(b"flush_all 10 noreply\r\n", &flush(10));
    assert_server(b"flush_all -10\r\n", &flush(0));
    assert_server(b"flush_all 99999999999\r\n", &flush(u32::MAX));
    let kinds = [
        ("", StatsKind::General),
        (" items", StatsKind::Items),
        (" settings", StatsKind::Settings),
        (" conns", StatsKind::Connections),
        (" slabs", StatsKind::Empty),
        (" sizes", StatsKind::Empty),
        (" reset", StatsKind::Reset),
    ];
    for (what, kind) in kinds {
        assert_server(
            format!("stats{what}\r\n").as_bytes(),
            &ServerCommand::Stats(kind),
        );
    }
}

#[test]
fn hits_are_value_lines_and_a_miss_is_nothing() {
    assert_eq!(
        answer(b"get a\r\n", &hit(b"xyz")),
        r"VALUE a 7 3\r\nxyz\r\nEND\r\n"
    );
    assert_eq!(
        answer(b"gets a\r\n", &hit(b"xyz")),
        r"VALUE a 7 3 42\r\nxyz\r\nEND\r\n"
    );
    assert_eq!(
        answer(b"gats 0 a\r\n", &hit(b"")),
        r"VALUE a 7 0 42\r\n\r\nEND\r\n"
    );
    assert_eq!(answer(b"get a\r\n", &Outcome::Miss), r"END\r\n");
}

#[test]
fn a_failure_ends_a_retrieval() {
    let answer = with_request(b"get a b c\r\n", |request| {
        let Request {
            body: Body::Data(commands),
            mut reply,
            ..
        } = request
        else {
            panic!("no commands");
        };
        let outcomes = [hit(b"x"), Outcome::Failed(Failure::Unavailable), hit(b"y")];
        let mut out = Out::new();
        for (command, outcome) in commands.iter().zip(&outcomes) {
            reply.each(command, outcome, &mut out);
        }
        reply.finish(&mut out);
        out.to_vec()
    });
    assert_eq!(answer, b"VALUE a 7 1\r\nx\r\nSERVER_ERROR unavailable\r\n");
}

#[test]
fn each_outcome_has_its_line_and_noreply_has_none() {
    let number = Number {
        text: SmallVec::from_slice(b"17"),
        version: 1,
        ttl_ms: None,
    };
    let stored = Stored {
        version: 1,
        value_len: 1,
        previous: None,
    };
    let set = (
        &b"set k 0 0 1\r\nx\r\n"[..],
        &b"set k 0 0 1 noreply\r\nx\r\n"[..],
    );
    let incr = (&b"incr k 1\r\n"[..], &b"incr k 1 noreply\r\n"[..]);
    let delete = (&b"delete k\r\n"[..], &b"delete k 0 noreply\r\n"[..]);
    let touch = (&b"touch k 1\r\n"[..], &b"touch k 1 noreply\r\n"[..]);
    let not_numeric = r"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    let lines = [
        (set, Outcome::Stored(stored), r"STORED\r\n"),
        (set, Outcome::NotStored(None), r"NOT_STORED\r\n"),
        (
            set,
            Outcome::NotStored(Some(Bytes::from_static(b"old"))),
            r"NOT_STORED\r\n",
        ),
        (set, Outcome::Exists, r"EXISTS\r\n"),
        (set, Outcome::NotFound, r"NOT_FOUND\r\n"),
        (
            set,
            Outcome::Failed(Failure::Busy),
            r"SERVER_ERROR busy\r\n",
        ),
        (incr, Outcome::Number(number), r"17\r\n"),
        (incr, Outcome::NotFound, r"NOT_FOUND\r\n"),
        (incr, Outcome::NotANumber, not_numeric),
        (incr, Outcome::Overflow, not_numeric),
        (delete, Outcome::Deleted { version: 0 }, r"DELETED\r\n"),
        (delete, Outcome::NotFound, r"NOT_FOUND\r\n"),
        (touch, Outcome::Touched { version: 1 }, r"TOUCHED\r\n"),
        (touch, Outcome::NotFound, r"NOT_FOUND\r\n"),
    ];
    for ((loud, quiet), outcome, line) in lines {
        assert_eq!(answer(loud, &outcome), line);
        assert_eq!(answer(quiet, &outcome), "", "{}", quiet.escape_ascii());
    }
}

#[test]
fn each_failure_has_its_line() {
    let lines = Failure::ALL.map(|failure| {
        let mut out = Out::new();
        put_failure(failure, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    });
    assert_eq!(
        lines,
        [
            "SERVER_ERROR busy\r\n",
            "SERVER_ERROR out of memory storing object\r\n",
            "SERVER_ERROR object too large for cache\r\n",
            "CLIENT_ERROR read-only user\r\n",
            "CLIENT_ERROR unauthenticated\r\n",
            "SERVER_ERROR unavailable\r\n",
        ]
    );
}

#[test]
fn server_commands_are_answered() {
    let pairs = ["pid", "version"].map(|name| (name.to_owned(), format!("{name} 1")));
    let pairs = ServerOutcome::Pairs(pairs.to_vec());
    let rows = r"STAT pid pid 1\r\nSTAT version version 1\r\nEND\r\n";
    assert_eq!(server_answer(b"stats\r\n", &pairs), rows);
    assert_eq!(
        server_answer(b"stats sizes\r\n", &ServerOutcome::Pairs(Vec::new())),
        r"END\r\n"
    );
    assert_eq!(
        server_answer(b"stats reset\r\n", &ServerOutcome::Done),
        r"RESET\r\n"
    );
    assert_eq!(
        server_answer(b"flush_all\r\n", &ServerOutcome::Done),
        r"OK\r\n"
    );
    let failed = ServerOutcome::Failed(Failure::ReadOnly);
    assert_eq!(
        server_answer(b"flush_all\r\n", &failed),
        r"CLIENT_ERROR read-only user\r\n"
    );
    assert_eq!(server_answer(b"flush_all noreply\r\n", &failed), "");
}

#[test]
fn authentication_is_a_set_whose_value_has_two_words() {
    assert_eq!(
        credentials(b"user pass"),
        Some((&b"user"[..], &b"pass"[..]))
    );
    assert_eq!(
        credentials(b" user  pass more"),
        Some((&b"user"[..], &b"pass"[..]))
    );
    assert_eq!(credentials(b"user"), None);
    assert_eq!(credentials(b""), None);
    let auth = ServerCommand::Auth {
        user: b"user",
        password: b"pass",
    };
    let answers = [
        (ServerOutcome::Done, &b"STORED\r\n"[..]),
        (
            ServerOutcome::WrongPassword,
            b"CLIENT_ERROR authentication failure\r\n",
        ),
        (
            ServerOutcome::AuthNotConfigured,
            b"CLIENT_ERROR authentication failure\r\n",
        ),
    ];
    for (outcome, expected) in answers {
        let answer = with_request(b"set auth 0 0 9\r\nuser pass\r\n", |mut request| {
            let mut out = Out::new();
            request.reply.server(&auth, &outcome, &mut out);
            out.to_vec()
        });
        assert_eq!(answer, expected);
    }
}

#[test]
fn a_late_failure_is_told_unless_noreply() {
    let late = |bytes| with_request(bytes, |request| request.reply.late());
    assert_eq!(
        late(b"set k 0 0 1\r\nx\r\n"),
        LateReply::Text { quiet: false }
    );
    assert_eq!(
        late(b"set k 0 0 1 noreply\r\nx\r\n"),
        LateReply::Text { quiet: true }
    );
    assert_eq!(late(b"ms k 1 q\r\nx\r\n"), LateReply::Meta);
    for (late, expected) in [
        (
            LateReply::Text { quiet: false },
            &b"SERVER_ERROR busy\r\n"[..],
        ),
        (LateReply::Text { quiet: true }, b""),
        (LateReply::Meta, b"SERVER_ERROR busy\r\n"),
    ] {
        let mut out = Out::new();
        late.failure(Failure::Busy, &mut out);
        assert_eq!(out.to_vec(), expected);
    }
}

#[test]
fn version_and_quit_need_no_execution() {
    let version = format!("VERSION {}\\r\\n", crate::memcached::VERSION);
    assert_eq!(said(b"version\r\nversion x\r\n"), version.repeat(2));
    assert_eq!(converse(b"quit\r\nversion\r\n"), (Vec::new(), true));
    assert_eq!(said(b"verbosity 1\r\nverbosity 1 noreply\r\n"), r"OK\r\n");
}

#[test]
fn keys_have_up_to_250_bytes() {
    let (fits, over) = ("k".repeat(250), "k".repeat(251));
    let bad = r"CLIENT_ERROR bad command line format\r\n";
    let cases = [
        ("get KEY\r\n", r"END\r\n"),
        ("gat 0 KEY\r\n", r"END\r\n"),
        ("incr KEY 1\r\n", r"NOT_FOUND\r\n"),
        ("delete KEY\r\n", r"NOT_FOUND\r\n"),
        ("touch KEY 0\r\n", r"NOT_FOUND\r\n"),
        ("set KEY 0 0 1\r\nx\r\n", r"STORED\r\n"),
        ("mg KEY\r\n", r"EN\r\n"),
        ("ms KEY 1\r\nx\r\n", r"HD\r\n"),
        ("md KEY\r\n", r"NF\r\n"),
        ("ma KEY\r\n", r"NF\r\n"),
        ("me KEY\r\n", r"EN\r\n"),
    ];
    for (line, answer) in cases {
        assert_eq!(said(line.replace("KEY", &fits).as_bytes()), answer);
        assert_eq!(said(line.replace("KEY", &over).as_bytes()), bad, "{line}");
    }
    // One key that is too long spoils the whole retrieval.
    assert_eq!(said(format!("get a {over} b\r\n").as_bytes()), bad);
}
