//! From the stream to requests: finds the line, lets the dialect read it, and waits for, takes or
//! swallows the data block.
//!
//! Invariant: whatever was wrong with a storage command, the next line that is parsed starts behind
//! its data block if the length of that was known.

use smallvec::smallvec;

use super::{BAD_CHUNK, Tokens, command, is_key_len, reply};
use crate::command::MEMCACHED_KEY_LEN_MAX;
use crate::memcached::meta;
use crate::outcome::Failure;
use crate::request::{Body, Commands, Limits, Reply, Request, Step, UNAUTHENTICATED_BLOCK_LEN_MAX};
use crate::{Command, Delete, Get, Store, StoreMode};

/// Longest line in bytes without its end, except for retrieval commands; memcached's bound.
pub const LINE_LEN_MAX: usize = 2048;

/// Longest line of `get`, `gets`, `gat` and `gats`, which may name many keys. Memcached has no
/// bound here; without one a client decides how much memory a connection takes.
pub const RETRIEVAL_LINE_LEN_MAX: usize = 64 * 1024;

/// The reply to a line that is longer, before the connection is closed.
const LINE_TOO_LONG: &str = "CLIENT_ERROR line too long";

/// What a line turned out to be.
#[derive(Debug)]
pub(in crate::memcached) enum Parsed<'a> {
    /// A request without data block.
    Request(Body<'a>, Reply<'a>),
    /// A storage command; its value of so many bytes follows and is still to be filled in.
    Store {
        store: Store<'a>,
        value_len: u64,
        reply: Reply<'a>,
    },
    /// Nothing to execute. `swallow` is the length of the data block that follows, where it is
    /// known.
    Refused {
        refusal: Refusal,
        swallow: Option<u64>,
    },
}

impl Parsed<'_> {
    /// The length of the data block that follows, where it is known.
    fn block_len(&self) -> Option<u64> {
        match self {
            Self::Request(..) => None,
            Self::Store { value_len, .. } => Some(*value_len),
            Self::Refused { swallow, .. } => *swallow,
        }
    }

    /// A refused line of the text dialect, without data block.
    pub(in crate::memcached) fn error(line: &'static str, quiet: bool) -> Self {
        Self::Refused {
            refusal: Refusal {
                line,
                quiet,
                is_meta: false,
            },
            swallow: None,
        }
    }
}

/// The answer to a command that is refused by the parser.
#[derive(Clone, Copy, Debug)]
pub(in crate::memcached) struct Refusal {
    /// The error line without its end.
    pub(in crate::memcached) line: &'static str,
    /// `noreply`: the error is not sent either.
    pub(in crate::memcached) quiet: bool,
    /// Which dialect refused.
    pub(in crate::memcached) is_meta: bool,
}

impl Refusal {
    /// Refuses with `line` a command that would have been answered with `reply`. Meta tells of
    /// errors in quiet mode too.
    fn replacing(reply: &Reply<'_>, line: &'static str) -> Self {
        match reply {
            Reply::Text(reply) => Self {
                line,
                quiet: reply.is_quiet(),
                is_meta: false,
            },
            _ => Self {
                line,
                quiet: false,
                is_meta: true,
            },
        }
    }

    /// The request that is answered with the refusal. It removes the entry of `outdated`, unless
    /// that is empty.
    fn request(self, outdated: &[u8]) -> Request<'_> {
        let reply = if self.is_meta {
            Reply::Meta(meta::Reply::answer(self.line))
        } else {
            Reply::Text(reply::Reply::answer(self.line, self.quiet))
        };
        let body = match outdated {
            [] => Body::Answer,
            key => Body::Data(smallvec![Command::Delete(Delete::new(key))]),
        };
        Request {
            database: 0,
            body,
            reply,
        }
    }
}

