//! Bytes that changed on disk unnoticed.

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
    // So much behind them that the index knows them for good: the end of a log is read anew when it
    // is opened.
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

/// The end of a log, which was written last before a kill.
#[test]
fn damage_in_the_end_of_a_log_costs_its_records_and_is_counted() -> Result<()> {
    const ENTRIES: u64 = 40;
    let pool = ValuePool::new(Content::Random, 8 << 10);
    let mut node = FonnNode::start()?;
    let mut client = node.text()?;
    for round in 0..2 {
        for number in 0..ENTRIES {
            let value = pool.value(round * ENTRIES + number, 2000).to_vec();
            let stored = client.store(&format!("set k{number} 0 0 2000"), &value)?;
            ensure!(stored == "STORED", "{stored}");
        }
    }
    node.kill9()?;
    let [log] = &value_logs(&node)?[..] else {
        anyhow::bail!("one generation was expected");
    };
    // In the head of the last record but two, where its version is, and in the last value.
    let mut bytes = fs::read(log)?;
    let at = |number: u64| {
        let key = format!("k{number}");
        let found = bytes
            .windows(key.len())
            .rposition(|it| it == key.as_bytes());
        found.context("the key is not in the log")
    };
    let places = [at(ENTRIES - 3)? - 20, at(ENTRIES - 1)? + 1000];
    for place in places {
        bytes[place - 3] ^= 0x42;
        bytes[place] ^= 0x24;
    }
    fs::write(log, bytes)?;
    node.start_again()?;
    let mut client = node.text()?;
    for number in 0..ENTRIES {
        let items = client.items(&format!("get k{number}"))?;
        if [ENTRIES - 3, ENTRIES - 1].contains(&number) {
            ensure!(items.is_empty(), "k{number}: something was served");
            continue;
        }
        let item = items.first();
        let item = item.with_context(|| format!("k{number}, beside them, is lost"))?;
        pool.value(ENTRIES + number, 2000).check(&item.value)?;
    }
    let found = node.metric("fonn_disk_damaged_reads_total")?;
    ensure!(found == Some(2.0), "{found:?} damaged records were counted");
    ensure!(node.metric("fonn_disk_replay_cut_bytes_total")? == Some(0.0));
    ensure!(node.metric("fonn_disk_broken_generations_total")? == Some(0.0));
    Ok(())
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
