//! `cargo xtask cluster` as a person uses it, with programs that are built already.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A busy machine needs its time.
const PATIENCE: Duration = Duration::from_secs(90);

/// What is promised, and a little for the machine.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// The programs that `cargo test --workspace` builds for the suites of `fonn-tests`.
fn program(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_BIN_EXE_xtask"))
        .parent()
        .expect("a directory");
    let program = dir.join(name);
    assert!(
        program.is_file(),
        "no {}: run `cargo test --workspace`",
        program.display()
    );
    program
}

struct Cluster {
    xtask: Child,
    stdout: BufReader<ChildStdout>,
    /// The table.
    told: String,
}

impl Cluster {
    fn start(arguments: &[&str]) -> Self {
        let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .arg("cluster")
            .args(arguments)
            .arg("--node-bin")
            .arg(program("fonn-node-under-test"))
            .arg("--router-bin")
            .arg(program("fonn-router-under-test"))
            .env_remove("AWS_ENDPOINT_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let stdout = BufReader::new(xtask.stdout.take().expect("it is piped"));
        Self {
            xtask,
            stdout,
            told: String::new(),
        }
    }

    /// Reads the table, which is there when all are ready.
    fn read_table(&mut self) {
        while !self.told.contains("Ctrl-C") {
            let read = self.stdout.read_line(&mut self.told).expect("text");
            assert!(read > 0, "it ended: {}", self.told);
        }
    }

    /// The address of clients of a program in the table.
    fn clients(&self, name: &str) -> String {
        self.column(name, 1)
    }

    fn column(&self, name: &str, column: usize) -> String {
        let mut lines = self.told.lines();
        let line = lines.find(|line| line.starts_with(name)).expect(name);
        let mut columns = line.split_whitespace();
        columns.nth(column).expect("a column").to_owned()
    }

    /// The directory of the data.
    fn dir(&self) -> PathBuf {
        let mut lines = self.told.lines();
        let dir = lines.find_map(|line| line.strip_prefix("data and logs "));
        PathBuf::from(dir.expect("it is told"))
    }

    /// Sends a signal and waits for the end, which has to be a clean one.
    fn stop(mut self, signal: Signal) {
        let begun = Instant::now();
        kill_process(Pid::from_child(&self.xtask), signal).expect("it runs");
        let status = loop {
            if let Some(status) = self.xtask.try_wait().expect("a child") {
                break status;
            }
            assert!(begun.elapsed() < STOP_LIMIT, "it does not stop");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{status}");
        for name in ["router-1", "node-1"] {
            let address = self.clients(name);
            assert!(TcpListener::bind(&address).is_ok(), "{name} still listens");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Where a test fails: it ends its programs when it is asked to, but not when it is killed.
        if matches!(self.xtask.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.xtask), Signal::TERM);
            let _ = self.xtask.wait();
        }
    }
}

fn exchange(address: &str, request: &str, reply: &str) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let set = stream.set_read_timeout(Some(PATIENCE));
    set.expect("a timeout");
    let sent = stream.write_all(request.as_bytes());
    sent.expect("it reads");
    let mut got = vec![0; reply.len()];
    stream.read_exact(&mut got).expect("it answers");
    assert_eq!(String::from_utf8_lossy(&got), reply);
}

/// All that comes until the other side closes.
fn answer(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let set = stream.set_read_timeout(Some(PATIENCE));
    set.expect("a timeout");
    let sent = stream.write_all(request.as_bytes());
    sent.expect("it reads");
    let mut got = String::new();
    stream.read_to_string(&mut got).expect("text");
    got
}

const SET: &str = "set key-%d 0 0 5\r\nvalue\r\n";
const VALUE: &str = "VALUE key-%d 0 5\r\nvalue\r\nEND\r\n";

fn of(template: &str, number: usize) -> String {
    template.replace("%d", &number.to_string())
}

#[test]
fn what_one_router_stores_another_finds_and_all_is_gone_afterwards() {
    let mut cluster = Cluster::start(&[]);
    cluster.read_table();
    for number in 0..30 {
        exchange(&cluster.clients("router-1"), &of(SET, number), "STORED\r\n");
    }
    for number in 0..30 {
        let get = format!("get key-{number}\r\n");
        exchange(&cluster.clients("router-2"), &get, &of(VALUE, number));
    }
    // What the table tells is so.
    exchange(&cluster.clients("node-3"), "mn\r\n", "MN\r\n");
    for name in ["router-1", "router-2", "node-1"] {
        let page = cluster.column(name, 3);
        let url = page.strip_prefix("http://").expect("a URL");
        let (admin, path) = url.split_at(url.find('/').expect("a path"));
        let get = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let page = answer(admin, &get);
        let is_dashboard = page.starts_with("HTTP/1.1 200 ") && page.contains("<title>");
        assert!(is_dashboard, "{name}: {page}");
    }
    let dir = cluster.dir();
    for name in ["bucket", "node-1/data", "node-1/log", "router-2/log"] {
        assert!(dir.join(name).exists(), "no {name}");
    }
    cluster.stop(Signal::TERM);
    assert!(!dir.exists());
}

#[test]
fn a_kept_cluster_goes_on_where_it_was_stopped() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("cluster");
    let place = [
        "--dir",
        dir.to_str().unwrap(),
        "--nodes",
        "2",
        "--routers",
        "1",
    ];
    let mut cluster = Cluster::start(&[&place[..], &["--keep"]].concat());
    cluster.read_table();
    let router = cluster.clients("router-1");
    exchange(&router, &of(SET, 1), "STORED\r\n");
    cluster.stop(Signal::INT);
    assert!(dir.join("node-2/data").is_dir());

    let mut cluster = Cluster::start(&place);
    cluster.read_table();
    assert_eq!(cluster.clients("router-1"), router);
    exchange(&router, "get key-1\r\n", &of(VALUE, 1));
    cluster.stop(Signal::TERM);
    assert!(!dir.exists());
}

#[test]
fn a_signal_while_it_starts_ends_it() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("cluster");
    let mut cluster = Cluster::start(&["--dir", dir.to_str().unwrap()]);
    let begun = Instant::now();
    while !dir.join("router-1/log").exists() {
        assert!(begun.elapsed() < PATIENCE, "nothing is started");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&cluster.xtask), Signal::TERM).unwrap();
    let begun = Instant::now();
    while cluster.xtask.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < STOP_LIMIT, "it does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!dir.exists());
}

#[test]
fn what_cannot_be_used_is_refused_before_anything_is_started() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join("theirs"), "x").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["cluster", "--dir", scratch.path().to_str().unwrap()])
        .arg("--node-bin")
        .arg(program("fonn-node-under-test"))
        .arg("--router-bin")
        .arg(program("fonn-router-under-test"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("not empty"), "{stderr}");
    assert!(scratch.path().join("theirs").is_file());
}
