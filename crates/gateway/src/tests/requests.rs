//! What each request is answered with.

pub(super) mod long;

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use fonn_base::metrics::Metrics;
use fonn_proto::Failure;
use http_body_util::Full;
use hyper::Request;
use tokio::time::Instant;

use super::fake::{Fault, Reply, Site, VALUE_LEN_MAX, ask};

/// SHA-256 of `hello`.
const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request
        .body(Full::new(Bytes::copy_from_slice(body)))
        .unwrap()
}

impl Site {
    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        ask(&self.front, request(method, path, headers, body)).await
    }

    async fn status(&self, method: &str, path: &str, body: &[u8]) -> u16 {
        self.ask(method, path, &[], body).await.status.as_u16()
    }
}

#[tokio::test]
async fn a_value_is_put_read_probed_and_deleted_under_its_path() {
    let site = Site::new();
    assert_eq!(site.status("GET", "/a/b%20c", b"").await, 404);
    assert_eq!(site.status("PUT", "/a/b%20c", b"hello").await, 200);
    assert_eq!(site.store.value("a/b c").unwrap(), &b"hello"[..]);
    let read = site.ask("GET", "/a/b%20c", &[], b"").await;
    assert_eq!((read.status.as_u16(), &read.body[..]), (200, &b"hello"[..]));
    let probed = site.ask("HEAD", "/a/b%20c", &[], b"").await;
    assert_eq!((probed.status.as_u16(), probed.body.len()), (200, 0));
    assert_eq!(probed.headers["content-length"], "5");
    assert_eq!(site.status("DELETE", "/a/b%20c", b"").await, 204);
    assert_eq!(site.status("DELETE", "/a/b%20c", b"").await, 404);
    assert_eq!(site.status("HEAD", "/a/b%20c", b"").await, 404);
}

#[tokio::test]
async fn a_range_is_a_part_of_the_value() {
    let site = Site::new();
    site.status("PUT", "/a", b"0123456789").await;
    let part = site.ask("GET", "/a", &[("range", "bytes=2-4")], b"").await;
    assert_eq!((part.status.as_u16(), &part.body[..]), (206, &b"234"[..]));
    assert_eq!(part.headers["content-range"], "bytes 2-4/10");
    let beyond = site.ask("GET", "/a", &[("range", "bytes=10-")], b"").await;
    assert_eq!(beyond.status.as_u16(), 416);
    assert_eq!(beyond.headers["content-range"], "bytes */10");
    let many = site
        .ask("GET", "/a", &[("range", "bytes=0-1,4-5")], b"")
        .await;
    assert_eq!((many.status.as_u16(), many.body.len()), (200, 10));
}

#[tokio::test]
async fn webdav_clients_find_every_collection() {
    let site = Site::new();
    for path in ["/", "/dav/", "/dav/team-a/2/1/a/"] {
        let found = site
            .ask("PROPFIND", path, &[("depth", "0")], b"<propfind/>")
            .await;
        assert_eq!(found.status.as_u16(), 207, "{path}");
        assert!(
            String::from_utf8(found.body)
                .unwrap()
                .contains("<D:collection/>")
        );
    }
    assert_eq!(site.status("MKCOL", "/new/", b"").await, 201);
    assert_eq!(site.status("PROPFIND", "/entry", b"").await, 404);
    site.status("PUT", "/entry", b"hello").await;
    let found = site.ask("PROPFIND", "/entry", &[], b"").await;
    assert!(
        String::from_utf8(found.body)
            .unwrap()
            .contains(">5</D:getcontentlength>")
    );
}

#[tokio::test]
async fn a_content_address_holds_only_what_has_its_digest() {
    let site = Site::new();
    let path = format!("/main/cas/{HELLO}");
    assert_eq!(site.status("PUT", &path, b"hellO").await, 400);
    assert_eq!(site.status("GET", &path, b"").await, 404);
    assert_eq!(site.status("PUT", &path, b"hello").await, 200);
    assert_eq!(site.status("GET", &path, b"").await, 200);
    let empty = "/cas/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    for method in ["GET", "HEAD"] {
        assert_eq!(
            site.status(method, empty, b"").await,
            200,
            "the empty value is always there"
        );
    }
    let action = format!("/ac/{HELLO}");
    assert_eq!(
        site.status("PUT", &action, b"").await,
        400,
        "no action result is empty"
    );
    assert_eq!(site.status("PUT", &action, b"\xcc\xac\x01").await, 200);
}

#[tokio::test]
async fn the_first_value_of_nx_stays() {
    let site = Site::new();
    let path = "/v1/cache/17575332623054215528";
    assert_eq!(site.status("PUT", path, b"first").await, 200);
    assert_eq!(site.status("PUT", path, b"second").await, 409);
    assert_eq!(site.ask("GET", path, &[], b"").await.body, b"first");
}

