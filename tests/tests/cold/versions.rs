//! Overwrites, deletions, flushes and expiry reach the bucket.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use fonn_tests::bucket::Bucket;
use fonn_tests::node::FonnNode;

use fonn_tests::spilled::{
    connect, destroy, metric, over, wait_until, wait_until_ready, wait_until_spilled,
};

fn get(node: &FonnNode, key: &str) -> Result<Option<Vec<u8>>> {
    connect(node)?.get(key)
}

fn set(node: &FonnNode, key: &str, value: &str) -> Result<()> {
    connect(node)?.set(key, value.as_bytes(), None)
}

#[test]
fn what_was_replaced_deleted_or_flushed_does_not_come_back_from_the_bucket() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let mut node = over(&bucket).start()?;
    for key in ["kept", "replaced", "deleted"] {
        set(&node, key, "old")?;
    }
    let mut resp = node.resp()?;
    resp.command("SELECT 5")?.ok()?;
    resp.command("SET flushed old")?.ok()?;
    wait_until_spilled(&node)?;

    // Once with the disk that knows it, and once by the bucket alone.
    set(&node, "replaced", "new")?;
    assert_eq!(node.resp()?.command("DEL deleted")?.integer()?, 1);
    resp.command("FLUSHDB")?.ok()?;
    resp.command("SET after kept")?.ok()?;
    wait_until_spilled(&node)?;
    node.kill9()?;
    node.start_again()?;
    let check = |node: &FonnNode, when: &str| -> Result<()> {
        assert_eq!(get(node, "kept")?.as_deref(), Some(&b"old"[..]), "{when}");
        assert_eq!(
            get(node, "replaced")?.as_deref(),
            Some(&b"new"[..]),
            "{when}"
        );
        assert_eq!(get(node, "deleted")?, None, "{when}");
        let mut resp = node.resp()?;
        resp.command("SELECT 5")?.ok()?;
        assert_eq!(resp.command("GET flushed")?.bulk()?, None, "{when}");
        let after = resp.command("GET after")?.bulk()?;
        assert_eq!(after.as_deref(), Some(&b"kept"[..]), "{when}");
        Ok(())
    };
    check(&node, "after a kill")?;
    destroy(node)?;
    let node = over(&bucket).start()?;
    wait_until_ready(&node)?;
    check(&node, "after the loss of the machine")?;
    // What a new node writes is newer than what it found.
    set(&node, "kept", "newer")?;
    wait_until_spilled(&node)?;
    destroy(node)?;
    let node = over(&bucket).start()?;
    wait_until_ready(&node)?;
    assert_eq!(get(&node, "kept")?.as_deref(), Some(&b"newer"[..]));
    Ok(())
}

#[test]
fn facts_beside_the_value_survive_in_the_bucket() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let first = over(&bucket).start()?;
    let mut text = first.text()?;
    text.store("set k 4000000000 5000 5", b"value")?;
    text.store("set brief 0 3 5", b"value")?;
    let token = text.items("gets k")?[0].cas.context("gets gives a token")?;
    let written = Instant::now();
    wait_until_spilled(&first)?;
    destroy(first)?;
    let node = over(&bucket).start()?;
    wait_until_ready(&node)?;
    let mut text = node.text()?;
    let item = text.items("gets k")?.pop().context("k is lost")?;
    assert_eq!((item.flags, item.cas), (4_000_000_000, Some(token)));
    let left = node.resp()?.command("TTL k")?.integer()?;
    assert!((4800..=5000).contains(&left), "{left}");
    assert_eq!(
        text.store(&format!("cas k 0 0 3 {token}"), b"new")?,
        "STORED"
    );
    std::thread::sleep(Duration::from_secs(3).saturating_sub(written.elapsed()));
    assert!(text.items("get brief")?.is_empty());
    Ok(())
}

#[test]
fn another_regions_writes_replace_older_copies_here() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let here = over(&bucket).start()?;
    let there = over(&bucket).flag("--region", "there").start()?;
    set(&here, "k", "from here")?;
    set(&here, "gone", "from here")?;
    wait_until_spilled(&here)?;
    wait_until("the other region knows", Duration::from_secs(60), || {
        Ok(metric(&there, "fonn_cold_index_entries")? >= 2.0)
    })?;
    assert_eq!(get(&there, "k")?.as_deref(), Some(&b"from here"[..]));
    set(&there, "k", "from there")?;
    assert_eq!(there.resp()?.command("DEL gone")?.integer()?, 1);
    wait_until_spilled(&there)?;
    wait_until(
        "the newer copies are served here",
        Duration::from_secs(60),
        || Ok(get(&here, "k")?.as_deref() == Some(b"from there") && get(&here, "gone")?.is_none()),
    )
}
