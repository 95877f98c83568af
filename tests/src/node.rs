//! A `fonn-node` process with ports, a data directory and a log of its own.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::client::{BinaryClient, RespClient, TextClient};
use crate::process::{Daemon, Log, Signal, free_address};
use crate::program::Program;
use crate::release;

/// A start includes the recovery of what is in the data directory.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The contract says 10 seconds for the drain; the rest is for a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(60);
const HTTP_LIMIT: Duration = Duration::from_secs(60);

/// What `/readyz` says while a node serves that has not read the index of its bucket yet.
pub const READING: &str = "reading the bucket's index\n";

/// What `/readyz` says of a member that its cluster refuses.
pub const REFUSED: &str = "the cluster refuses this member";

/// How a node is to be started.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    omitted: Vec<String>,
    in_memory: bool,
    before_index: bool,
    until_refused: bool,
    with_http: bool,
    data_dir: Option<PathBuf>,
}

impl NodeOptions {
    /// A node with the defaults of the contract, on free ports, in a temporary directory, with
    /// two reactors and budgets that suit a test machine (256 MiB of memory, 2 GiB of disk).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps nothing on disk.
    #[must_use]
    pub const fn in_memory(mut self) -> Self {
        self.in_memory = true;
        self
    }

    /// Holds no member of its cluster for down that is silent for less than ten seconds, as each is
    /// at times on a machine that is busy with other tests. For tests in which no member falls.
    #[must_use]
    pub fn patient(self) -> Self {
        self.flag("--down-after", "10s")
    }

    /// Serves HTTP for build tools too, on a free port.
    #[must_use]
    pub const fn with_http(mut self) -> Self {
        self.with_http = true;
        self
    }

    /// Does not wait until the node has read the index of its bucket, only until it serves.
    #[must_use]
    pub const fn before_its_index(mut self) -> Self {
        self.before_index = true;
        self
    }

    /// Waits until its cluster has refused the node, instead of until it is ready.
    #[must_use]
    pub const fn until_refused(mut self) -> Self {
        self.until_refused = true;
        self
    }

    /// Keeps the data in `dir` instead of a temporary directory.
    #[must_use]
    pub fn data_dir(mut self, dir: &Path) -> Self {
        self.data_dir = Some(dir.to_owned());
        self
    }

    /// Adds a flag with its value; replaces what was given for it before.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        if let Some(at) = self.arguments.iter().position(|argument| argument == name) {
            self.arguments.drain(at..at + 2);
        }
        self.arguments.push(name.into());
        self.arguments.push(value.as_ref().to_owned());
        self
    }

    /// Leaves a flag to the environment, the file or the node's own default.
    #[must_use]
    pub fn omit(mut self, name: &str) -> Self {
        self.omitted.push(name.to_owned());
        self
    }

    /// Adds a variable to the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.retain(|(known, _)| known != name);
        self.environment
            .push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Lets the node see the wall clock moved by `offset_seconds`; the monotonic clock stays.
    #[must_use]
    pub fn clock_offset(self, shifter: &Path, offset_seconds: i64) -> Self {
        if offset_seconds == 0 {
            let mut unshifted = self;
            unshifted
                .environment
                .retain(|(name, _)| name != "LD_PRELOAD" && name != "FAKETIME");
            return unshifted;
        }
        self.env("LD_PRELOAD", shifter)
            .env("FAKETIME", format!("{offset_seconds:+}"))
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1")
    }

    /// Starts the node and waits until `/readyz` says yes.
    ///
    /// # Errors
    /// With its log, when it ends or is not ready within a minute.
    pub fn start(self) -> Result<FonnNode> {
        self.start_at(free_address()?)
    }

    /// The same, with that address for clients.
    ///
    /// # Errors
    /// As [`NodeOptions::start`].
    pub fn start_at(self, addr: SocketAddr) -> Result<FonnNode> {
        let scratch = tempfile::Builder::new().prefix("fonn-test-").tempdir()?;
        let data_dir = self
            .data_dir
            .clone()
            .unwrap_or_else(|| scratch.path().join("data"));
        let mut node = FonnNode {
            addr,
            admin: free_address()?,
            http_port: free_address()?.port(),
            options: self,
            daemon: None,
            data_dir,
            scratch,
        };
        node.spawn()?;
        Ok(node)
    }
}

