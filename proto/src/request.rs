//! One client request: what a dialect's parser hands to the connection.
//!
//! A parser is a small state machine that is fed the *unconsumed* bytes of a connection, always
//! from the start of the next request, and answers with a [`Step`]. The connection never looks into
//! bytes itself: it reads at least `total` bytes, swallows `len` bytes, or takes a request, in a
//! loop.

pub(crate) mod within;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::batch::{Batch, StepOutcomes};
use crate::cluster::{ClusterView, Redirects};
use crate::command::{Command, is_hidden};
use crate::memcached::{binary, meta, text};
use crate::outcome::{Failure, Outcome};
use crate::{Out, resp};

/// What a parser wants next. `buf` is the slice that it was given.
#[derive(Debug)]
pub enum Step<'a> {
    /// No complete request yet. Call again when the connection holds at least `total` bytes
    /// (`total > buf.len()`), counted from the start of `buf`. It is a lower bound as exact as is
    /// known (a large body's end, for example), so that the connection can size one buffer and does
    /// not call for each arriving segment.
    Need {
        /// Bytes needed in all.
        total: usize,
    },
    /// The next `len` bytes (`len >= 1`, may exceed `buf.len()`) are of no interest: drop them from
    /// the stream as they arrive, without keeping them, then call again. This is how a refused body
    /// is swallowed.
    Skip {
        /// Bytes to drop.
        len: u64,
    },
    /// A request, made of the first `len` bytes of `buf` (`1 <= len <= buf.len()`).
    Request {
        /// The request; it borrows from `buf`.
        request: Request<'a>,
        /// Bytes to drop from the front once it is answered.
        len: usize,
    },
}

/// Longest request in bytes of a client that has to log in and has not: as long as the receive
/// buffer that connections share, so that no memory is ever reserved for one.
pub const UNAUTHENTICATED_LEN_MAX: usize = 16 * 1024;

/// Most arguments of a RESP request of such a client (Redis has the same bound).
pub const UNAUTHENTICATED_ARGUMENT_COUNT_MAX: usize = 10;

/// Longest data block in bytes of a memcached text command of such a client: user name and
/// password.
pub const UNAUTHENTICATED_BLOCK_LEN_MAX: u64 = 2 * 1024;

/// Bounds that a parser enforces.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest value in bytes (`--max-value`). A longer one is swallowed and refused.
    pub value_len_max: usize,
}

/// A parsed request: what to do, and how to word the answer.
#[derive(Debug)]
pub struct Request<'a> {
    /// The database (RESP `SELECT`); 0 for memcached.
    pub database: u8,
    /// What to do.
    pub body: Body<'a>,
    /// How to word the answer.
    pub reply: Reply<'a>,
}

/// The commands of a request: nearly always one.
pub type Commands<'a> = SmallVec<[Command<'a>; 1]>;

