//! What the admin services ask of a cold tier.
//!
//! [`ColdAdmin`] answers with the messages of `fonn/v1/cold.proto`. The service (`fonn.v1.Cold`)
//! bounds pages, and lets one long piece of work run at a time.

pub(super) mod news;
mod service;
mod tier;

use std::pin::Pin;

use fonn_base::boxed::BoxFuture;
use fonn_base::entry::Space;
use fonn_proto::grpc::v1;
use fonn_proto::{Version, WriterId};
use tokio_stream::Stream;

pub(super) use service::{ColdService, WORK_MAX};
pub use tier::TierAdmin;
pub use v1::verify_response::Event as VerifyEvent;

use super::DEFAULT_NAMESPACE;

/// News of a longer piece of work, which goes on only while the stream is polled, and ends when it
/// is dropped.
pub type News<T> = Pin<Box<dyn Stream<Item = T> + Send>>;

/// A cold tier, as the operator sees it. No method blocks its thread.
pub trait ColdAdmin: Send + Sync {
    /// How full it is, how far it lags behind, what it has cost. No request to the bucket.
    fn status(&self) -> BoxFuture<'_, v1::ColdStatus>;

    /// The newest record of a key by the local index. One request to the bucket.
    fn find(
        &self,
        space: Space,
        key: Vec<u8>,
    ) -> BoxFuture<'_, Result<Option<ColdLocation>, ColdError>>;

    /// Examines the bucket; a finding for each check.
    fn doctor(&self) -> News<v1::Finding>;

    /// Segments that the index knows, in the order of their names. A page has at most
    /// `page_size` of them.
    fn segments(
        &self,
        query: v1::ListSegmentsRequest,
    ) -> BoxFuture<'_, Result<v1::ListSegmentsResponse, ColdError>>;

    /// Header and footer of a segment, read from the bucket. A page has at most `page_size`
    /// entries.
    fn inspect(
        &self,
        query: v1::InspectSegmentRequest,
    ) -> BoxFuture<'_, Result<v1::InspectSegmentResponse, ColdError>>;

    /// Reads a segment, or all, in full and checks every record. The last news is the last
    /// progress.
    fn verify(&self, segment: Option<String>) -> News<Result<VerifyEvent, ColdError>>;

    /// Merges everything in the bucket into the index again. Dropped before its end, what was
    /// merged stays.
    fn rebuild(&self) -> News<Result<v1::RebuildProgress, ColdError>>;
}

/// Why the cold tier does not answer. The text is a sentence for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColdError {
    /// There is no such segment.
    #[error("{0}")]
    NotFound(String),
    /// A name or page token that cannot be one.
    #[error("{0}")]
    Invalid(String),
    /// The bucket is out of reach, or the index not ready.
    #[error("{0}")]
    Unavailable(String),
    /// What is in the bucket cannot be read.
    #[error("{0}")]
    Damaged(String),
}

impl From<ColdError> for tonic::Status {
    fn from(error: ColdError) -> Self {
        match error {
            ColdError::NotFound(text) => Self::not_found(text),
            ColdError::Invalid(text) => Self::invalid_argument(text),
            ColdError::Unavailable(text) => Self::unavailable(text),
            ColdError::Damaged(text) => Self::data_loss(text),
        }
    }
}

/// Where a record is in the bucket, by the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColdLocation {
    /// REGION/WRITER/SEQUENCE.
    pub segment: String,
    /// Where the record begins.
    pub offset: u64,
    /// Length of the record.
    pub length: u64,
    /// Orders copies.
    pub version: Version,
    /// 0 is never.
    pub expires_at_ms: u64,
    /// The key was deleted.
    pub tombstone: bool,
    /// What the record says, unless it is long or cannot be read now.
    pub record: Option<ColdRecord>,
}

/// What a record in the bucket says of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdRecord {
    /// The identity that wrote the entry.
    pub writer: WriterId,
    /// The flags of the entry.
    pub flags: u32,
    /// Length of the value in bytes.
    pub value_len: u64,
}

/// How the page names the namespace of a key.
pub(super) fn namespace_name(space: Space) -> String {
    match space.namespace() {
        0 => DEFAULT_NAMESPACE.to_owned(),
        // Of a node that had users: there is no name for it here.
        number => format!("#{number}"),
    }
}
