//! `cargo xtask metrics-list`: the tables of docs/metrics.md, from what a node and a router
//! publish.
//!
//! A store with all tiers is opened in a temporary directory and scraped once, and so is a router
//! that has no members, so the list cannot forget a metric: where its tier is, each is there from
//! the start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fonn_auth::{Namespace, Security};
use fonn_base::clock::Clock;
use fonn_base::config::InForce;
use fonn_base::metrics::{Metrics, process};
use fonn_base::release::Release;
use fonn_base::size::{Budget, ByteCount};
use fonn_base::tasks::Tasks;
use fonn_forward::Map;
use fonn_gateway::{ToolsReport, mount};
use fonn_membership::{self as membership, Cluster};
use fonn_node::config::{self, ColdBudget, Settings};
use fonn_node::engine::Engine;
use fonn_node::{cli, replication, server};
use fonn_router::follow::Follower;
use fonn_rpc::PeerMetrics;

use crate::generated::{File, fill, table};

/// What is written.
pub const FILES: [File; 1] = [File {
    path: "docs/metrics.md",
    make,
}];

fn make(old: &str) -> Result<String> {
    let node = families(&scrape()?)?;
    let mut router = families(&scrape_router()?)?;
    // What a router has beside its own is what members have: of the process, and of requests to
    // members.
    router.retain(|name, _| !node.contains_key(name));
    let text = fill(old, "metrics", &listed(node))?;
    fill(&text, "metrics of routers", &listed(router))
}

fn listed(families: BTreeMap<String, Family>) -> String {
    let rows = families.into_iter().map(|(name, family)| {
        let labels: Vec<String> = family
            .labels
            .into_iter()
            .map(|(label, values)| {
                let values: Vec<String> = values.iter().map(|it| format!("`{it}`")).collect();
                format!("`{label}`: {}", values.join(" "))
            })
            .collect();
        [
            format!("`{name}`"),
            family.kind,
            labels.join("; "),
            family.help,
        ]
    });
    table(["name", "type", "labels", "meaning"], rows)
}

/// What a router answers at `/metrics`, directly after its start.
fn scrape_router() -> Result<String> {
    let config = fonn_router::config::resolve(fonn_router::config::Settings {
        cluster: vec!["127.0.0.1:11290".parse().map_err(anyhow::Error::msg)?],
        ..fonn_router::config::Settings::default()
    })?;
    let metrics = Metrics::new();
    process::register(&metrics, &Clock::system());
    let map = Arc::new(Map::default());
    let follower = Follower::new(Arc::clone(&map), Vec::new(), None, None);
    let shared = fonn_router::cli::shared(
        &config,
        InForce::default(),
        &Release::this(),
        Security::default(),
        &map,
        &metrics,
    );
    fonn_router::metrics::register(&metrics, &shared, &follower);
    mount::front(&shared, &config.common, &metrics, &ToolsReport::new(None));
    metrics.render().context("rendering")
}

