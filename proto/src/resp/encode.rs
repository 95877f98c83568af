//! The elements of RESP replies, in both protocol versions.

use super::wording::ReplyError;
use crate::Out;

/// The protocol version that a connection has chosen with `HELLO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Resp2,
    Resp3,
}

impl Protocol {
    pub(super) fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// `<sigil><number>\r\n`.
#[inline]
fn put_line(out: &mut Out, sigil: u8, number: impl itoa::Integer) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(number).as_bytes();
    // Room for the sigil, the 20 characters of an i64 and the line end.
    let mut line = [0; 24];
    line[0] = sigil;
    let end = 1 + digits.len();
    line[1..end].copy_from_slice(digits);
    line[end..end + 2].copy_from_slice(b"\r\n");
    out.put(&line[..end + 2]);
}

#[inline]
pub(super) fn put_integer(out: &mut Out, number: i64) {
    put_line(out, b':', number);
}

/// What stands before the bytes of a bulk string; they are followed by [`end_bulk`].
#[inline]
pub(super) fn begin_bulk(out: &mut Out, len: usize) {
    put_line(out, b'$', len);
}

#[inline]
pub(super) fn end_bulk(out: &mut Out) {
    out.put(b"\r\n");
}

#[inline]
pub(super) fn put_bulk(out: &mut Out, bytes: &[u8]) {
    begin_bulk(out, bytes.len());
    out.put(bytes);
    end_bulk(out);
}

#[inline]
pub(super) fn put_null(out: &mut Out, protocol: Protocol) {
    out.put(match protocol {
        Protocol::Resp2 => b"$-1\r\n",
        Protocol::Resp3 => b"_\r\n",
    });
}

/// Null where there could be an array.
pub(super) fn put_null_array(out: &mut Out, protocol: Protocol) {
    out.put(match protocol {
        Protocol::Resp2 => b"*-1\r\n",
        Protocol::Resp3 => b"_\r\n",
    });
}

#[inline]
pub(super) fn put_ok(out: &mut Out) {
    out.put(b"+OK\r\n");
}

/// A simple string; `text` has no line end.
pub(super) fn put_status(out: &mut Out, text: &str) {
    out.put(b"+");
    out.put(text.as_bytes());
    out.put(b"\r\n");
}

/// An error. Line ends that came from the client become spaces.
pub(super) fn put_error(out: &mut Out, error: &ReplyError) {
    out.put(b"-");
    for (index, part) in error
        .as_bytes()
        .split(|byte| matches!(byte, b'\r' | b'\n'))
        .enumerate()
    {
        if index > 0 {
            out.put(b" ");
        }
        out.put(part);
    }
    out.put(b"\r\n");
}

pub(super) fn put_array_len(out: &mut Out, count: usize) {
    put_line(out, b'*', count);
}

/// A set in RESP3, an array in RESP2.
pub(super) fn put_set_len(out: &mut Out, protocol: Protocol, count: usize) {
    match protocol {
        Protocol::Resp2 => put_line(out, b'*', count),
        Protocol::Resp3 => put_line(out, b'~', count),
    }
}

/// A map in RESP3, an array of names and values in turn in RESP2.
pub(super) fn put_map_len(out: &mut Out, protocol: Protocol, pairs: usize) {
    match protocol {
        Protocol::Resp2 => put_line(out, b'*', pairs * 2),
        Protocol::Resp3 => put_line(out, b'%', pairs),
    }
}

/// A text for people: a verbatim string in RESP3, a bulk string in RESP2.
pub(super) fn put_text(out: &mut Out, protocol: Protocol, text: &str) {
    const FORMAT: &str = "txt:";
    match protocol {
        Protocol::Resp2 => put_bulk(out, text.as_bytes()),
        Protocol::Resp3 => {
            put_line(out, b'=', FORMAT.len() + text.len());
            out.put(FORMAT.as_bytes());
            out.put(text.as_bytes());
            end_bulk(out);
        }
    }
}
