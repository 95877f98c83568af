//! What came of a command, before a dialect puts it into words.

use bytes::Bytes;

use crate::{Moved, Version};

/// The result of one [`Command`](crate::Command).
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<'v> {
    /// The entry is there.
    Hit(Hit<'v>),
    /// A [`Get`](crate::Get) found no entry.
    Miss,
    /// The value was written.
    Stored(Stored),
    /// The condition of a store or touch was not met. The previous value if it was asked for.
    NotStored(Option<Bytes>),
    /// The entry has another version than the one to compare with.
    Exists,
    /// A command other than [`Get`](crate::Get) needs an entry, and there is none.
    NotFound,
    /// The entry was removed or marked stale.
    Deleted {
        /// The version of an entry that was kept; 0 otherwise.
        version: Version,
    },
    /// The expiry was changed.
    Touched {
        /// The entry's version.
        version: Version,
    },
    /// Arithmetic was done.
    Number(Number),
    /// Arithmetic on a value that is no number in the range of the operation.
    NotANumber,
    /// Arithmetic left the range of a signed number, or gave infinity.
    Overflow,
    /// The command was not carried out.
    Failed(Failure),
    /// The command was not carried out: its client wants to ask the owner of the key itself.
    Moved(Moved),
}

impl Outcome<'_> {
    /// The same with a copy of what it borrows.
    #[must_use]
    pub fn into_owned(self) -> Outcome<'static> {
        match self {
            Self::Hit(hit) => Outcome::Hit(Hit {
                value: Value::Shared(match hit.value {
                    Value::Copied(bytes) => Bytes::copy_from_slice(bytes),
                    Value::Shared(bytes) => bytes,
                }),
                ..hit
            }),
            Self::Miss => Outcome::Miss,
            Self::Stored(stored) => Outcome::Stored(stored),
            Self::NotStored(previous) => Outcome::NotStored(previous),
            Self::Exists => Outcome::Exists,
            Self::NotFound => Outcome::NotFound,
            Self::Deleted { version } => Outcome::Deleted { version },
            Self::Touched { version } => Outcome::Touched { version },
            Self::Number(number) => Outcome::Number(number),
            Self::NotANumber => Outcome::NotANumber,
            Self::Overflow => Outcome::Overflow,
            Self::Failed(failure) => Outcome::Failed(failure),
            Self::Moved(moved) => Outcome::Moved(moved),
        }
    }
}

/// The bytes of a value: small ones borrowed from a scratch buffer, large ones shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'v> {
    /// Copied out of the tier; goes into the reply by copying.
    Copied(&'v [u8]),
    /// Shared with the tier; large ones are sent from where they are.
    Shared(Bytes),
}

impl Value<'_> {
    /// The bytes themselves.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// An entry that a [`Get`](crate::Get) found, as it was before the get changed anything but its
/// expiry.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit<'v> {
    /// The value; empty if it was not asked for.
    pub value: Value<'v>,
    /// The value's length in bytes, also when it was not asked for.
    pub value_len: usize,
    /// The client's opaque flags.
    pub flags: u32,
    /// The entry's version.
    pub version: Version,
    /// Milliseconds left to live; None means for ever.
    pub ttl_ms: Option<u64>,
    /// When the entry expires, Unix time in milliseconds; None means never.
    pub expires_at_ms: Option<u64>,
    /// Seconds since the last use.
    pub idle_s: u32,
    /// Whether the entry was read before this time.
    pub fetched_before: bool,
    /// The entry is marked stale (meta `X`).
    pub stale: bool,
    /// This client won the right to recache (meta `W`).
    pub won: bool,
    /// Another client has that right already (meta `Z`).
    pub lost: bool,
}

/// The version that a set tells which left the entry as it was (`write_once`). No entry has it.
pub const KEPT: Version = 0;

/// A value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The new version; [`KEPT`] where the first value stays and the client is not told so.
    pub version: Version,
    /// The length of the whole value now (`APPEND`, `SETRANGE`).
    pub value_len: usize,
    /// The value before, if it was asked for and there was one.
    pub previous: Option<Bytes>,
}

/// The result of arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub struct Number {
    /// The number as it is stored now: decimal text.
    pub text: smallvec::SmallVec<[u8; 24]>,
    /// The new version.
    pub version: Version,
    /// Milliseconds left to live; None means for ever.
    pub ttl_ms: Option<u64>,
}

/// Why a command was not carried out. Each dialect has its own words for each (`failure` in its
/// encoder), and each is a label in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// A queue is full; the same command may succeed later.
    Busy,
    /// There is no memory or no disk space for the value.
    OutOfSpace,
    /// The value is larger than `--max-value`, or would become so.
    TooLarge,
    /// The credential may not write.
    ReadOnly,
    /// The connection has not authenticated.
    AuthRequired,
    /// The tier or member that is needed cannot be reached.
    Unavailable,
}

impl Failure {
    /// All of them, for tables and metrics.
    pub const ALL: [Self; 6] = [
        Self::Busy,
        Self::OutOfSpace,
        Self::TooLarge,
        Self::ReadOnly,
        Self::AuthRequired,
        Self::Unavailable,
    ];

    /// The name it has in metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::OutOfSpace => "out_of_space",
            Self::TooLarge => "too_large",
            Self::ReadOnly => "read_only",
            Self::AuthRequired => "auth_required",
            Self::Unavailable => "unavailable",
        }
    }
}
