//! Counters of the disk tier.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of the disk tier, all of them since its opening.
        #[derive(Debug, Default)]
        pub struct DiskStats {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        /// What [`DiskStats`] said at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct DiskStatsSnapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl DiskStats {
            /// Reads all counters; not at one instant.
            #[must_use]
            pub fn snapshot(&self) -> DiskStatsSnapshot {
                DiskStatsSnapshot { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Reads that found nothing, or a tombstone.
    reads_missed,
    /// Reads that the disk or an index refused; answered as misses.
    reads_failed,
    /// Records that were damaged; answered as misses.
    reads_corrupt,
    /// Reads turned away because too many were waiting.
    reads_rejected,
    /// Read threads that were woken: one for all that a reactor read in a turn, and others while
    /// more waits.
    read_wakes,
    /// Writes that failed.
    writes_failed,
    /// Saves of the state that failed.
    state_saves_failed,
    /// Writes turned away because the queue was full.
    writes_rejected,
    /// Bytes of records written, without those of compaction.
    written_bytes,
    /// Bytes of records, also of compaction, that passed the page cache by.
    direct_bytes,
    /// Entries carried over into the newest generation.
    carried,
    /// Bytes of the records of these.
    carried_bytes,
    /// Carry-overs skipped, because the queue for them was full or a newer record exists.
    carries_skipped,
    /// Generations dropped.
    generations_dropped,
    /// Generations given up for writing because their log or index failed.
    generations_failed,
    /// Generations that could not be opened and were moved aside or removed.
    generations_broken,
    /// Small files of the directory that opening found damaged and mended.
    files_mended,
    /// Indexes that were made anew from their value log.
    indexes_rebuilt,
    /// Records that opening found in a value log and not in its index.
    records_replayed,
    /// Records that opening found damaged in the end of a value log; they are misses.
    records_damaged,
    /// Bytes that opening cut off value logs, because they were never written whole.
    log_bytes_cut,
    /// Reads of records whose codec this build leaves out; answered as misses.
    reads_unsupported,
    /// Large values that several processors encoded or decoded together.
    values_shared,
    /// Nanoseconds of processor time that the writer used.
    writer_cpu_ns,
    /// Nanoseconds in which the writer waited for the device: in writes, and in syncs that it asked
    /// for.
    writer_stalled_ns,
    /// Nanoseconds that syncs in the background took.
    sync_ns,
    /// Generations that were compacted.
    generations_compacted,
    /// Generations that could not be compacted and stay as they are.
    compaction_failures,
    /// Bytes of value logs read to be written anew.
    compaction_read_bytes,
    /// Bytes of value logs that these became.
    compaction_written_bytes,
    /// Records that got another codec.
    compaction_recoded,
    /// Bytes that generations lost when they were written anew for room.
    reclaimed_bytes,
    /// Syncs that failed.
    syncs_failed,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
