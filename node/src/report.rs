//! What clients are told about the server: memcached's `stats`, Redis's `INFO` and `CONFIG GET`.

use fonn_base::entry::Space;
use fonn_base::metrics::Label as _;
use fonn_base::size::ByteCount;
use fonn_server::Client;
use fonn_server::report::{self, Pairs, pair, process};
pub use fonn_server::report::{connection_line, connections, wants_section};

use crate::namespaces::Asked;
use crate::server::Shared;
use crate::stats::{Counter, Stats};

/// Gets of one key that found an entry, and those that found none, since the last reset.
fn hits_and_misses(stats: &Stats) -> (u64, u64) {
    let total = |of: &[(&str, Counter)]| of.iter().map(|(_, it)| stats.since_reset(*it)).sum();
    (total(&Counter::HITS), total(&Counter::MISSES))
}

/// `stats`, for a user with all rights.
#[must_use]
pub fn general(shared: &Shared) -> Pairs {
    let engine = &shared.service.engine;
    let stats = engine.stats();
    let ram = engine.ram();
    let counters = ram.stats().counters;
    let total = |counter| stats.since_reset(counter);
    let (hits, misses) = hits_and_misses(stats);
    let mut pairs = process(shared);
    pairs.extend([
        pair("curr_connections", shared.registry.len()),
        pair("max_connections", shared.connections_max),
        pair("get_hits", hits),
        pair("get_misses", misses),
    ]);
    pairs.extend(
        Counter::ALL
            .iter()
            .map(|counter| pair(counter.as_str(), total(*counter))),
    );
    pairs.extend([
        pair("limit_maxbytes", ram.budget()),
        pair("bytes", ram.used()),
        pair("curr_items", ram.len()),
        pair("evictions", counters.evictions),
        pair("evicted_unfetched", counters.evicted_unfetched),
        pair("expired", counters.expired),
        pair("inflight_bytes", shared.reserved_bytes()),
    ]);
    if let Some(disk) = engine.disk() {
        let usage = disk.usage();
        pairs.extend([
            pair("disk_limit_maxbytes", usage.budget_bytes),
            pair("disk_bytes", usage.bytes_on_disk),
            pair("disk_items", usage.entries_approx),
            pair("disk_generations", usage.generations),
            pair("disk_uncompacted_bytes", usage.uncompacted_bytes),
            pair("disk_queue_bytes", usage.queue_bytes),
        ]);
    }
    pairs
}

/// `stats`, for a user of one namespace: under the same names what is counted by
/// namespace, and nothing of the rest.
#[must_use]
pub fn of_namespace(shared: &Shared, namespace: u32) -> Pairs {
    let namespaces = shared.service.engine.namespaces();
    let mut pairs = process(shared);
    if let Some((hits, misses)) = reads(shared, namespace) {
        pairs.extend([
            pair("get_hits", hits),
            pair("get_misses", misses),
            pair("cmd_get", hits + misses),
        ]);
    }
    if let Some(stores) = namespaces.asked(namespace, Asked::Store) {
        pairs.push(pair("cmd_set", stores));
    }
    pairs.push(pair("curr_items", entries_in_ram(shared, namespace)));
    if let Some(quota) = namespaces.quota(namespace) {
        // They are counted where there is a quota to keep.
        let bytes = namespaces.disk_account(namespace).bytes;
        pairs.extend([
            pair("disk_limit_maxbytes", quota),
            pair("disk_bytes", bytes),
        ]);
    }
    pairs
}

/// Hits and misses of a namespace, if its requests are counted apart.
fn reads(shared: &Shared, namespace: u32) -> Option<(u64, u64)> {
    let namespaces = shared.service.engine.namespaces();
    let hits = namespaces.asked(namespace, Asked::Hit)?;
    Some((hits, namespaces.asked(namespace, Asked::Miss)?))
}

fn entries_in_ram(shared: &Shared, namespace: u32) -> usize {
    let ram = shared.service.engine.ram();
    Space::of_namespace(namespace)
        .map(|space| ram.len_of(space))
        .sum()
}

