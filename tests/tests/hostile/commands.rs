//! What becomes of commands whose clients have gone.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use fonn_tests::client::{RespReply, resp_request};
use fonn_tests::node::NodeOptions;

use crate::felt::fill;

/// The work of clients that have gone is over by then, also on a busy machine.
const GONE_LIMIT: Duration = Duration::from_secs(60);

#[test]
fn commands_whose_clients_have_gone_end() -> Result<()> {
    let node = NodeOptions::new().flag("--ram-budget", "128m").start()?;
    fill(&mut node.resp()?, 60_000, |number| {
        format!("counted{number}")
    })?;
    for _ in 0..20 {
        let mut stream = TcpStream::connect(node.addr())?;
        stream.write_all(&resp_request(&[b"DBSIZE"]).repeat(50))?;
    }
    let end = Instant::now() + GONE_LIMIT;
    loop {
        let open = node.metric("fonn_connections")?.context("no such metric")?;
        if open < 1.0 {
            break;
        }
        ensure!(Instant::now() < end, "{open} connections are left");
        thread::sleep(Duration::from_millis(20));
    }
    // A count that takes a second is completed by an estimate.
    let count = node.resp()?.call(&[b"DBSIZE"])?.integer()?;
    ensure!((59_000..=61_000).contains(&count), "{count} entries");
    Ok(())
}

#[test]
fn commands_beyond_their_bounds_are_refused() -> Result<()> {
    let node = NodeOptions::new().flag("--ram-budget", "128m").start()?;
    let mut client = node.resp()?;
    let keys: Vec<String> = (0..257).map(|number| format!("k{number}")).collect();
    let mut words: Vec<&[u8]> = vec![b"MSETNX"];
    words.extend(keys.iter().flat_map(|key| [key.as_bytes(), b"v"]));
    let refused = client.call(&words)?;
    ensure!(
        matches!(&refused, RespReply::Error(error) if error.contains("max 256")),
        "{refused:?}"
    );
    for words in [
        [&b"SETRANGE"[..], b"k", b"268435000", b"x"],
        [b"SETBIT", b"k", b"2147483647", b"1"],
    ] {
        let refused = client.call(&words)?;
        ensure!(matches!(refused, RespReply::Error(_)), "{refused:?}");
        ensure!(client.call(&[b"EXISTS", b"k"])?.integer()? == 0);
    }
    Ok(())
}
