//! Values that are longer than one entry may be.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Full, StreamBody};
use hyper::Request;
use ring::digest::{SHA256, digest};

use super::super::fake::{Fault, Reply, Site, VALUE_LEN_MAX, ask};
use super::request;
use crate::actions::hex;
use crate::long::{LONG_LEN_MAX, Manifest};

/// A value without repetitions, a bit more than twice as long as an entry may be.
pub(in crate::tests) fn long_value() -> Vec<u8> {
    let mut state = 7_u32;
    let mut step = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..2 * VALUE_LEN_MAX + 12_345).map(|_| step()).collect()
}

fn cas(value: &[u8]) -> String {
    format!("/cas/{}", hex(digest(&SHA256, value).as_ref()))
}

impl Site {
    async fn put(&self, path: &str, value: &[u8]) -> u16 {
        self.status("PUT", path, value).await
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.ask("GET", path, headers, b"").await
    }

    fn entries(&self) -> usize {
        self.store.0.entries.lock().len()
    }
}

/// A body whose length is not told.
fn untold(
    value: &[u8],
) -> StreamBody<impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>>> {
    let frames: Vec<_> = value
        .chunks(100_000)
        .map(|it| Ok(Frame::data(Bytes::copy_from_slice(it))))
        .collect();
    StreamBody::new(futures_util::stream::iter(frames))
}

/// A body that announces a length, and has nothing.
struct Announced(u64);

