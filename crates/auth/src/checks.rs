//! What names and hashes are accepted, wherever they come from.

use argon2::password_hash::phc::PasswordHash;
use argon2::{Algorithm, Params};

use super::placeholders::has_placeholders;

/// Longest name of a user or namespace in bytes.
pub(super) const NAME_LEN_MAX: usize = 64;

/// A hash that asks for more memory than this many KiB, or for more passes or lanes, would let each
/// login occupy the machine.
const MEMORY_KIB_MAX: u32 = 256 << 10;
const PASSES_MAX: u32 = 16;
const LANES_MAX: u32 = 8;

/// Names are words of visible ASCII: the memcached text protocol separates user and password by a
/// space.
///
/// # Errors
/// What would be accepted for `what`, a user's `name` or a `namespace`.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), String> {
    let is_good = !name.is_empty()
        && name.len() <= NAME_LEN_MAX
        && name.bytes().all(|byte| byte.is_ascii_graphic());
    match is_good {
        true => Ok(()),
        false => Err(format!(
            "the {what} `{}` is not accepted; expected 1 to {NAME_LEN_MAX} visible ASCII characters without a space",
            name.escape_debug()
        )),
    }
}

/// A namespace that users and tokens may be in: what is stored in one with placeholders belongs to
/// one of its overlays.
///
/// # Errors
/// Which clients may be in it.
pub(super) fn check_inhabitable(namespace: &str) -> Result<(), String> {
    match has_placeholders(namespace) {
        false => Ok(()),
        true => Err(format!(
            "the namespace `{namespace}` has a placeholder: identities of OIDC issuers alone can be in it, by a rule"
        )),
    }
}

/// An overlay lies on one namespace that is none itself. `third` is the base of `base`; the outer
/// option is none if no user is in `base`.
///
/// # Errors
/// Why `base` cannot be the base of `name`.
pub(super) fn check_base(
    name: &str,
    base: &str,
    third: Option<Option<&str>>,
) -> Result<(), String> {
    Err(match third {
        _ if base == name => format!("the namespace `{name}` has itself as its `base`"),
        None => format!("no user is in namespace `{base}`, the base of `{name}`"),
        Some(Some(third)) => format!(
            "`{base}`, the base of `{name}`, has a base itself (`{third}`); overlays have one level"
        ),
        Some(None) => return Ok(()),
    })
}

/// The name of a user, which HTTP separates from the password by a colon (RFC 7617, section 2).
///
/// # Errors
/// What would be accepted.
pub fn check_user_name(name: &str) -> Result<(), String> {
    check_name("name", name)?;
    match name.contains(':') {
        true => Err(format!(
            "the name `{name}` is not accepted: there is a colon in it, by which HTTP separates user and password"
        )),
        false => Ok(()),
    }
}

/// The user that a failed login named, for the log. What came may be anything, even what was stored
/// by a client that knows of no login (its first value is taken for one), so only what could be a
/// name is told.
pub(super) fn shown(user: &[u8]) -> &str {
    match std::str::from_utf8(user) {
        Ok("") => "default",
        Ok(name) if check_name("name", name).is_ok() => name,
        _ => "(no name)",
    }
}

/// A hash that a login can afford to check.
///
/// # Errors
/// What is wrong with it, without it.
pub(super) fn parse_hash(text: &str) -> Result<PasswordHash, String> {
    let bad =
        |why: &str| format!("`hash` {why}; expected an argon2 hash made by `fonnctl user hash`");
    let parsed = PasswordHash::new(text).map_err(|_| bad("is no password hash"))?;
    Algorithm::try_from(parsed.algorithm.as_str()).map_err(|_| bad("is not of argon2"))?;
    if parsed.salt.is_none() || parsed.hash.is_none() {
        return Err(bad("has no salt or no digest"));
    }
    let params =
        Params::try_from(&parsed).map_err(|_| bad("has parameters that argon2 has not"))?;
    if params.m_cost() > MEMORY_KIB_MAX
        || params.t_cost() > PASSES_MAX
        || params.p_cost() > LANES_MAX
    {
        return Err(bad("asks for too much memory or time"));
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_could_be_a_name_is_shown() {
        assert_eq!(shown(b"ci"), "ci");
        assert_eq!(shown(b""), "default");
        let longest = [b'x'; NAME_LEN_MAX];
        assert_eq!(shown(&longest).as_bytes(), longest);
        for none in [
            &[b'x'; NAME_LEN_MAX + 1][..],
            b"two words",
            b"line\nline",
            b"\x1b[31m",
            b"\xff\xfe",
            "\u{202e}".as_bytes(),
        ] {
            assert_eq!(shown(none), "(no name)", "{none:?}");
        }
    }
}
