//! Flushes of a cluster: of which a member is away, and by an admin.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use fonn_tests::client::{Cache, Dialect};
use fonn_tests::cluster::{Cluster, name};
use fonn_tests::ctl::{failure, json};
use fonn_tests::process::Signal;

const KEYS: u64 = 300;

/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// Flushes a cluster while a member is down; when it is back, with its disk, no client sees what
/// was flushed.
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
    // At once: clocks that the fall has moved are not together yet.
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
fn a_flush_goes_on_without_a_member_that_stands_still_and_that_one_takes_it_over() -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    let router = cluster.router()?;
    let mut client = Dialect::Text.connect(router.addr())?;
    write(&mut *client, "old")?;
    let still = (cluster.leader()? + 1) % 3;
    let mut signal = |signal| {
        let node = cluster.nodes.get_mut(still).context("a member")?;
        node.daemon()?.signal(signal)
    };
    signal(Signal::STOP)?;
    // It is asked as long as no member knows that it stands still; on a slow machine that is longer
    // than a flush may take.
    let begun = Instant::now();
    while let Err(error) = Dialect::Text.connect(router.addr())?.flush() {
        ensure!(begun.elapsed() < PATIENCE, "{error:#}");
    }
    ensure!(found(&mut *client, "old")? == 0);
    write(&mut *client, "new")?;
    signal(Signal::CONT)?;
    cluster.wait_agreed()?;
    for node in &cluster.nodes {
        let mut client = Dialect::Text.connect(node.addr())?;
        let old = found(&mut *client, "old")?;
        ensure!(old == 0, "{old} entries that were flushed are there again");
        let new = found(&mut *client, "new")?;
        ensure!(
            new == KEYS,
            "{new} entries are there of {KEYS} that were written behind the flush"
        );
    }
    Ok(())
}

#[test]
fn what_an_admin_deletes_and_flushes_at_one_member_is_gone_at_all() -> Result<()> {
    let cluster = Cluster::form_patient(3)?;
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
