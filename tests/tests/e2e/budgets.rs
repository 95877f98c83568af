//! Guarantee 5: resident memory and bytes on disk stay within their budgets, under sustained
//! writing and directly after a restart.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use fonn_tests::bucket::Bucket;
use fonn_tests::client::{Cache, is_refusal};
use fonn_tests::load::{self, KeyDistribution, LoadOptions, Protocol, Sizes, Target};
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::usage::{disk_bytes, rss_peak_bytes};
use fonn_tests::values::{Content, ValuePool};

const MIB: u64 = 1 << 20;
const RAM_BUDGET: u64 = 64 * MIB;
const DISK_BUDGET: u64 = 256 * MIB;
const RSS_MAX: u64 = RAM_BUDGET + RAM_BUDGET * 15 / 100 + 64 * MIB;
/// The code of a program that is not optimised takes so much more: measured, 21 MiB instead of 6.
/// A release is held to the guarantee itself.
const RSS_UNOPTIMISED: u64 = 16 * MIB;
const DISK_MAX: u64 = DISK_BUDGET + DISK_BUDGET / 10;

/// Watches a process from outside; the largest values that it saw.
struct Watch {
    stop: Arc<AtomicBool>,
    watcher: JoinHandle<(u64, u64)>,
}

impl Watch {
    fn start(node: &FonnNode) -> Result<Self> {
        let (pid, dir): (u32, PathBuf) = (node.pid()?, node.data_dir().to_owned());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let watcher = thread::spawn(move || {
            let (mut rss_max, mut disk_max) = (0, 0);
            while !stopped.load(Ordering::Acquire) {
                // The peak includes the recovery before the node was ready.
                rss_max = rss_max.max(rss_peak_bytes(pid).unwrap_or(0));
                disk_max = disk_max.max(disk_bytes(&dir).unwrap_or(0));
                thread::sleep(Duration::from_millis(10));
            }
            (rss_max, disk_max)
        });
        Ok(Self { stop, watcher })
    }

    fn check(self, when: &str) -> Result<()> {
        self.stop.store(true, Ordering::Release);
        let (rss, disk) = self
            .watcher
            .join()
            .map_err(|_| anyhow!("the watcher panicked"))?;
        let is_release = std::env::var_os("FONN_NODE_BIN").is_some();
        let rss_max = RSS_MAX + if is_release { 0 } else { RSS_UNOPTIMISED };
        ensure!(
            rss > 0 && rss <= rss_max,
            "{when}: {} MiB resident",
            rss / MIB
        );
        ensure!(
            disk > 0 && disk <= DISK_MAX,
            "{when}: {} MiB on disk",
            disk / MIB
        );
        Ok(())
    }
}

struct Writes {
    protocol: Protocol,
    connections: usize,
    seed: u64,
    keys: u64,
    sizes: Sizes,
}

const OBJECTS: Sizes = Sizes {
    min: 10 << 10,
    max: 400 << 10,
};
const LARGE: Sizes = Sizes {
    min: 4 << 20,
    max: 16 << 20,
};

/// One operation for each key, three of ten of them gets.
fn write(node: &FonnNode, writes: Writes) -> Result<()> {
    let Writes {
        protocol,
        connections,
        seed,
        keys,
        sizes,
    } = writes;
    let mut options = LoadOptions::new(Target::Tcp(node.addr()), protocol);
    options.connections = NonZeroUsize::new(connections).context("no connections")?;
    options.value_size = sizes;
    options.keys = keys;
    options.key_size = 24 + seed as usize;
    options.get_ratio = 0.3;
    options.operations = Some(keys);
    options.distribution = KeyDistribution::Zipf(0.8);
    options.seed = seed;
    // Not filled before: a fill takes no refusal, and the budgets are too small for all keys.
    options.no_fill = true;
    let report = load::run(&options)?;
    ensure!(report.wrong == 0, "{report}");
    Ok(())
}

#[test]
fn memory_and_disk_stay_within_their_budgets() -> Result<()> {
    let mut node = NodeOptions::new()
        .flag("--ram-budget", "64m")
        .flag("--disk-budget", "256m")
        .flag("--max-value", "16m")
        .start()?;
    let watch = Watch::start(&node)?;
    // Objects of a compile cache, many times the disk budget; then tiny ones, where the index
    // weighs most; then a few large ones.
    let objects = |seed, keys| {
        let sizes = OBJECTS;
        Writes {
            protocol: Protocol::Binary,
            connections: 16,
            seed,
            keys,
            sizes,
        }
    };
    write(&node, objects(1, 6000))?;
    watch.check("objects")?;
    let watch = Watch::start(&node)?;
    let sizes = Sizes::fixed(100);
    write(
        &node,
        Writes {
            protocol: Protocol::Resp,
            connections: 16,
            seed: 2,
            keys: 300_000,
            sizes,
        },
    )?;
    watch.check("tiny values")?;
    let watch = Watch::start(&node)?;
    let sizes = LARGE;
    write(
        &node,
        Writes {
            protocol: Protocol::Text,
            connections: 2,
            seed: 3,
            keys: 60,
            sizes,
        },
    )?;
    watch.check("large values")?;

    node.stop()?;
    node.start_again()?;
    let watch = Watch::start(&node)?;
    write(&node, objects(4, 3000))?;
    watch.check("after a stop")?;

    node.kill9()?;
    node.start_again()?;
    let watch = Watch::start(&node)?;
    write(&node, objects(5, 3000))?;
    watch.check("after a kill")
}

