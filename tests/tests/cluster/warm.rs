//! `fonnctl warm` in a cluster: of each member, through one address.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use fonn_tests::client::Dialect;
use fonn_tests::cluster::Cluster;
use fonn_tests::ctl::{failure, fonnctl, json, lines};
use fonn_tests::node::{FonnNode, ctl_program};
use fonn_tests::process::{Daemon, Signal};
use fonn_tests::values::{Content, ValuePool};

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

/// Gets that were answered, by tier.
fn hits(node: &FonnNode, tier: &str) -> Result<f64> {
    let page = node.http_get("/metrics")?.body;
    let name = format!("fonn_hits_total{{tier=\"{tier}\"}} ");
    let found = page.lines().find_map(|line| line.strip_prefix(&name));
    Ok(found.with_context(|| name.clone())?.parse()?)
}

#[test]
fn each_member_warms_what_it_owns_through_one_address() -> Result<()> {
    const KEYS: u64 = 600;
    let mut cluster = Cluster::form(1, None)?;
    // All of it is on the first disk, also what it does not own any more when there are others.
    let mut client = Dialect::Text.connect(cluster.nodes[0].addr())?;
    for number in 0..KEYS {
        client.set(&format!("key-{number}"), b"value", None)?;
    }
    cluster.add()?;
    cluster.add()?;
    cluster.wait_agreed()?;
    for at in 0..3 {
        cluster.nodes[at].stop()?;
        cluster.nodes[at].start_again()?;
        cluster.wait_agreed()?;
    }
    let router = cluster.router()?;
    let door = router.admin().to_string();
    let mut seen = 0;
    for name in ["a", "b", "c"] {
        let news = lines(&door, &["warm", "--member", name])?;
        let last: &Value = news.last().context("no news")?;
        let count = |field: &str| last[field].as_u64().context("no figure");
        ensure!(last["end"] == "all", "{name}: {last}");
        ensure!(count("from_disk")? > 0, "{name}: {last}");
        seen += count("from_disk")? + count("present")?;
    }
    ensure!(seen == KEYS, "{seen} of {KEYS} were warmed");
    let mut client = Dialect::Text.connect(router.addr())?;
    for number in 0..KEYS {
        let found = client.get(&format!("key-{number}"))?;
        ensure!(found.as_deref() == Some(&b"value"[..]), "key-{number}");
    }
    for node in &cluster.nodes {
        ensure!(hits(node, "ram")? > 0.0 && hits(node, "disk")? == 0.0);
    }
    Ok(())
}

#[test]
fn a_member_stops_warming_when_its_caller_through_a_router_is_stopped() -> Result<()> {
    const KEYS: u64 = 2000;
    const LEN: usize = 2000;
    let mut cluster = Cluster::form(1, None)?;
    // It gets no smaller on disk, which is what the rate is about.
    let pool = ValuePool::new(Content::Random, LEN);
    let mut client = Dialect::Binary.connect(cluster.nodes[0].addr())?;
    for number in 0..KEYS {
        let value = pool.value(number, LEN).to_vec();
        client.set(&format!("key-{number}"), &value, None)?;
    }
    cluster.nodes[0].stop()?;
    cluster.nodes[0].start_again()?;
    let router = cluster.router()?;
    let mut command = Command::new(ctl_program()?);
    // It would take a minute.
    command.args(["warm", "--json", "--member", "a", "--rate", "64k"]);
    command.env("FONN_ADMIN", router.admin().to_string());
    let mut warming = Daemon::spawn("fonnctl", &mut command)?;
    let told = warming.log();
    warming.wait_until("news", LIMIT, || !told.lines().is_empty())?;
    let node = cluster.nodes[0].admin().to_string();
    let (code, text) = failure(&node, &["warm", "--newest", "1"])?;
    let is_told = text.contains("warming already");
    ensure!(code == Some(1) && is_told, "{code:?} {text}");

    warming.signal(Signal::TERM)?;
    warming.wait_exit(LIMIT)?;
    let stopped = Instant::now();
    while !fonnctl(&node, &["warm", "--newest", "1"])?.status.success() {
        ensure!(stopped.elapsed() < LIMIT, "it goes on for nobody");
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = json(&node, &["status"])?;
    let entries = status["ram"]["entries"].as_u64().context("no figure")?;
    ensure!((1..KEYS).contains(&entries), "{entries} are in RAM");
    Ok(())
}
