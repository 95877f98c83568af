//! The node's metrics: read from the tiers' own counters at each scrape.

mod cluster;
mod cold;
mod disk;
mod namespaces;

use std::sync::Arc;

use fonn_base::metrics::{Metrics, Snapshot};
use fonn_codec::registry;
use fonn_cold_tier::store::Opened;
use fonn_disk_tier::levels::LevelCodec;
use fonn_proto::Failure;
use fonn_proto::session::Dialect;

use crate::server::Shared;
use crate::stats::Counter;
use fonn_membership::Cluster;

const GET_DURATION: &str = "fonn_tier_get_duration_seconds";
const GET_DURATION_HELP: &str =
    "Time of gets by the tier that answered; RAM's is within fonn_request_duration_seconds.";

/// Publishes everything about a node, and its bucket if it has one.
pub fn register(metrics: &Metrics, shared: &Arc<Shared>, bucket: Option<Opened>) {
    let shared = Arc::clone(shared);
    metrics.on_scrape(move |snapshot| {
        requests(snapshot, &shared);
        ram(snapshot, &shared);
        connections(snapshot, &shared);
        self::namespaces::namespaces(snapshot, &shared.service.engine);
        codecs(snapshot, shared.service.engine.ram_codec());
        if let Some(bucket) = &bucket {
            bucket.collect(snapshot);
        }
        if let Some(cold) = shared.service.engine.cold() {
            self::cold::cold(snapshot, cold);
            codecs(snapshot, cold.codec());
            snapshot.histogram(
                GET_DURATION,
                GET_DURATION_HELP,
                &[("tier", "cold")],
                &shared.service.engine.cold_get_latency.sum(),
            );
        }
        if let Some(disk) = shared.service.engine.disk() {
            self::disk::disk(snapshot, disk);
            codecs(snapshot, disk.fresh());
            codecs(snapshot, disk.compacted());
            snapshot.histogram(
                GET_DURATION,
                GET_DURATION_HELP,
                &[("tier", "disk")],
                &shared.service.engine.disk_get_latency.sum(),
            );
        }
    });
}

/// Publishes how the node stands in its cluster.
pub fn register_cluster(metrics: &Metrics, cluster: &Cluster) {
    let cluster = cluster.clone();
    metrics.on_scrape(move |snapshot| self::cluster::cluster(snapshot, &cluster));
}

fn requests(snapshot: &mut Snapshot, shared: &Shared) {
    let stats = shared.service.engine.stats();
    let help = "Gets of one key that found an entry, by the tier that had it.";
    for (tier, counter) in Counter::HITS {
        snapshot.counter(
            "fonn_hits_total",
            help,
            &[("tier", tier)],
            stats.total(counter),
        );
    }
    let help = "Gets of one key that found no entry, by reason.";
    for (reason, counter) in Counter::MISSES {
        snapshot.counter(
            "fonn_misses_total",
            help,
            &[("reason", reason)],
            stats.total(counter),
        );
    }
    let help = "Commands on keys, by kind.";
    let sum = |counters: &[Counter]| counters.iter().map(|it| stats.total(*it)).sum();
    for (command, counters) in [
        ("get", &[Counter::CmdGet][..]),
        ("store", &[Counter::CmdSet]),
        ("touch", &[Counter::CmdTouch]),
        ("flush", &[Counter::CmdFlush]),
        ("delete", &[Counter::DeleteHits, Counter::DeleteMisses]),
        (
            "arithmetic",
            &[
                Counter::IncrHits,
                Counter::IncrMisses,
                Counter::DecrHits,
                Counter::DecrMisses,
            ],
        ),
    ] {
        snapshot.counter(
            "fonn_commands_total",
            help,
            &[("command", command)],
            sum(counters),
        );
    }
    snapshot.gauge(
        "fonn_purges_in_force",
        "Purges by writer that hide entries; a node refuses more than 256.",
        &[],
        shared.service.engine.purges_in_force() as f64,
    );
    let help = "Commands that were refused, by reason.";
    for failure in Failure::ALL {
        let counter = match failure {
            Failure::Busy => Counter::Busy,
            Failure::OutOfSpace => Counter::StoreNoSpace,
            Failure::TooLarge => Counter::StoreTooLarge,
            Failure::Unavailable => Counter::Unavailable,
            Failure::ReadOnly => Counter::ReadOnly,
            Failure::AuthRequired => Counter::AuthRequired,
        };
        let labels = [("reason", failure.label())];
        snapshot.counter("fonn_refusals_total", help, &labels, stats.total(counter));
    }
    snapshot.counter(
        "fonn_authentication_failures_total",
        "Attempts to log in that were refused: a wrong user name or password, an unknown or expired token, or too many that wait.",
        &[],
        stats.total(Counter::AuthErrors),
    );
    let help = "Time from the arrival of a request to its reply, waiting for tiers and disk included; \
                requests that arrived together count with the mean of their batch.";
    for (dialect, latency) in Dialect::ALL.iter().zip(&shared.latency) {
        let labels = [("protocol", dialect.name())];
        snapshot.histogram(
            "fonn_request_duration_seconds",
            help,
            &labels,
            &latency.sum(),
        );
    }
}

