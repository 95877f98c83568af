//! The bucket is gone for a while.

use std::time::{Duration, Instant};

use anyhow::Result;

use fonn_tests::bucket::Bucket;
use fonn_tests::promised::at_most;
use fonn_tests::values::{Content, ValuePool};

use fonn_tests::spilled::{
    Entries, connect, destroy, metric, over, wait_until, wait_until_ready, wait_until_spilled,
};

#[test]
fn without_the_bucket_the_node_works_and_catches_up_afterwards() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 64 << 10);
    let entries = Entries {
        pool: &pool,
        lens: &[64 << 10, 1000],
        prefix: "outage/",
    };
    let first = over(&bucket).start()?;
    entries.write(&mut *connect(&first)?, 0..100)?;
    wait_until_spilled(&first)?;
    destroy(first)?;
    let node = over(&bucket).flag("--cold-read-timeout", "300ms").start()?;
    wait_until_ready(&node)?;

    bucket.go_down();
    let mut cache = connect(&node)?;
    // What only the bucket has is a miss, in time; never an error.
    let start = Instant::now();
    for number in 0..20 {
        assert_eq!(cache.get(&entries.key(number))?, None);
    }
    let limit = at_most(Duration::from_secs(20), Duration::from_secs(60));
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    entries.write(&mut *cache, 100..400)?;
    entries.check(&mut *cache, 100..400)?;
    assert!(metric(&node, "fonn_cold_unspilled_entries")? >= 250.0);

    bucket.come_up();
    wait_until_spilled(&node)?;
    // On a machine under load some may be later than --cold-read-timeout, and are misses once more.
    for number in 0..400 {
        wait_until(
            "reads go to the bucket again",
            Duration::from_secs(60),
            || Ok(cache.get(&entries.key(number))?.is_some()),
        )?;
    }
    entries.check(&mut *cache, 0..400)?;
    destroy(node)?;
    let next = over(&bucket).start()?;
    wait_until_ready(&next)?;
    entries.check(&mut *connect(&next)?, 0..400)
}

#[test]
fn a_node_starts_without_its_bucket() -> Result<()> {
    let bucket = Bucket::in_process()?;
    bucket.go_down();
    let node = over(&bucket).start()?;
    // It has made out that the bucket is not there, and says so.
    let told = node.http_get("/readyz")?.body;
    assert!(
        told.starts_with("ready without the bucket's index: "),
        "{told}"
    );
    let mut cache = connect(&node)?;
    cache.set("k", b"value", None)?;
    assert_eq!(cache.get("k")?.as_deref(), Some(&b"value"[..]));
    assert_eq!(cache.get("absent")?, None);
    bucket.come_up();
    wait_until_spilled(&node)?;
    wait_until("nothing is amiss", Duration::from_secs(60), || {
        Ok(node.http_get("/readyz")?.body == "ready\n")
    })
}

#[test]
fn a_disk_that_is_full_meanwhile_loses_entries_and_says_so_and_old_ones_do_not_come_back()
-> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 256 << 10);
    let entries = Entries {
        pool: &pool,
        lens: &[256 << 10],
        prefix: "full/",
    };
    let node = over(&bucket)
        .flag("--ram-budget", "16m")
        .flag("--disk-budget", "64m")
        .start()?;
    let mut cache = connect(&node)?;
    cache.set("replaced", b"old", None)?;
    wait_until_spilled(&node)?;
    bucket.go_down();
    cache.set("replaced", b"new", None)?;
    entries.write(&mut *cache, 0..400)?;
    assert!(metric(&node, "fonn_cold_lost_entries_total")? > 0.0);
    bucket.come_up();
    wait_until_spilled(&node)?;
    // It may be lost with the log that had it; the one before must not come back for that.
    assert_ne!(cache.get("replaced")?.as_deref(), Some(&b"old"[..]));
    destroy(node)?;
    let next = over(&bucket).start()?;
    wait_until_ready(&next)?;
    assert_ne!(
        connect(&next)?.get("replaced")?.as_deref(),
        Some(&b"old"[..])
    );
    Ok(())
}
