//! The parser of logins, as the fuzz target reaches it. It is no part of the interface.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue};

use crate::{Credentials, Denied};

fn read(value: &[u8]) -> Option<Result<Credentials, Denied>> {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_bytes(value).ok()?);
    Some(Credentials::of(&headers))
}

/// A header is malformed or has a user without a colon and a password. The same pair as `Basic` is
/// the same login.
#[must_use]
pub fn login_is_read(header: &[u8]) -> bool {
    let login = match read(header) {
        // No request has such a header.
        None => return true,
        Some(Err(denied)) => return denied == Denied::Malformed,
        Some(Ok(login)) => login,
    };
    let pair = [&login.user[..], b":", &login.password[..]].concat();
    let basic = format!("Basic {}", STANDARD.encode(pair));
    let again = read(basic.as_bytes()).and_then(Result::ok);
    let is_same = again.is_some_and(|it| it.user == login.user && it.password == login.password);
    is_same && !login.user.contains(&b':')
}

/// Any user without a colon and any password are a login as `Basic`.
#[must_use]
pub fn pair_is_a_login(pair: &[u8]) -> bool {
    let basic = format!("Basic {}", STANDARD.encode(pair));
    let login = read(basic.as_bytes()).and_then(Result::ok);
    let kept = login.map(|it| [&it.user[..], b":", &it.password[..]].concat());
    kept.is_none_or(|kept| kept == pair) && login_is_read(basic.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_invariants_hold_for_logins_of_each_form() {
        let token = format!("Bearer fonn_{}", "0a".repeat(32));
        for header in [
            token.as_str(),
            "bearer :",
            "Basic",
            "Basic Og==",
            "Bearer a:b:c",
        ] {
            assert!(login_is_read(header.as_bytes()), "{header}");
        }
        for pair in [&b"a:b:c"[..], b":", b"", b"\xff:\0"] {
            assert!(pair_is_a_login(pair), "{pair:?}");
        }
    }
}
