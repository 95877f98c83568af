//! What can go wrong with a store, sorted by what the caller can do about it.

use std::error::Error;
use std::fmt;
use std::io;

use fonn_runtime::pool::PoolError;

/// A failed call.
#[derive(Debug, thiserror::Error)]
#[error("{operation} `{subject}`: {kind}")]
pub struct StoreError {
    /// What was attempted.
    pub operation: Operation,
    /// On which key, or which prefix.
    pub subject: String,
    /// How it failed.
    pub kind: StoreErrorKind,
    /// The cause, where there is one.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

/// The calls of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `put`
    Put,
    /// `put_if_absent`
    PutIfAbsent,
    /// `get`
    Get,
    /// `get_range`
    GetRange,
    /// `head`
    Head,
    /// `delete`
    Delete,
    /// `list`
    List,
}

impl Operation {
    /// The name, for messages and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::PutIfAbsent => "put_if_absent",
            Self::Get => "get",
            Self::GetRange => "get_range",
            Self::Head => "head",
            Self::Delete => "delete",
            Self::List => "list",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreErrorKind {
    /// There is no such object.
    NotFound,
    /// There is such an object already.
    AlreadyExists,
    /// The store asks for fewer requests.
    Throttled,
    /// There was no answer in time; a write may have taken place.
    Timeout,
    /// The store is failing, full or unreachable; a write may have taken place.
    Unavailable,
    /// The credentials do not allow it.
    Denied,
    /// The request itself is wrong, and would be every time.
    Invalid,
}

impl StoreErrorKind {
    /// The name, for messages and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::AlreadyExists => "exists already",
            Self::Throttled => "throttled",
            Self::Timeout => "timed out",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Invalid => "invalid request",
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Throttled | Self::Timeout | Self::Unavailable => true,
            Self::NotFound | Self::AlreadyExists | Self::Denied | Self::Invalid => false,
        }
    }
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl StoreError {
    /// A failure without a cause below it.
    pub fn new(operation: Operation, subject: impl Into<String>, kind: StoreErrorKind) -> Self {
        Self {
            operation,
            subject: subject.into(),
            kind,
            source: None,
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    pub(super) fn from_io(operation: Operation, subject: &str, error: io::Error) -> Self {
        use io::ErrorKind as Io;

        let kind = match error.kind() {
            Io::NotFound => StoreErrorKind::NotFound,
            Io::AlreadyExists => StoreErrorKind::AlreadyExists,
            Io::PermissionDenied | Io::ReadOnlyFilesystem => StoreErrorKind::Denied,
            Io::TimedOut => StoreErrorKind::Timeout,
            Io::InvalidInput | Io::InvalidFilename | Io::NotADirectory | Io::IsADirectory => {
                StoreErrorKind::Invalid
            }
            // Among them a full disk: space may come back.
            _ => StoreErrorKind::Unavailable,
        };
        Self {
            operation,
            subject: subject.to_owned(),
            kind,
            source: Some(Box::new(error)),
        }
    }

    pub(super) fn from_pool(operation: Operation, subject: &str, error: PoolError) -> Self {
        let kind = match error {
            PoolError::Busy => StoreErrorKind::Throttled,
            PoolError::Closed | PoolError::Panicked => StoreErrorKind::Unavailable,
        };
        Self {
            operation,
            subject: subject.to_owned(),
            kind,
            source: Some(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_are_sorted_by_what_can_be_done() {
        for (io, kind, retryable) in [
            (io::ErrorKind::NotFound, StoreErrorKind::NotFound, false),
            (
                io::ErrorKind::AlreadyExists,
                StoreErrorKind::AlreadyExists,
                false,
            ),
            (
                io::ErrorKind::PermissionDenied,
                StoreErrorKind::Denied,
                false,
            ),
            (io::ErrorKind::TimedOut, StoreErrorKind::Timeout, true),
            (
                io::ErrorKind::StorageFull,
                StoreErrorKind::Unavailable,
                true,
            ),
            (io::ErrorKind::NotADirectory, StoreErrorKind::Invalid, false),
        ] {
            let error = StoreError::from_io(Operation::Put, "a/b", io::Error::from(io));
            assert_eq!(
                (error.kind, error.is_retryable()),
                (kind, retryable),
                "{io:?}"
            );
        }
        let busy = StoreError::from_pool(Operation::Get, "a", PoolError::Busy);
        assert_eq!(busy.kind, StoreErrorKind::Throttled);
    }

    #[test]
    fn message_says_what_was_attempted_and_keeps_the_cause() {
        let cause = io::Error::from(io::ErrorKind::StorageFull);
        let error = StoreError::from_io(Operation::Put, "a/b", cause);
        assert_eq!(error.to_string(), "put `a/b`: unavailable");
        assert!(error.source().is_some());
        let error = StoreError::new(Operation::List, "p/", StoreErrorKind::Denied);
        assert_eq!(error.to_string(), "list `p/`: denied");
        assert!(error.source().is_none());
    }
}