#[tokio::test]
async fn the_headers_of_a_turborepo_artifact_come_back_with_it() {
    let site = Site::new();
    let path = "/v8/artifacts/0123456789abcdef?slug=acme";
    let sent = [
        ("x-artifact-duration", "1234"),
        ("x-artifact-tag", "tag=="),
        ("x-other", "no"),
    ];
    let put = site.ask("PUT", path, &sent, b"artifact").await;
    assert_eq!(
        (put.status.as_u16(), &put.body[..]),
        (200, &b"{\"urls\":[]}"[..])
    );
    for (method, body) in [("GET", &b"artifact"[..]), ("HEAD", b"")] {
        let found = site.ask(method, path, &[], b"").await;
        assert_eq!((found.status.as_u16(), &found.body[..]), (200, body));
        assert_eq!(found.headers["x-artifact-duration"], "1234");
        assert_eq!(found.headers["x-artifact-tag"], "tag==");
        assert_eq!(found.headers["content-length"], "8");
        assert!(!found.headers.contains_key("x-other"));
    }
    let other_team = "/v8/artifacts/0123456789abcdef?slug=other";
    assert_eq!(site.status("GET", other_team, b"").await, 404);
    let status = site
        .ask("GET", "/v8/artifacts/status?slug=acme", &[], b"")
        .await;
    assert_eq!(status.body, b"{\"status\":\"enabled\"}");
    let events = br#"[{"source":"REMOTE","event":"HIT"}]"#;
    assert_eq!(
        site.status("POST", "/v8/artifacts/events", events).await,
        200
    );
    assert_eq!(
        site.status("POST", "/v8/artifacts/events", b"{}").await,
        400
    );
    let metrics = Metrics::new();
    site.front.register(&metrics);
    let text = metrics.render().unwrap();
    assert!(text.contains("fonn_http_turborepo_events_total{event=\"remote_hit\"} 1"));
    assert!(text.contains("fonn_http_requests_total{dialect=\"turborepo\",status=\"404\"} 1"));
}

