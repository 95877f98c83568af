//! What the admin services ask of a cold tier.
//!
//! [`ColdAdmin`] mirrors `fonn/v1/cold.proto` in plain types, so that the tier knows no protobuf
//! and its tests no server. The service (`fonn.v1.Cold`) translates, bounds pages, and lets one
//! long piece of work run at a time.

pub(super) mod message;
pub(super) mod news;
mod service;
mod tier;

use std::pin::Pin;

use fonn_base::boxed::BoxFuture;
use fonn_base::entry::Space;
use fonn_proto::{Version, WriterId};
use tokio_stream::Stream;

pub(super) use service::{ColdService, WORK_MAX};
pub use tier::TierAdmin;

/// News of a longer piece of work, which goes on only while the stream is polled, and ends when it
/// is dropped.
pub type News<T> = Pin<Box<dyn Stream<Item = T> + Send>>;

/// A cold tier, as the operator sees it. No method blocks its thread.
pub trait ColdAdmin: Send + Sync {
    /// How full it is, how far it lags behind, what it has cost. No request to the bucket.
    fn status(&self) -> BoxFuture<'_, Status>;

    /// The newest record of a key by the local index. One request to the bucket.
    fn find(
        &self,
        space: Space,
        key: Vec<u8>,
    ) -> BoxFuture<'_, Result<Option<ColdLocation>, ColdError>>;

    /// Examines the bucket; a finding for each check.
    fn doctor(&self) -> News<Finding>;

    /// Segments that the index knows, in the order of their names.
    fn segments(&self, query: SegmentQuery) -> BoxFuture<'_, Result<Page<Segment>, ColdError>>;

    /// Header and footer of a segment, read from the bucket.
    fn inspect(&self, query: InspectQuery) -> BoxFuture<'_, Result<Inspection, ColdError>>;

    /// Reads a segment, or all, in full and checks every record. The last news is the last
    /// progress.
    fn verify(&self, segment: Option<String>) -> News<Result<VerifyNews, ColdError>>;

    /// Merges everything in the bucket into the index again. Dropped before its end, what was
    /// merged stays.
    fn rebuild(&self) -> News<Result<RebuildProgress, ColdError>>;
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

/// How full the tier is, how far it lags behind, what it has cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// As in `--cold-tier`.
    pub url: String,
    /// As in `--region`.
    pub region: String,
    /// The index is complete.
    pub ready: bool,
    /// What is wrong, in a sentence; empty when nothing is.
    pub trouble: String,
    /// Segments that the index knows.
    pub segments: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// What the bucket may hold; None for no limit.
    pub budget_bytes: Option<u64>,
    /// Entries in the index, tombstones not counted.
    pub entries: u64,
    /// Bytes of records that are still the newest of their key.
    pub live_bytes: u64,
    /// What is not in the bucket yet.
    pub lag: SpillLag,
    /// What it has cost.
    pub cost: Cost,
}

/// What is not in the bucket yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillLag {
    /// Age of the oldest entry that is not, in milliseconds.
    pub age_ms: u64,
    /// How many entries.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// An estimate of what was spent since the start of the process, and what storage costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cost {
    /// Requests by kind.
    pub requests: Vec<RequestCost>,
    /// Bytes written to the bucket.
    pub uploaded_bytes: u64,
    /// Bytes read from it.
    pub downloaded_bytes: u64,
    /// Dollars for all requests.
    pub requests_dollars: f64,
    /// Dollars a month for what is stored now.
    pub storage_dollars_per_month: f64,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestCost {
    /// get, put, list, delete and so on.
    pub kind: String,
    /// How many.
    pub count: u64,
    /// How many failed.
    pub failed: u64,
    /// What they cost.
    pub dollars: f64,
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

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Fine.
    Ok,
    /// It works, but not as it should.
    Warning,
    /// It does not work.
    Failed,
    /// Not checked.
    Skipped,
}

/// What came of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was checked.
    pub check: String,
    /// How it ended.
    pub severity: Severity,
    /// What was seen, in a sentence.
    pub message: String,
    /// What to do, in a sentence; empty when there is nothing to do.
    pub remedy: String,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
}

/// Which segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentQuery {
    /// Of one region; None is all.
    pub region: Option<String>,
    /// At most so many.
    pub limit: usize,
    /// Where to go on, as the page before said.
    pub token: Option<String>,
}

/// Which segment, and which part of its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InspectQuery {
    /// REGION/WRITER/SEQUENCE.
    pub name: String,
    /// At most so many entries.
    pub limit: usize,
    /// Where to go on, as the page before said.
    pub token: Option<String>,
}

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page<T> {
    /// The part.
    pub items: Vec<T>,
    /// Where to go on; None at the end.
    pub next: Option<String>,
}

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// It is served from.
    Live,
    /// It is deleted soon.
    Doomed,
    /// It was not found in the bucket.
    Lost,
}

/// A segment, as the index knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The region that wrote it.
    pub region: String,
    /// The process that wrote it.
    pub writer: String,
    /// Which of that process's segments it is.
    pub sequence: u64,
    /// Length of the object.
    pub size_bytes: u64,
    /// Bytes of records.
    pub data_bytes: u64,
    /// Of these, of records that are still the newest of their key.
    pub live_bytes: u64,
    /// Entries, tombstones not counted.
    pub entries: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// When it was written.
    pub created_at_ms: u64,
    /// When something in it was read last; None is never.
    pub last_read_at_ms: Option<u64>,
    /// What becomes of it.
    pub state: SegmentState,
}

impl Segment {
    /// REGION/WRITER/SEQUENCE, as in the name of its object.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}/{:016x}", self.region, self.writer, self.sequence)
    }
}

/// Header and footer of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// As the index knows it.
    pub segment: Option<Segment>,
    /// Version of its format.
    pub format_version: u32,
    /// Length of its footer.
    pub footer_bytes: u64,
    /// Entries and tombstones by the footer.
    pub records: u64,
    /// Some of them.
    pub entries: Page<SegmentEntry>,
}

/// A record by the footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// Whose key.
    pub space: Space,
    /// The key.
    pub key: Vec<u8>,
    /// Where the record begins.
    pub offset: u64,
    /// Its length.
    pub length: u64,
    /// Orders copies.
    pub version: Version,
    /// 0 is never.
    pub expires_at_ms: u64,
    /// The key was deleted.
    pub tombstone: bool,
    /// The index points here.
    pub current: bool,
}

/// News of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifyNews {
    /// How far it is.
    Progress(VerifyProgress),
    /// Something is wrong.
    Damage(SegmentDamage),
}

/// How far a check is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Segments that were checked, and how many there are to check.
    pub segments: Part,
    /// Bytes that were read, and how many there are to read.
    pub bytes: Part,
    /// Records that were sound.
    pub records_sound: u64,
    /// Findings so far.
    pub damages: u64,
}

/// How much of something is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// This much.
    pub done: u64,
    /// Of this.
    pub total: u64,
}

/// Something wrong in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentDamage {
    /// REGION/WRITER/SEQUENCE.
    pub segment: String,
    /// Where in it, if not in the whole.
    pub offset: Option<u64>,
    /// What is wrong, in a sentence.
    pub message: String,
}

/// How far a rebuild is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebuildProgress {
    /// What is being done.
    pub phase: String,
    /// Segments that were merged, and how many were found.
    pub segments: Part,
    /// Entries in the index, about.
    pub entries: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
}
