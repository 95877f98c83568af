//! Values of every size: the largest that clients send, and those that are too large.

use anyhow::{Context, Result};

use fonn_tests::client::{Dialect, is_refusal, opcode, status};
use fonn_tests::node::NodeOptions;
use fonn_tests::values::{Content, ValuePool};

/// The largest object that a compile cache was seen to send.
const LARGEST_SEEN: usize = 122_000_000;

#[test]
fn a_value_of_122_mb_makes_the_round_trip_in_every_dialect() -> Result<()> {
    let node = NodeOptions::new().flag("--ram-budget", "1g").start()?;
    let pool = ValuePool::new(Content::Random, LARGEST_SEEN);
    for (number, writer) in (0..).zip(Dialect::ALL) {
        let value = pool.value(number, LARGEST_SEEN);
        writer
            .connect(node.addr())?
            .set("large", &value.to_vec(), None)
            .with_context(|| format!("set by {writer:?}"))?;
        for reader in Dialect::ALL {
            let got = reader.connect(node.addr())?.get("large")?;
            let got = got.with_context(|| format!("missing for {reader:?}"))?;
            value
                .check(&got)
                .with_context(|| format!("from {writer:?} to {reader:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_large_value_is_found_on_disk_after_a_restart() -> Result<()> {
    let mut node = NodeOptions::new().flag("--ram-budget", "512m").start()?;
    let value = ValuePool::new(Content::Random, LARGEST_SEEN)
        .value(9, LARGEST_SEEN)
        .to_vec();
    node.binary()?
        .store(opcode::SET, "large", &value, 3, 0, 0)?;
    node.kill9()?;
    node.start_again()?;
    let got = node
        .resp()?
        .command("GET large")?
        .bulk()?
        .context("missing")?;
    assert!(got == value);
    assert_eq!(
        node.binary()?
            .call(opcode::GET, "large", &[], &[], 0)?
            .flags(),
        Some(3)
    );
    Ok(())
}

#[test]
fn a_value_over_the_limit_is_refused_and_the_connection_goes_on() -> Result<()> {
    const LIMIT: usize = 1 << 20;
    let node = NodeOptions::new().flag("--max-value", "1m").start()?;
    let pool = ValuePool::new(Content::Random, 20 << 20);
    for dialect in Dialect::ALL {
        let mut connection = dialect.connect(node.addr())?;
        for len in [LIMIT + 1, 20 << 20] {
            let error = connection
                .set("k", &pool.value(1, len).to_vec(), None)
                .unwrap_err();
            assert!(is_refusal(&error), "{dialect:?}, {len} bytes: {error:#}");
            assert_eq!(connection.get("k")?, None, "{dialect:?}");
        }
        let exact = pool.value(2, LIMIT).to_vec();
        connection.set("k", &exact, None)?;
        assert!(connection.get("k")?.as_ref() == Some(&exact), "{dialect:?}");
        assert!(connection.delete("k")?);
    }
    let too_large = pool.value(1, LIMIT + 1).to_vec();
    let mut text = node.text()?;
    let line = text.store(&format!("set k 0 0 {}", too_large.len()), &too_large)?;
    assert_eq!(line, "SERVER_ERROR object too large for cache");
    let reply = node
        .binary()?
        .store(opcode::SET, "k", &too_large, 0, 0, 0)?;
    assert_eq!(
        (reply.status, reply.value.len()),
        (status::TOO_LARGE, 0),
        "errors have no body"
    );
    // Values that would grow beyond the limit.
    text.store(
        &format!("set k 0 0 {LIMIT}"),
        &pool.value(3, LIMIT).to_vec(),
    )?;
    assert!(
        text.store("append k 0 0 1", b"x")?
            .starts_with("SERVER_ERROR")
    );
    let mut resp = node.resp()?;
    let error = resp.command("APPEND k x")?.integer().unwrap_err();
    assert!(is_refusal(&error), "{error:#}");
    let error = resp
        .command(&format!("SETRANGE k {LIMIT} x"))?
        .integer()
        .unwrap_err();
    assert!(is_refusal(&error), "{error:#}");
    assert_eq!(resp.command("STRLEN k")?.integer()?, LIMIT as i64);
    Ok(())
}
