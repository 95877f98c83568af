//! The status field of a reply.

use crate::Failure;

/// What became of a request: the status field (`protocol_binary.txt`, "Response Status").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Done.
    Success = 0x0000,
    /// There is no such entry, or no such group of statistics.
    NotFound = 0x0001,
    /// There is an entry where none may be, or it has another version.
    Exists = 0x0002,
    /// The value is longer than `--max-value`.
    TooLarge = 0x0003,
    /// The packet's lengths do not fit its opcode.
    InvalidArguments = 0x0004,
    /// Append and prepend found no entry.
    NotStored = 0x0005,
    /// The value is not a decimal number.
    NonNumeric = 0x0006,
    /// Not authenticated, wrong password, or a credential without the right to do this. Clients
    /// know no other code for "not allowed".
    AuthError = 0x0020,
    /// Unknown opcode.
    UnknownCommand = 0x0081,
    /// No space for the value.
    OutOfMemory = 0x0082,
    /// The server's fault.
    Internal = 0x0084,
    /// A queue is full; try again later.
    Busy = 0x0085,
    /// Something that is needed cannot be reached at the moment.
    TemporaryFailure = 0x0086,
}

impl Status {
    /// The number on the wire.
    #[must_use]
    #[inline]
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The body that memcached gives a reply with this status. Only "Not found" is given here:
    /// sccache reads the body of a miss, and takes that of another error for the next header.
    #[must_use]
    #[inline]
    pub const fn text(self) -> &'static [u8] {
        match self {
            Self::NotFound => b"Not found",
            _ => b"",
        }
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Busy => Self::Busy,
            Failure::OutOfSpace => Self::OutOfMemory,
            Failure::TooLarge => Self::TooLarge,
            Failure::ReadOnly | Failure::AuthRequired => Self::AuthError,
            Failure::Unavailable => Self::TemporaryFailure,
        }
    }
}
