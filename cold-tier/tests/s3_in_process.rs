//! The S3 store against a server in this process: the contract of stores, and what a server may do
//! to its client.

#![allow(clippy::unwrap_used)] // Helpers of tests are not known to be tests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fonn_base::clock::Clock;
use fonn_cold_tier::store::probe::{Check, Finding, Outcome, probe};
use fonn_cold_tier::store::s3::S3Options;
use fonn_cold_tier::store::s3_server::{Answer, BUCKET, Reply, S3Server};
use fonn_cold_tier::store::{
    Body, ObjectKey, ObjectStore, Operation, Piece, Pieces, S3Store, StoreError, StoreErrorKind,
    suite,
};
use hyper::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

async fn server() -> (S3Server, S3Store) {
    let server = S3Server::start().await.unwrap();
    let store = S3Store::open(server.options()).await.unwrap();
    (server, store)
}

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).unwrap()
}

fn answer(server: &S3Server, method: Option<Method>, times: u64, reply: Reply) {
    server.answer(Answer {
        method,
        times,
        reply,
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_keeps_the_contract_of_stores() {
    let (_server, store) = server().await;
    suite::run(Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn below_a_prefix_it_keeps_the_contract_and_touches_nothing_else() {
    let (server, bucket) = server().await;
    let foreign = ["suite/list/a", "team", "team2/suite/list/b"].map(key);
    for key in &foreign {
        bucket.put(key, "x".into()).await.unwrap();
    }
    let mut options = server.options();
    options.prefix = Some(key("team2/cache"));
    let store = S3Store::open(options).await.unwrap();
    suite::run(Arc::new(store)).await;
    let page = bucket.list("", None, 1000).await.unwrap();
    let left = page.objects.into_iter().map(|meta| meta.key);
    let left: Vec<_> = left
        .filter(|key| !key.as_str().starts_with("team2/cache/"))
        .collect();
    assert_eq!(left, foreign);
}

#[tokio::test]
async fn answers_of_the_server_are_sorted_and_not_retried() {
    let (server, store) = server().await;
    for (status, code, kind) in [
        (503, "SlowDown", StoreErrorKind::Throttled),
        (429, "TooManyRequests", StoreErrorKind::Throttled),
        (500, "InternalError", StoreErrorKind::Unavailable),
        (400, "RequestTimeout", StoreErrorKind::Timeout),
        (403, "AccessDenied", StoreErrorKind::Denied),
        (404, "NoSuchBucket", StoreErrorKind::Invalid),
        (404, "NoSuchKey", StoreErrorKind::NotFound),
        (501, "NotImplemented", StoreErrorKind::Unsupported),
        (
            409,
            "ConditionalRequestConflict",
            StoreErrorKind::Unavailable,
        ),
    ] {
        answer(&server, None, 1, Reply::Error(status, code));
        let before = server.requests();
        let error = store.get(&key("a")).await.unwrap_err();
        assert_eq!((error.kind, error.operation), (kind, Operation::Get));
        let refusal = error.refusal().unwrap();
        assert_eq!(
            (refusal.status, refusal.code.as_deref()),
            (status, Some(code))
        );
        assert_eq!(refusal.message, "as the test wants it");
        assert_eq!(server.requests(), before + 1);
    }
}

#[tokio::test]
async fn a_conflict_is_resolved_by_looking() {
    let (server, store) = server().await;
    let conflict = Reply::Error(409, "ConditionalRequestConflict");
    answer(&server, Some(Method::PUT), 1, conflict);
    let error = store
        .put_if_absent(&key("a"), "1".into())
        .await
        .unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    store.put_if_absent(&key("a"), "1".into()).await.unwrap();
    answer(&server, Some(Method::PUT), 1, conflict);
    let error = store
        .put_if_absent(&key("a"), "2".into())
        .await
        .unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::AlreadyExists);
    assert_eq!(store.get(&key("a")).await.unwrap(), "1");
}

#[tokio::test]
async fn broken_connections_and_silence_are_told_apart() {
    let (server, _) = server().await;
    let mut options = server.options();
    let store = S3Store::open(options.clone()).await.unwrap();
    options.timeout = Duration::from_millis(300);
    let impatient = S3Store::open(options).await.unwrap();
    store.put(&key("a"), "1".into()).await.unwrap();
    answer(&server, Some(Method::GET), 1, Reply::Disconnect);
    let error = store.get(&key("a")).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error:?}");
    answer(&server, Some(Method::PUT), 1, Reply::LostAnswer);
    let error = store.put(&key("b"), "2".into()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error:?}");
    assert_eq!(store.get(&key("b")).await.unwrap(), "2");
    answer(&server, None, 1, Reply::Hang);
    let error = impatient.head(&key("a")).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Timeout, "{error:?}");
    assert_eq!(store.get(&key("a")).await.unwrap(), "1");
}

#[tokio::test]
async fn an_object_of_any_length_is_one_request() {
    let (server, store) = server().await;
    let chunk = Bytes::from(vec![7; 1 << 20]);
    for chunks in [1, 16, 17, 80] {
        let body: Body = vec![chunk.clone(); chunks].into();
        let before = server.requests();
        store.put(&key("a"), body).await.unwrap();
        assert_eq!(server.requests(), before + 1, "{chunks} MiB");
        let size = store.head(&key("a")).await.unwrap().size_bytes;
        assert_eq!(size, (chunks as u64) << 20);
    }
}

/// A server that answers every request with the same bytes and closes the connection.
async fn store_that_answers(response: &'static str) -> S3Store {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(response.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    let server = S3Server::start().await.unwrap();
    let options = S3Options {
        endpoint: Some(endpoint),
        ..server.options()
    };
    S3Store::open(options).await.unwrap()
}

#[tokio::test]
async fn bodies_that_are_not_what_was_asked_for_are_refused() {
    for (response, kind) in [
        (
            "HTTP/1.1 206 Partial Content\r\ncontent-length: 5\r\ncontent-range: bytes 0-4/9\r\n\r\n123",
            StoreErrorKind::Unavailable,
        ),
        (
            "HTTP/1.1 206 Partial Content\r\ncontent-length: 5\r\ncontent-range: bytes 1-5/9\r\n\r\n12345",
            StoreErrorKind::Unavailable,
        ),
        (
            "HTTP/1.1 206 Partial Content\r\ncontent-length: 4\r\ncontent-range: bytes 0-4/9\r\n\r\n1234",
            StoreErrorKind::Unavailable,
        ),
        (
            "HTTP/1.1 206 Partial Content\r\ncontent-length: 4\r\ncontent-range: bytes 0-3/9\r\n\r\n1234",
            StoreErrorKind::Unavailable,
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789",
            StoreErrorKind::Unsupported,
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n123",
            StoreErrorKind::Invalid,
        ),
        (
            "HTTP/1.1 502 Bad Gateway\r\n\r\n<html>",
            StoreErrorKind::Unavailable,
        ),
        ("nonsense\r\n\r\n", StoreErrorKind::Unavailable),
        ("", StoreErrorKind::Unavailable),
    ] {
        let store = store_that_answers(response).await;
        let error = store.get_range(&key("a"), 0..5).await.unwrap_err();
        assert_eq!(error.kind, kind, "{response}: {error:?}");
        let error = streamed(&store).await.unwrap_err();
        assert_eq!(error.kind, kind, "{response}: {error:?}");
    }
    let good = "HTTP/1.1 206 Partial Content\r\ncontent-length: 5\r\n\
                content-range: bytes 0-4/9\r\n\r\n12345";
    let store = store_that_answers(good).await;
    assert_eq!(store.get_range(&key("a"), 0..5).await.unwrap(), "12345");
    assert_eq!(streamed(&store).await.unwrap(), b"12345");
}

/// The first five bytes of an object, as they come.
async fn streamed(store: &S3Store) -> Result<Vec<u8>, StoreError> {
    let (to, mut pieces) = Pieces::channel();
    let reading = async {
        let mut read = Vec::new();
        while let Some(piece) = pieces.recv().await {
            match piece {
                Piece::Begin => read.clear(),
                Piece::Bytes(bytes) => read.extend_from_slice(&bytes),
            }
        }
        read
    };
    let object = key("a");
    let sending = async move { store.stream_range(&object, 0..5, &to).await };
    let (sent, read) = tokio::join!(sending, reading);
    sent.map(|_| read)
}

#[tokio::test]
async fn secrets_that_the_server_repeats_are_in_no_error() {
    let body = "<Error><Code>SignatureDoesNotMatch</Code><Message>for TESTKEYIDTESTKEYID12 and \
                test/secret+access/key</Message><StringToSign>token</StringToSign></Error>";
    let response = format!(
        "HTTP/1.1 403 Forbidden\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let store = store_that_answers(Box::leak(response.into_boxed_str())).await;
    let error = store.get(&key("a")).await.unwrap_err();
    let shown = format!("{error} {error:?} {store:?}");
    assert_eq!(error.refusal().unwrap().message, "for … and …");
    for secret in ["TESTKEYID", "secret", "token"] {
        assert!(!shown.contains(secret), "{secret} is in {shown}");
    }
}

#[tokio::test]
async fn what_is_sent_is_as_s3_servers_of_all_kinds_take_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (server, _) = server().await;
    let mut options = server.options();
    options.endpoint = Some(endpoint);
    options.credentials.as_mut().unwrap().session_token = Some("the-token".to_owned());
    let store = S3Store::open(options).await.unwrap();
    let body: Body = vec![Bytes::from_static(b"1234"), Bytes::from_static(b"56789")].into();
    let object = key("a/b=c");
    let (sent, _) = tokio::join!(
        // It answers nothing, and takes no other connection.
        async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 16_384];
            let mut len = 0;
            while !request[..len].ends_with(b"123456789") {
                len += stream.read(&mut request[len..]).await.unwrap();
            }
            String::from_utf8(request[..len].to_vec()).unwrap()
        },
        store.put_if_absent(&object, body)
    );
    let sent = sent.to_ascii_lowercase();
    for part in [
        // The bucket is in the path.
        "put /bucket/a/b%3dc",
        "\r\nif-none-match: *\r\n",
        "\r\ncontent-length: 9\r\n",
        "\r\nx-amz-security-token: the-token\r\n",
        // The check value of CRC-32C, e3069283.
        "\r\nx-amz-checksum-crc32c: 4wasgw==\r\n",
        "\r\nx-amz-content-sha256: unsigned-payload\r\n",
    ] {
        assert!(sent.contains(part), "{part} is not in\n{sent}");
    }
    // What servers of others reject.
    for part in [
        "aws-chunked",
        "trailer",
        "x-amz-sdk-checksum",
        "transfer-encoding",
    ] {
        assert!(!sent.contains(part), "{part} is in\n{sent}");
    }
}