/// The program under test: `FONN_NODE_BIN`, or the one built with this package.
///
/// # Errors
/// When there is none.
pub fn node_program() -> Result<PathBuf> {
    Program::NODE.path()
}

/// The admin command under test: `FONN_CTL_BIN`, or the one built with this package.
///
/// # Errors
/// When there is none.
pub fn ctl_program() -> Result<PathBuf> {
    Program::CTL.path()
}

/// A node process; killed and its temporary directory removed when dropped.
#[derive(Debug)]
pub struct FonnNode {
    options: NodeOptions,
    addr: SocketAddr,
    admin: SocketAddr,
    http_port: u16,
    daemon: Option<Daemon>,
    data_dir: PathBuf,
    scratch: TempDir,
}

impl FonnNode {
    /// A node with the test defaults.
    ///
    /// # Errors
    /// As [`NodeOptions::start`].
    pub fn start() -> Result<Self> {
        NodeOptions::new().start()
    }

    fn spawn(&mut self) -> Result<()> {
        let mut variables = self.options.environment.iter();
        let is_other_release = variables.any(|(name, _)| name == release::VARIABLE);
        let mut command = Program::NODE.command(is_other_release)?;
        let http = match self.options.with_http {
            true => self.http().to_string(),
            false => "none".to_owned(),
        };
        let defaults: [(&str, OsString); 7] = [
            ("--listen", self.addr.to_string().into()),
            ("--admin-listen", self.admin.to_string().into()),
            (
                "--data-dir",
                if self.options.in_memory {
                    "none".into()
                } else {
                    self.data_dir.clone().into()
                },
            ),
            ("--http-listen", http.into()),
            ("--threads", "2".into()),
            ("--ram-budget", "256m".into()),
            ("--disk-budget", "2g".into()),
        ];
        for (name, value) in defaults {
            let options = &self.options;
            let given = options.arguments.iter().any(|given| given == name)
                || options.omitted.iter().any(|omitted| omitted == name);
            // A listener that a test adds comes on top of the default one.
            if name == "--listen" || !given {
                command.arg(name).arg(value);
            }
        }
        command.args(&self.options.arguments);
        command.env("XDG_CACHE_HOME", self.scratch.path());
        command.envs(
            self.options
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        );
        let mut daemon = Daemon::spawn("fonn-node", &mut command)?;
        let (admin, before_index) = (self.admin, self.options.before_index);
        let until_refused = self.options.until_refused;
        daemon.wait_until("readiness", START_LIMIT, || {
            let is_up = |it: HttpReply| match until_refused {
                true => it.status == 503 && it.body.starts_with(REFUSED),
                false => it.status == 200 || before_index && it.body == READING,
            };
            http_get(admin, "/readyz").is_ok_and(is_up)
        })?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Address of the client protocols.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Address of the admin port.
    #[must_use]
    pub const fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Address of the HTTP port for build tools, if it was asked for.
    #[must_use]
    pub fn http(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.http_port))
    }

    /// Directory of the data.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// A directory that lives as long as this node.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// The process.
    ///
    /// # Errors
    /// When it was stopped.
    pub fn daemon(&mut self) -> Result<&mut Daemon> {
        self.daemon.as_mut().context("the node is not running")
    }

    /// What the process has written.
    ///
    /// # Errors
    /// When it was stopped.
    pub fn log(&self) -> Result<Log> {
        let daemon = self.daemon.as_ref();
        Ok(daemon.context("the node is not running")?.log())
    }

    /// Process id.
    ///
    /// # Errors
    /// When it was stopped.
    pub fn pid(&self) -> Result<u32> {
        Ok(self
            .daemon
            .as_ref()
            .context("the node is not running")?
            .pid())
    }

    /// Kills the process as `kill -9` does.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill9(&mut self) -> Result<()> {
        self.daemon()?.kill9()?;
        self.daemon = None;
        Ok(())
    }

    /// Stops the process by SIGTERM and expects a clean end.
    ///
    /// # Errors
    /// With the log, when the exit code is not 0 or the end takes too long.
    pub fn stop(&mut self) -> Result<()> {
        let daemon = self.daemon()?;
        daemon.signal(Signal::TERM)?;
        self.wait_stopped()
    }

    /// Waits for the clean end of a process that was told to stop.
    ///
    /// # Errors
    /// As [`FonnNode::stop`].
    pub fn wait_stopped(&mut self) -> Result<()> {
        let daemon = self.daemon()?;
        let status: ExitStatus = daemon.wait_exit(STOP_LIMIT)?;
        ensure!(
            status.success(),
            "SIGTERM ended in {status}\n{}",
            daemon.log_end()
        );
        self.daemon = None;
        Ok(())
    }

    /// Starts the process again with the same ports, data and options.
    ///
    /// # Errors
    /// As [`NodeOptions::start`].
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.daemon.is_none(), "the node still runs");
        self.spawn()
    }

    /// Starts the process again with other options on the same ports and data.
    ///
    /// # Errors
    /// As [`NodeOptions::start`].
    pub fn start_again_with(
        &mut self,
        change: impl FnOnce(NodeOptions) -> NodeOptions,
    ) -> Result<()> {
        self.options = change(self.options.clone());
        self.start_again()
    }

    /// A memcached text connection.
    ///
    /// # Errors
    /// When the node does not accept it.
    pub fn text(&self) -> Result<TextClient> {
        TextClient::connect(self.addr)
    }

    /// A memcached binary connection.
    ///
    /// # Errors
    /// When the node does not accept it.
    pub fn binary(&self) -> Result<BinaryClient> {
        BinaryClient::connect(self.addr)
    }

    /// A RESP connection.
    ///
    /// # Errors
    /// When the node does not accept it.
    pub fn resp(&self) -> Result<RespClient> {
        RespClient::connect(self.addr)
    }

    /// Asks the admin port.
    ///
    /// # Errors
    /// When there is no HTTP reply.
    pub fn http_get(&self, path: &str) -> Result<HttpReply> {
        http_get(self.admin, path)
    }

    /// The sum of all samples of a metric over its labels; `None` when there is none.
    ///
    /// # Errors
    /// When `/metrics` does not answer.
    pub fn metric(&self, name: &str) -> Result<Option<f64>> {
        let text = self.http_get("/metrics")?.body;
        let values: Vec<f64> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .filter(|(series, _)| series.split('{').next() == Some(name))
            .filter_map(|(_, value)| value.parse().ok())
            .collect();
        Ok((!values.is_empty()).then(|| values.iter().sum()))
    }
}