#[tokio::test]
async fn a_preflight_is_answered_without_an_allowed_origin() {
    let site = Site::new();
    let asked = [("access-control-request-headers", "Authorization")];
    let answer = site.ask("OPTIONS", "/v8/artifacts/1", &asked, b"").await;
    let allowed = answer.headers["access-control-allow-headers"]
        .to_str()
        .unwrap();
    assert!(allowed.starts_with("Authorization"));
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
}

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_or_takes_too_long_is_a_miss() {
    let site = Site::new();
    site.status("PUT", "/a", b"hello").await;
    for failure in Failure::ALL {
        site.store.set(Fault::Fails(failure));
        for method in ["GET", "HEAD", "PROPFIND"] {
            assert_eq!(
                site.status(method, "/a", b"").await,
                404,
                "{method} {failure:?}"
            );
        }
    }
    site.store.set(Fault::Hangs);
    let begun = Instant::now();
    assert_eq!(site.status("GET", "/a", b"").await, 404);
    assert_eq!(begun.elapsed(), Duration::from_secs(2));
    assert_eq!(site.status("PUT", "/a", b"hello").await, 503);
    let metrics = Metrics::new();
    site.front.register(&metrics);
    let text = metrics.render().unwrap();
    assert!(
        text.contains("fonn_http_lost_reads_total{reason=\"deadline\"} 1"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_read_of_many_looks_has_one_deadline() {
    let site = Site::new();
    let (ac, cas) = (format!("/ac/{HELLO}"), format!("/cas/{HELLO}"));
    let text = result_of_hello();
    let put = site.ask("PUT", &ac, &[("content-type", JSON)], text.as_bytes());
    assert_eq!(put.await.status.as_u16(), 200);
    assert_eq!(site.status("PUT", &cas, b"hello").await, 200);
    assert_eq!(site.status("PUT", "/long", &long::long_value()).await, 200);
    let reads = [("GET", &ac[..]), ("GET", "/long"), ("HEAD", "/long")];
    for (each, status) in [(100, 200), (1_500, 404)] {
        site.store.set(Fault::Slow(Duration::from_millis(each)));
        for (method, path) in reads {
            let begun = Instant::now();
            assert_eq!(
                site.status(method, path, b"").await,
                status,
                "{method} {path}"
            );
            if status == 404 {
                assert_eq!(begun.elapsed(), Duration::from_secs(2), "{method} {path}");
            }
        }
    }
}

#[tokio::test]
async fn a_write_that_fails_says_why() {
    let site = Site::new();
    for (failure, status) in [
        (Failure::Busy, 503),
        (Failure::Unavailable, 503),
        (Failure::OutOfSpace, 507),
        (Failure::TooLarge, 413),
    ] {
        site.store.set(Fault::Fails(failure));
        for method in ["PUT", "DELETE"] {
            let answer = site.ask(method, "/a", &[], b"x").await;
            assert_eq!(answer.status.as_u16(), status, "{method} {failure:?}");
            assert_eq!(answer.headers.contains_key("retry-after"), status == 503);
        }
    }
}

#[tokio::test]
async fn a_result_that_is_too_long_is_refused_and_its_memory_given_back() {
    let site = Site::new();
    let result = format!("/ac/{}", "a".repeat(64));
    let value = vec![7; VALUE_LEN_MAX];
    assert_eq!(site.status("PUT", "/a", &value).await, 200);
    assert_eq!(
        site.status("PUT", &result, &[&value[..], b"x"].concat())
            .await,
        413
    );
    let encoded = [("content-encoding", "zstd")];
    assert_eq!(
        site.ask("PUT", "/c", &encoded, b"x").await.status.as_u16(),
        415
    );
    assert_eq!(site.ask("GET", "/a", &[], b"").await.body, value);
    let inside = &site.store.0;
    assert_eq!(inside.charged.load(Ordering::SeqCst), 0);
    assert_eq!(inside.charged_max.load(Ordering::SeqCst), VALUE_LEN_MAX);
    assert_eq!(inside.held.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn pages_of_other_sites_are_refused_without_logins() {
    let site = Site::new();
    site.status("PUT", "/a", b"hello").await;
    for (headers, status) in [
        (
            &[("origin", "http://evil.example"), ("host", "127.0.0.1:1")][..],
            403,
        ),
        (&[("origin", "null"), ("host", "127.0.0.1:1")], 403),
        (&[("host", "rebound.example")], 421),
        (&[("host", "127.0.0.1:1")], 200),
        (&[("host", "localhost")], 200),
    ] {
        assert_eq!(
            site.ask("GET", "/a", headers, b"").await.status.as_u16(),
            status,
            "{headers:?}"
        );
    }
}

#[tokio::test]
async fn malformed_requests_are_refused() {
    let site = Site::new();
    for (method, path, status) in [
        ("GET", "/a//b", 400),
        ("GET", "/%zz", 400),
        ("POST", "/a", 405),
        ("PUT", "/a/", 405),
    ] {
        assert_eq!(
            site.status(method, path, b"").await,
            status,
            "{method} {path}"
        );
    }
    let long = format!("/{}", "a".repeat(33 << 10));
    assert_eq!(site.status("GET", &long, b"").await, 414);
    let told = site.ask("GET", "/status", &[], b"").await;
    let document: serde_json::Value = serde_json::from_slice(&told.body).unwrap();
    assert_eq!(document["server"], "fonn");
}

const JSON: &str = "application/json";

/// A result with the output `hello`.
fn result_of_hello() -> String {
    format!(
        "{{\"outputFiles\":[{{\"path\":\"out\",\"digest\":{{\"hash\":\"{HELLO}\",\"sizeBytes\":\"5\"}}}}]}}"
    )
}

#[tokio::test]
async fn an_action_result_is_one_entry_in_json_and_as_a_message() {
    let site = Site::new();
    let (ac, cas) = (format!("/ac/{HELLO}"), format!("/cas/{HELLO}"));
    let text = result_of_hello();
    let put = site.ask("PUT", &ac, &[("content-type", JSON)], text.as_bytes());
    assert_eq!(put.await.status.as_u16(), 200);
    let kept = site.store.value(&ac[1..]).unwrap();
    assert_eq!(kept, fonn_reapi::result_of_json(text.as_bytes()).unwrap());

    // What it refers to has to be there in this form, too.
    let accepts = [("accept", "application/json; q=1, */*")];
    let missing = site.ask("GET", &ac, &accepts, b"").await;
    assert_eq!(missing.status.as_u16(), 404);
    assert_eq!(site.status("HEAD", &ac, b"").await, 404);
    assert_eq!(site.status("PUT", &cas, b"hello").await, 200);
    let read = site.ask("GET", &ac, &accepts, b"").await;
    assert_eq!(
        (read.status.as_u16(), &read.body[..]),
        (200, text.as_bytes())
    );
    assert_eq!(read.headers["content-type"], JSON);
    let probed = site.ask("HEAD", &ac, &accepts, b"").await;
    assert_eq!(probed.headers["content-length"], text.len().to_string());
    let read = site.ask("GET", &ac, &[], b"").await;
    assert_eq!((read.status.as_u16(), &read.body[..]), (200, &kept[..]));
    let part = [("range", "bytes=0-1")];
    let probed = site.ask("HEAD", &ac, &part, b"").await;
    assert_eq!(probed.status.as_u16(), 200);
    assert_eq!(probed.headers["content-length"], kept.len().to_string());
}

#[tokio::test]
async fn a_first_result_without_its_output_is_no_success_of_a_second_one() {
    let site = Site::new();
    site.store.0.is_write_once.store(true, Ordering::SeqCst);
    let (ac, cas) = (format!("/ac/{HELLO}"), format!("/cas/{HELLO}"));
    let text = result_of_hello();
    let json = [("content-type", JSON)];
    let put = async |text: &str| {
        let put = site.ask("PUT", &ac, &json, text.as_bytes()).await;
        put.status.as_u16()
    };
    assert_eq!(put(&text).await, 200);
    assert_eq!(put("{\"exitCode\":1}").await, 403);
    assert_eq!(site.status("PUT", &cas, b"hello").await, 200);
    assert_eq!(put("{\"exitCode\":1}").await, 200);
    let read = site.ask("GET", &ac, &[("accept", JSON)], b"").await;
    assert_eq!(read.body, text.as_bytes());
}

#[tokio::test]
async fn json_that_is_no_action_result_is_kept_as_it_came() {
    let site = Site::new();
    let ac = format!("/ac/{HELLO}");
    for (text, kept) in [
        (
            &b"{\"exitCode\":\"none\"}"[..],
            &b"{\"exitCode\":\"none\"}"[..],
        ),
        // A result without outputs is no entry without bytes.
        (b"{}", b"\x4a\x06\x0a\x04fonn"),
    ] {
        let put = site.ask("PUT", &ac, &[("content-type", JSON)], text).await;
        assert_eq!(put.status.as_u16(), 200);
        assert_eq!(site.store.value(&ac[1..]).unwrap(), kept);
    }
    // Of a blob the digest counts, whatever its type is called.
    let cas = format!("/cas/{HELLO}");
    let put = site
        .ask("PUT", &cas, &[("content-type", JSON)], b"hello")
        .await;
    assert_eq!(put.status.as_u16(), 200);
    let read = site.ask("GET", &cas, &[("accept", JSON)], b"").await;
    assert_eq!(&read.body[..], b"hello");
}

#[tokio::test]
async fn what_is_no_plain_whole_value_is_not_stored() {
    let site = Site::new();
    let encodings = [
        ("content-encoding", "identity"),
        ("content-encoding", "gzip"),
    ];
    for (headers, status) in [
        (&[("content-range", "bytes 0-4/10")][..], 400),
        (&[("transfer-encoding", "gzip, chunked")][..], 501),
        (&encodings[..], 415),
        (&encodings[..1], 200),
        (&[("transfer-encoding", "chunked")][..], 200),
    ] {
        let put = site.ask("PUT", "/key", headers, b"hello").await;
        assert_eq!(put.status.as_u16(), status, "{headers:?}");
        assert_eq!(site.store.value("key").is_some(), status == 200);
        site.store.evict(|_| true);
    }
}

#[tokio::test]
async fn a_write_may_ask_to_keep_what_is_there() {
    let site = Site::new();
    let put = async |condition, value: &[u8]| {
        let headers = [("if-none-match", condition)];
        let put = site.ask("PUT", "/key", &headers, value).await;
        put.status.as_u16()
    };
    assert_eq!(put("*", b"first").await, 200);
    assert_eq!(put("*", b"second").await, 412);
    assert_eq!(site.store.value("key").unwrap(), "first");
    assert_eq!(put("\"other\"", b"third").await, 200);
    assert_eq!(site.store.value("key").unwrap(), "third");
}

#[tokio::test(start_paused = true)]
async fn reads_and_writes_count_with_the_time_that_they_took() {
    let site = Site::new();
    site.store.set(Fault::Slow(Duration::from_millis(700)));
    site.ask("PUT", "/key", &[], b"value").await;
    for method in ["GET", "HEAD"] {
        site.ask(method, "/key", &[], b"").await;
    }
    let metrics = Metrics::new();
    site.front.register(&metrics);
    let text = metrics.render().unwrap();
    for line in [
        "_count{operation=\"read\"} 2",
        "_sum{operation=\"read\"} 1.4",
        "_sum{operation=\"write\"} 0.7",
    ] {
        let line = format!("\nfonn_http_request_duration_seconds{line}\n");
        assert!(text.contains(&line), "{line}: {text}");
    }
}
