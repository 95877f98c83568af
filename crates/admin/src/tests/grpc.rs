//! gRPC, gRPC-web and pages over HTTP/2, with the health service as the one that is called.

use std::pin::pin;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Response};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::*;

const CHECK: &str = "/grpc.health.v1.Health/Check";
/// An empty message in its frame: not compressed, no bytes.
const EMPTY: &[u8] = &[0, 0, 0, 0, 0];

impl Fixture {
    async fn channel(&self) -> Channel {
        Channel::connect(&self.addr.to_string(), LONG)
            .await
            .unwrap()
    }

    async fn health(&self) -> HealthClient<Channel> {
        let channel = self.channel().await;
        let origin = channel.origin();
        HealthClient::with_origin(channel, origin)
    }
}

/// One request over HTTP/2.
async fn send(channel: &mut Channel, method: &str, path: &str, body: &[u8]) -> Response<Bytes> {
    let mut request =
        hyper::Request::builder()
            .method(method)
            .uri(format!("{}{}", channel.origin(), &path[1..]));
    if method == "POST" {
        request = request.header("content-type", "application/grpc");
    }
    let body = Body::new(Full::new(Bytes::copy_from_slice(body)));
    let response = channel.call(request.body(body).unwrap()).await.unwrap();
    let (mut head, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    head.headers
        .extend(body.trailers().cloned().unwrap_or_default());
    Response::from_parts(head, body.to_bytes())
}

fn grpc_status(headers: &HeaderMap) -> &str {
    headers["grpc-status"].to_str().unwrap()
}

#[tokio::test]
async fn pages_are_served_over_http2_too() {
    let server = start(Options::default()).await;
    let mut channel = server.channel().await;
    let metrics = send(&mut channel, "GET", "/metrics", b"").await;
    assert_eq!(metrics.status(), 200);
    assert!(metrics.body().ends_with(b"\nfonn_test_total 5\n"));
    assert_eq!(
        send(&mut channel, "GET", "/absent", b"").await.status(),
        404
    );
    let head = send(&mut channel, "HEAD", "/healthz", b"").await;
    assert_eq!(head.headers()["content-length"], "3");
    assert!(head.body().is_empty());
    assert_eq!(
        send(&mut channel, "PUT", "/healthz", b"").await.status(),
        405
    );
    // HTTP/1.1 on the same port.
    assert!(server.get("/healthz").await.ends_with("ok\n"));
}

#[tokio::test]
async fn a_page_that_panics_costs_its_own_response_only() {
    let server = start(Options::default()).await;
    let mut channel = server.channel().await;
    let request = hyper::Request::get(format!("{}panic", channel.origin()));
    assert!(
        channel
            .call(request.body(Body::empty()).unwrap())
            .await
            .is_err()
    );
    assert_eq!(
        send(&mut channel, "GET", "/healthz", b"").await.status(),
        200
    );
}

#[tokio::test]
async fn health_follows_readiness() {
    let server = start(Options::default()).await;
    let mut health = server.health().await;
    let check = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    let status = health.check(check("")).await.unwrap().into_inner().status;
    assert_eq!(status, ServingStatus::NotServing as i32);
    let absent = health.check(check("absent")).await.unwrap_err();
    assert_eq!(absent.code(), Code::NotFound);
    let mut changes = health.watch(check("")).await.unwrap().into_inner();
    let first = changes.next().await.unwrap().unwrap();
    assert_eq!(first.status, ServingStatus::NotServing as i32);
    server.readiness.set_ready();
    let second = changes.next().await.unwrap().unwrap();
    assert_eq!(second.status, ServingStatus::Serving as i32);
    let mut unknown = health.watch(check("absent")).await.unwrap().into_inner();
    let only = unknown.next().await.unwrap().unwrap();
    assert_eq!(only.status, ServingStatus::ServiceUnknown as i32);
}

#[tokio::test]
async fn browsers_call_by_grpc_web() {
    let server = start(Options::default()).await;
    server.readiness.set_ready();
    let addr = server.addr;
    let ask = async |origin: &str, kind: &str| {
        let mut stream = server.connect().await;
        let head = format!(
            "POST {CHECK} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n{origin}content-type: {kind}\r\n\
             content-length: 5\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(EMPTY).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let own = format!("origin: http://{addr}\r\n");
    for origin in ["", &own] {
        let answer = ask(origin, "application/grpc-web+proto").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        // The message (status 1, serving) and, in a frame of its own, the trailers.
        assert!(answer.contains("\0\0\0\0\u{2}\u{8}\u{1}"), "{answer}");
        assert!(answer.contains("grpc-status:0"), "{answer}");
    }
    let elsewhere = "origin: http://evil.example\r\n";
    let answer = ask(elsewhere, "application/grpc-web+proto").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    // gRPC itself needs HTTP/2.
    let answer = ask("", "application/grpc").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[tokio::test]
async fn malformed_calls_are_refused_and_leave_the_server_alive() {
    let server = start(Options::default()).await;
    let mut channel = server.channel().await;
    let (unimplemented, internal) = ("12", "13");
    let absent = send(&mut channel, "POST", "/absent.Service/Method", EMPTY).await;
    assert_eq!(grpc_status(absent.headers()), unimplemented);
    for path in [
        "/",
        "//",
        "/grpc.health.v1.Health/Absent",
        "/grpc.health.v1.Health",
    ] {
        let response = send(&mut channel, "POST", path, EMPTY).await;
        assert_eq!(grpc_status(response.headers()), unimplemented, "{path}");
    }
    for body in [
        &b""[..],
        b"\0",
        // A frame that is shorter than it says, one that is longer than any may be, an unknown
        // flag, a compression that was not agreed, a message that is none.
        b"\0\0\0\0\x05ab",
        b"\0\xff\xff\xff\xff",
        b"\x07\0\0\0\0",
        b"\x01\0\0\0\x01a",
        b"\0\0\0\0\x03\x0a\xff\xff",
    ] {
        let response = send(&mut channel, "POST", CHECK, body).await;
        assert_ne!(grpc_status(response.headers()), "0", "{body:?}");
    }
    let response = send(&mut channel, "POST", CHECK, b"\0\0\0\0\x03\x0a\xff\xff").await;
    assert_eq!(grpc_status(response.headers()), internal);
    // Rubbish behind the mark of HTTP/2, and a mark that never ends.
    for bytes in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff"[..],
        b"PRIx",
        b"PR",
    ] {
        let mut stream = server.connect().await;
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
    assert!(server.get("/healthz").await.ends_with("ok\n"));
}

#[tokio::test]
async fn a_client_that_sends_frames_instead_of_requests_is_cut_off() {
    const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingpong";
    // More than a connection may send in a minute.
    const COUNT: usize = 100_000;
    let server = start(Options::default()).await;
    let (mut reader, mut writer) = server.connect().await.into_split();
    let flood = tokio::spawn(async move {
        let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        writer.write_all(begin).await.unwrap();
        let _ = writer.write_all(&PING.repeat(COUNT)).await;
        let _ = writer.shutdown().await;
    });
    let mut answers = Vec::new();
    let _ = reader.read_to_end(&mut answers).await;
    flood.await.unwrap();
    let answered = answers.len() / PING.len();
    assert!(answered < COUNT / 2, "{answered} pings were answered");
    assert!(server.get("/healthz").await.ends_with("ok\n"));
}

#[tokio::test]
async fn reflection_names_the_services() {
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let server = start(Options::default()).await;
    let channel = server.channel().await;
    let origin = channel.origin();
    let mut client = ServerReflectionClient::with_origin(channel, origin);
    let request = ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..ServerReflectionRequest::default()
    };
    let call = client.server_reflection_info(tokio_stream::once(request));
    let answer = call.await.unwrap().into_inner().next().await.unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.unwrap().message_response else {
        panic!("another answer");
    };
    let names: Vec<String> = list.service.into_iter().map(|it| it.name).collect();
    assert!(
        names.iter().any(|it| it == "grpc.health.v1.Health"),
        "{names:?}"
    );
}

/// A call of the reflection service that lasts until it is dropped.
struct LongCall {
    ask: mpsc::Sender<ServerReflectionRequest>,
    answers: tonic::Streaming<ServerReflectionResponse>,
}

impl LongCall {
    async fn begin(server: &Fixture) -> Result<Self, tonic::Status> {
        let channel = server.channel().await;
        let origin = channel.origin();
        let mut client = ServerReflectionClient::with_origin(channel, origin);
        let (ask, asked) = mpsc::channel(1);
        let call = client.server_reflection_info(ReceiverStream::new(asked));
        let answers = call.await?.into_inner();
        let mut call = Self { ask, answers };
        assert!(call.is_answered().await);
        Ok(call)
    }

    async fn is_answered(&mut self) -> bool {
        let request = ServerReflectionRequest {
            message_request: Some(MessageRequest::ListServices(String::new())),
            ..ServerReflectionRequest::default()
        };
        let _ = self.ask.send(request).await;
        let answer = tokio::time::timeout(LONG, self.answers.next()).await;
        answer.unwrap().is_some_and(|it| it.is_ok())
    }
}

const ONE: CallLimits = CallLimits {
    most: 1,
    for_admins: 0,
    by_caller: 1,
};

#[tokio::test]
async fn calls_are_bounded_and_health_checks_are_none() {
    let options = Options {
        watches: ONE,
        ..Options::default()
    };
    let server = start(options).await;
    let held = LongCall::begin(&server).await.unwrap();
    let refused = LongCall::begin(&server).await.err().unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("1 watches"), "{refused}");
    let request = HealthCheckRequest::default();
    let mut health = server.health().await;
    health.check(request.clone()).await.unwrap();
    let mut changes = health.watch(request).await.unwrap().into_inner();
    assert!(changes.next().await.unwrap().is_ok());
    // Pages are not calls.
    assert!(server.get("/healthz").await.ends_with("ok\n"));
    drop(held);
    // The server learns of it a moment later.
    let again = async {
        while LongCall::begin(&server).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, again).await.unwrap();
}

#[tokio::test]
async fn a_call_outlives_the_age_of_its_connection_but_not_its_own() {
    let age = Duration::from_millis(200);
    let options = Options {
        connection_age_max: age,
        ..Options::default()
    };
    let server = start(options).await;
    let mut health = server.health().await;
    let watch = health.watch(HealthCheckRequest::default()).await.unwrap();
    let mut changes = watch.into_inner();
    changes.next().await.unwrap().unwrap();
    let mut call = LongCall::begin(&server).await.unwrap();
    // A health check keeps no connection: it is cut at its age. The connection of the call is
    // older by then.
    let cut = tokio::time::timeout(LONG, changes.next()).await.unwrap();
    assert!(cut.is_none_or(|it| it.is_err()));
    tokio::time::sleep(age).await;
    assert!(call.is_answered().await);

    let options = Options {
        call_age_max: age,
        ..options
    };
    let server = start(options).await;
    let mut call = LongCall::begin(&server).await.unwrap();
    let cut = tokio::time::timeout(LONG, call.answers.next())
        .await
        .unwrap();
    assert!(cut.is_none_or(|it| it.is_err()));
}

#[tokio::test]
async fn a_connection_with_a_call_keeps_its_place_and_health_gets_one() {
    let options = Options {
        connections_max: 3,
        ..Options::default()
    };
    let server = start(options).await;
    let mut call = LongCall::begin(&server).await.unwrap();
    // Connections of a stranger, with streams that need no login.
    let mut strangers = Vec::new();
    for _ in 0..4 {
        let mut health = server.health().await;
        let watch = health.watch(HealthCheckRequest::default()).await.unwrap();
        let mut changes = watch.into_inner();
        assert!(changes.next().await.unwrap().is_ok());
        strangers.push(changes);
        assert!(server.get("/healthz").await.ends_with("ok\n"));
    }
    assert!(call.is_answered().await);
    let mut first = strangers.swap_remove(0);
    let cut = tokio::time::timeout(LONG, first.next()).await.unwrap();
    assert!(cut.is_none_or(|it| it.is_err()));
}

#[tokio::test]
async fn shutdown_cuts_calls_at_the_deadline() {
    let server = start(Options::default()).await;
    let mut health = server.health().await;
    let watch = health.watch(HealthCheckRequest::default()).await;
    let mut changes = watch.unwrap().into_inner();
    changes.next().await.unwrap().unwrap();
    server.trigger.request(Duration::from_millis(20));
    let mut running = pin!(server.running);
    tokio::time::timeout(LONG, &mut running)
        .await
        .unwrap()
        .unwrap();
    let cut = tokio::time::timeout(LONG, changes.next()).await.unwrap();
    assert!(cut.is_none_or(|it| it.is_err()));
}

#[tokio::test]
async fn a_silent_connection_is_thrown_out() {
    let options = Options {
        header_timeout: Duration::from_millis(20),
        ..Options::default()
    };
    let server = start(options).await;
    for bytes in [&b""[..], b"P"] {
        let mut stream = server.connect().await;
        stream.write_all(bytes).await.unwrap();
        let mut rest = Vec::new();
        let read = stream.read_to_end(&mut rest);
        let _ = tokio::time::timeout(LONG, read).await.unwrap();
        assert!(rest.is_empty(), "{rest:?}");
    }
}
