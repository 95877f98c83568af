//! Metrics of the disk tier.

use fonn_base::metrics::Snapshot;
use fonn_disk_tier::DiskTier;

/// Publishes what the disk tier holds, has waiting and has done.
pub(super) fn disk(snapshot: &mut Snapshot, disk: &DiskTier) {
    let usage = disk.usage();
    let mut gauge = |name, help, value: f64| snapshot.gauge(name, help, &[], value);
    gauge(
        "fonn_disk_budget_bytes",
        "Bytes that the data directory may take.",
        usage.budget_bytes as f64,
    );
    gauge(
        "fonn_disk_used_bytes",
        "Bytes that the data directory takes.",
        usage.bytes_on_disk as f64,
    );
    gauge(
        "fonn_disk_entries",
        "Entries on disk, about.",
        usage.entries_approx as f64,
    );
    gauge(
        "fonn_disk_generations",
        "Generations on disk.",
        usage.generations as f64,
    );
    gauge(
        "fonn_disk_uncompacted_bytes",
        "Bytes of values and keys on disk that are not compacted yet, the newest generation's included.",
        usage.uncompacted_bytes as f64,
    );
    gauge(
        "fonn_disk_write_queue_bytes",
        "Bytes that wait to be written to disk.",
        usage.queue_bytes as f64,
    );
    gauge(
        "fonn_disk_write_queue_limit_bytes",
        "Bytes that may wait to be written to disk; what comes on top is refused as busy.",
        usage.queue_bytes_max as f64,
    );
    gauge(
        "fonn_disk_read_queue_depth",
        "Reads that wait for the disk.",
        usage.reads_waiting as f64,
    );
    gauge(
        "fonn_disk_read_queue_limit",
        "Reads that may wait for the disk; what comes on top is refused as busy.",
        usage.reads_waiting_max as f64,
    );
    let stats = disk.stats().snapshot();
    let mut counter = |name, help, value| snapshot.counter(name, help, &[], value);
    counter(
        "fonn_disk_damaged_reads_total",
        "Records on disk that failed their checksum or are not what their index says, answered as misses; the log names the place.",
        stats.reads_corrupt,
    );
    counter(
        "fonn_disk_replay_damaged_records_total",
        "Records that the start found damaged at the end of a value log, answered as misses; the log names the place.",
        stats.records_damaged,
    );
    counter(
        "fonn_disk_replay_cut_bytes_total",
        "Bytes at the end of value logs that the start cut off, because they were never written whole.",
        stats.log_bytes_cut,
    );
    counter(
        "fonn_disk_read_wakes_total",
        "Times that a sleeping read thread was woken; one that is awake takes the next read without.",
        stats.read_wakes,
    );
    let wakes = fonn_base::reactor::wakes();
    counter(
        "fonn_disk_woken_tasks_total",
        "Requests that went on because a thread of the disk tier had done what they waited for.",
        wakes.tasks,
    );
    counter(
        "fonn_disk_reactor_wakes_total",
        "Wakes of reactors that this took: one for all requests that were ready before the reactor had looked.",
        wakes.reactors,
    );
    counter(
        "fonn_disk_failed_reads_total",
        "Reads that the device or an index refused, answered as misses.",
        stats.reads_failed,
    );
    counter(
        "fonn_disk_rejected_reads_total",
        "Reads turned away because too many waited.",
        stats.reads_rejected,
    );
    counter(
        "fonn_disk_failed_writes_total",
        "Writes that failed.",
        stats.writes_failed,
    );
    counter(
        "fonn_disk_failed_state_saves_total",
        "Saves of which versions may be given out, and of flushes, that failed. Writes are refused until one succeeds.",
        stats.state_saves_failed,
    );
    counter(
        "fonn_disk_rejected_writes_total",
        "Writes turned away because too many bytes waited.",
        stats.writes_rejected,
    );
    counter(
        "fonn_disk_failed_syncs_total",
        "Syncs of what was written that failed.",
        stats.syncs_failed,
    );
    counter(
        "fonn_disk_dropped_generations_total",
        "Generations dropped whole because the budget or the device was full.",
        stats.generations_dropped,
    );
    counter(
        "fonn_disk_failed_generations_total",
        "Generations that nothing more is written to because their log or index failed.",
        stats.generations_failed,
    );
    counter(
        "fonn_disk_broken_generations_total",
        "Generations that could not be opened at start, with what they held.",
        stats.generations_broken,
    );
    counter(
        "fonn_disk_rebuilt_indexes_total",
        "Indexes that the start could not read and made anew from their value logs.",
        stats.indexes_rebuilt,
    );
    counter(
        "fonn_disk_mended_files_total",
        "Files beside the generations (FORMAT, state) that the start found damaged and wrote anew.",
        stats.files_mended,
    );
    counter(
        "fonn_disk_carried_entries_total",
        "Entries that were read in an old generation and written to the newest, so that they are not dropped with the old one.",
        stats.carried,
    );
    counter(
        "fonn_disk_carried_bytes_total",
        "Bytes of these.",
        stats.carried_bytes,
    );
    counter(
        "fonn_disk_skipped_carries_total",
        "Entries that were not carried over, because too many waited or a newer one exists.",
        stats.carries_skipped,
    );
    counter(
        "fonn_disk_compacted_generations_total",
        "Generations that were compacted.",
        stats.generations_compacted,
    );
    counter(
        "fonn_disk_compaction_failures_total",
        "Generations that could not be compacted and stay as they are; the log has the reason.",
        stats.compaction_failures,
    );
    counter(
        "fonn_disk_compaction_read_bytes_total",
        "Bytes of records that compaction read.",
        stats.compaction_read_bytes,
    );
    counter(
        "fonn_disk_reclaimed_bytes_total",
        "Bytes of generations that were written anew for room, less what they became.",
        stats.reclaimed_bytes,
    );
    counter(
        "fonn_disk_compaction_written_bytes_total",
        "Bytes of records that compaction wrote.",
        stats.compaction_written_bytes,
    );
    counter(
        "fonn_disk_direct_bytes_total",
        "Bytes of records that were written in large batches, past the kernel's page cache.",
        stats.direct_bytes,
    );
    counter(
        "fonn_disk_recoded_records_total",
        "Records that got another codec by compaction.",
        stats.compaction_recoded,
    );
    counter(
        "fonn_disk_unsupported_reads_total",
        "Reads of entries whose codec this build leaves out, answered as misses.",
        stats.reads_unsupported,
    );
    counter(
        "fonn_disk_shared_values_total",
        "Values of 4 MiB and more that idle processors helped to encode or decode.",
        stats.values_shared,
    );
    snapshot.counter_f64(
        "fonn_disk_stalled_seconds_total",
        "Time that the writer waited for the device.",
        &[],
        stats.writer_stalled_ns as f64 / 1e9,
    );
}
