//! What clients notice while slots move, and what the move costs: a member joins, changes its
//! weight, and drains.

#![allow(clippy::print_stderr, reason = "progress of a run of a minute")]

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::client::{Dialect, is_refusal};
use crate::cluster::{Cluster, name};
use crate::load::key_of;
use crate::node::NodeOptions;
use crate::rng::Rng;
use crate::values::{Content, ValuePool};

const MEMBERS: usize = 3;
const CLIENTS: u64 = 8;
/// Of all operations.
const SETS: f64 = 0.1;
/// How long the clients run before anything moves.
const STILL: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct MovesOptions {
    /// Keys that are there before.
    pub keys: u64,
    /// Length of values in bytes.
    pub value_len: usize,
    /// Owners of a slot.
    pub replicas: u8,
}

/// What clients saw so far.
#[derive(Debug, Default)]
struct Seen {
    is_over: AtomicBool,
    gets: AtomicU64,
    misses: AtomicU64,
    sets: AtomicU64,
    refused: AtomicU64,
    /// The longest operation since it was last asked for, in microseconds.
    longest_us: AtomicU64,
}

impl Seen {
    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> [u64; 4] {
        [&self.gets, &self.misses, &self.sets, &self.refused].map(|it| it.load(Ordering::Relaxed))
    }

    /// Gets and sets until it is over.
    fn run(&self, address: SocketAddr, seed: u64, options: MovesOptions) -> Result<()> {
        let mut client = Dialect::Text.connect(address)?;
        let pool = ValuePool::new(Content::Random, options.value_len);
        let mut rng = Rng::new(seed);
        while !self.is_over.load(Ordering::Relaxed) {
            let number = rng.below(options.keys);
            let key = key_of(number, 16);
            let begun = Instant::now();
            if rng.chance(SETS) {
                let value = pool.value(number, options.value_len).to_vec();
                Self::add(&self.sets);
                match client.set(&key, &value, None) {
                    Err(error) if is_refusal(&error) => Self::add(&self.refused),
                    stored => stored?,
                }
            } else {
                Self::add(&self.gets);
                match client.get(&key)? {
                    Some(found) => pool.value(number, options.value_len).check(&found)?,
                    None => Self::add(&self.misses),
                }
            }
            let took = begun.elapsed().as_micros() as u64;
            self.longest_us.fetch_max(took, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Measures a cluster of three members that a fourth one joins; returns a table in Markdown.
///
/// # Errors
/// When a process does not start, a value is not what was stored, or slots do not come to rest.
pub fn compare_moves(options: MovesOptions) -> Result<String> {
    let node = NodeOptions::new()
        .flag("--threads", "1")
        .flag("--ram-budget", "256m")
        .flag("--disk-budget", "2g");
    let mut cluster = Cluster::form_of(MEMBERS, node)?;
    cluster.ctl(0, &["replicas", &options.replicas.to_string()])?;
    cluster.wait_settled(&[])?;
    let router = cluster.router_with(vec![("--threads", "1".to_owned())])?;
    let mut client = Dialect::Text.connect(router.addr())?;
    let pool = ValuePool::new(Content::Random, options.value_len);
    for number in 0..options.keys {
        let value = pool.value(number, options.value_len).to_vec();
        client.set(&key_of(number, 16), &value, None)?;
    }
    let seen = Seen::default();
    let mut table = String::from(
        "\
| what moves | time | bytes between members | gets | misses | sets | refused | longest operation |
|---|---|---|---|---|---|---|---|
",
    );
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|seed| {
                scope.spawn({
                    let (seen, address) = (&seen, router.addr());
                    move || seen.run(address, seed, options)
                })
            })
            .collect();
        let measured = measure(&mut cluster, &seen, &mut table);
        seen.is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().ok().context("a client panicked")??;
        }
        measured
    })?;
    Ok(table)
}

fn measure(cluster: &mut Cluster, seen: &Seen, table: &mut String) -> Result<()> {
    let joined = name(MEMBERS);
    type Step<'a> = (&'a str, &'a dyn Fn(&mut Cluster) -> Result<()>);
    let steps: [Step<'_>; 4] = [
        ("nothing, for 5 s", &|_| {
            std::thread::sleep(STILL);
            Ok(())
        }),
        ("a member joins", &|cluster| cluster.add()),
        ("it gets half its weight", &|cluster| {
            cluster.ctl(0, &["weight", &joined, "50"]).map(|_| ())
        }),
        ("it is drained", &|cluster| {
            cluster.ctl(0, &["drain", &joined]).map(|_| ())
        }),
    ];
    for (what, step) in steps {
        let (before, bytes) = (seen.counts(), received(cluster)?);
        seen.longest_us.store(0, Ordering::Relaxed);
        let begun = Instant::now();
        step(cluster)?;
        cluster.wait_settled(&[])?;
        let took = begun.elapsed();
        let after = seen.counts();
        let bytes = received(cluster)? - bytes;
        let [gets, misses, sets, refused] =
            std::array::from_fn(|at| after.get(at).unwrap_or(&0) - before.get(at).unwrap_or(&0));
        ensure!(gets > 0, "no client did anything while {what}");
        eprintln!(
            "{what}: {took:?}, {misses} misses of {gets} gets, {refused} refused of {sets} sets"
        );
        writeln!(
            table,
            "| {what} | {:.1} s | {:.1} MB | {gets} | {misses} | {sets} | {refused} | {} ms |",
            took.as_secs_f64(),
            bytes / 1e6,
            seen.longest_us.load(Ordering::Relaxed) / 1000,
        )?;
    }
    Ok(())
}

/// Bytes that all members have received from each other.
fn received(cluster: &Cluster) -> Result<f64> {
    let mut sum = 0.0;
    for node in &cluster.nodes {
        let page = node.http_get("/metrics")?.body;
        let samples = page
            .lines()
            .filter(|line| line.starts_with("fonn_peer_received_bytes_total"));
        for sample in samples {
            let value = sample.rsplit(' ').next().context("a sample has a value")?;
            sum += value.parse::<f64>()?;
        }
    }
    Ok(sum)
}
