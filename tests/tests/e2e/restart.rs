//! What outlives a stop, and a kill, of the process.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use fonn_tests::client::{Dialect, RespReply, opcode, status};
use fonn_tests::component::clock_shifter;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::Signal;
use fonn_tests::promised::at_most;
use fonn_tests::values::{Content, ValuePool};

/// The two ways in which a process ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Terminate,
    Kill,
}

impl End {
    const BOTH: [Self; 2] = [Self::Terminate, Self::Kill];

    fn restart(self, node: &mut FonnNode) -> Result<()> {
        match self {
            Self::Terminate => node.stop()?,
            Self::Kill => node.kill9()?,
        }
        node.start_again()
    }
}

#[test]
fn values_are_there_after_a_stop_and_after_a_kill() -> Result<()> {
    let pool = ValuePool::new(Content::Random, 2 << 20);
    let len = |number: u64| [10, 300, 20_000, 2 << 20][number as usize % 4];
    for end in End::BOTH {
        let mut node = FonnNode::start()?;
        for (index, dialect) in (0..).zip(Dialect::ALL) {
            let mut connection = dialect.connect(node.addr())?;
            for number in 0..40 {
                let value = pool.value(index * 100 + number, len(number));
                connection.set(&format!("{dialect:?}-{number}"), &value.to_vec(), None)?;
            }
        }
        end.restart(&mut node)?;
        for (index, dialect) in (0..).zip(Dialect::ALL) {
            let mut connection = Dialect::ALL[(index as usize + 1) % 4].connect(node.addr())?;
            for number in 0..40 {
                let got = connection.get(&format!("{dialect:?}-{number}"))?;
                let got = got.with_context(|| format!("{end:?}: {dialect:?}-{number} is lost"))?;
                pool.value(index * 100 + number, len(number)).check(&got)?;
            }
        }
    }
    Ok(())
}

#[test]
fn flags_expiry_tokens_and_databases_survive() -> Result<()> {
    for end in End::BOTH {
        let mut node = FonnNode::start()?;
        let mut text = node.text()?;
        text.store("set k 4000000000 5000 5", b"value")?;
        let token = text.items("gets k")?[0].cas.context("gets gives a token")?;
        let mut resp = node.resp()?;
        resp.command("SELECT 3")?.ok()?;
        resp.command("SET k three")?.ok()?;

        end.restart(&mut node)?;
        let item = node.text()?.items("gets k")?.pop().context("k is lost")?;
        assert_eq!(
            (item.flags, item.cas),
            (4_000_000_000, Some(token)),
            "{end:?}"
        );
        let mut resp = node.resp()?;
        let left = resp.command("TTL k")?.integer()?;
        assert!((4900..=5000).contains(&left), "{end:?}: {left}");
        resp.command("SELECT 3")?.ok()?;
        assert_eq!(
            resp.command("GET k")?.bulk()?.as_deref(),
            Some(&b"three"[..])
        );

        // The old token still stores once, and the next one is new.
        let mut text = node.text()?;
        assert_eq!(
            text.store(&format!("cas k 0 0 3 {token}"), b"new")?,
            "STORED",
            "{end:?}"
        );
        assert_eq!(
            text.store(&format!("cas k 0 0 3 {token}"), b"bad")?,
            "EXISTS",
            "{end:?}"
        );
        let next = text.items("gets k")?[0].cas.context("gets gives a token")?;
        assert!(next > token, "{end:?}: {next} after {token}");
        // A write after the restart beats the one before it, and survives in its turn.
        end.restart(&mut node)?;
        let reply = node.binary()?.call(opcode::GET, "k", &[], &[], 0)?;
        assert_eq!(
            (reply.status, reply.value.as_slice(), reply.cas),
            (status::OK, &b"new"[..], next)
        );
    }
    Ok(())
}

#[test]
fn deletes_and_flushes_survive() -> Result<()> {
    for end in End::BOTH {
        let mut node = FonnNode::start()?;
        let mut text = node.text()?;
        for number in 0..500 {
            text.store(&format!("set k{number} 0 0 3"), b"old")?;
        }
        // So that the values are on disk in their final place before they are removed.
        end.restart(&mut node)?;
        let mut text = node.text()?;
        for number in 0..250 {
            assert_eq!(text.command(&format!("delete k{number}"))?, "DELETED");
        }
        end.restart(&mut node)?;
        let mut text = node.text()?;
        for number in 0..500 {
            let found = !text.items(&format!("get k{number}"))?.is_empty();
            assert_eq!(found, number >= 250, "{end:?}: k{number}");
        }
        assert_eq!(text.command("flush_all")?, "OK");
        text.store("set after 0 0 3", b"new")?;
        end.restart(&mut node)?;
        let mut text = node.text()?;
        for number in 0..500 {
            assert_eq!(
                text.items(&format!("get k{number}"))?,
                vec![],
                "{end:?}: k{number} is back"
            );
        }
        assert_eq!(
            text.items("get after")?.len(),
            1,
            "{end:?}: lost with the flush before it"
        );
        assert_eq!(node.resp()?.command("DBSIZE")?.integer()?, 1);
    }
    Ok(())
}

