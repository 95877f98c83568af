//! Members that fall silent: stopped, cut off in both directions or in one, or killed. Clients go
//! on within the promised time, and read nothing older than what was acknowledged, also after the
//! member continues.
//!
//! By default one member fails in a cluster without a bucket. `FONN_SILENCE=pairs` fails each
//! member in turn, without a bucket or with one, so that each fault and each number of owners meets
//! both. `FONN_SILENCE=all` does both for each. `FONN_STRICT_TIMES=1` holds the programs to the
//! promised times; without it a machine under load has more. Each fault prints a row of the table
//! in docs/failures.md.

#![allow(clippy::print_stdout, reason = "the rows of a table are printed")]

mod client;
mod fault;
mod late;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fonn_tests::bucket::Bucket;
use fonn_tests::cluster::Cluster;
use fonn_tests::links::Links;
use fonn_tests::promised::at_most;
use fonn_tests::router::FonnRouter;

use self::client::{Door, Operation, Worker};
use self::fault::Fault;

const MEMBERS: usize = 3;
/// Workers of each kind of client.
const WORKERS: usize = 3;
/// How long clients run before a fault and after the member has continued.
const CALM: Duration = Duration::from_secs(1);
/// How long a fault lasts. A member without a leader goes by its last topology after three seconds
/// of it.
const LASTS: Duration = Duration::from_secs(7);

/// After the fault, no operation that begins from here on fails or is slow.
fn last_trouble_max() -> Duration {
    at_most(Duration::from_secs(3), Duration::from_secs(6))
}

/// An operation that takes longer is slow.
fn slow_min() -> Duration {
    at_most(Duration::from_secs(1), Duration::from_secs(2))
}

/// A cluster with a router, and clients of both.
struct Rig {
    cluster: Cluster,
    router: FonnRouter,
    links: Links,
    has_bucket: bool,
    owners: u32,
    // The bucket outlives its cluster.
    _bucket: Option<Bucket>,
}

impl Rig {
    fn form(owners: u32, has_bucket: bool) -> Result<Self> {
        let links = Links::new()?;
        let bucket = has_bucket.then(Bucket::in_process).transpose()?;
        let cluster = Cluster::form_linked_with(MEMBERS, &links, bucket.as_ref())?;
        cluster.ctl(0, &["replicas", &owners.to_string()])?;
        cluster.wait_agreed()?;
        let router = cluster.router_named(fault::ROUTER)?;
        links.name(std::process::id(), fault::CLIENT);
        Ok(Self {
            cluster,
            router,
            links,
            has_bucket,
            owners,
            _bucket: bucket,
        })
    }

    fn workers(&self, since: Instant) -> Result<Vec<Worker>> {
        let members: Vec<SocketAddr> = self.cluster.doors().collect();
        ensure!(members.len() == MEMBERS, "a member has no address");
        let doors = (0..WORKERS).flat_map(|_| {
            let seeds = members.clone();
            [Door::Router(self.router.addr()), Door::cluster(seeds)]
        });
        let workers = doors.enumerate();
        // What the only owner of a slot has not spilled yet is lost with it: older values come from
        // the bucket.
        let may_be_older = self.has_bucket && self.owners == 1;
        let worker = |(at, door)| Worker::new(at, door, since, may_be_older);
        Ok(workers.map(worker).collect())
    }

    /// One fault of one member under load, until all agree again.
    fn round(&mut self, fault: Fault, member: usize) -> Result<()> {
        let leader = self.cluster.leader()?;
        let since = Instant::now();
        let workers = self.workers(since)?;
        let is_over = AtomicBool::new(false);
        let (cluster, links) = (&mut self.cluster, &self.links);
        let (operations, begun, ended) = std::thread::scope(|scope| {
            let is_over = &is_over;
            let running: Vec<_> = workers
                .into_iter()
                .map(|worker| scope.spawn(move || worker.run(is_over)))
                .collect();
            let happened = (|| {
                std::thread::sleep(CALM);
                let begun = since.elapsed();
                fault.begin(cluster, links, member)?;
                std::thread::sleep(LASTS);
                let ended = since.elapsed();
                fault.end(cluster, links, member)?;
                cluster.wait_agreed()?;
                std::thread::sleep(CALM);
                Ok::<_, anyhow::Error>((begun, ended))
            })();
            is_over.store(true, Ordering::Relaxed);
            let mut operations = Vec::new();
            for worker in running {
                let done = worker
                    .join()
                    .map_err(|_| anyhow::anyhow!("a worker panicked"))??;
                operations.extend(done);
            }
            let (begun, ended) = happened?;
            Ok::<_, anyhow::Error>((operations, begun, ended))
        })?;
        self.judge(fault, (member, leader), &operations, begun..ended)
    }