/// Reads memcached text and meta commands from a stream.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    /// Leading bytes of the stream that are known to hold no newline, so that they are not searched
    /// again when more has arrived.
    searched: usize,
    /// The answer that is due when the data block was swallowed up to its last byte.
    refusal: Option<Refusal>,
    /// The key of a `set` that is refused for its size, whose entry is removed then, as memcached
    /// does: no read after the error finds the old value. Empty for other refusals.
    outdated: Vec<u8>,
    is_authenticated: bool,
    /// Why the next value that is not there as a whole is refused.
    refuse_next: Option<Failure>,
    /// A key that had to be decoded.
    key: meta::KeyBuffer,
}

enum Line {
    /// It ends in front of the newline at this index.
    Ends(usize),
    More,
    /// It is longer than this.
    TooLong(usize),
}

impl Parser {
    /// A parser at the start of a stream.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            searched: 0,
            refusal: None,
            outdated: Vec::new(),
            is_authenticated: true,
            refuse_next: None,
            key: meta::KeyBuffer::default(),
        }
    }

    /// Refuses the request at the front with `failure`; see
    /// [`Session::refuse`](crate::session::Session::refuse).
    pub fn refuse(&mut self, failure: Failure) {
        self.refuse_next = Some(failure);
    }

    /// As [`Session::set_authenticated`](crate::session::Session::set_authenticated).
    pub fn set_authenticated(&mut self, is_authenticated: bool) {
        self.is_authenticated = is_authenticated;
    }

    /// Reads the next request from the start of `buf`, the bytes of the stream that were not
    /// consumed so far. The request borrows from both.
    pub fn parse<'a>(&'a mut self, buf: &'a [u8]) -> Step<'a> {
        if buf.is_empty() {
            return Step::Need { total: 1 };
        }
        if let Some(refusal) = self.refusal.take() {
            return Step::Request {
                request: refusal.request(&self.outdated),
                len: 1,
            };
        }
        if self.searched == 0
            && let Some(step) = plain_get(buf)
        {
            return step;
        }
        let end = match self.find_line(buf) {
            Line::Ends(end) => end,
            Line::More => {
                return Step::Need {
                    total: buf.len().saturating_add(1),
                };
            }
            Line::TooLong(len_max) => {
                self.searched = 0;
                return broken(LINE_TOO_LONG, len_max.saturating_add(1));
            }
        };
        let (line, behind) = buf.split_at(end);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let behind = behind.get(1..).unwrap_or_default();
        let line_len = end.saturating_add(1);

        let mut tokens = Tokens::new(line);
        let verb = tokens.next().unwrap_or_default();
        let parsed = match verb {
            [b'm', verb] => meta::parse_line(*verb, tokens.rest(), &mut self.key),
            // No command is made for each key: the request is refused anyway.
            b"get" | b"gets" | b"gat" | b"gats" if !self.is_authenticated => {
                let reply = Reply::Text(reply::Reply::retrieval(false));
                Parsed::Request(Body::Data(Commands::new()), reply)
            }
            _ => command::parse_line(verb, tokens.rest()),
        };
        let line_request = |request| Step::Request {
            request,
            len: line_len,
        };
        self.searched = 0;
        if !self.is_authenticated && parsed.block_len() > Some(UNAUTHENTICATED_BLOCK_LEN_MAX) {
            let line = reply::failure_line(Failure::AuthRequired);
            return broken(line, line_len);
        }
        match parsed {
            Parsed::Request(body, reply) => line_request(Request {
                database: 0,
                body,
                reply,
            }),
            Parsed::Refused {
                refusal,
                swallow: None,
            } => line_request(refusal.request(&[])),
            Parsed::Refused {
                refusal,
                swallow: Some(value_len),
            } => {
                self.refusal = Some(refusal);
                self.outdated.clear();
                skip_block(line_len, value_len)
            }
            Parsed::Store {
                store,
                reply,
                value_len,
            } if value_len > self.limits.value_len_max as u64 => {
                let line = reply::failure_line(Failure::TooLarge);
                self.refusal = Some(Refusal::replacing(&reply, line));
                self.outdated.clear();
                if store.mode == StoreMode::Set && store.compare.is_none() {
                    self.outdated.extend_from_slice(store.key);
                }
                skip_block(line_len, value_len)
            }
            Parsed::Store {
                store,
                reply,
                value_len,
            } => {
                let value_len = value_len as usize;
                let total = line_len.saturating_add(value_len).saturating_add(2);
                let block = behind.split_at_checked(value_len);
                let Some((value, Some(end_of_block))) =
                    block.map(|(value, behind)| (value, behind.get(..2)))
                else {
                    if let Some(failure) = self.refuse_next.take() {
                        let line = reply::failure_line(failure);
                        self.refusal = Some(Refusal::replacing(&reply, line));
                        self.outdated.clear();
                        return skip_block(line_len, value_len as u64);
                    }
                    self.searched = end;
                    return Step::Need { total };
                };
                let request = if end_of_block == b"\r\n" {
                    let command = Command::Store(Store { value, ..store });
                    Request {
                        database: 0,
                        body: Body::Data(smallvec![command]),
                        reply,
                    }
                } else {
                    Refusal::replacing(&reply, BAD_CHUNK).request(&[])
                };
                Step::Request {
                    request,
                    len: total,
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn searched(&self) -> usize {
        self.searched
    }

    /// Finds the end of the first line. What it decides does not depend on how much has arrived
    /// beyond the bytes that decide it.
    fn find_line(&mut self, buf: &[u8]) -> Line {
        let window = buf.get(..=RETRIEVAL_LINE_LEN_MAX).unwrap_or(buf);
        let unsearched = window.get(self.searched..).unwrap_or_default();
        let newline = memchr::memchr(b'\n', unsearched).map(|at| self.searched.saturating_add(at));
        let len_min = newline.unwrap_or(window.len());
        if len_min > LINE_LEN_MAX && !(self.is_authenticated && is_retrieval(buf)) {
            return Line::TooLong(LINE_LEN_MAX);
        }
        match newline {
            Some(end) => Line::Ends(end),
            None if len_min > RETRIEVAL_LINE_LEN_MAX => Line::TooLong(RETRIEVAL_LINE_LEN_MAX),
            None => {
                self.searched = len_min;
                Line::More
            }
        }
    }
}

/// Reads the line that nearly all are, in one pass: `get` of one key, with nothing else in it. The
/// long way comes to the same.
#[inline]
fn plain_get(buf: &[u8]) -> Option<Step<'_>> {
    let line = buf.strip_prefix(b"get ")?;
    let window = line
        .get(..=MEMCACHED_KEY_LEN_MAX.saturating_add(1))
        .unwrap_or(line);
    let end = memchr::memchr2(b' ', b'\n', window)?;
    let (key, [b'\n', ..]) = line.split_at_checked(end)? else {
        return None;
    };
    let key = key.strip_suffix(b"\r").unwrap_or(key);
    if key.is_empty() || !is_key_len(key) {
        return None;
    }
    let commands = Commands::from_buf([Command::Get(Get::new(key))]);
    let request = Request {
        database: 0,
        body: Body::Data(commands),
        reply: Reply::Text(reply::Reply::retrieval(false)),
    };
    Some(Step::Request {
        request,
        len: b"get \n".len().saturating_add(end),
    })
}

/// Answers with `line` and ends the connection.
#[cold]
fn broken<'a>(line: &'static str, len: usize) -> Step<'a> {
    let request = Request {
        database: 0,
        body: Body::Broken,
        reply: Reply::Text(reply::Reply::answer(line, false)),
    };
    Step::Request { request, len }
}

/// Swallows a line and its data block but for the last byte: that is left for the answer to be made
/// of, since a request has at least one.
fn skip_block<'a>(line_len: usize, value_len: u64) -> Step<'a> {
    Step::Skip {
        len: value_len.saturating_add(1).saturating_add(line_len as u64),
    }
}

/// Whether a long line is one of many keys.
fn is_retrieval(buf: &[u8]) -> bool {
    let start = buf.get(..LINE_LEN_MAX).unwrap_or(buf).trim_ascii_start();
    [&b"get "[..], b"gets ", b"gat ", b"gats "]
        .iter()
        .any(|verb| start.starts_with(verb))
}
