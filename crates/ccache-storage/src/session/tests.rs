//! Sessions with a ccache that is played, and a server that keeps values in memory.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;

use super::*;
use crate::service::VALUE_LEN_MAX;
use crate::settings::Target;

/// Keeps what is put, for callers with the token.
#[derive(Default)]
struct Fake {
    values: Mutex<HashMap<String, Bytes>>,
    connections: AtomicUsize,
}

impl Fake {
    async fn serve(self: Arc<Self>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                self.connections.fetch_add(1, Ordering::Relaxed);
                let fake = Arc::clone(&self);
                let service = service_fn(move |request| Arc::clone(&fake).answer(request));
                let io = TokioIo::new(stream);
                tokio::spawn(http1::Builder::new().serve_connection(io, service));
            }
        });
        addr
    }

    async fn answer(
        self: Arc<Self>,
        request: hyper::Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let login = request.headers().get(AUTHORIZATION);
        let is_known = login.is_some_and(|it| it == "Bearer secret");
        let path = request.uri().path().to_owned();
        let (status, body) = match *request.method() {
            _ if !is_known => (StatusCode::UNAUTHORIZED, Bytes::from("no")),
            Method::PUT => {
                let value = request.into_body().collect().await.unwrap().to_bytes();
                self.values.lock().insert(path, value);
                (StatusCode::CREATED, Bytes::new())
            }
            Method::DELETE => match self.values.lock().remove(&path) {
                Some(_) => (StatusCode::NO_CONTENT, Bytes::new()),
                None => (StatusCode::NOT_FOUND, Bytes::new()),
            },
            _ => match self.values.lock().get(&path) {
                Some(value) => (StatusCode::OK, value.clone()),
                None => (StatusCode::NOT_FOUND, Bytes::from("none")),
            },
        };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        Ok(response)
    }
}

fn service(addr: &str, attributes: &[(&str, &str)]) -> Service {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let url = format!("fonn://{addr}/cc");
    Service::new(Target::parse(&url, attributes.iter().map(owned)))
}

const TOKEN: &[(&str, &str)] = &[("bearer-token", "secret"), ("deadline", "60s")];

/// Says all this at once, and returns what the helper replied until the end.
async fn play(service: &Service, said: &[u8]) -> (io::Result<Ended>, Vec<u8>) {
    // Little room, so that nothing arrives whole.
    let (helper, mut ccache) = tokio::io::duplex(7);
    let ccache = async {
        let (mut from, mut to) = tokio::io::split(&mut ccache);
        let mut replied = Vec::new();
        let say = async {
            let _ = to.write_all(said).await;
            let _ = to.shutdown().await;
        };
        let (_, read) = tokio::join!(say, from.read_to_end(&mut replied));
        read.unwrap();
        replied
    };
    let clock = Clock::default();
    let (ended, replied) = tokio::join!(serve(helper, service, &clock), ccache);
    let replied = replied.strip_prefix(&GREETING).unwrap().to_vec();
    (ended, replied)
}

fn request(code: u8, key: &[u8]) -> Vec<u8> {
    [&[code, key.len() as u8], key].concat()
}

fn put(key: &[u8], flags: u8, value: &[u8]) -> Vec<u8> {
    let len = (value.len() as u64).to_ne_bytes();
    [&request(1, key), &[flags][..], &len, value].concat()
}

fn value(value: &[u8]) -> Vec<u8> {
    [&protocol::value_head(value.len()), value].concat()
}

/// An error as it is replied.
fn refusal(text: &str) -> Vec<u8> {
    protocol::error(text).to_vec()
}

const KEY: &[u8] = &[0x13, 0x12, 0x94];

