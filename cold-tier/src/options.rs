//! What the cold tier is told at the start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fonn_base::clock::Clock;
use fonn_codec::CodecSpec;

use crate::codec::{FixedCodec, ValueCodec};
use crate::names::Region;
use crate::store::health::BucketHealth;

/// When entries are written to the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpillMode {
    /// When the disk is about to give them up: fewest bytes uploaded, and what is on disk alone is
    /// lost with the node.
    OnEvict,
    /// At the latest this long after they were written.
    WriteBehind(Duration),
}

/// Where the first content of a new local index comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreFrom {
    /// The newest checkpoint, and the segments after it: fast. A checkpoint has no keys, so copies
    /// that this node holds elsewhere are not reported as superseded: only for a node that holds
    /// none.
    Checkpoint,
    /// The footer of every segment: one request a segment. Reports every superseded copy.
    Footers,
}

/// Segments that are uploaded at a time.
const LANES_MIN: usize = 2;
const LANES_MAX: usize = 4;

/// Settings of the cold tier. [`ColdOptions::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct ColdOptions {
    /// Directory of the local index. Nothing in it is the only copy of anything.
    pub dir: PathBuf,
    /// The region whose segments this node writes and collects.
    pub region: Region,
    /// Bytes of segments that the bucket may hold, of all regions; None: no bound. Each region
    /// gives up segments of its own alone, and of the budget it has what others do not take, or a
    /// fair part. From some twenty segments on it is kept within 10 %.
    pub budget_bytes: Option<u64>,
    /// Whole time of a cold read, from the request to the value.
    pub read_timeout: Duration,
    /// When entries are written to the bucket.
    pub spill_age: SpillMode,
    /// How often an active writer is asked for new segments. New writers are looked for in one of
    /// six times: a list costs more.
    pub follow_interval: Duration,
    /// How often the whole bucket is compared with the index.
    pub reconcile_interval: Duration,
    /// How often garbage is looked for.
    pub collect_interval: Duration,
    /// How long a segment whose entries were moved stays for readers that do not know it yet.
    pub grace: Duration,
    /// How old a tombstone is at least before it is dropped: nodes that were cut off for less than
    /// this find it when they are back.
    pub tombstone_age_min: Duration,
    /// Codec of values in the bucket.
    pub codec: Arc<dyn ValueCodec>,
    /// Longest value that is read from the bucket, in bytes.
    pub value_len_max: usize,
    /// RAM for open segments, uploads and reads in flight (5/8), index memtables (1/8) and index
    /// cache (1/4). A single value larger than its share passes too, alone: the process then holds
    /// about twice that value beyond the budget.
    pub memory_bytes: u64,
    /// Length at which a segment is closed, in bytes; 8 to 64 MiB are sensible.
    pub segment_target_bytes: u64,
    /// Where a new local index comes from.
    pub restore: RestoreFrom,
    /// Segments merged since the last checkpoint that make a new one due.
    pub checkpoint_segments: u64,
    /// Wall clock for expiry and ages, monotonic clock for waits.
    pub clock: Clock,
    /// How the bucket is doing, which its store tells too if it was opened for that.
    pub health: Arc<BucketHealth>,
    /// Whether blocking work runs in place instead of on a pool: for simulated time.
    #[cfg(any(test, feature = "test-util"))]
    pub inline_blocking: bool,
    /// Where tests make a crash.
    #[cfg(any(test, feature = "test-util"))]
    pub crash: Option<Arc<crate::crash::CrashPoints>>,
}

impl ColdOptions {
    /// The defaults, for an index in `dir`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, region: Region) -> Self {
        Self {
            dir: dir.into(),
            region,
            budget_bytes: None,
            read_timeout: Duration::from_secs(2),
            spill_age: SpillMode::WriteBehind(Duration::from_secs(30)),
            follow_interval: Duration::from_secs(10),
            reconcile_interval: Duration::from_secs(3600),
            collect_interval: Duration::from_secs(600),
            grace: Duration::from_secs(3600),
            tombstone_age_min: Duration::from_secs(86_400),
            codec: Arc::new(FixedCodec {
                spec: CodecSpec::none(),
                min_bytes: 256,
            }),
            value_len_max: 1 << 30,
            memory_bytes: 256 << 20,
            segment_target_bytes: 16 << 20,
            restore: RestoreFrom::Checkpoint,
            checkpoint_segments: 256,
            clock: Clock::system(),
            health: Arc::default(),
            #[cfg(any(test, feature = "test-util"))]
            inline_blocking: false,
            #[cfg(any(test, feature = "test-util"))]
            crash: None,
        }
    }

    /// [`ColdOptions::grace`] in milliseconds.
    pub(crate) fn grace_ms(&self) -> u64 {
        millis(self.grace)
    }

    /// [`ColdOptions::tombstone_age_min`] in milliseconds.
    pub(crate) fn tombstone_age_min_ms(&self) -> u64 {
        millis(self.tombstone_age_min)
    }

    /// RAM for bytes on their way to or from the bucket.
    pub(crate) fn transfer_bytes(&self) -> u64 {
        self.memory_bytes / 8 * 5
    }

    /// RAM of the active memtables of the index; each may have sealed ones besides.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        // Up to four are alive at a time: one active and three that wait for their flush.
        (self.memory_bytes / 8 / 4).clamp(256 << 10, 16 << 20)
    }

    /// RAM of the block cache of the index.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.memory_bytes / 4
    }

    /// The length at which a segment is closed: [`LANES_MIN`] are uploaded, one is filled, and a
    /// quarter as much is being read for it, all within three quarters of the transfers' memory.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_target_bytes
            .min(self.transfer_bytes() * 3 / 13)
            .max(64 << 10)
    }

    /// How many segments are uploaded at a time: more where memory has room for more of full
    /// length.
    pub(crate) fn upload_lanes(&self) -> usize {
        let fit = self.transfer_bytes() * 3 / self.segment_bytes();
        // In quarters of a segment, but for the one and a quarter that are not on their way.
        let lanes = (fit.saturating_sub(5) / 4) as usize;
        lanes.clamp(LANES_MIN, LANES_MAX)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
