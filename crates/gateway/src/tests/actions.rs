//! The cache service of GitHub Actions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fonn_auth::Authenticator;
use fonn_auth::testing::directory;
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::fake::{Fault, Reply, Site, VALUE_LEN_MAX, ask, guarded};
use crate::actions::{entry_id, hex};

const SERVICE: &str = "/twirp/github.actions.results.api.v1.CacheService";

impl Site {
    async fn transfer(&self, method: &str, url: &str, range: Option<&str>, body: &[u8]) -> Reply {
        let mut request = Request::builder().method(method).uri(url);
        request = request.header("host", "127.0.0.1");
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let body = Full::new(Bytes::copy_from_slice(body));
        ask(&self.front, request.body(body).unwrap()).await
    }

    async fn call(&self, method: &str, request: Value) -> Value {
        let (url, body) = (format!("{SERVICE}/{method}"), request.to_string());
        let reply = self.transfer("POST", &url, None, body.as_bytes()).await;
        assert_eq!(reply.status, 200);
        serde_json::from_slice(&reply.body).unwrap()
    }

    /// Where to upload an archive; `None` if there is one already.
    async fn reserve(&self, key: &str) -> Option<String> {
        let request = json!({"key": key, "version": "v"});
        let reserved = self.call("CreateCacheEntry", request).await;
        let url = reserved["signed_upload_url"].as_str();
        assert_eq!(reserved["ok"], url.is_some());
        let path = url?.strip_prefix("http://127.0.0.1").unwrap();
        Some(path.to_owned())
    }

    async fn publish(&self, key: &str, len: usize) -> bool {
        let request = json!({"key": key, "version": "v", "size_bytes": len.to_string()});
        self.call("FinalizeCacheEntryUpload", request).await["ok"] == true
    }

    async fn save(&self, key: &str, archive: &[u8]) {
        let url = self.reserve(key).await.unwrap();
        let uploaded = self.transfer("PUT", &url, None, archive).await;
        assert_eq!(uploaded.status, 201);
        assert!(self.publish(key, archive.len()).await);
    }

    /// The key that is found, and the path of its archive.
    async fn find(&self, key: &str, prefixes: &[&str]) -> Option<(String, String)> {
        let request = json!({"key": key, "restore_keys": prefixes, "version": "v"});
        let found = self.call("GetCacheEntryDownloadURL", request).await;
        let url = found["signed_download_url"].as_str();
        assert_eq!(found["ok"], url.is_some());
        let path = url?.strip_prefix("http://127.0.0.1").unwrap();
        Some((
            found["matched_key"].as_str().unwrap().to_owned(),
            path.to_owned(),
        ))
    }

    async fn matched(&self, key: &str, prefixes: &[&str]) -> Option<String> {
        Some(self.find(key, prefixes).await?.0)
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 251 + at) as u8).collect()
}

#[tokio::test]
async fn an_archive_longer_than_a_value_is_uploaded_in_one_piece_and_read_in_ranges() {
    let site = Site::new();
    let archive = bytes(3 * VALUE_LEN_MAX + 5);
    assert_eq!(site.find("k", &[]).await, None);
    site.save("k", &archive).await;
    let (key, url) = site.find("k", &[]).await.unwrap();
    assert_eq!(key, "k");
    let read = site.transfer("GET", &url, None, b"").await;
    assert_eq!((read.status.as_u16(), read.body == archive), (200, true));
    assert_eq!(read.headers["content-length"], archive.len().to_string());
    let head = site.transfer("HEAD", &url, None, b"").await;
    assert_eq!(head.headers["content-length"], archive.len().to_string());
    assert!(head.body.is_empty());
    let (from, to) = (VALUE_LEN_MAX - 2, 2 * VALUE_LEN_MAX + 2);
    let range = format!("bytes={from}-{}", to - 1);
    let part = site.transfer("GET", &url, Some(&range), b"").await;
    assert_eq!(part.status, 206);
    assert!(part.body == archive[from..to]);
    let told = format!("bytes {from}-{}/{}", to - 1, archive.len());
    assert_eq!(part.headers["content-range"], told);
    let beyond = format!("bytes={}-", archive.len());
    assert_eq!(
        site.transfer("GET", &url, Some(&beyond), b"").await.status,
        416
    );
    // It stays.
    assert_eq!(site.reserve("k").await, None);
}

