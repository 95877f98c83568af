//! Connections whose credentials are checked.

use std::future::{Future as _, poll_fn};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use fonn_auth::testing::directory;
use fonn_auth::{Authenticator, Directory, Refusal, Source};
use fonn_reapi::frame;
use fonn_reapi::messages::WriteRequest;
use futures_util::stream::{self, StreamExt as _};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode, Version};
use ring::digest::{SHA256, digest};
use tokio::sync::oneshot;

use super::fake::{Fake, VALUE_LEN_MAX, guarded};
use crate::actions::hex;
use crate::handler::Peer;
use crate::life::{Life, Times};

/// `ci` with the password of all users of tests.
const LOGIN: &str = "Basic Y2k6aHVudGVyIDI=";

#[tokio::test]
async fn a_connection_whose_password_is_checked_gives_way_to_no_newer_one() {
    let users = Arc::new(Authenticator::new(directory(&[("ci", "read-write")])).unwrap());
    let (_, front) = guarded(Arc::clone(&users));
    let peer = Peer {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        is_encrypted: false,
    };
    let begin = || {
        let life = Life::new(Times::default(), Source::of(None), true);
        front.suspect(peer.address, &life);
        life
    };
    let (oldest, life) = (begin(), begin());
    let request = Request::get("/absent").header(AUTHORIZATION, LOGIN);
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let mut answer = pin!(front.answer(request, peer, &life));
    // The check waits for a thread from here on.
    let occupied = users.occupy();
    let is_checked = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx).is_pending())).await;
    assert!(is_checked);
    let newer: Vec<_> = (0..300).map(|_| begin()).collect();
    assert!(oldest.is_cut());
    assert!(!newer[299].is_cut());
    assert!(!life.is_cut());
    drop(occupied);
    assert_eq!(answer.await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_page_of_another_site_may_not_use_the_login_of_its_browser() {
    let users = Arc::new(Authenticator::new(directory(&[("ci", "read-write")])).unwrap());
    let (_, front) = guarded(users);
    let peer = Peer {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        is_encrypted: false,
    };
    for (origin, status) in [
        (None, StatusCode::OK),
        (Some("http://127.0.0.1:1"), StatusCode::OK),
        (Some("http://evil.example"), StatusCode::FORBIDDEN),
        (Some("null"), StatusCode::FORBIDDEN),
    ] {
        let life = Life::new(Times::default(), Source::of(None), true);
        let request = Request::put("/key")
            .header("host", "127.0.0.1:1")
            .header(AUTHORIZATION, LOGIN);
        let request = match origin {
            Some(origin) => request.header("origin", origin),
            None => request,
        };
        let request = request.body(Full::new(Bytes::from_static(b"x"))).unwrap();
        let answer = front.answer(request, peer, &life).await;
        assert_eq!(answer.status(), status, "{origin:?}");
    }
}

#[tokio::test]
async fn a_read_whose_login_cannot_be_checked_now_is_a_miss() {
    let users = Arc::new(Authenticator::new(directory(&[("ci", "read-write")])).unwrap());
    let (_, front) = guarded(Arc::clone(&users));
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let peer = Peer {
        address,
        is_encrypted: false,
    };
    // No guess is answered meanwhile, and their line is full.
    let _occupied = users.occupy();
    let mut guesses = Vec::new();
    loop {
        let password = guesses.len().to_string();
        let users = Arc::clone(&users);
        let mut guess = Box::pin(async move {
            let checked = users.check(b"ci", password.as_bytes(), Some(address));
            checked.await.err()
        });
        match poll_fn(|cx| Poll::Ready(guess.as_mut().poll(cx))).await {
            Poll::Pending => guesses.push(guess),
            Poll::Ready(refusal) => {
                assert_eq!(refusal, Some(Refusal::Busy));
                break;
            }
        }
    }
    for (method, status) in [("GET", 404), ("HEAD", 404), ("PROPFIND", 404), ("PUT", 503)] {
        let life = Life::new(Times::default(), Source::of(None), true);
        let request = Request::builder().method(method).uri("/key");
        let request = request.header(AUTHORIZATION, LOGIN);
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let answer = front.answer(request, peer, &life).await;
        assert_eq!(answer.status().as_u16(), status, "{method}");
    }
}

/// Sends half of an upload, puts other users in force, and sends the rest. Returns the status of
/// the response, its headers with its trailers, and the store.
async fn upload_across(
    change: Directory,
    upload: Request<()>,
    pieces: [Bytes; 2],
) -> (StatusCode, HeaderMap, Fake) {
    let users = Arc::new(Authenticator::new(directory(&[("ci", "read-write")])).unwrap());
    let (store, front) = guarded(Arc::clone(&users));
    let peer = Peer {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        is_encrypted: false,
    };
    let (begin, begun) = oneshot::channel();
    let (go_on, gone_on) = oneshot::channel();
    let [first, rest] = pieces.map(|piece| Ok::<_, hyper::Error>(Frame::data(piece)));
    let first = stream::once(async move {
        begin.send(()).unwrap();
        first
    });
    let rest = stream::once(async move {
        gone_on.await.unwrap();
        rest
    });
    let body = StreamBody::new(first.chain(rest).boxed());
    let life = Life::new(Times::default(), Source::of(None), true);
    let mut request = upload.map(|()| body);
    let login = HeaderValue::from_static(LOGIN);
    request.headers_mut().insert(AUTHORIZATION, login);
    let between = async {
        begun.await.unwrap();
        users.replace(change);
        go_on.send(()).unwrap();
    };
    let (response, ()) = tokio::join!(front.answer(request, peer, &life), between);
    let (head, body) = response.into_parts();
    let mut headers = head.headers;
    let body = body.collect().await.unwrap();
    headers.extend(body.trailers().cloned().unwrap_or_default());
    (head.status, headers, store)
}

/// Users after a change, and whether `ci` goes on as it was.
fn changes() -> [(Directory, bool); 3] {
    [
        (directory(&[("other", "read-write")]), false),
        (directory(&[("ci", "read")]), false),
        (directory(&[("ci", "read-write"), ("new", "read")]), true),
    ]
}

#[tokio::test]
async fn an_upload_of_a_revoked_identity_is_not_stored() {
    for (change, is_held) in changes() {
        let pieces = [Bytes::from_static(b"first "), Bytes::from_static(b"second")];
        let put = Request::put("/key").body(()).unwrap();
        let (status, _, store) = upload_across(change, put, pieces).await;
        assert_eq!(status.as_u16(), if is_held { 200 } else { 401 });
        assert_eq!(store.0.entries.lock().is_empty(), !is_held);
    }
}

#[tokio::test]
async fn a_write_of_a_revoked_identity_is_not_stored() {
    let blob = hex(digest(&SHA256, b"first second").as_ref());
    let piece = |resource_name: String, write_offset, data| {
        frame(&WriteRequest {
            resource_name,
            write_offset,
            finish_write: write_offset > 0,
            data: Bytes::from_static(data),
        })
    };
    for (change, is_held) in changes() {
        let pieces = [
            piece(format!("uploads/u/blobs/{blob}/12"), 0, b"first "),
            piece(String::new(), 6, b"second"),
        ];
        let call = Request::post("/google.bytestream.ByteStream/Write")
            .version(Version::HTTP_2)
            .header("content-type", "application/grpc");
        let call = call.body(()).unwrap();
        let (status, headers, store) = upload_across(change, call, pieces).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers["grpc-status"], if is_held { "0" } else { "16" });
        assert_eq!(store.0.entries.lock().is_empty(), !is_held);
    }
}

#[tokio::test]
async fn a_download_ends_when_its_identity_is_revoked() {
    for (change, is_held) in changes() {
        let users = Arc::new(Authenticator::new(directory(&[("ci", "read-write")])).unwrap());
        let (_, front) = guarded(Arc::clone(&users));
        let peer = Peer {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            is_encrypted: false,
        };
        let life = Life::new(Times::default(), Source::of(None), true);
        let long = vec![b'b'; 3 * VALUE_LEN_MAX];
        let ask = async |method: &str, body: Vec<u8>| {
            let request = Request::builder().method(method).uri("/long");
            let request = request.header(AUTHORIZATION, LOGIN);
            let request = request.body(Full::<Bytes>::from(body)).unwrap();
            front.answer(request, peer, &life).await
        };
        assert_eq!(ask("PUT", long.clone()).await.status(), StatusCode::OK);
        let mut body = ask("GET", Vec::new()).await.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        users.replace(change);
        let rest = body.collect().await.unwrap().to_bytes();
        assert_eq!(first.len() + rest.len() == long.len(), is_held);
    }
}
