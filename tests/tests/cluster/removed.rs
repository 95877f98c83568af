//! A member that its cluster refuses comes back with the disk that it had: it answers for no key,
//! and clients of the others see nothing of it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fonn_tests::client::Cache;
use fonn_tests::cluster::{Cluster, name};
use fonn_tests::node::{FonnNode, NodeOptions};

const KEYS: usize = 200;

/// A member without a lease waits some seconds for one before it misses or refuses. So few keys are
/// asked for there; by their names the member owned some of them.
const ASKED: usize = 12;

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

fn key(number: usize) -> String {
    format!("key-{number}")
}

fn write(client: &mut dyn Cache, value: &[u8]) -> Result<()> {
    (0..KEYS).try_for_each(|number| client.set(&key(number), value, None))
}

/// Starts a member that is refused, and sees that it answers for no slot, and says why.
fn start_refused(node: &mut FonnNode) -> Result<()> {
    node.start_again_with(NodeOptions::until_refused)?;
    // After this time a member whose link is cut would go by its last topology.
    let begun = Instant::now();
    while node.metric("fonn_cluster_heartbeat_age_seconds")? < Some(4.0) {
        ensure!(begun.elapsed() < LIMIT, "it hears a leader");
        std::thread::sleep(Duration::from_millis(50));
    }
    ensure!(node.metric("fonn_cluster_has_lease")? == Some(0.0));
    let told = node.http_get("/readyz")?;
    let has_remedy = told.body.contains("delete DATA_DIR/raft");
    ensure!(told.status == 503 && has_remedy, "{told:?}");
    Ok(())
}

#[test]
fn a_voter_of_a_cluster_that_was_formed_anew_without_it_answers_for_no_slot() -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    for node in &mut cluster.nodes {
        node.kill9()?;
    }
    let founder = cluster.nodes.first_mut().context("a member")?;
    std::fs::remove_dir_all(founder.data_dir().join("raft"))?;
    // With `--bootstrap` it forms another cluster at the same addresses.
    founder.start_again()?;
    start_refused(cluster.nodes.last_mut().context("a member")?)
}

#[test]
fn a_removed_member_with_its_old_disk_serves_no_stale_value_and_takes_no_write() -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    let away = (cluster.leader()? + 1) % 3;
    let there = (away + 1) % 3;
    write(&mut *cluster.client(there)?, b"old")?;
    cluster.nodes.get_mut(away).context("a member")?.kill9()?;
    cluster.ctl(there, &["remove", &name(away), "--yes"])?;
    cluster.wait(&[away], "it is removed", |states| {
        states.len() == 2 && states.values().all(|state| state == "active")
    })?;
    cluster.wait_settled(&[away])?;
    write(&mut *cluster.client(there)?, b"new")?;

    let node = cluster.nodes.get_mut(away).context("a member")?;
    start_refused(node)?;
    let (mut at, mut others) = (cluster.client(away)?, cluster.client(there)?);
    for number in 0..ASKED {
        let key = key(number);
        let stale = at.get(&key)?;
        ensure!(stale.as_deref() != Some(b"old"), "{key} is stale");
        // It sends on what others own, and that may be acknowledged.
        let is_stored = at.set(&key, b"late", None).is_ok();
        let found = others.get(&key)?;
        let is_late = found.as_deref() == Some(b"late");
        let is_new = found.as_deref() == Some(b"new");
        ensure!(is_late || is_new && !is_stored, "{key}: {found:?}");
    }
    Ok(())
}
