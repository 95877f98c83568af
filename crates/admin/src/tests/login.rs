//! Calls and pages of a port with users. The service that is called is reflection, which streams.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fonn_auth::Authenticator;
use fonn_auth::testing::{PASSWORD, directory};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::*;

const USERS: [(&str, &str); 2] = [("dev", "read"), ("root", "admin")];
/// For what comes at once.
const SOON: Duration = Duration::from_secs(30);
const INFO: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

fn security() -> (Arc<Authenticator>, Security) {
    let users = Arc::new(Authenticator::new(directory(&USERS)).unwrap());
    let security = Security {
        users: Some(Arc::clone(&users)),
        ..Security::default()
    };
    (users, security)
}

async fn guarded() -> (Fixture, Arc<Authenticator>) {
    let (users, security) = security();
    (start_with(Options::default(), security).await, users)
}

/// A stream of answers, and what has to be kept so that it goes on.
type Info = (
    Streaming<ServerReflectionResponse>,
    tokio::sync::mpsc::Sender<ServerReflectionRequest>,
);

fn list() -> ServerReflectionRequest {
    ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..ServerReflectionRequest::default()
    }
}

/// Asks for the services; the stream goes on after the answer.
async fn info(channel: Channel) -> Result<Info, Status> {
    let origin = channel.origin();
    let mut client = ServerReflectionClient::with_origin(channel, origin);
    let (sender, requests) = tokio::sync::mpsc::channel(1);
    sender.send(list()).await.unwrap();
    let requests = ReceiverStream::new(requests);
    let mut answers = client.server_reflection_info(requests).await?.into_inner();
    answers.next().await.unwrap()?;
    Ok((answers, sender))
}

impl Fixture {
    async fn logged_in(&self, user: &str, password: &[u8]) -> Channel {
        let channel = Channel::connect(&self.addr.to_string(), LONG)
            .await
            .unwrap();
        channel.with_login(user, password)
    }

