//! A connection's dialect and its parser: what the server holds for each client.
//!
//! All dialects share one port. [`detect`] decides from the first bytes which one a client speaks;
//! the connection then keeps its [`Session`] until it closes.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod ahead;
mod detect;

#[cfg(test)]
mod tests;

pub use ahead::KeysAhead;
pub use detect::{DETECT_LEN_MAX, Detection, Dialect, detect};

use crate::memcached::{binary, text};
use crate::outcome::Failure;
use crate::request::{Limits, Step};
use crate::resp;

/// The parser of one connection, once its dialect is known.
#[derive(Debug)]
pub enum Session {
    /// Memcached text and meta.
    Text(text::Parser),
    /// Memcached binary.
    Binary(binary::Parser),
    /// RESP2 and RESP3.
    Resp(resp::Parser),
}

impl Session {
    /// A session at the start of a connection. `connection_id` is what RESP's `CLIENT ID` tells.
    #[must_use]
    pub fn new(dialect: Dialect, limits: Limits, connection_id: u64) -> Self {
        match dialect {
            Dialect::Text => Self::Text(text::Parser::new(limits)),
            Dialect::Binary => Self::Binary(binary::Parser::new(limits)),
            Dialect::Resp => Self::Resp(resp::Parser::new(limits, connection_id)),
        }
    }

    /// Takes the next request from the front of `buf`, the unconsumed bytes of the connection.
    #[inline]
    pub fn parse<'a>(&'a mut self, buf: &'a [u8]) -> Step<'a> {
        match self {
            Self::Text(parser) => parser.parse(buf),
            Self::Binary(parser) => parser.parse(buf),
            Self::Resp(parser) => parser.parse(buf),
        }
    }

    /// Tells whether the client has logged in, or need not, as is assumed at first. The requests of
    /// a client that has not are bounded by
    /// [`UNAUTHENTICATED_LEN_MAX`](crate::request::UNAUTHENTICATED_LEN_MAX) and its neighbours. A
    /// request beyond them is answered with the dialect's error and ends the connection.
    pub fn set_authenticated(&mut self, is_authenticated: bool) {
        match self {
            Self::Text(parser) => parser.set_authenticated(is_authenticated),
            Self::Binary(parser) => parser.set_authenticated(is_authenticated),
            Self::Resp(parser) => parser.set_authenticated(is_authenticated),
        }
    }

    /// Arguments of the request at the front that were read so far, where a command may come of
    /// each and they are not few.
    #[must_use]
    pub fn argument_count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Binary(_) => 0,
            Self::Resp(parser) => parser.argument_count(),
        }
    }

    /// Has the request at the front of the stream refused with `failure`, as if its value were too
    /// long: if it has a value that has not arrived as a whole, the next [`Session::parse`] asks to
    /// skip it, and the error is the answer. Any other request goes on as before.
    pub fn refuse(&mut self, failure: Failure) {
        match self {
            Self::Text(parser) => parser.refuse(failure),
            Self::Binary(parser) => parser.refuse(failure),
            Self::Resp(parser) => parser.refuse(failure),
        }
    }

    /// Bytes that the connection keeps between requests, besides what it has chosen.
    #[inline]
    pub fn kept_len(&mut self) -> usize {
        match self {
            Self::Text(_) | Self::Binary(_) => 0,
            Self::Resp(parser) => parser.kept_len(),
        }
    }

    /// Gives up what [`Session::kept_len`] counts: there is no memory for it.
    pub fn forget_kept(&mut self) {
        if let Self::Resp(parser) = self {
            parser.forget_kept();
        }
    }

    /// The dialect.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        match self {
            Self::Text(_) => Dialect::Text,
            Self::Binary(_) => Dialect::Binary,
            Self::Resp(_) => Dialect::Resp,
        }
    }
}
