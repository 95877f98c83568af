//! How the answer to a request is worded: from [`Outcome`]s to RESP.

mod kept;
mod single;

pub(super) use self::kept::{BatchForms, Change, Queue, Watch};
use self::single::put_single;
use super::REDIS_VERSION;
use super::cluster::{self, Question};
use super::data::BitRange;
use super::describe;
use super::encode::{
    Protocol, begin_bulk, end_bulk, put_array_len, put_bulk, put_error, put_integer, put_map_len,
    put_null, put_null_array, put_ok, put_status, put_text,
};
use super::frame::Args;
use super::lcs::Lcs;
use super::session::Session;
use super::table::Moment;
use super::wording::{self, ReplyError};
use crate::command::Command;
use crate::outcome::{Failure, Hit, Outcome};
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
    /// `int`, `embstr` or `raw`; null without a key.
    Encoding,
    /// The error of a Redis that does not count uses; null without a key.
    Frequency,
    /// Seconds since the last use; null without a key.
    IdleTime,
    /// One bit of the value.
    Bit { offset: u64 },
    /// How many bits of the value, or of a part of it, are set; 0 without a key.
    BitCount(Result<Option<BitRange>, ReplyError>),
    /// The longest common subsequence of two values.
    Lcs(Box<Lcs>),
    /// OK, or an error without a key.
    Renamed,
    /// 1 or 0, or an error without a key.
    OneIfRenamed,
    /// A Unix time, in two parts.
    Time,
    /// Keys alone, without a cursor.
    Keys,
    /// 1 if all steps of a batch stored a value, 0 if none did because a key exists.
    OneIfAllStored,
    /// The answers to the steps of a batch.
    Batch(Box<BatchForms<'a>>),
    /// QUEUED: the command is kept.
    Queue(Box<Queue<'a>>),
    /// OK: keys are watched from now on.
    Watch(Watch<'a>),
    /// OK: a transaction was begun or forgotten.
    Transaction {
        change: Change,
        session: &'a mut Session,
    },
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

    /// Whether the answer is computed from the whole of a value.
    #[inline]
    pub(crate) fn is_computed(&self) -> bool {
        self.form.is_computed()
    }

    /// Whether the client wants to be told when the request is for another member.
    #[inline]
    pub(crate) fn redirects(&self) -> Redirects {
        self.redirects
    }

    /// The same reply, as far as it was worded, without the request; None if it needs more than
    /// itself.
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
            Form::Encoding => Form::Encoding,
            Form::Frequency => Form::Frequency,
            Form::IdleTime => Form::IdleTime,
            Form::Bit { offset } => Form::Bit { offset: *offset },
            Form::BitCount(range) => Form::BitCount(range.clone()),
            Form::Renamed => Form::Renamed,
            Form::OneIfRenamed => Form::OneIfRenamed,
            Form::Time => Form::Time,
            Form::Keys => Form::Keys,
            Form::OneIfAllStored => Form::OneIfAllStored,
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
            Form::Cluster(_)
            | Form::ClientInfo(_)
            | Form::Hello { .. }
            | Form::Lcs(_)
            | Form::Batch(_)
            | Form::Queue(_)
            | Form::Watch(_)
            | Form::Transaction { .. }
            | Form::Answer(_) => return None,
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
            Form::Watch(watch) => watch.note(command.key(), outcome),
            form => form.put(self.protocol, outcome, out),
        }
    }

    /// Words what comes after the last command, or the whole of an answer that is known.
    #[inline]
    pub fn finish(&mut self, out: &mut Out) {
        self.form.finish(self.protocol, out);
    }
}