    async fn anonymous(&self) -> Channel {
        Channel::connect(&self.addr.to_string(), LONG)
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn a_call_needs_a_login_and_health_does_not() {
    let (server, _) = guarded().await;
    let channel = server.anonymous().await;
    let mut health = HealthClient::with_origin(channel.clone(), channel.origin());
    health.check(HealthCheckRequest::default()).await.unwrap();
    for path in ["/healthz", "/readyz", "/page", "/metrics"] {
        let page = server.get(path).await;
        assert!(!page.starts_with("HTTP/1.1 401 "), "{path}: {page}");
    }
    let bare = info(channel).await.unwrap_err();
    assert_eq!(bare.code(), Code::Unauthenticated);
    assert!(bare.message().contains("--user"), "{bare}");
    for (user, password) in [
        ("dev", &b"hunter2"[..]),
        ("dev", b""),
        ("nobody", PASSWORD),
        ("", PASSWORD),
    ] {
        let wrong = info(server.logged_in(user, password).await).await;
        let wrong = wrong.unwrap_err();
        assert_eq!(wrong.code(), Code::Unauthenticated, "{user}");
        assert_eq!(wrong.message(), "wrong user name or password");
    }
    info(server.logged_in("dev", PASSWORD).await).await.unwrap();
}

#[tokio::test]
async fn readers_leave_a_place_to_administrators() {
    let (_, security) = security();
    let watches = CallLimits {
        most: 3,
        for_admins: 1,
        by_caller: 3,
    };
    let options = Options {
        watches,
        ..Options::default()
    };
    let server = start_with(options, security).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(info(server.logged_in("dev", PASSWORD).await).await.unwrap());
    }
    let refused = info(server.logged_in("dev", PASSWORD).await).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(
        refused.message().contains("for administrators"),
        "{refused}"
    );
    held.push(
        info(server.logged_in("root", PASSWORD).await)
            .await
            .unwrap(),
    );
    let refused = info(server.logged_in("root", PASSWORD).await).await;
    assert!(refused.unwrap_err().message().contains("3 watches"));
}

#[tokio::test]
async fn a_stream_ends_when_its_token_expires() {
    let clock = fonn_base::clock::ManualClock::new(1_767_225_600_000);
    let secret = fonn_auth::TokenSecret::new(&[1; 32]);
    let text = format!(
        "[[token]]\nname = 't'\nhash = '{}'\nrole = 'read'\nexpires = 2026-01-01T00:00:01Z\n",
        secret.hash()
    );
    let users = Authenticator::new(fonn_auth::testing::parsed(&text)).unwrap();
    let users = Arc::new(users.with_clock(clock.clock()));
    let security = Security {
        users: Some(users),
        ..Security::default()
    };
    let server = start_with(Options::default(), security).await;
    let password = secret.text().as_bytes();
    let (mut answers, sender) = info(server.logged_in("any", password).await).await.unwrap();
    clock.advance(Duration::from_secs(1));
    let end = tokio::time::timeout(SOON, answers.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(end.unwrap_err().code(), Code::Unauthenticated);
    drop(sender);
    let refused = info(server.logged_in("any", password).await).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().contains("expired"), "{refused}");
}

#[tokio::test]
async fn guessing_is_slowed_by_source() {
    let (server, users) = guarded().await;
    let begin = std::time::Instant::now();
    for guess in [b"1", b"2", b"3", b"4", b"5", b"6"] {
        let wrong = info(server.logged_in("dev", guess).await).await;
        assert_eq!(wrong.unwrap_err().code(), Code::Unauthenticated);
    }
    // Two waits, of a quarter and of half a second.
    assert!(begin.elapsed() > Duration::from_millis(700));
    // It is the address that waits: the same memory as on the client port.
    let here = Some("127.0.0.1".parse().unwrap());
    assert!(users.check(b"dev", b"7", here).await.is_err());
    // And one of a second.
    assert!(begin.elapsed() > Duration::from_millis(1700));
}

/// The same server, with other roles for reflection.
async fn with_roles(roles: &[(&'static str, fonn_auth::Role)]) -> Fixture {
    let readiness = Readiness::new();
    let grpc = Grpc::new().with_standard(readiness.clone(), &[]).unwrap();
    serving(grpc.with_roles(roles), readiness).await
}

async fn serving(grpc: Grpc, readiness: Readiness) -> Fixture {
    let (_, security) = security();
    let routes = Routes::new().with_grpc(grpc);
    let server = Server::bind(([127, 0, 0, 1], 0).into(), routes, Options::default());
    let server = server.await.unwrap().with_security(security);
    let (trigger, shutdown) = shutdown::channel();
    Fixture {
        addr: server.local_addr(),
        trigger,
        readiness,
        running: tokio::spawn(server.run(shutdown)),
    }
}

#[tokio::test]
async fn a_role_that_is_too_low_is_refused_with_the_one_that_is_needed() {
    let needs_admin = [(&INFO[1..], fonn_auth::Role::Admin)];
    let server = with_roles(&needs_admin).await;
    info(server.logged_in("root", PASSWORD).await)
        .await
        .unwrap();
    let refused = info(server.logged_in("dev", PASSWORD).await).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let words = ["role admin", "`dev` has read", &INFO[1..]];
    for word in words {
        assert!(refused.message().contains(word), "{refused}");
    }
}

/// Members that execute whatever they are sent.
struct Obedient;

impl Relay for Obedient {
    fn own_name(&self) -> Option<String> {
        None
    }

    fn relay(&self, _: Option<String>, _: hyper::Request<Body>) -> Relayed {
        Box::pin(std::future::ready(Ok(Status::ok("").into_http())))
    }
}

#[tokio::test]
async fn what_others_answer_needs_the_role_here_too() {
    let roles = [
        ("fonn.v1.Admin/Status", fonn_auth::Role::Read),
        ("fonn.v1.Admin/SetCodec", fonn_auth::Role::Admin),
    ];
    let grpc = Grpc::new().with_roles(&roles);
    let grpc = grpc.with_relay(Arc::new(Obedient), &["fonn.v1.Admin"]);
    let server = serving(grpc, Readiness::new()).await;
    for (user, method, code) in [
        ("dev", "Status", Code::Ok),
        ("dev", "SetCodec", Code::PermissionDenied),
        ("root", "SetCodec", Code::Ok),
        // One that only a newer member knows.
        ("dev", "Newer", Code::PermissionDenied),
        ("root", "Newer", Code::Ok),
    ] {
        let mut channel = server.logged_in(user, PASSWORD).await;
        let request = hyper::Request::post(format!("{}fonn.v1.Admin/{method}", channel.origin()))
            .header("content-type", "application/grpc")
            .body(Body::empty());
        let answer = channel.call(request.unwrap()).await.unwrap();
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!(status.code(), code, "{user}: {method}: {status:?}");
    }
}

#[tokio::test]
async fn the_streams_of_a_user_end_with_the_user() {
    let (server, users) = guarded().await;
    let (mut dev, _dev) = info(server.logged_in("dev", PASSWORD).await).await.unwrap();
    let (mut root, root_asks) = info(server.logged_in("root", PASSWORD).await)
        .await
        .unwrap();
    users.replace(directory(&[("root", "admin")]));
    let ended = tokio::time::timeout(SOON, dev.next()).await.unwrap();
    let ended = ended.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::Unauthenticated);
    assert!(ended.message().contains("was removed"), "{ended}");
    assert!(dev.next().await.is_none());
    // A user that is still in the file goes on.
    root_asks.send(list()).await.unwrap();
    root.next().await.unwrap().unwrap();
    users.replace(directory(&[("root", "read")]));
    let ended = tokio::time::timeout(SOON, root.next()).await.unwrap();
    assert_eq!(ended.unwrap().unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn browsers_log_in_too() {
    let (server, users) = guarded().await;
    let open = async |login: &str| {
        let mut stream = server.connect().await;
        let head = format!(
            "POST {INFO} HTTP/1.1\r\nhost: {}\r\n{login}content-type: application/grpc-web+proto\r\n\
             content-length: 7\r\nconnection: close\r\n\r\n",
            server.addr
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // `list_services: ""`
        stream.write_all(b"\0\0\0\0\x02\x3a\0").await.unwrap();
        stream
    };
    let ask = async |login: &str| {
        let mut answer = Vec::new();
        let mut stream = open(login).await;
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let password = str::from_utf8(PASSWORD).unwrap();
    let bearer = format!("authorization: Bearer dev:{password}\r\n");
    let answer = ask(&bearer).await;
    assert!(answer.contains("grpc-status:0"), "{answer}");
    assert!(answer.contains("grpc.health.v1.Health"), "{answer}");
    for login in [
        "",
        "authorization: Bearer dev:wrong\r\n",
        "authorization: dev\r\n",
    ] {
        let answer = ask(login).await;
        assert!(answer.contains("grpc-status: 16"), "{login}: {answer}");
        assert!(!answer.contains("Health"), "{answer}");
    }
    // One of two users is left, so the stream of the other ends in the body.
    users.replace(directory(&[("root", "admin")]));
    let answer = ask(&bearer).await;
    assert!(answer.contains("grpc-status: 16"), "{answer}");
}

#[tokio::test]
async fn a_refused_client_is_counted_once_by_reason() {
    let (users, security) = security();
    let metrics = Metrics::new();
    fonn_auth::metrics::register(&metrics, Some(users));
    let site = Site::new(
        Routes::new().with_standard(metrics.clone(), Readiness::new()),
        Options::default(),
        security,
    );
    let far = [10, 0, 0, 7].into();
    let page = |login: Option<&[u8]>| {
        let mut request = hyper::Request::get("/metrics");
        if let Some(login) = login {
            request = request.header("authorization", login);
        }
        request.body(()).unwrap()
    };
    let right = [b"Bearer dev:", PASSWORD].concat();
    for (login, is_let_in) in [
        (None, false),
        (Some(&b"Digest dev"[..]), false),
        (Some(b"Basic !"), false),
        (Some(b"Bearer dev:guess"), false),
        (Some(b"Bearer nobody:guess"), false),
        (Some(b"Bearer root:guess"), false),
        (Some(&right), true),
    ] {
        let admitted = site.admit(&page(login), far).await;
        assert_eq!(admitted.is_ok(), is_let_in, "{login:?}");
    }
    let text = metrics.render().unwrap();
    for (reason, count) in [("missing", 1), ("malformed", 2), ("wrong", 3), ("busy", 0)] {
        let line = format!("fonn_admin_logins_refused_total{{reason=\"{reason}\"}} {count}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[tokio::test]
async fn figures_need_a_login_over_the_network() {
    let (_, security) = security();
    let metrics = Metrics::new();
    let routes = || Routes::new().with_standard(metrics.clone(), Readiness::new());
    let site = |security: Security| Site::new(routes(), Options::default(), security);
    let request = |path: &str, login: Option<&str>| {
        let mut request = hyper::Request::get(path);
        if let Some(login) = login {
            request = request.header("authorization", login);
        }
        request.body(()).unwrap()
    };
    let basic = format!("Basic {}", STANDARD.encode([b"dev:", PASSWORD].concat()));
    let (far, near) = ([10, 0, 0, 7].into(), [127, 0, 0, 1].into());
    let asks = site(security.clone());
    let metrics = |login| request("/metrics", login);
    assert!(asks.admit(&metrics(None), far).await.is_err());
    assert!(
        asks.admit(&metrics(Some("Bearer dev:no")), far)
            .await
            .is_err()
    );
    asks.admit(&metrics(Some(&basic)), far).await.unwrap();
    asks.admit(&metrics(None), near).await.unwrap();
    for open in ["/healthz", "/readyz", "/", "/assets/x.js"] {
        asks.admit(&request(open, None), far).await.unwrap();
    }
    let insecure = Security {
        is_insecure: true,
        ..security
    };
    site(insecure).admit(&metrics(None), far).await.unwrap();
    let without_users = site(Security::default());
    without_users.admit(&metrics(None), far).await.unwrap();
}