/// What an HTTP server said.
#[derive(Clone, Debug)]
pub struct HttpReply {
    /// Status code.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: String,
}

/// One HTTP/1.1 GET on a connection of its own.
///
/// # Errors
/// When there is no well-formed reply within a minute.
pub fn http_get(addr: SocketAddr, path: &str) -> Result<HttpReply> {
    let mut stream = TcpStream::connect_timeout(&addr, HTTP_LIMIT)?;
    stream.set_read_timeout(Some(HTTP_LIMIT))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n"
    )?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let text = String::from_utf8(bytes).context("an HTTP reply is not text")?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .context("an HTTP reply has no end of head")?;
    let mut lines = head.lines();
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let chunked = headers
        .iter()
        .any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if chunked {
        join_chunks(body)?
    } else {
        body.to_owned()
    };
    Ok(HttpReply {
        status: status.context("an HTTP reply has no status")?,
        headers,
        body,
    })
}

fn join_chunks(mut rest: &str) -> Result<String> {
    let mut body = String::new();
    loop {
        let (len, after) = rest.split_once("\r\n").context("a chunk has no length")?;
        let len = usize::from_str_radix(len.trim(), 16)?;
        if len == 0 {
            return Ok(body);
        }
        body.push_str(after.get(..len).context("a chunk is cut short")?);
        rest = after.get(len + 2..).context("a chunk has no end")?;
    }
}
