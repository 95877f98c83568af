//! A bucket of a test: an S3 server in the test's own process, on a port of its own.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use fonn_cold_tier::store::s3::S3Options;
use fonn_cold_tier::store::s3_server::{Answer, BUCKET, Method, Reply, S3Server};
use tokio::runtime::Runtime;

/// A way in which a bucket fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// 404 with the code of a bucket that is not there: deleted, or the request went astray.
    NoSuchBucket,
    /// Requests are never answered.
    Hangs,
    /// 503 with the code of a bucket that is asked too much.
    SlowDown,
    /// Requests take place, and the connection is closed without an answer.
    LosesAnswers,
    /// Every connection is closed without an answer.
    Disconnects,
}

impl Trouble {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::NoSuchBucket,
        Self::Hangs,
        Self::SlowDown,
        Self::LosesAnswers,
        Self::Disconnects,
    ];

    const fn reply(self) -> Reply {
        match self {
            Self::NoSuchBucket => Reply::Error(404, "NoSuchBucket"),
            Self::Hangs => Reply::Hang,
            Self::SlowDown => Reply::Error(503, "SlowDown"),
            Self::LosesAnswers => Reply::LostAnswer,
            Self::Disconnects => Reply::Disconnect,
        }
    }
}

/// The bucket, and the server that has it.
#[derive(Debug)]
pub struct Bucket {
    server: S3Server,
    url: String,
    // Dropped last: the server's task runs on it.
    _runtime: Runtime,
}

impl Bucket {
    /// A server with one empty bucket.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn in_process() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start a runtime for the bucket")?;
        let server = runtime
            .block_on(S3Server::start())
            .context("cannot start the bucket's server")?;
        Ok(Self {
            server,
            url: format!("s3://{BUCKET}/team"),
            _runtime: runtime,
        })
    }

    /// What `--cold-tier` needs.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        BUCKET
    }

    /// Where its server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// What the environment needs: the server, its region, and credentials.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        self.environment_through(&self.server.endpoint())
    }

    /// The same, if the server is to be reached at another `endpoint`.
    #[must_use]
    pub fn environment_through(&self, endpoint: &str) -> Vec<(&'static str, String)> {
        let credentials = self.server.credentials();
        vec![
            ("AWS_ENDPOINT_URL", endpoint.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", credentials.key_id),
            ("AWS_SECRET_ACCESS_KEY", credentials.secret),
        ]
    }

    /// What the bare store needs.
    #[must_use]
    pub fn options(&self) -> S3Options {
        self.server.options()
    }

    /// From now on uploads are never answered; whether they take place is `take_place`.
    pub fn hold_uploads(&self, take_place: bool) {
        self.hold(Method::PUT, take_place);
    }

    /// From now on the objects whose key contains `part` may not be read; None: all may.
    pub fn deny(&self, part: Option<&str>) {
        self.server.deny(part);
    }

    /// From now on reads are never answered.
    pub fn hold_reads(&self) {
        self.hold(Method::GET, false);
    }

    fn hold(&self, method: Method, takes_place: bool) {
        self.server.answer(Answer {
            method: Some(method),
            times: u64::MAX,
            reply: if takes_place {
                Reply::HangAfter
            } else {
                Reply::Hang
            },
        });
    }

    /// Requests that were held so far.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.server.hanging()
    }

    /// The files that are its objects below the cold tier's prefix, segments only, by name.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn segments(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut dirs = vec![self.server.directory().join("team/v1/seg")];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(&dir).with_context(|| format!("{}", dir.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    dirs.push(path);
                } else if path.extension().is_some_and(|it| it == "seg") {
                    found.push(path);
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// From now on every connection is closed without an answer.
    pub fn go_down(&self) {
        self.fail(Trouble::Disconnects);
    }

    /// From now on it fails in this way, and in no other.
    pub fn fail(&self, trouble: Trouble) {
        self.server.answer_itself();
        self.server.answer(Answer {
            method: None,
            times: u64::MAX,
            reply: trouble.reply(),
        });
    }

    /// Requests that reached it so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.server.requests()
    }

    /// It answers again.
    pub fn come_up(&self) {
        self.server.answer_itself();
    }
}