#[tokio::test]
async fn the_standard_variables_are_enough() {
    let (server, store) = server().await;
    let credentials = server.credentials();
    // Variables are those of a process, so this takes another one: the next test.
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "child_with_the_standard_variables"])
        .env("FONN_TEST_CHILD", "1")
        .env("AWS_ENDPOINT_URL", server.endpoint())
        .env("AWS_REGION", "eu-central-1")
        .env("AWS_ACCESS_KEY_ID", credentials.key_id)
        .env("AWS_SECRET_ACCESS_KEY", credentials.secret);
    let status = tokio::task::spawn_blocking(move || child.status()).await;
    let status = status.unwrap().unwrap();
    assert!(status.success());
    assert_eq!(store.get(&key("by/child")).await.unwrap(), "done");
}

#[tokio::test]
async fn child_with_the_standard_variables() {
    if std::env::var_os("FONN_TEST_CHILD").is_some() {
        let store = S3Store::open(S3Options::new(BUCKET)).await.unwrap();
        store.put(&key("by/child"), "done".into()).await.unwrap();
    }
}

#[tokio::test]
async fn a_missing_server_is_unavailable_and_soon_known() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let (server, _) = server().await;
    let options = S3Options {
        endpoint: Some(endpoint),
        ..server.options()
    };
    let store = S3Store::open(options).await.unwrap();
    let error = store.get(&key("a")).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    assert!(error.source.unwrap().to_string().contains("refused"));
}

