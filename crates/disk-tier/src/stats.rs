//! Counters of the disk tier: what each counts, and the metric that shows it.

use std::sync::atomic::{AtomicU64, Ordering};

use fonn_base::metrics::Snapshot;

macro_rules! counters {
    ($($name:ident $(=> $metric:literal)?: $help:literal,)*) => {
        /// Counters of the disk tier, all of them since its opening.
        #[derive(Debug, Default)]
        pub struct DiskStats {
            $(#[doc = $help] pub(crate) $name: AtomicU64,)*
        }

        /// What [`DiskStats`] said at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct DiskStatsSnapshot {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl DiskStats {
            /// Reads all counters; not at one instant.
            #[must_use]
            pub fn snapshot(&self) -> DiskStatsSnapshot {
                DiskStatsSnapshot { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            /// Publishes the counters that are metrics.
            pub fn collect(&self, metrics: &mut Snapshot) {
                let stats = self.snapshot();
                $($(metrics.counter($metric, $help, &[], stats.$name);)?)*
            }
        }
    };
}

counters! {
    reads_missed: "Reads that found nothing, or a tombstone.",
    reads_failed => "fonn_disk_failed_reads_total":
        "Reads that the device or an index refused, answered as misses.",
    reads_corrupt => "fonn_disk_damaged_reads_total":
        "Records on disk that failed their checksum or are not what their index says, answered as misses; the log names the place.",
    reads_rejected => "fonn_disk_rejected_reads_total":
        "Reads turned away because too many waited.",
    read_wakes => "fonn_disk_read_wakes_total":
        "Times that a sleeping read thread was woken; one that is awake takes the next read without.",
    writes_failed => "fonn_disk_failed_writes_total":
        "Writes that failed.",
    state_saves_failed => "fonn_disk_failed_state_saves_total":
        "Saves of which versions may be given out, and of flushes, that failed. Writes are refused until one succeeds.",
    writes_rejected => "fonn_disk_rejected_writes_total":
        "Writes turned away because too many bytes waited.",
    written_bytes: "Bytes of records written, without those of compaction.",
    direct_bytes => "fonn_disk_direct_bytes_total":
        "Bytes of records that were written in large batches, past the kernel's page cache.",
    carried => "fonn_disk_carried_entries_total":
        "Entries that were read in an old generation and written to the newest, so that they are not dropped with the old one.",
    carried_bytes => "fonn_disk_carried_bytes_total":
        "Bytes of these.",
    carries_skipped => "fonn_disk_skipped_carries_total":
        "Entries that were not carried over, because too many waited or a newer one exists.",
    generations_dropped => "fonn_disk_dropped_generations_total":
        "Generations dropped whole because the budget or the device was full.",
    generations_failed => "fonn_disk_failed_generations_total":
        "Generations that nothing more is written to because their log or index failed.",
    generations_broken => "fonn_disk_broken_generations_total":
        "Generations that could not be opened at start, with what they held.",
    files_mended => "fonn_disk_mended_files_total":
        "Files beside the generations (FORMAT, state) that the start found damaged and wrote anew.",
    indexes_rebuilt => "fonn_disk_rebuilt_indexes_total":
        "Indexes that the start could not read and made anew from their value logs.",
    records_replayed: "Records that opening found in a value log and not in its index.",
    records_damaged => "fonn_disk_replay_damaged_records_total":
        "Records that the start found damaged at the end of a value log, answered as misses; the log names the place.",
    log_bytes_cut => "fonn_disk_replay_cut_bytes_total":
        "Bytes at the end of value logs that the start cut off, because they were never written whole.",
    reads_unsupported => "fonn_disk_unsupported_reads_total":
        "Reads of entries whose codec this build leaves out, answered as misses.",
    values_shared => "fonn_disk_shared_values_total":
        "Values of 4 MiB and more that idle processors helped to encode or decode.",
    writer_stalled_ns:
        "Nanoseconds in which the writer waited for the device: in writes, and in syncs that it asked for.",
    sync_ns: "Nanoseconds that syncs in the background took.",
    generations_compacted => "fonn_disk_compacted_generations_total":
        "Generations that were compacted.",
    compaction_failures => "fonn_disk_compaction_failures_total":
        "Generations that could not be compacted and stay as they are; the log has the reason.",
    compaction_read_bytes => "fonn_disk_compaction_read_bytes_total":
        "Bytes of records that compaction read.",
    compaction_written_bytes => "fonn_disk_compaction_written_bytes_total":
        "Bytes of records that compaction wrote.",
    compaction_recoded => "fonn_disk_recoded_records_total":
        "Records that got another codec by compaction.",
    reclaimed_bytes => "fonn_disk_reclaimed_bytes_total":
        "Bytes of generations that were written anew for room, less what they became.",
    syncs_failed => "fonn_disk_failed_syncs_total":
        "Syncs of what was written that failed.",
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
