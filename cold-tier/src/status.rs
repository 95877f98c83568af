//! How the cold tier is doing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fonn_base::breaker::Position;
use fonn_base::metrics::Snapshot;

use crate::names::SegmentName;
use crate::spill::source::Backlog;

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn note_upload_wait(&self, took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        Self::add(&self.upload_wait_us, took_us);
    }

    pub(crate) fn note_upload(&self, took: Duration) {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let last_ms = self.upload_ms.load(Ordering::Relaxed);
        // One uploader: no update is lost.
        self.upload_ms
            .store(last_ms / 4 * 3 + took_ms / 4, Ordering::Relaxed);
    }
}

/// A footer that the bucket does not give although it is there. It may hide newer copies of
/// anything, so the index is not complete without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedFooter {
    /// The segment.
    pub name: SegmentName,
    /// Whether a right is missing.
    pub is_denied: bool,
    /// What the bucket said.
    pub message: String,
}

/// How far a node is that has to make its index out of the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstReading {
    /// It has it, from the bucket or from its disk.
    Done,
    /// The bucket is being read.
    UnderWay {
        /// Whether the bucket has answered anything yet.
        is_answered: bool,
    },
    /// The bucket refuses the footer of a segment, without which the index is not complete.
    Refused,
    /// For some seconds every call has failed.
    Failing,
    /// The local index failed: there will be none before the next start.
    IndexFailed,
}

/// How the cold tier is doing. Counters are since the start of the process.
#[derive(Clone, Debug)]
pub struct ColdStatus {
    /// Whether what is not found is truly not in the bucket, as far as it was followed. Until then
    /// misses may be due to loading.
    pub ready: bool,
    /// Whether every writer was followed to its end at least once in this run. Nothing is spilled
    /// before.
    pub caught_up: bool,
    /// What the two above wait for, if the bucket refuses something that is there.
    pub refused: Option<RefusedFooter>,
    /// Whether the local index failed; a restart has it built again.
    pub index_failed: bool,
    /// About how many entries the index has.
    pub entries: u64,
    /// Segments known.
    pub segments: u64,
    /// Of these, such that the bucket does not have any more.
    pub lost_segments: u64,
    /// Bytes of all segments in the bucket.
    pub bytes: u64,
    /// Bytes of records that count.
    pub live_bytes: u64,
    /// Bytes of the region's segments.
    pub region_bytes: u64,
    /// The budget of all regions' segments together.
    pub budget_bytes: Option<u64>,
    /// What of the budget is this region's at present.
    pub region_budget_bytes: Option<u64>,
    /// What is not in the bucket yet, and would be lost with this node.
    pub backlog: Backlog,
    /// Age of the oldest of that; zero if there is none.
    pub backlog_age: Duration,
    /// The circuit breaker of cold reads.
    pub breaker: Position,
    /// The last failure of the bucket.
    pub last_error: Option<String>,
    /// Whether this node collects garbage for its region.
    pub is_collector: bool,
    /// Bytes held for uploads.
    pub upload_memory_bytes: u64,
    /// Bytes held for reads.
    pub read_memory_bytes: u64,
    /// Counters.
    pub counts: Counts,
}

/// What the way into the bucket has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillLoad {
    /// Bytes of segments uploaded since the start.
    pub uploaded_bytes: u64,
    /// Time since the start in which what was to be uploaded waited for what was being uploaded.
    pub waited: Duration,
    /// Age of the oldest entry that is not in the bucket.
    pub backlog_age: Duration,
}

macro_rules! counters {
    ($($name:ident $(=> $metric:literal)?: $help:literal,)*) => {
        /// Counters since the start of the process.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $(#[doc = $help] pub $name: u64,)* }

        impl Counts {
            /// Publishes the counters that are metrics of their own.
            pub fn collect(&self, metrics: &mut Snapshot) {
                $($(metrics.counter($metric, $help, &[], self.$name);)?)*
            }
        }

        /// What is counted for [`Counts`], and what was lately.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            /// How long uploads took lately: smoothed, in milliseconds.
            pub(crate) upload_ms: AtomicU64,
        }

        impl Counters {
            pub(crate) fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    hits: "Cold reads that gave a value.",
    gone: "Cold reads whose segment was gone.",
    damaged: "Cold reads whose bytes were damaged.",
    deadline: "Cold reads that took too long.",
    unavailable: "Cold reads that the bucket or the breaker refused.",
    spilled_entries => "fonn_cold_spilled_entries_total":
        "Entries that were brought into the bucket.",
    spilled_bytes => "fonn_cold_spilled_bytes_total":
        "Bytes of the segments that were brought into the bucket.",
    spilled_segments => "fonn_cold_spilled_segments_total":
        "Segments that were brought into the bucket.",
    lost_entries => "fonn_cold_lost_entries_total":
        "Entries that the disk had to give up before the bucket had them.",
    upload_retries => "fonn_cold_upload_retries_total":
        "Uploads of segments that were tried again.",
    upload_wait_us: "Microseconds in which what was read from the queue waited for uploads.",
    unsupported: "Cold reads of values that this build cannot decode.",
    followed_segments => "fonn_cold_followed_segments_total":
        "Segments of other nodes and regions that were taken into the index.",
    announced_segments => "fonn_cold_announced_segments_total":
        "Segments that were taken into the index because a member of the cluster had announced them.",
    unreadable_segments => "fonn_cold_unreadable_segments_total":
        "Segments that could not be read.",
    lost_segments => "fonn_cold_vanished_segments_total":
        "Segments of the region that the bucket does not have any more although no node deleted them; counted by the node that collects.",
    collected_bytes => "fonn_cold_collected_bytes_total":
        "Bytes of the segments that this node deleted.",
    dropped_entries => "fonn_cold_dropped_entries_total":
        "Entries that were dropped from the bucket: expired, flushed, or for the budget.",
    checkpoints => "fonn_cold_checkpoints_total":
        "Checkpoints of the index that this node wrote into the bucket.",
}
