//! The cold tier beside the bare SDK, on the same S3 server: spilling beside a parallel uploader, a
//! hit beside a ranged GET.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fonn_cold_tier::store::{Body, ObjectKey, ObjectStore, S3Store};
use tokio::runtime::Runtime;

use crate::bucket::Bucket;
use crate::client::Dialect;
use crate::node::{FonnNode, NodeOptions};
use crate::values::{Content, ValuePool};

/// Uploads of it at a time.
const UPLOADS: usize = 4;
const LIMIT: Duration = Duration::from_secs(300);

/// What is moved.
#[derive(Clone, Debug)]
pub struct ColdOptions {
    /// Entries of a round.
    pub entries: u64,
    /// Length of their values in bytes.
    pub value_len: usize,
    /// Length of the bare uploader's objects in bytes.
    pub object_len: usize,
    /// RAM budget of the node, as its flag has it.
    pub ram_budget: String,
    /// Measurements of each; medians count.
    pub rounds: usize,
}

/// Spills and reads, each in turn with the bare SDK.
///
/// # Errors
/// When a server does not start, or an entry is not where it has to be.
pub fn compare_cold(options: &ColdOptions) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut rates = Vec::new();
    let mut times = Vec::new();
    for round in 0..options.rounds.max(1) {
        let bucket = Bucket::in_process()?;
        let store = Arc::new(runtime.block_on(S3Store::open(bucket.options()))?);
        let rig = Rig {
            options,
            pool: ValuePool::new(Content::Random, options.value_len),
            bucket,
        };
        // Which goes first changes from round to round.
        let (spilled, uploaded) = if round % 2 == 0 {
            let spilled = rig.spill()?;
            (spilled, upload(&runtime, &store, options)?)
        } else {
            let uploaded = upload(&runtime, &store, options)?;
            (rig.spill()?, uploaded)
        };
        rates.push((spilled, uploaded));
        times.extend(rig.read(&runtime, &store)?);
    }
    let (spilled, uploaded) = (
        median(rates.iter().map(|rate| rate.0)),
        median(rates.iter().map(|rate| rate.1)),
    );
    let (hit, bare) = (
        median(times.iter().map(|time| time.0.as_secs_f64() * 1e3)),
        median(times.iter().map(|time| time.1.as_secs_f64() * 1e3)),
    );
    let mut table = String::from("| | fonn | bare SDK | ratio |\n|---|---|---|---|\n");
    writeln!(
        table,
        "| spilling, MB/s | {spilled:.0} | {uploaded:.0} | {:.2} |",
        spilled / uploaded
    )?;
    writeln!(
        table,
        "| reading {} KiB, p50 in ms | {hit:.2} | {bare:.2} | {:.2} |",
        options.value_len >> 10,
        hit / bare
    )?;
    Ok(table)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// One round.
struct Rig<'a> {
    options: &'a ColdOptions,
    pool: ValuePool,
    bucket: Bucket,
}