impl Body for Announced {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("the body is not asked for");
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

#[tokio::test]
async fn a_long_value_is_read_whole_and_in_parts() {
    let (site, value) = (Site::new(), long_value());
    for path in ["/any/key", &cas(&value), "/cache/abc", "/v1/cache/abc"] {
        assert_eq!(site.put(path, &value).await, 200, "{path}");
        let read = site.get(path, &[]).await;
        assert_eq!(read.status, 200);
        assert!(read.body == value, "{path}: {} bytes", read.body.len());
        let probed = site.ask("HEAD", path, &[], b"").await;
        assert_eq!(probed.headers["content-length"], value.len().to_string());
        assert!(probed.status == 200 && probed.body.is_empty());
    }
    let (from, to) = (VALUE_LEN_MAX - 10, VALUE_LEN_MAX + 300_000);
    let range = format!("bytes={from}-{}", to - 1);
    let read = site.get("/any/key", &[("range", &range)]).await;
    assert_eq!(read.status, 206);
    assert!(read.body == value[from..to]);
    let told = format!("bytes {from}-{}/{}", to - 1, value.len());
    assert_eq!(read.headers["content-range"], told);
    let beyond = format!("bytes={}-", value.len());
    let read = site.get("/any/key", &[("range", &beyond)]).await;
    assert_eq!(read.status, 416);
    let found = site.ask("PROPFIND", "/any/key", &[], b"").await;
    let document = String::from_utf8(found.body).unwrap();
    assert!(document.contains(&value.len().to_string()), "{document}");
    // What an entry of a hash has stays with Nx.
    assert_eq!(site.put("/v1/cache/abc", &value).await, 409);
    assert_eq!(site.status("DELETE", "/any/key", b"").await, 204);
    assert_eq!(site.get("/any/key", &[]).await.status, 404);
}

#[tokio::test]
async fn a_range_fetches_the_chunks_that_it_touches_alone() {
    let (site, value) = (Site::new(), long_value());
    assert_eq!(site.put("/a", &value).await, 200);
    let manifest = Manifest::parse(&site.store.value("a").unwrap()).unwrap();
    let mut from = 0;
    for (number, chunk) in manifest.chunks().iter().enumerate() {
        let last = from + chunk.len as usize - 1;
        // All of the chunk, its last byte, and that with the first one of the next chunk.
        for (range, chunks) in [
            (from..last + 1, 1),
            (last..last + 1, 1),
            (last..(last + 2).min(value.len()), 2),
        ] {
            let chunks = chunks.min(manifest.chunks().len() - number);
            site.store.taken();
            let text = format!("bytes={}-{}", range.start, range.end - 1);
            let read = site.get("/a", &[("range", &text)]).await;
            assert!(read.status == 206 && read.body == value[range], "{text}");
            let got = site.store.taken();
            assert_eq!(got.len(), 1 + chunks, "{text}: {got:?}");
        }
        from = last + 1;
    }
    assert_eq!(from, value.len());
}

#[tokio::test(start_paused = true)]
async fn the_next_chunk_is_fetched_while_one_is_sent() {
    let (site, value) = (Site::new(), long_value());
    assert_eq!(site.put("/a", &value).await, 200);
    site.store.set(Fault::Slow(Duration::from_millis(10)));
    site.store.taken();
    assert!(site.get("/a", &[]).await.body == value);
    let manifest = Manifest::parse(&site.store.value("a").unwrap()).unwrap();
    assert_eq!(site.store.taken().len(), 1 + manifest.chunks().len());
    assert_eq!(site.store.0.getting_max.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn long_values_share_their_chunks() {
    let (site, mut value) = (Site::new(), long_value());
    assert_eq!(site.put("/a", &value).await, 200);
    let before = site.entries();
    assert!(before > 4, "{before}");
    // The same bytes: one more manifest alone.
    assert_eq!(site.put("/b", &value).await, 200);
    assert_eq!(site.entries(), before + 1);
    // A few bytes more in the middle: a chunk or two.
    let middle = value.len() / 2;
    value.splice(middle..middle, *b"some bytes");
    assert_eq!(site.put("/c", &value).await, 200);
    assert!(site.entries() <= before + 4, "{}", site.entries());
    assert!(site.get("/c", &[]).await.body == value);
}

#[tokio::test]
async fn a_value_whose_length_is_not_told_may_be_long() {
    let (site, value) = (Site::new(), long_value());
    for (path, value) in [("/long", &value[..]), ("/short", &value[..VALUE_LEN_MAX])] {
        let put = Request::put(path).body(untold(value)).unwrap();
        assert_eq!(ask(&site.front, put).await.status, 200);
        assert!(site.get(path, &[]).await.body == value, "{path}");
    }
    let put = Request::put(cas(&value)).body(untold(&value)).unwrap();
    assert_eq!(ask(&site.front, put).await.status, 200);
    let put = Request::put(cas(b"other")).body(untold(&value)).unwrap();
    assert_eq!(ask(&site.front, put).await.status, 400);
    assert_eq!(site.get(&cas(b"other"), &[]).await.status, 404);
}

#[tokio::test]
async fn a_long_blob_that_is_not_its_digest_is_refused() {
    let (site, value) = (Site::new(), long_value());
    let path = cas(b"something else");
    assert_eq!(site.put(&path, &value).await, 400);
    assert_eq!(site.get(&path, &[]).await.status, 404);
}

#[tokio::test]
async fn what_is_longer_still_is_refused_before_it_is_read() {
    let site = Site::new();
    let announced = async |path: &str, len: u64| {
        let put = Request::put(path).body(Announced(len)).unwrap();
        ask(&site.front, put).await.status
    };
    assert_eq!(announced("/a", LONG_LEN_MAX + 1).await, 413);
    // A result of an action is a document.
    let result = format!("/ac/{}", "a".repeat(64));
    let len = VALUE_LEN_MAX as u64 + 1;
    assert_eq!(announced(&result, len).await, 413);
}

#[tokio::test]
async fn a_missing_or_forged_chunk_is_a_miss_of_the_whole() {
    let (site, value) = (Site::new(), long_value());
    assert_eq!(site.put("/a", &value).await, 200);
    let tail = value[value.len() - 100..].to_vec();
    let first = value[..100].to_vec();
    // Others may store what they like under the key of a chunk.
    for (bytes, _) in site.store.0.entries.lock().values_mut() {
        if bytes.starts_with(&first) {
            *bytes = Bytes::from(vec![0; bytes.len()]);
        }
    }
    assert_eq!(site.get("/a", &[]).await.status, 404);
    assert_eq!(site.put("/b", &[&b"x"[..], &value].concat()).await, 200);
    assert_eq!(site.get("/b", &[]).await.status, 200);
    site.store.evict(|bytes| bytes.ends_with(&tail));
    for path in ["/a", "/b"] {
        assert_eq!(site.get(path, &[]).await.status, 404, "{path}");
        assert_eq!(site.status("HEAD", path, b"").await, 404, "{path}");
    }
}

#[tokio::test]
async fn an_entry_that_lost_a_chunk_does_not_keep_its_place() {
    let (site, value) = (Site::new(), long_value());
    let other: Vec<u8> = value.iter().map(|byte| !byte).collect();
    let tail = value[value.len() - 100..].to_vec();
    // Nx keeps the first value of a hash.
    let path = "/v1/cache/abc";
    assert_eq!(site.put(path, &value).await, 200);
    assert_eq!(site.put(path, &other).await, 409);
    site.store.evict(|bytes| bytes.ends_with(&tail));
    assert_eq!(site.get(path, &[]).await.status, 404);
    assert_eq!(site.put(path, &other).await, 200);
    assert!(site.get(path, &[]).await.body == other);
    // So does a namespace with `write_once`, which allows no exception.
    site.store.0.is_write_once.store(true, Ordering::SeqCst);
    assert_eq!(site.put("/a", &value).await, 200);
    assert_eq!(site.put("/a", b"other").await, 200);
    assert!(site.get("/a", &[]).await.body == value);
    site.store.evict(|bytes| bytes.ends_with(&tail));
    assert_eq!(site.put("/a", b"other").await, 403);
    // Equal bytes restore the chunk.
    assert_eq!(site.put("/a", &value).await, 200);
    assert!(site.get("/a", &[]).await.body == value);
}

#[tokio::test]
async fn a_body_of_unknown_length_is_charged_once() {
    let (site, value) = (Site::new(), long_value());
    let put = Request::put("/long").body(untold(&value)).unwrap();
    assert_eq!(ask(&site.front, put).await.status, 200);
    let inside = &site.store.0;
    assert_eq!(inside.charges_max.load(Ordering::SeqCst), 1);
    assert_eq!(inside.charged.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_long_artifact_keeps_its_headers() {
    let (site, value) = (Site::new(), long_value());
    let path = "/v8/artifacts/abc";
    let headers = [("x-artifact-tag", "t1"), ("x-artifact-duration", "77")];
    let put = ask(&site.front, request("PUT", path, &headers, &value)).await;
    assert_eq!(put.status, 200);
    let read = site.get(path, &[]).await;
    assert!(read.body == value && read.headers["x-artifact-tag"] == "t1");
    assert_eq!(read.headers["x-artifact-duration"], "77");
    let probed = site.ask("HEAD", path, &[], b"").await;
    assert_eq!(probed.headers["content-length"], value.len().to_string());
}

#[tokio::test]
async fn a_long_value_that_is_no_manifest_any_more_is_a_miss() {
    let (site, value) = (Site::new(), long_value());
    assert_eq!(site.put("/a", &value).await, 200);
    for ((_, key), (bytes, _)) in site.store.0.entries.lock().iter_mut() {
        if key == "a" {
            bytes.truncate(bytes.len() - 1);
        }
    }
    assert_eq!(site.get("/a", &[]).await.status, 404);
    assert_eq!(site.status("HEAD", "/a", b"").await, 404);
    let put = Full::new(Bytes::from(value.clone()));
    let put = ask(&site.front, Request::put("/a").body(put).unwrap()).await;
    assert_eq!(put.status, 200);
    assert!(site.get("/a", &[]).await.body == value);
}

#[tokio::test(start_paused = true)]
async fn lists_of_chunks_are_looked_at_a_few_at_a_time() {
    let site = Site::new();
    assert_eq!(site.put("/long", &long_value()).await, 200);
    let inside = &site.store.0;
    inside.getting_max.store(0, Ordering::SeqCst);
    site.store.set(Fault::Slow(Duration::from_millis(10)));
    let heads = (0..40).map(|_| site.ask("HEAD", "/long", &[], b""));
    for head in futures_util::future::join_all(heads).await {
        assert_eq!(head.status.as_u16(), 200);
    }
    assert_eq!(inside.getting_max.load(Ordering::SeqCst), 16);
}
