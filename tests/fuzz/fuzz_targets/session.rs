//! A connection as a server holds it: the dialect is decided once, from the first bytes; the
//! requests do not depend on how the stream is cut into reads; and whatever comes of them can be
//! put into words.
#![no_main]

use std::sync::Arc;

use fonn_proto::cluster::ClusterView;
use fonn_proto::drive::drive;
use fonn_proto::outcome::Value;
use fonn_proto::request::ServerOutcome;
use fonn_proto::session::{DETECT_LEN_MAX, Detection, Dialect, KeysAhead, Session, detect};
use fonn_proto::{
    BatchStep, Body, Command, Failure, Hit, Limits, Moved, Number, Out, Outcome, ServerCommand, Step, Stored,
};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits { value_len_max: 64 };

/// Answers are dropped when they are longer than this.
const OUT_LEN_MAX: usize = 1 << 20;

fuzz_target!(|input: (Vec<u8>, Vec<u8>, Vec<u8>)| {
    let (reads, choices, bytes) = input;
    let Some(dialect) = decide(&bytes) else {
        return;
    };
    let reads: Vec<usize> = reads.into_iter().map(usize::from).collect();
    let requests = |reads: &[usize]| {
        let mut session = Session::new(dialect, LIMITS, 1);
        assert_eq!(session.dialect(), dialect);
        drive(&mut session, Session::parse, &bytes, reads)
    };
    let whole = requests(&[]);
    assert_eq!(requests(&[1]), whole);
    assert_eq!(requests(&reads), whole);
    let ahead: usize = KeysAhead::new(dialect, &bytes).map(<[u8]>::len).sum();
    assert!(ahead <= bytes.len());
    answer(dialect, &bytes, &choices);
});

/// The dialect, decided byte by byte: once, and not otherwise with more bytes.
fn decide(bytes: &[u8]) -> Option<Dialect> {
    let mut decided = None;
    for len in 0..=bytes.len().min(DETECT_LEN_MAX + 1) {
        match (decided, detect(&bytes[..len])) {
            (None, Detection::Need { total }) => assert!(len < total && total <= DETECT_LEN_MAX),
            (None, decision) => decided = Some(decision),
            (Some(before), now) => assert_eq!(before, now),
        }
    }
    match decided {
        Some(Detection::Found(dialect)) => Some(dialect),
        _ => None,
    }
}

/// Answers all requests of `bytes`, with outcomes by `choices`.
fn answer(dialect: Dialect, mut bytes: &[u8], choices: &[u8]) {
    let mut session = Session::new(dialect, LIMITS, 1);
    let mut choices = choices.iter().copied().cycle();
    let mut choose = || choices.next().unwrap_or(0);
    let mut out = Out::new();
    while !bytes.is_empty() {
        if choose() == 255 {
            session.refuse(Failure::Busy);
        }
        let (mut request, len) = match session.parse(bytes) {
            Step::Need { .. } => return,
            Step::Skip { len } => {
                let len = usize::try_from(len).unwrap_or(usize::MAX).min(bytes.len());
                bytes = &bytes[len..];
                continue;
            }
            Step::Request { request, len } => (request, len),
        };
        let late = request.reply.late();
        match &request.body {
            Body::Data(commands) => {
                for command in commands {
                    let outcome = outcome(command, choose(), &bytes[..len]);
                    request.reply.each(command, &outcome, &mut out);
                }
                request.reply.finish(&mut out);
            }
            Body::Server(command) => {
                let outcome = server_outcome(command, choose());
                request.reply.server(command, &outcome, &mut out);
            }
            Body::Answer | Body::Queued(_) | Body::LogOut | Body::Close | Body::Broken => {
                request.reply.finish(&mut out);
            }
        }
        if choose() % 8 == 0 {
            late.failure(Failure::OutOfSpace, &mut out);
        }
        if dialect != Dialect::Binary {
            let words = out.to_vec();
            assert!(words.is_empty() || words.ends_with(b"\r\n"));
        }
        if dialect != Dialect::Binary || out.len() > OUT_LEN_MAX {
            out = Out::new();
        }
        if matches!(request.body, Body::Close | Body::Broken) {
            return;
        }
        bytes = &bytes[len..];
    }
}

