//! An issuer of tokens: its name, its audiences, and where its keys come from. What its tokens may
//! do is not said here.

use std::path::PathBuf;

/// An issuer as far as its tokens are verified.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Issuer {
    /// Its name: the text of `iss`.
    pub url: String,
    /// The audiences that are accepted.
    pub audiences: Vec<String>,
    /// The file of its keys, a JSON Web Key Set; by discovery if none: from the URL that the issuer
    /// tells under `/.well-known/openid-configuration`.
    pub jwks: Option<PathBuf>,
    /// The authority of its certificate; those of the machine if none.
    pub ca: Option<PathBuf>,
}
