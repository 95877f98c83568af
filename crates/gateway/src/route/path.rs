//! Paths, queries and digests as bytes.

use super::RouteError;

/// The key that a path names.
///
/// # Errors
/// If two clients could disagree on what it names, or its escapes are malformed.
pub(super) fn decode(path: &str) -> Result<Vec<u8>, RouteError> {
    let path = path
        .strip_prefix('/')
        .ok_or(RouteError::Path("it does not begin with a slash"))?;
    // Tools put their path behind a URL that ends in a slash.
    let path = path.trim_start_matches('/');
    let key = unescape(path.as_bytes())?;
    let collection = key.strip_suffix(b"/").unwrap_or(&key);
    if collection.is_empty() {
        return match key.is_empty() {
            true => Ok(key),
            false => Err(RouteError::Path("it has an empty segment")),
        };
    }
    for segment in collection.split(|byte| *byte == b'/') {
        match segment {
            b"" => return Err(RouteError::Path("it has an empty segment")),
            b"." | b".." => return Err(RouteError::Path("it has a segment of dots")),
            _ => {}
        }
    }
    Ok(key)
}

/// The bytes that a text with percent-escapes means.
///
/// # Errors
/// If an escape is malformed.
pub(crate) fn unescape(text: &[u8]) -> Result<Vec<u8>, RouteError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let value = match rest {
            [high, low, ..] => hex_digit(*high).zip(hex_digit(*low)),
            _ => None,
        };
        let (high, low) = value.ok_or(RouteError::Path("an escape is not % and two hex digits"))?;
        bytes.push(high << 4 | low);
        rest = rest.get(2..).unwrap_or_default();
    }
    Ok(bytes)
}

fn hex_digit(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

/// The SHA-256 that the last segment of a key spells in lower case.
pub(super) fn hex_digest(key: &[u8]) -> Option<[u8; 32]> {
    let text = key.rsplit(|byte| *byte == b'/').next()?;
    let mut digest = [0; 32];
    if text.len() != 2 * digest.len() || text.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = hex_digit(*high)? << 4 | hex_digit(*low)?;
    }
    Some(digest)
}

/// The team in the query of a request of Turborepo: its id, else its name.
///
/// # Errors
/// If it is not one segment of a path.
pub(super) fn team(query: Option<&str>) -> Result<Option<Vec<u8>>, RouteError> {
    let find = |name: &str| {
        let pairs = query.unwrap_or_default().split('&');
        let mut values = pairs.filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        values.find(|value| !value.is_empty())
    };
    let Some(text) = find("teamId").or_else(|| find("slug")) else {
        return Ok(None);
    };
    let team = unescape(text.as_bytes())?;
    match team.contains(&b'/') || matches!(team.as_slice(), b"." | b"..") {
        true => Err(RouteError::Path("the team is not one segment")),
        false => Ok(Some(team)),
    }
}