    fn judge(
        &self,
        fault: Fault,
        (member, leader): (usize, usize),
        operations: &[Operation],
        window: std::ops::Range<Duration>,
    ) -> Result<()> {
        let mut last: BTreeMap<&str, Duration> = BTreeMap::new();
        let during = operations.iter().filter(|it| window.contains(&it.begun));
        let mut failed = Vec::new();
        let mut count = 0;
        for it in during {
            count += 1;
            if it.error.is_none() && it.took < slow_min() {
                continue;
            }
            let end = (it.begun + it.took).saturating_sub(window.start);
            let last = last.entry(it.door).or_default();
            *last = end.max(*last);
            let is_late = it.begun >= window.start + last_trouble_max();
            if is_late || end > last_trouble_max() + slow_min() {
                failed.push(format!(
                    "{:?} after the fault: {it:?}",
                    it.begun - window.start
                ));
            }
        }
        let shown = |door: &str| last.get(door).copied().unwrap_or_default().as_secs_f64();
        println!(
            "| {} | {} | {} | {} | {} | {:.1} s | {:.1} s |",
            fault.shown(),
            fonn_tests::cluster::name(member),
            if member == leader { "yes" } else { "no" },
            self.owners,
            if self.has_bucket { "yes" } else { "no" },
            shown(client::ROUTER),
            shown(client::CLUSTER),
        );
        ensure!(
            count > 100,
            "only {count} operations were made during the fault"
        );
        if failed.is_empty() {
            return Ok(());
        }
        bail!(
            "{} of {count} operations:\n{}\n{}",
            failed.len(),
            failed.join("\n"),
            self.router.log()?.text(),
        );
    }
}

/// Runs a fault of one member, or of each in turn, in clusters of each kind.
fn run(fault: Fault, owners: u32) -> Result<()> {
    let (buckets, members): (&[bool], &[usize]) = match std::env::var("FONN_SILENCE").as_deref() {
        Ok("all") => (&[false, true], &[0, 1, 2]),
        Ok("pairs") if (fault as u32 + owners).is_multiple_of(2) => (&[true], &[0, 1, 2]),
        Ok("pairs") => (&[false], &[0, 1, 2]),
        Ok("") | Err(_) => (&[false], &[0]),
        Ok(other) => bail!("FONN_SILENCE is {other:?}; it may be `all`, `pairs` or not set"),
    };
    for &has_bucket in buckets {
        let mut rig = Rig::form(owners, has_bucket)?;
        for &member in members {
            rig.round(fault, member).with_context(|| {
                format!("{fault:?} of {member}, {owners} owners, bucket: {has_bucket}")
            })?;
        }
    }
    Ok(())
}

macro_rules! cases {
    ($($name:ident: $fault:expr, $owners:expr;)*) => {
        $(
            #[test]
            fn $name() -> Result<()> {
                run($fault, $owners)
            }
        )*
    };
}

cases! {
    a_stopped_member_with_one_owner_a_slot: Fault::Stopped, 1;
    a_stopped_member_with_two_owners_a_slot: Fault::Stopped, 2;
    a_member_without_a_link_with_one_owner_a_slot: Fault::Unlinked, 1;
    a_member_without_a_link_with_two_owners_a_slot: Fault::Unlinked, 2;
    a_member_that_is_not_heard_with_one_owner_a_slot: Fault::Mute, 1;
    a_member_that_is_not_heard_with_two_owners_a_slot: Fault::Mute, 2;
    a_member_that_hears_nothing_with_one_owner_a_slot: Fault::Deaf, 1;
    a_member_that_hears_nothing_with_two_owners_a_slot: Fault::Deaf, 2;
    a_killed_member_with_one_owner_a_slot: Fault::Killed, 1;
    a_killed_member_with_two_owners_a_slot: Fault::Killed, 2;
}
