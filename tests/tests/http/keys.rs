//! Entries over HTTP, and the same entries over the other protocols.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use fonn_tests::client::{Cache as _, HttpClient};
use fonn_tests::component::program;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::run;
use fonn_tests::values::{Content, ValuePool};

fn node() -> Result<FonnNode> {
    NodeOptions::new().with_http().start()
}

fn client(node: &FonnNode) -> Result<HttpClient> {
    HttpClient::connect(node.http())
}

#[test]
fn a_path_is_the_key_of_every_protocol() -> Result<()> {
    let node = node()?;
    let mut http = client(&node)?;
    let (mut text, mut resp, mut binary) = (node.text()?, node.resp()?, node.binary()?);
    ensure!(http.put("/team-a/2/1/a/21ae", b"over http")? == 200);
    for found in [
        text.get("team-a/2/1/a/21ae")?,
        resp.get("team-a/2/1/a/21ae")?,
        binary.get("team-a/2/1/a/21ae")?,
    ] {
        ensure!(found.as_deref() == Some(&b"over http"[..]), "{found:?}");
    }
    text.set("k%ey", b"over memcached", None)?;
    ensure!(http.get("/k%25ey")?.as_deref() == Some(&b"over memcached"[..]));
    resp.set("a key of \u{e4}", b"over redis", None)?;
    ensure!(http.get("/a%20key%20of%20%C3%A4")?.as_deref() == Some(&b"over redis"[..]));
    ensure!(http.request("DELETE", "/k%25ey", &[], b"")?.status == 204);
    ensure!(text.get("k%ey")?.is_none());
    // Another database is another key space.
    resp.command("SELECT 1")?.ok()?;
    ensure!(resp.get("team-a/2/1/a/21ae")?.is_none());
    Ok(())
}

#[test]
fn large_values_come_back_whole_and_in_parts_and_survive_a_kill() -> Result<()> {
    let mut node = node()?;
    let mut http = client(&node)?;
    let pool = ValuePool::new(Content::Random, 48 << 20);
    let value = pool.value(1, 48 << 20).to_vec();
    ensure!(http.put("/large", &value)? == 200);
    ensure!(http.put("/small", b"small")? == 200);
    ensure!(http.get("/large")?.as_ref() == Some(&value));
    let head = http.request("HEAD", "/large", &[], b"")?;
    ensure!(
        head.header("content-length") == Some("50331648"),
        "{head:?}"
    );
    let range = [("range", "bytes=20000000-20000999")];
    let part = http.request("GET", "/large", &range, b"")?;
    ensure!(part.status == 206 && part.body == value[20_000_000..20_001_000]);
    ensure!(part.header("content-range") == Some("bytes 20000000-20000999/50331648"));
    node.kill9()?;
    node.start_again()?;
    let mut http = client(&node)?;
    ensure!(http.get("/small")?.as_deref() == Some(&b"small"[..]));
    ensure!(http.get("/large")?.as_ref() == Some(&value));
    Ok(())
}

#[test]
fn a_body_comes_in_chunks_or_when_it_is_asked_for() -> Result<()> {
    let node = node()?;
    let mut http = client(&node)?;
    let chunked = [("transfer-encoding", "chunked")];
    http.send_head("PUT", "/chunked", &chunked)?;
    http.send(b"3\r\nabc\r\n")?;
    http.send(b"4\r\ndefg\r\n0\r\n\r\n")?;
    ensure!(http.answer(true)?.status == 200);
    ensure!(http.get("/chunked")?.as_deref() == Some(&b"abcdefg"[..]));
    let expects = [("expect", "100-continue"), ("content-length", "5")];
    http.send_head("PUT", "/expected", &expects)?;
    ensure!(http.answer(true)?.status == 100);
    http.send(b"hello")?;
    ensure!(http.answer(true)?.status == 200);
    ensure!(http.get("/expected")?.as_deref() == Some(&b"hello"[..]));
    Ok(())
}

#[test]
fn a_body_that_ends_early_leaves_nothing_behind() -> Result<()> {
    let node = node()?;
    client(&node)?.put("/before", b"before")?;
    for (path, headers, part) in [
        ("/short", ("content-length", "1000000"), &b"half of it"[..]),
        ("/before", ("content-length", "1000000"), b"half of it"),
        (
            "/chunks",
            ("transfer-encoding", "chunked"),
            b"5\r\nhello\r\n",
        ),
    ] {
        let mut http = client(&node)?;
        http.send_head("PUT", path, &[headers])?;
        http.send(part)?;
        http.end_writing()?;
        // An answer, if there is one, is not that of a value that was stored.
        ensure!(
            http.answer(true)
                .map_or(true, |answer| answer.status >= 400),
            "{path}"
        );
    }
    let mut http = client(&node)?;
    ensure!(http.get("/short")?.is_none() && http.get("/chunks")?.is_none());
    ensure!(http.get("/before")?.as_deref() == Some(&b"before"[..]));
    Ok(())
}

#[test]
fn what_is_counted_is_told_by_dialect_and_status() -> Result<()> {
    let node = node()?;
    let mut http = client(&node)?;
    http.put("/cache/0123", b"gradle")?;
    http.get("/cache/0123")?;
    http.get("/cache/4567")?;
    let page = node.http_get("/metrics")?.body;
    let sample = |series: &str| -> Result<f64> {
        let line = page.lines().find_map(|line| line.strip_prefix(series));
        Ok(line.with_context(|| series.to_owned())?.trim().parse()?)
    };
    let requests = |status| {
        sample(&format!(
            "fonn_http_requests_total{{dialect=\"gradle\",status=\"{status}\"}}"
        ))
    };
    ensure!((requests(200)?, requests(404)?) == (2.0, 1.0), "{page}");
    ensure!(sample("fonn_http_received_bytes_total{dialect=\"gradle\"}")? == 6.0);
    ensure!(sample("fonn_http_connections ")? == 1.0);
    Ok(())
}

#[test]
fn curl_speaks_both_versions_of_http() -> Result<()> {
    let Some(curl) = program("curl")? else {
        return Ok(());
    };
    let node = node()?;
    let value = ValuePool::new(Content::Random, 8 << 20)
        .value(3, 8 << 20)
        .to_vec();
    let (sent, got) = (node.scratch().join("sent"), node.scratch().join("got"));
    fs::write(&sent, &value)?;
    let url = format!("http://{}/curl", node.http());
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let curl = || {
            let mut command = Command::new(&curl);
            command.args(["-fsS", "--noproxy", "*", version]);
            command
        };
        // Above one mebibyte curl expects to be asked for the body.
        run(curl().arg("-T").arg(&sent).arg(&url))?;
        run(curl().arg("-o").arg(&got).arg(&url))?;
        ensure!(fs::read(&got)? == value, "{version}");
        run(curl().args(["-T", "-", "-H", "Transfer-Encoding: chunked", &url]))?;
        run(curl().arg("-o").arg(&got).arg(&url))?;
        ensure!(fs::read(&got)?.is_empty(), "{version}");
        run(curl().args(["-X", "DELETE", &url]))?;
        ensure!(run(curl().arg(&url)).is_err(), "{version}");
    }
    Ok(())
}