/// What a node answers at `/metrics`, directly after its start.
fn scrape() -> Result<String> {
    let dir = tempfile::tempdir().context("making a data directory")?;
    let bucket = format!("file://{}", dir.path().join("bucket").display());
    let config = config::resolve(Settings {
        data_dir: Some(dir.path().join("data")),
        ram_budget: Some(Budget::Bytes(ByteCount::mib(64))),
        disk_budget: Some(ByteCount::mib(256)),
        cold_tier: Some(bucket.parse().map_err(anyhow::Error::msg)?),
        cold_budget: Some(ColdBudget(Some(ByteCount::mib(256)))),
        ..Settings::default()
    })?;
    let clock = Clock::system();
    let metrics = Metrics::new();
    process::register(&metrics, &clock);
    fonn_auth::metrics::register(&metrics, None);
    fonn_auth::metrics::register_certificate(&metrics, None);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (options, bucket) = runtime.block_on(cli::engine_options(&config, clock.clone()))?;
    let engine = Engine::open(options).context("opening a store")?;
    // A quota has figures of its own.
    engine.namespaces().set([Arc::new(Namespace {
        name: "default".into(),
        number: 0,
        quota: Some(ByteCount::new(1 << 30)),
        base: None,
        is_write_once: false,
        ttl: None,
    })]);
    let shared = server::Shared::new(server::Tiers::alone(engine.clone()), config.pairs(), 1);
    fonn_node::metrics::register(&metrics, &shared, bucket);
    mount::front(&shared, &config.common, &metrics, &ToolsReport::new(None));
    let text = runtime.block_on(async {
        let member = membership::Options::new(
            "a",
            membership::Start::Bootstrap,
            ([127, 0, 0, 1], 0).into(),
            "127.0.0.1:11211",
            dir.path().join("data/raft"),
        );
        let tasks = Tasks::new();
        let member = Cluster::start(member, &tasks).await?;
        fonn_node::metrics::register_cluster(&metrics, &member);
        let peers = PeerMetrics::register(&metrics);
        let peers = replication::follow::Peers {
            version: Release::this().peer_version,
            metrics: peers,
        };
        let started = replication::follow::start(&member, &engine, clock, peers, &tasks);
        replication::metrics::register(&metrics, &started);
        let text = metrics.render().context("rendering")?;
        member.stop().await;
        anyhow::Ok(text)
    })?;
    engine.close(std::time::Duration::from_secs(5));
    Ok(text)
}

#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// Reads the Prometheus text format as far as the encoder of this project uses it.
fn families(text: &str) -> Result<BTreeMap<String, Family>> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    // Samples come directly behind the comments on their family.
    let mut current = String::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').context("a help without text")?;
            name.clone_into(&mut current);
            help.clone_into(&mut families.entry(name.to_owned()).or_default().help);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').context("a type without name")?;
            kind.clone_into(&mut families.entry(name.to_owned()).or_default().kind);
        } else {
            ensure!(line.starts_with(&current), "a sample without help: {line}");
            let family = families.entry(current.clone()).or_default();
            let labels = line.split_once('{').and_then(|(_, it)| it.split_once('}'));
            for label in labels.map_or("", |(labels, _)| labels).split("\",") {
                match label.split_once("=\"") {
                    Some((name, value)) if name != "le" => {
                        let values = family.labels.entry(name.to_owned()).or_default();
                        values.insert(value.trim_end_matches('"').to_owned());
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(families)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_metrics_is_what_a_node_publishes() {
        FILES[0].assert_up_to_date();
    }

    #[test]
    fn names_and_labels_keep_the_rules() {
        let router = families(&scrape_router().unwrap()).unwrap();
        let node = families(&scrape().unwrap()).unwrap();
        for (name, family) in node.into_iter().chain(router) {
            assert!(
                name.starts_with("fonn_") || name.starts_with("process_"),
                "{name}"
            );
            assert_eq!(family.kind == "counter", name.ends_with("_total"), "{name}");
            assert!(family.help.ends_with('.'), "{name}: {}", family.help);
        }
    }

    #[test]
    fn labels_are_collected_over_all_samples_of_a_family() {
        let text = "# HELP a Help with words.\n# TYPE a histogram\n\
                    a_bucket{tier=\"ram\",le=\"1\"} 1\na_sum{tier=\"disk\"} 2\n\
                    # HELP b_total More.\n# TYPE b_total counter\nb_total 3\n";
        let families = families(text).unwrap();
        assert_eq!(families.len(), 2);
        let a = &families["a"];
        assert_eq!(
            (a.kind.as_str(), a.help.as_str()),
            ("histogram", "Help with words.")
        );
        assert_eq!(format!("{:?}", a.labels), r#"{"tier": {"disk", "ram"}}"#);
        assert!(families["b_total"].labels.is_empty());
    }
}
