//! What `CONFIG SET` answers when it changes nothing, in the words of Redis.

use fonn_proto::request::ServerOutcome;

/// A setting that is not known.
#[must_use]
pub fn unknown_setting(name: &[u8]) -> ServerOutcome {
    let name = String::from_utf8_lossy(name);
    ServerOutcome::Invalid(format!(
        "Unknown option or number of arguments for CONFIG SET - '{name}'"
    ))
}

/// A setting that cannot be changed so.
#[must_use]
pub fn refused_setting(name: &[u8], why: &str) -> ServerOutcome {
    let name = String::from_utf8_lossy(name);
    ServerOutcome::Invalid(format!(
        "CONFIG SET failed (possibly related to argument '{name}') - {why}"
    ))
}

/// Why a setting is refused that takes a restart.
pub const IMMUTABLE: &str = "can't set immutable config";

/// The answer of a program whose settings all take a restart or a reload. `known` are their names.
#[must_use]
pub fn all_immutable(pairs: &[(&[u8], &[u8])], known: impl Fn(&[u8]) -> bool) -> ServerOutcome {
    match pairs.iter().find(|(name, _)| !known(name)) {
        Some((name, _)) => unknown_setting(name),
        None => {
            let name = pairs.first().map_or(&b""[..], |(name, _)| name);
            refused_setting(name, IMMUTABLE)
        }
    }
}
