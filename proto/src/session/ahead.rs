//! The keys of the requests that wait in a buffer: a hint of what will be looked up.
//!
//! It takes the first argument of a request for its key, whatever the request is, and ends at a
//! form that it does not know. What it says has no effect on what a request means: the parsers
//! decide that.

use super::Dialect;
use crate::memcached::binary::{HEADER_LEN, MAGIC_REQUEST};

/// Longest line of memcached's text protocol that is looked at: the longest key, and what is around
/// it.
const LINE_LEN_MAX: usize = 320;

/// Most arguments of a request that is looked at.
const ARGUMENTS_MAX: usize = 16;

/// The keys of the requests at the front of a buffer, in their order.
#[derive(Clone, Debug)]
pub struct KeysAhead<'d> {
    dialect: Dialect,
    rest: &'d [u8],
}

impl<'d> KeysAhead<'d> {
    /// Looks at a buffer that begins with a request.
    #[must_use]
    pub fn new(dialect: Dialect, buf: &'d [u8]) -> Self {
        Self { dialect, rest: buf }
    }
}

impl<'d> Iterator for KeysAhead<'d> {
    type Item = &'d [u8];

    fn next(&mut self) -> Option<&'d [u8]> {
        let (key, rest) = match self.dialect {
            Dialect::Text => text(self.rest),
            Dialect::Binary => binary(self.rest),
            Dialect::Resp => resp(self.rest),
        }?;
        self.rest = rest;
        Some(key)
    }
}

/// The key of the first request, and what follows the request.
type First<'d> = Option<(&'d [u8], &'d [u8])>;

fn text(buf: &[u8]) -> First<'_> {
    let line_end = buf.iter().take(LINE_LEN_MAX).position(|it| *it == b'\n')?;
    let (line, rest) = buf.split_at_checked(line_end)?;
    let rest = rest.get(1..)?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = line.split(|it| *it == b' ');
    let (verb, key) = (words.next()?, words.next()?);
    let len = match verb {
        b"get" | b"gets" | b"mg" | b"md" | b"delete" | b"touch" | b"incr" | b"decr" => {
            return Some((key, rest));
        }
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => words.nth(2)?,
        b"ms" => words.next()?,
        _ => return None,
    };
    let len = digits(len)?;
    Some((key, rest.get(len.checked_add(2)?..)?))
}

fn binary(buf: &[u8]) -> First<'_> {
    let (head, rest) = buf.split_first_chunk::<HEADER_LEN>()?;
    let [
        MAGIC_REQUEST,
        _,
        key_a,
        key_b,
        extras_len,
        _,
        _,
        _,
        a,
        b,
        c,
        d,
        ..,
    ] = *head
    else {
        return None;
    };
    let body_len = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
    let (body, rest) = rest.split_at_checked(body_len)?;
    let key_len = usize::from(u16::from_be_bytes([key_a, key_b]));
    let key = body.get(usize::from(extras_len)..)?.get(..key_len)?;
    (key_len > 0).then_some((key, rest))
}

fn resp(buf: &[u8]) -> First<'_> {
    let (count, mut rest) = number(buf.strip_prefix(b"*")?)?;
    if !(2..=ARGUMENTS_MAX).contains(&count) {
        return None;
    }
    let mut key = None;
    for index in 0..count {
        let (len, tail) = number(rest.strip_prefix(b"$")?)?;
        let (argument, tail) = tail.split_at_checked(len)?;
        rest = tail.strip_prefix(b"\r\n")?;
        if index == 1 {
            key = Some(argument);
        }
    }
    Some((key?, rest))
}

/// The number at the front of a line, and what follows the line.
fn number(buf: &[u8]) -> Option<(usize, &[u8])> {
    let end = buf.iter().take(10).position(|it| *it == b'\r')?;
    let (number, rest) = buf.split_at_checked(end)?;
    Some((digits(number)?, rest.strip_prefix(b"\r\n")?))
}

fn digits(text: &[u8]) -> Option<usize> {
    if text.is_empty() || text.len() > 9 {
        return None;
    }
    text.iter().try_fold(0_usize, |number, it| {
        let digit = it.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(usize::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(dialect: Dialect, buf: &[u8]) -> Vec<String> {
        let keys = KeysAhead::new(dialect, buf);
        keys.map(|key| String::from_utf8_lossy(key).into_owned())
            .collect()
    }

    #[test]
    fn the_keys_of_text_requests_are_found_behind_values() {
        let buf = b"get a\r\nset bc 0 0 5\r\nget x\r\nms d 2 T0\r\nhi\r\nmg e v\r\ncas f 1 2 3 4\r\nabc\r\n\
                    delete g\r\nset h 0 0 9\r\nshort";
        assert_eq!(keys(Dialect::Text, buf), ["a", "bc", "d", "e", "f", "g"]);
        assert_eq!(
            keys(Dialect::Text, b"get a b c\r\nversion\r\nget d\r\n"),
            ["a"]
        );
        assert!(keys(Dialect::Text, b"get a").is_empty());
        assert!(keys(Dialect::Text, b"set a 0 0 99999999999\r\n").is_empty());
    }

    fn packet(key: &[u8], extras: &[u8], value: &[u8]) -> Vec<u8> {
        let body = [extras, key, value].concat();
        let mut packet = vec![MAGIC_REQUEST, 1];
        packet.extend_from_slice(&(key.len() as u16).to_be_bytes());
        packet.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
        packet.extend_from_slice(&(body.len() as u32).to_be_bytes());
        packet.resize(HEADER_LEN, 0);
        packet.extend_from_slice(&body);
        packet
    }

    #[test]
    fn the_keys_of_binary_packets_are_found_up_to_one_without_a_key() {
        let mut buf = [packet(b"a", b"", b""), packet(b"bc", &[0; 8], b"value")].concat();
        assert_eq!(keys(Dialect::Binary, &buf), ["a", "bc"]);
        buf.extend(packet(b"", b"", b""));
        buf.extend(packet(b"d", b"", b""));
        assert_eq!(keys(Dialect::Binary, &buf), ["a", "bc"]);
        let whole = packet(b"a", &[0; 8], b"value");
        for len in 0..whole.len() {
            assert!(keys(Dialect::Binary, &whole[..len]).is_empty(), "{len}");
        }
    }

    #[test]
    fn the_keys_of_redis_requests_are_found_up_to_a_long_one() {
        let buf = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*3\r\n$3\r\nSET\r\n$2\r\nbc\r\n$4\r\n*2\r\n\r\n*1\r\n$4\r\nPING\r\n";
        assert_eq!(keys(Dialect::Resp, buf), ["a", "bc"]);
        assert!(keys(Dialect::Resp, b"GET a\r\n").is_empty());
        assert!(keys(Dialect::Resp, b"*2\r\n$3\r\nGET\r\n$-1\r\n").is_empty());
    }

    proptest! {
        /// Neither a panic nor a key that does not lie in the buffer.
        #[test]
        fn any_bytes_have_keys_of_no_more_than_their_length(
            buf in proptest::collection::vec(
                prop_oneof![any::<u8>(), proptest::sample::select(b"*$ \r\n0129get".to_vec())],
                0..400,
            ),
        ) {
            for dialect in [Dialect::Text, Dialect::Binary, Dialect::Resp] {
                let len: usize = KeysAhead::new(dialect, &buf).map(<[u8]>::len).sum();
                prop_assert!(len <= buf.len());
            }
        }
    }
}
