//! The admin port: metrics, health, readiness.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result};

use fonn_tests::client::Dialect;
use fonn_tests::node::{FonnNode, NodeOptions};

#[test]
fn health_readiness_and_unknown_pages_answer() -> Result<()> {
    let node = FonnNode::start()?;
    assert_eq!(node.http_get("/healthz")?.status, 200);
    assert_eq!(node.http_get("/readyz")?.status, 200);
    assert_eq!(node.http_get("/nothing-here")?.status, 404);
    Ok(())
}

/// Prometheus text format 0.0.4, and the naming rules of the project.
#[test]
fn metrics_are_well_formed() -> Result<()> {
    let node = FonnNode::start()?;
    for dialect in Dialect::ALL {
        let mut connection = dialect.connect(node.addr())?;
        connection.set("k", b"v", None)?;
        connection.get("k")?;
        connection.get("absent")?;
    }
    let reply = node.http_get("/metrics")?;
    assert_eq!(reply.status, 200);
    let (_, kind) = reply
        .headers
        .iter()
        .find(|(name, _)| name == "content-type")
        .context("no type")?;
    assert!(
        kind.starts_with("text/plain") && kind.contains("version=0.0.4"),
        "{kind}"
    );
    let (mut typed, mut helped, mut series) = (HashSet::new(), HashSet::new(), HashSet::new());
    for line in reply.body.lines() {
        let mut words = line.split(' ');
        match (words.next(), words.next()) {
            (Some("#"), Some("TYPE")) => {
                assert!(
                    typed.insert(words.next().context("TYPE of what")?),
                    "twice: {line}"
                );
            }
            (Some("#"), Some("HELP")) => {
                helped.insert(words.next().context("HELP on what")?);
                assert!(
                    words.next().is_some_and(|text| !text.is_empty()),
                    "empty: {line}"
                );
            }
            _ => {
                let (name, value) = line.rsplit_once(' ').context("a sample without a value")?;
                assert!(value.parse::<f64>().is_ok(), "not a number: {line}");
                assert!(series.insert(name), "twice: {name}");
                let family = name.split('{').next().unwrap_or(name);
                let base = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|suffix| family.strip_suffix(suffix))
                    .filter(|base| typed.contains(base))
                    .unwrap_or(family);
                assert!(
                    typed.contains(base) && helped.contains(base),
                    "undeclared: {line}"
                );
                assert!(
                    base.starts_with("fonn_") || base.starts_with("process_"),
                    "{line}"
                );
                assert!(
                    !name.contains("\"k\"") && !name.contains("127.0.0.1"),
                    "a label: {line}"
                );
            }
        }
    }
    assert!(series.len() > 30, "only {} series", series.len());
    Ok(())
}

#[test]
fn lookups_are_counted_by_where_they_were_answered() -> Result<()> {
    let mut node = FonnNode::start()?;
    let lookups = |node: &FonnNode, labels: &[&str]| -> Result<f64> {
        let text = node.http_get("/metrics")?.body;
        let samples = text.lines().filter(|line| {
            line.starts_with("fonn_") && labels.iter().all(|label| line.contains(label))
        });
        Ok(samples
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum())
    };
    let mut text = node.text()?;
    text.store("set k 0 0 1", b"v")?;
    for _ in 0..5 {
        text.items("get k")?;
    }
    for _ in 0..3 {
        text.items("get absent")?;
    }
    assert_eq!(
        lookups(&node, &["fonn_hits_total{", "tier=\"ram\""])? as u64,
        5
    );
    assert_eq!(lookups(&node, &["fonn_misses_total{"])? as u64, 3);
    node.stop()?;
    node.start_again()?;
    node.text()?.items("get k")?;
    assert_eq!(
        lookups(&node, &["fonn_hits_total{", "tier=\"disk\""])? as u64,
        1
    );
    node.text()?.items("get k")?;
    assert_eq!(
        lookups(&node, &["fonn_hits_total{", "tier=\"ram\""])? as u64,
        1,
        "promoted"
    );
    Ok(())
}

#[test]
fn the_banner_and_the_log_tell_what_was_started() -> Result<()> {
    let mut node = NodeOptions::new().flag("--codec", "fresh=none").start()?;
    let (client, admin) = (node.addr().to_string(), node.admin().to_string());
    let parts = [
        client.as_str(),
        &admin,
        env!("CARGO_PKG_VERSION"),
        "batched",
        "256",
        "2",
    ];
    // The node is ready before its banner has come through the pipe.
    let daemon = node.daemon()?;
    let log = daemon.log();
    let complete = || parts.iter().all(|part| log.text().contains(part));
    daemon.wait_until("a banner with all parts", Duration::from_secs(60), complete)?;
    let loud = |line: &&String| line.contains("WARN") || line.contains("ERROR");
    node.text()?.store("set k 0 0 1", b"v")?;
    let log = node.daemon()?.log().lines();
    assert_eq!(log.iter().find(loud), None, "a quiet life logs no warning");
    Ok(())
}
