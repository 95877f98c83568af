//! Identities: users and tokens, what they may do, how a secret is checked, and connections under
//! TLS.
//!
//! A [`Directory`] is what one version of the users file says, and of what members agreed on
//! ([`Records`]); it never changes. An [`Authenticator`] holds the one in force. It checks
//! passwords against it away from the reactors, and slows down clients that guess. A token costs
//! one hash and is checked at once. An identity that an OIDC issuer proved is exchanged for a token
//! that is signed ([`Authenticator::exchange`]). What a connection keeps is an [`Identity`].
//!
//! Invariants:
//! - No password, no token and no hash is in a `Debug` text, an error or a log line.
//! - What takes long (argon2) runs on threads of its own, few at a time, behind a bounded queue.
//! - Of what came in the place of a name, only what could be one is in a log line.
//! - How long a refusal takes does not tell whether the user exists.

mod attempts;
mod authenticator;
mod checks;
mod directory;
pub mod encrypted;
mod file;
#[doc(hidden)]
pub mod fuzzing;
pub mod metrics;
mod named;
mod networks;
mod oidc;
mod placeholders;
mod records;
mod roles;
mod rounds;
mod security;
mod signed;
mod slowdown;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod tls;
mod token;
mod tokens;
mod turns;
mod writers;

pub use self::attempts::{HashError, Refusal};
pub use self::authenticator::{Authenticator, Listed};
pub use self::checks::check_user_name;
pub use self::directory::{
    CredentialKind, DEFAULT_NAMESPACE, Directory, Identity, Namespace, Role, namespace_number,
    writer_id,
};
pub use self::file::UsersError;
pub use self::named::NamesOfWriters;
pub use self::networks::Source;
pub use self::oidc::{ExchangeError, ExchangedToken, OidcIssuer};
pub use self::records::{NamespaceRecord, Records, UserRecord};
pub use self::roles::ROLES;
pub use self::security::Security;
pub use self::token::{Expiry, ExpiryError, TokenHash, TokenHashError, TokenSecret};
pub use self::tokens::ListedToken;
pub use self::writers::{WRITER_NAME_LEN_MAX, WRITER_NAMES_MAX, WriterNames};

/// Whether a text has the form of a token, and so is never a password.
#[must_use]
pub fn is_token(secret: &[u8]) -> bool {
    signed::is_signed(secret) || TokenHash::of(secret).is_some()
}
