//! Framing: where the arguments of a request lie in the bytes.
//!
//! A request is an array of bulk strings (`*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`) or an inline command (a
//! line). The state between two calls says how far a request was read, so that each byte is looked
//! at a bounded number of times however the request arrives. All errors are found at the same byte
//! however the bytes were cut into reads.
//!
//! A request that breaks a bound is *refused*: what is left of it is dropped from the stream
//! without being kept, and the answer follows when its last byte has arrived.

use std::fmt;

use super::inline;
use super::number::{Length, length};
use super::table::{self, CommandInfo, DataKind, Kind};
use super::wording::{self, ReplyError};
use crate::command::RESP_KEY_LEN_MAX;
use crate::request::{Limits, UNAUTHENTICATED_ARGUMENT_COUNT_MAX, UNAUTHENTICATED_LEN_MAX};

/// Most arguments of one request.
pub(super) const ARGUMENT_COUNT_MAX: usize = 1_048_576;

/// Longest argument that is not a value, and longest inline command, in bytes.
pub(super) const ARGUMENT_LEN_MAX: usize = 64 * 1024;

/// How much longer a whole request may be than the longest value: room for keys, and for many
/// values in one `MSET`.
pub(super) const REQUEST_LEN_ABOVE_VALUE_MAX: usize = 64 * 1024 * 1024;

/// A bulk string said to be longer than this and than any value is a broken stream rather than a
/// large value (Redis's `proto-max-bulk-len`).
const BULK_LEN_MAX: usize = 512 * 1024 * 1024;

/// Length of the options of `SET` that make it depend on what is there, `NX` and `XX`.
const CONDITION_LEN: usize = 2;

const TOO_MANY_UNAUTHENTICATED: &str = "unauthenticated multibulk length";

/// Room for arguments that is kept from one request to the next.
const KEPT_ARGUMENT_COUNT_MAX: usize = 128;

/// Where an argument lies, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) len: usize,
}

/// The arguments of a complete request; the first one is the command's name.
#[derive(Clone, Copy)]
pub(super) struct Args<'a> {
    source: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// Arguments that lie at `spans` in `source`.
    pub(super) fn new(source: &'a [u8], spans: &'a [Span]) -> Self {
        Self { source, spans }
    }

    /// How many there are, with the command's name.
    pub(super) fn len(self) -> usize {
        self.spans.len()
    }

    /// The argument at a position, empty if there is none.
    #[inline]
    pub(super) fn get(self, position: usize) -> &'a [u8] {
        self.spans
            .get(position)
            .map_or(&[], |span| self.slice(*span))
    }

    /// The arguments from a position on.
    pub(super) fn from(self, position: usize) -> impl ExactSizeIterator<Item = &'a [u8]> {
        let spans = self.spans.get(position..).unwrap_or_default();
        spans.iter().map(move |span| self.slice(*span))
    }

    #[inline]
    fn slice(self, span: Span) -> &'a [u8] {
        self.source
            .get(span.start..span.start + span.len)
            .unwrap_or_default()
    }
}

impl fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.from(0).map(<[u8]>::escape_ascii))
            .finish()
    }
}

