//! Statuses of blobs in a batch, and what a status says besides its code.

use prost::Message as _;

use crate::messages::{Any, Duration, RetryInfo, Status};

/// Seconds after which a client may try again what was refused for lack of room.
const RETRY_DELAY_S: i64 = 1;

/// A code of gRPC that the cache answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It was done.
    Ok = 0,
    /// The request is malformed, or the bytes are not those of the digest.
    InvalidArgument = 3,
    /// It took too long.
    DeadlineExceeded = 4,
    /// There is no such entry.
    NotFound = 5,
    /// The client may not.
    PermissionDenied = 7,
    /// There is no room.
    ResourceExhausted = 8,
    /// The offset is beyond the end.
    OutOfRange = 11,
    /// There is no such call.
    Unimplemented = 12,
    /// Not now.
    Unavailable = 14,
    /// The client has not logged in.
    Unauthenticated = 16,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Unavailable,
        Self::Unauthenticated,
    ];

    /// The name that gRPC has for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Unavailable => "UNAVAILABLE",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// Why a call or a blob of a batch fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The code.
    pub code: Code,
    /// What happened, for people.
    pub message: String,
}

impl Refusal {
    /// A refusal with its message.
    #[must_use]
    pub fn new(code: Code, message: impl ToString) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }

    /// The request is malformed.
    #[must_use]
    pub fn invalid(message: impl ToString) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// A blob is missing.
    #[must_use]
    pub fn missing() -> Self {
        Self::new(Code::NotFound, "there is no such entry")
    }

    /// As a message. A client that may try again is told when.
    #[must_use]
    pub fn status(&self) -> Status {
        let details = match self.code {
            Code::Unavailable => vec![Any {
                type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(),
                value: retry_info().encode_to_vec().into(),
            }],
            _ => Vec::new(),
        };
        Status {
            code: self.code as i32,
            message: self.message.clone(),
            details,
        }
    }
}

fn retry_info() -> RetryInfo {
    RetryInfo {
        retry_delay: Some(Duration {
            seconds: RETRY_DELAY_S,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_tried_again_says_when() {
        let status = |code| Refusal::new(code, "why").status();
        let busy = status(Code::Unavailable);
        assert_eq!((busy.code, busy.details.len()), (14, 1));
        assert_eq!(busy.details[0].value[..], [0x0a, 2, 8, 1]);
        assert!(status(Code::ResourceExhausted).details.is_empty());
    }
}
