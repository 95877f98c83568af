//! Rights over HTTP.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};

use fonn_tests::certificates::Certified;
use fonn_tests::client::{HttpAnswer, HttpClient};
use fonn_tests::cluster::Cluster;
use fonn_tests::component::program;
use fonn_tests::node::NodeOptions;
use fonn_tests::process::{free_address, raise_open_files, run};
use fonn_tests::usage::rss_peak_bytes;

use super::guarded::{Guarded, PASSWORD};

/// `ci:correct-horse`, `dev:…`, `other:…` and `ci:wrong-horse` as HTTP Basic has them.
const CI: &str = "Basic Y2k6Y29ycmVjdC1ob3JzZQ==";
const DEV: &str = "Basic ZGV2OmNvcnJlY3QtaG9yc2U=";
const OTHER: &str = "Basic b3RoZXI6Y29ycmVjdC1ob3JzZQ==";
const WRONG: &str = "Basic Y2k6d3JvbmctaG9yc2U=";

const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

impl Guarded {
    fn ask(&self, who: Option<&str>, method: &str, path: &str, body: &[u8]) -> Result<HttpAnswer> {
        let mut client = HttpClient::connect(self.node.http())?;
        let login = who.map(|who| ("authorization", who));
        let headers: Vec<_> = login.into_iter().collect();
        client.request(method, path, &headers, body)
    }
}

/// One path of each dialect, and those of Bazel with the name of an instance as well.
pub(crate) fn paths() -> [String; 9] {
    [
        "/generic".to_owned(),
        format!("/ac/{HELLO}"),
        format!("/cas/{HELLO}"),
        format!("/acme/ac/{HELLO}"),
        format!("/acme/cas/{HELLO}"),
        "/cache/0123".to_owned(),
        format!("/v1.1/group/artifact/{HELLO}/buildinfo.xml"),
        "/v1/cache/17575332623054215528".to_owned(),
        "/v8/artifacts/0123456789abcdef?slug=acme".to_owned(),
    ]
}

#[test]
fn without_credentials_a_client_learns_nothing() -> Result<()> {
    let guarded = Guarded::start(NodeOptions::new().in_memory())?;
    let others = [
        "/status",
        "/v8/artifacts/status",
        "/a//b",
        "/v8/artifacts/events",
    ];
    for path in paths().iter().map(String::as_str).chain(others) {
        ensure!(
            guarded.ask(Some(CI), "PUT", path, b"hello")?.status != 401,
            "{path}"
        );
        for who in [None, Some(WRONG), Some("Bearer x"), Some("Basic !")] {
            let answer = guarded.ask(who, "GET", path, b"")?;
            ensure!(answer.status == 401, "{path} {who:?}: {answer:?}");
            let challenge = answer.header("www-authenticate");
            ensure!(
                challenge.is_some_and(|it| it.starts_with("Basic ")),
                "{answer:?}"
            );
        }
    }
    // Before the body is sent.
    let mut client = HttpClient::connect(guarded.node.http())?;
    let expects = [("expect", "100-continue"), ("content-length", "5")];
    client.send_head("PUT", "/generic", &expects)?;
    ensure!(client.answer(true)?.status == 401);
    Ok(())
}

/// A source keeps at most 128 connections whose client has not logged in. The oldest gives way, and
/// the memory is bounded.
#[test]
fn strangers_that_keep_connections_and_send_heads_without_end_keep_no_client_out() -> Result<()> {
    const COUNT: usize = 600;
    raise_open_files(COUNT as u64 + 500)?;
    let options = NodeOptions::new().in_memory().flag("--ram-budget", "64m");
    let guarded = Guarded::start(options)?;
    let mut strangers = Vec::new();
    for number in 0..COUNT {
        let mut client = HttpClient::connect(guarded.node.http())?;
        // Those that have given way cannot take it any more.
        let _ = match number % 3 {
            0 => Ok(()),
            1 => client.send(&[b"GET /k HTTP/1.1\r\nx: ", &[b'x'; 40_000][..]].concat()),
            _ => client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        };
        strangers.push(client);
    }
    ensure!(guarded.ask(Some(CI), "PUT", "/k", b"v")?.status == 200);
    ensure!(strangers[0].at_end()?, "the oldest connection lives on");
    let allowed = (64 + 64 * 15 / 100 + 64 + 16) << 20;
    let peak = rss_peak_bytes(guarded.node.pid()?)?;
    ensure!(peak <= allowed, "{} MiB resident", peak >> 20);
    Ok(())
}

