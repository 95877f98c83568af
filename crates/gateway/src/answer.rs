//! Responses, and which status each outcome has.
//!
//! | outcome | read | write |
//! |---|---|---|
//! | miss, busy, unavailable, damaged, late | 404 | |
//! | busy, unavailable | | 503 with `Retry-After` |
//! | no room | | 507 |
//! | too long | | 413 |
//! | the user may only read, or the namespace is write-once | | 403 |
//! | no or wrong credentials | 401 with `WWW-Authenticate` | 401 with `WWW-Authenticate` |
//! | there already | | 409 for Nx, 200 otherwise |
//! | another digest | | 400 |

use std::fmt;
use std::future::Future;

use bytes::Bytes;
use fonn_proto::Failure;
use futures_util::stream::{BoxStream, StreamExt as _};
use hyper::header::{
    CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{HeaderMap, StatusCode};

use crate::route::Dialect;

/// Values are bytes, whatever they contain.
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// Without a charset: Nx shows its user the line of a 401 only with exactly this type.
const TEXT: HeaderValue = HeaderValue::from_static("text/plain");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A response before it is sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The length that is told instead of that of the body: the answer to a HEAD has none.
    pub(crate) told_len: Option<usize>,
    /// What follows `body`. Its length is `told_len`.
    pub(crate) stream: Option<Parts>,
}

/// A piece of a body.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Bytes.
    Bytes(Bytes),
    /// What comes last in a call of gRPC.
    Trailers(HeaderMap),
}