async fn findings(options: S3Options) -> Vec<Finding> {
    let store = S3Store::open(options).await.unwrap();
    probe(&store, &Clock::system()).await
}

fn first_failure(findings: &[Finding]) -> (Check, &str) {
    let failed = findings
        .iter()
        .find(|found| found.outcome == Outcome::Failed);
    let failed = failed.unwrap();
    (failed.check, failed.sentence.as_str())
}

#[tokio::test]
async fn the_probe_passes_a_good_bucket() {
    let (server, _) = server().await;
    for finding in findings(server.options()).await {
        assert_eq!(finding.outcome, Outcome::Passed, "{finding:?}");
    }
}

#[tokio::test]
async fn the_probe_names_what_is_wrong_and_the_remedy() {
    let (server, _) = server().await;
    let good = server.options();

    let mut options = good.clone();
    options.bucket = "no-such-bucket".to_owned();
    let found = findings(options).await;
    let (check, sentence) = first_failure(&found);
    assert!(
        check == Check::Bucket && sentence.contains("create the bucket"),
        "{found:?}"
    );

    let mut options = good.clone();
    options.credentials.as_mut().unwrap().secret = "wrong".to_owned();
    let found = findings(options).await;
    let (check, sentence) = first_failure(&found);
    assert!(
        check == Check::Credentials && sentence.contains("AWS_SECRET"),
        "{found:?}"
    );

    let mut options = good.clone();
    options.credentials.as_mut().unwrap().key_id = "NOBODY".to_owned();
    let found = findings(options).await;
    assert_eq!(first_failure(&found).0, Check::Credentials, "{found:?}");

    let mut options = good.clone();
    options.endpoint = Some("http://127.0.0.1:1".to_owned());
    let found = findings(options).await;
    let (check, sentence) = first_failure(&found);
    assert!(
        check == Check::Reach && sentence.contains("AWS_ENDPOINT_URL"),
        "{found:?}"
    );

    // Read-only: everything that writes is denied.
    for method in [Method::PUT, Method::DELETE] {
        answer(
            &server,
            Some(method),
            u64::MAX,
            Reply::Error(403, "AccessDenied"),
        );
    }
    let found = findings(good).await;
    let (check, sentence) = first_failure(&found);
    assert!(
        check == Check::Put && sentence.contains("s3:PutObject"),
        "{found:?}"
    );
    let get = found
        .iter()
        .find(|found| found.check == Check::Get)
        .unwrap();
    assert_eq!(get.outcome, Outcome::Passed);
}

#[tokio::test]
async fn the_probe_notices_that_conditions_are_ignored() {
    let (server, _) = server().await;
    answer(&server, Some(Method::PUT), 1, Reply::Own);
    answer(&server, Some(Method::PUT), 1, Reply::Pretend);
    let found = findings(server.options()).await;
    let finding = found
        .iter()
        .find(|found| found.check == Check::ConditionalPut);
    let finding = finding.unwrap();
    assert_eq!(finding.outcome, Outcome::Warned);
    assert!(finding.sentence.contains("If-None-Match"), "{finding:?}");
}

#[tokio::test]
async fn an_endpoint_that_is_no_url_is_named() {
    let mut options = S3Options::new("bucket");
    options.endpoint = Some("localhost".to_owned());
    let error = S3Store::open(options).await.unwrap_err();
    assert!(
        error.to_string().contains("`localhost` is no URL"),
        "{error}"
    );
}
