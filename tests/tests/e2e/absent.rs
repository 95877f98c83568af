//! Keys that were never set cost no access to the disk, however much is on it.

use std::fs;

use anyhow::{Context, Result, ensure};

use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::values::{Content, ValuePool};

const ENTRIES: u64 = 20_000;
const ABSENT: u64 = 10_000;
const VALUE_LEN: usize = 1000;
/// Keys of one request.
const AT_ONCE: u64 = 50;

/// System calls that read a file, since the process began; those that receive from a socket do not
/// count.
fn file_reads(node: &FonnNode) -> Result<u64> {
    let io = fs::read_to_string(format!("/proc/{}/io", node.pid()?))?;
    let line = io.lines().find_map(|line| line.strip_prefix("syscr: "));
    Ok(line.context("no syscr")?.parse()?)
}

#[test]
fn a_key_that_was_never_set_is_not_looked_for_in_files() -> Result<()> {
    // Eight generations share the budget: several of them are read.
    let mut node = NodeOptions::new()
        .flag("--ram-budget", "16m")
        .flag("--disk-budget", "64m")
        .flag("--codec", "fresh=none,compacted=none")
        .start()?;
    let pool = ValuePool::new(Content::Random, VALUE_LEN);
    let mut client = node.text()?;
    for number in 0..ENTRIES {
        let value = pool.value(number, VALUE_LEN).to_vec();
        let stored = client.store(&format!("set here-{number} 0 0 {VALUE_LEN}"), &value)?;
        ensure!(stored == "STORED", "{stored}");
    }
    node.stop()?;
    node.start_again()?;
    let generations = node.metric("fonn_disk_generations")?;
    ensure!(generations >= Some(3.0), "{generations:?} generations");

    let mut client = node.text()?;
    let mut reads_of = |prefix: &str, from: u64, count: u64| -> Result<(u64, u64)> {
        let before = file_reads(&node)?;
        let mut found = 0;
        for first in (from..from + count).step_by(AT_ONCE as usize) {
            let keys: Vec<String> = (first..first + AT_ONCE)
                .map(|number| format!("{prefix}-{number}"))
                .collect();
            found += client.items(&format!("get {}", keys.join(" ")))?.len() as u64;
        }
        Ok((found, file_reads(&node)? - before))
    };
    // The control: what is there is read, and that is counted.
    let (found, reads) = reads_of("here", ENTRIES - 1000, 1000)?;
    ensure!(found == 1000, "{found} of 1000 are there");
    ensure!(reads >= 1000, "{reads} reads for 1000 entries");
    // What the node reads by itself, once after a start or to make room, is in one of the rounds.
    let mut least = u64::MAX;
    for round in 0..3 {
        let (found, reads) = reads_of("absent", round * ABSENT, ABSENT)?;
        ensure!(found == 0, "{found} keys that were never set are there");
        least = least.min(reads);
    }
    // A filter lets one of 10,000 pass; the rest is what the node reads by itself.
    ensure!(
        least < ABSENT / 20,
        "{least} reads for {ABSENT} keys that are not there"
    );
    Ok(())
}
