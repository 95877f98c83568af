//! The words of the meta dialect.

use super::base64::put_encoded;
use super::flags::Flags;
use crate::memcached::text::{self, Tokens};
use crate::outcome::{Failure, Hit, Number, Outcome};
use crate::request::within::relocate;
use crate::{Command, Out};

/// How to word the answer to one request of the meta dialect.
///
/// It keeps the flags as they stand in the request and goes through them again to return what they
/// ask for, in their order.
#[derive(Debug)]
pub struct Reply<'a> {
    kind: Kind,
    /// The flags of the request.
    flags: &'a [u8],
    /// The key is returned as base64.
    base64: bool,
    /// Nominal replies are left out.
    quiet: bool,
    /// The value is returned.
    value: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Get,
    Store,
    Delete,
    Arithmetic,
    Debug,
    /// A line that is known already.
    Answer(&'static str),
}

/// What flags may return, where there is an entry.
enum Facts<'o> {
    None,
    Hit(&'o Hit<'o>),
    Number(&'o Number),
    Store { version: u64, value_len: usize },
}

impl<'a> Reply<'a> {
    pub(in crate::memcached) fn answer(line: &'static str) -> Self {
        Self::new(Kind::Answer(line), b"", &Flags::default())
    }

    pub(super) fn new(kind: Kind, tail: &'a [u8], flags: &Flags) -> Self {
        let Flags {
            base64,
            quiet,
            value,
            ..
        } = *flags;
        Self {
            kind,
            flags: tail,
            base64,
            quiet,
            value,
        }
    }