/// What a request asks for.
#[derive(Debug)]
pub enum Body<'a> {
    /// Commands on keys, to be executed in order. For each, `Reply::each` is called in order, then
    /// `Reply::finish` once. May be empty (`MGET` of nothing is refused by the parser, a meta `mn`
    /// is an `Answer`).
    Data(Commands<'a>),
    /// Something about the whole store; answered by `Reply::server`.
    Server(ServerCommand<'a>),
    /// The answer is known already and is written by `Reply::finish`: `VERSION`, `PING`, `SELECT`,
    /// an error in the request. Nothing is executed.
    Answer,
    /// As `Answer`, for a client that may carry out these commands: they are kept for later.
    Queued(Commands<'a>),
    /// As `Answer`; the client is no longer logged in.
    LogOut,
    /// As `Answer`; then the connection is closed, once the answer was sent: the client wants it
    /// so.
    Close,
    /// As `Close`, because the client broke the protocol and its bytes cannot be followed any
    /// further.
    Broken,
}

/// Requests about more than one key, or about the server.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerCommand<'a> {
    /// Makes every entry that exists now (or will exist in `delay_s` seconds) invisible.
    /// Answered with `Done`.
    Flush {
        /// All databases of the namespace, or only the request's.
        all_databases: bool,
        /// Seconds until it takes effect.
        delay_s: u32,
    },
    /// Memcached `stats [what]`. Answered with `Pairs`, or `Done` for `reset`.
    Stats(StatsKind),
    /// RESP `INFO [section …]`: lower-case section names, empty for the default ones. Answered with
    /// `Text`.
    Info(Vec<String>),
    /// RESP `CONFIG GET pattern …`. Answered with `Pairs`.
    ConfigGet(Vec<&'a [u8]>),
    /// RESP `CONFIG SET name value …`. Answered with `Done`, or `Invalid`; nothing was changed
    /// then.
    ConfigSet(Vec<(&'a [u8], &'a [u8])>),
    /// RESP `TIME`. Answered with `Integer`: Unix time in microseconds.
    Time,
    /// RESP `KEYS`: all keys that match a pattern. Answered with `Scan` and cursor 0, or with
    /// [`Failure::TooLarge`] if there are too many keys.
    Keys(&'a [u8]),
    /// RESP `EXEC`, `RENAME`, `COPY` and `MSETNX`. Answered with `Outcomes`, `Changed` or
    /// `CrossSlot`.
    Atomic(Batch<'a>),
    /// RESP `DBSIZE`. Answered with `Integer`.
    Count,
    /// RESP `SCAN`. Answered with `Scan`, of fewer keys than asked for where these are long.
    Scan {
        /// 0, or what the last call returned.
        cursor: u64,
        /// Glob pattern that keys must match.
        pattern: Option<&'a [u8]>,
        /// About how many keys to visit.
        count: usize,
    },
    /// RESP `RANDOMKEY`. Answered with `Key`.
    RandomKey,
    /// RESP `CLIENT INFO`/`CLIENT LIST`-like facts are kept by the connection. Answered with
    /// `Text`.
    ClientInfo,
    /// A name and password. Answered with `Done` or `Failed`.
    Auth {
        /// The user; empty for `AUTH password`.
        user: &'a [u8],
        /// The password.
        password: &'a [u8],
    },
    /// The owners of slots (RESP `CLUSTER SLOTS` and others). Answered with `Cluster`.
    ClusterView,
    /// RESP `CLUSTER COUNTKEYSINSLOT`: entries of one slot, which exists. Answered with `Integer`.
    CountInSlot(u16),
}

impl ServerCommand<'_> {
    /// Whether the command is given up when its client has gone. What others would see half done is
    /// finished.
    #[must_use]
    pub fn ends_with_client(&self) -> bool {
        match self {
            Self::Flush { .. } | Self::Auth { .. } | Self::ConfigSet(_) => false,
            // Its keys are looked up for seconds, and then stored without a wait.
            Self::Atomic(batch) => batch.all_absent,
            Self::Stats(_)
            | Self::Info(_)
            | Self::ConfigGet(_)
            | Self::Time
            | Self::Keys(_)
            | Self::Count
            | Self::Scan { .. }
            | Self::RandomKey
            | Self::ClientInfo
            | Self::ClusterView
            | Self::CountInSlot(_) => true,
        }
    }
}

/// What memcached's `stats` was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsKind {
    /// `stats`.
    General,
    /// `stats items`.
    Items,
    /// `stats settings`.
    Settings,
    /// `stats conns`.
    Connections,
    /// `stats sizes`, `stats slabs`: answered with no rows.
    Empty,
    /// `stats reset`.
    Reset,
    /// `stats`, of one namespace alone: what a router asks of members for a client that is told no
    /// more.
    Namespace,
}

/// The answer to a [`ServerCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum ServerOutcome {
    /// Done; there is nothing to tell.
    Done,
    /// Names and values.
    Pairs(Vec<(String, String)>),
    /// A text of several lines.
    Text(String),
    /// A number.
    Integer(i64),
    /// The next cursor and keys.
    Scan {
        /// 0 when the iteration is complete.
        cursor: u64,
        /// Keys found this time.
        keys: Vec<Vec<u8>>,
    },
    /// A key, or none.
    Key(Option<Vec<u8>>),
    /// A cursor that this server did not give out, or has forgotten.
    InvalidCursor,
    /// Wrong name or password.
    WrongPassword,
    /// Authentication is not configured.
    AuthNotConfigured,
    /// The owners of slots.
    Cluster(Arc<ClusterView>),
    /// What came of each step of a batch.
    Outcomes(StepOutcomes),
    /// A watched key has changed, or a key that has to be absent exists; no step was carried out.
    Changed,
    /// The keys belong to several slots; no step was carried out.
    CrossSlot,
    /// An argument is not accepted: why, in one sentence.
    Invalid(String),
    /// Not carried out.
    Failed(Failure),
}

/// How a dialect words the answers to one request.
#[derive(Debug)]
pub enum Reply<'a> {
    /// Memcached text.
    Text(text::Reply),
    /// Memcached meta.
    Meta(meta::Reply<'a>),
    /// Memcached binary.
    Binary(binary::Reply<'a>),
    /// RESP.
    Resp(resp::Reply<'a>),
}

impl Reply<'_> {
    /// Words the outcome of the next command of [`Body::Data`].
    #[inline]
    pub fn each(&mut self, command: &Command<'_>, outcome: &Outcome<'_>, out: &mut Out) {
        // The bytes of such an entry are not its value.
        let outcome = match outcome {
            Outcome::Hit(hit) if is_hidden(hit.flags) => &Outcome::Miss,
            outcome => outcome,
        };
        match self {
            Self::Text(reply) => reply.each(command, outcome, out),
            Self::Meta(reply) => reply.each(command, outcome, out),
            Self::Binary(reply) => reply.each(command, outcome, out),
            Self::Resp(reply) => reply.each(command, outcome, out),
        }
    }

    /// Whether wording it takes as long as many commands: the answer is computed from the value.
    #[inline]
    #[must_use]
    pub fn is_computed(&self) -> bool {
        matches!(self, Self::Resp(reply) if reply.is_computed())
    }

    /// Words what comes after the last command (`END`, a sum), or the whole of [`Body::Answer`].
    #[inline]
    pub fn finish(&mut self, out: &mut Out) {
        match self {
            Self::Text(reply) => reply.finish(out),
            Self::Meta(reply) => reply.finish(out),
            Self::Binary(reply) => reply.finish(out),
            Self::Resp(reply) => reply.finish(out),
        }
    }

    /// Words the next part of the answer to [`Body::Server`]. True if there are more. A part ends
    /// behind what is [computed](Self::is_computed).
    pub fn server_part(
        &mut self,
        command: &ServerCommand<'_>,
        outcome: &ServerOutcome,
        out: &mut Out,
    ) -> bool {
        match self {
            Self::Resp(reply) => reply.server_part(command, outcome, out),
            other => {
                other.server(command, outcome, out);
                false
            }
        }
    }

    /// Words the whole answer to [`Body::Server`].
    pub fn server(&mut self, command: &ServerCommand<'_>, outcome: &ServerOutcome, out: &mut Out) {
        match self {
            Self::Text(reply) => reply.server(command, outcome, out),
            Self::Meta(_) => {}
            Self::Binary(reply) => reply.server(command, outcome, out),
            Self::Resp(reply) => reply.server(command, outcome, out),
        }
    }

    /// Whether the client wants to be told when the request is for another member. Only RESP has
    /// words for it, and only for requests of a single command.
    #[inline]
    #[must_use]
    pub fn redirects(&self) -> Redirects {
        match self {
            Self::Resp(reply) => reply.redirects(),
            Self::Text(_) | Self::Meta(_) | Self::Binary(_) => Redirects::Never,
        }
    }

    /// What is needed to word a failure of this request later, when the request itself is gone.
    #[must_use]
    pub fn late(&self) -> LateReply {
        match self {
            Self::Text(reply) => LateReply::Text {
                quiet: reply.is_quiet(),
            },
            Self::Meta(_) => LateReply::Meta,
            Self::Binary(reply) => LateReply::Binary(reply.late()),
            Self::Resp(_) => LateReply::Resp,
        }
    }
}

/// Words a failure after the request is gone: a write whose reply was composed, but which the disk
/// then refused. It stands in for the *whole* reply of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateReply {
    /// Memcached text; `noreply` stays silent.
    Text {
        /// The request said `noreply`.
        quiet: bool,
    },
    /// Memcached meta: the error line, also in quiet mode.
    Meta,
    /// Memcached binary.
    Binary(binary::Late),
    /// RESP.
    Resp,
}

impl LateReply {
    /// Words the failure.
    pub fn failure(&self, failure: Failure, out: &mut Out) {
        match self {
            Self::Text { quiet: true } => {}
            Self::Text { quiet: false } | Self::Meta => text::put_failure(failure, out),
            Self::Binary(late) => late.failure(failure, out),
            Self::Resp => resp::put_failure(failure, out),
        }
    }
}
