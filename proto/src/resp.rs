//! RESP2 and RESP3, the protocols of Redis clients (Redis serialization protocol specification).
//!
//! [`Parser`] turns bytes into requests and keeps what a RESP connection chooses: protocol version,
//! database, names. What concerns the connection alone (`PING`, `SELECT`, `HELLO`, `COMMAND`,
//! `CLIENT …`) it answers itself. [`Reply`] words the outcomes. The words and the edge cases are
//! those of Redis 7.0; the tests hold the bytes that it was seen to answer.
//!
//! Invariants: a request is the same however its bytes were cut into reads; the work is linear in
//! the bytes; memory is bounded by the longest value and [`Limits`]; a refused request leaves the
//! stream in step; broken framing is answered once and closes the connection.

mod batch;
mod cluster;
mod data;
mod describe;
mod dispatch;
mod encode;
mod frame;
mod inline;
mod lcs;
mod number;
mod reply;
mod session;
mod table;
mod transaction;
mod wording;

#[cfg(test)]
mod tests;

pub use cluster::word_as;
pub use reply::{Reply, put_failure};
pub use session::DATABASE_COUNT;
pub use table::{COMMANDS, CommandInfo, Group};

use crate::outcome::Failure;
use crate::request::{self, Body, Commands, Limits, Request, Step};
use crate::{Command, Delete, Get};
use encode::Protocol;
use frame::{Frame, Framing, plain_get};
use reply::{Answer, Form};
use session::Session;
use wording::ReplyError;

/// The version of Redis whose commands and replies clients may expect. Client libraries choose what
/// they send by it.
pub const REDIS_VERSION: &str = "7.4.0";

/// Whether there is a command of that name, in any case.
pub(crate) fn is_command(name: &[u8]) -> bool {
    table::find(name).is_some()
}

/// Reads the requests of one connection.
#[derive(Debug)]
pub struct Parser {
    framing: Framing,
    session: Session,
    limits: Limits,
}

impl Parser {
    /// A parser for a fresh connection; `connection_id` is what `CLIENT ID` tells.
    #[must_use]
    pub fn new(limits: Limits, connection_id: u64) -> Self {
        Self {
            framing: Framing::new(limits),
            session: Session::new(connection_id),
            limits,
        }
    }

    /// As [`Session::set_authenticated`](crate::session::Session::set_authenticated).
    pub fn set_authenticated(&mut self, is_authenticated: bool) {
        self.framing.set_authenticated(is_authenticated);
    }

    /// Arguments of the request at the front that were read so far. A command may come of each.
    #[must_use]
    pub fn argument_count(&self) -> usize {
        self.framing.argument_count()
    }

    /// Refuses the request at the front with `failure`; see
    /// [`Session::refuse`](crate::session::Session::refuse).
    pub fn refuse(&mut self, failure: Failure) {
        self.framing.refuse(wording::failure(failure));
    }

    /// Bytes that the connection keeps between requests: a transaction. One that is over is freed.
    pub fn kept_len(&mut self) -> usize {
        self.session.end_transaction();
        let transaction = self.session.transaction.as_ref();
        transaction.map_or(0, |transaction| transaction.len())
    }

    /// Gives up what [`Parser::kept_len`] counts; the client is told by `EXEC`.
    pub fn forget_kept(&mut self) {
        if let Some(transaction) = &mut self.session.transaction {
            transaction.forget();
        }
    }

    /// Reads the request at the front of `buf`.
    ///
    /// `buf` begins with the same request at each call, and holds at least what it held before,
    /// until a [`Step::Request`] or [`Step::Skip`] has taken bytes from its front.
    #[inline]
    pub fn parse<'a>(&'a mut self, buf: &'a [u8]) -> Step<'a> {
        if self.framing.is_between_requests()
            && self.session.transaction.is_none()
            && let Some((key, len)) = plain_get(buf)
        {
            let request = self.get(key);
            return Step::Request { request, len };
        }
        self.session.end_transaction();
        let (request, len) = match self.framing.advance(buf) {
            Frame::Need { total } => return Step::Need { total },
            Frame::Skip { len } => return Step::Skip { len },
            Frame::Complete { command, len } => {
                let args = self.framing.args(buf);
                let protocol = self.session.protocol;
                let request = dispatch::request(command, args, &mut self.session, self.limits);
                (
                    request.unwrap_or_else(|error| refused(protocol, error, Body::Answer)),
                    len,
                )
            }
            Frame::Refused { error, len } => {
                let transaction = self.session.transaction.as_ref();
                let is_queueing = transaction.is_some_and(|it| it.is_queueing());
                self.session.spoil_transaction();
                let body = match self.framing.outdated() {
                    // What a transaction refuses to queue changes nothing.
                    Some(key) if !is_queueing => {
                        let delete = Command::Delete(Delete::new(key));
                        Body::Data(Commands::from_buf([delete]))
                    }
                    _ => Body::Answer,
                };
                let database = self.session.database;
                let request = refused(self.session.protocol, error, body);
                (
                    Request {
                        database,
                        ..request
                    },
                    len,
                )
            }
            Frame::Broken { error, len } => {
                (refused(self.session.protocol, error, Body::Broken), len)
            }
        };
        Step::Request { request, len }
    }

    /// A `GET`, as the dispatcher would make it.
    #[inline]
    fn get<'a>(&mut self, key: &'a [u8]) -> Request<'a> {
        let session = &mut self.session;
        let redirects = session.take_redirects()(false);
        let get = Get {
            bump: !session.no_touch,
            ..Get::new(key)
        };
        let reply = Reply::redirecting(session.protocol, Form::Value, redirects);
        Request {
            database: session.database,
            body: Body::Data(Commands::from_buf([Command::Get(get)])),
            reply: request::Reply::Resp(reply),
        }
    }
}

#[cold]
fn refused<'a>(protocol: Protocol, error: ReplyError, body: Body<'a>) -> Request<'a> {
    let reply = Reply::new(protocol, Form::Answer(Answer::Error(error)));
    Request {
        database: 0,
        body,
        reply: request::Reply::Resp(reply),
    }
}
