//! What clients see of a cluster, through a router and at the members.

#![allow(clippy::print_stderr, reason = "what it took must be on record")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use fonn_proto::placement::{Placed, Table, slot};
use fonn_tests::bucket::Bucket;
use fonn_tests::client::{Cache, Dialect};
use fonn_tests::cluster::Cluster;
use fonn_tests::promised::{at_most, is_strict};

use fonn_tests::traffic::{KEYS, Load, own, still, value};

/// Within this time of its loss a member must not be missed any more.
const RECOVERY: Duration = Duration::from_secs(10);
/// The same on a machine under load.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn an_entry_is_the_same_through_routers_and_members_in_all_dialects() -> Result<()> {
    let cluster = Cluster::form_patient(3)?;
    let routers = [cluster.router()?, cluster.router()?];
    let addresses: Vec<_> = routers
        .iter()
        .map(|it| it.addr())
        .chain(cluster.nodes.iter().map(|it| it.addr()))
        .collect();
    let mut clients: Vec<Box<dyn Cache>> = Vec::new();
    for address in addresses {
        for dialect in Dialect::ALL {
            clients.push(dialect.connect(address)?);
        }
    }
    for number in 0..clients.len() * 2 {
        let key = format!("key-{number}");
        let writer = number % clients.len();
        clients[writer].set(&key, &value(&key, 1), None)?;
        for client in &mut clients {
            ensure!(client.get(&key)? == Some(value(&key, 1)), "{key}");
        }
        let other = (writer + 7) % clients.len();
        ensure!(clients[other].delete(&key)?, "{key}");
        for client in &mut clients {
            ensure!(client.get(&key)?.is_none(), "{key}");
        }
    }
    // Each member has its share of them.
    for node in &cluster.nodes {
        ensure!(node.metric("fonn_commands_total")?.unwrap_or(0.0) > 0.0);
    }
    Ok(())
}

/// The share of entries that are found; the first `newer` keys have another value by then.
fn hit_ratio(client: &mut dyn Cache, keys: u64, newer: u64) -> Result<f64> {
    let mut hits = 0;
    for number in 0..keys {
        let key = format!("key-{number}");
        let generation = if number < newer { 2 } else { 1 };
        match client.get(&key)? {
            Some(found) if found == value(&key, generation) => hits += 1,
            Some(_) => bail!("another value of {key}"),
            None => {}
        }
    }
    Ok(hits as f64 / keys as f64)
}

/// Reads all until nearly all are found again; returns how long after `lost` that reading began.
fn recovery(client: &mut dyn Cache, keys: u64, newer: u64, lost: Instant) -> Result<Duration> {
    let limit = at_most(RECOVERY, PATIENCE);
    loop {
        let after = lost.elapsed();
        let ratio = hit_ratio(client, keys, newer)?;
        eprintln!("{after:?} after the loss {:.1} % are found", ratio * 100.0);
        if ratio >= 0.99 {
            return Ok(after);
        }
        ensure!(after < limit, "{ratio} of the hits after {after:?}");
    }
}

/// Fills a cluster, and loses a member of it with its disk: what was there is there again in time,
/// and stays when the member comes back with nothing.
fn a_lost_member_is_not_missed(bucket: Option<&Bucket>, replicas: &str) -> Result<()> {
    const KEYS: u64 = 1000;
    const NEWER: u64 = 200;
    let mut cluster = Cluster::form(3, bucket)?;
    cluster.ctl(0, &["replicas", replicas])?;
    cluster.wait_agreed()?;
    let router = cluster.router()?;
    let mut client = Dialect::Binary.connect(router.addr())?;
    for number in 0..KEYS {
        let key = format!("key-{number}");
        client.set(&key, &value(&key, 1), None)?;
    }
    ensure!(hit_ratio(&mut *client, KEYS, 0)? == 1.0);
    if bucket.is_some() {
        wait_spilled(&cluster)?;
    }
    let lost = cluster.leader()?;
    cluster.nodes[lost].kill9()?;
    let begun = Instant::now();
    std::fs::remove_dir_all(cluster.nodes[lost].data_dir())?;
    let took = recovery(&mut *client, KEYS, 0, begun)?;
    ensure!(took <= at_most(RECOVERY, PATIENCE), "{took:?}");
    // And it is written to as before.
    for number in 0..NEWER {
        let key = format!("key-{number}");
        client.set(&key, &value(&key, 2), None)?;
        ensure!(client.get(&key)? == Some(value(&key, 2)));
    }
    // A member that returns with an empty disk is given what it owns; nothing older shows, and
    // nothing is missed.
    cluster.start_empty(lost)?;
    let ratio = hit_ratio(&mut *client, KEYS, NEWER)?;
    ensure!(ratio >= 0.99, "{ratio} when the member is back");
    cluster.wait_agreed()?;
    let mut at_member = Dialect::Text.connect(cluster.nodes[lost].addr())?;
    for client in [&mut client, &mut at_member] {
        let ratio = hit_ratio(&mut **client, KEYS, NEWER)?;
        ensure!(ratio >= 0.99, "{ratio} when all agree");
    }
    Ok(())
}

