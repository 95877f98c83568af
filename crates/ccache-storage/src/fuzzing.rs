//! The parsers of what ccache sends, as the fuzz target reaches them. It is no part of the
//! interface.

use crate::protocol::{HEAD_LEN_MAX, Request};
use crate::settings::Target;

/// A request is as long as its bytes at most, the same with more bytes behind it, and none before
/// it is whole.
#[must_use]
pub fn request_is_a_prefix(bytes: &[u8]) -> bool {
    match Request::parse(bytes) {
        Ok(Some((request, len))) => {
            len <= bytes.len().min(HEAD_LEN_MAX)
                && Request::parse(&bytes[..len]) == Ok(Some((request, len)))
                && Request::parse(&bytes[..len - 1]) == Ok(None)
        }
        Ok(None) => bytes.len() < HEAD_LEN_MAX,
        Err(malformed) => bytes.first() == Some(&malformed.0),
    }
}

/// A URL and an attribute are settings or an error, and the settings are a client or an error.
pub fn settings_are_read(url: &str, key: &str, value: &str) {
    // Files that attributes name are not read here.
    if !matches!(key, "ca" | "token-file" | "tls") {
        let target = Target::parse(url, [(key.to_owned(), value.to_owned())]);
        if let Ok(target) = target
            && !url.starts_with("https")
        {
            let _ = target.client();
        }
    }
}
