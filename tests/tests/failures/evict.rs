//! The bucket as the place for what the disk has no room for.

use anyhow::Result;

use fonn_tests::bucket::Bucket;
use fonn_tests::usage::disk_bytes;
use fonn_tests::values::{Content, ValuePool};

use fonn_tests::spilled::{Entries, connect, hits, metric, over};

#[test]
fn a_working_set_of_ten_times_ram_and_disk_stays_readable() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 256 << 10);
    let entries = Entries {
        pool: &pool,
        lens: &[256 << 10, 60 << 10, 4 << 10],
        prefix: "evict/",
    };
    // 100 MiB together.
    let node = over(&bucket)
        .flag("--spill", "on-evict")
        .flag("--ram-budget", "36m")
        .flag("--disk-budget", "64m")
        .start()?;
    let count = (1000 << 20) / (320 << 10) * 3;
    let mut cache = connect(&node)?;
    entries.write(&mut *cache, 0..count)?;
    assert_eq!(metric(&node, "fonn_cold_lost_entries_total")?, 0.0);
    // Generations go while they are counted.
    let on_disk = disk_bytes(node.data_dir())?;
    assert!(on_disk < 70 << 20, "{on_disk} bytes on disk");

    // How many of a range each tier answers.
    let mut check = |numbers: std::ops::Range<u64>| -> Result<[u64; 3]> {
        let now = || -> Result<[f64; 3]> {
            Ok([
                hits(&node, "ram")?,
                hits(&node, "disk")?,
                hits(&node, "cold")?,
            ])
        };
        let before = now()?;
        entries.check(&mut *cache, numbers)?;
        let after = now()?;
        Ok([0, 1, 2].map(|at| (after[at] - before[at]) as u64))
    };
    // What was written last, a MiB, is at home, and once read in RAM.
    let [_, _, cold] = check(count - 9..count)?;
    assert_eq!(cold, 0);
    assert_eq!(check(count - 9..count)?, [9, 0, 0]);
    // Further back RAM has it, then the disk, and then the bucket alone.
    let mut from = [0; 3];
    for end in (0..=count).rev().step_by(10) {
        let slice = check(end - 10..end)?;
        from = [0, 1, 2].map(|at| from[at] + slice[at]);
        if slice == [0, 0, 10] {
            break;
        }
    }
    assert!(from[0] >= 50 && from[1] >= 10, "{from:?}");
    assert_eq!(check(0..50)?, [0, 0, 50]);
    // What is read in turn and is ten times too much is never at home when its turn comes; and what
    // was read last is then.
    let [_, _, cold] = check(0..count)?;
    assert!(cold as f64 >= count as f64 * 0.85, "{cold} of {count}");
    let [_, _, cold] = check(count - 40..count)?;
    assert_eq!(cold, 0);
    Ok(())
}
