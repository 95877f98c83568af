//! What the bucket is asked, and how often.

use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use fonn_tests::bucket::Bucket;
use fonn_tests::values::{Content, ValuePool};

use fonn_tests::spilled::{
    Entries, all_requests, connect, destroy, metric, over, requests, requests_on, value_on,
    wait_until, wait_until_ready, wait_until_spilled,
};

#[test]
fn a_thousand_entries_of_60_kib_take_ten_puts_at_most() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 60 << 10);
    let entries = Entries {
        pool: &pool,
        lens: &[60 << 10],
        prefix: "puts/",
    };
    let node = over(&bucket).flag("--spill", "write-behind:30s").start()?;
    entries.write(&mut *connect(&node)?, 0..1000)?;
    wait_until_spilled(&node)?;
    let puts = requests(&node, "put")? + requests(&node, "put_if_absent")?;
    assert!((1.0..=10.0).contains(&puts), "{puts}");
    Ok(())
}

#[test]
fn absent_keys_cost_no_request() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 1000);
    let entries = Entries {
        pool: &pool,
        lens: &[1000],
        prefix: "there/",
    };
    // Others are asked for what is new so seldom that it does not happen here.
    let node = over(&bucket).flag("--cold-follow", "1h").start()?;
    entries.write(&mut *connect(&node)?, 0..1000)?;
    wait_until_spilled(&node)?;
    let before = requests(&node, "get_range")?;
    let (all_before, arrived_before) = (all_requests(&node)?, bucket.requests());
    let mut cache = connect(&node)?;
    for number in 0..100_000 {
        let got = cache.get(&format!("absent/{number:016x}"))?;
        ensure!(got.is_none(), "key {number} is there");
    }
    assert_eq!(requests(&node, "get_range")?, before);
    // Of every kind, as the node counts them and as they arrived. What comes by the clock may come
    // meanwhile: a comparison with the bucket in the first minute, and looking for garbage every
    // five.
    let (all, arrived) = (all_requests(&node)?, bucket.requests());
    let (all, arrived) = (all - all_before, arrived - arrived_before);
    assert!(
        all <= BY_THE_CLOCK as f64 && arrived <= BY_THE_CLOCK,
        "{all} requests, of which {arrived} arrived"
    );
    Ok(())
}

/// Requests of a comparison and of a round of garbage collection in a small bucket.
const BY_THE_CLOCK: u64 = 20;

#[test]
fn requests_cost_what_the_operator_says() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let first = over(&bucket).start()?;
    connect(&first)?.set("read", b"value", None)?;
    wait_until_spilled(&first)?;
    destroy(first)?;
    // Dollars a million.
    let node = over(&bucket)
        .flag("--cold-prices", "3000000/70000")
        .start()?;
    wait_until_ready(&node)?;
    let mut cache = connect(&node)?;
    ensure!(cache.get("read")?.is_some());
    cache.set("written", b"value", None)?;
    wait_until_spilled(&node)?;
    // A request may end while a page of metrics is made: the next page is right then.
    wait_until("the cost is right", Duration::from_secs(60), || {
        let page = node.http_get("/metrics")?.body;
        let sum = |operations: &[&str]| -> Result<f64> {
            operations.iter().map(|it| requests_on(&page, it)).sum()
        };
        let writes = sum(&["put", "put_if_absent", "list"])?;
        let reads = sum(&["get", "get_range", "get_suffix", "head"])?;
        let cost = value_on(&page, "fonn_cold_store_cost_dollars_total")?;
        let expected = writes * 3.0 + reads * 0.07;
        Ok(writes > 0.0 && reads > 0.0 && (cost - expected).abs() < 0.001)
    })
}

#[test]
fn a_burst_on_one_key_is_one_get() -> Result<()> {
    const CLIENTS: usize = 100;
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 1 << 20);
    let entries = Entries {
        pool: &pool,
        lens: &[1 << 20],
        prefix: "burst/",
    };
    let first = over(&bucket).start()?;
    entries.write(&mut *connect(&first)?, 0..4)?;
    wait_until_spilled(&first)?;
    destroy(first)?;
    let node = over(&bucket).start()?;
    wait_until_ready(&node)?;
    let asked = || -> Result<f64> {
        // What is not answered in time is asked once more, and that is no other read.
        let retried = metric(&node, "fonn_cold_store_retries_total")?;
        Ok(requests(&node, "get_range")? - retried)
    };
    let before = asked()?;
    let barrier = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    let mut cache = connect(&node)?;
                    barrier.wait();
                    entries.check(&mut *cache, 2..3)
                })
            })
            .collect();
        clients.into_iter().try_for_each(|client| {
            let result = client.join().ok();
            result.context("a client panicked")?
        })
    })?;
    assert_eq!(asked()?, before + 1.0);
    Ok(())
}
