//! Why what a client sent is not understood.

/// Why a name, a digest, a message or a body is not understood. The client is told the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReapiError {
    /// A request has no digest.
    #[error("the request has no digest")]
    NoDigest,
    /// A hash is not in lower-case hexadecimal digits.
    #[error("malformed hash: it has to be lower-case hexadecimal digits")]
    Hash,
    /// No function that is supported has hashes of this length.
    #[error(
        "digest function {function} with a hash of {hash_len} bytes is not supported: use SHA256"
    )]
    Function {
        /// The number of the function; 0 if the request has none.
        function: i32,
        /// Length of the hash.
        hash_len: usize,
    },
    /// The length in a digest is negative.
    #[error("malformed digest: the size is {size_bytes}")]
    Size {
        /// The length.
        size_bytes: i64,
    },
    /// A name or a message is too long.
    #[error("{what} of {len} bytes is longer than the {len_max} that are allowed")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The longest one.
        len_max: usize,
    },
    /// A segment of an instance name is empty or of dots.
    #[error("malformed instance name: a segment is empty or of dots")]
    Segment,
    /// A segment of an instance name has a meaning elsewhere.
    #[error("malformed instance name: a segment is a word of resource names")]
    Reserved,
    /// A resource name is not of the form of a blob's name.
    #[error("malformed resource name: expected [INSTANCE/][uploads/ID/]blobs/HASH/SIZE")]
    ResourceName,
    /// The compressor of a resource name is not supported.
    #[error("the compressor is not supported: use zstd")]
    Compressor,
    /// A message is compressed.
    #[error("compressed messages are not supported: use compressed-blobs/zstd")]
    CompressedMessage,
    /// A body ends in a message.
    #[error("the body ends in the middle of a message")]
    Incomplete,
    /// A message is not the one that it should be.
    #[error("malformed {what}")]
    Malformed {
        /// What it should be.
        what: &'static str,
    },
    /// An action result refers to too many blobs.
    #[error("an action result refers to more than {max} blobs")]
    TooManyBlobs {
        /// How many there may be.
        max: usize,
    },
}
