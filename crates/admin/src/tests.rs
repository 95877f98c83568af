mod grpc;
mod login;
mod tls;

use fonn_base::metrics::Metrics;
use fonn_base::shutdown::{self, ShutdownTrigger};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::routes::Audience;
use super::*;

const LONG: Duration = Duration::from_secs(600);

struct Fixture {
    addr: SocketAddr,
    trigger: ShutdownTrigger,
    readiness: Readiness,
    running: JoinHandle<()>,
}

async fn start(options: Options) -> Fixture {
    start_with(options, Security::default()).await
}

async fn start_with(options: Options, security: Security) -> Fixture {
    let metrics = Metrics::new();
    metrics.on_scrape(|snapshot| snapshot.counter("fonn_test_total", "Test.", &[], 5));
    let readiness = Readiness::new();
    let routes = Routes::new()
        .with_standard(metrics, readiness.clone())
        .with_page("/large", Audience::Everybody, |_| {
            Response::ok("application/octet-stream", vec![b'x'; 64 << 20])
        })
        .with_page("/panic", Audience::Everybody, |_| panic!("by the test"))
        .with_grpc(Grpc::new().with_standard(readiness.clone(), &[]).unwrap())
        .with_fallback(|request| {
            (request.uri().path() == "/page").then(|| Response {
                etag: Some("\"v1\"".to_owned()),
                immutable: request.uri().query().is_some(),
                content_security_policy: Some("default-src 'self'"),
                ..Response::ok("text/html", "<p>")
            })
        });
    let server = Server::bind(([127, 0, 0, 1], 0).into(), routes, options)
        .await
        .unwrap()
        .with_security(security);
    let (trigger, shutdown) = shutdown::channel();
    let addr = server.local_addr();
    assert_ne!(addr.port(), 0);
    let running = tokio::spawn(server.run(shutdown));
    Fixture {
        addr,
        trigger,
        readiness,
        running,
    }
}

impl Fixture {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// Sends a request on a connection of its own and reads until it is closed.
    async fn ask(&self, method: &str, path: &str, headers: &str) -> String {
        let mut stream = self.connect().await;
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{headers}\r\n"
        );
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn get(&self, path: &str) -> String {
        self.ask("GET", path, "").await
    }
}

#[tokio::test]
async fn health_readiness_and_metrics_are_served() {
    let server = start(Options::default()).await;
    let health = server.get("/healthz").await;
    assert!(
        health.starts_with("HTTP/1.1 200 ") && health.ends_with("\r\n\r\nok\n"),
        "{health}"
    );
    let ready = server.get("/readyz").await;
    assert!(
        ready.starts_with("HTTP/1.1 503 ") && ready.ends_with("starting\n"),
        "{ready}"
    );
    let words = "ready, but for the moon";
    server.readiness.set_ready_as(words);
    let ready = server.get("/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 200 ") && ready.ends_with(&format!("\r\n\r\n{words}\n")));
    server.readiness.set_ready();
    let ready = server.get("/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 200 ") && ready.ends_with("\r\n\r\nready\n"));
    server.readiness.set_not_ready("draining");
    assert!(server.get("/readyz").await.ends_with("draining\n"));
    let metrics = server.get("/metrics").await;
    assert!(
        metrics.contains("\r\ncontent-type: text/plain; version=0.0.4\r\n"),
        "{metrics}"
    );
    assert!(metrics.contains("\nfonn_test_total 5\n"), "{metrics}");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused() {
    let server = start(Options::default()).await;
    assert!(server.get("/absent").await.starts_with("HTTP/1.1 404 "));
    assert!(server.get("/healthz/").await.starts_with("HTTP/1.1 404 "));
    let post = server
        .ask("POST", "/healthz", "content-length: 0\r\n")
        .await;
    assert!(
        post.starts_with("HTTP/1.1 405 ") && post.contains("allow: GET, HEAD"),
        "{post}"
    );
    let head = server.ask("HEAD", "/healthz", "").await;
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.contains("content-length: 3"),
        "{head}"
    );
    assert!(head.ends_with("\r\n\r\n"));
}

