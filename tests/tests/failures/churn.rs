//! Members come and go again and again: no slot, and no source of one, may stay behind.

#![allow(clippy::print_stderr, reason = "what was seen must be on record")]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use fonn_proto::placement::SLOT_COUNT;
use fonn_tests::client::{Cache, Dialect, is_refusal};
use fonn_tests::cluster::{Cluster, name};
use fonn_tests::promised::is_strict;

use fonn_tests::traffic::{Load, still, value};

const MEMBERS: usize = 4;
const ROUNDS: usize = 12;
const CLIENTS: u64 = 2;
/// Entries that are there before, and stay as they are.
const STILL: u64 = 400;
/// Operations between two rounds, at least.
const OPERATIONS: u64 = 50;
/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

/// A member goes, and comes back: with an empty disk, or with what it has, or before the others
/// have taken anything over.
fn come_and_go(cluster: &mut Cluster, round: usize) -> Result<()> {
    let (index, at) = (round % MEMBERS, (round + 1) % MEMBERS);
    let member = name(index);
    match round % 3 {
        0 => {
            cluster.ctl(at, &["drain", &member])?;
            // No member misses one that is removed first.
            cluster.ctl(at, &["remove", &member, "--yes"])?;
            let node = &mut cluster.nodes[index];
            node.stop()?;
            std::fs::remove_dir_all(node.data_dir())?;
            cluster.start_empty(index)?;
        }
        1 => {
            cluster.ctl(at, &["drain", &member])?;
            cluster.ctl(at, &["drain", &member, "--undo"])?;
        }
        _ => {
            cluster.ctl(at, &["drain", &member, "--no-wait"])?;
            cluster.ctl(at, &["drain", &member, "--undo"])?;
        }
    }
    // The next round does not wait until what is its own is with it.
    cluster.wait(&[], "it is active", |states| {
        states.get(&member).is_some_and(|state| state == "active")
    })
}

/// Reads and writes all entries at one address. What is refused is told with the error.
fn read_and_write(client: &mut dyn Cache) -> Result<()> {
    for number in 0..STILL {
        let key = still(number);
        ensure!(client.get(&key)? == Some(value(&key, 1)), "{key}");
        client.set(&key, &value(&key, 1), None)?;
    }
    Ok(())
}

#[test]
fn what_members_leave_that_come_and_go_again_and_again_is_taken_over() -> Result<()> {
    let mut cluster = Cluster::form(MEMBERS, None)?;
    let routers = [cluster.router()?, cluster.router()?];
    let mut client = Dialect::Binary.connect(routers[0].addr())?;
    let load = Load::over(STILL, &mut *client)?;
    let addresses = routers.each_ref().map(|it| it.addr());
    load.beside(CLIENTS, &addresses, || {
        for round in 0..ROUNDS {
            if round == ROUNDS / 2 {
                cluster.ctl(0, &["replicas", "2"])?;
            }
            come_and_go(&mut cluster, round)?;
            load.go_on(OPERATIONS)?;
        }
        cluster.wait_agreed()
    })?;
    let operations = load.operations.load(Ordering::Relaxed);
    let misses = load.misses.load(Ordering::Relaxed);
    let refused = load.refused.load(Ordering::Relaxed);
    eprintln!("{operations} operations, {misses} unexpected misses, {refused} refused writes");
    // Of a machine that stands still now and then.
    let refused_max = if is_strict() { 0 } else { operations / 100 };
    ensure!(refused <= refused_max, "{refused} writes were refused");
    ensure!(misses * 100 < operations, "{misses} misses of {operations}");

    let slots = |part: &str| cluster.slots(part);
    let all = f64::from(SLOT_COUNT);
    ensure!(slots("primary")? == all, "{:?} are owned", slots("primary"));
    ensure!(slots("owner")? == all, "{:?} twice", slots("owner"));
    ensure!(slots("learner")? == 0.0, "{:?} lack", slots("learner"));
    let members = cluster.nodes.iter().map(|it| it.addr());
    for address in addresses.into_iter().chain(members) {
        let begun = Instant::now();
        let mut client = Dialect::Text.connect(address)?;
        while let Err(error) = read_and_write(&mut *client) {
            // Of such a machine too: what stays behind is refused for good.
            let is_passing = is_refusal(&error) && !is_strict() && begun.elapsed() < LIMIT;
            ensure!(is_passing, "at {address}: {error:#}");
            eprintln!("at {address}: {error:#}");
        }
    }
    Ok(())
}
