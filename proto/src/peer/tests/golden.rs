//! The bytes of version 1, as they have to stay.

use bytes::Bytes;

use crate::command::*;
use crate::outcome::{Hit, Number, Stored, Value};
use crate::peer::hello::{Hello, Rejection};
use crate::peer::*;
use crate::request::{ServerOutcome, StatsKind};
use crate::{
    Base, Batch, BatchStep, Failure, Out, Outcome, Seen, ServerCommand, Space, Transfer, Watched,
    WriterId,
};

/// One line a frame: its name and its bytes in hexadecimal.
const GOLDEN: &str = include_str!("../../../testdata/peer.v1.txt");

const ENVELOPE: Envelope = Envelope {
    id: 0x0403_0201,
    slot: 0x0605,
    space: 0x1817_0807,
    budget_ms: 0x0c0b_0a09,
    epoch: 0x100f_0e0d,
    writer: WriterId::new(0x1413_1211),
};

fn requests() -> Vec<(&'static str, Request<'static>)> {
    let command = Request::Command;
    let server = Request::Server;
    let entry = |content| Entry {
        flags: 5,
        expires_at_ms: Some(6),
        cas: Some(7),
        is_stale: true,
        is_token_given: true,
        content,
        ..Entry::tombstone(ENVELOPE.space, b"key", 8)
    };
    vec![
        ("get", command(Command::Get(Get::new(b"key")))),
        (
            "get-full",
            command(Command::Get(Get {
                touch: Some(ExpirySpec::InMs(1)),
                vivify: Some(ExpirySpec::AtMs(2)),
                claim: true,
                recache_below_s: Some(3),
                new_version: Some(4),
                delete: true,
                ..Get::facts(b"key")
            })),
        ),
        (
            "set",
            command(Command::Store(Store::set(
                b"key",
                b"value",
                9,
                ExpirySpec::Never,
            ))),
        ),
        (
            "store-full",
            command(Command::Store(Store {
                mode: StoreMode::Prepend,
                compare: Some(1),
                invalidate_if_older: true,
                new_version: Some(2),
                vivify: Some(ExpirySpec::Immediately),
                want_previous: true,
                ..Store::set(b"key", b"value", 9, ExpirySpec::Keep)
            })),
        ),
        (
            "arith",
            command(Command::Arith(Arith {
                key: b"key",
                op: ArithOp::Float(1.5),
                initial: Some((1, ExpirySpec::InMs(2))),
                absent_is_zero: true,
                touch: Some(ExpirySpec::Never),
                compare: Some(3),
                new_version: Some(4),
            })),
        ),
        (
            "delete",
            command(Command::Delete(Delete {
                compare: Some(1),
                mark_stale: true,
                keep_entry: true,
                touch: Some(ExpirySpec::Never),
                new_version: Some(2),
                ..Delete::new(b"key")
            })),
        ),
        (
            "touch",
            command(Command::Touch(Touch {
                key: b"key",
                expiry: ExpirySpec::Never,
                condition: ExpireCondition::IfEarlier,
            })),
        ),
        (
            "setrange",
            command(Command::SetRange(SetRange {
                key: b"key",
                offset: 1,
                value: b"value",
            })),
        ),
        (
            "flush",
            server(ServerCommand::Flush {
                all_databases: true,
                delay_s: 1,
            }),
        ),
        ("stats", server(ServerCommand::Stats(StatsKind::Reset))),
        ("count", server(ServerCommand::Count)),
        (
            "scan",
            server(ServerCommand::Scan {
                cursor: 1,
                pattern: Some(b"*"),
                count: 2,
            }),
        ),
        ("random-key", server(ServerCommand::RandomKey)),
        (
            "setbit",
            command(Command::SetBit(SetBit {
                key: b"key",
                offset: 1,
                is_set: true,
            })),
        ),
        ("batch", server(ServerCommand::Atomic(batch()))),
        (
            "batch-absent",
            server(ServerCommand::Atomic(Batch {
                all_absent: true,
                steps: vec![BatchStep::Command(Command::Store(Store::set(
                    b"key",
                    b"value",
                    9,
                    ExpirySpec::Never,
                )))],
                ..Batch::default()
            })),
        ),
        ("count-in-slot", server(ServerCommand::CountInSlot(0x0201))),
        (
            "put-tombstone",
            put(Entry::tombstone(ENVELOPE.space, b"key", 8)),
        ),
        (
            "put-value",
            put(entry(Content::Value(Value::Copied(b"value")))),
        ),
        (
            "put-frame",
            put(entry(Content::Frame(Value::Copied(b"frame")))),
        ),
        ("put-omitted", put(entry(Content::Omitted { len: 9 }))),
        ("fetch", Request::Fetch { key: b"key" }),
        ("ping", Request::Ping),
        (
            "copy",
            Request::Copy {
                get: Get::new(b"key"),
            },
        ),
        (
            "flush-now",
            Request::Flush {
                all_databases: false,
                cutoff: None,
                purge: None,
            },
        ),
        (
            "flush-below",
            Request::Flush {
                all_databases: true,
                cutoff: Some(0x0807_0605_0403_0201),
                purge: None,
            },
        ),
    ]
}

