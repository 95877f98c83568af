//! The machine is lost, with its disk.

use anyhow::Result;

use fonn_tests::bucket::Bucket;
use fonn_tests::node::NodeOptions;
use fonn_tests::values::{Content, ValuePool};

use crate::support::{
    Entries, connect, destroy, metric, over, wait_until_ready, wait_until_spilled,
};

/// Most are small, as with a compile cache; one in a hundred has 2 MiB.
fn lengths() -> Vec<usize> {
    (0..100)
        .map(|at| match at {
            99 => 2 << 20,
            90..99 => 100 << 10,
            50..90 => 10 << 10,
            _ => 1 << 10,
        })
        .collect()
}

#[test]
fn a_new_node_with_only_the_bucket_serves_everything_and_so_does_another_region() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let lens = lengths();
    let (random, text) = (
        ValuePool::new(Content::Random, 2 << 20),
        ValuePool::new(Content::Text, 2 << 20),
    );
    let compiled = Entries {
        pool: &random,
        lens: &lens,
        prefix: "sccache/a/b/c/",
    };
    let texts = Entries {
        pool: &text,
        lens: &lens,
        prefix: "text/",
    };
    const EACH: u64 = 10_000;

    let first = over(&bucket).start()?;
    let other = over(&bucket).flag("--region", "other").start()?;
    let mut cache = connect(&first)?;
    compiled.write(&mut *cache, 0..EACH)?;
    texts.write(&mut *cache, 0..EACH)?;
    wait_until_spilled(&first)?;

    // While the first runs, another region follows it.
    let known = metric(&first, "fonn_cold_index_entries")?;
    crate::support::wait_until(
        "the other region knows all entries",
        std::time::Duration::from_secs(60),
        || Ok(metric(&other, "fonn_cold_index_entries")? >= known),
    )?;
    let mut cache = connect(&other)?;
    compiled.check(&mut *cache, 0..EACH / 10)?;

    destroy(first)?;
    let mut cache = connect(&other)?;
    texts.check(&mut *cache, 0..EACH / 10)?;

    let second = over(&bucket).start()?;
    wait_until_ready(&second)?;
    let mut cache = connect(&second)?;
    compiled.check(&mut *cache, 0..EACH)?;
    texts.check(&mut *cache, 0..EACH)?;
    let cold = metric(&second, "fonn_hits_total{tier=\"cold\"}")?;
    assert!(
        cold >= 2.0 * EACH as f64 * 0.99,
        "{cold} hits out of the bucket"
    );

    // What was read is at home now.
    let requests = crate::support::requests(&second, "get_range")?;
    texts.check(&mut *cache, 0..100)?;
    assert_eq!(crate::support::requests(&second, "get_range")?, requests);
    Ok(())
}

#[test]
fn a_stop_brings_what_is_missing_into_the_bucket() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 64 << 10);
    let entries = Entries {
        pool: &pool,
        lens: &[64 << 10],
        prefix: "stop/",
    };
    // Long enough that only the stop can have done it.
    let mut node = over(&bucket).flag("--spill", "write-behind:10m").start()?;
    entries.write(&mut *connect(&node)?, 0..60)?;
    node.stop()?;
    std::fs::remove_dir_all(node.data_dir())?;
    let next = over(&bucket).start()?;
    wait_until_ready(&next)?;
    entries.check(&mut *connect(&next)?, 0..60)
}

#[test]
fn a_killed_node_goes_on_where_it_was() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 64 << 10);
    let entries = Entries {
        pool: &pool,
        lens: &[64 << 10, 3_000],
        prefix: "kill/",
    };
    let mut node = over(&bucket).flag("--spill", "write-behind:10m").start()?;
    entries.write(&mut *connect(&node)?, 0..300)?;
    node.kill9()?;
    node.start_again_with(|options: NodeOptions| options.flag("--spill", "write-behind:1s"))?;
    wait_until_spilled(&node)?;
    destroy(node)?;
    let next = over(&bucket).start()?;
    wait_until_ready(&next)?;
    entries.check(&mut *connect(&next)?, 0..300)
}
