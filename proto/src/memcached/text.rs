//! The memcached text protocol, and the line framing that it shares with [`meta`](super::meta).
//!
//! A [`Parser`] reads both dialects from one stream: a line, and for storage commands a data block
//! behind it. Error lines are those of memcached 1.6.18, compared reply by reply; where this parser
//! knowingly differs it keeps the stream in step instead: the data block of a storage command that
//! is refused for its line is swallowed whenever its length is known, while memcached reads it as
//! commands. A length that no block can have (negative, or more than `i32::MAX - 2`) counts as
//! unknown. The rules are those of memcached's `doc/protocol.txt`.
//!
//! Nothing is allocated for a request on one key. A line is searched for its end once, also when it
//! arrives byte by byte.

#![deny(clippy::indexing_slicing)]

mod command;
mod line;
mod parser;
mod reply;

#[cfg(test)]
pub(super) mod tests;

pub use parser::{LINE_LEN_MAX, Parser, RETRIEVAL_LINE_LEN_MAX};
pub use reply::{Reply, put_failure};
pub(super) use reply::{put_line, put_not_a_number};

pub(super) use line::{
    Tokens, is_key_len, parse_block_len, parse_exptime, parse_signed, parse_u32, parse_unsigned,
};
pub(super) use parser::{Parsed, Refusal};

/// The reply to a line whose parts have the wrong form.
pub(super) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// The reply to a data block that is not followed by `\r\n`.
pub(super) const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";

/// The reply to an unknown command, or one with the wrong number of parts.
pub(super) const ERROR: &str = "ERROR";

/// Reads the data block of an authenticating `set`: user and password with a space between
/// (protocol.txt, "Authentication").
///
/// Before a connection has authenticated, its `set` of any key carries these as its value; the
/// outcome is worded by [`Reply::server`] for [`ServerCommand::Auth`](crate::ServerCommand::Auth).
#[must_use]
pub fn credentials(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut tokens = Tokens::new(value);
    Some((tokens.next()?, tokens.next()?))
}
