//! The machine is lost, with its disk.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use fonn_tests::bucket::Bucket;
use fonn_tests::delay::DelayProxy;
use fonn_tests::node::{FonnNode, NodeOptions, READING};
use fonn_tests::promised::at_most;
use fonn_tests::values::{Content, ValuePool};

use fonn_tests::spilled::{
    Entries, connect, destroy, hits, metric, over, wait_until, wait_until_ready, wait_until_spilled,
};

/// Most are small, as with a compile cache; one in five hundred has 2 MiB.
fn lengths() -> Vec<usize> {
    (0..500)
        .map(|at| match at % 100 {
            99 if at == 499 => 2 << 20,
            90.. => 100 << 10,
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

    // While the first runs, another region follows it. Half of all is read there before the first
    // is gone, half after.
    let known = metric(&first, "fonn_cold_index_entries")?;
    wait_until(
        "the other region knows all entries",
        Duration::from_secs(60),
        || Ok(metric(&other, "fonn_cold_index_entries")? >= known),
    )?;
    let mut cache = connect(&other)?;
    compiled.check(&mut *cache, 0..EACH)?;

    destroy(first)?;
    let mut cache = connect(&other)?;
    texts.check(&mut *cache, 0..EACH)?;
    let far = hits(&other, "cold")?;
    assert!(
        far >= 2.0 * EACH as f64 * 0.99,
        "{far} hits out of the bucket"
    );
    drop(other);

    let second = over(&bucket).start()?;
    wait_until_ready(&second)?;
    let mut cache = connect(&second)?;
    compiled.check(&mut *cache, 0..EACH)?;
    texts.check(&mut *cache, 0..EACH)?;
    let cold = hits(&second, "cold")?;
    assert!(
        cold >= 2.0 * EACH as f64 * 0.99,
        "{cold} hits out of the bucket"
    );

    // What was read is at home now.
    let requests = fonn_tests::spilled::requests(&second, "get_range")?;
    texts.check(&mut *cache, 0..100)?;
    assert_eq!(
        fonn_tests::spilled::requests(&second, "get_range")?,
        requests
    );
    Ok(())
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lost machine takes with it what was written in the window that the metric told, and nothing
/// older.
#[test]
fn what_is_older_than_the_window_survives_a_loss_in_the_middle_of_writing() -> Result<()> {
    // Clocks count milliseconds, and an answer takes its time.
    const SLACK: Duration = Duration::from_millis(500);
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 64 << 10);
    let entries = Entries {
        pool: &pool,
        lens: &[1 << 10, 10 << 10, 1 << 10, 64 << 10],
        prefix: "window/",
    };
    let node = over(&bucket).start()?;
    let mut cache = connect(&node)?;
    // When each was acknowledged.
    let acknowledged = Mutex::new(Vec::new());
    let (mut older, mut window) = (0, Duration::MAX);
    std::thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| {
            // Until the node is gone.
            for number in 0.. {
                if entries.write(&mut *cache, number..number + 1).is_err() {
                    break;
                }
                lock(&acknowledged).push(Instant::now());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        // Some segments are in the bucket, and more is on its way.
        let spilled = wait_until(
            "it spills while it is written to",
            Duration::from_secs(120),
            || {
                let spilled = metric(&node, "fonn_cold_spilled_segments_total")?;
                let asked = Instant::now();
                window = Duration::from_secs_f64(metric(&node, "fonn_cold_unspilled_seconds")?);
                let horizon = asked.checked_sub(window + SLACK).context("no horizon")?;
                let acknowledged = lock(&acknowledged);
                older = acknowledged.partition_point(|at| *at < horizon);
                Ok(spilled >= 4.0 && older >= 100 && older < acknowledged.len())
            },
        );
        // The writer ends with it.
        destroy(node)?;
        writer.join().ok().context("the writer panicked")?;
        spilled
    })?;
    let limit = at_most(Duration::from_secs(20), Duration::from_secs(60));
    assert!(window < limit, "{window:?}");
    let (older, count) = (older as u64, lock(&acknowledged).len() as u64);

    let next = over(&bucket).start()?;
    wait_until_ready(&next)?;
    let mut cache = connect(&next)?;
    entries.check(&mut *cache, 0..older)?;
    // Of the rest some are lost, but none is wrong.
    for number in older..count {
        if let Some(got) = cache.get(&entries.key(number))? {
            entries.judge(number, &got)?;
        }
    }
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
    let at_risk = |node: &FonnNode, of: &str| metric(node, &format!("fonn_cold_unspilled_{of}"));
    const WHAT: [&str; 3] = ["seconds", "entries", "bytes"];
    for of in WHAT {
        assert_eq!(at_risk(&node, of)?, 0.0, "{of}");
    }
    entries.write(&mut *connect(&node)?, 0..60)?;
    assert!(at_risk(&node, "entries")? >= 60.0);
    assert!(at_risk(&node, "bytes")? >= (60 * (64 << 10)) as f64);
    wait_until("they become older", Duration::from_secs(60), || {
        Ok(at_risk(&node, "seconds")? > 0.0)
    })?;
    node.stop()?;
    // Its own disk has nothing left that the bucket lacks.
    node.start_again()?;
    for of in WHAT {
        assert_eq!(at_risk(&node, of)?, 0.0, "{of}");
    }
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

/// An operator that waits for `/readyz` before the next machine is replaced, or before clients are
/// sent there, gets no cold cache.
#[test]
fn a_new_machine_is_ready_when_it_finds_what_the_bucket_has() -> Result<()> {
    const ROUND_TRIP: Duration = Duration::from_secs(2);
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 1 << 10);
    let entries = Entries {
        pool: &pool,
        lens: &[1 << 10],
        prefix: "rollout/",
    };
    let first = over(&bucket).start()?;
    entries.write(&mut *connect(&first)?, 0..3)?;
    wait_until_spilled(&first)?;
    destroy(first)?;

    // Each request takes so long that the index is being read for several seconds.
    let far = DelayProxy::start(bucket.address(), ROUND_TRIP)?;
    let mut options = over(&bucket).before_its_index();
    for (name, value) in bucket.environment_through(&format!("http://{}", far.address())) {
        options = options.env(name, value);
    }
    for _ in 0..5 {
        let node = options.clone().start()?;
        let told = node.http_get("/readyz")?;
        // Clients that come all the same are served.
        let mut cache = connect(&node)?;
        let early = cache.get(&entries.key(0))?;
        let told_then = node.http_get("/readyz")?;
        if told_then.status == 200 {
            // The index was read before all was asked, on a machine that stood still: nothing is
            // shown by that.
            entries.check(&mut *cache, 0..3)?;
            destroy(node)?;
            continue;
        }
        for told in [told, told_then] {
            assert_eq!((told.status, told.body.as_str()), (503, READING));
        }
        assert_eq!(early, None);
        wait_until("it is ready", Duration::from_secs(120), || {
            Ok(node.http_get("/readyz")?.status == 200)
        })?;
        entries.check(&mut *cache, 0..3)?;
        assert_eq!(node.http_get("/readyz")?.body, "ready\n");
        return Ok(());
    }
    anyhow::bail!("each of them was ready before it could have what the bucket has")
}
