//! Nodes over a bucket, and what they say about it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bucket::Bucket;
use crate::client::{Cache, Dialect, is_refusal};
use crate::node::{FonnNode, NodeOptions};
use crate::values::ValuePool;

/// A busy machine needs its time to compress and upload.
const SPILL_LIMIT: Duration = Duration::from_secs(120);

/// A node over the bucket, with short waits.
pub fn over(bucket: &Bucket) -> NodeOptions {
    let mut options = NodeOptions::new()
        .flag("--cold-tier", bucket.url())
        .flag("--spill", "write-behind:1s")
        .flag("--cold-follow", "200ms")
        .flag("--cold-read-timeout", "20s");
    for (name, value) in bucket.environment() {
        options = options.env(name, value);
    }
    options
}

/// A metric that is there, by its name and labels.
pub fn metric(node: &FonnNode, name: &str) -> Result<f64> {
    value_on(&node.http_get("/metrics")?.body, name)
}

/// The same, on a page of metrics: what is on one page was true at one time.
pub fn value_on(page: &str, name: &str) -> Result<f64> {
    let mut lines = page.lines().filter_map(|line| line.rsplit_once(' '));
    let (_, value) = lines
        .find(|(found, _)| *found == name)
        .with_context(|| format!("there is no metric {name}"))?;
    Ok(value.parse()?)
}

/// Requests that the node made to the bucket.
pub fn requests(node: &FonnNode, operation: &str) -> Result<f64> {
    requests_on(&node.http_get("/metrics")?.body, operation)
}

/// The same, on a page of metrics.
pub fn requests_on(page: &str, operation: &str) -> Result<f64> {
    let name = format!("fonn_cold_store_requests_total{{op=\"{operation}\"}}");
    value_on(page, &name)
}

/// Requests of every kind that the node made to the bucket.
pub fn all_requests(node: &FonnNode) -> Result<f64> {
    let all = node.metric("fonn_cold_store_requests_total")?;
    all.context("there is no metric of requests")
}

/// Gets of one key that this tier answered.
pub fn hits(node: &FonnNode, tier: &str) -> Result<f64> {
    metric(node, &format!("fonn_hits_total{{tier=\"{tier}\"}}"))
}

/// Reads from the bucket with this result.
pub fn reads(node: &FonnNode, result: &str) -> Result<f64> {
    metric(
        node,
        &format!("fonn_cold_reads_total{{result=\"{result}\"}}"),
    )
}

/// Waits until `is_so`.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "in {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Waits until everything that was written is in the bucket.
pub fn wait_until_spilled(node: &FonnNode) -> Result<()> {
    wait_until("everything is in the bucket", SPILL_LIMIT, || {
        Ok(metric(node, "fonn_cold_unspilled_bytes")? == 0.0)
    })
}

/// Waits until the node knows what is in the bucket.
pub fn wait_until_ready(node: &FonnNode) -> Result<()> {
    wait_until("the index is ready", SPILL_LIMIT, || {
        Ok(metric(node, "fonn_cold_index_ready")? == 1.0)
    })
}

/// The machine is gone: process and disk.
pub fn destroy(mut node: FonnNode) -> Result<()> {
    node.kill9()?;
    std::fs::remove_dir_all(node.data_dir())?;
    Ok(())
}

/// Entries by number, with lengths that repeat in `lens`.
pub struct Entries<'a> {
    /// What values are made of.
    pub pool: &'a ValuePool,
    /// Lengths of values in bytes; the entry `n` has that of `n` modulo their count.
    pub lens: &'a [usize],
    /// What keys begin with.
    pub prefix: &'a str,
}

impl Entries<'_> {
    /// The key of the entry of this number.
    pub fn key(&self, number: u64) -> String {
        format!("{}{number:016x}", self.prefix)
    }

    fn len(&self, number: u64) -> usize {
        self.lens[number as usize % self.lens.len()]
    }

    /// Writes a range of them. Where the bucket is too slow for what is evicted writes are refused;
    /// they are tried again.
    pub fn write(&self, cache: &mut dyn Cache, numbers: std::ops::Range<u64>) -> Result<()> {
        for number in numbers {
            let value = self.pool.value(number, self.len(number)).to_vec();
            let begun = Instant::now();
            while let Err(error) = cache.set(&self.key(number), &value, None) {
                ensure!(
                    is_refusal(&error) && begun.elapsed() < SPILL_LIMIT,
                    "entry {number}: {error:#}"
                );
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Reads a range of them: all are there, byte for byte.
    pub fn check(&self, cache: &mut dyn Cache, numbers: std::ops::Range<u64>) -> Result<()> {
        for number in numbers {
            let got = cache.get(&self.key(number))?;
            let got = got.with_context(|| format!("entry {number} is lost"))?;
            self.judge(number, &got)?;
        }
        Ok(())
    }

    /// It was read: byte for byte as it was written.
    pub fn judge(&self, number: u64, got: &[u8]) -> Result<()> {
        let value = self.pool.value(number, self.len(number));
        value.check(got).with_context(|| format!("entry {number}"))
    }
}

/// A connection as sccache makes it.
pub fn connect(node: &FonnNode) -> Result<Box<dyn Cache>> {
    Dialect::Binary.connect(node.addr())
}
