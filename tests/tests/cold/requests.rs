//! What the bucket is asked, and how often.

use std::sync::Barrier;

use anyhow::{Context, Result, ensure};

use fonn_tests::bucket::Bucket;
use fonn_tests::values::{Content, ValuePool};

use crate::support::{
    Entries, connect, destroy, over, requests, wait_until_ready, wait_until_spilled,
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
    let node = over(&bucket).start()?;
    entries.write(&mut *connect(&node)?, 0..1000)?;
    wait_until_spilled(&node)?;
    let before = requests(&node, "get_range")?;
    let mut cache = connect(&node)?;
    for number in 0..100_000 {
        let got = cache.get(&format!("absent/{number:016x}"))?;
        ensure!(got.is_none(), "key {number} is there");
    }
    assert_eq!(requests(&node, "get_range")?, before);
    Ok(())
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
    let before = requests(&node, "get_range")?;
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
    assert_eq!(requests(&node, "get_range")?, before + 1.0);
    Ok(())
}
