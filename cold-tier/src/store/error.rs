//! What can go wrong with a store, sorted by what the caller can do about it.

use std::error::Error;
use std::fmt;
use std::io;

use fonn_base::pool::PoolError;

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
    /// `get_suffix`
    GetSuffix,
}

impl Operation {
    /// All of them, in the order of [`Operation::index`].
    pub const ALL: [Self; 8] = [
        Self::Put,
        Self::PutIfAbsent,
        Self::Get,
        Self::GetRange,
        Self::Head,
        Self::Delete,
        Self::List,
        Self::GetSuffix,
    ];

    /// The place in [`Operation::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether it reads an object: a client waits for it. All others are the work of background
    /// tasks.
    #[must_use]
    pub const fn is_read(self) -> bool {
        match self {
            Self::Get | Self::GetRange | Self::GetSuffix | Self::Head => true,
            Self::Put | Self::PutIfAbsent | Self::Delete | Self::List => false,
        }
    }

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
            Self::GetSuffix => "get_suffix",
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
    /// The request itself is wrong, and would be every time; so is one to a bucket that does not
    /// exist, or to the wrong region.
    Invalid,
    /// The store does not know this call.
    Unsupported,
    /// The object is there and has no bytes in the range that was asked for.
    OutOfRange,
}

impl StoreErrorKind {
    /// All of them, in the order of [`StoreErrorKind::index`].
    pub const ALL: [Self; 9] = [
        Self::NotFound,
        Self::AlreadyExists,
        Self::Throttled,
        Self::Timeout,
        Self::Unavailable,
        Self::Denied,
        Self::Invalid,
        Self::Unsupported,
        Self::OutOfRange,
    ];

    /// The place in [`StoreErrorKind::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The value of a metric's label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Throttled => "throttled",
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Invalid => "invalid",
            Self::Unsupported => "unsupported",
            Self::OutOfRange => "out_of_range",
        }
    }

    /// Whether the failure is an answer to what was asked, rather than none.
    pub(crate) const fn is_answer(self) -> bool {
        matches!(
            self,
            Self::NotFound | Self::AlreadyExists | Self::Unsupported | Self::OutOfRange
        )
    }

    /// Whether the same call may succeed later without any change.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Throttled | Self::Timeout | Self::Unavailable => true,
            Self::NotFound | Self::AlreadyExists => false,
            Self::Denied | Self::Invalid | Self::Unsupported | Self::OutOfRange => false,
        }
    }
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label().replace('_', " "))
    }
}

/// What a remote store answered instead of doing what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store answered {status} {}: {message}", code.as_deref().unwrap_or("without a code"))]
pub struct Refusal {
    /// The status of HTTP.
    pub status: u16,
    /// The error code of S3, such as `SlowDown`; answers to HEAD have none.
    pub code: Option<String>,
    /// The store's explanation, shortened, and without anything that could be a secret.
    pub message: String,
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

    /// Whether the same call may succeed later without any change.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    /// The failure with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the store answered, if it is a remote one and did.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        self.source.as_ref()?.downcast_ref()
    }

    pub(super) fn from_io(operation: Operation, subject: &str, error: io::Error) -> Self {
        use io::ErrorKind as Io;

        let kind = match error.kind() {
            Io::NotFound => StoreErrorKind::NotFound,
            Io::AlreadyExists => StoreErrorKind::AlreadyExists,
            Io::PermissionDenied | Io::ReadOnlyFilesystem => StoreErrorKind::Denied,
            Io::TimedOut => StoreErrorKind::Timeout,
            Io::Unsupported => StoreErrorKind::Unsupported,
            Io::UnexpectedEof => StoreErrorKind::OutOfRange,
            Io::InvalidInput | Io::InvalidFilename | Io::NotADirectory | Io::IsADirectory => {
                StoreErrorKind::Invalid
            }
            // Among them a full disk: space may come back.
            _ => StoreErrorKind::Unavailable,
        };
        Self::new(operation, subject, kind).with_source(error)
    }

    pub(super) fn from_pool(operation: Operation, subject: &str, error: PoolError) -> Self {
        let kind = match error {
            PoolError::Busy => StoreErrorKind::Throttled,
            PoolError::Closed | PoolError::Panicked => StoreErrorKind::Unavailable,
        };
        Self::new(operation, subject, kind).with_source(error)
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
    fn every_value_is_in_its_place() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation.index(), index);
        }
        for (index, kind) in StoreErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
        }
    }

    #[test]
    fn message_says_what_was_attempted_and_keeps_the_cause() {
        let cause = io::Error::from(io::ErrorKind::StorageFull);
        let error = StoreError::from_io(Operation::Put, "a/b", cause);
        assert_eq!(error.to_string(), "put `a/b`: unavailable");
        assert!(error.source().is_some());
        let error = StoreError::new(Operation::List, "p/", StoreErrorKind::Denied);
        assert_eq!(error.to_string(), "list `p/`: denied");
        assert!(error.source().is_none() && error.refusal().is_none());
        let refusal = Refusal {
            status: 503,
            code: Some("SlowDown".to_owned()),
            message: "please".to_owned(),
        };
        let error = error.with_source(refusal.clone());
        assert_eq!(error.refusal(), Some(&refusal));
        assert_eq!(
            error.source().unwrap().to_string(),
            "the store answered 503 SlowDown: please"
        );
    }
}