#[tokio::test]
async fn entries_are_stored_found_and_removed_over_one_connection() {
    let fake = Arc::new(Fake::default());
    let addr = Arc::clone(&fake).serve().await;
    let service = service(&addr, TOKEN);
    let long = vec![7; 300_000];
    let said = [
        request(0, KEY),
        request(5, KEY),
        put(KEY, 0, b"first"),
        put(KEY, 0, b"kept out"),
        request(5, KEY),
        request(0, KEY),
        put(KEY, 1, &long),
        request(0, KEY),
        request(2, KEY),
        request(2, KEY),
    ];
    let (ended, replied) = play(&service, &said.concat()).await;
    let expected = [
        vec![NOOP],
        vec![OK, 0],
        vec![OK],
        vec![NOOP],
        vec![OK, 1],
        value(b"first"),
        vec![OK],
        value(&long),
        vec![OK],
        vec![NOOP],
    ];
    assert_eq!(replied, expected.concat());
    assert_eq!(ended.unwrap(), Ended::Closed);
    assert_eq!(play(&service, &put(KEY, 1, b"again")).await.1, [OK]);
    assert_eq!(fake.values.lock()["/cc/13/1294"], "again");
    assert_eq!(fake.connections.load(Ordering::Relaxed), 1);
    assert!(service.diagnostics().is_empty());
}

#[tokio::test]
async fn a_server_that_refuses_or_is_away_costs_hits_alone() {
    let addr = Arc::new(Fake::default()).serve().await;
    let said = [
        request(0, KEY),
        put(KEY, 1, b"a"),
        request(5, KEY),
        request(2, KEY),
    ]
    .concat();
    let replies = [NOOP, NOOP, OK, 0, NOOP];
    let refused = service(&addr, &[("bearer-token", "other")]);
    assert_eq!(play(&refused, &said).await.1, replies);
    let told = format!("{addr} refuses the token (401); 4 requests failed so far");
    let diagnostics = refused.diagnostics();
    assert_eq!(diagnostics, [told]);
    let (_, replied) = play(&refused, &[4]).await;
    let identity = concat!("ccache-storage-fonn ", env!("CARGO_PKG_VERSION"));
    assert_eq!(replied, protocol::info(identity, &diagnostics));

    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = closed.local_addr().unwrap().to_string();
    drop(closed);
    let away = service(&addr, TOKEN);
    assert_eq!(play(&away, &said).await.1, replies);
    let told = format!("no reply from {addr}; 4 requests failed so far");
    assert_eq!(away.diagnostics(), [told]);

    // It accepts, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = silent.local_addr().unwrap().to_string();
    let silent = service(&addr, &[("deadline", "20ms")]);
    assert_eq!(play(&silent, &said).await.1, replies);
}

#[tokio::test]
async fn malformed_settings_are_told_in_each_reply() {
    let service = service("h", &[("colour", "red")]);
    let error = "unknown attribute @colour; expected bearer-token, token-file, tls, ca or deadline";
    let said = [
        request(0, KEY),
        put(KEY, 1, b"a"),
        request(5, KEY),
        request(2, KEY),
    ]
    .concat();
    assert_eq!(play(&service, &said).await.1, refusal(error).repeat(4));
    assert_eq!(service.diagnostics(), [error]);
}

#[tokio::test]
async fn values_that_are_empty_or_too_long_are_misses() {
    let fake = Arc::new(Fake::default());
    let addr = Arc::clone(&fake).serve().await;
    let service = service(&addr, TOKEN);
    let path = "/cc/13/1294".to_owned();
    fake.values.lock().insert(path, Bytes::new());
    assert_eq!(play(&service, &request(0, KEY)).await.1, [NOOP]);
    // Its bytes never come.
    let len = (VALUE_LEN_MAX + 1).to_ne_bytes();
    let said = [&request(1, KEY), &[1][..], &len, b"begin"].concat();
    let (ended, replied) = play(&service, &said).await;
    assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(replied, []);
}

#[tokio::test]
async fn what_is_no_request_or_breaks_off_ends_the_session() {
    let service = service("127.0.0.1:1", TOKEN);
    let (ended, replied) = play(&service, b"\x09more").await;
    assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert_eq!(replied, refusal("unknown request 9; expected 0 to 5"));
    let whole = put(KEY, 1, b"value");
    for part in [1, 4, 6, 13, whole.len() - 1] {
        let (ended, replied) = play(&service, &whole[..part]).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(replied, []);
    }
    let (ended, replied) = play(&service, &[3, 4]).await;
    assert_eq!((ended.unwrap(), replied), (Ended::Stop, vec![OK]));
}
