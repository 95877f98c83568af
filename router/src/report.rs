//! What clients are told about the router and its cluster: `stats`, `INFO`, `CONFIG GET`.

use fonn_proto::request::ServerOutcome;
use fonn_server::report::{self, Pairs, pair, process};
pub use fonn_server::report::{connection_line, connections, wants_section};
use fonn_server::{Budget as _, Client, Service as _};

use crate::service::Shared;

/// Statistics of one process: sums of them would say nothing.
const OF_ONE: [&str; 7] = [
    "pid",
    "uptime",
    "time",
    "version",
    "pointer_size",
    "curr_connections",
    "max_connections",
];

/// The sums of what members count, by name and in the order of the first.
pub fn sum(answers: impl Iterator<Item = ServerOutcome>) -> Pairs {
    let mut sums: Vec<(String, u64)> = Vec::new();
    for answer in answers {
        let ServerOutcome::Pairs(pairs) = answer else {
            continue;
        };
        for (at, (name, value)) in pairs.into_iter().enumerate() {
            let Ok(value) = value.parse::<u64>() else {
                continue;
            };
            if OF_ONE.contains(&name.as_str()) {
                continue;
            }
            // Members of one version say the same in the same order.
            let place = match sums.get(at) {
                Some((known, _)) if *known == name => Some(at),
                _ => sums.iter().position(|(known, _)| *known == name),
            };
            match place.and_then(|place| sums.get_mut(place)) {
                Some((_, sum)) => *sum = sum.saturating_add(value),
                None => sums.push((name, value)),
            }
        }
    }
    let text = |(name, sum): (String, u64)| (name, sum.to_string());
    sums.into_iter().map(text).collect()
}

/// `stats`: of the router itself, and the sums over the members; for a user of one
/// namespace only these of the router's clients.
pub fn general(
    shared: &Shared,
    client: Client<'_>,
    answers: impl Iterator<Item = ServerOutcome>,
) -> Pairs {
    let topology = shared.service.map().topology();
    let topology = topology.as_deref();
    let members = topology.map_or(&[][..], |it| it.members());
    let mut pairs = process(shared);
    if !client.is_confined {
        pairs.extend([
            pair("curr_connections", shared.registry.len()),
            pair("max_connections", shared.connections_max),
        ]);
    }
    pairs.extend([
        pair("map_epoch", shared.service.map().epoch()),
        pair("members", members.len()),
        pair(
            "members_serving",
            members.iter().filter(|it| it.state.is_serving()).count(),
        ),
    ]);
    pairs.extend(sum(answers));
    pairs
}

/// `stats items`, for a user of one namespace.
pub fn items_of_namespace(answers: impl Iterator<Item = ServerOutcome>) -> Pairs {
    let stats = sum(answers);
    let entries = stats.into_iter().find(|(name, _)| name == "curr_items");
    entries
        .map(|(_, count)| pair("items:1:number", count))
        .into_iter()
        .collect()
}

/// `CONFIG GET`.
pub fn config(shared: &Shared, patterns: &[&[u8]]) -> Pairs {
    let own = [
        pair("maxmemory", shared.service.budget().bytes_max()),
        pair("appendonly", "no"),
    ];
    report::config(shared, own, patterns)
}

/// `INFO`, with sums over the members for what they count: of all, or of the client's namespace.
pub fn info(
    shared: &Shared,
    sections: &[String],
    stats: &Pairs,
    client: Client<'_>,
    keys: i64,
) -> String {
    let stat = |name: &str| {
        let found = stats.iter().find(|(known, _)| known == name);
        found.map_or("0", |(_, value)| value.as_str())
    };
    let reads = vec![
        pair("keyspace_hits", stat("get_hits")),
        pair("keyspace_misses", stat("get_misses")),
    ];
    let topology = shared.service.map().topology();
    let members = topology.as_deref().map_or(&[][..], |it| it.members());
    let mut cluster = vec![pair("cluster_enabled", 1), pair("members", members.len())];
    for (at, member) in members.iter().enumerate() {
        let state = member.state.name();
        let value = format!(
            "id={},addr={},state={state}",
            member.id, member.client_address
        );
        cluster.push((format!("member{at}"), value));
    }
    let more = vec![
        (
            "Memory",
            vec![
                pair("used_memory", stat("bytes")),
                pair("maxmemory", stat("limit_maxbytes")),
                pair("maxmemory_policy", "allkeys-lru"),
            ],
        ),
        (
            "Stats",
            match client.is_confined {
                true => reads,
                false => [reads, vec![pair("evicted_keys", stat("evictions"))]].concat(),
            },
        ),
        ("Cluster", cluster),
    ];
    let keyspace = match u64::try_from(keys) {
        Ok(keys @ 1..) => vec![(client.space.database(), keys)],
        _ => Vec::new(),
    };
    report::info(shared, client, sections, more, &keyspace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_members_count_is_summed_by_name() {
        let pairs = |pairs: &[(&str, &str)]| {
            ServerOutcome::Pairs(
                pairs
                    .iter()
                    .map(|(name, value)| pair(name, value))
                    .collect(),
            )
        };
        let answers = [
            pairs(&[
                ("pid", "7"),
                ("get_hits", "2"),
                ("cmd_set", "1"),
                ("mode", "x"),
            ]),
            pairs(&[("get_hits", "3"), ("new", "1"), ("cmd_set", "4")]),
            ServerOutcome::Done,
        ];
        assert_eq!(
            sum(answers.into_iter()),
            [pair("get_hits", 5), pair("cmd_set", 5), pair("new", 1)]
        );
    }
}
