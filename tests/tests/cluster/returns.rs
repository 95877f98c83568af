//! A member comes back with its disk, and another one goes: what was acknowledged meanwhile counts,
//! and what the member had is still there.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fonn_tests::client::Cache;
use fonn_tests::cluster::{Cluster, name};
use fonn_tests::process::Signal;

const KEYS: usize = 1_000;

/// A member is declared down and serves again in far less.
const PATIENCE: Duration = Duration::from_secs(60);

/// Another member leads the slots of one that fell after a shorter time.
const LEASE: Duration = Duration::from_secs(20);

fn key(number: usize) -> String {
    format!("key-{number}")
}

fn write(client: &mut dyn Cache, value: &[u8]) -> Result<()> {
    (0..KEYS).try_for_each(|number| client.set(&key(number), value, None))
}

/// How many keys have this value.
fn count(client: &mut dyn Cache, value: &[u8]) -> Result<usize> {
    let mut found = 0;
    for number in 0..KEYS {
        found += usize::from(client.get(&key(number))?.as_deref() == Some(value));
    }
    Ok(found)
}

fn kill(cluster: &mut Cluster, at: usize) -> Result<()> {
    cluster.nodes.get_mut(at).context("a member")?.kill9()?;
    cluster.wait(&[at], "it is down", |states| {
        states.get(&name(at)).is_some_and(|state| state == "down")
    })
}

fn bring_back(cluster: &mut Cluster, at: usize) -> Result<()> {
    let node = cluster.nodes.get_mut(at).context("a member")?;
    node.start_again()?;
    cluster.wait_agreed()
}

/// Members: one that goes and comes back, and another one.
fn two(cluster: &Cluster) -> Result<(usize, usize)> {
    let away = (cluster.leader()? + 1) % 3;
    Ok((away, (away + 1) % 3))
}

#[test]
fn what_was_deleted_while_its_owner_was_away_does_not_come_back_with_it() -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    let (away, there) = two(&cluster)?;
    write(&mut *cluster.client(there)?, b"value")?;
    kill(&mut cluster, away)?;
    let mut at = cluster.client(there)?;
    for number in 0..KEYS {
        // Not found, where only the member that is away has it.
        at.delete(&key(number))?;
    }
    bring_back(&mut cluster, away)?;
    let back = count(&mut *cluster.client(there)?, b"value")?;
    ensure!(back == 0, "{back} deleted entries are there again");
    Ok(())
}

#[test]
fn a_member_that_came_back_is_drained_without_a_loss() -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    let (away, there) = two(&cluster)?;
    write(&mut *cluster.client(there)?, b"value")?;
    kill(&mut cluster, away)?;
    bring_back(&mut cluster, away)?;
    let found = count(&mut *cluster.client(there)?, b"value")?;
    ensure!(found == KEYS, "{found} of {KEYS} when it is back");
    cluster.ctl(there, &["drain", &name(away)])?;
    let found = count(&mut *cluster.client(there)?, b"value")?;
    ensure!(found == KEYS, "{found} of {KEYS} after the drain");
    Ok(())
}

#[test]
fn what_was_written_while_an_owner_fell_is_there_when_the_other_one_falls() -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    cluster.ctl(0, &["replicas", "2"])?;
    cluster.wait_agreed()?;
    let (away, there) = two(&cluster)?;
    let last = 3 - away - there;
    write(&mut *cluster.client(there)?, b"old")?;

    // Its writes are under way at it when it is declared down, and are acknowledged then.
    let node = cluster.nodes.get_mut(away).context("a member")?;
    node.daemon()?.signal(Signal::STOP)?;
    let door = cluster.nodes.get(there).context("a member")?.addr();
    let mut stream = TcpStream::connect(door)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let sets: String = (0..KEYS)
        .map(|number| format!("set {} 0 0 3\r\nnew\r\n", key(number)))
        .collect();
    stream.write_all(sets.as_bytes())?;
    let replies = BufReader::new(stream).lines().take(KEYS);
    let replies: Vec<String> = replies.collect::<std::io::Result<_>>()?;
    let is_stored: Vec<bool> = replies.iter().map(|reply| reply == "STORED").collect();
    kill(&mut cluster, away)?;
    bring_back(&mut cluster, away)?;

    kill(&mut cluster, there)?;
    let mut at = cluster.client(last)?;
    let begun = Instant::now();
    for number in (0..KEYS).filter(|number| is_stored[*number]) {
        loop {
            let got = at.get(&key(number))?;
            if got.as_deref() == Some(b"new") {
                break;
            }
            // A read may miss until the lease of the member that fell is over.
            let may_come = got.is_none() && begun.elapsed() < LEASE;
            ensure!(may_come, "{}: {got:?}", key(number));
        }
    }
    Ok(())
}
