//! What a client may hold: bytes, connections and time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use fonn_tests::client::HttpClient;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::raise_open_files;
use fonn_tests::usage::rss_bytes;

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

const IDLE: usize = 10_000;

/// What a connection holds while it is idle: its task, and two buffers of hyper, 8 KiB each.
/// Measured, 22.6 KB.
const IDLE_LEN_MAX: u64 = 26 << 10;

fn node(max_value: &str) -> Result<FonnNode> {
    let options = NodeOptions::new().in_memory().with_http();
    options.flag("--max-value", max_value).start()
}

/// Longest value of all, in bytes.
const LONGEST: u64 = 10 << 30;

#[test]
fn a_value_above_the_limit_is_refused_before_it_is_sent() -> Result<()> {
    let node = node("1m")?;
    // A result of an action is stored whole, any other value in chunks if it has to be.
    let result = format!("/ac/{}", "0f".repeat(32));
    for (path, len) in [("/more", LONGEST + 1), (&result, (1 << 20) + 1)] {
        let mut http = HttpClient::connect(node.http())?;
        let expects = [
            ("expect", "100-continue"),
            ("content-length", &*len.to_string()),
        ];
        http.send_head("PUT", path, &expects)?;
        let answer = http.answer(true)?;
        ensure!(answer.status == 413, "{path}: {answer:?}");
    }
    // A client that sends all the same reads why it is refused.
    let value = vec![7; (1 << 20) + 1];
    let mut http = HttpClient::connect(node.http())?;
    ensure!(http.put(&result, &value)? == 413);
    let mut http = HttpClient::connect(node.http())?;
    http.send_head("PUT", &result, &[("transfer-encoding", "chunked")])?;
    http.send(format!("{:x}\r\n", value.len()).as_bytes())?;
    http.send(&value)?;
    http.send(b"\r\n0\r\n\r\n")?;
    ensure!(http.answer(true)?.status == 413);
    // The server may close a connection whose body it had not read to the end by then.
    let mut http = HttpClient::connect(node.http())?;
    ensure!(http.get(&result)?.is_none());
    Ok(())
}

/// Ten seconds for a head; a connection that is idle between requests has five minutes.
#[test]
fn a_head_that_never_ends_is_cut_off_and_an_idle_connection_is_not() -> Result<()> {
    let node = node("1m")?;
    let mut idle = HttpClient::connect(node.http())?;
    ensure!(idle.get("/a")?.is_none());
    let mut slow = HttpClient::connect(node.http())?;
    slow.send(b"GET /a HTTP/1.1\r\n")?;
    let begun = Instant::now();
    while slow.send(b"x: y\r\n").is_ok() {
        ensure!(begun.elapsed() < LIMIT, "the head is still awaited");
        std::thread::sleep(Duration::from_millis(50));
    }
    ensure!(
        begun.elapsed() > Duration::from_secs(8),
        "cut after {:?}",
        begun.elapsed()
    );
    ensure!(idle.get("/a")?.is_none());
    let stalled = node.metric("fonn_http_connections_stalled_total")?;
    ensure!(stalled == Some(1.0), "{stalled:?}");
    Ok(())
}

/// Each of them is idle between two requests, which is what the long patience of the server is for.
#[test]
fn ten_thousand_idle_connections_keep_no_client_out_and_are_served_again() -> Result<()> {
    raise_open_files(IDLE as u64 + 4096)?;
    let node = node("1m")?;
    let before = rss_bytes(node.pid()?)?;
    let mut idle = Vec::with_capacity(IDLE);
    for number in 0..IDLE {
        let mut client = HttpClient::connect(node.http())?;
        let first = client.get("/a");
        let first = first.with_context(|| format!("connection {number}, first request"))?;
        ensure!(first.is_none(), "connection {number}: {first:?}");
        idle.push(client);
    }
    let mut http = HttpClient::connect(node.http())?;
    ensure!(http.put("/a", b"hello")? == 200);
    let within = |when: &str| -> Result<()> {
        let grown = rss_bytes(node.pid()?)?.saturating_sub(before);
        let each = grown / IDLE as u64;
        ensure!(each < IDLE_LEN_MAX, "{when}: {each} bytes for each");
        Ok(())
    };
    within("after a request")?;
    for (number, client) in idle.iter_mut().enumerate() {
        let again = client.get("/a");
        let again = again.with_context(|| format!("connection {number}, second request"))?;
        ensure!(again.as_deref() == Some(&b"hello"[..]), "{number}");
    }
    within("after two")
}