/// One of the outcomes that a command may have. Values are pieces of `bytes`.
fn outcome<'v>(command: &Command<'_>, choice: u8, bytes: &'v [u8]) -> Outcome<'v> {
    let version = u64::from(choice) << 50 | 1;
    let piece = &bytes[..bytes.len().min(usize::from(choice))];
    let common = match choice % 8 {
        0 => Some(Outcome::Failed(
            Failure::ALL[usize::from(choice / 8) % Failure::ALL.len()],
        )),
        1 => Some(Outcome::Moved(Moved {
            slot: 16_383,
            host: "::1".to_owned(),
            port: 11_211,
        })),
        _ => None,
    };
    if let Some(common) = common {
        return common;
    }
    let previous = (choice & 16 != 0).then(|| piece.to_vec().into());
    let stored = Outcome::Stored(Stored {
        version,
        value_len: piece.len(),
        previous: previous.clone(),
    });
    match (command, choice % 8) {
        (Command::Get(_), 2) => Outcome::Miss,
        (Command::Get(get), _) => Outcome::Hit(Hit {
            value: match (get.want_value, choice & 32) {
                (false, _) => Value::Copied(&[]),
                (true, 0) => Value::Copied(piece),
                (true, _) => Value::Shared(piece.to_vec().into()),
            },
            value_len: piece.len(),
            flags: u32::from(choice) << 24,
            version,
            ttl_ms: (choice & 64 != 0).then_some(version),
            expires_at_ms: (choice & 64 != 0).then_some(u64::MAX),
            idle_s: u32::MAX,
            fetched_before: choice & 8 != 0,
            stale: choice & 16 != 0,
            won: choice & 32 != 0,
            lost: choice & 128 != 0,
        }),
        (Command::Arith(_), 2) => Outcome::NotFound,
        (Command::Arith(_), 3) => Outcome::NotANumber,
        (Command::Arith(_), 4) => Outcome::Overflow,
        (Command::Arith(_), 5) => Outcome::Exists,
        (Command::Arith(_), _) => Outcome::Number(Number {
            text: b"18446744073709551615".as_slice().into(),
            version,
            ttl_ms: None,
        }),
        (Command::Delete(_) | Command::Touch(_), 2) => Outcome::NotFound,
        (Command::Delete(_), 3) => Outcome::Exists,
        (Command::Delete(_), _) => Outcome::Deleted { version },
        (Command::Touch(_), 3) => Outcome::NotStored(None),
        (Command::Touch(_), _) => Outcome::Touched { version },
        (Command::Store(_), 2) => Outcome::NotStored(previous),
        (Command::Store(_), 3) => Outcome::Exists,
        (Command::Store(_), 4) => Outcome::NotFound,
        (Command::SetBit(_), _) => Outcome::Number(Number {
            text: b"1".as_slice().into(),
            version,
            ttl_ms: None,
        }),
        (Command::Store(_) | Command::SetRange(_), _) => stored,
    }
}

/// One of the outcomes that a step of a batch may have.
fn batch_outcome(step: &BatchStep<'_>, choice: u8) -> Outcome<'static> {
    match step {
        BatchStep::Command(command) => outcome(command, choice, b"piece").into_owned(),
        BatchStep::Transfer(_) if choice & 8 != 0 => Outcome::NotFound,
        BatchStep::Transfer(_) => Outcome::NotStored(None),
    }
}

/// One of the answers that a request about the server may have.
fn server_outcome(command: &ServerCommand<'_>, choice: u8) -> ServerOutcome {
    let rows = || vec![("name".to_owned(), "value".to_owned()); usize::from(choice % 3)];
    match (command, choice % 4) {
        (_, 0) => ServerOutcome::Failed(Failure::Unavailable),
        (ServerCommand::Stats(_), 1) | (ServerCommand::Flush { .. }, _) => ServerOutcome::Done,
        (ServerCommand::Stats(_) | ServerCommand::ConfigGet(_), _) => ServerOutcome::Pairs(rows()),
        (ServerCommand::Info(_) | ServerCommand::ClientInfo, _) => {
            ServerOutcome::Text("# Server\r\nname:value\r\n".to_owned())
        }
        (ServerCommand::ConfigSet(_), 1) => ServerOutcome::Invalid("no".to_owned()),
        (ServerCommand::ConfigSet(_), _) => ServerOutcome::Done,
        (ServerCommand::Keys(_), _) => ServerOutcome::Scan {
            cursor: 0,
            keys: vec![b"key".to_vec(); usize::from(choice % 3)],
        },
        (ServerCommand::Atomic(_), 1) => ServerOutcome::Changed,
        (ServerCommand::Atomic(_), 2) => ServerOutcome::CrossSlot,
        (ServerCommand::Atomic(batch), _) => ServerOutcome::Outcomes(
            batch.steps.iter().map(|step| batch_outcome(step, choice)).collect(),
        ),
        (ServerCommand::Scan { .. }, 1) => ServerOutcome::InvalidCursor,
        (ServerCommand::Scan { .. }, _) => ServerOutcome::Scan {
            cursor: u64::MAX,
            keys: vec![b"key".to_vec(); usize::from(choice % 3)],
        },
        (ServerCommand::RandomKey, _) => {
            ServerOutcome::Key((choice & 4 != 0).then(|| b"key".to_vec()))
        }
        (ServerCommand::Auth { .. }, 1) => ServerOutcome::WrongPassword,
        (ServerCommand::Auth { .. }, 2) => ServerOutcome::AuthNotConfigured,
        (ServerCommand::Auth { .. }, _) => ServerOutcome::Done,
        (ServerCommand::ClusterView, _) => {
            ServerOutcome::Cluster(Arc::new(ClusterView::alone("fuzz", "[::1]:1".parse().ok())))
        }
        (
            ServerCommand::Count
            | ServerCommand::Time
            | ServerCommand::CountInSlot(_),
            _,
        ) => ServerOutcome::Integer(i64::from(choice) - 100),
    }
}
