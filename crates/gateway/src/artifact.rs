//! The value of a Turborepo artifact: its headers, and behind them the body as it was sent.
//!
//! | offset | size | type | meaning |
//! |---|---|---|---|
//! | 0 | 8 | bytes | `fonnart1` |
//! | 8 | 4 | u32, little endian | length of the headers in bytes |
//! | 12 | length | text | one line a header: name, `:`, value, `\n` |
//! | 12 + length | rest | bytes | the body |
//!
//! Invariant: a value of another form is no artifact. Reading one is a miss.

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

/// What every artifact begins with.
const MAGIC: &[u8; 8] = b"fonnart1";

/// Longest headers of an artifact together.
const HEADERS_LEN_MAX: usize = 4096;

/// The headers that Turborepo sends with an artifact and expects back.
pub(crate) const KEPT: [&str; 4] = [
    "x-artifact-duration",
    "x-artifact-tag",
    "x-artifact-sha",
    "x-artifact-dirty-hash",
];

/// What the value of an artifact begins with. `None` if its headers are too long.
pub(crate) fn prefix(headers: &HeaderMap) -> Option<Vec<u8>> {
    let mut lines = Vec::new();
    for name in KEPT {
        if let Some(value) = headers.get(name) {
            lines.extend_from_slice(name.as_bytes());
            lines.push(b':');
            // A header value has no line ends.
            lines.extend_from_slice(value.as_bytes());
            lines.push(b'\n');
        }
    }
    let len = u32::try_from(lines.len()).ok()?;
    if lines.len() > HEADERS_LEN_MAX {
        return None;
    }
    Some([MAGIC.as_slice(), &len.to_le_bytes(), &lines].concat())
}

/// The headers and the body of an artifact. `None` if the value is none.
pub(crate) fn parse(value: &Bytes) -> Option<(Vec<(HeaderName, HeaderValue)>, Bytes)> {
    let rest = value.strip_prefix(MAGIC.as_slice())?;
    let (len, rest) = rest.split_first_chunk()?;
    let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
    let lines = rest.get(..len).filter(|_| len <= HEADERS_LEN_MAX)?;
    let body = value.slice_ref(rest.get(len..)?);
    let mut headers = Vec::new();
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\n")?;
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at(colon);
        let name = KEPT.into_iter().find(|kept| kept.as_bytes() == name)?;
        let value = HeaderValue::from_bytes(value.get(1..)?).ok()?;
        headers.push((HeaderName::from_static(name), value));
    }
    Some((headers, body))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_form_is_as_documented() {
        let mut headers = HeaderMap::new();
        headers.insert("x-artifact-duration", "12".parse().unwrap());
        headers.insert("content-type", "x/y".parse().unwrap());
        let golden = b"fonnart1\x17\0\0\0x-artifact-duration:12\n";
        assert_eq!(prefix(&headers).unwrap(), golden);
        let value = Bytes::from([golden.as_slice(), b"body"].concat());
        let (kept, body) = parse(&value).unwrap();
        let duration = (
            HeaderName::from_static(KEPT[0]),
            HeaderValue::from_static("12"),
        );
        assert_eq!((kept, &body[..]), (vec![duration], &b"body"[..]));
    }

    #[test]
    fn headers_that_are_too_long_are_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(KEPT[1], "t".repeat(HEADERS_LEN_MAX).parse().unwrap());
        assert_eq!(prefix(&headers), None);
    }

    proptest! {
        #[test]
        fn what_is_kept_comes_back(values in proptest::array::uniform4("[ -~]{0,40}"), body: Vec<u8>) {
            let mut headers = HeaderMap::new();
            for (name, value) in KEPT.into_iter().zip(&values) {
                headers.insert(name, value.parse().unwrap());
            }
            let value = [prefix(&headers).unwrap(), body.clone()].concat();
            let (kept, found) = parse(&Bytes::from(value)).unwrap();
            prop_assert_eq!(found.to_vec(), body);
            let kept: Vec<_> = kept.iter().map(|(_, value)| value.to_str().unwrap()).collect();
            prop_assert_eq!(kept, values);
        }

        #[test]
        fn any_value_is_parsed_or_none(value: Vec<u8>) {
            let _ = parse(&Bytes::from([MAGIC.as_slice(), &value].concat()));
            let _ = parse(&Bytes::from(value));
        }
    }
}
