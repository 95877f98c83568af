//! Attacks on the admin port: health checks and administrators get in all the same.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fonn_admin::Channel;
use fonn_proto::grpc::v1::WatchRequest;
use fonn_proto::grpc::v1::telemetry_client::TelemetryClient;
use fonn_tests::ctl::{text, with_input};
use fonn_tests::node::{FonnNode, NodeOptions, ctl_program, http_get};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

const PASSWORD: &str = "correct-horse";
/// A machine that is busy with other tests needs its time.
const LIMIT: Duration = Duration::from_secs(60);
/// The timeout of the chart's liveness probe is 5 s. The rest is for a busy machine: a probe that
/// waits for the place of another connection waits for a minute.
const PROBE_LIMIT: Duration = Duration::from_secs(30);
/// Streams of one connection.
const STREAMS: usize = 32;

/// A node with users: `dev`, which reads, and `root`, an administrator.
struct Guarded {
    node: FonnNode,
    _dir: tempfile::TempDir,
}

impl Guarded {
    fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("users.toml");
        let hash =
            String::from_utf8(with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?.stdout)?;
        let row = |(name, role)| {
            format!(
                "[[user]]\nname = '{name}'\nrole = '{role}'\nhash = '{}'\n",
                hash.trim()
            )
        };
        let rows = [("dev", "read"), ("root", "admin")].map(row).concat();
        std::fs::write(&file, rows)?;
        let options = NodeOptions::new().in_memory().flag("--users-file", &file);
        Ok(Self {
            node: options.start()?,
            _dir: dir,
        })
    }

    fn as_root(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(ctl_program()?);
        command
            .args(arguments)
            .env("FONN_ADMIN", self.node.admin().to_string())
            .env("FONN_USER", "root")
            .env("FONN_PASSWORD", PASSWORD)
            .stdin(Stdio::null());
        Ok(command.output()?)
    }

    /// An administrator looks at the state, and flushes.
    fn administrate(&self) -> Result<()> {
        for arguments in [&["status"][..], &["flush", "default", "--yes"]] {
            let output = self.as_root(arguments)?;
            let error = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{arguments:?}: {error}");
        }
        Ok(())
    }
}

/// One connection with as many watches of health as it may have, and the streams that went on after
/// an answer.
async fn watch_health(admin: &str) -> Result<Vec<tonic::Streaming<HealthCheckResponse>>> {
    let channel = Channel::connect(admin, LIMIT).await?;
    let origin = channel.origin();
    let mut client = HealthClient::with_origin(channel, origin);
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let watch = client.watch(HealthCheckRequest::default()).await?;
        let mut stream = watch.into_inner();
        ensure!(stream.message().await?.is_some(), "no answer");
        streams.push(stream);
    }
    Ok(streams)
}

/// A health check as a load balancer makes it: a connection of its own, and the answer in time.
fn probe(admin: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&admin, PROBE_LIMIT)?;
    stream.set_read_timeout(Some(PROBE_LIMIT))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .context("the probe has no answer")?;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_health_keep_no_administrator_out() -> Result<()> {
    let guarded = Guarded::start()?;
    let admin = guarded.node.admin().to_string();
    // Without a login.
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(watch_health(&admin).await?);
    }
    guarded.administrate()?;
    probe(guarded.node.admin())?;
    // Eight streams go on, at most a minute each. The others were answered, and end.
    let mut streams: Vec<_> = streams.into_iter().flatten().collect();
    let end = async {
        while streams.len() > 8 {
            let mut open = Vec::new();
            for mut stream in streams.drain(..) {
                let next = tokio::time::timeout(Duration::from_millis(1), stream.message());
                if next.await.is_err() {
                    open.push(stream);
                }
            }
            streams = open;
        }
    };
    tokio::time::timeout(LIMIT, end).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_a_reader_keep_no_administrator_out() -> Result<()> {
    let guarded = Guarded::start()?;
    let admin = guarded.node.admin().to_string();
    let mut streams = Vec::new();
    let mut refused = 0;
    for _ in 0..2 {
        let channel = Channel::connect(&admin, LIMIT).await?;
        let channel = channel.with_login("dev", PASSWORD.as_bytes());
        let origin = channel.origin();
        let mut client = TelemetryClient::with_origin(channel, origin);
        for _ in 0..STREAMS {
            match client.watch(WatchRequest { history_seconds: 0 }).await {
                Ok(stream) => streams.push(stream.into_inner()),
                Err(status) => {
                    ensure!(status.code() == tonic::Code::ResourceExhausted, "{status}");
                    refused += 1;
                }
            }
        }
    }
    ensure!(refused > 0, "a reader has {} streams", streams.len());
    guarded.administrate()?;
    // An administrator's own dashboard, too: one look at the stream of figures.
    let top = guarded.as_root(&["top", "--once"])?;
    let error = String::from_utf8_lossy(&top.stderr);
    ensure!(top.status.success(), "top: {error}");
    probe(guarded.node.admin())?;
    Ok(())
}

/// Holds `COUNT` connections for as long as it lives, asks on each ten times a second, and connects
/// again where the port closes one.
struct Keeper {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Keeper {
    const COUNT: usize = 100;

    fn of(admin: SocketAddr) -> Result<Self> {
        let connect = move || TcpStream::connect_timeout(&admin, LIMIT);
        let mut kept = Vec::new();
        for _ in 0..Self::COUNT {
            kept.push(connect()?);
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Acquire) {
                for (number, stream) in kept.iter_mut().enumerate() {
                    // Some never end their request.
                    let ask: &[u8] = match number % 2 {
                        0 => b"GET /healthz HTTP/1.1\r\nHost: probe\r\n\r\n",
                        _ => b"x",
                    };
                    if stream.write_all(ask).is_err()
                        && let Ok(again) = connect()
                    {
                        *stream = again;
                    }
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Ok(Self {
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(ended.is_none_or(|it| it.is_ok()) || std::thread::panicking());
    }
}

#[test]
fn kept_connections_fail_no_health_check() -> Result<()> {
    let node = NodeOptions::new().in_memory().start()?;
    let _keepers = [Keeper::of(node.admin())?, Keeper::of(node.admin())?];
    for round in 0..100 {
        probe(node.admin()).with_context(|| format!("round {round}"))?;
        std::thread::sleep(Duration::from_millis(10));
    }
    text(&node.admin().to_string(), &["status"])?;
    Ok(())
}

/// The status of a page that a browser asks for by the name `host`.
fn status_by_name(node: &FonnNode, path: &str, host: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&node.admin(), LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).context("no status")?;
    Ok(status.to_owned())
}

#[test]
fn a_page_that_points_its_own_name_here_reads_nothing() -> Result<()> {
    let node = NodeOptions::new()
        .in_memory()
        .flag("--admin-host", "cache.example,*.svc.cluster.local")
        .start()?;
    for (path, host, wanted) in [
        ("/metrics", "evil.example", "421"),
        ("/", "evil.example:11280", "421"),
        ("/healthz", "evil.example", "200"),
        ("/metrics", "cache.example:11280", "200"),
        ("/metrics", "node-0.fonn.svc.cluster.local", "200"),
        ("/metrics", "localhost", "200"),
    ] {
        let status = status_by_name(&node, path, host)?;
        ensure!(status == wanted, "{path} by {host}: {status}");
    }
    let own = http_get(node.admin(), "/metrics")?;
    ensure!(own.status == 200, "{}", own.status);
    Ok(())
}
