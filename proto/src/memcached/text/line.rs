//! The parts of a command line: tokens between spaces, and numbers as memcached reads them.

use crate::ExpirySpec;
use crate::command::MEMCACHED_KEY_LEN_MAX;

/// Iterates over the tokens of a line. Only the space separates (a tab is part of a key), and
/// several spaces count as one.
#[derive(Clone, Debug)]
pub(in crate::memcached) struct Tokens<'a> {
    rest: &'a [u8],
}

impl<'a> Tokens<'a> {
    pub(in crate::memcached) fn new(line: &'a [u8]) -> Self {
        Self { rest: line }
    }

    /// What is behind the tokens taken so far.
    pub(in crate::memcached) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.rest.iter().position(|&byte| byte != b' ')?;
        let from_start = self.rest.get(start..)?;
        let len = memchr::memchr(b' ', from_start).unwrap_or(from_start.len());
        let (token, rest) = from_start.split_at(len);
        self.rest = rest;
        Some(token)
    }
}

/// Whether a key token is short enough. Tokens are never empty.
pub(in crate::memcached) fn is_key_len(key: &[u8]) -> bool {
    key.len() <= MEMCACHED_KEY_LEN_MAX
}

/// Reads a decimal number of 64 bits without a minus sign. A plus sign and leading zeros are
/// allowed, as `strtoull` allows them.
pub(in crate::memcached) fn parse_unsigned(token: &[u8]) -> Option<u64> {
    let digits = token.strip_prefix(b"+").unwrap_or(token);
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// Reads a decimal number of 32 bits without a minus sign.
pub(in crate::memcached) fn parse_u32(token: &[u8]) -> Option<u32> {
    parse_unsigned(token)?.try_into().ok()
}

/// Reads a decimal number of 64 bits with an optional sign.
pub(in crate::memcached) fn parse_signed(token: &[u8]) -> Option<i64> {
    match token.strip_prefix(b"-") {
        Some([b'+', ..]) => None,
        Some(digits) => 0_i64.checked_sub_unsigned(parse_unsigned(digits)?),
        None => parse_unsigned(token)?.try_into().ok(),
    }
}

/// The greatest length of a data block that memcached reads at all.
const BLOCK_LEN_MAX: u64 = i32::MAX as u64 - 2;

/// Reads the length of a data block. One that memcached takes for nonsense is none: nothing is
/// swallowed for it.
pub(in crate::memcached) fn parse_block_len(token: &[u8]) -> Option<u64> {
    let len = u64::try_from(parse_signed(token)?).ok()?;
    (len <= BLOCK_LEN_MAX).then_some(len)
}

/// Reads an `exptime`.
pub(in crate::memcached) fn parse_exptime(token: &[u8]) -> Option<ExpirySpec> {
    parse_signed(token).map(ExpirySpec::from_memcached_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_what_is_between_spaces() {
        let all = |line: &'static [u8]| Tokens::new(line).collect::<Vec<_>>();
        assert_eq!(all(b"get a b"), [b"get".as_slice(), b"a", b"b"]);
        assert_eq!(all(b"  get   a\tb "), [b"get".as_slice(), b"a\tb"]);
        assert!(all(b"   ").is_empty());
        assert!(all(b"").is_empty());
    }

    #[test]
    fn numbers_keep_to_their_range() {
        assert_eq!(parse_unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_unsigned(b"+007"), Some(7));
        for bad in [
            &b"18446744073709551616"[..],
            b"",
            b"+",
            b"-1",
            b"1x",
            b"0x1",
            b"++1",
            b" 1",
        ] {
            assert_eq!(parse_unsigned(bad), None, "{bad:?}");
        }
        assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(parse_u32(b"4294967296"), None);
        assert_eq!(parse_signed(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_signed(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse_signed(b"+5"), Some(5));
        for bad in [
            &b"9223372036854775808"[..],
            b"-9223372036854775809",
            b"-",
            b"--1",
            b"-+1",
        ] {
            assert_eq!(parse_signed(bad), None, "{bad:?}");
        }
    }
}