/// A write of the primary.
fn put(entry: Entry<'_>) -> Request<'_> {
    let again = false;
    Request::Put { entry, again }
}

fn batch() -> Batch<'static> {
    let watched = |seen| Watched {
        database: 3,
        key: b"w",
        seen,
    };
    let seen = Seen {
        version: 1,
        expires_at_ms: 2,
    };
    Batch {
        writer: WriterId::NONE,
        all_absent: false,
        base: Some(Base::of(Space(0x0201))),
        watched: vec![watched(None), watched(Some(seen))],
        steps: vec![
            BatchStep::Command(Command::Get(Get::new(b"key"))),
            BatchStep::Transfer(Transfer {
                from: b"from",
                to: b"to",
                database: 4,
                removes: true,
                replaces: true,
            }),
        ],
    }
}

fn replies() -> Vec<(&'static str, Reply<'static>)> {
    let outcome = Reply::Outcome;
    let server = Reply::Server;
    let hit = Hit {
        value: Value::Copied(b"value"),
        value_len: 5,
        flags: 1,
        version: 2,
        ttl_ms: None,
        expires_at_ms: None,
        idle_s: 3,
        fetched_before: false,
        stale: false,
        won: false,
        lost: false,
    };
    let full = Hit {
        value: Value::Copied(b""),
        ttl_ms: Some(4),
        expires_at_ms: Some(5),
        fetched_before: true,
        stale: true,
        won: true,
        lost: true,
        ..hit.clone()
    };
    let mut replies = vec![
        ("hit", outcome(Outcome::Hit(hit))),
        ("hit-full", outcome(Outcome::Hit(full))),
        ("miss", outcome(Outcome::Miss)),
        (
            "stored",
            outcome(Outcome::Stored(Stored {
                version: 1,
                value_len: 2,
                previous: Some(Bytes::from_static(b"old")),
            })),
        ),
        ("not-stored", outcome(Outcome::NotStored(None))),
        ("exists", outcome(Outcome::Exists)),
        ("not-found", outcome(Outcome::NotFound)),
        ("deleted", outcome(Outcome::Deleted { version: 1 })),
        ("touched", outcome(Outcome::Touched { version: 1 })),
        (
            "number",
            outcome(Outcome::Number(Number {
                text: b"42".as_slice().into(),
                version: 1,
                ttl_ms: Some(2),
            })),
        ),
        ("not-a-number", outcome(Outcome::NotANumber)),
        ("overflow", outcome(Outcome::Overflow)),
        ("done", server(ServerOutcome::Done)),
        (
            "pairs",
            server(ServerOutcome::Pairs(vec![("n".into(), "v".into())])),
        ),
        ("integer", server(ServerOutcome::Integer(-1))),
        (
            "scan",
            server(ServerOutcome::Scan {
                cursor: 1,
                keys: vec![b"key".to_vec()],
            }),
        ),
        ("key", server(ServerOutcome::Key(Some(b"key".to_vec())))),
        ("invalid-cursor", server(ServerOutcome::InvalidCursor)),
        (
            "server-failed",
            server(ServerOutcome::Failed(Failure::Busy)),
        ),
        ("applied", Reply::Applied),
        ("not-newer", Reply::NotNewer),
        ("entry", Reply::Entry(Entry::tombstone(1, b"key", 2))),
        ("unknown", Reply::Unknown),
        ("pong", Reply::Pong),
        ("wrong-owner", Reply::WrongOwner),
        ("refused-unsupported", Reply::Refused(Refusal::Unsupported)),
        ("refused-malformed", Reply::Refused(Refusal::Malformed)),
        ("refused-too-long", Reply::Refused(Refusal::TooLong)),
        ("refused-damaged", Reply::Refused(Refusal::Damaged)),
        ("version", Reply::Version(0x0807_0605_0403_0201)),
    ];
    for (name, failure) in [
        ("failed-busy", Failure::Busy),
        ("failed-out-of-space", Failure::OutOfSpace),
        ("failed-too-large", Failure::TooLarge),
        ("failed-read-only", Failure::ReadOnly),
        ("failed-auth-required", Failure::AuthRequired),
        ("failed-unavailable", Failure::Unavailable),
    ] {
        replies.push((name, outcome(Outcome::Failed(failure))));
    }
    let outcomes = vec![Outcome::Miss, Outcome::Deleted { version: 1 }];
    replies.push(("outcomes", server(ServerOutcome::Outcomes(outcomes.into()))));
    replies.push(("changed", server(ServerOutcome::Changed)));
    replies.push(("cross-slot", server(ServerOutcome::CrossSlot)));
    replies
}

