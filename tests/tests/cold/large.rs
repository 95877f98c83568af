//! Large values out of the bucket, in a node with little memory.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use fonn_cold_tier::store::{ObjectStore, S3Store};
use fonn_tests::bucket::Bucket;
use fonn_tests::usage::rss_peak_bytes;
use fonn_tests::values::{Content, ValuePool};

use fonn_tests::spilled::{
    Entries, connect, destroy, metric, over, wait_until_ready, wait_until_spilled,
};

const RAM_MIB: u64 = 64;
const LEN: usize = 32 << 20;
const READERS: u64 = 8;

/// Eight clients want a value each that is half as large as the RAM budget, compressed in the
/// bucket. The process stays within what it is allowed, and all of them get theirs.
#[test]
fn values_of_half_the_ram_budget_are_read_within_its_memory() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Text, LEN);
    let entries = Entries {
        pool: &pool,
        lens: &[LEN],
        prefix: "large/",
    };
    let with = |ram_mib: u64| {
        over(&bucket)
            .flag("--ram-budget", format!("{ram_mib}m"))
            .flag("--codec", "cold=zstd:1")
            .flag("--cold-read-timeout", "120s")
    };
    // Their writer needs room for a value and its copies.
    let first = with(1024).start()?;
    entries.write(&mut *connect(&first)?, 0..READERS)?;
    wait_until_spilled(&first)?;
    destroy(first)?;
    let bare = bare_read(&bucket)?;

    let node = with(RAM_MIB).start()?;
    wait_until_ready(&node)?;
    let began = Instant::now();
    entries.check(&mut *connect(&node)?, 0..1)?;
    let one = began.elapsed();
    let began = Instant::now();
    let (addr, entries) = (node.addr(), &entries);
    std::thread::scope(|scope| -> Result<()> {
        let read = move |number| -> Result<()> {
            let mut cache = fonn_tests::client::Dialect::Binary.connect(addr)?;
            entries.check(&mut *cache, number..number + 1)
        };
        let readers: Vec<_> = (1..READERS)
            .map(|number| scope.spawn(move || read(number)))
            .collect();
        for reader in readers {
            reader.join().ok().context("a reader panicked")??;
        }
        Ok(())
    })?;
    let all = began.elapsed();
    let peak = rss_peak_bytes(node.pid()?)?;
    println!(
        "peak {} MiB; one value of {} MiB in {one:.2?}, its bare object in {bare:.2?}; {} at once in {all:.2?}",
        peak >> 20,
        LEN >> 20,
        READERS - 1
    );
    assert!(metric(&node, "fonn_hits_total{tier=\"cold\"}")? >= READERS as f64);
    let allowed = (RAM_MIB << 20) / 100 * 115 + (64 << 20);
    ensure!(peak <= allowed, "{peak} bytes of {allowed}");
    Ok(())
}

/// The time to get the largest object of the bucket, as it is.
fn bare_read(bucket: &Bucket) -> Result<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let store = S3Store::open(bucket.options()).await?;
        let page = store.list("", None, 1000).await?;
        let largest = page.objects.iter().max_by_key(|object| object.size_bytes);
        let largest = largest.context("the bucket is empty")?;
        let began = Instant::now();
        store.get_range(&largest.key, 0..largest.size_bytes).await?;
        Ok(began.elapsed())
    })
}