#[tokio::test]
async fn blocks_make_an_archive_in_the_order_of_their_list() {
    let site = Site::new();
    let url = site.reserve("k").await.unwrap();
    let long = bytes(VALUE_LEN_MAX + 7);
    for (name, block) in [("Yg%3D%3D", &b"tail"[..]), ("YQ%3D%3D", &long)] {
        let url = format!("{url}&comp=block&blockid={name}");
        assert_eq!(site.transfer("PUT", &url, None, block).await.status, 201);
    }
    let list = |names: &[&str]| {
        let rows: String = names
            .iter()
            .map(|name| format!("<Latest>{name}</Latest>"))
            .collect();
        format!("<?xml version=\"1.0\"?><BlockList>{rows}</BlockList>")
    };
    let commit = format!("{url}&comp=blocklist");
    let missing = list(&["YQ==", "Yw=="]);
    let refused = site
        .transfer("PUT", &commit, None, missing.as_bytes())
        .await;
    assert_eq!(refused.status, 400);
    assert!(!site.publish("k", 0).await);
    let whole = list(&["YQ==", "Yg=="]);
    let committed = site.transfer("PUT", &commit, None, whole.as_bytes()).await;
    assert_eq!(committed.status, 201);
    assert!(!site.publish("k", long.len()).await);
    assert_eq!(site.find("k", &[]).await, None);
    assert!(site.publish("k", long.len() + 4).await);
    // As after an answer that was lost.
    assert!(site.publish("k", long.len() + 4).await);
    let (_, url) = site.find("k", &[]).await.unwrap();
    let read = site.transfer("GET", &url, None, b"").await;
    assert!(read.body == [&long[..], b"tail"].concat());
}

#[tokio::test]
async fn prefixes_find_the_newest_entry_that_is_whole() {
    let site = Site::new();
    for key in ["linux-a", "linux-b", "mac-a"] {
        site.save(key, key.as_bytes()).await;
    }
    let matched = async |key: &str, prefixes: &[&str]| site.matched(key, prefixes).await;
    assert_eq!(matched("linux-a", &[]).await.unwrap(), "linux-a");
    assert_eq!(matched("linux-c", &["linux-"]).await.unwrap(), "linux-b");
    // The key itself is the first prefix, then each in turn.
    assert_eq!(matched("linux-", &["mac-"]).await.unwrap(), "linux-b");
    let prefixes = ["none-", "mac-", "linux-"];
    assert_eq!(matched("linux-c", &prefixes).await.unwrap(), "mac-a");
    assert_eq!(matched("windows", &["windows-"]).await, None);
    // The chunks of the newest are evicted.
    site.store.evict(|bytes| bytes == "linux-b");
    assert_eq!(matched("linux-c", &["linux-"]).await.unwrap(), "linux-a");
    assert_eq!(matched("linux-b", &[]).await, None);
    // So it can be stored again.
    site.save("linux-b", b"linux-b").await;
    assert_eq!(matched("linux-c", &["linux-"]).await.unwrap(), "linux-b");
}

#[tokio::test(start_paused = true)]
async fn a_search_of_many_looks_has_one_deadline() {
    let site = Site::new();
    site.save("linux-a", b"archive").await;
    for (each, is_found) in [(100, true), (1_500, false)] {
        site.store.set(Fault::Slow(Duration::from_millis(each)));
        let begun = Instant::now();
        let found = site.matched("linux-b", &["linux-"]).await;
        assert_eq!(found.is_some(), is_found, "{each}");
        assert!(begun.elapsed() <= Duration::from_secs(2), "{each}");
    }
}

