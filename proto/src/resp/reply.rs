//! How the answer to a request is worded: from [`Outcome`]s to RESP.

use super::REDIS_VERSION;
use super::cluster::{self, Question};
use super::describe;
use super::encode::{
    Protocol, begin_bulk, end_bulk, put_array_len, put_bulk, put_error, put_integer, put_map_len,
    put_null, put_ok, put_status, put_text,
};
use super::frame::Args;
use super::session::Session;
use super::table::Moment;
use super::wording::{self, ReplyError};
use crate::command::Command;
use crate::outcome::{Failure, Hit, Outcome, Value};
use crate::request::{ServerCommand, ServerOutcome};
use crate::{Out, Redirects};

/// Words the answer to one request, in the protocol version that its connection has chosen.
#[derive(Debug)]
pub struct Reply<'a> {
    protocol: Protocol,
    redirects: Redirects,
    form: Form<'a>,
}

/// What the answer looks like.
#[derive(Debug)]
pub(super) enum Form<'a> {
    /// The value, or null.
    Value,
    /// OK, or null if the condition failed.
    Stored,
    /// The value before, or null.
    Previous,
    /// 1 or 0.
    OneIfStored,
    /// 1 or 0.
    OneIfTouched,
    /// The length of the value that was written.
    ValueLen,
    /// The length of the value that was read; 0 without one.
    HitLen,
    /// A part of the value; negative positions count from its end.
    Range { first: i64, last: i64 },
    /// A number as an integer.
    Integer,
    /// A number as a bulk string.
    Float,
    /// When the key expires; -1 never, -2 without a key.
    Expiry(Moment),
    /// `string` or `none`.
    Type,
    /// An array of as many values or nulls.
    Values { count: usize, progress: Progress },
    /// OK, or the first failure.
    AllStored { failure: Option<ReplyError> },
    /// How many of the keys there were, or the first failure.
    Sum {
        count: i64,
        failure: Option<ReplyError>,
    },
    /// A command about the server, whose outcome says all.
    Server,
    /// `CLUSTER`: a part of the view.
    Cluster(Question<'a>),
    /// `CLIENT INFO`.
    ClientInfo(&'a Session),
    /// `HELLO … AUTH …`: takes effect with the right password.
    Hello {
        session: &'a mut Session,
        protocol: Protocol,
        name: Option<&'a str>,
    },
    /// The answer is known.
    Answer(Answer<'a>),
}

/// How much of an array of values was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    NotBegun,
    Begun,
    /// An error was written in place of the array.
    Refused,
}

/// An answer for which nothing has to be executed.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    Nothing,
    Status(&'static str),
    Error(ReplyError),
    Integer(i64),
    Bulk(&'a [u8]),
    Null,
    /// An array of simple strings.
    Lines(&'static [&'static str]),
    /// `SCAN` for a type of which there are no keys.
    EmptyScan,
    Hello(&'a Session),
    AllCommands,
    Commands(Args<'a>),
    AllDocs,
    Docs(Args<'a>),
}

impl Form<'_> {
    pub(super) fn values(count: usize) -> Self {
        Self::Values {
            count,
            progress: Progress::NotBegun,
        }
    }

    pub(super) fn sum() -> Self {
        Self::Sum {
            count: 0,
            failure: None,
        }
    }

    pub(super) fn all_stored() -> Self {
        Self::AllStored { failure: None }
    }
}

impl<'a> Reply<'a> {
    #[inline]
    pub(super) fn new(protocol: Protocol, form: Form<'a>) -> Self {
        Self::redirecting(protocol, form, Redirects::Never)
    }

    #[inline]
    pub(super) fn redirecting(protocol: Protocol, form: Form<'a>, redirects: Redirects) -> Self {
        Self {
            protocol,
            redirects,
            form,
        }
    }

    /// Whether the client wants to be told when the request is for another member.
    #[inline]
    pub(crate) fn redirects(&self) -> Redirects {
        self.redirects
    }

    /// The same reply, as far as it was worded, without the request; None if it needs more than itself.
    pub(crate) fn detach<'b>(&self) -> Option<Reply<'b>> {
        let form = match &self.form {
            Form::Value => Form::Value,
            Form::Stored => Form::Stored,
            Form::Previous => Form::Previous,
            Form::OneIfStored => Form::OneIfStored,
            Form::OneIfTouched => Form::OneIfTouched,
            Form::ValueLen => Form::ValueLen,
            Form::HitLen => Form::HitLen,
            Form::Range { first, last } => Form::Range {
                first: *first,
                last: *last,
            },
            Form::Integer => Form::Integer,
            Form::Float => Form::Float,
            Form::Expiry(moment) => Form::Expiry(*moment),
            Form::Type => Form::Type,
            Form::Values { count, progress } => Form::Values {
                count: *count,
                progress: *progress,
            },
            Form::AllStored { failure } => Form::AllStored {
                failure: failure.clone(),
            },
            Form::Sum { count, failure } => Form::Sum {
                count: *count,
                failure: failure.clone(),
            },
            Form::Server => Form::Server,
            Form::Cluster(_) | Form::ClientInfo(_) | Form::Hello { .. } | Form::Answer(_) => {
                return None;
            }
        };
        Some(Reply {
            protocol: self.protocol,
            redirects: self.redirects,
            form,
        })
    }

    /// Words the outcome of the next command.
    #[inline]
    pub fn each(&mut self, command: &Command<'_>, outcome: &Outcome<'_>, out: &mut Out) {
        match &mut self.form {
            Form::Value => match outcome {
                Outcome::Hit(hit) => put_hit(out, hit),
                Outcome::Miss => put_null(out, self.protocol),
                other => put_exception(out, command, other),
            },
            Form::Stored => match outcome {
                Outcome::Stored(_) => put_ok(out),
                Outcome::NotStored(_) => put_null(out, self.protocol),
                other => put_exception(out, command, other),
            },
            Form::Values { count, progress } => {
                put_element(out, self.protocol, *count, progress, outcome);
            }
            Form::AllStored { failure } => note_failure(failure, outcome),
            Form::Sum { count, failure } => {
                note_failure(failure, outcome);
                let there = matches!(
                    outcome,
                    Outcome::Hit(_) | Outcome::Deleted { .. } | Outcome::Touched { .. }
                );
                *count += i64::from(there);
            }
            form => put_single(out, self.protocol, form, command, outcome),
        }
    }

    /// Words what comes after the last command, or the whole of an answer that is known.
    #[inline]
    pub fn finish(&mut self, out: &mut Out) {
        match &self.form {
            Form::AllStored { failure: None } => put_ok(out),
            Form::Sum {
                count,
                failure: None,
            } => put_integer(out, *count),
            Form::AllStored {
                failure: Some(failure),
            }
            | Form::Sum {
                failure: Some(failure),
                ..
            } => put_error(out, failure),
            Form::Answer(answer) => put_answer(out, self.protocol, answer),
            _ => {}
        }
    }

    /// Words the answer to a command about the server.
    pub fn server(&mut self, command: &ServerCommand<'_>, outcome: &ServerOutcome, out: &mut Out) {
        match outcome {
            ServerOutcome::Done => self.put_done(out),
            ServerOutcome::Pairs(pairs) => {
                put_map_len(out, self.protocol, pairs.len());
                for (name, value) in pairs {
                    put_bulk(out, name.as_bytes());
                    put_bulk(out, value.as_bytes());
                }
            }
            ServerOutcome::Text(text) => match &self.form {
                Form::ClientInfo(session) => {
                    put_text(out, self.protocol, &client_info(session, text));
                }
                _ => put_text(out, self.protocol, text),
            },
            ServerOutcome::Integer(number) => put_integer(out, *number),
            ServerOutcome::Scan { cursor, keys } => {
                put_array_len(out, 2);
                put_bulk(out, itoa::Buffer::new().format(*cursor).as_bytes());
                put_array_len(out, keys.len());
                keys.iter().for_each(|key| put_bulk(out, key));
            }
            ServerOutcome::Key(Some(key)) => put_bulk(out, key),
            ServerOutcome::Key(None) => put_null(out, self.protocol),
            ServerOutcome::InvalidCursor => put_error(out, &wording::INVALID_CURSOR),
            ServerOutcome::WrongPassword => put_error(out, &wording::WRONG_PASSWORD),
            // As in Redis, where the user `default` without a password takes any.
            ServerOutcome::AuthNotConfigured => match command {
                ServerCommand::Auth {
                    user: b"default", ..
                } => self.put_done(out),
                ServerCommand::Auth { user: b"", .. } => {
                    put_error(out, &wording::AUTH_NOT_CONFIGURED);
                }
                _ => put_error(out, &wording::WRONG_PASSWORD),
            },
            ServerOutcome::Cluster(view) => match &self.form {
                Form::Cluster(question) => {
                    cluster::put_answer(out, self.protocol, question, view);
                }
                _ => put_error(out, &wording::INTERNAL),
            },
            ServerOutcome::Failed(failure) => put_failure(*failure, out),
        }
    }

    fn put_done(&mut self, out: &mut Out) {
        match &mut self.form {
            Form::Hello {
                session,
                protocol,
                name,
            } => {
                self.protocol = *protocol;
                greet(session, *protocol, *name);
                put_hello(out, session);
            }
            Form::ClientInfo(session) => {
                put_text(out, self.protocol, &client_info(session, ""));
            }
            _ => put_ok(out),
        }
    }
}

/// Words a failure that stands in for the whole reply of a request.
pub fn put_failure(failure: Failure, out: &mut Out) {
    put_error(out, &wording::failure(failure));
}

/// Lets `HELLO` take effect.
pub(super) fn greet(session: &mut Session, protocol: Protocol, name: Option<&str>) {
    session.protocol = protocol;
    if let Some(name) = name {
        name.clone_into(&mut session.name);
    }
}

/// Keeps the first failure.
fn note_failure(first: &mut Option<ReplyError>, outcome: &Outcome<'_>) {
    if first.is_none() {
        *first = failure_of(outcome);
    }
}

fn failure_of(outcome: &Outcome<'_>) -> Option<ReplyError> {
    match outcome {
        Outcome::Failed(failure) => Some(wording::failure(*failure)),
        Outcome::Moved(moved) => Some(wording::moved(moved)),
        _ => None,
    }
}

#[inline]
fn put_hit(out: &mut Out, hit: &Hit<'_>) {
    begin_bulk(out, hit.value.as_slice().len());
    out.put_value(&hit.value);
    end_bulk(out);
}

/// The forms that answer one command and are not the busiest ones.
fn put_single(
    out: &mut Out,
    protocol: Protocol,
    form: &Form<'_>,
    command: &Command<'_>,
    outcome: &Outcome<'_>,
) {
    match (form, outcome) {
        (Form::Previous, Outcome::Stored(stored)) => {
            put_previous(out, protocol, stored.previous.as_ref());
        }
        (Form::Previous, Outcome::NotStored(previous)) => {
            put_previous(out, protocol, previous.as_ref());
        }
        (Form::OneIfStored, Outcome::Stored(_)) | (Form::OneIfTouched, Outcome::Touched { .. }) => {
            put_integer(out, 1)
        }
        (Form::OneIfStored, Outcome::NotStored(_))
        | (Form::OneIfTouched, Outcome::NotStored(_) | Outcome::NotFound)
        | (Form::HitLen, Outcome::Miss) => put_integer(out, 0),
        (Form::ValueLen, Outcome::Stored(stored)) => put_len(out, stored.value_len),
        (Form::HitLen, Outcome::Hit(hit)) => put_len(out, hit.value_len),
        (Form::Range { .. }, Outcome::Miss) => put_bulk(out, b""),
        (Form::Range { first, last }, Outcome::Hit(hit)) => {
            let range = range_of(*first, *last, hit.value.as_slice().len());
            begin_bulk(out, range.len());
            match &hit.value {
                Value::Copied(bytes) => out.put(bytes.get(range).unwrap_or_default()),
                Value::Shared(bytes) => out.put_shared(&bytes.slice(range)),
            }
            end_bulk(out);
        }
        (Form::Integer, Outcome::Number(number)) => {
            out.put(b":");
            out.put(&number.text);
            out.put(b"\r\n");
        }
        (Form::Float, Outcome::Number(number)) => put_bulk(out, &number.text),
        (Form::Expiry(_), Outcome::Miss) => put_integer(out, -2),
        (Form::Expiry(moment), Outcome::Hit(hit)) => put_integer(out, expiry_of(hit, *moment)),
        (Form::Type, Outcome::Hit(_)) => put_status(out, "string"),
        (Form::Type, Outcome::Miss) => put_status(out, "none"),
        _ => put_exception(out, command, outcome),
    }
}

fn put_previous(out: &mut Out, protocol: Protocol, previous: Option<&bytes::Bytes>) {
    match previous {
        None => put_null(out, protocol),
        Some(value) => {
            begin_bulk(out, value.len());
            out.put_shared(value);
            end_bulk(out);
        }
    }
}

fn put_len(out: &mut Out, len: usize) {
    put_integer(out, i64::try_from(len).unwrap_or(i64::MAX));
}

/// The next element of an array of values.
///
/// A failure of the first command is the answer as a whole: most failures concern all keys alike. After
/// that the array is begun and a failed element is null: to a cache's client a miss.
fn put_element(
    out: &mut Out,
    protocol: Protocol,
    count: usize,
    progress: &mut Progress,
    outcome: &Outcome<'_>,
) {
    match (*progress, failure_of(outcome)) {
        (Progress::Refused, _) => return,
        (Progress::NotBegun, Some(failure)) => {
            *progress = Progress::Refused;
            put_error(out, &failure);
            return;
        }
        (Progress::NotBegun, None) => {
            *progress = Progress::Begun;
            put_array_len(out, count);
        }
        (Progress::Begun, _) => {}
    }
    match outcome {
        Outcome::Hit(hit) => put_hit(out, hit),
        _ => put_null(out, protocol),
    }
}

/// What any command may come to instead of its usual outcomes.
#[cold]
fn put_exception(out: &mut Out, command: &Command<'_>, outcome: &Outcome<'_>) {
    let float = matches!(
        command,
        Command::Arith(crate::Arith {
            op: crate::ArithOp::Float(_),
            ..
        })
    );
    put_error(
        out,
        &match outcome {
            Outcome::Failed(failure) => wording::failure(*failure),
            Outcome::Moved(moved) => wording::moved(moved),
            Outcome::NotANumber if float => wording::NOT_A_FLOAT,
            Outcome::NotANumber => wording::NOT_AN_INTEGER,
            Outcome::Overflow if float => wording::NOT_FINITE,
            Outcome::Overflow => wording::OVERFLOW,
            _ => wording::INTERNAL,
        },
    );
}

/// The bytes of a value that `GETRANGE` asks for (Redis documentation of `GETRANGE`): both ends are
/// included, negative ones count from the end, and what is outside is left out.
fn range_of(first: i64, last: i64, len: usize) -> std::ops::Range<usize> {
    let signed_len = i64::try_from(len).unwrap_or(i64::MAX);
    let position = |index: i64| {
        if index < 0 {
            index.saturating_add(signed_len).max(0)
        } else {
            index
        }
    };
    let crossed = first < 0 && last < 0 && first > last;
    let (first, last) = (position(first), position(last).min(signed_len - 1));
    if crossed || first > last {
        return 0..0;
    }
    // Both are in 0..len now.
    first as usize..last as usize + 1
}

/// The reply of `TTL` and its kin for an entry. Seconds are rounded to the nearest, as in Redis.
fn expiry_of(hit: &Hit<'_>, moment: Moment) -> i64 {
    let ms = match moment {
        Moment::InSeconds | Moment::InMs => hit.ttl_ms,
        Moment::AtSeconds | Moment::AtMs => hit.expires_at_ms,
    };
    let number = ms.map(|ms| match moment {
        Moment::InSeconds | Moment::AtSeconds => ms.saturating_add(500) / 1000,
        Moment::InMs | Moment::AtMs => ms,
    });
    number.map_or(-1, |number| i64::try_from(number).unwrap_or(i64::MAX))
}

fn put_answer(out: &mut Out, protocol: Protocol, answer: &Answer<'_>) {
    match answer {
        Answer::Nothing => {}
        Answer::Status(text) => put_status(out, text),
        Answer::Error(error) => put_error(out, error),
        Answer::Integer(number) => put_integer(out, *number),
        Answer::Bulk(bytes) => put_bulk(out, bytes),
        Answer::Null => put_null(out, protocol),
        Answer::Lines(lines) => {
            put_array_len(out, lines.len());
            lines.iter().for_each(|line| put_status(out, line));
        }
        Answer::EmptyScan => out.put(b"*2\r\n$1\r\n0\r\n*0\r\n"),
        Answer::Hello(session) => put_hello(out, session),
        Answer::AllCommands => describe::put_all_commands(out, protocol),
        Answer::Commands(names) => describe::put_commands(out, protocol, names.from(2)),
        Answer::AllDocs => describe::put_all_docs(out, protocol),
        Answer::Docs(names) => describe::put_docs(out, protocol, names.from(2)),
    }
}

/// The answer to `HELLO`. `version` is the one of Redis whose commands and replies we keep to: clients
/// choose what they send by it.
fn put_hello(out: &mut Out, session: &Session) {
    put_map_len(out, session.protocol, 8);
    for (name, value) in [
        ("server", "fonn"),
        ("version", REDIS_VERSION),
        ("fonn_version", env!("CARGO_PKG_VERSION")),
        ("mode", "standalone"),
        ("role", "master"),
    ] {
        put_bulk(out, name.as_bytes());
        put_bulk(out, value.as_bytes());
    }
    put_bulk(out, b"proto");
    put_integer(out, session.protocol.number());
    put_bulk(out, b"id");
    put_integer(out, i64::try_from(session.id).unwrap_or(i64::MAX));
    put_bulk(out, b"modules");
    put_array_len(out, 0);
}

/// One line of facts: what the parser knows around what the connection knows.
fn client_info(session: &Session, connection: &str) -> String {
    let connection = connection.trim();
    let space = if connection.is_empty() { "" } else { " " };
    format!(
        "id={}{space}{connection} name={} db={} resp={} lib-name={} lib-ver={} cmd=client|info\n",
        session.id,
        session.name,
        session.database,
        session.protocol.number(),
        session.library_name,
        session.library_version,
    )
}