fn wait_spilled(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        let begun = Instant::now();
        while node.metric("fonn_cold_unspilled_bytes")? != Some(0.0) {
            ensure!(begun.elapsed() < PATIENCE, "not spilled");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

#[test]
fn a_lost_member_is_not_missed_with_a_bucket() -> Result<()> {
    let bucket = Bucket::in_process()?;
    a_lost_member_is_not_missed(Some(&bucket), "1")
}

#[test]
fn a_lost_member_is_not_missed_with_replicas() -> Result<()> {
    a_lost_member_is_not_missed(None, "2")
}

/// Entries that are there before members come and go, and stay as they are.
const STILL: u64 = 4000;
const CLIENTS: u64 = 4;

#[test]
fn members_join_and_drain_under_load_unnoticed() -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    cluster.wait_agreed()?;
    let routers = [cluster.router()?, cluster.router()?];
    let mut client = Dialect::Binary.connect(routers[0].addr())?;
    let load = Load::over(STILL, &mut *client)?;
    let addresses = routers.each_ref().map(|it| it.addr());
    load.beside(CLIENTS, &addresses, || change_members(&mut cluster, &load))?;
    let (operations, misses) = (load.operations.into_inner(), load.misses.into_inner());
    let refused = load.refused.into_inner();
    eprintln!("{operations} operations, {misses} unexpected misses, {refused} refused writes");
    ensure!(operations > 1000);
    // Of a machine that stands still now and then.
    let refused_max = if is_strict() { 0 } else { operations / 100 };
    ensure!(refused <= refused_max, "{refused} writes were refused");
    ensure!(misses * 100 < operations, "{misses} misses of {operations}");
    Ok(())
}

/// A fourth member comes, the first one goes; operations go on between.
fn change_members(cluster: &mut Cluster, load: &Load) -> Result<()> {
    load.go_on(500)?;
    let before = cluster.shared("taken")?;
    cluster.add()?;
    load.go_on(500)?;
    cluster.wait_agreed()?;
    let joined = cluster.shared("taken")?;
    check_moved(joined - before, &["a", "b", "c"], &["a", "b", "c", "d"])?;
    let told = cluster.ctl(1, &["drain", "a"])?;
    ensure!(told.contains("it may be switched off"), "{told}");
    let drained = cluster.shared("taken")?;
    check_moved(drained - joined, &["a", "b", "c", "d"], &["b", "c", "d"])?;
    load.go_on(500)?;
    cluster.nodes.first_mut().context("a member")?.stop()?;
    load.go_on(500)?;
    cluster.wait(&[0], "it is known to be gone", |states| {
        states.get("a").is_some_and(|state| state == "down")
    })?;
    load.go_on(500)
}

/// Compares the entries that were moved with those that had to: all whose owner left, or that the
/// new member got.
fn check_moved(moved: f64, before: &[&str], after: &[&str]) -> Result<()> {
    let owners = |members: &[&str]| -> Result<Vec<String>> {
        let placed: Vec<Placed<'_>> = members
            .iter()
            .map(|id| Placed {
                id,
                zone: "default",
                weight: 100,
            })
            .collect();
        let table = Table::new(&placed, 1).context("no table")?;
        let written = (0..CLIENTS).flat_map(|id| (0..KEYS).map(move |nth| own(id, nth)));
        let keys = (0..STILL).map(still).chain(written);
        let owner = |key: String| {
            let at = *table.owners(slot(key.as_bytes())).positions().first()?;
            members.get(usize::from(at)).map(|id| (*id).to_owned())
        };
        keys.map(|key| owner(key).context("no owner")).collect()
    };
    let (old, new) = (owners(before)?, owners(after)?);
    let has_to = |(old, new): &(&String, &String)| {
        !after.contains(&old.as_str()) || !before.contains(&new.as_str())
    };
    let least = old.iter().zip(&new).filter(has_to).count() as f64;
    ensure!(
        moved <= 1.1 * least,
        "{moved} entries moved, {least} had to"
    );
    // Some of the clients' own keys are not there.
    ensure!(
        moved >= 0.85 * least,
        "{moved} entries moved, {least} had to"
    );
    Ok(())
}

/// One inline command of RESP, and the first line of its answer.
fn ask(stream: &mut BufReader<TcpStream>, line: &str) -> Result<String> {
    stream
        .get_mut()
        .write_all(format!("{line}\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_line(&mut answer)?;
    Ok(answer.trim_end().to_owned())
}

#[test]
fn a_client_that_asks_for_owners_is_sent_to_them_and_others_are_served() -> Result<()> {
    let cluster = Cluster::form_patient(3)?;
    cluster.wait_agreed()?;
    for number in 0..6 {
        let key = format!("key-{number}");
        let mut owners = Vec::new();
        let mut sent_to = Vec::new();
        for node in &cluster.nodes {
            let mut stream = BufReader::new(TcpStream::connect(node.addr())?);
            stream
                .get_ref()
                .set_read_timeout(Some(Duration::from_secs(20)))?;
            ensure!(ask(&mut stream, &format!("GET {key}"))? == "$-1");
            let id = ask(&mut stream, "CLUSTER MYID")?;
            let mut rest = String::new();
            stream.read_line(&mut rest)?;
            ensure!(id == "$40" && rest.trim_end().len() == 40, "{id} {rest}");
            match ask(&mut stream, &format!("GET {key}"))? {
                found if found == "$-1" => owners.push(node.addr().to_string()),
                moved => {
                    let parts: Vec<&str> = moved.split(' ').collect();
                    ensure!(parts.first() == Some(&"-MOVED"), "{moved}");
                    sent_to.push(parts.last().copied().unwrap_or_default().to_owned());
                }
            }
        }
        ensure!(owners.len() == 1, "{owners:?} own {key}");
        ensure!(
            sent_to == [owners[0].clone(), owners[0].clone()],
            "{sent_to:?}"
        );
    }
    Ok(())
}
