//! Token exchange (RFC 8693): the parameters of a request, and the form of its answers. Without
//! I/O.

use std::sync::Arc;
use std::time::Duration;

use fonn_auth::{ExchangeError, ExchangedToken, OidcIssuer};
use fonn_oidc::{Issuer, Rejection};
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderValue};

use crate::answer::Answer;
use crate::route::unescape;

const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";

/// Types of tokens that may be JSON Web Tokens of an issuer.
const SUBJECT_TYPES: [&str; 3] = [
    "urn:ietf:params:oauth:token-type:id_token",
    "urn:ietf:params:oauth:token-type:jwt",
    ACCESS_TOKEN,
];

fonn_base::label! {
    /// What came of a request for a token.
    pub(crate) enum ExchangeOutcome: "outcome" {
        /// The identity has a token.
        Accepted = "accepted",
        /// The request or the token cannot be read.
        Malformed = "malformed",
        /// The algorithm is not accepted.
        Algorithm = "algorithm",
        /// The issuer is not known.
        Issuer = "issuer",
        /// The key is not known, or is for another algorithm.
        Key = "key",
        /// The signature is wrong.
        Signature = "signature",
        /// The audience is another one.
        Audience = "audience",
        /// The token has expired, or is not valid yet.
        Time = "time",
        /// No rule is for the identity.
        Rule = "rule",
        /// The keys of the issuer cannot be had, or there is too much to do.
        Unavailable = "unavailable",
    }
}

