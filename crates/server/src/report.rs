//! What a node and a router both tell about themselves: memcached's `stats`, Redis's `INFO` and
//! `CONFIG GET`.

use std::fmt::Write as _;

use fonn_base::clock::Clock;
use fonn_base::glob;
use fonn_proto::Space;

use super::{Client, Service, Shared};

/// Names and values.
pub type Pairs = Vec<(String, String)>;

/// Sections of `INFO` that tell a user of one namespace nothing.
const OF_ALL: [&str; 3] = ["Clients", "Memory", "Persistence"];

/// A name and a value.
pub fn pair(name: &str, value: impl ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

/// What `stats` says of the process.
#[must_use]
pub fn process<S>(shared: &Shared<S>) -> Pairs {
    vec![
        pair("pid", std::process::id()),
        pair("uptime", shared.started.elapsed().as_secs()),
        pair("time", Clock::system().wall_ms() / 1000),
        pair("version", env!("CARGO_PKG_VERSION")),
        pair("pointer_size", usize::BITS),
    ]
}

/// `stats conns`.
#[must_use]
pub fn connections<S>(shared: &Shared<S>) -> Pairs {
    let mut pairs = Vec::new();
    for it in shared.registry.list() {
        let state = match it.idle {
            true => "conn_waiting",
            false => "conn_parse_cmd",
        };
        pairs.extend([
            (format!("{}:addr", it.id), it.peer),
            (format!("{}:state", it.id), state.to_owned()),
            (format!("{}:protocol", it.id), it.dialect.to_owned()),
            pair(&format!("{}:secs_since_last_cmd", it.id), it.idle_s),
        ]);
    }
    pairs
}

/// What `CLIENT INFO` tells of a connection besides what its session knows.
#[must_use]
pub fn connection_line(client: Client<'_>) -> String {
    format!("addr={}", client.peer)
}

/// `CONFIG GET`: what clients look for under Redis's names, with what the program has of its `own`,
/// and the settings in force; of these, the pairs whose name matches a pattern.
#[must_use]
pub fn config<S: Service>(
    shared: &Shared<S>,
    own: [(String, String); 2],
    patterns: &[&[u8]],
) -> Pairs {
    let mut pairs = vec![
        pair("databases", Space::DATABASES),
        pair("maxclients", shared.connections_max),
        pair("maxmemory-policy", "allkeys-lru"),
        pair("proto-max-bulk-len", shared.value_len_max()),
        pair("timeout", 0),
        pair("save", ""),
    ];
    pairs.extend(own);
    let patterns: Vec<_> = patterns.iter().map(|it| it.to_ascii_lowercase()).collect();
    let is_asked_for = |name: &str| {
        let mut patterns = patterns.iter();
        patterns.any(|it| glob::matches(it, name.as_bytes()))
    };
    pairs.extend(shared.settings.pairs());
    pairs.retain(|(name, _)| is_asked_for(name));
    pairs
}

/// Whether `INFO` with these sections includes one.
#[must_use]
pub fn wants_section(sections: &[String], title: &str) -> bool {
    sections.is_empty()
        || sections.iter().any(|it| {
            it.eq_ignore_ascii_case(title)
                || ["all", "everything", "default"].contains(&it.as_str())
        })
}

/// `INFO` with the sections that are `wanted` and that the client may see: about the server and its
/// clients, `more`, and the `keyspace`: databases with their number of keys.
#[must_use]
pub fn info<S>(
    shared: &Shared<S>,
    client: Client<'_>,
    wanted: &[String],
    more: Vec<(&str, Pairs)>,
    keyspace: &[(u32, u64)],
) -> String {
    let uptime = shared.started.elapsed().as_secs();
    let server = vec![
        pair("redis_version", fonn_proto::resp::REDIS_VERSION),
        pair("fonn_version", env!("CARGO_PKG_VERSION")),
        pair("redis_mode", "standalone"),
        pair("process_id", std::process::id()),
        pair("uptime_in_seconds", uptime),
        pair("uptime_in_days", uptime / 86_400),
    ];
    let clients = vec![
        pair("connected_clients", shared.registry.len()),
        pair("maxclients", shared.connections_max),
    ];
    let replication = vec![pair("role", "master"), pair("connected_slaves", 0)];
    let keyspace = keyspace.iter().map(|(database, keys)| {
        let value = format!("keys={keys},expires=0,avg_ttl=0");
        (format!("db{database}"), value)
    });
    let mut sections = vec![
        ("Server", server),
        ("Clients", clients),
        ("Replication", replication),
    ];
    sections.extend(more);
    sections.push(("Keyspace", keyspace.collect()));
    let mut text = String::new();
    for (title, pairs) in sections {
        let is_told = !client.is_confined || !OF_ALL.contains(&title);
        if !is_told || !wants_section(wanted, title) {
            continue;
        }
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        // Writing to a string does not fail.
        let _ = write!(text, "# {title}\r\n");
        for (name, value) in pairs {
            let _ = write!(text, "{name}:{value}\r\n");
        }
    }
    text
}