impl Form<'_> {
    /// Whether the answer is computed from the whole of a value.
    #[inline]
    fn is_computed(&self) -> bool {
        matches!(self, Self::BitCount(_) | Self::Lcs(_))
    }

    /// Words the outcome of the next command.
    #[inline]
    fn put(&mut self, protocol: Protocol, outcome: &Outcome<'_>, out: &mut Out) {
        match self {
            Self::Value => match outcome {
                Outcome::Hit(hit) => put_hit(out, hit),
                Outcome::Miss => put_null(out, protocol),
                other => put_exception(out, false, other),
            },
            Self::Stored => match outcome {
                Outcome::Stored(_) => put_ok(out),
                Outcome::NotStored(_) => put_null(out, protocol),
                other => put_exception(out, false, other),
            },
            Self::Values { count, progress } => {
                put_element(out, protocol, *count, progress, outcome);
            }
            Self::Lcs(lcs) => match outcome {
                Outcome::Hit(hit) => lcs.take(hit.value.as_slice()),
                Outcome::Miss => lcs.take(b""),
                other => lcs.fail(of_outcome(other)),
            },
            Self::AllStored { failure } => note_failure(failure, outcome),
            // It says what was wrong with the request, whatever came of removing the entry that it
            // left outdated.
            Self::Answer(_) => {}
            Self::Sum { count, failure } => {
                note_failure(failure, outcome);
                let there = matches!(
                    outcome,
                    Outcome::Hit(_) | Outcome::Deleted { .. } | Outcome::Touched { .. }
                );
                *count += i64::from(there);
            }
            form => put_single(out, protocol, form, outcome),
        }
    }

    /// Words what comes after the last command, or the whole of an answer that is known.
    #[inline]
    fn finish(&mut self, protocol: Protocol, out: &mut Out) {
        match self {
            Self::AllStored { failure: None } => put_ok(out),
            Self::Sum {
                count,
                failure: None,
            } => put_integer(out, *count),
            Self::AllStored {
                failure: Some(failure),
            }
            | Self::Sum {
                failure: Some(failure),
                ..
            } => put_error(out, failure),
            Self::Answer(answer) => put_answer(out, protocol, answer),
            Self::Lcs(lcs) => {
                if let Err(error) = lcs.put(out, protocol) {
                    put_error(out, &error);
                }
            }
            Self::Watch(watch) => match &watch.failure {
                None => put_ok(out),
                Some(failure) => put_error(out, failure),
            },
            Self::Transaction { change, session } => {
                change.apply(session);
                put_ok(out);
            }
            Self::Queue(queue) => match queue.keep() {
                Ok(()) => put_status(out, "QUEUED"),
                Err(error) => put_error(out, &error),
            },
            Self::Batch(batch) => batch.put(protocol, &[], out),
            _ => {}
        }
    }
}

impl Reply<'_> {
    /// Words the next part of the answer to a command about the server. True if there are more.
    pub fn server_part(
        &mut self,
        command: &ServerCommand<'_>,
        outcome: &ServerOutcome,
        out: &mut Out,
    ) -> bool {
        if let (ServerOutcome::Outcomes(outcomes), Form::Batch(batch)) = (outcome, &mut self.form) {
            return batch.put_part(self.protocol, outcomes, out);
        }
        self.server(command, outcome, out);
        false
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
            ServerOutcome::Integer(number) => match &self.form {
                Form::Time => {
                    put_array_len(out, 2);
                    for part in [number / 1_000_000, number % 1_000_000] {
                        put_bulk(out, itoa::Buffer::new().format(part).as_bytes());
                    }
                }
                _ => put_integer(out, *number),
            },
            ServerOutcome::Scan { cursor, keys } => {
                if !matches!(self.form, Form::Keys) {
                    put_array_len(out, 2);
                    put_bulk(out, itoa::Buffer::new().format(*cursor).as_bytes());
                }
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
            ServerOutcome::Outcomes(outcomes) => match &mut self.form {
                Form::Batch(batch) => batch.put(self.protocol, outcomes, out),
                Form::OneIfAllStored => put_integer(out, 1),
                _ => put_error(out, &wording::INTERNAL),
            },
            ServerOutcome::Changed => match &self.form {
                Form::OneIfAllStored => put_integer(out, 0),
                _ => put_null_array(out, self.protocol),
            },
            ServerOutcome::CrossSlot => put_error(out, &wording::CROSS_SLOT),
            ServerOutcome::Invalid(why) => put_error(out, &wording::invalid(why)),
            ServerOutcome::Failed(Failure::TooLarge) if matches!(self.form, Form::Keys) => {
                put_error(out, &wording::TOO_MANY_KEYS);
            }
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

/// The error for an outcome that tells nothing of an entry.
fn of_outcome(outcome: &Outcome<'_>) -> ReplyError {
    failure_of(outcome).unwrap_or(wording::INTERNAL)
}

/// The next element of an array of values.
///
/// A failure of the first command is the answer as a whole: most failures concern all keys alike.
/// After that the array is begun and a failed element is null: to a cache's client a miss.
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
fn put_exception(out: &mut Out, float: bool, outcome: &Outcome<'_>) {
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

/// The answer to `HELLO`. `version` is the one of Redis whose commands and replies we keep to:
/// clients choose what they send by it.
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
