//! Large values, and the memory of the node that takes and returns them.

use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ring::digest::{Context, SHA256};

use fonn_tests::client::HttpClient;
use fonn_tests::node::NodeOptions;
use fonn_tests::spilled::metric;
use fonn_tests::usage::rss_peak_bytes;
use fonn_tests::values::{Content, ValuePool};

const MIB: u64 = 1 << 20;
const LEN: usize = 200 << 20;
const RAM_BUDGET: u64 = 256 * MIB;

/// A busy machine needs its time for a step of a large value.
const REPLY_LIMIT: Duration = Duration::from_secs(120);

/// The guarantee of resident memory: the budget, 15 % of it and 64 MiB.
const RSS_MAX: u64 = RAM_BUDGET + RAM_BUDGET * 15 / 100 + 64 * MIB;

/// The code of a program that is not optimised takes so much more. A release is held to the
/// guarantee itself.
const RSS_UNOPTIMISED: u64 = 16 * MIB;

// Two copies of the value alone are beyond the bound.
const _: () = assert!(2 * LEN as u64 > RSS_MAX + RSS_UNOPTIMISED);

fn rss_max() -> u64 {
    let is_release = std::env::var_os("FONN_NODE_BIN").is_some();
    RSS_MAX + if is_release { 0 } else { RSS_UNOPTIMISED }
}

/// Stores and reads the value at a node with such a `--max-value`.
fn check(max_value: &str) -> Result<()> {
    let node = NodeOptions::new()
        .with_http()
        .flag("--ram-budget", RAM_BUDGET.to_string())
        .flag("--max-value", max_value)
        .start()?;
    let rss_max = rss_max();
    let within = |when: &str| -> Result<()> {
        // The most that the process ever had, so no moment is missed.
        let peak = rss_peak_bytes(node.pid()?)?;
        ensure!(peak <= rss_max, "{when}: {} MiB resident", peak / MIB);
        Ok(())
    };
    let pool = ValuePool::new(Content::Random, LEN);
    let value = pool.value(1, LEN);
    let mut http = HttpClient::connect(node.http())?;
    let stored = http.put("/large", &value.to_vec())?;
    ensure!(stored == 200, "PUT: {stored}");
    within("after the PUT")?;
    let found = http.get("/large")?;
    value.check(&found.unwrap_or_default())?;
    within("after the GET")
}

#[test]
fn a_whole_value_of_200_mib_is_held_once() -> Result<()> {
    check("256m")
}

#[test]
fn a_value_of_200_mib_in_chunks_is_held_once() -> Result<()> {
    check("8m")
}

/// How long the blob is that is streamed; a suite of CI sets the greatest length that there is.
fn streamed_len() -> Result<u64> {
    match std::env::var("FONN_LARGE_BYTES") {
        Ok(text) => Ok(text.parse()?),
        // Twice what the node may hold.
        Err(_) => Ok(768 * MIB),
    }
}

/// The pieces of a blob that is one piece over and over. So its chunks are few, and shared.
fn pieces(piece: &[u8], len: u64) -> impl Iterator<Item = &[u8]> {
    let step = piece.len() as u64;
    let parts = (0..len.div_ceil(step)).map(move |index| step.min(len - index * step));
    parts.map(|part| &piece[..part as usize])
}

/// Reads the head of a response with status 200 or 206.
fn read_head(reader: &mut impl BufRead) -> Result<u64> {
    let (mut line, mut len) = (String::new(), None);
    reader.read_line(&mut line)?;
    ensure!(line.starts_with("HTTP/1.1 20"), "{line}");
    while line != "\r\n" {
        line.clear();
        ensure!(reader.read_line(&mut line)? > 0, "the head ends early");
        let head = line.to_ascii_lowercase();
        if let Some(text) = head.strip_prefix("content-length: ") {
            len = Some(text.trim_end().parse()?);
        }
    }
    len.context("a response without a length")
}

/// Reads the rest of a body that has these pieces from `skip` on.
fn check_body(reader: &mut impl Read, piece: &[u8], len: u64, skip: u64) -> Result<()> {
    let (mut at, mut read) = (skip, vec![0; 1 << 20]);
    while at < len {
        let part = read.len().min((len - at) as usize);
        reader.read_exact(&mut read[..part])?;
        for (index, bytes) in read[..part].chunks(4096).enumerate() {
            let from = (at as usize + index * 4096) % piece.len();
            // The pieces are longer than what is compared, so it wraps once at most.
            let first = bytes.len().min(piece.len() - from);
            let is_equal = bytes[..first] == piece[from..from + first]
                && bytes[first..] == piece[..bytes.len() - first];
            ensure!(is_equal, "wrong bytes behind {at}");
        }
        at += part as u64;
    }
    Ok(())
}

/// Up to 10 GiB, which is the longest blob: stored, read, and read by its last bytes.
#[test]
fn a_blob_of_the_greatest_length_is_streamed_in_both_directions() -> Result<()> {
    let len = streamed_len()?;
    let node = NodeOptions::new()
        .with_http()
        .flag("--ram-budget", RAM_BUDGET.to_string())
        .flag("--max-value", "8m")
        .start()?;
    let addr = node.http();
    let pool = ValuePool::new(Content::Random, 8 << 20);
    let piece = pool.value(1, 8 << 20).to_vec();
    let mut digest = Context::new(&SHA256);
    pieces(&piece, len).for_each(|piece| digest.update(piece));
    let digest = digest.finish();
    let hash: String = digest
        .as_ref()
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect();

    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(REPLY_LIMIT))?;
    stream.set_write_timeout(Some(REPLY_LIMIT))?;
    let head = format!("PUT /cas/{hash} HTTP/1.1\r\nhost: {addr}\r\ncontent-length: {len}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    for piece in pieces(&piece, len) {
        stream.write_all(piece)?;
    }
    let mut reader = BufReader::new(stream.try_clone()?);
    ensure!(read_head(&mut reader)? == 0);
    let get = format!("GET /cas/{hash} HTTP/1.1\r\nhost: {addr}\r\n");
    stream.write_all(format!("{get}\r\n").as_bytes())?;
    ensure!(read_head(&mut reader)? == len);
    check_body(&mut reader, &piece, len, 0)?;
    let skip = len - 5 * MIB - 7;
    stream.write_all(format!("{get}range: bytes={skip}-\r\n\r\n").as_bytes())?;
    ensure!(read_head(&mut reader)? == len - skip);
    check_body(&mut reader, &piece, len, skip)?;
    let peak = rss_peak_bytes(node.pid()?)?;
    ensure!(peak <= rss_max(), "{} MiB resident", peak / MIB);
    let stored = "fonn_http_chunk_bytes_total{outcome=\"stored\"}";
    let stored = metric(&node, stored)?;
    ensure!(stored < 64.0 * MIB as f64, "{stored} bytes in new chunks");
    Ok(())
}
