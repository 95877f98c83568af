//! A token as it was presented, and what is checked of it; without I/O.

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation, dangerous};
use serde_json::{Map, Value};

use crate::claims::Claims;
use crate::fetch::FetchError;
use crate::issuer::Issuer;
use crate::keys::{Key, is_accepted};
use crate::signature;

/// Longest token in bytes. Those of CI systems have one to three thousand.
pub const TOKEN_LEN_MAX: usize = 8 << 10;

/// By how much the clocks of an issuer and of this machine may differ.
const LEEWAY_S: u64 = 60;

/// Why a token is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// It is no signed token.
    #[error("the token is no signed JSON Web Token of at most {TOKEN_LEN_MAX} bytes")]
    Malformed,
    /// Its algorithm is not accepted.
    #[error("the algorithm of the token is not accepted; expected RS256, ES256 or EdDSA")]
    Algorithm,
    /// No issuer of that name is known.
    #[error("the issuer of the token is not known here")]
    Issuer,
    /// The issuer has no such key.
    #[error("the issuer has no key of the id that the token names")]
    UnknownKey,
    /// The key is for another algorithm.
    #[error("the key that the token names is for another algorithm")]
    KeyMismatch,
    /// The signature is not one of the key.
    #[error("the signature of the token is wrong")]
    Signature,
    /// It is for another audience.
    #[error(
        "the token is for another audience: ask the issuer for one with the audience of the [[oidc]] table"
    )]
    Audience,
    /// It has expired.
    #[error("the token has expired: ask the issuer for another one")]
    Expired,
    /// Its time has not come.
    #[error("the token is not valid yet: compare the clocks of the issuer and of this server")]
    NotYetValid,
    /// The keys of the issuer are not there.
    #[error("the keys of the issuer cannot be had now: {0}")]
    Keys(FetchError),
}

/// A token that was presented and can be read. Nothing of it is believed yet.
pub struct Presented<'t> {
    text: &'t str,
    pub(crate) algorithm: Algorithm,
    pub(crate) key_id: Option<String>,
    issuer: String,
}

impl<'t> Presented<'t> {
    /// Reads header and issuer of a token.
    ///
    /// # Errors
    /// [`Rejection::Malformed`] or [`Rejection::Algorithm`].
    pub fn read(text: &'t str) -> Result<Self, Rejection> {
        if text.len() > TOKEN_LEN_MAX || text.bytes().filter(|&byte| byte == b'.').count() != 2 {
            return Err(Rejection::Malformed);
        }
        let told: Told = header(text).ok_or(Rejection::Malformed)?;
        let algorithm = told.algorithm.ok_or(Rejection::Algorithm)?;
        let claims = dangerous::insecure_decode_claims::<Map<String, Value>>(text);
        let claims = claims.map_err(|_| Rejection::Malformed)?;
        let Some(Value::String(issuer)) = claims.get("iss") else {
            return Err(Rejection::Malformed);
        };
        Ok(Self {
            text,
            algorithm,
            key_id: told.key_id,
            issuer: issuer.clone(),
        })
    }

    /// The issuer that the token names.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Verifies the token by a key of the issuer, of whose audiences it has to name one.
    pub(crate) fn verify(&self, key: &Key, issuer: &Issuer) -> Result<Claims, Rejection> {
        if key.algorithm != self.algorithm {
            return Err(Rejection::KeyMismatch);
        }
        let mut validation = Validation::new(self.algorithm);
        validation.leeway = LEEWAY_S;
        validation.validate_nbf = true;
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.set_issuer(&[&issuer.url]);
        validation.set_audience(&issuer.audiences);
        signature::install();
        let decoded =
            jsonwebtoken::decode::<Map<String, Value>>(self.text, &key.decoding, &validation);
        match decoded {
            Ok(token) => Ok(Claims::of(token.claims)),
            Err(error) => Err(match error.kind() {
                ErrorKind::InvalidIssuer => Rejection::Issuer,
                ErrorKind::InvalidAudience => Rejection::Audience,
                ErrorKind::ExpiredSignature => Rejection::Expired,
                ErrorKind::ImmatureSignature => Rejection::NotYetValid,
                ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => Rejection::Audience,
                ErrorKind::MissingRequiredClaim(_)
                | ErrorKind::InvalidClaimFormat(_)
                | ErrorKind::Json(_) => Rejection::Malformed,
                _ => Rejection::Signature,
            }),
        }
    }
}

/// What the header of a token tells.
struct Told {
    /// `None` if it is not accepted.
    algorithm: Option<Algorithm>,
    key_id: Option<String>,
}

/// The header of a token; `None` if it cannot be read.
fn header(text: &str) -> Option<Told> {
    match jsonwebtoken::decode_header(text) {
        // No extension is understood, so none may be critical (RFC 7515, section 4.1.11).
        Ok(header) if header.crit.is_some() || header.enc.is_some() || header.zip.is_some() => None,
        Ok(header) => Some(Told {
            algorithm: Some(header.alg).filter(|it| is_accepted(*it)),
            key_id: header.kid,
        }),
        // The library knows no `none`, and no algorithm without a signature.
        Err(error) if matches!(error.kind(), ErrorKind::Json(_)) => Some(Told {
            algorithm: None,
            key_id: None,
        }),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests;
