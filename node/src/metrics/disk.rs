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
    let stats = disk.stats();
    stats.collect(snapshot);
    snapshot.counter_f64(
        "fonn_disk_stalled_seconds_total",
        "Time that the writer waited for the device.",
        &[],
        stats.snapshot().writer_stalled_ns as f64 / 1e9,
    );
    let wakes = fonn_base::reactor::wakes();
    let mut counter = |name, help, value| snapshot.counter(name, help, &[], value);
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
}
