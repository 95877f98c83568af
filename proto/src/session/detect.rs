//! Which dialect a connection speaks.
//!
//! All dialects share one port. [`detect`] looks at the first bytes of a connection and decides
//! once. What is decided on:
//!
//! | first bytes | taken for |
//! |---|---|
//! | 0x80 | memcached binary, at the first byte: some clients send it in a segment of its own |
//! | 0xFA | another member of the cluster, in the peer protocol: it never occurs in UTF-8 |
//! | `*` or another RESP type byte | RESP |
//! | 0x00 | RESP, which answers with the protocol error of Redis: a client of Redis out of step |
//! | empty lines | what is behind them, if RESP (an empty query, which Redis does not answer) or refused; else memcached text |
//! | `GET /`, any other HTTP method, `Host:` | HTTP: refused |
//! | a word with an upper-case letter | RESP inline: memcached's commands are lower-case |
//! | a lower-case word that only Redis knows | RESP inline: a person at a terminal, a health check |
//! | `set KEY` and a word that is no number | RESP inline: memcached has the flags there |
//! | any other text, `get` and `set` among it | memcached text, which answers `ERROR` to what it does not know |
//! | anything else, a TLS handshake among it | refused |
//!
//! HTTP is refused because a web page can make a browser on the same machine send a request to our
//! port, with a body of its choice (cross-protocol request forgery). The request line is sent
//! first, so the connection is closed before the body is looked at. `GET /` also could be a Redis
//! inline command for a key that starts with a slash; such a client has to use proper RESP.

use crate::memcached::binary;
use crate::{peer, resp};

/// The most bytes that [`detect`] wants to see. No command of any dialect is longer.
pub const DETECT_LEN_MAX: usize = 32;

/// Methods of HTTP, which are no commands of Redis (upper-case) and none of memcached. `GET` is one
/// of Redis and is told apart by what follows; `PRI` opens HTTP/2.
const HTTP_METHODS: [&[u8]; 9] = [
    b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT", b"TRACE", b"PRI",
];

/// Commands of memcached that RESP has as well, in lower case.
const SHARED_WORDS: [&[u8]; 8] = [
    b"append", b"decr", b"get", b"incr", b"quit", b"set", b"touch", b"watch",
];

/// Commands of Redis that neither memcached nor Fonn has, in lower case. Their clients get the
/// error of Redis.
#[rustfmt::skip]
const ABSENT_WORDS: [&[u8]; 27] = [
    b"acl", b"bgsave", b"debug", b"eval", b"hget", b"hgetall", b"hset", b"lastsave", b"latency",
    b"lpush", b"memory", b"module", b"monitor", b"psubscribe", b"psync", b"publish", b"replicaof",
    b"role", b"rpush", b"save", b"slaveof", b"slowlog", b"subscribe", b"swapdb", b"sync", b"wait",
    b"zadd",
];

/// A dialect of the client port. Memcached's text and meta commands are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Memcached text and meta.
    Text,
    /// Memcached binary.
    Binary,
    /// RESP2 and RESP3.
    Resp,
}

impl Dialect {
    /// All of them; the place of each is its number.
    pub const ALL: [Self; 3] = [Self::Text, Self::Binary, Self::Resp];

    /// The name it has in metrics and statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Binary => "binary",
            Self::Resp => "resp",
        }
    }
}

/// What [`detect`] found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// Undecided. Call again when the connection holds at least `total` bytes in all; `total` is at
    /// most [`DETECT_LEN_MAX`].
    Need {
        /// Bytes needed in all, more than there are.
        total: usize,
    },
    /// Decided. Nothing is consumed: the bytes go to the dialect's parser.
    Found(Dialect),
    /// No client: a member of the cluster or one of its routers, which opens with the hello of the
    /// peer protocol ([`crate::peer`]).
    Peer,
    /// Not a client of ours: close the connection without an answer.
    Refused,
}

