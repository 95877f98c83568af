//! Metrics of the cold tier.

use fonn_base::metrics::Snapshot;

use crate::cold::{Cold, TakeoverStatus};

pub(super) fn cold(snapshot: &mut Snapshot, cold: &Cold) {
    let status = cold.tier().status();
    let mut gauge = |name, help, value: f64| snapshot.gauge(name, help, &[], value);
    let flag = |is: bool| f64::from(u8::from(is));
    gauge(
        "fonn_cold_index_ready",
        "1 when everything that the bucket has is found; before that what only it has may be a miss.",
        flag(status.ready),
    );
    gauge(
        "fonn_cold_index_failed",
        "1 when the local index of the bucket failed: reads from the bucket miss until a restart.",
        flag(status.index_failed),
    );
    gauge(
        "fonn_cold_index_entries",
        "Entries of the local index of the bucket, about; tombstones too.",
        status.entries as f64,
    );
    gauge(
        "fonn_cold_segments",
        "Segments in the bucket, of all nodes and regions.",
        status.segments as f64,
    );
    gauge(
        "fonn_cold_segment_bytes",
        "Bytes of segments in the bucket, of all nodes and regions.",
        status.bytes as f64,
    );
    gauge(
        "fonn_cold_live_bytes",
        "Of these, bytes of records that count.",
        status.live_bytes as f64,
    );
    gauge(
        "fonn_cold_region_bytes",
        "Bytes of this region's segments.",
        status.region_bytes as f64,
    );
    if let Some(budget) = status.region_budget_bytes {
        gauge(
            "fonn_cold_budget_bytes",
            "Bytes that this region's segments may take at present: its part of --cold-budget.",
            budget as f64,
        );
    }
    gauge(
        "fonn_cold_unspilled_entries",
        "Entries that are not in the bucket yet, about: lost if the machine dies now.",
        status.backlog.entries as f64,
    );
    gauge(
        "fonn_cold_unspilled_bytes",
        "Bytes of value logs that are not in the bucket yet: lost if the machine dies now.",
        status.backlog.bytes as f64,
    );
    gauge(
        "fonn_cold_unspilled_seconds",
        "Age of the oldest entry that is not in the bucket yet.",
        status.backlog_age.as_secs_f64(),
    );
    gauge(
        "fonn_cold_memory_bytes",
        "Bytes of segments and reads on their way to and from the bucket.",
        (status.upload_memory_bytes + status.read_memory_bytes) as f64,
    );
    gauge(
        "fonn_cold_collecting",
        "1 on the node that collects the garbage of its region.",
        flag(status.is_collector),
    );
    counters(snapshot, &status.counts);
    takeovers(snapshot, cold.takeovers().status());
}

fn takeovers(snapshot: &mut Snapshot, status: TakeoverStatus) {
    snapshot.gauge(
        "fonn_cold_takeover_slots",
        "Slots of lost members of which the bucket may have more than this node knows, until their segments are followed.",
        &[],
        status.slots as f64,
    );
    let help = "Lookups that waited for the segments of a lost member, by whether these were known in time.";
    for (result, count) in [("caught_up", status.waited), ("deadline", status.gave_up)] {
        let labels = [("result", result)];
        snapshot.counter("fonn_cold_takeover_waits_total", help, &labels, count);
    }
}

fn counters(snapshot: &mut Snapshot, counts: &fonn_cold_tier::Counts) {
    let help = "Reads from the bucket, by what came of them.";
    for (result, count) in [
        ("hit", counts.hits),
        ("gone", counts.gone),
        ("damaged", counts.damaged),
        ("unsupported", counts.unsupported),
        ("deadline", counts.deadline),
        ("unavailable", counts.unavailable),
    ] {
        snapshot.counter("fonn_cold_reads_total", help, &[("result", result)], count);
    }
    counts.collect(snapshot);
}
