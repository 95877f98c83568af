//! What clients are told about the server: memcached's `stats`, Redis's `INFO` and `CONFIG GET`.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use fonn_base::entry::Space;
use fonn_base::size::ByteCount;
use fonn_server::Client;

use crate::namespaces::Asked;
use crate::server::Shared;
use crate::stats::{Counter, Stats};

type Pairs = Vec<(String, String)>;

fn pair(name: &str, value: impl ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

/// What `stats` says of the process.
fn process(shared: &Shared) -> Pairs {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    vec![
        pair("pid", std::process::id()),
        pair("uptime", shared.started.elapsed().as_secs()),
        pair("time", now),
        pair("version", env!("CARGO_PKG_VERSION")),
        pair("pointer_size", usize::BITS),
    ]
}

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
            .map(|counter| pair(counter.label(), total(*counter))),
    );
    pairs.extend([
        pair("limit_maxbytes", ram.budget()),
        pair("bytes", ram.used()),
        pair("curr_items", ram.len()),
        pair("evictions", counters.evictions),
        pair("evicted_unfetched", counters.evicted_unfetched),
        pair("expired", counters.expired),
        pair("inflight_bytes", engine.inflight()),
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
pub fn of_namespace(shared: &Shared, namespace: u16) -> Pairs {
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
fn reads(shared: &Shared, namespace: u16) -> Option<(u64, u64)> {
    let namespaces = shared.service.engine.namespaces();
    let hits = namespaces.asked(namespace, Asked::Hit)?;
    Some((hits, namespaces.asked(namespace, Asked::Miss)?))
}

fn entries_in_ram(shared: &Shared, namespace: u16) -> usize {
    let ram = shared.service.engine.ram();
    Space::of_namespace(namespace)
        .map(|space| ram.len_of(space))
        .sum()
}

/// `stats items`, for a user of one namespace.
#[must_use]
pub fn items_of_namespace(shared: &Shared, namespace: u16) -> Pairs {
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

/// `stats conns`.
#[must_use]
pub fn connections(shared: &Shared) -> Pairs {
    let mut pairs = Vec::new();
    for it in shared.registry.list() {
        pairs.push((format!("{}:addr", it.id), it.peer));
        let state = if it.idle {
            "conn_waiting"
        } else {
            "conn_parse_cmd"
        };
        pairs.push((format!("{}:state", it.id), state.to_owned()));
        pairs.push((format!("{}:protocol", it.id), it.dialect.to_owned()));
        pairs.push((
            format!("{}:secs_since_last_cmd", it.id),
            it.idle_s.to_string(),
        ));
    }
    pairs
}

/// `CLIENT INFO`.
#[must_use]
pub fn connection_line(client: Client<'_>) -> String {
    format!("id={} addr={}", client.id, client.peer)
}

/// `CONFIG GET`: the node's own settings, and under Redis's names what clients look for.
#[must_use]
pub fn config(shared: &Shared, patterns: &[&[u8]]) -> Pairs {
    let mut all = vec![
        pair("maxmemory", shared.service.engine.ram().budget()),
        pair("maxmemory-policy", "allkeys-lru"),
        pair("databases", Space::DATABASES),
        pair("maxclients", shared.connections_max),
        pair("proto-max-bulk-len", shared.value_len_max()),
        pair("timeout", 0),
        pair("save", ""),
        pair(
            "appendonly",
            if shared.service.engine.disk().is_some() {
                "yes"
            } else {
                "no"
            },
        ),
    ];
    all.extend(shared.settings.pairs());
    all.retain(|(name, _)| {
        patterns
            .iter()
            .any(|it| fonn_base::glob::matches(&it.to_ascii_lowercase(), name.as_bytes()))
    });
    all
}

/// Whether `INFO` with these sections includes one.
#[must_use]
pub fn wants_section(sections: &[String], section: &str) -> bool {
    sections.is_empty()
        || sections
            .iter()
            .any(|it| it == section || it == "all" || it == "everything" || it == "default")
}

/// Entries of each database that has any.
pub async fn keyspace(shared: &Shared, namespace: u16) -> Vec<(u16, u64)> {
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
    sections: &[String],
    keyspace: &[(u16, u64)],
) -> String {
    let engine = &shared.service.engine;
    let stats = engine.stats();
    let total = |counter| stats.since_reset(counter);
    let (hits, misses) = hits_and_misses(stats);
    let uptime = shared.started.elapsed().as_secs();
    let rss = fonn_base::memory::resident().map_or(0, ByteCount::bytes);
    let table: [(&str, &str, Pairs); 5] = [
        (
            "server",
            "Server",
            vec![
                pair("redis_version", fonn_proto::resp::REDIS_VERSION),
                pair("fonn_version", env!("CARGO_PKG_VERSION")),
                pair("redis_mode", "standalone"),
                pair("process_id", std::process::id()),
                pair("uptime_in_seconds", uptime),
                pair("uptime_in_days", uptime / 86_400),
            ],
        ),
        (
            "clients",
            "Clients",
            vec![
                pair("connected_clients", shared.registry.len()),
                pair("maxclients", shared.connections_max),
            ],
        ),
        (
            "memory",
            "Memory",
            vec![
                pair("used_memory", engine.ram().used()),
                pair("used_memory_rss", rss),
                pair("maxmemory", engine.ram().budget()),
                pair("maxmemory_policy", "allkeys-lru"),
            ],
        ),
        (
            "stats",
            "Stats",
            vec![
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
            ],
        ),
        (
            "replication",
            "Replication",
            vec![pair("role", "master"), pair("connected_slaves", 0)],
        ),
    ];
    let mut text = String::new();
    for (name, title, pairs) in table {
        let pairs = match name {
            _ if !client.is_confined => Some(pairs),
            "clients" | "memory" => None,
            "stats" => reads(shared, client.space.namespace()).map(|(hits, misses)| {
                vec![pair("keyspace_hits", hits), pair("keyspace_misses", misses)]
            }),
            _ => Some(pairs),
        };
        if let Some(pairs) = pairs
            && wants_section(sections, name)
        {
            put_section(&mut text, title, pairs);
        }
    }
    if let Some(disk) = engine.disk()
        && !client.is_confined
        && wants_section(sections, "persistence")
    {
        let usage = disk.usage();
        let pairs = vec![
            pair("disk_bytes", usage.bytes_on_disk),
            pair("disk_budget", usage.budget_bytes),
            pair("disk_entries", usage.entries_approx),
            pair("disk_generations", usage.generations),
        ];
        put_section(&mut text, "Persistence", pairs);
    }
    if wants_section(sections, "cluster") {
        // Clients that ask are answered as by a cluster, if only of this node.
        put_section(&mut text, "Cluster", vec![pair("cluster_enabled", 1)]);
    }
    if wants_section(sections, "keyspace") {
        let rows = keyspace.iter().map(|(database, keys)| {
            (
                format!("db{database}"),
                format!("keys={keys},expires=0,avg_ttl=0"),
            )
        });
        put_section(&mut text, "Keyspace", rows.collect());
    }
    text
}

fn put_section(text: &mut String, title: &str, pairs: Pairs) {
    if !text.is_empty() {
        text.push_str("\r\n");
    }
    // Writing to a string does not fail.
    let _ = write!(text, "# {title}\r\n");
    for (name, value) in pairs {
        let _ = write!(text, "{name}:{value}\r\n");
    }
}
