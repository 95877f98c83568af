//! Connections whose credentials are checked.

use std::future::{Future as _, poll_fn};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use fonn_auth::Security;
use fonn_auth::{Authenticator, Directory};
use fonn_server::Tuning;
use http_body_util::Full;
use hyper::header::AUTHORIZATION;
use hyper::{Request, StatusCode};

use super::fake::{Fake, options};
use crate::handler::{Front, Peer};
use crate::life::{Life, Times};

/// Of the password `secret`.
const HASH: &str = "$argon2id$v=19$m=64,t=1,p=1$wXQK5rSIdVCHKOR1yYGIrg$tHaqh3b7PSsDIS4ZvXCTzKqUrmYfBtapcZhRS9E2V0w";

/// `ci:secret`.
const LOGIN: &str = "Basic Y2k6c2VjcmV0";

fn guarded() -> Front<Fake> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let user = format!("[[user]]\nname = 'ci'\nrole = 'read-write'\nhash = '{HASH}'\n");
    std::fs::write(file.path(), user).unwrap();
    let directory = Directory::load(file.path()).unwrap();
    let users = Arc::new(Authenticator::new(directory).unwrap());
    let security = Security {
        users: Some(users),
        ..Security::default()
    };
    let store = Fake::with_tuning(Tuning::default());
    Front::new(store, security, options(Times::default()))
}

#[tokio::test]
async fn a_connection_whose_password_is_checked_gives_way_to_no_newer_one() {
    let front = guarded();
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
    // The check runs on a thread of its own from here on.
    let is_checked = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx).is_pending())).await;
    assert!(is_checked);
    let newer: Vec<_> = (0..300).map(|_| begin()).collect();
    assert!(oldest.is_cut());
    assert!(!newer[299].is_cut());
    assert!(!life.is_cut());
    assert_eq!(answer.await.status(), StatusCode::NOT_FOUND);
}
