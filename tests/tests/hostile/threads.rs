//! Which threads a node has.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use fonn_tests::node::{FonnNode, NodeOptions};

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

/// The names of the threads of a node, as the kernel cuts them.
fn threads(node: &FonnNode) -> Result<Vec<String>> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.pid()?))?;
    // A thread may end meanwhile.
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.filter_map(|task| name(task.ok()?));
    Ok(names.map(|name| name.trim().to_owned()).collect())
}

/// Waits until the threads of a node are as they should be: each names itself a moment after its
/// start.
fn wait_for(node: &FonnNode, are_right: impl Fn(&[String]) -> bool) -> Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let threads = threads(node)?;
        if are_right(&threads) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{threads:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The kernel tells an error of writing back once for each open file. A thread that synced beside
/// the writer could take it, and the writer would acknowledge what is not on disk.
#[test]
fn with_fsync_no_thread_syncs_beside_the_writer() -> Result<()> {
    for (durability, has_sync_thread) in [("batched", true), ("fsync", false)] {
        let node = NodeOptions::new()
            .flag("--durability", durability)
            .start()?;
        wait_for(&node, |threads| {
            let has = |name: &str| threads.iter().any(|it| it == name);
            has("fonn-disk-write") && has("fonn-disk-sync") == has_sync_thread
        })?;
    }
    Ok(())
}