#[tokio::test]
async fn a_page_that_points_its_own_name_here_is_refused() {
    let server = start(Options::default()).await;
    let rebound = "evil.example:11280";
    let ask = async |head: &str| {
        let mut stream = server.connect().await;
        let head = format!("{head}host: {rebound}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    for path in ["/metrics", "/page", "/absent"] {
        let answer = ask(&format!("GET {path} HTTP/1.1\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        assert!(answer.contains("--admin-host"), "{answer}");
    }
    // To the browser a call is one of its own site.
    let call = "POST /grpc.reflection.v1.ServerReflection/ServerReflectionInfo HTTP/1.1\r\n\
                content-type: application/grpc-web+proto\r\norigin: http://evil.example:11280\r\n\
                content-length: 0\r\n";
    let answer = ask(call).await;
    assert!(answer.contains("grpc-status: 9\r\n"), "{answer}");
    // Probes tell nothing.
    assert!(ask("GET /healthz HTTP/1.1\r\n").await.ends_with("ok\n"));
}

#[tokio::test]
async fn a_client_that_has_the_page_gets_304() {
    let server = start(Options::default()).await;
    let page = server.get("/page").await;
    assert!(
        page.contains("etag: \"v1\"") && page.ends_with("<p>"),
        "{page}"
    );
    for tags in ["\"v1\"", "W/\"v1\"", "\"v0\", \"v1\"", "*"] {
        let again = server
            .ask("GET", "/page", &format!("if-none-match: {tags}\r\n"))
            .await;
        assert!(
            again.starts_with("HTTP/1.1 304 ") && again.ends_with("\r\n\r\n"),
            "{again}"
        );
    }
    let other = server
        .ask("GET", "/page", "if-none-match: \"v0\"\r\n")
        .await;
    assert!(other.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_version_of_a_page_is_kept_for_good_and_the_page_is_asked_for_again() {
    let server = start(Options::default()).await;
    let page = server.get("/page").await;
    assert!(page.contains("cache-control: no-cache\r\n"), "{page}");
    assert!(
        page.contains("content-security-policy: default-src 'self'\r\n"),
        "{page}"
    );
    let version = server.get("/page?v=1").await;
    assert!(version.contains("max-age=31536000, immutable"), "{version}");
    let healthz = server.get("/healthz").await;
    assert!(healthz.contains("cache-control: no-store\r\n"), "{healthz}");
}

#[tokio::test]
async fn rubbish_huge_headers_and_panics_leave_the_server_alive() {
    let server = start(Options::default()).await;
    let mut stream = server.connect().await;
    stream
        .write_all(b"\x80\x01\x00\x00 get\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let huge = format!("x-huge: {}\r\n", "y".repeat(HEAD_MAX_BYTES));
    let mut stream = server.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n{huge}\r\n");
    // The server may refuse and close before all is written.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 200"));
    assert_eq!(server.get("/panic").await, "");
    assert!(server.get("/healthz").await.ends_with("ok\n"));
}

#[tokio::test]
async fn connections_are_bounded_and_the_oldest_makes_room() {
    let options = Options {
        connections_max: 2,
        header_timeout: LONG,
        ..Options::default()
    };
    let server = start(options).await;
    let mut slow = Vec::new();
    for _ in 0..6 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET / HT").await.unwrap();
        slow.push(stream);
        assert!(server.get("/healthz").await.ends_with("ok\n"));
    }
    // All but the last gave up their places.
    slow.pop();
    for mut stream in slow {
        let mut rest = Vec::new();
        let read = stream.read_to_end(&mut rest);
        let _ = tokio::time::timeout(LONG, read).await.unwrap();
        assert!(rest.is_empty());
    }
}

#[tokio::test]
async fn a_slow_head_is_thrown_out() {
    let options = Options {
        header_timeout: Duration::from_millis(20),
        ..Options::default()
    };
    let server = start(options).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET / HT").await.unwrap();
    let mut rest = Vec::new();
    let read = stream.read_to_end(&mut rest);
    let _ = tokio::time::timeout(LONG, read).await.unwrap();
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn a_connection_in_a_crowd_ends_after_its_response() {
    let options = Options {
        connections_max: 4,
        ..Options::default()
    };
    let server = start(options).await;
    let ask = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut stream = server.connect().await;
        stream.write_all(ask).await.unwrap();
        let mut first = [0; 15];
        stream.read_exact(&mut first).await.unwrap();
        kept.push(stream);
    }
    let mut stream = server.connect().await;
    stream.write_all(ask).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(LONG, read).await.unwrap().unwrap();
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    // There is room again.
    let mut stream = kept.remove(0);
    stream.write_all(ask).await.unwrap();
    let mut answers = Vec::new();
    while answers.windows(3).filter(|it| it == b"ok\n").count() < 2 {
        assert_ne!(stream.read_buf(&mut answers).await.unwrap(), 0);
    }
    let text = String::from_utf8_lossy(&answers);
    assert!(!text.contains("connection: close"), "{text}");
}

#[tokio::test]
async fn a_reader_that_never_reads_is_cut_at_its_age() {
    let options = Options {
        connection_age_max: Duration::from_millis(200),
        ..Options::default()
    };
    let server = start(options).await;
    let mut stream = server.connect().await;
    stream
        .write_all(b"GET /large HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        .await
        .unwrap();
    // Once the server has closed the connection, the kernel refuses what is written to it.
    let cut = async {
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, cut).await.unwrap();
}

#[tokio::test]
async fn shutdown_ends_idle_connections_and_refuses_new_ones() {
    let server = start(Options::default()).await;
    let mut idle = server.connect().await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 15];
    idle.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    server.trigger.request(LONG);
    server.running.await.unwrap();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    assert!(rest.ends_with(b"ok\n"));
    assert!(TcpStream::connect(server.addr).await.is_err());
}

#[tokio::test]
async fn shutdown_cuts_what_does_not_end_by_the_deadline() {
    let server = start(Options::default()).await;
    let mut stuck = server.connect().await;
    stuck
        .write_all(b"GET /large HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 8];
    stuck.read_exact(&mut first).await.unwrap();
    server.trigger.request(Duration::from_millis(20));
    server.running.await.unwrap();
}