/// Pieces that are fetched while they are sent.
pub(crate) struct Parts(pub(crate) BoxStream<'static, Piece>);

impl Parts {
    /// The same, as long as `end` has not ended.
    pub(crate) fn until(self, end: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(self.0.take_until(end).boxed())
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Parts")
    }
}

impl Answer {
    /// A status without a body.
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            told_len: None,
            stream: None,
        }
    }

    fn typed(status: StatusCode, kind: HeaderValue, body: Bytes) -> Self {
        let mut answer = Self {
            body,
            ..Self::empty(status)
        };
        answer.set(CONTENT_TYPE, kind);
        // A browser that is shown a value must not take it for a page.
        answer.set(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        answer
    }

    /// A value, or a part of it.
    pub(crate) fn value(status: StatusCode, body: Bytes) -> Self {
        Self::typed(status, BINARY, body)
    }

    /// One line for people.
    pub(crate) fn line(status: StatusCode, line: &str) -> Self {
        Self::typed(status, TEXT, Bytes::from(format!("{line}\n")))
    }

    /// A JSON document.
    pub(crate) fn json(status: StatusCode, document: String) -> Self {
        Self::typed(status, JSON, Bytes::from(document))
    }

    /// A line that says why a request of `dialect` is refused. Turborepo shows its user the message
    /// of a JSON document.
    pub(crate) fn refusal(dialect: Dialect, status: StatusCode, code: &str, line: &str) -> Self {
        match dialect {
            Dialect::Turborepo => {
                let error = serde_json::json!({"error": {"code": code, "message": line}});
                Self::json(status, error.to_string())
            }
            _ => Self::line(status, line),
        }
    }

    /// Without valid credentials nothing else is said.
    pub(crate) fn unauthorized(line: &str) -> Self {
        let challenge = HeaderValue::from_static("Basic realm=\"fonn\", charset=\"UTF-8\"");
        Self::line(StatusCode::UNAUTHORIZED, line).with(WWW_AUTHENTICATE, challenge)
    }

    /// The server cannot do it now.
    pub(crate) fn busy(line: &str) -> Self {
        Self::line(StatusCode::SERVICE_UNAVAILABLE, line)
            .with(RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// A miss.
    pub(crate) fn miss() -> Self {
        Self::line(StatusCode::NOT_FOUND, "there is no such entry")
    }

    /// What a write that failed is answered with.
    pub(crate) fn write_failed(dialect: Dialect, failure: Failure) -> Self {
        let refusal = |status, line| Self::refusal(dialect, status, failure.label(), line);
        match failure {
            Failure::Busy => Self::busy("too many requests wait: try again"),
            Failure::Unavailable => Self::busy("the owner of the key cannot be reached: try again"),
            Failure::OutOfSpace => refusal(
                StatusCode::INSUFFICIENT_STORAGE,
                "there is no room for the value",
            ),
            Failure::TooLarge => refusal(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the value is longer than --max-value",
            ),
            Failure::ReadOnly => refusal(
                StatusCode::FORBIDDEN,
                "the entry may not be changed: the user or token may only read, or the namespace is write-once",
            ),
            Failure::AuthRequired => Self::unauthorized("a login is needed"),
        }
    }

    /// The same as an error of Twirp, which is JSON. The client of GitHub Actions takes any other
    /// document for an outage, and tries again for half a minute.
    pub(crate) fn into_twirp_error(mut self) -> Self {
        let code = match self.status.as_u16() {
            0..=399 => return self,
            401 => "unauthenticated",
            403 => "permission_denied",
            404 => "not_found",
            408 => "deadline_exceeded",
            503 => "unavailable",
            507 => "resource_exhausted",
            _ => "invalid_argument",
        };
        let line = String::from_utf8_lossy(&self.body);
        // By these words the client knows that it is a rule and no fault.
        let denied = match code {
            "permission_denied" => "cache write denied: ",
            _ => "",
        };
        let message = format!("{denied}{}", line.trim_end());
        let error = serde_json::json!({"code": code, "msg": message});
        self.body = Bytes::from(error.to_string());
        self.with(CONTENT_TYPE, JSON)
    }

    /// The same with another header.
    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.set(name, value);
        self
    }

    pub(crate) fn set(&mut self, name: HeaderName, value: HeaderValue) {
        self.headers.insert(name, value);
    }

    /// The same as the answer to a HEAD.
    pub(crate) fn without_body(mut self) -> Self {
        self.told_len = Some(self.told_len.unwrap_or(self.body.len()));
        self.body = Bytes::new();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_of_a_write_has_its_status() {
        for (failure, status, is_retried) in [
            (Failure::Busy, 503, true),
            (Failure::Unavailable, 503, true),
            (Failure::OutOfSpace, 507, false),
            (Failure::TooLarge, 413, false),
            (Failure::ReadOnly, 403, false),
            (Failure::AuthRequired, 401, false),
        ] {
            let answer = Answer::write_failed(Dialect::Generic, failure);
            assert_eq!(answer.status.as_u16(), status, "{failure:?}");
            assert_eq!(answer.headers.contains_key(RETRY_AFTER), is_retried);
            assert_eq!(answer.headers.contains_key(WWW_AUTHENTICATE), status == 401);
        }
    }

    #[test]
    fn the_line_of_a_401_is_of_the_type_that_nx_shows() {
        let answer = Answer::unauthorized("unknown token");
        assert_eq!(answer.headers[CONTENT_TYPE], "text/plain");
        assert_eq!(answer.body, "unknown token\n");
    }

    #[test]
    fn turborepo_is_refused_in_its_own_form() {
        let answer = Answer::write_failed(Dialect::Turborepo, Failure::ReadOnly);
        let document: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(document["error"]["code"], "read_only");
    }

    #[test]
    fn github_actions_is_refused_in_the_form_of_twirp() {
        let answer = Answer::write_failed(Dialect::Actions, Failure::ReadOnly).into_twirp_error();
        let document: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(document["code"], "permission_denied");
        let message = document["msg"].as_str().unwrap();
        assert!(message.starts_with("cache write denied: the entry may not be changed"));
        let answer = Answer::unauthorized("unknown token").into_twirp_error();
        assert_eq!(
            answer.body,
            r#"{"code":"unauthenticated","msg":"unknown token"}"#
        );
        assert_eq!(answer.headers[CONTENT_TYPE], "application/json");
        let answer = Answer::value(StatusCode::OK, Bytes::from_static(b"abc")).into_twirp_error();
        assert_eq!(answer.body, "abc");
    }

    #[test]
    fn the_answer_to_a_head_tells_the_length_and_has_no_body() {
        let answer = Answer::value(StatusCode::OK, Bytes::from_static(b"abc")).without_body();
        assert_eq!((answer.told_len, answer.body.len()), (Some(3), 0));
    }
}
