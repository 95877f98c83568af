//! What the Remote Execution API of build tools says: the part of it that a cache needs.
//!
//! Messages, the framing of gRPC, names of blobs, digests, compression, and what an action result
//! refers to. It knows no socket, no store and no runtime. It does not execute actions.
//!
//! Invariants:
//! - Nothing that a client sends reserves more memory than it has sent, or than the caller allows.
//! - Two names of one blob give one key, and two blobs never share a key.
//! - The keys of SHA-256 are those of the HTTP dialect of Bazel. The keys of other functions cannot
//!   be had over HTTP.
//!
//! Entry points: [`method`] says what a call asks for, [`Deframer`] cuts messages out of a body,
//! [`Resource`] and [`Digest`] name blobs, [`References`] are what has to be there for a result to
//! be returned.

pub mod capabilities;
mod digest;
mod error;
mod frame;
mod hasher;
mod instance;
mod json;
mod references;
mod resource;
pub mod status;
mod wire;
mod zstd;

pub use self::digest::{Digest, DigestFunction};
pub use self::error::ReapiError;
pub use self::frame::{Deframer, MESSAGE_LEN_MAX, frame, frame_head, frame_read};
pub use self::hasher::Hasher;
pub use self::instance::Instance;
pub use self::json::{JSON_RESULT_LEN_MAX, result_of_json, result_to_json};
pub use self::references::{References, Referrer, inlined};
pub use self::resource::{Compressor, Resource};
pub use self::wire::is_crowded;
pub use self::zstd::{Deflater, Inflater, STEP_LEN, ZstdError};

/// The messages, made from `proto/reapi/cache.proto`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated; the documentation is in the .proto file"
)]
pub mod messages {
    include!("gen/fonn.reapi.rs");
}

/// Declares the calls with their paths and names.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $path:literal, $label:literal;)*) => {
        /// A call of a cache client.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Method {
            $($(#[$doc])* $name,)*
        }

        impl Method {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name in metrics.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }

            /// The path of a request.
            #[must_use]
            pub const fn path(self) -> &'static str {
                match self {
                    $(Self::$name => $path,)*
                }
            }
        }

        /// The call that a path names.
        #[must_use]
        pub fn method(path: &str) -> Option<Method> {
            match path {
                $($path => Some(Method::$name),)*
                _ => None,
            }
        }
    };
}

methods! {
    /// What the server can do.
    GetCapabilities = "/build.bazel.remote.execution.v2.Capabilities/GetCapabilities", "GetCapabilities";
    /// Reads the result of an action.
    GetActionResult = "/build.bazel.remote.execution.v2.ActionCache/GetActionResult", "GetActionResult";
    /// Stores the result of an action.
    UpdateActionResult = "/build.bazel.remote.execution.v2.ActionCache/UpdateActionResult", "UpdateActionResult";
    /// Tells which blobs are missing.
    FindMissingBlobs = "/build.bazel.remote.execution.v2.ContentAddressableStorage/FindMissingBlobs", "FindMissingBlobs";
    /// Stores small blobs.
    BatchUpdateBlobs = "/build.bazel.remote.execution.v2.ContentAddressableStorage/BatchUpdateBlobs", "BatchUpdateBlobs";
    /// Reads small blobs.
    BatchReadBlobs = "/build.bazel.remote.execution.v2.ContentAddressableStorage/BatchReadBlobs", "BatchReadBlobs";
    /// Reads a directory and all below it.
    GetTree = "/build.bazel.remote.execution.v2.ContentAddressableStorage/GetTree", "GetTree";
    /// Tells the chunks of a blob.
    SplitBlob = "/build.bazel.remote.execution.v2.ContentAddressableStorage/SplitBlob", "SplitBlob";
    /// Makes chunks a blob.
    SpliceBlob = "/build.bazel.remote.execution.v2.ContentAddressableStorage/SpliceBlob", "SpliceBlob";
    /// Reads a blob.
    Read = "/google.bytestream.ByteStream/Read", "Read";
    /// Stores a blob.
    Write = "/google.bytestream.ByteStream/Write", "Write";
    /// Tells how much of a blob was stored.
    QueryWriteStatus = "/google.bytestream.ByteStream/QueryWriteStatus", "QueryWriteStatus";
    /// Tells that the server serves.
    HealthCheck = "/grpc.health.v1.Health/Check", "HealthCheck";
    /// Tells that the server serves, whenever that changes.
    HealthWatch = "/grpc.health.v1.Health/Watch", "HealthWatch";
}

impl Method {
    /// Whether it changes entries.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::UpdateActionResult | Self::BatchUpdateBlobs | Self::SpliceBlob | Self::Write
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_another_service_is_no_call() {
        assert_eq!(
            method("/google.bytestream.ByteStream/Read"),
            Some(Method::Read)
        );
        assert_eq!(method("google.bytestream.ByteStream/Read"), None);
        assert_eq!(
            method("/build.bazel.remote.execution.v2.Execution/Execute"),
            None
        );
    }

    #[test]
    fn four_calls_change_entries() {
        let writes = Method::ALL.iter().filter(|it| it.is_write());
        assert_eq!(writes.count(), 4);
    }
}
