//! The gRPC services: messages, clients and servers, made from `fonn/v1/*.proto`.
//!
//! What is in `gen/` is checked in, so that building needs neither `protoc` nor the generator.

/// Package `fonn.v1`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated; the documentation is in the .proto files"
)]
pub mod v1 {
    include!("gen/fonn.v1.rs");
}
