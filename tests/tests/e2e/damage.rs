//! Bytes that changed on disk while nobody looked.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use fonn_tests::node::FonnNode;
use fonn_tests::values::{Content, ValuePool};

/// The value logs of a node that is stopped.
fn value_logs(node: &FonnNode) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(node.data_dir())? {
        let path = entry?.path().join("values");
        if fs::metadata(&path).is_ok_and(|it| it.len() > 0) {
            found.push(path);
        }
    }
    Ok(found)
}

#[test]
fn a_damaged_record_is_a_miss_that_is_counted_and_logged_and_costs_no_other() -> Result<()> {
    let pool = ValuePool::new(Content::Random, 64 << 10);
    let mut node = FonnNode::start()?;
    let mut client = node.text()?;
    for number in 0..3 {
        let value = pool.value(number, 5000).to_vec();
        let stored = client.store(&format!("set k{number} 0 0 5000"), &value)?;
        ensure!(stored == "STORED", "{stored}");
    }
    // So much behind them that the index knows them for good: the end of a log is read anew when it is opened, and cut
    // where it is damaged, as after a kill.
    for number in 0..150 {
        let value = pool.value(number, 60_000).to_vec();
        client.store(&format!("set more{number} 0 0 60000"), &value)?;
    }
    let counted = |node: &FonnNode| {
        let found = node.metric("fonn_disk_damaged_reads_total")?;
        found.context("no such metric")
    };
    ensure!(counted(&node)? == 0.0);
    node.stop()?;

    // In the middle of the second value.
    let logs = value_logs(&node)?;
    let [log] = logs.as_slice() else {
        anyhow::bail!("one generation was expected: {logs:?}");
    };
    let mut bytes = fs::read(log)?;
    let value = pool.value(1, 5000).to_vec();
    let at = bytes.windows(value.len()).position(|it| it == value);
    bytes[at.context("the value is not in the log")? + 2500] ^= 1;
    fs::write(log, bytes)?;

    node.start_again()?;
    let mut client = node.text()?;
    for number in 0..3 {
        let items = client.items(&format!("get k{number}"))?;
        if number == 1 {
            ensure!(items.is_empty(), "a damaged value was served");
            continue;
        }
        let item = items.first();
        let item = item.with_context(|| format!("k{number}, beside it, is lost"))?;
        pool.value(number, 5000).check(&item.value)?;
    }
    let found = counted(&node)?;
    ensure!(found == 1.0, "{found} damaged records were counted");
    let log = node.log()?;
    node.daemon()?
        .wait_until("a line about it", Duration::from_secs(60), || {
            log.text().contains("damaged record")
        })
}

#[test]
fn the_queues_of_the_disk_and_what_they_turned_away_are_exported() -> Result<()> {
    let node = FonnNode::start()?;
    for (name, expected) in [
        ("fonn_disk_write_queue_bytes", 0.0),
        ("fonn_disk_read_queue_depth", 0.0),
        ("fonn_disk_rejected_reads_total", 0.0),
        ("fonn_disk_rejected_writes_total", 0.0),
        ("fonn_disk_failed_reads_total", 0.0),
        ("fonn_disk_failed_writes_total", 0.0),
        ("fonn_disk_failed_syncs_total", 0.0),
        ("fonn_disk_dropped_generations_total", 0.0),
        ("fonn_disk_failed_generations_total", 0.0),
        ("fonn_disk_broken_generations_total", 0.0),
        ("fonn_disk_carried_entries_total", 0.0),
        ("fonn_disk_carried_bytes_total", 0.0),
        ("fonn_disk_skipped_carries_total", 0.0),
    ] {
        let found = node.metric(name)?;
        ensure!(found == Some(expected), "{name} is {found:?}");
    }
    for name in [
        "fonn_disk_write_queue_limit_bytes",
        "fonn_disk_read_queue_limit",
    ] {
        let found = node.metric(name)?;
        ensure!(found > Some(0.0), "{name} is {found:?}");
    }
    Ok(())
}