/// Why an exchange was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// The request is not one of RFC 8693.
    #[error("malformed request: {0}")]
    Request(&'static str),
    /// It asks for something else.
    #[error("the grant type is not supported; expected {GRANT_TYPE}")]
    GrantType,
    /// The token is not believed.
    #[error(transparent)]
    Token(#[from] Rejection),
    /// The identity gets no token.
    #[error(transparent)]
    Identity(#[from] ExchangeError),
    /// Too many requests are under way.
    #[error("too many tokens are being verified: try again")]
    Busy,
}

impl Refused {
    pub(crate) const fn outcome(&self) -> ExchangeOutcome {
        match self {
            Self::Request(_) | Self::GrantType | Self::Token(Rejection::Malformed) => {
                ExchangeOutcome::Malformed
            }
            Self::Token(Rejection::Algorithm) => ExchangeOutcome::Algorithm,
            Self::Token(Rejection::Issuer) => ExchangeOutcome::Issuer,
            Self::Token(Rejection::UnknownKey | Rejection::KeyMismatch) => ExchangeOutcome::Key,
            Self::Token(Rejection::Signature) => ExchangeOutcome::Signature,
            Self::Token(Rejection::Audience) => ExchangeOutcome::Audience,
            Self::Token(Rejection::Expired | Rejection::NotYetValid) => ExchangeOutcome::Time,
            Self::Identity(
                ExchangeError::NoRule | ExchangeError::Subject | ExchangeError::Claim(_),
            ) => ExchangeOutcome::Rule,
            Self::Token(Rejection::Keys(_))
            | Self::Identity(ExchangeError::Changed)
            | Self::Busy => ExchangeOutcome::Unavailable,
        }
    }

    /// The answer (RFC 6749, section 5.2). What fails for a moment is 503.
    pub(crate) fn answer(&self) -> Answer {
        let (status, code) = match self.outcome() {
            ExchangeOutcome::Unavailable => {
                // It tells the runner to try again; the log has the cause.
                return Answer::busy("the token cannot be verified now: try again")
                    .with(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            }
            _ if *self == Self::GrantType => (StatusCode::BAD_REQUEST, "unsupported_grant_type"),
            _ => (StatusCode::BAD_REQUEST, "invalid_request"),
        };
        let error = serde_json::json!({"error": code, "error_description": self.to_string()});
        document(status, &error)
    }
}

fn document(status: StatusCode, document: &serde_json::Value) -> Answer {
    Answer::json(status, document.to_string())
        .with(CACHE_CONTROL, HeaderValue::from_static("no-store"))
}

/// The answer to a request that was granted (RFC 8693, section 2.2.1).
pub(crate) fn granted(token: &ExchangedToken) -> Answer {
    let granted = serde_json::json!({
        "access_token": token.secret,
        "issued_token_type": ACCESS_TOKEN,
        "token_type": "Bearer",
        "expires_in": token.ttl.max(Duration::from_secs(1)).as_secs(),
    });
    document(StatusCode::OK, &granted)
}

/// The token that a request wants to exchange.
///
/// # Errors
/// [`Refused::Request`] or [`Refused::GrantType`].
pub(crate) fn subject_token(body: &[u8]) -> Result<String, Refused> {
    let (mut grant, mut token, mut kind) = (None, None, None);
    for pair in body.split(|&byte| byte == b'&').filter(|it| !it.is_empty()) {
        let mut halves = pair.splitn(2, |&byte| byte == b'=');
        let name = form_text(halves.next().unwrap_or_default())?;
        let value = form_text(halves.next().unwrap_or_default())?;
        let place = match name.as_str() {
            "grant_type" => &mut grant,
            "subject_token" => &mut token,
            "subject_token_type" => &mut kind,
            // What a client wishes beside it does not change what the rules give.
            _ => continue,
        };
        if place.replace(value).is_some() {
            return Err(Refused::Request("a parameter is there twice"));
        }
    }
    match grant.as_deref() {
        Some(GRANT_TYPE) => {}
        Some(_) => return Err(Refused::GrantType),
        None => return Err(Refused::Request("there is no grant_type")),
    }
    match kind.as_deref() {
        Some(kind) if SUBJECT_TYPES.contains(&kind) => {}
        _ => {
            return Err(Refused::Request(
                "subject_token_type is not one of id_token and jwt",
            ));
        }
    }
    token.ok_or(Refused::Request("there is no subject_token"))
}

/// A name or value of `application/x-www-form-urlencoded`.
fn form_text(encoded: &[u8]) -> Result<String, Refused> {
    let malformed = Refused::Request("the body is not of application/x-www-form-urlencoded");
    let spaced: Vec<u8> = encoded
        .iter()
        .map(|&byte| if byte == b'+' { b' ' } else { byte })
        .collect();
    let bytes = unescape(&spaced).map_err(|_| malformed.clone())?;
    String::from_utf8(bytes).map_err(|_| malformed)
}

/// The issuer of a users file, as tokens are verified by it.
pub(crate) fn issuer(known: &OidcIssuer) -> (Arc<str>, Issuer) {
    let issuer = Issuer {
        url: known.url.clone(),
        audiences: known.audiences.clone(),
        jwks: known.jwks.clone(),
        ca: known.ca.clone(),
    };
    (Arc::clone(&known.name), issuer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange&subject_token=a.b%2Bc.d&\
                        subject_token_type=urn:ietf:params:oauth:token-type:jwt&scope=x+y";

    #[test]
    fn a_request_has_a_token_and_its_type() {
        assert_eq!(subject_token(GOOD.as_bytes()).unwrap(), "a.b+c.d");
        for (wrong, part) in [
            (String::new(), "no grant_type"),
            (
                GOOD.replace("token-exchange", "jwt-bearer"),
                "grant type is not supported",
            ),
            (GOOD.replace(":jwt", ":saml2"), "subject_token_type"),
            (GOOD.replace("subject_token=", "token="), "no subject_token"),
            (format!("{GOOD}&subject_token=e"), "twice"),
            (GOOD.replace("%2Bc", "%2-"), "urlencoded"),
            (GOOD.replace("%2B", "%ff"), "urlencoded"),
        ] {
            let refused = subject_token(wrong.as_bytes()).unwrap_err();
            assert!(refused.to_string().contains(part), "{wrong}: {refused}");
            assert_eq!(refused.answer().status, StatusCode::BAD_REQUEST);
        }
    }

    #[test]
    fn what_fails_for_a_moment_is_not_called_invalid() {
        for refused in [Refused::Busy, Refused::Identity(ExchangeError::Changed)] {
            assert_eq!(refused.answer().status, StatusCode::SERVICE_UNAVAILABLE);
        }
        let answer = Refused::Token(Rejection::Expired).answer();
        let told: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(told["error"], "invalid_request");
        assert_eq!(answer.headers[CACHE_CONTROL], "no-store");
    }
}
