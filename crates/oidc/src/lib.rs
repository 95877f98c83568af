//! Verifies identity tokens of OpenID Connect issuers: JSON Web Tokens that a CI system gives to
//! its jobs.
//!
//! A [`Verifier`] keeps the keys of each issuer and says which [`Claims`] a token proves. It is no
//! client of a login page, it keeps no session, and it does not decide what an identity may do.
//!
//! Invariants:
//! - A token is believed for its signature alone: by a key of the issuer that it names, with RS256,
//!   ES256 or EdDSA, whichever is the algorithm of the key. `none` and shared secrets never count.
//! - Issuer, audience, expiry and not-before are checked in each token.
//! - Tokens that name unknown keys cause one fetch of keys in [`FETCH_INTERVAL`] for each issuer,
//!   however many come.
//! - A fetch has a deadline, follows no redirect, and reads at most [`DOCUMENT_LEN_MAX`] bytes of a
//!   response.
//! - No token is in an error or in a log line.
//!
//! Sources: OpenID Connect Core 1.0 and Discovery 1.0, RFC 7515, RFC 7517, RFC 7519, RFC 8725.

mod claims;
mod fetch;
#[doc(hidden)]
pub mod fuzzing;
mod issuer;
mod keys;
mod signature;
#[cfg(test)]
mod tests_support;
mod token;
mod verifier;

pub use self::claims::Claims;
pub use self::fetch::{DOCUMENT_LEN_MAX, FetchError};
pub use self::issuer::Issuer;
pub use self::token::{Presented, Rejection, TOKEN_LEN_MAX};
pub use self::verifier::{FETCH_INTERVAL, Verifier};