#[tokio::test]
async fn an_archive_is_published_if_restores_find_it_where_first_values_stay() {
    let site = Site::new();
    site.store.0.is_write_once.store(true, Ordering::SeqCst);
    let first = bytes(VALUE_LEN_MAX + 7);
    let (second, url) = (&first[..9], site.reserve("k").await.unwrap());
    // An upload that was not published keeps no place.
    for archive in [second, &first] {
        let uploaded = site.transfer("PUT", &url, None, archive).await;
        assert_eq!(uploaded.status, 201);
    }
    assert!(site.publish("k", first.len()).await);
    let tail = first[first.len() - 5..].to_vec();
    site.store.evict(|bytes| bytes.ends_with(&tail));
    let uploaded = site.transfer("PUT", &url, None, second).await;
    assert_eq!(uploaded.status, 201);
    let request = json!({"key": "k", "version": "v", "size_bytes": second.len().to_string()});
    let publish = format!("{SERVICE}/FinalizeCacheEntryUpload");
    let body = request.to_string();
    let refused = site.transfer("POST", &publish, None, body.as_bytes()).await;
    assert_eq!(refused.status, 403);
    assert_eq!(site.find("k", &[]).await, None);
    // The same archive restores the chunk.
    site.save("k", &first).await;
    assert!(site.find("k", &[]).await.is_some());
}

#[tokio::test]
async fn an_identity_publishes_what_it_uploaded_itself() {
    let users = directory(&[("ci", "read-write"), ("other", "read-write")]);
    let (_, front) = guarded(Arc::new(Authenticator::new(users).unwrap()));
    let ask_as = async |name: &str, method: &str, url: &str, body: &str| {
        let login = STANDARD.encode(format!("{name}:hunter 2"));
        let request = Request::builder().method(method).uri(url);
        let request = request.header("authorization", format!("Basic {login}"));
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        ask(&front, request.body(body).unwrap()).await
    };
    let archive = format!("/actions/cache/{}?layer=own", hex(&entry_id("k", "v")));
    let block = format!("{archive}&comp=block&blockid=YQ%3D%3D");
    let list = format!("{archive}&comp=blocklist");
    let names = "<BlockList><Latest>YQ==</Latest></BlockList>";
    for (name, url, body) in [
        ("ci", &block, "first"),
        ("other", &block, "other"),
        ("ci", &list, names),
        ("other", &archive, "other"),
    ] {
        assert_eq!(ask_as(name, "PUT", url, body).await.status, 201);
    }
    let publish = json!({"key": "k", "version": "v", "size_bytes": "5"}).to_string();
    let url = format!("{SERVICE}/FinalizeCacheEntryUpload");
    assert_eq!(ask_as("ci", "POST", &url, &publish).await.status, 200);
    assert_eq!(ask_as("ci", "GET", &archive, "").await.body, b"first");
}

#[tokio::test]
async fn malformed_calls_and_uploads_are_refused_as_json() {
    let site = Site::new();
    let error = async |method: &str, url: &str, body: &str| {
        let reply = site.transfer(method, url, None, body.as_bytes()).await;
        let error: Value = serde_json::from_slice(&reply.body).unwrap();
        assert!(!error["msg"].as_str().unwrap().is_empty());
        (
            reply.status.as_u16(),
            error["code"].as_str().unwrap().to_owned(),
        )
    };
    let invalid = (400, "invalid_argument".to_owned());
    let call = format!("{SERVICE}/CreateCacheEntry");
    for body in ["", "{}", "[]", r#"{"key":"","version":"v"}"#] {
        assert_eq!(error("POST", &call, body).await, invalid);
    }
    let url = site.reserve("k").await.unwrap();
    for query in ["&comp=page", "&comp=block", "&comp=blocklist"] {
        let url = format!("{url}{query}");
        assert_eq!(error("PUT", &url, "x").await, invalid, "{query}");
    }
    let missing = (404, "not_found".to_owned());
    assert_eq!(error("GET", &url, "").await, missing);
    assert_eq!(
        error("GET", &format!("{url}&layer=base"), "").await,
        missing
    );
    let other = site.transfer("GET", &call, None, b"").await;
    assert_eq!(other.status, 405);
}