/// Decides from the first bytes of a connection which dialect it speaks. Pure: the same bytes give
/// the same answer however they arrived, and more bytes never change a decision.
#[must_use]
pub fn detect(buf: &[u8]) -> Detection {
    let Some(&first) = buf.first() else {
        return Detection::Need { total: 1 };
    };
    match first {
        binary::MAGIC_REQUEST => return Detection::Found(Dialect::Binary),
        peer::FIRST_BYTE => return Detection::Peer,
        b'*' | b'$' | b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' | b'!' | b'=' | b'%'
        | b'~' | b'>' | b'|' => return Detection::Found(Dialect::Resp),
        0 => return Detection::Found(Dialect::Resp),
        b'\r' | b'\n' => return behind_empty_lines(buf),
        b' ' | b'\t' => return Detection::Found(Dialect::Text),
        b'!'..=b'~' => {}
        _ => return Detection::Refused,
    }
    let seen = buf.get(..DETECT_LEN_MAX).unwrap_or(buf);
    let Some(end) = seen.iter().position(|byte| byte.is_ascii_whitespace()) else {
        if seen.len() < DETECT_LEN_MAX {
            return Detection::Need {
                total: seen.len().saturating_add(1),
            };
        }
        return by_word(seen);
    };
    let (word, rest) = seen.split_at_checked(end).unwrap_or((seen, &[]));
    if word == b"GET" {
        return match rest {
            [b' ', b'/', ..] => Detection::Refused,
            [b' '] => Detection::Need {
                total: seen.len().saturating_add(1),
            },
            _ => Detection::Found(Dialect::Resp),
        };
    }
    if word == b"set" {
        return by_flags(seen, rest);
    }
    by_word(word)
}

/// Decides on what is behind line ends. Only what is Redis's there, or refused, is not memcached's,
/// which answers `ERROR` to an empty line.
fn behind_empty_lines(buf: &[u8]) -> Detection {
    let seen = buf.get(..DETECT_LEN_MAX).unwrap_or(buf);
    let is_full = seen.len() == DETECT_LEN_MAX;
    let start = seen.iter().position(|byte| !matches!(byte, b'\r' | b'\n'));
    let behind = start
        .and_then(|start| seen.get(start..))
        .unwrap_or_default();
    match detect(behind) {
        Detection::Need { .. } if !is_full => Detection::Need {
            total: seen.len().saturating_add(1),
        },
        Detection::Found(Dialect::Resp) => Detection::Found(Dialect::Resp),
        Detection::Refused => Detection::Refused,
        _ => Detection::Found(Dialect::Text),
    }
}

/// Decides on `set KEY FLAGS`: both have the command, but only memcached has a number there. `rest`
/// is what is seen behind the first word.
fn by_flags(seen: &[u8], rest: &[u8]) -> Detection {
    let line_end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    let line = line_end.and_then(|end| rest.get(..end)).unwrap_or(rest);
    let mut words = line
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty());
    match (words.next(), words.next()) {
        (Some(_), Some([first, ..])) if !matches!(first, b'0'..=b'9' | b'+' | b'-') => {
            Detection::Found(Dialect::Resp)
        }
        (_, None) if line_end.is_none() && seen.len() < DETECT_LEN_MAX => Detection::Need {
            total: seen.len().saturating_add(1),
        },
        _ => Detection::Found(Dialect::Text),
    }
}

/// Decides on the first word, or on what is seen of a longer one.
fn by_word(word: &[u8]) -> Detection {
    let is_host = word
        .get(..5)
        .is_some_and(|start| start.eq_ignore_ascii_case(b"host:"));
    if is_host || HTTP_METHODS.contains(&word) {
        return Detection::Refused;
    }
    let is_redis = word.iter().any(u8::is_ascii_uppercase)
        || ABSENT_WORDS.contains(&word)
        || resp::is_command(word) && !SHARED_WORDS.contains(&word);
    Detection::Found(if is_redis {
        Dialect::Resp
    } else {
        Dialect::Text
    })
}
