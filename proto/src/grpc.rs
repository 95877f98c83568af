//! The gRPC services of the admin port: messages, clients and servers, made from `fonn/v1/*.proto`.
//!
//! `cargo xtask codegen` writes what is in `gen/`; it is checked in, so that building needs neither
//! `protoc` nor the generator. Messages serialize as JSON with the names of their fields; an enum
//! is its value's name without the prefix, in lower case, and a key is text, with `\u{FFFD}` for
//! what is none.
//!
//! The only I/O-free part of gRPC: the server or caller brings the connection.

mod json;

/// Package `fonn.v1`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated; the documentation is in the .proto files"
)]
pub mod v1 {
    use super::json;

    include!("gen/fonn.v1.rs");
}

/// The files and their imports as an encoded `google.protobuf.FileDescriptorSet`, without comments:
/// for the reflection service.
pub const DESCRIPTORS: &[u8] = include!("gen/descriptors.rs");