    /// The same reply with flags that lie in `buf`; None if they lie elsewhere.
    pub(crate) fn within<'b>(&self, buf: &'b [u8]) -> Option<Reply<'b>> {
        Some(Reply {
            flags: relocate(self.flags, buf)?,
            ..*self
        })
    }

    /// Words the outcome of the command.
    #[inline]
    pub fn each(&mut self, command: &Command<'_>, outcome: &Outcome<'_>, out: &mut Out) {
        let key = command.key();
        match (self.kind, outcome) {
            (Kind::Answer(_), _) => {}
            (_, Outcome::Failed(failure)) => text::put_failure(*failure, out),
            // Only clients that ask for it get this reply, and here no client can.
            (_, Outcome::Moved(_)) => text::put_failure(Failure::Unavailable, out),
            (Kind::Get, Outcome::Hit(hit)) => self.put_hit(key, hit, out),
            (Kind::Debug, Outcome::Hit(hit)) => self.put_debug(key, hit, out),
            (Kind::Debug, _) => out.put(b"EN\r\n"),
            (Kind::Get, _) if self.quiet => {}
            (Kind::Get, _) => self.put_code(b"EN", key, &Facts::None, out),
            (Kind::Store, Outcome::Stored(stored)) => {
                if !self.quiet {
                    let facts = Facts::Store {
                        version: stored.version,
                        value_len: stored.value_len,
                    };
                    self.put_code(b"HD", key, &facts, out);
                }
            }
            (Kind::Store, outcome) => {
                let value_len = match command {
                    Command::Store(store) => store.value.len(),
                    _ => 0,
                };
                // protocol.txt: the version is 0 where nothing was stored.
                let facts = Facts::Store {
                    version: 0,
                    value_len,
                };
                self.put_code(refusal_code(outcome), key, &facts, out);
            }
            (Kind::Arithmetic, Outcome::Number(number)) => {
                if !self.quiet {
                    self.put_number(key, number, out);
                }
            }
            (Kind::Arithmetic, Outcome::NotANumber | Outcome::Overflow) => {
                text::put_not_a_number(out);
            }
            (Kind::Delete, Outcome::Deleted { .. } | Outcome::Touched { .. }) => {
                if !self.quiet {
                    self.put_code(b"HD", key, &Facts::None, out);
                }
            }
            (Kind::Delete | Kind::Arithmetic, outcome) => {
                self.put_code(refusal_code(outcome), key, &Facts::None, out);
            }
        }
    }

    /// Words an answer that was known from the start.
    #[inline]
    pub fn finish(&mut self, out: &mut Out) {
        if let Kind::Answer(line) = self.kind {
            text::put_line(line, out);
        }
    }

    /// A code with the returned flags behind it.
    fn put_code(&self, code: &[u8], key: &[u8], facts: &Facts<'_>, out: &mut Out) {
        out.put(code);
        self.put_flags(key, facts, out);
        out.put(b"\r\n");
    }

    fn put_hit(&self, key: &[u8], hit: &Hit<'_>, out: &mut Out) {
        self.put_size(hit.value_len, out);
        self.put_flags(key, &Facts::Hit(hit), out);
        for (is_set, flag) in [(hit.lost, b" Z"), (hit.stale, b" X"), (hit.won, b" W")] {
            if is_set {
                out.put(flag);
            }
        }
        out.put(b"\r\n");
        if self.value {
            out.put_value(&hit.value);
            out.put(b"\r\n");
        }
    }

    fn put_number(&self, key: &[u8], number: &Number, out: &mut Out) {
        self.put_size(number.text.len(), out);
        self.put_flags(key, &Facts::Number(number), out);
        out.put(b"\r\n");
        if self.value {
            out.put(&number.text);
            out.put(b"\r\n");
        }
    }

    /// `VA <size>` if there is a value behind the line, `HD` otherwise.
    fn put_size(&self, value_len: usize, out: &mut Out) {
        if self.value {
            out.put(b"VA ");
            out.put_decimal(value_len);
        } else {
            out.put(b"HD");
        }
    }

    /// The flags that return something, in the order of the request.
    fn put_flags(&self, key: &[u8], facts: &Facts<'_>, out: &mut Out) {
        for token in Tokens::new(self.flags) {
            match (token.first(), facts) {
                (Some(b'O'), _) => {
                    out.put(b" ");
                    out.put(token);
                }
                (Some(b'k'), _) => {
                    out.put(b" k");
                    self.put_key(key, out);
                    if self.base64 {
                        out.put(b" b");
                    }
                }
                (Some(flag), Facts::Hit(hit)) => put_hit_flag(*flag, hit, out),
                (Some(b'c'), Facts::Number(number)) => put_flag(b" c", number.version, out),
                (Some(b't'), Facts::Number(number)) => put_ttl(number.ttl_ms, out),
                (Some(b'c'), Facts::Store { version, .. }) => put_flag(b" c", *version, out),
                (Some(b's'), Facts::Store { value_len, .. }) => put_flag(b" s", *value_len, out),
                _ => {}
            }
        }
    }

    fn put_key(&self, key: &[u8], out: &mut Out) {
        if self.base64 {
            put_encoded(key, out);
        } else {
            out.put(key);
        }
    }

    /// `ME <key> <name>=<value>*`. There are no slab classes, so the class is always 1; the size is
    /// that of key and value.
    fn put_debug(&self, key: &[u8], hit: &Hit<'_>, out: &mut Out) {
        out.put(b"ME ");
        self.put_key(key, out);
        out.put(b" exp=");
        put_seconds(hit.ttl_ms, out);
        put_flag(b" la=", hit.idle_s, out);
        put_flag(b" cas=", hit.version, out);
        out.put(if hit.fetched_before {
            b" fetch=yes"
        } else {
            b" fetch=no"
        });
        put_flag(
            b" cls=1 size=",
            key.len().saturating_add(hit.value_len),
            out,
        );
        out.put(b"\r\n");
    }
}

/// The code for a command whose condition was not met.
fn refusal_code(outcome: &Outcome<'_>) -> &'static [u8] {
    match outcome {
        Outcome::Exists => b"EX",
        Outcome::NotFound | Outcome::Miss => b"NF",
        _ => b"NS",
    }
}

fn put_hit_flag(flag: u8, hit: &Hit<'_>, out: &mut Out) {
    match flag {
        b's' => put_flag(b" s", hit.value_len, out),
        b't' => put_ttl(hit.ttl_ms, out),
        b'c' => put_flag(b" c", hit.version, out),
        b'f' => put_flag(b" f", hit.flags, out),
        b'l' => put_flag(b" l", hit.idle_s, out),
        b'h' => put_flag(b" h", u8::from(hit.fetched_before), out),
        _ => {}
    }
}

fn put_flag(name: &[u8], number: impl itoa::Integer, out: &mut Out) {
    out.put(name);
    out.put_decimal(number);
}

fn put_ttl(ttl_ms: Option<u64>, out: &mut Out) {
    out.put(b" t");
    put_seconds(ttl_ms, out);
}

/// Whole seconds left, a started one counted: an entry set for 20 s has 20 s left just after. -1
/// means for ever.
fn put_seconds(ttl_ms: Option<u64>, out: &mut Out) {
    match ttl_ms {
        Some(ttl_ms) => out.put_decimal(ttl_ms.div_ceil(1000)),
        None => out.put(b"-1"),
    }
}
