//! The bucket as the place for what the disk has no room for.

use anyhow::Result;

use fonn_tests::bucket::Bucket;
use fonn_tests::values::{Content, ValuePool};

use crate::support::{Entries, bytes_below, connect, metric, over};

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
    let on_disk = bytes_below(node.data_dir())?;
    assert!(on_disk < 70 << 20, "{on_disk} bytes on disk");

    // What was written last is at home.
    let hits = |tier: &str| metric(&node, &format!("fonn_hits_total{{tier=\"{tier}\"}}"));
    entries.check(&mut *cache, count - 40..count)?;
    assert_eq!((hits("ram")? + hits("disk")?, hits("cold")?), (40.0, 0.0));
    // What is read in turn and is ten times too much is never at home when its turn comes; and what was
    // read last is then.
    entries.check(&mut *cache, 0..count)?;
    let cold = hits("cold")?;
    assert!(cold >= count as f64 * 0.85, "{cold} of {count}");
    entries.check(&mut *cache, count - 40..count)?;
    assert_eq!(hits("cold")?, cold);
    Ok(())
}