impl Rig<'_> {
    fn with_bucket(&self, options: NodeOptions, spill: &str) -> NodeOptions {
        let mut options = options
            .flag("--ram-budget", &self.options.ram_budget)
            .flag("--cold-tier", self.bucket.url())
            .flag("--cold-read-timeout", "20s")
            .flag("--spill", spill);
        for (name, value) in self.bucket.environment() {
            options = options.env(name, value);
        }
        options
    }

    /// Bytes a second at which a node brings its backlog into the bucket, from its first segment
    /// on. It got the backlog while it had no bucket. The node is gone then.
    fn spill(&self) -> Result<f64> {
        let mut node = NodeOptions::new().flag("--disk-budget", "20g").start()?;
        let mut cache = Dialect::Binary.connect(node.addr())?;
        for number in 0..self.options.entries {
            let value = self.pool.value(number, self.options.value_len);
            cache.set(&key(number), &value.to_vec(), None)?;
        }
        node.stop()?;
        node.start_again_with(|options| self.with_bucket(options, "write-behind:1s"))?;
        let bytes = |node: &FonnNode| metric(node, "fonn_cold_spilled_bytes_total");
        let deadline = Instant::now() + LIMIT;
        let mut first = None;
        loop {
            ensure!(Instant::now() < deadline, "the backlog is not spilled");
            let now = bytes(&node)?;
            if first.is_none() && now > 0.0 {
                first = Some((Instant::now(), now));
            }
            if metric(&node, "fonn_cold_unspilled_bytes")? == 0.0 {
                break;
            }
            // Often enough to be exact to some percent, and seldom enough to cost the node nothing.
            std::thread::sleep(Duration::from_millis(50));
        }
        let (began, before) = first.context("nothing was spilled")?;
        let rate = (bytes(&node)? - before) / began.elapsed().as_secs_f64() / 1e6;
        node.kill9()?;
        Ok(rate)
    }

    /// Times of hits out of the bucket by a new node, and of ranged GETs as long, in turn.
    fn read(&self, runtime: &Runtime, store: &S3Store) -> Result<Vec<(Duration, Duration)>> {
        let node = self
            .with_bucket(NodeOptions::new(), "write-behind:1s")
            .start()?;
        let deadline = Instant::now() + LIMIT;
        while metric(&node, "fonn_cold_index_ready")? != 1.0 {
            ensure!(Instant::now() < deadline, "the index is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut cache = Dialect::Binary.connect(node.addr())?;
        let mut times = Vec::new();
        let key_of = object_key(0)?;
        let len = self.options.value_len as u64;
        let object_len = self.options.object_len as u64;
        let places = (object_len / len).max(1);
        for number in (0..self.options.entries).step_by(7) {
            let began = Instant::now();
            let got = cache.get(&key(number))?;
            let hit = began.elapsed();
            let got = got.with_context(|| format!("entry {number} is lost"))?;
            self.pool
                .value(number, self.options.value_len)
                .check(&got)?;
            let start = number % places * len;
            let range: Range<u64> = start..(start + len).min(object_len);
            let began = Instant::now();
            runtime.block_on(store.get_range(&key_of, range))?;
            times.push((hit, began.elapsed()));
        }
        let cold = metric(&node, "fonn_cold_reads_total")?;
        ensure!(
            cold as usize >= times.len(),
            "only {cold} reads were of the bucket"
        );
        Ok(times)
    }
}

fn key(number: u64) -> String {
    format!("cold/{number:016x}")
}

fn object_key(number: usize) -> Result<ObjectKey> {
    Ok(ObjectKey::new(&format!("bare/{number}"))?)
}

/// MB a second of uploading as many bytes as a round spills from files, several at a time.
fn upload(runtime: &Runtime, store: &Arc<S3Store>, options: &ColdOptions) -> Result<f64> {
    let total = options.entries as usize * options.value_len;
    let len = options.object_len;
    let pool = ValuePool::new(Content::Random, len);
    let count = total.div_ceil(len);
    let files = tempfile::tempdir()?;
    let file = |number: usize| files.path().join(number.to_string());
    for number in 0..count {
        std::fs::write(file(number), pool.value(number as u64, len).to_vec())?;
    }
    let began = Instant::now();
    runtime.block_on(async {
        let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let mut uploads = tokio::task::JoinSet::new();
        for _ in 0..UPLOADS {
            let (next, store) = (Arc::clone(&next), Arc::clone(store));
            let files = files.path().to_owned();
            uploads.spawn(async move {
                loop {
                    let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if number >= count {
                        return anyhow::Ok(());
                    }
                    let file = files.join(number.to_string());
                    let bytes = tokio::task::spawn_blocking(|| std::fs::read(file)).await??;
                    store
                        .put(&object_key(number)?, Body::from(bytes::Bytes::from(bytes)))
                        .await?;
                }
            });
        }
        while let Some(done) = uploads.join_next().await {
            done??;
        }
        anyhow::Ok(())
    })?;
    Ok((count * len) as f64 / began.elapsed().as_secs_f64() / 1e6)
}

fn metric(node: &FonnNode, name: &str) -> Result<f64> {
    let value = node.metric(name)?;
    value.with_context(|| format!("there is no metric {name}"))
}
