//! Connections whose credentials are checked.

use std::future::{Future as _, poll_fn};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use fonn_auth::testing::directory;
use fonn_auth::{Authenticator, Refusal};
use http_body_util::Full;
use hyper::header::AUTHORIZATION;
use hyper::{Request, StatusCode};

use super::fake::guarded;
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
        let life = Life::new(Times::default(), true);
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
        let life = Life::new(Times::default(), true);
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
        let life = Life::new(Times::default(), true);
        let request = Request::builder().method(method).uri("/key");
        let request = request.header(AUTHORIZATION, LOGIN);
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let answer = front.answer(request, peer, &life).await;
        assert_eq!(answer.status().as_u16(), status, "{method}");
    }
}
