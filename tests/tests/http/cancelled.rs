//! Uploads that end in the middle: nothing of them shows, and nothing of them stays in memory.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use ring::digest::{SHA256, digest};

use fonn_reapi::messages::{
    Digest, FindMissingBlobsRequest, FindMissingBlobsResponse, WriteRequest,
};
use fonn_reapi::{Method, frame};
use fonn_tests::client::{HttpClient, RemoteClient, write_messages};
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::spilled::{metric, wait_until};
use fonn_tests::usage::rss_bytes;

use super::frames::{
    DATA, END_HEADERS, END_STREAM, FRAME_LEN_MAX, Frames, HEADERS, NONE, RST_STREAM, request,
};

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(120);

/// Uploads in each protocol. What they send is more than the memory of the node.
const UPLOADS: usize = 600;

/// What each of them sends. HTTP/2 lets a client send no more before the server reads.
const PART_LEN: usize = 60_000;

/// HTTP/2's code for what a client does not want any more (RFC 9113, section 7).
const CANCEL: [u8; 4] = [0, 0, 0, 8];

const GRPC: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

fn digest_of(blob: &[u8]) -> Digest {
    let hash = digest(&SHA256, blob);
    let hash = hash.as_ref().iter().map(|it| format!("{it:02x}"));
    Digest {
        hash: hash.collect(),
        size_bytes: i64::try_from(blob.len()).unwrap_or(0),
    }
}

fn resource_of(digest: &Digest) -> String {
    format!("uploads/u/blobs/{}/{}", digest.hash, digest.size_bytes)
}

/// An upload of the Remote Execution API whose stream is reset. The next call on its connection is
/// served.
fn cancel_call(addr: SocketAddr, body: &[u8]) -> Result<()> {
    let mut frames = Frames::connect(addr)?;
    let call = request(addr, "POST", Method::Write.path(), &GRPC);
    frames.send(HEADERS, END_HEADERS, 1, &call)?;
    for part in body.chunks(FRAME_LEN_MAX) {
        frames.send(DATA, NONE, 1, part)?;
    }
    frames.send(RST_STREAM, NONE, 1, &CANCEL)?;
    let next = request(addr, "GET", "/none", &[]);
    frames.send(HEADERS, END_HEADERS | END_STREAM, 3, &next)?;
    frames.next_of(HEADERS, 3).map(|_| ())
}

/// An upload over HTTP/1.1 whose connection is closed.
fn cancel_put(addr: SocketAddr, digest: &Digest, part: &[u8]) -> Result<()> {
    let mut stream = TcpStream::connect(addr)?;
    let (hash, len) = (&digest.hash, digest.size_bytes);
    let head = format!("PUT /cas/{hash} HTTP/1.1\r\nhost: {addr}\r\ncontent-length: {len}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    Ok(stream.write_all(part)?)
}

fn assert_missing(node: &FonnNode, digest: &Digest) -> Result<()> {
    let request = FindMissingBlobsRequest {
        blob_digests: vec![digest.clone()],
        ..FindMissingBlobsRequest::default()
    };
    let client = RemoteClient::connect(node.http())?;
    let answer: FindMissingBlobsResponse = client.ask(Method::FindMissingBlobs, &request)?;
    ensure!(answer.missing_blob_digests == std::slice::from_ref(digest));
    let mut http = HttpClient::connect(node.http())?;
    ensure!(http.get(&format!("/cas/{}", digest.hash))?.is_none());
    Ok(())
}

/// Whether the blob is one value or has chunks.
fn check(blob_len: usize) -> Result<()> {
    let options = NodeOptions::new().in_memory().with_http();
    let options = options.flag("--ram-budget", "64m");
    let node = options.flag("--max-value", "1m").start()?;
    let before = rss_bytes(node.pid()?)?;
    let blob = Bytes::from(vec![7; blob_len]);
    let digest = digest_of(&blob);
    let messages = write_messages(&resource_of(&digest), &blob).concat();
    for _ in 0..UPLOADS {
        cancel_call(node.http(), &messages[..PART_LEN])?;
        cancel_put(node.http(), &digest, &blob[..PART_LEN])?;
    }
    wait_until("no upload is under way", LIMIT, || {
        let reserved = metric(&node, "fonn_receiving_bytes")?;
        let open = metric(&node, "fonn_http_connections")?;
        Ok(reserved == 0.0 && open == 0.0)
    })?;
    assert_missing(&node, &digest)?;
    let grown = rss_bytes(node.pid()?)?.saturating_sub(before);
    ensure!(grown < 32 << 20, "grown by {grown} bytes");
    let client = RemoteClient::connect(node.http())?;
    client.write(&resource_of(&digest), &blob)?;
    let resource = format!("blobs/{}/{}", digest.hash, digest.size_bytes);
    ensure!(client.read(&resource)? == blob);
    Ok(())
}

#[test]
fn a_cancelled_upload_of_a_value_leaves_nothing() -> Result<()> {
    check(500_000)
}

#[test]
fn a_cancelled_upload_of_a_long_value_leaves_nothing() -> Result<()> {
    check(8 << 20)
}

/// Such an upload reserves no more than what it sends, however much it announces.
#[test]
fn uploads_of_10_gib_that_are_announced_alone_hold_no_memory() -> Result<()> {
    const EACH: usize = 64;
    let options = NodeOptions::new().in_memory().with_http();
    let node = options.flag("--ram-budget", "64m").start()?;
    let before = rss_bytes(node.pid()?)?;
    let digest = Digest {
        hash: "0f".repeat(32),
        size_bytes: 10 << 30,
    };
    let first = frame(&WriteRequest {
        resource_name: resource_of(&digest),
        data: Bytes::from_static(b"first"),
        ..WriteRequest::default()
    });
    let (mut calls, mut puts) = (Vec::new(), Vec::new());
    for _ in 0..EACH {
        let mut frames = Frames::connect(node.http())?;
        let call = request(node.http(), "POST", Method::Write.path(), &GRPC);
        frames.send(HEADERS, END_HEADERS, 1, &call)?;
        frames.send(DATA, NONE, 1, &first)?;
        calls.push(frames);
        let mut http = HttpClient::connect(node.http())?;
        let len = digest.size_bytes.to_string();
        let path = format!("/cas/{}", digest.hash);
        http.send_head("PUT", &path, &[("content-length", &len)])?;
        puts.push(http);
    }
    let sent = (EACH * first.len()) as f64;
    wait_until("all have begun", LIMIT, || {
        let open = metric(&node, "fonn_http_connections")?;
        let received = metric(&node, "fonn_reapi_received_bytes_total")?;
        Ok(open == 2.0 * EACH as f64 && received == sent)
    })?;
    let reserved = metric(&node, "fonn_receiving_bytes")?;
    ensure!(reserved < 16.0 * (1 << 20) as f64, "{reserved} bytes");
    let mut other = HttpClient::connect(node.http())?;
    ensure!(other.put("/a", &vec![7; 1 << 20])? == 200);
    ensure!(other.get("/a")?.is_some_and(|it| it.len() == 1 << 20));
    let grown = rss_bytes(node.pid()?)?.saturating_sub(before);
    ensure!(grown < 32 << 20, "grown by {grown} bytes");
    assert_missing(&node, &digest)
}
