//! The S3 store against versitygw, an independent S3 server, as a process.
//!
//! The program is found by `FONN_VERSITYGW` or on the search path. Where it is missing, a
//! developer's run says so and goes on; in CI (`CI=true`) that is a failure.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests are not known to be tests.
#![allow(clippy::print_stderr, reason = "a skipped test must say so")]

use std::net::TcpListener;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_base::clock::Clock;
use fonn_cold_tier::store::probe::{Outcome, probe};
use fonn_cold_tier::store::s3::{S3Credentials, S3Options};
use fonn_cold_tier::store::{ObjectKey, ObjectStore, S3Store, StoreErrorKind, suite};
use tempfile::TempDir;
use tokio::time::sleep;

const BUCKET: &str = "bucket";

/// A running server; it ends with this handle.
struct Versitygw {
    process: Child,
    options: S3Options,
    _dir: TempDir,
}

impl Drop for Versitygw {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program, unless it is missing and may be.
fn program() -> Option<PathBuf> {
    let on_path = || {
        let path = std::env::var_os("PATH")?;
        let mut files = std::env::split_paths(&path).map(|dir| dir.join("versitygw"));
        files.find(|file| file.is_file())
    };
    let found = std::env::var_os("FONN_VERSITYGW")
        .map(PathBuf::from)
        .or_else(on_path);
    if found.is_none() {
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "versitygw is missing, and in CI no test is skipped");
        eprintln!("SKIPPED: versitygw is not installed; .ci/run installs it");
    }
    found
}

async fn start() -> Option<Versitygw> {
    let program = program()?;
    let dir = tempfile::tempdir().unwrap();
    let (root, meta) = (dir.path().join("root"), dir.path().join("meta"));
    std::fs::create_dir_all(root.join(BUCKET)).unwrap();
    std::fs::create_dir_all(&meta).unwrap();
    // The server cannot choose a port itself and say which, so another process may be faster.
    for _ in 0..5 {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let process = Command::new(&program)
            .args(["--port", &address, "--quiet", "posix", "--sidecar"])
            .arg(&meta)
            .arg(&root)
            .env("ROOT_ACCESS_KEY", "rootkey")
            .env("ROOT_SECRET_KEY", "rootsecret")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Versitygw {
            process,
            options: S3Options {
                endpoint: Some(format!("http://{address}")),
                region: Some("us-east-1".to_owned()),
                credentials: Some(S3Credentials {
                    key_id: "rootkey".to_owned(),
                    secret: "rootsecret".to_owned(),
                    session_token: None,
                }),
                // A server that starts beside others takes its time.
                timeout: Duration::from_secs(60),
                ..S3Options::new(BUCKET)
            },
            _dir: tempfile::tempdir().unwrap(),
        };
        if server.is_ready().await {
            server._dir = dir;
            return Some(server);
        }
    }
    panic!("versitygw does not start");
}

impl Versitygw {
    async fn store(&self) -> S3Store {
        S3Store::open(self.options.clone()).await.unwrap()
    }

    async fn is_ready(&mut self) -> bool {
        let (store, begun) = (self.store().await, Instant::now());
        while begun.elapsed() < Duration::from_secs(60) {
            if store.list("", None, 1).await.is_ok() {
                return true;
            }
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            sleep(Duration::from_millis(50)).await;
        }
        false
    }
}

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).unwrap()
}

/// The suite makes each call once, so that a 5xx of a server that is overtaxed fails it: then
/// another server gets a try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_keeps_the_contract_of_stores() {
    for tries_left in (0..3).rev() {
        let Some(server) = start().await else {
            return;
        };
        let store = Arc::new(server.store().await);
        match tokio::spawn(suite::run(store)).await {
            Ok(()) => return,
            Err(error) if tries_left == 0 => resume_unwind(error.into_panic()),
            Err(error) => eprintln!("once more: {error}"),
        }
    }
}

#[tokio::test]
async fn the_probe_passes_everything() {
    let Some(server) = start().await else { return };
    for finding in probe(&server.store().await, &Clock::system()).await {
        assert_eq!(finding.outcome, Outcome::Passed, "{finding:?}");
    }
}

#[tokio::test]
async fn wrong_secrets_are_denied() {
    let Some(mut server) = start().await else {
        return;
    };
    server.options.credentials.as_mut().unwrap().secret = "wrong".to_owned();
    let store = server.store().await;
    let error = store.put(&key("a"), "1".into()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Denied, "{error:?}");
    assert_eq!(
        error.refusal().unwrap().code.as_deref(),
        Some("SignatureDoesNotMatch")
    );
}
