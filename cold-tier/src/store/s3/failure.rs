//! Failures of the SDK, sorted by what the caller can do about them.
//!
//! The SDK's own errors are not kept: they hold whole requests and answers, and some answers repeat
//! the key id and the session token. What is kept is status, code and a short message.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStreamError;

use super::Subject;
use crate::store::{Refusal, StoreError, StoreErrorKind};

/// A message is cut to so many characters.
const MESSAGE_LEN_MAX: usize = 300;

/// Longest error code; those of S3 have up to 42.
const CODE_LEN_MAX: usize = 64;

/// Longest run of letters and digits that is taken for a word. Key ids have 20, secrets 40.
const WORD_LEN_MAX: usize = 16;

/// A request that failed.
pub(super) fn of_request<E>(subject: &Subject, error: &SdkError<E, HttpResponse>) -> StoreError
where
    E: ProvideErrorMetadata + Error + 'static,
{
    if let Some(response) = error.raw_response() {
        let (code, message) = (error.code(), error.message());
        let status = response.status().as_u16();
        let refusal = Refusal {
            status,
            code: code.map(|code| if is_code(code) { code } else { "…" }.to_owned()),
            message: readable(message.unwrap_or("no message")),
        };
        let kind = kind_of_answer(status, code.unwrap_or_default());
        return subject.error(kind).with_source(refusal);
    }
    let kind = match error {
        _ if credentials_error(error).is_some() => match credentials_error(error) {
            Some(CredentialsError::ProviderTimedOut(_)) => StoreErrorKind::Timeout,
            Some(CredentialsError::ProviderError(_)) => StoreErrorKind::Unavailable,
            _ => StoreErrorKind::Denied,
        },
        SdkError::TimeoutError(_) => StoreErrorKind::Timeout,
        SdkError::DispatchFailure(failure) if failure.is_timeout() => StoreErrorKind::Timeout,
        SdkError::DispatchFailure(failure) if failure.is_user() => StoreErrorKind::Invalid,
        SdkError::ConstructionFailure(_) => StoreErrorKind::Invalid,
        _ => StoreErrorKind::Unavailable,
    };
    subject.error(kind).with_source(chain(error))
}

/// A body that could not be read to its end.
pub(super) fn of_body(subject: &Subject, error: &ByteStreamError) -> StoreError {
    let kind = StoreErrorKind::Unavailable;
    subject.error(kind).with_source(chain(error))
}

/// By the error codes of S3 ("Error responses", Amazon S3 API Reference), and where a server has
/// its own, by the status.
fn kind_of_answer(status: u16, code: &str) -> StoreErrorKind {
    match code {
        "NoSuchBucket" => return StoreErrorKind::Invalid,
        "RequestTimeout" => return StoreErrorKind::Timeout,
        "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => return StoreErrorKind::Denied,
        "InvalidAccessKeyId" | "SignatureDoesNotMatch" => return StoreErrorKind::Denied,
        // The body was damaged on its way.
        "BadDigest" | "IncompleteBody" | "InvalidDigest" | "XAmzContentSHA256Mismatch" => {
            return StoreErrorKind::Unavailable;
        }
        "SlowDown"
        | "SlowDownRead"
        | "SlowDownWrite"
        | "TooManyRequests"
        | "Throttling"
        | "ThrottlingException"
        | "RequestLimitExceeded"
        | "RequestThrottled" => {
            return StoreErrorKind::Throttled;
        }
        "NotImplemented" => return StoreErrorKind::Unsupported,
        _ => {}
    }
    match status {
        404 => StoreErrorKind::NotFound,
        412 => StoreErrorKind::AlreadyExists,
        401 | 403 => StoreErrorKind::Denied,
        408 | 504 => StoreErrorKind::Timeout,
        // Concurrent writes of one key: the next try is not concurrent any more.
        409 => StoreErrorKind::Unavailable,
        429 | 503 => StoreErrorKind::Throttled,
        416 => StoreErrorKind::OutOfRange,
        501 => StoreErrorKind::Unsupported,
        300..=499 => StoreErrorKind::Invalid,
        _ => StoreErrorKind::Unavailable,
    }
}

fn credentials_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CredentialsError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The messages of an error and of its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let message = error.to_string();
        // Some repeat their cause.
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        next = error.source();
    }
    readable(&text)
}

/// Whether a text has the form of an error code; nothing else of the answer is repeated as one.
fn is_code(text: &str) -> bool {
    text.len() <= CODE_LEN_MAX && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// A text of others for a message: short, without control characters, and without what could be a
/// secret.
fn readable(text: &str) -> String {
    let mut shown = String::new();
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && !"+/=".contains(c)) {
        let bare =
            word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && !"+/=".contains(c));
        if bare.len() > WORD_LEN_MAX && bare.bytes().any(|byte| !byte.is_ascii_lowercase()) {
            shown.push('…');
            shown.push_str(&word[bare.len()..]);
        } else {
            shown.push_str(word);
        }
    }
    let shown = shown.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.take(MESSAGE_LEN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_sorted_by_code_and_then_by_status() {
        use StoreErrorKind as Kind;
        for (status, code, kind) in [
            (404, "NoSuchKey", Kind::NotFound),
            (404, "", Kind::NotFound),
            (404, "NoSuchBucket", Kind::Invalid),
            (412, "PreconditionFailed", Kind::AlreadyExists),
            (409, "ConditionalRequestConflict", Kind::Unavailable),
            (503, "SlowDown", Kind::Throttled),
            (503, "", Kind::Throttled),
            (429, "", Kind::Throttled),
            (400, "RequestTimeout", Kind::Timeout),
            (504, "", Kind::Timeout),
            (500, "InternalError", Kind::Unavailable),
            (502, "", Kind::Unavailable),
            (200, "InternalError", Kind::Unavailable),
            (403, "AccessDenied", Kind::Denied),
            (403, "RequestTimeTooSkewed", Kind::Denied),
            (400, "ExpiredToken", Kind::Denied),
            (400, "AuthorizationHeaderMalformed", Kind::Invalid),
            (301, "PermanentRedirect", Kind::Invalid),
            (416, "InvalidRange", Kind::OutOfRange),
            (400, "BadDigest", Kind::Unavailable),
            (501, "NotImplemented", Kind::Unsupported),
        ] {
            assert_eq!(kind_of_answer(status, code), kind, "{status} {code}");
        }
    }

    #[test]
    fn codes_are_words() {
        assert!(is_code("XAmzContentSHA256Mismatch"));
        assert!(!is_code("wJalr/K7MDENG") && !is_code(&"x".repeat(65)));
    }

    #[test]
    fn messages_are_short_and_have_no_secrets() {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        let text = readable(&format!("key AKIAIOSFODNN7EXAMPLE, with {secret}!\n<end>"));
        assert_eq!(text, "key …, with …! <end>");
        let text = "The authorization mechanism you have provided is not supported.";
        assert_eq!(readable(text), text);
        assert_eq!(readable(&"ab ".repeat(1000)).len(), MESSAGE_LEN_MAX);
    }
}
