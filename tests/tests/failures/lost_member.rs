//! A member of a cluster is lost with its disk, with the default times: what it had spilled is
//! served by the others.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use fonn_cold_tier::age_writers;
use fonn_proto::placement::{Placed, Table, slot};
use fonn_tests::bucket::Bucket;
use fonn_tests::client::{Cache, Dialect};
use fonn_tests::cluster::{Cluster, name};
use fonn_tests::node::NodeOptions;
use fonn_tests::values::{Content, ValuePool};

use fonn_tests::spilled::{Entries, metric, wait_until, wait_until_spilled};

/// Within this time of its loss what a member had spilled is served again.
const RECOVERY: Duration = Duration::from_secs(10);
/// Of a thousand entries so many may be missed then.
const MISSED_PER_MILLE: u64 = 1;
const MEMBERS: usize = 3;
const KEYS: u64 = 3000;
const HOUR: Duration = Duration::from_secs(3600);
const LIMIT: Duration = Duration::from_secs(120);

/// Members over the bucket: `--spill` and `--cold-follow` are the defaults. A read may take longer
/// than by default, since the machine may be busy with other tests.
fn by_default(bucket: &Bucket) -> NodeOptions {
    let mut options = NodeOptions::new()
        .flag("--ram-budget", "64m")
        .flag("--disk-budget", "512m")
        .flag("--cold-read-timeout", "20s")
        .flag("--cold-tier", bucket.url());
    for (name, value) in bucket.environment() {
        options = options.env(name, value);
    }
    options
}

/// The numbers of entries that each member owns, with one owner a slot.
fn owned(entries: &Entries<'_>) -> Result<Vec<Vec<u64>>> {
    let ids: Vec<String> = (0..MEMBERS).map(name).collect();
    let placed: Vec<Placed<'_>> = ids
        .iter()
        .map(|id| Placed {
            id,
            zone: "default",
            weight: 100,
        })
        .collect();
    let table = Table::new(&placed, 1).context("no table")?;
    let mut owned = vec![Vec::new(); MEMBERS];
    for number in 0..KEYS {
        let owners = table.owners(slot(entries.key(number).as_bytes()));
        let owner = owners.positions().first().context("a slot has no owner")?;
        let of_owner = owned
            .get_mut(usize::from(*owner))
            .context("no such owner")?;
        of_owner.push(number);
    }
    Ok(owned)
}

fn write(entries: &Entries<'_>, numbers: &[u64], cache: &mut dyn Cache) -> Result<()> {
    for number in numbers {
        entries.write(cache, *number..number + 1)?;
    }
    Ok(())
}

/// Loses a member after all that it has is in the bucket, and reads what it owned through a router.
fn lose(
    cluster: &mut Cluster,
    lost: usize,
    (entries, numbers): (&Entries<'_>, &[u64]),
    cache: &mut dyn Cache,
) -> Result<()> {
    let node = cluster.nodes.get_mut(lost).context("no such member")?;
    wait_until_spilled(node)?;
    node.kill9()?;
    let since = Instant::now();
    std::fs::remove_dir_all(node.data_dir())?;
    // The promise is about this time, so it has to pass.
    std::thread::sleep(RECOVERY.saturating_sub(since.elapsed()));
    let mut missed = 0;
    for number in numbers {
        match cache.get(&entries.key(*number))? {
            Some(got) => entries.judge(*number, &got)?,
            None => missed += 1,
        }
    }
    let count = numbers.len() as u64;
    ensure!(
        count >= KEYS / 6,
        "only {count} entries were the lost member's"
    );
    ensure!(
        missed * 1000 <= count * MISSED_PER_MILLE,
        "{missed} of {count} entries are missed"
    );
    Ok(())
}

#[test]
fn what_a_member_spilled_that_had_just_started_is_served_after_its_loss() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 1 << 10);
    let entries = Entries {
        pool: &pool,
        lens: &[1 << 10],
        prefix: "young/",
    };
    // The others look for writers when they start, and then once a minute.
    let mut cluster = Cluster::form_of(MEMBERS - 1, by_default(&bucket))?;
    let router = cluster.router()?;
    let mut cache = Dialect::Binary.connect(router.addr())?;
    cluster.add()?;
    cluster.wait_agreed()?;
    let youngest = MEMBERS - 1;
    let numbers = &owned(&entries)?[youngest];
    write(&entries, numbers, &mut *cache)?;
    lose(&mut cluster, youngest, (&entries, numbers), &mut *cache)
}

#[test]
fn what_a_member_spilled_after_an_hour_of_idleness_is_served_after_its_loss() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 1 << 10);
    let entries = Entries {
        pool: &pool,
        lens: &[1 << 10],
        prefix: "idle/",
    };
    let mut cluster = Cluster::form_of(MEMBERS, by_default(&bucket))?;
    let router = cluster.router()?;
    let mut cache = Dialect::Binary.connect(router.addr())?;
    let owned = owned(&entries)?;
    // Each is a writer that the others follow.
    for numbers in &owned {
        write(&entries, &numbers[..1], &mut *cache)?;
    }
    for node in &cluster.nodes {
        wait_until_spilled(node)?;
    }
    wait_until("each knows the segments of all", LIMIT, || {
        let known = cluster
            .nodes
            .iter()
            .map(|it| metric(it, "fonn_cold_segments"));
        let known = known.collect::<Result<Vec<_>>>()?;
        Ok(known.iter().all(|it| *it >= MEMBERS as f64))
    })?;
    let idle = MEMBERS - 1;
    // For the others an hour has passed since then.
    for at in 0..idle {
        cluster.nodes[at].stop()?;
        age_writers(&cluster.nodes[at].data_dir().join("cold"), HOUR)?;
        cluster.nodes[at].start_again()?;
        cluster.wait_agreed()?;
    }
    // A member spills only after it has asked every writer once: it asks the idle one in five
    // minutes again.
    for (at, numbers) in owned.iter().enumerate().take(idle) {
        write(&entries, numbers, &mut *cache)?;
        wait_until_spilled(&cluster.nodes[at])?;
    }
    let numbers = &owned[idle];
    write(&entries, numbers, &mut *cache)?;
    lose(&mut cluster, idle, (&entries, numbers), &mut *cache)
}