fn ram(snapshot: &mut Snapshot, shared: &Shared) {
    let stats = shared.service.engine.ram().stats();
    let mut gauge = |name, help, value: usize| snapshot.gauge(name, help, &[], value as f64);
    gauge(
        "fonn_ram_budget_bytes",
        "Bytes that the RAM tier may take.",
        stats.budget_bytes,
    );
    gauge(
        "fonn_ram_used_bytes",
        "Bytes that the RAM tier takes, everything counted.",
        stats.used_bytes,
    );
    gauge(
        "fonn_ram_entries",
        "Entries in RAM, expired ones included.",
        stats.entries,
    );
    gauge(
        "fonn_ram_tombstones",
        "Deletes in RAM that the disk does not have yet.",
        stats.tombstones,
    );
    gauge(
        "fonn_ram_dirty_entries",
        "Entries in RAM that the disk does not have yet.",
        stats.dirty,
    );
    gauge(
        "fonn_receiving_bytes",
        "Bytes reserved for large requests that are arriving.",
        shared.reserved_bytes(),
    );
    gauge(
        "fonn_ram_withheld_bytes",
        "Bytes of the RAM budget that entries may not use, because the process is larger than it should be.",
        shared.service.engine.withheld(),
    );
    let counters = stats.counters;
    let mut counter = |name, help, value| snapshot.counter(name, help, &[], value);
    counter(
        "fonn_ram_evictions_total",
        "Entries evicted from RAM.",
        counters.evictions,
    );
    counter(
        "fonn_ram_evictions_unfetched_total",
        "Entries evicted from RAM without a read.",
        counters.evicted_unfetched,
    );
    counter(
        "fonn_ram_evicted_bytes_total",
        "Bytes freed by evictions.",
        counters.evicted_bytes,
    );
    counter(
        "fonn_ram_expired_total",
        "Entries removed from RAM because they expired.",
        counters.expired,
    );
}

fn connections(snapshot: &mut Snapshot, shared: &Shared) {
    let stats = shared.service.engine.stats();
    let open = shared.registry.len() as f64;
    snapshot.gauge("fonn_connections", "Client connections.", &[], open);
    let limit = shared.connections_max as f64;
    snapshot.gauge(
        "fonn_connections_limit",
        "Client connections at most.",
        &[],
        limit,
    );
    snapshot.gauge(
        "fonn_unsent_bytes",
        "Bytes of replies that clients do not read yet.",
        &[],
        shared.unsent_bytes() as f64,
    );
    let mut counter = |name, help, counter| snapshot.counter(name, help, &[], stats.total(counter));
    counter(
        "fonn_connections_total",
        "Client connections accepted.",
        Counter::Connections,
    );
    counter(
        "fonn_connections_rejected_total",
        "Client connections closed because there were too many, or too many that had not logged in.",
        Counter::ConnectionsRejected,
    );
    counter(
        "fonn_connections_stalled_total",
        "Client connections closed because the client stopped in the middle of a request, did not read, or did not finish its TLS handshake and login in time.",
        Counter::ConnectionsStalled,
    );
    counter(
        "fonn_protocol_errors_total",
        "Client connections closed because of what they sent.",
        Counter::ProtocolErrors,
    );
    counter(
        "fonn_connection_panics_total",
        "Client connections closed because serving them panicked: a bug.",
        Counter::ConnectionPanics,
    );
    counter(
        "fonn_received_bytes_total",
        "Bytes received from clients.",
        Counter::BytesRead,
    );
    counter(
        "fonn_sent_bytes_total",
        "Bytes sent to clients.",
        Counter::BytesWritten,
    );
}

/// What the codecs of a level have done. Bytes out by bytes in is the ratio.
fn codecs(snapshot: &mut Snapshot, level: &LevelCodec) {
    let name = level.level().name();
    let active = level.active().0.to_string();
    snapshot.gauge(
        "fonn_codec_active",
        "1 for the codec that values get at this level now.",
        &[("level", name), ("codec", &active)],
        1.0,
    );
    for codec in registry::all() {
        let used = level.meter().of(codec.id().as_u8());
        let labels = [("level", name), ("codec", codec.name())];
        snapshot.counter(
            "fonn_codec_values_total",
            "Values encoded, by level and by the codec that they ended with; none: attempts that did not shrink, too.",
            &labels,
            used.values,
        );
        snapshot.counter(
            "fonn_codec_bytes_in_total",
            "Bytes of these values.",
            &labels,
            used.bytes_in,
        );
        snapshot.counter(
            "fonn_codec_bytes_out_total",
            "Bytes that they are stored in, frame headers included.",
            &labels,
            used.bytes_out,
        );
        snapshot.counter_f64(
            "fonn_codec_cpu_seconds_total",
            "Processor time of codecs, for compacted values also of decoding their former frames; none: of attempts in vain. Values below 64 KiB are measured one of sixteen times, looks at values that no codec is tried on are not.",
            &labels,
            used.cpu.as_secs_f64(),
        );
    }
    snapshot.counter(
        "fonn_codec_unlooked_values_total",
        "Values stored as they are without a look, since many of about their length before them did not shrink.",
        &[("level", name)],
        level.meter().unlooked(),
    );
    for (reason, count) in level.changes() {
        snapshot.counter(
            "fonn_codec_changes_total",
            "Codecs that `auto` changed, by level and reason.",
            &[("level", name), ("reason", reason)],
            count,
        );
    }
}