/// What arrives and leaves at the same time is four times the RAM budget: it waits, or is
/// refused in the words of the protocol, but neither takes the memory nor breaks a connection.
#[test]
fn many_large_requests_at_once_stay_within_the_memory_budget() -> Result<()> {
    for protocol in [Protocol::Text, Protocol::Binary, Protocol::Resp] {
        let node = NodeOptions::new()
            .flag("--ram-budget", "64m")
            .flag("--disk-budget", "256m")
            .flag("--max-value", "16m")
            .start()?;
        let watch = Watch::start(&node)?;
        write(
            &node,
            Writes {
                protocol,
                connections: 16,
                seed: 1,
                keys: 60,
                sizes: LARGE,
            },
        )?;
        watch.check(&format!("{protocol:?}"))?;
    }
    Ok(())
}

/// Asks until there is something; what is refused in the words of the protocol is asked again.
fn until_some<T>(mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match ask() {
            Ok(Some(found)) => return Ok(found),
            Err(error) if !is_refusal(&error) => return Err(error),
            Ok(None) | Err(_) => ensure!(Instant::now() < deadline, "nothing in two minutes"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// What is on its way from the bucket at the same time is eight times the RAM budget: it waits for
/// its turn.
#[test]
fn many_large_reads_out_of_the_bucket_stay_within_the_memory_budget() -> Result<()> {
    const CLIENTS: u64 = 64;
    const LEN: usize = 8 << 20;
    let bucket = Bucket::in_process()?;
    let over_bucket = |options: NodeOptions| {
        let options = options
            .flag("--cold-tier", bucket.url())
            .flag("--cold-read-timeout", "20s")
            .flag("--spill", "write-behind:1s")
            .flag("--max-value", "16m");
        let environment = bucket.environment().into_iter();
        environment.fold(options, |options, (name, value)| options.env(name, value))
    };
    let pool = ValuePool::new(Content::Random, LEN);
    let key = |number: u64| format!("large/{number}");
    let mut first = over_bucket(NodeOptions::new()).start()?;
    let mut client = first.text()?;
    for number in 0..CLIENTS {
        let value = pool.value(number, LEN).to_vec();
        until_some(|| client.set(&key(number), &value, None).map(Some))?;
    }
    let told = |node: &FonnNode, metric: &str, value: f64| {
        until_some(|| Ok(node.metric(metric)?.filter(|it| *it == value)))
    };
    told(&first, "fonn_cold_unspilled_bytes", 0.0)?;
    first.kill9()?;
    drop(first);

    let options = NodeOptions::new()
        .flag("--ram-budget", "64m")
        .flag("--disk-budget", "256m");
    let node = over_bucket(options).start()?;
    told(&node, "fonn_cold_index_ready", 1.0)?;
    let watch = Watch::start(&node)?;
    let barrier = Barrier::new(CLIENTS as usize);
    thread::scope(|scope| {
        let read = |number: u64| -> Result<()> {
            let mut client = node.text()?;
            barrier.wait();
            // Whose turn does not come in time is told that there is nothing, and asks again.
            let got = until_some(|| client.get(&key(number)))?;
            pool.value(number, LEN).check(&got)
        };
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || read(number)))
            .collect();
        clients.into_iter().try_for_each(|client| {
            let result = client.join();
            result.map_err(|_| anyhow!("a client panicked"))?
        })
    })?;
    let from_bucket = node.metric("fonn_cold_reads_total")?;
    ensure!(from_bucket >= Some(CLIENTS as f64), "{from_bucket:?} reads");
    watch.check("reads out of the bucket")
}

/// A cache that forgets the newest values to keep its budget would be of no use.
#[test]
fn the_newest_values_are_there_when_the_disk_budget_is_full() -> Result<()> {
    let mut node = NodeOptions::new()
        .flag("--ram-budget", "32m")
        .flag("--disk-budget", "128m")
        .start()?;
    let mut options = LoadOptions::new(Target::Tcp(node.addr()), Protocol::Binary);
    options.value_size = Sizes::fixed(50 << 10);
    options.keys = 10_000;
    options.fill_only = true;
    load::run(&options)?;
    for round in 0..2 {
        let mut client = node.binary()?;
        let mut there = 0;
        for number in 10_000 - 1000..10_000 {
            let key = load::key_of(number, options.key_size);
            there += u32::from(client.get(&key)?.is_some());
        }
        assert!(
            there >= 990,
            "round {round}: {there} of the newest 1000 values (50 MB) are left"
        );
        node.kill9()?;
        node.start_again()?;
    }
    Ok(())
}
