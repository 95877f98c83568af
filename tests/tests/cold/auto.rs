//! `cold=auto` in a node.

use std::time::Duration;

use anyhow::Result;

use fonn_tests::bucket::Bucket;
use fonn_tests::values::{Content, ValuePool};

use fonn_tests::spilled::{Entries, connect, metric, over, wait_until};

#[test]
fn auto_gives_up_compressing_what_does_not_shrink_and_says_why() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let node = over(&bucket).flag("--codec", "cold=auto").start()?;
    let pool = ValuePool::new(Content::Random, 20_000);
    let entries = Entries {
        pool: &pool,
        lens: &[20_000],
        prefix: "auto/",
    };
    let active = |codec: &str| {
        let name = format!("fonn_codec_active{{level=\"cold\",codec=\"{codec}\"}}");
        metric(&node, &name)
    };
    assert_eq!(active("zstd:9")?, 1.0);
    let mut cache = connect(&node)?;
    let mut numbers = (0..).step_by(40);
    wait_until("it has decided", Duration::from_secs(120), || {
        let from = numbers.next().unwrap_or(0);
        entries.write(&mut *cache, from..from + 40)?;
        std::thread::sleep(Duration::from_millis(200));
        let changes = "fonn_codec_changes_total{level=\"cold\",reason=\"incompressible\"}";
        Ok(metric(&node, changes)? == 1.0)
    })?;
    assert_eq!(active("none")?, 1.0);
    let stored = metric(
        &node,
        "fonn_codec_values_total{level=\"cold\",codec=\"none\"}",
    )?;
    assert!(stored >= 40.0, "{stored}");
    // What is in the bucket all the same.
    entries.check(&mut *cache, 0..40)
}