#[test]
fn a_reader_reads_and_changes_nothing() -> Result<()> {
    let guarded = Guarded::start(NodeOptions::new().in_memory())?;
    for path in paths() {
        let written = guarded.ask(Some(CI), "PUT", &path, b"hello")?;
        ensure!(written.status == 200, "{path}: {written:?}");
        let read = guarded.ask(Some(DEV), "GET", &path, b"")?;
        ensure!(
            (read.status, &read.body[..]) == (200, b"hello"),
            "{path}: {read:?}"
        );
        for method in ["PUT", "DELETE", "MKCOL"] {
            let refused = guarded.ask(Some(DEV), method, &path, b"other")?;
            ensure!(refused.status == 403, "{method} {path}: {refused:?}");
        }
        // Another namespace has other entries.
        ensure!(
            guarded.ask(Some(OTHER), "GET", &path, b"")?.status == 404,
            "{path}"
        );
        let read = guarded.ask(Some("Bearer dev:correct-horse"), "GET", &path, b"")?;
        ensure!(read.body == b"hello", "{path}: {read:?}");
    }
    Ok(())
}

/// Headers of a request that a web page of another site causes, or one by a name that leads here.
const FOREIGN: [(&str, &str, u16); 4] = [
    ("origin", "http://evil.example", 403),
    ("origin", "null", 403),
    ("host", "evil.example", 421),
    ("host", "127.0.0.1.evil.example", 421),
];

/// What is asked by POST. Gradle's path takes a value by it.
const POSTS: [&str; 4] = [
    "/cache/0123",
    "/v1/token",
    "/v8/artifacts/events",
    "/twirp/github.actions.results.api.v1.CacheService/CreateCacheEntry",
];

#[test]
fn pages_of_other_sites_read_and_change_nothing_without_logins() -> Result<()> {
    let cluster = Cluster::form_of(1, NodeOptions::new().with_http())?;
    let http = free_address()?;
    let _router = cluster.router_with(vec![("--http-listen", http.to_string())])?;
    for door in [cluster.nodes[0].http(), http] {
        let ask = |method: &str, path: &str, header: (&str, &str), body: &[u8]| {
            HttpClient::connect(door)?.request(method, path, &[header], body)
        };
        let host = door.to_string();
        let own = ("host", &*host);
        let refused = |method: &str, path: &str| -> Result<()> {
            for (name, value, status) in FOREIGN {
                let answer = ask(method, path, (name, value), b"evil")?;
                ensure!(
                    answer.status == status,
                    "{method} {path} of {value} at {door}: {answer:?}"
                );
                ensure!(answer.header("access-control-allow-origin").is_none());
            }
            Ok(())
        };
        for path in paths() {
            // Nothing is stored.
            refused("PUT", &path)?;
            ensure!(ask("GET", &path, own, b"")?.status == 404, "{path}");
            // Nothing is read, changed or removed.
            ensure!(ask("PUT", &path, own, b"hello")?.status == 200, "{path}");
            for method in ["GET", "PUT", "DELETE"] {
                refused(method, &path)?;
            }
            for host in [own, ("host", "localhost")] {
                let found = ask("GET", &path, host, b"")?;
                ensure!(
                    (found.status, &found.body[..]) == (200, b"hello"),
                    "{path} at {door}: {found:?}"
                );
            }
        }
        for path in POSTS {
            refused("POST", path)?;
        }
        let found = ask("GET", POSTS[0], own, b"")?;
        ensure!(found.body == b"hello", "at {door}: {found:?}");
        // The next door has the same entries.
        for path in paths() {
            ensure!(ask("DELETE", &path, own, b"")?.status == 204, "{path}");
        }
    }
    Ok(())
}

#[test]
fn the_port_speaks_tls_where_there_is_a_certificate() -> Result<()> {
    let Some(curl) = program("curl")? else {
        return Ok(());
    };
    let certified = Certified::new()?;
    let mut options = NodeOptions::new().in_memory();
    for (name, value) in certified.flags() {
        options = options.flag(name, value);
    }
    let guarded = Guarded::start(options)?;
    let url = format!("https://{}/over-tls", guarded.node.http());
    let value = guarded.node.scratch().join("value");
    fs::write(&value, "hello")?;
    for version in ["--http1.1", "--http2"] {
        let curl = |user: &str| {
            let mut command = Command::new(&curl);
            command.args([
                "-fsS",
                "--noproxy",
                "*",
                version,
                "--cacert",
                &certified.file("ca"),
            ]);
            command.args(["-u", &format!("{user}:{PASSWORD}")]);
            command
        };
        run(curl("ci").arg("-T").arg(&value).arg(&url))?;
        ensure!(run(curl("dev").arg(&url))? == "hello", "{version}");
        ensure!(
            run(curl("dev").arg("-T").arg(&value).arg(&url)).is_err(),
            "{version}"
        );
    }
    Ok(())
}
