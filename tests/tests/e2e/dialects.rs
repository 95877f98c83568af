//! One model below all protocols: what one sets, every other reads, with the same meaning.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use fonn_tests::client::{Dialect, MetaClient, RespReply, is_refusal, opcode, status};
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::values::{Content, ValuePool};

#[test]
fn a_value_that_one_dialect_sets_is_read_by_all() -> Result<()> {
    let node = FonnNode::start()?;
    let pool = ValuePool::new(Content::Random, 300_000);
    for (number, writer) in (0..).zip(Dialect::ALL) {
        for len in [0, 1, 100, 5000, 300_000] {
            let (key, value) = (
                format!("{writer:?}-{len}"),
                pool.value(number, len).to_vec(),
            );
            writer.connect(node.addr())?.set(&key, &value, None)?;
            for reader in Dialect::ALL {
                let mut reader_connection = reader.connect(node.addr())?;
                let got = reader_connection.get(&key)?;
                assert!(
                    got.as_ref() == Some(&value),
                    "{len} bytes from {writer:?} to {reader:?}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn what_one_dialect_deletes_or_overwrites_is_gone_for_all() -> Result<()> {
    let node = FonnNode::start()?;
    for writer in Dialect::ALL {
        let mut connection = writer.connect(node.addr())?;
        connection.set("deleted", b"old", None)?;
        connection.set("overwritten", b"old", None)?;
        for other in Dialect::ALL {
            let mut other_connection = other.connect(node.addr())?;
            other_connection.set("overwritten", b"new", None)?;
            assert_eq!(connection.get("overwritten")?.as_deref(), Some(&b"new"[..]));
            assert!(other_connection.delete("deleted")?);
            assert_eq!(
                connection.get("deleted")?,
                None,
                "{other:?} deleted, {writer:?} read"
            );
            assert!(!connection.delete("deleted")?);
            connection.set("deleted", b"old", None)?;
        }
    }
    Ok(())
}

#[test]
fn flags_are_kept_and_are_zero_for_redis() -> Result<()> {
    let node = FonnNode::start()?;
    let (mut text, mut binary) = (node.text()?, node.binary()?);
    assert_eq!(text.store("set a 4294967295 0 1", b"x")?, "STORED");
    let reply = binary.call(opcode::GET, "a", &[], &[], 0)?;
    assert_eq!(reply.flags(), Some(u32::MAX));
    assert_eq!(
        binary.store(opcode::SET, "b", b"y", 77, 0, 0)?.status,
        status::OK
    );
    assert_eq!(text.items("get b")?[0].flags, 77);
    let (line, _) = MetaClient::connect(node.addr())?.meta_get("mg b f s v")?;
    assert!(line.contains("f77") && line.contains("s1"), "{line}");
    node.resp()?.command("SET c z")?.ok()?;
    assert_eq!(text.items("get c")?[0].flags, 0);
    // APPEND of one protocol keeps what another attached.
    assert_eq!(node.resp()?.command("APPEND a yz")?.integer()?, 3);
    let item = text.items("get a")?.pop().context("a is gone")?;
    assert_eq!((item.flags, item.value.as_slice()), (u32::MAX, &b"xyz"[..]));
    Ok(())
}

#[test]
fn a_cas_token_is_one_for_all_dialects_and_goes_stale_with_any_write() -> Result<()> {
    let node = FonnNode::start()?;
    let (mut text, mut binary, mut resp) = (node.text()?, node.binary()?, node.resp()?);
    resp.command("SET k one")?.ok()?;
    let token = text.items("gets k")?[0].cas.context("gets gives a token")?;
    assert_eq!(binary.call(opcode::GET, "k", &[], &[], 0)?.cas, token);
    let (line, _) = MetaClient::connect(node.addr())?.meta_get("mg k c v")?;
    assert!(line.ends_with(&format!(" c{token}")), "{line} {token}");

    assert_eq!(
        binary
            .store(opcode::SET, "k", b"two", 0, 0, token + 1)?
            .status,
        status::EXISTS
    );
    let stored = binary.store(opcode::SET, "k", b"two", 0, 0, token)?;
    assert_eq!(stored.status, status::OK);
    assert_eq!(
        text.store(&format!("cas k 0 0 3 {token}"), b"bad")?,
        "EXISTS"
    );
    assert_eq!(
        text.store(&format!("cas k 0 0 5 {}", stored.cas), b"three")?,
        "STORED"
    );
    assert_eq!(text.store("cas absent 0 0 1 1", b"x")?, "NOT_FOUND");

    let token = text.items("gets k")?[0].cas.context("gets gives a token")?;
    resp.command("APPEND k !")?.integer()?;
    assert_eq!(
        text.store(&format!("cas k 0 0 3 {token}"), b"bad")?,
        "EXISTS"
    );
    assert_eq!(
        resp.command("GET k")?.bulk()?.as_deref(),
        Some(&b"three!"[..])
    );
    Ok(())
}

#[test]
fn numbers_are_one_for_all_dialects() -> Result<()> {
    let node = FonnNode::start()?;
    let (mut text, mut resp) = (node.text()?, node.resp()?);
    assert_eq!(resp.command("INCR n")?.integer()?, 1);
    for (expected, dialect) in (2..).zip(Dialect::ALL) {
        assert_eq!(
            dialect.connect(node.addr())?.incr("n", 1)?,
            Some(expected),
            "{dialect:?}"
        );
    }
    assert_eq!(text.command("decr n 100")?, "0", "memcached stops at 0");
    assert_eq!(resp.command("DECRBY n 5")?.integer()?, -5, "Redis does not");
    assert_eq!(text.command("incr absent 1")?, "NOT_FOUND");
    text.store("set word 0 0 3", b"abc")?;
    for dialect in Dialect::ALL {
        let error = dialect.connect(node.addr())?.incr("word", 1).unwrap_err();
        assert!(is_refusal(&error), "{dialect:?}: {error:#}");
    }
    // Initial value and expiry of the binary increment.
    let mut extras = 5_u64.to_be_bytes().to_vec();
    extras.extend_from_slice(&40_u64.to_be_bytes());
    extras.extend_from_slice(&[0; 4]);
    let reply = node
        .binary()?
        .call(opcode::INCREMENT, "fresh", &extras, &[], 0)?;
    assert_eq!(reply.value, 40_u64.to_be_bytes());
    assert_eq!(
        resp.command("GET fresh")?.bulk()?.as_deref(),
        Some(&b"40"[..])
    );
    Ok(())
}

#[test]
fn conditional_stores_agree() -> Result<()> {
    let node = FonnNode::start()?;
    let (mut text, mut binary, mut resp) = (node.text()?, node.binary()?, node.resp()?);
    assert_eq!(text.store("replace k 0 0 1", b"1")?, "NOT_STORED");
    assert_eq!(text.store("append k 0 0 1", b"1")?, "NOT_STORED");
    assert_eq!(resp.command("SET k 1 XX")?, RespReply::Null);
    assert_eq!(
        binary.store(opcode::ADD, "k", b"1", 0, 0, 0)?.status,
        status::OK
    );
    assert_eq!(
        binary.store(opcode::ADD, "k", b"2", 0, 0, 0)?.status,
        status::EXISTS
    );
    assert_eq!(text.store("add k 0 0 1", b"2")?, "NOT_STORED");
    assert_eq!(resp.command("SETNX k 2")?.integer()?, 0);
    assert_eq!(text.store("prepend k 0 0 1", b"0")?, "STORED");
    assert_eq!(
        binary.call(opcode::APPEND, "k", &[], b"2", 0)?.status,
        status::OK
    );
    assert_eq!(
        resp.command("GETSET k new")?.bulk()?.as_deref(),
        Some(&b"012"[..])
    );
    assert_eq!(
        resp.command("GETDEL k")?.bulk()?.as_deref(),
        Some(&b"new"[..])
    );
    assert_eq!(text.items("get k")?, vec![]);
    Ok(())
}

/// Milliseconds to live as Redis tells them.
fn pttl(node: &FonnNode, key: &str) -> Result<i64> {
    node.resp()?.command(&format!("PTTL {key}"))?.integer()
}

#[test]
fn expiry_means_the_same_in_all_dialects() -> Result<()> {
    let node = FonnNode::start()?;
    for dialect in Dialect::ALL {
        let mut connection = dialect.connect(node.addr())?;
        connection.set("k", b"v", Some(86_400))?;
        let left = pttl(&node, "k")?;
        assert!(
            (86_390_000..=86_400_000).contains(&left),
            "{dialect:?}: {left}"
        );
        assert!(connection.touch("k", 500)?);
        let left = pttl(&node, "k")?;
        assert!((490_000..=500_000).contains(&left), "{dialect:?}: {left}");
        connection.set("k", b"v", None)?;
        assert_eq!(
            pttl(&node, "k")?,
            -1,
            "{dialect:?}: a plain set ends the expiry"
        );
    }
    // More than 30 days is a point in time for memcached.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let (mut text, mut binary) = (node.text()?, node.binary()?);
    assert_eq!(
        text.store(&format!("set k 0 {} 1", now + 1000), b"v")?,
        "STORED"
    );
    let left = pttl(&node, "k")?;
    assert!((980_000..=1_000_000).contains(&left), "{left}");
    binary.store(opcode::SET, "k", b"v", 0, now as u32 + 1000, 0)?;
    let left = pttl(&node, "k")?;
    assert!((980_000..=1_000_000).contains(&left), "{left}");
    // A point in the past, and a negative time, are over at once.
    assert_eq!(text.store("set k 0 -1 1", b"v")?, "STORED");
    assert_eq!(text.items("get k")?, vec![]);
    assert_eq!(
        text.store(&format!("set k 0 {} 1", now - 5), b"v")?,
        "STORED"
    );
    assert_eq!(text.items("get k")?, vec![]);
    assert_eq!(pttl(&node, "k")?, -2);
    Ok(())
}

#[test]
fn an_entry_is_gone_for_all_dialects_when_its_time_is_over() -> Result<()> {
    let node = FonnNode::start()?;
    let mut resp = node.resp()?;
    resp.command("SET k v PX 3000")?.ok()?;
    assert_eq!(resp.command("GET k")?.bulk()?.as_deref(), Some(&b"v"[..]));
    let set = Instant::now();
    while resp.command("EXISTS k")?.integer()? == 1 {
        assert!(set.elapsed() < Duration::from_secs(60), "3 s have no end");
        std::thread::sleep(Duration::from_millis(5));
    }
    for dialect in Dialect::ALL {
        let mut connection = dialect.connect(node.addr())?;
        assert_eq!(connection.get("k")?, None, "{dialect:?}");
        assert!(!connection.touch("k", 100)?, "{dialect:?}");
        assert!(!connection.delete("k")?, "{dialect:?}");
    }
    Ok(())
}

#[test]
fn a_flush_by_any_dialect_empties_the_store_for_all() -> Result<()> {
    let node = FonnNode::start()?;
    for flusher in Dialect::ALL {
        for number in 0..100 {
            node.text()?.store(&format!("set k{number} 0 0 1"), b"v")?;
        }
        flusher.connect(node.addr())?.flush()?;
        for number in 0..100 {
            for reader in Dialect::ALL
                .into_iter()
                .take(1 + 3 * usize::from(number == 0))
            {
                let got = reader.connect(node.addr())?.get(&format!("k{number}"))?;
                assert_eq!(got, None, "{flusher:?} flushed, {reader:?} read");
            }
        }
        assert_eq!(node.resp()?.command("DBSIZE")?.integer()?, 0);
    }
    Ok(())
}

#[test]
fn redis_databases_are_separate() -> Result<()> {
    let node = FonnNode::start()?;
    let (mut zero, mut one) = (node.resp()?, node.resp()?);
    one.command("SELECT 1")?.ok()?;
    zero.command("SET k zero")?.ok()?;
    assert_eq!(one.command("GET k")?, RespReply::Null);
    one.command("SET k one")?.ok()?;
    assert_eq!(node.text()?.items("get k")?[0].value, b"zero");
    one.command("FLUSHDB")?.ok()?;
    assert_eq!(one.command("DBSIZE")?.integer()?, 0);
    assert_eq!(
        zero.command("GET k")?.bulk()?.as_deref(),
        Some(&b"zero"[..])
    );
    assert!(matches!(one.command("SELECT 16")?, RespReply::Error(_)));
    one.command("SET k one")?.ok()?;
    zero.command("FLUSHALL")?.ok()?;
    assert_eq!(one.command("GET k")?, RespReply::Null);
    Ok(())
}

#[test]
fn a_node_without_a_disk_speaks_all_dialects_too() -> Result<()> {
    let node = NodeOptions::new().in_memory().start()?;
    for writer in Dialect::ALL {
        writer
            .connect(node.addr())?
            .set("k", format!("{writer:?}").as_bytes(), None)?;
        for reader in Dialect::ALL {
            let got = reader.connect(node.addr())?.get("k")?;
            assert_eq!(got, Some(format!("{writer:?}").into_bytes()), "{reader:?}");
        }
    }
    Ok(())
}