/// What the bytes so far amount to.
#[derive(Debug)]
pub(super) enum Frame {
    /// Incomplete: as [`Step::Need`](crate::Step::Need).
    Need { total: usize },
    /// As [`Step::Skip`](crate::Step::Skip).
    Skip { len: u64 },
    /// A request; its arguments can be taken with [`Framing::args`].
    Complete {
        command: Option<&'static CommandInfo>,
        len: usize,
    },
    /// The end of a request that broke a bound.
    Refused { error: ReplyError, len: usize },
    /// The bytes are no RESP; the stream cannot be followed any further.
    Broken { error: ReplyError, len: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// At the first byte of a request.
    Start,
    /// At the header of an argument, `position`.
    Header,
    /// At the first byte of an argument so long, `position`.
    Payload { len: usize },
    /// Inline command, of which so many bytes hold no line feed.
    Inline { scanned: usize },
    /// A request was handed out.
    Done { inline: bool },
}

/// How far the request at the front of the connection's bytes was read.
#[derive(Debug)]
pub(super) struct Framing {
    limits: Limits,
    phase: Phase,
    /// Where reading goes on, from the start of the request or of what is left of a refused one.
    position: usize,
    /// Arguments that are not read yet, with the one being read.
    remaining: usize,
    spans: Vec<Span>,
    /// The unquoted words of an inline command.
    unquoted: Vec<u8>,
    /// The command, once its name is known and if it exists.
    command: Option<&'static CommandInfo>,
    /// Why the request is refused: it is only swallowed from here on.
    refusal: Option<ReplyError>,
    /// The key of a set that is refused for its size, whose entry is removed then, as memcached
    /// does: no read after the error finds the old value.
    outdated: Option<Vec<u8>>,
    is_authenticated: bool,
}

impl Framing {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            phase: Phase::Start,
            position: 0,
            remaining: 0,
            spans: Vec::new(),
            unquoted: Vec::new(),
            command: None,
            refusal: None,
            outdated: None,
            is_authenticated: true,
        }
    }

    pub(super) fn set_authenticated(&mut self, is_authenticated: bool) {
        self.is_authenticated = is_authenticated;
    }

    /// The key whose entry the refused request removes.
    pub(super) fn outdated(&self) -> Option<&[u8]> {
        self.outdated.as_deref()
    }

    /// Bytes that the arguments read so far take besides their own.
    pub(super) fn argument_count(&self) -> usize {
        self.spans.len()
    }

    /// Whether the next byte is the first one of a request.
    #[inline]
    pub(super) fn is_between_requests(&self) -> bool {
        matches!(self.phase, Phase::Start | Phase::Done { .. })
    }

    /// Refuses the array that is being read.
    pub(super) fn refuse(&mut self, error: ReplyError) {
        let is_inside = matches!(self.phase, Phase::Payload { .. } | Phase::Header);
        if is_inside && self.refusal.is_none() {
            self.refusal = Some(error);
            // Only the rest is swallowed: where its arguments lie is of no interest any more.
            self.spans = Vec::new();
        }
    }

    /// The arguments of the request that was completed in `buf`.
    pub(super) fn args<'a>(&'a self, buf: &'a [u8]) -> Args<'a> {
        let inline = self.phase == Phase::Done { inline: true };
        Args {
            source: if inline { &self.unquoted } else { buf },
            spans: &self.spans,
        }
    }

    /// Reads on in the bytes of the request at the front of `buf`.
    #[inline]
    pub(super) fn advance(&mut self, buf: &[u8]) -> Frame {
        if let Phase::Done { .. } = self.phase {
            self.forget_request();
        }
        if self.phase == Phase::Start {
            match buf.first() {
                None => return Frame::Need { total: 1 },
                Some(b'*') => match length(buf.get(1..).unwrap_or_default()) {
                    Length::Incomplete => {
                        return Frame::Need {
                            total: buf.len() + 1,
                        };
                    }
                    Length::Number { number, len } if number <= 0 => {
                        return Frame::Skip {
                            len: 1 + len as u64,
                        };
                    }
                    Length::Number { number, len } if number <= ARGUMENT_COUNT_MAX as i64 => {
                        let count_max = UNAUTHENTICATED_ARGUMENT_COUNT_MAX as i64;
                        if !self.is_authenticated && number > count_max {
                            return broken(TOO_MANY_UNAUTHENTICATED, 0);
                        }
                        self.phase = Phase::Header;
                        self.remaining = number as usize;
                        self.position = 1 + len;
                    }
                    Length::Number { .. } | Length::Invalid => {
                        return broken("invalid multibulk length", 0);
                    }
                },
                Some(_) => self.phase = Phase::Inline { scanned: 0 },
            }
        }
        if let Phase::Inline { scanned } = self.phase {
            return self.advance_inline(buf, scanned);
        }
        if self.refusal.is_some() {
            self.swallow(buf)
        } else {
            self.advance_array(buf)
        }
    }

    /// Reads the arguments of an array.
    #[inline]
    fn advance_array(&mut self, buf: &[u8]) -> Frame {
        loop {
            if self.phase == Phase::Header {
                let len = match self.header(buf) {
                    Ok(len) => len,
                    Err(frame) => return frame,
                };
                if let Some(refusal) = self.refusal_of(buf, len) {
                    self.refusal = Some(refusal);
                    if len > self.limits.value_len_max {
                        self.outdated = self.replaced_key(buf);
                    }
                    self.spans = Vec::new();
                    return self.swallow(buf);
                }
            }
            let Phase::Payload { len } = self.phase else {
                return broken("invalid bulk length", 0);
            };
            let end = self.position + len;
            match buf.get(end..end + 2) {
                None => return Frame::Need { total: end + 2 },
                Some(b"\r\n") => {}
                Some(_) => return broken("expected CRLF behind the bulk string", end),
            }
            self.spans.push(Span {
                start: self.position,
                len,
            });
            if self.spans.len() == 1 {
                self.command = table::find(buf.get(self.position..end).unwrap_or_default());
            }
            self.position = end + 2;
            self.remaining -= 1;
            if self.remaining == 0 {
                self.phase = Phase::Done { inline: false };
                return Frame::Complete {
                    command: self.command,
                    len: self.position,
                };
            }
            self.phase = Phase::Header;
        }
    }

    /// Reads the header of an argument; goes to the first byte of the argument and returns its
    /// length.
    #[inline]
    fn header(&mut self, buf: &[u8]) -> Result<usize, Frame> {
        let header = buf.get(self.position..).unwrap_or_default();
        match header {
            [] => Err(Frame::Need {
                total: self.position + 1,
            }),
            [b'$', behind @ ..] => match length(behind) {
                Length::Incomplete => Err(Frame::Need {
                    total: buf.len() + 1,
                }),
                Length::Number { number, len } if self.takes_bulk(number) => {
                    let bulk_len = number as usize;
                    let end = self.position + 1 + len + bulk_len + 2;
                    if !self.is_authenticated && end > UNAUTHENTICATED_LEN_MAX {
                        return Err(broken("unauthenticated bulk length", self.position));
                    }
                    self.position += 1 + len;
                    self.phase = Phase::Payload { len: bulk_len };
                    Ok(bulk_len)
                }
                Length::Number { .. } | Length::Invalid => {
                    Err(broken("invalid bulk length", self.position))
                }
            },
            [byte, ..] => {
                let mut reason = b"expected '$', got ' '".to_vec();
                if let [.., got, _] = &mut reason[..] {
                    *got = *byte;
                }
                Err(broken(reason, self.position))
            }
        }
    }

    #[inline]
    fn takes_bulk(&self, len: i64) -> bool {
        usize::try_from(len).is_ok_and(|len| len <= BULK_LEN_MAX.max(self.limits.value_len_max))
    }

    /// The key of the command, if it stores the value in front of which reading stands whatever was
    /// there before.
    fn replaced_key(&self, buf: &[u8]) -> Option<Vec<u8>> {
        let value_at = match self.command?.kind {
            Kind::Data(DataKind::Set | DataKind::GetSet) => 2,
            Kind::Data(DataKind::SetExpiring(_)) => 3,
            _ => return None,
        };
        let args = Args {
            source: buf,
            spans: &self.spans,
        };
        let is_next = self.spans.len() == value_at;
        (is_next && args.get(1).len() <= RESP_KEY_LEN_MAX).then(|| args.get(1).to_vec())
    }

    /// Whether the request has to be refused for the length of the argument that comes next.
    #[inline]
    fn refusal_of(&self, buf: &[u8], len: usize) -> Option<ReplyError> {
        let position = self.spans.len();
        let is_value = self
            .command
            .is_some_and(|command| command.is_value(position));
        let len_max = if is_value {
            self.limits.value_len_max
        } else {
            ARGUMENT_LEN_MAX
        };
        let request_len_max = self
            .limits
            .value_len_max
            .saturating_add(REQUEST_LEN_ABOVE_VALUE_MAX);
        if len <= len_max && self.position + len <= request_len_max {
            return None;
        }
        Some(self.word_refusal(buf, len > len_max, is_value, request_len_max))
    }

    #[cold]
    fn word_refusal(
        &self,
        buf: &[u8],
        argument_too_long: bool,
        is_value: bool,
        request_len_max: usize,
    ) -> ReplyError {
        let position = self.spans.len();
        match self.command {
            None if position > 0 => wording::unknown_command(Args {
                source: buf,
                spans: &self.spans,
            }),
            _ if !argument_too_long => wording::request_too_large(request_len_max),
            Some(CommandInfo {
                kind: Kind::Data(DataKind::Append | DataKind::SetRange),
                ..
            }) if is_value => wording::STRING_TOO_LONG,
            _ if is_value => wording::value_too_large(self.limits.value_len_max),
            Some(command) if command.is_key(position, position + self.remaining) => {
                wording::key_too_long()
            }
            _ => wording::argument_too_long(ARGUMENT_LEN_MAX),
        }
    }

    /// Reads over the rest of a refused request, dropping what it can.
    fn swallow(&mut self, buf: &[u8]) -> Frame {
        loop {
            match self.phase {
                Phase::Payload { len } => {
                    let end = self.position + len;
                    match buf.get(end..end + 2) {
                        // It may be a condition, which has to be looked at.
                        None if len == CONDITION_LEN && self.outdated.is_some() => {
                            return Frame::Need { total: end + 2 };
                        }
                        // The line end is kept: the last one of the request is what the answer
                        // stands for.
                        None if end > 0 => {
                            self.position = 0;
                            self.phase = Phase::Payload { len: 0 };
                            return Frame::Skip { len: end as u64 };
                        }
                        None => return Frame::Need { total: 2 },
                        Some(b"\r\n") => {}
                        Some(_) => return broken("expected CRLF behind the bulk string", end),
                    }
                    let word = buf.get(self.position..end).unwrap_or_default();
                    if word.eq_ignore_ascii_case(b"NX") || word.eq_ignore_ascii_case(b"XX") {
                        self.outdated = None;
                    }
                    self.position = end + 2;
                    self.remaining -= 1;
                    self.phase = Phase::Header;
                    if self.remaining == 0
                        && let Some(error) = self.refusal.take()
                    {
                        self.phase = Phase::Done { inline: false };
                        return Frame::Refused {
                            error,
                            len: self.position,
                        };
                    }
                }
                _ => match self.header(buf) {
                    Ok(_) => {}
                    Err(Frame::Need { .. }) if self.position > 0 => {
                        let len = std::mem::take(&mut self.position) as u64;
                        return Frame::Skip { len };
                    }
                    Err(frame) => return frame,
                },
            }
        }
    }

    fn advance_inline(&mut self, buf: &[u8], scanned: usize) -> Frame {
        let len_max = match self.is_authenticated {
            true => ARGUMENT_LEN_MAX,
            false => UNAUTHENTICATED_LEN_MAX,
        };
        let searched = buf.get(..buf.len().min(len_max)).unwrap_or_default();
        let found = memchr::memchr(b'\n', searched.get(scanned..).unwrap_or_default());
        let Some(line_len) = found.map(|offset| scanned + offset) else {
            if searched.len() == len_max {
                return broken("too big inline request", len_max - 1);
            }
            self.phase = Phase::Inline { scanned: buf.len() };
            return Frame::Need {
                total: buf.len() + 1,
            };
        };
        let len = line_len + 1;
        let line = searched.get(..line_len).unwrap_or_default();
        if inline::split(line, &mut self.unquoted, &mut self.spans).is_err() {
            return broken("unbalanced quotes in request", line_len);
        }
        self.phase = Phase::Done { inline: true };
        let Some(name) = self.spans.first() else {
            return Frame::Skip { len: len as u64 };
        };
        if !self.is_authenticated && self.spans.len() > UNAUTHENTICATED_ARGUMENT_COUNT_MAX {
            return broken(TOO_MANY_UNAUTHENTICATED, line_len);
        }
        self.command = table::find(self.unquoted.get(..name.len).unwrap_or_default());
        let value_len_max = self.limits.value_len_max;
        let too_large = |(position, span): (usize, &Span)| {
            self.command
                .is_some_and(|command| command.is_value(position))
                && span.len > value_len_max
        };
        if self.spans.iter().enumerate().any(too_large) {
            return Frame::Refused {
                error: wording::value_too_large(value_len_max),
                len,
            };
        }
        Frame::Complete {
            command: self.command,
            len,
        }
    }

    #[inline]
    fn forget_request(&mut self) {
        self.phase = Phase::Start;
        self.command = None;
        self.outdated = None;
        self.spans.clear();
        self.unquoted.clear();
        // What one large request needed is not kept for the life of the connection.
        if self.spans.capacity() > KEPT_ARGUMENT_COUNT_MAX {
            self.spans = Vec::new();
        }
        if self.unquoted.capacity() > KEPT_ARGUMENT_COUNT_MAX {
            self.unquoted = Vec::new();
        }
    }
}

