//! Flushes of a cluster: of which a member is away, and by an admin.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use fonn_tests::client::{Cache, Dialect};
use fonn_tests::cluster::{Cluster, name};
use fonn_tests::ctl::{failure, json};

const KEYS: u64 = 300;
/// Some rounds of pings: within one or two, clocks that a fall has moved are together again.
const CLOCKS_TOGETHER: Duration = Duration::from_secs(2);

fn write(client: &mut dyn Cache, what: &str) -> Result<()> {
    (0..KEYS).try_for_each(|number| client.set(&format!("{what}-{number}"), b"value", None))
}

fn found(client: &mut dyn Cache, what: &str) -> Result<u64> {
    let mut hits = 0;
    for number in 0..KEYS {
        hits += u64::from(client.get(&format!("{what}-{number}"))?.is_some());
    }
    Ok(hits)
}

/// Flushes a cluster while a member is down; when it is back, with its disk, nobody sees what was flushed.
fn a_flush_reaches_who_was_away(is_through_router: bool) -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    let router = cluster.router()?;
    let mut client = Dialect::Text.connect(router.addr())?;
    write(&mut *client, "old")?;
    ensure!(found(&mut *client, "old")? == KEYS);

    let away = (cluster.leader()? + 1) % 3;
    let there = (away + 1) % 3;
    cluster.nodes.get_mut(away).context("a member")?.kill9()?;
    let is_down = |states: &std::collections::BTreeMap<String, String>| {
        states.get(&name(away)).is_some_and(|state| state == "down")
    };
    cluster.wait(&[away], "it is down", is_down)?;
    let at = match is_through_router {
        true => router.addr(),
        false => cluster.nodes.get(there).context("a member")?.addr(),
    };
    let mut flusher = Dialect::Text.connect(at)?;
    flusher.flush()?;
    ensure!(found(&mut *client, "old")? == 0);
    // What a member writes before it has heard of the others' clocks may be below their flush (docs/cluster.md).
    std::thread::sleep(CLOCKS_TOGETHER);
    write(&mut *client, "new")?;

    cluster
        .nodes
        .get_mut(away)
        .context("a member")?
        .start_again()?;
    cluster.wait_agreed()?;
    for node in &cluster.nodes {
        let mut client = Dialect::Text.connect(node.addr())?;
        let old = found(&mut *client, "old")?;
        ensure!(old == 0, "{old} entries that were flushed are there again");
        ensure!(found(&mut *client, "new")? == KEYS);
    }
    Ok(())
}

#[test]
fn a_member_that_was_away_takes_over_a_flush_of_a_router() -> Result<()> {
    a_flush_reaches_who_was_away(true)
}

#[test]
fn a_member_that_was_away_takes_over_a_flush_of_a_member() -> Result<()> {
    a_flush_reaches_who_was_away(false)
}

#[test]
fn what_an_admin_deletes_and_flushes_at_one_member_is_gone_at_all() -> Result<()> {
    let cluster = Cluster::form(3, None)?;
    cluster.wait_agreed()?;
    let door = cluster.nodes[0].admin().to_string();
    let mut client = Dialect::Text.connect(cluster.nodes[1].addr())?;
    write(&mut *client, "old")?;
    for number in 0..20 {
        let key = format!("old-{number}");
        let answer = json(&door, &["key", &key, "--delete", "--yes"])?;
        ensure!(answer["existed"] == true, "{key}: {answer}");
    }
    let (code, text) = failure(&door, &["key", "old-0", "--delete", "--yes"])?;
    ensure!(code == Some(1), "what is gone is deleted again: {text}");
    for node in &cluster.nodes {
        let mut client = Dialect::Text.connect(node.addr())?;
        let left = found(&mut *client, "old")?;
        ensure!(left == KEYS - 20, "{left}");
    }
    json(&door, &["flush", "default", "--yes"])?;
    for node in &cluster.nodes {
        let mut client = Dialect::Text.connect(node.addr())?;
        let left = found(&mut *client, "old")?;
        ensure!(left == 0, "{left} entries are there behind a flush");
    }
    Ok(())
}
