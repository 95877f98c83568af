//! The parsers of bodies and headers, as the fuzz targets reach them. It is no part of the
//! interface.
//!
//! Each function takes what a client sends, and returns whether the invariant of the parser holds.

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

use crate::dav::{self, Resource};
use crate::long::{CHUNK_LEN_MAX, Cutter, Manifest};
use crate::packed::Packed;
use crate::range::{self, Wanted};
use crate::{actions, artifact, events, exchange};

/// The headers and the body of an artifact stay the same when they are stored again.
#[must_use]
pub fn artifact_is_kept(value: &[u8]) -> bool {
    let parsed = |value: &[u8]| artifact::parse(&Bytes::copy_from_slice(value));
    let Some((headers, body)) = parsed(value) else {
        return true;
    };
    if !value.ends_with(&body) {
        return false;
    }
    let headers = last_of_each(headers);
    let Some(prefix) = artifact::prefix(&headers) else {
        return false;
    };
    let again = parsed(&[prefix.as_slice(), body.as_ref()].concat());
    again.is_some_and(|(lines, again)| again == body && last_of_each(lines) == headers)
}

/// Of a header that comes twice the last value counts.
fn last_of_each(lines: Vec<(HeaderName, HeaderValue)>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.insert(name, value);
    }
    headers
}

/// A part is not empty, and lies in a value of `len` bytes.
#[must_use]
pub fn range_lies_within(header: &[u8], len: usize) -> bool {
    match range::wanted(Some(header), len) {
        Wanted::Part(part) => part.start < part.end && part.end <= len,
        Wanted::All | Wanted::Unsatisfiable => true,
    }
}

/// A list of events has no more known ones than bytes.
#[must_use]
pub fn events_are_bounded(body: &[u8]) -> bool {
    events::parse(body).is_none_or(|events| events.len() <= body.len())
}

/// No path adds an element to the answer to PROPFIND.
#[must_use]
pub fn path_adds_no_element(path: &str) -> bool {
    let elements = |path| {
        let document = dav::multistatus(path, Resource::Entry { len: 1 });
        document.matches('<').count()
    };
    elements(path) == elements("/")
}

/// A manifest of a long value reads the same after it was written again, and its chunks follow each
/// other without a gap.
#[must_use]
pub fn manifest_is_whole(record: &[u8]) -> bool {
    let Some(manifest) = Manifest::parse(&Bytes::copy_from_slice(record)) else {
        return true;
    };
    let (len, mut end) = (manifest.len(), 0);
    let encoded = manifest.encode();
    let follow = manifest.parts(0..len).all(|part| {
        let follows = part.offset == end && part.chunk.len > 0;
        end += u64::from(part.chunk.len);
        follows
    });
    follow && end == len && encoded == record
}

/// An entry of a compressed blob reads the same after it was written again.
#[must_use]
pub fn packed_is_kept(entry: &[u8]) -> bool {
    let packed = Packed::parse(&Bytes::copy_from_slice(entry));
    packed.is_none_or(|it| [&Packed::head(it.len())[..], it.stream()].concat() == entry)
}

/// The chunks of a long value are bounded and make the value.
#[must_use]
pub fn chunks_make_the_value(value: &[u8], value_len_max: usize) -> bool {
    let mut cutter = Cutter::new(value_len_max);
    let (mut rest, mut made) = (value, Vec::new());
    while !rest.is_empty() {
        rest = cutter.take(rest);
        while let Some(chunk) = cutter.next() {
            made.push(chunk);
        }
    }
    while let Some(chunk) = cutter.last() {
        made.push(chunk);
    }
    let is_short = |chunk: &Bytes| chunk.len() <= CHUNK_LEN_MAX && !chunk.is_empty();
    made.iter().all(is_short) && made.concat() == value
}

/// An index of GitHub Actions reads the same after it was written again.
#[must_use]
pub fn index_is_kept(record: &[u8]) -> bool {
    actions::Index::parse(record).is_none_or(|index| index.encode() == record)
}

/// What a client of GitHub Actions sends is read or refused, and names are bounded.
#[must_use]
pub fn actions_call_is_bounded(body: &[u8]) -> bool {
    let is_short = |key: &str| !key.is_empty() && key.len() <= actions::KEY_LEN_MAX;
    let names = actions::block_list(body);
    let component = std::str::from_utf8(body).ok().and_then(actions::component);
    drop(component);
    actions::Reserve::parse(body).is_none_or(|it| is_short(&it.key))
        && actions::Find::parse(body).is_none_or(|it| is_short(&it.key))
        && actions::Publish::parse(body).is_none_or(|it| is_short(&it.key))
        && names.is_none_or(|names| names.len() <= actions::BLOCKS_MAX)
}

/// The body of a request for an exchange (RFC 8693), of a token in the encoding of forms.
fn exchange_of(token: &str) -> String {
    let urn = "urn:ietf:params:oauth";
    format!(
        "grant_type={urn}:grant-type:token-exchange&subject_token={token}\
         &subject_token_type={urn}:token-type:jwt"
    )
}

/// A request for an exchange that is read names one token: a body that has each parameter twice is
/// refused.
#[must_use]
pub fn exchange_is_read(body: &[u8]) -> bool {
    let Ok(token) = exchange::subject_token(body) else {
        return true;
    };
    let twice = [body, b"&", body].concat();
    token_is_exchanged(&token) && exchange::subject_token(&twice).is_err()
}

/// A token in escapes is read as it is.
#[must_use]
pub fn token_is_exchanged(token: &str) -> bool {
    let escapes: String = token.bytes().map(|byte| format!("%{byte:02x}")).collect();
    exchange::subject_token(exchange_of(&escapes).as_bytes()).is_ok_and(|read| read == token)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_artifact_with_a_header_twice_is_kept_with_the_last_one() {
        let lines = b"x-artifact-tag:a\nx-artifact-duration:7\nx-artifact-tag:b\n";
        let len = (lines.len() as u32).to_le_bytes();
        let value = [&b"fonnart1"[..], &len, lines, b"body"].concat();
        assert!(artifact_is_kept(&value));
    }

    #[test]
    fn markup_in_a_path_is_escaped() {
        assert!(path_adds_no_element("/<D:href>&amp;</D:href>/\"'"));
    }

    #[test]
    fn a_token_is_the_same_in_any_spelling() {
        for token in ["a.b+c%2bd", "", "%00", "%ff"] {
            assert!(exchange_is_read(exchange_of(token).as_bytes()), "{token}");
        }
        assert!(token_is_exchanged("a&b=c%20"));
    }

    proptest! {
        #[test]
        fn the_invariants_hold_for_any_input(input: Vec<u8>, path: String, len in 0usize..300) {
            prop_assert!(artifact_is_kept(&input));
            prop_assert!(range_lies_within(&input, len));
            prop_assert!(events_are_bounded(&input));
            prop_assert!(manifest_is_whole(&input));
            prop_assert!(packed_is_kept(&input));
            prop_assert!(chunks_make_the_value(&input, len));
            prop_assert!(index_is_kept(&input));
            prop_assert!(actions_call_is_bounded(&input));
            prop_assert!(path_adds_no_element(&path));
            prop_assert!(exchange_is_read(&input));
            prop_assert!(token_is_exchanged(&path));
        }
    }
}
