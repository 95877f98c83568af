//! What can be wrong with bytes from a peer, and with what shall be sent to one.

use thiserror::Error;

/// The stream cannot be followed any further: close the connection.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// A frame begins with a byte that begins none, or none in this direction.
    #[error(
        "a frame begins with {0:#04x}, which is no frame of the peer protocol in this direction"
    )]
    Kind(u8),
    /// Head or body were damaged.
    #[error("the checksum of a frame is {found:#010x} and should be {expected:#010x}")]
    Checksum {
        /// What the bytes give.
        expected: u32,
        /// What the frame says.
        found: u32,
    },
}

/// A frame that arrived as it was sent, and is malformed here. The stream stays in step.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// An opcode of a newer version.
    #[error("opcode {0:#04x} is unknown to version {version} of the peer protocol", version = super::VERSION)]
    UnknownOpcode(u8),
    /// Flags of a newer version.
    #[error("flags {flags:#06x} of opcode {opcode:#04x} are unknown to version {version} of the peer protocol", version = super::VERSION)]
    UnknownFlags {
        /// The opcode.
        opcode: u8,
        /// All of its flags.
        flags: u16,
    },
    /// The body is shorter than its fields.
    #[error("a frame ends inside the field `{0}`")]
    Truncated(&'static str),
    /// A field has a value that means nothing.
    #[error("the field `{field}` of a frame is {value}, which has no meaning")]
    Meaningless {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
    /// The body is longer than its fields.
    #[error("a frame has {0} bytes behind its last field")]
    Trailing(usize),
    /// A text is not UTF-8.
    #[error("the field `{0}` of a frame is no UTF-8")]
    NotText(&'static str),
    /// An entry was damaged.
    #[error("the checksum of an entry of version {version} is wrong")]
    EntryChecksum {
        /// The version it says it has.
        version: u64,
    },
}

/// What was to be sent does not fit a frame, or is longer than the peer takes. Nothing was written.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{what} of {len} bytes is longer than the {max} bytes that the peer takes")]
pub struct TooLong {
    /// What is too long.
    pub what: &'static str,
    /// Its length in bytes.
    pub len: usize,
    /// The most that would do.
    pub max: usize,
}