/// The key, and the length of the request, if `buf` begins with what nearly all reads are: an array
/// of `GET` and one key that a key may be, all of it there. The long way comes to the same.
#[inline]
pub(super) fn plain_get(buf: &[u8]) -> Option<(&[u8], usize)> {
    const HEAD: &[u8; 14] = b"*2\r\n$3\r\nGET\r\n$";
    let behind = buf.strip_prefix(HEAD)?;
    let Length::Number { number, len } = length(behind) else {
        return None;
    };
    let key_len = usize::try_from(number).ok()?;
    if !(1..=RESP_KEY_LEN_MAX).contains(&key_len) {
        return None;
    }
    let end = len + key_len;
    let (key, b"\r\n") = behind.get(len..end + 2)?.split_at_checked(key_len)? else {
        return None;
    };
    Some((key, HEAD.len() + end + 2))
}

/// The stream is broken at the byte at `offset`.
#[cold]
fn broken(reason: impl AsRef<[u8]>, offset: usize) -> Frame {
    Frame::Broken {
        error: wording::protocol_error(reason.as_ref()),
        len: offset + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_huge_request_needed_is_given_back() {
        let mut framing = Framing::new(Limits {
            value_len_max: 1000,
        });
        let mut huge = b"*10000\r\n".to_vec();
        huge.extend(b"$1\r\nk\r\n".repeat(10_000));
        let line = [&b"PING "[..], &[b'x'; 10_000], b"\n"].concat();
        for bytes in [&huge, &line] {
            assert!(matches!(framing.advance(bytes), Frame::Complete { .. }));
            assert!(framing.spans.capacity().max(framing.unquoted.capacity()) >= 10_000);
            assert!(matches!(
                framing.advance(b"PING\r\n"),
                Frame::Complete { .. }
            ));
            assert!(framing.spans.capacity() <= KEPT_ARGUMENT_COUNT_MAX);
            assert!(framing.unquoted.capacity() <= KEPT_ARGUMENT_COUNT_MAX);
        }
    }

    #[test]
    fn a_request_that_is_refused_between_two_arguments_holds_nothing_and_is_swallowed() {
        let mut framing = Framing::new(Limits {
            value_len_max: 1000,
        });
        let mut begun = b"*10001\r\n$3\r\nDEL\r\n".to_vec();
        begun.extend(b"$1\r\nk\r\n".repeat(5_000));
        assert!(matches!(framing.advance(&begun), Frame::Need { .. }));
        assert_eq!(framing.argument_count(), 5_001);
        framing.refuse(wording::SYNTAX);
        assert_eq!((framing.argument_count(), framing.spans.capacity()), (0, 0));
        let Frame::Skip { len } = framing.advance(&begun) else {
            panic!("is swallowed");
        };
        assert_eq!(len, begun.len() as u64);
        let rest = b"$1\r\nk\r\n".repeat(5_000);
        let Frame::Refused { error, len } = framing.advance(&rest) else {
            panic!("is refused");
        };
        assert_eq!((error, len), (wording::SYNTAX, rest.len()));
    }

    #[test]
    fn a_small_request_takes_no_memory_that_the_one_before_did_not_take() {
        let mut framing = Framing::new(Limits {
            value_len_max: 1000,
        });
        let bytes = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n";
        assert!(matches!(framing.advance(bytes), Frame::Complete { .. }));
        let kept = framing.spans.as_ptr();
        assert!(matches!(
            framing.advance(bytes),
            Frame::Complete { len: 27, .. }
        ));
        assert_eq!(framing.spans.as_ptr(), kept);
    }
}