#[test]
fn a_delayed_flush_takes_effect_although_the_node_was_down() -> Result<()> {
    let mut node = FonnNode::start()?;
    let mut text = node.text()?;
    text.store("set k 0 0 1", b"v")?;
    let asked = Instant::now();
    assert_eq!(text.command("flush_all 6")?, "OK");
    let is_there = text.items("get k")?.len() == 1;
    // Seconds are counted whole; a machine that stands still may ask when it is due.
    assert!(
        is_there || asked.elapsed() >= Duration::from_secs(5),
        "too early"
    );
    let flushed = Instant::now();
    node.kill9()?;
    node.start_again()?;
    let mut text = node.text()?;
    while !text.items("get k")?.is_empty() {
        assert!(
            flushed.elapsed() < Duration::from_secs(60),
            "the delayed flush is forgotten"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[test]
fn an_entry_expires_while_the_node_is_down() -> Result<()> {
    let mut node = FonnNode::start()?;
    let mut resp = node.resp()?;
    resp.command("SET short v PX 400")?.ok()?;
    resp.command("SET long v EX 400")?.ok()?;
    let set = Instant::now();
    node.kill9()?;
    std::thread::sleep(Duration::from_millis(450).saturating_sub(set.elapsed()));
    node.start_again()?;
    let mut resp = node.resp()?;
    assert_eq!(resp.command("GET short")?, RespReply::Null);
    assert_eq!(
        resp.command("GET long")?.bulk()?.as_deref(),
        Some(&b"v"[..])
    );
    Ok(())
}

/// The wall clock jumps while the node is down: forward ends what is over by then, backward
/// neither brings back what was overwritten nor lets new writes lose against old ones.
#[test]
fn a_clock_that_jumps_while_the_node_is_down_brings_nothing_back() -> Result<()> {
    let Some(shifter) = clock_shifter()? else {
        return Ok(());
    };
    let mut node = NodeOptions::new().start()?;
    let mut resp = node.resp()?;
    resp.command("SET hour v EX 3600")?.ok()?;
    resp.command("SET day v EX 86400")?.ok()?;
    resp.command("SET k old")?.ok()?;

    node.kill9()?;
    node.start_again_with(|options| options.clock_offset(&shifter, 2 * 3600))?;
    let mut resp = node.resp()?;
    assert_eq!(
        resp.command("GET hour")?,
        RespReply::Null,
        "expired an hour ago"
    );
    let left = resp.command("TTL day")?.integer()?;
    assert!((79_000..=79_200).contains(&left), "{left}");
    resp.command("SET k future")?.ok()?;
    resp.command("SET gone v")?.ok()?;
    resp.command("DEL gone")?.integer()?;

    node.kill9()?;
    node.start_again_with(|options| options.clock_offset(&shifter, 0))?;
    let mut resp = node.resp()?;
    assert_eq!(
        resp.command("GET k")?.bulk()?.as_deref(),
        Some(&b"future"[..])
    );
    assert_eq!(resp.command("GET gone")?, RespReply::Null);
    // The clock of the last write is two hours ahead; the new write must win all the same.
    resp.command("SET k now")?.ok()?;
    resp.command("SET gone again")?.ok()?;
    for end in End::BOTH {
        end.restart(&mut node)?;
        let mut resp = node.resp()?;
        assert_eq!(
            resp.command("GET k")?.bulk()?.as_deref(),
            Some(&b"now"[..]),
            "{end:?}"
        );
        assert_eq!(
            resp.command("GET gone")?.bulk()?.as_deref(),
            Some(&b"again"[..]),
            "{end:?}"
        );
    }
    Ok(())
}

#[test]
fn a_stop_lets_requests_finish_and_takes_less_than_ten_seconds() -> Result<()> {
    let mut node = FonnNode::start()?;
    let mut idle = node.text()?;
    assert!(idle.command("version")?.starts_with("VERSION"));
    let mut text = node.text()?;
    // Half a request is under way when the signal comes. What is sent at once is read at once: it
    // is there when the request before it is answered.
    text.send(b"mn\r\nset half 0 0 10\r\n01234")?;
    assert_eq!(text.line()?, "MN");
    let started = Instant::now();
    node.daemon()?.signal(Signal::TERM)?;
    assert!(idle.at_end()?, "an idle connection is closed");
    text.send(b"56789\r\n")?;
    assert_eq!(text.line()?, "STORED");
    node.wait_stopped()?;
    let limit = at_most(Duration::from_secs(10), Duration::from_secs(60));
    assert!(started.elapsed() < limit, "{:?}", started.elapsed());
    node.start_again()?;
    assert_eq!(node.text()?.items("get half")?[0].value, b"0123456789");
    Ok(())
}

#[test]
fn two_nodes_never_share_a_data_directory() -> Result<()> {
    let node = FonnNode::start()?;
    let dir = node.data_dir().to_owned();
    let error = NodeOptions::new()
        .data_dir(&dir)
        .start()
        .map(drop)
        .unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("ended (exit status"), "{text}");
    assert!(
        text.contains(&*dir.to_string_lossy()),
        "the message names the directory: {text}"
    );
    assert_eq!(node.text()?.command("mn")?, "MN", "the first goes on");
    Ok(())
}