/// `stats items`, for a user of one namespace.
#[must_use]
pub fn items_of_namespace(shared: &Shared, namespace: u32) -> Pairs {
    vec![pair("items:1:number", entries_in_ram(shared, namespace))]
}

/// `stats items`: one class, since there are no slabs.
#[must_use]
pub fn items(shared: &Shared) -> Pairs {
    let ram = shared.service.engine.ram();
    let counters = ram.stats().counters;
    vec![
        pair("items:1:number", ram.len()),
        pair("items:1:mem_requested", ram.used()),
        pair("items:1:evicted", counters.evictions),
        pair("items:1:evicted_unfetched", counters.evicted_unfetched),
        pair("items:1:expired", counters.expired),
    ]
}

/// `CONFIG GET`.
#[must_use]
pub fn config(shared: &Shared, patterns: &[&[u8]]) -> Pairs {
    let engine = &shared.service.engine;
    let appendonly = if engine.disk().is_some() { "yes" } else { "no" };
    let own = [
        pair("maxmemory", engine.ram().budget()),
        pair("appendonly", appendonly),
    ];
    report::config(shared, own, patterns)
}

/// Entries of each database that has any.
pub async fn keyspace(shared: &Shared, namespace: u32) -> Vec<(u32, u64)> {
    let mut counts = Vec::new();
    for space in Space::of_namespace(namespace) {
        if let Ok(count @ 1..) = shared.service.engine.count_entries(space).await {
            counts.push((space.database(), count));
        }
    }
    counts
}

/// `INFO`; for a user of one namespace without the sections that are of the whole
/// node.
#[must_use]
pub fn info(
    shared: &Shared,
    client: Client<'_>,
    wanted: &[String],
    keyspace: &[(u32, u64)],
) -> String {
    let engine = &shared.service.engine;
    let stats = engine.stats();
    let total = |counter| stats.since_reset(counter);
    let rss = fonn_base::memory::resident().map_or(0, ByteCount::bytes);
    let mut sections = vec![(
        "Memory",
        vec![
            pair("used_memory", engine.ram().used()),
            pair("used_memory_rss", rss),
            pair("maxmemory", engine.ram().budget()),
            pair("maxmemory_policy", "allkeys-lru"),
        ],
    )];
    if !client.is_confined {
        let (hits, misses) = hits_and_misses(stats);
        let pairs = vec![
            pair("total_connections_received", total(Counter::Connections)),
            pair("rejected_connections", total(Counter::ConnectionsRejected)),
            pair("total_net_input_bytes", total(Counter::BytesRead)),
            pair("total_net_output_bytes", total(Counter::BytesWritten)),
            pair("keyspace_hits", hits),
            pair("keyspace_misses", misses),
            pair("keyspace_hits_ram", total(Counter::HitsRam)),
            pair("keyspace_hits_disk", total(Counter::HitsDisk)),
            pair("keyspace_hits_cold", total(Counter::HitsCold)),
            pair("evicted_keys", engine.ram().stats().counters.evictions),
        ];
        sections.push(("Stats", pairs));
    } else if let Some((hits, misses)) = reads(shared, client.space.namespace()) {
        let pairs = vec![pair("keyspace_hits", hits), pair("keyspace_misses", misses)];
        sections.push(("Stats", pairs));
    }
    if let Some(disk) = engine.disk() {
        let usage = disk.usage();
        let pairs = vec![
            pair("disk_bytes", usage.bytes_on_disk),
            pair("disk_budget", usage.budget_bytes),
            pair("disk_entries", usage.entries_approx),
            pair("disk_generations", usage.generations),
        ];
        sections.push(("Persistence", pairs));
    }
    // Clients that ask are answered as by a cluster, if only of this node.
    sections.push(("Cluster", vec![pair("cluster_enabled", 1)]));
    report::info(shared, client, wanted, sections, keyspace)
}