fn line(kind: &str, name: &str, out: &Out) -> String {
    let hex: String = out.to_vec().iter().map(|it| format!("{it:02x}")).collect();
    format!("{kind} {name} {hex}\n")
}

#[test]
fn every_frame_has_the_bytes_that_it_always_had() {
    let mut lines = String::new();
    for (name, request) in requests() {
        let mut out = Out::new();
        request.encode(ENVELOPE, u32::MAX, None, &mut out).unwrap();
        lines += &line("request", name, &out);
    }
    // 2 KiB of slots would make the file unreadable; the set is checked by its checksum.
    let mut page = PageBuilder::new();
    page.push(&Entry::tombstone(1, b"a", 2)).unwrap();
    page.push(&Entry::tombstone(1, b"b", 3)).unwrap();
    let page = ("page", Reply::Page(page.page(b"next")));
    for (name, reply) in replies().into_iter().chain([page]) {
        let mut out = Out::new();
        reply.encode(ENVELOPE.reply(9), u32::MAX, &mut out).unwrap();
        lines += &line("reply", name, &out);
    }
    for (name, verdict) in [
        ("welcome", Ok(())),
        ("version", Err(Rejection::Version)),
        ("cluster", Err(Rejection::Cluster)),
        ("not-allowed", Err(Rejection::NotAllowed)),
    ] {
        let mut out = Out::new();
        Hello::new("node-1", "cluster", 1 << 20).encode(verdict, &mut out);
        lines += &line("hello", name, &out);
    }
    if let Some((at, (is, was))) = lines
        .lines()
        .zip(GOLDEN.lines())
        .enumerate()
        .find(|(_, (is, was))| is != was)
    {
        panic!("line {} changed\n is {is}\nwas {was}", at + 1);
    }
    assert_eq!(lines.lines().count(), GOLDEN.lines().count(), "{lines}");
}

#[test]
fn a_request_for_slots_has_the_bytes_that_it_always_had() {
    let mut out = Out::new();
    let slots = [0, 9, 16_383].into_iter().collect();
    let mut request = Request::FetchSlots {
        slots,
        after: None,
        cursor: b"at",
        len_max: 0x0100,
    };
    request.encode(ENVELOPE, u32::MAX, None, &mut out).unwrap();
    let bytes = out.to_vec();
    assert_eq!((bytes[1], bytes.len()), (0x42, HEAD_LEN + 4 + 2048 + 2));
    assert_eq!(
        (&bytes[2..4], &bytes[HEAD_LEN..HEAD_LEN + 6]),
        (&[0, 0][..], &[0, 1, 0, 0, 1, 2][..])
    );
    assert_eq!(&bytes[HEAD_LEN + 4 + 2047..], &[0x80, b'a', b't']);
    if let Request::FetchSlots { after, .. } = &mut request {
        *after = Some(7);
    }
    let mut out = Out::new();
    request.encode(ENVELOPE, u32::MAX, None, &mut out).unwrap();
    let bytes = out.to_vec();
    assert_eq!(
        (&bytes[2..4], &bytes[HEAD_LEN..HEAD_LEN + 6]),
        (&[1, 0][..], &[0, 1, 0, 0, 7, 0][..])
    );
}

#[test]
fn flushes_have_the_bytes_that_they_always_had() {
    let mut out = Out::new();
    let request = Request::Flushes;
    request.encode(ENVELOPE, u32::MAX, None, &mut out).unwrap();
    assert_eq!((out.to_vec()[1], out.to_vec().len()), (0x47, HEAD_LEN));
    let flush = |space, cutoff, at_ms| Flush {
        space,
        cutoff,
        at_ms,
        purge: None,
    };
    let mut out = Out::new();
    let reply = Reply::Flushes(vec![flush(3, 5, 0), flush(4, 0, 6)]);
    reply.encode(ENVELOPE.reply(9), u32::MAX, &mut out).unwrap();
    let bytes = out.to_vec();
    assert_eq!((bytes[1], bytes.len()), (0x4a, HEAD_LEN + 2 * 24));
    assert_eq!(
        &bytes[HEAD_LEN..HEAD_LEN + 13],
        &[3, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!((bytes[HEAD_LEN + 24], bytes[HEAD_LEN + 24 + 12]), (4, 6));
}

#[test]
fn slots_that_are_incomplete_have_the_bytes_that_they_always_had() {
    let slots: SlotSet = [0, 9, 16_383].into_iter().collect();
    let mut out = Out::new();
    let reply = Reply::Incomplete(slots);
    reply.encode(ENVELOPE.reply(9), u32::MAX, &mut out).unwrap();
    let bytes = out.to_vec();
    assert_eq!((bytes[1], bytes.len()), (0x48, HEAD_LEN + 2048));
    let slots = &bytes[HEAD_LEN..];
    assert_eq!((slots[0], slots[1], slots[2047]), (1, 2, 0x80));
}
