//! Tokens, by each way in, until they expire or are revoked.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

use fonn_tests::client::{HttpAnswer, HttpClient, RespClient, RespReply};
use fonn_tests::component::program;
use fonn_tests::ctl::{failure, text, with_input};
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::run;
use fonn_tests::secured::ctl;

use super::access::paths;

const SASL_AUTH: u8 = 0x21;

/// What a busy machine takes to read a file again.
const PATIENCE: Duration = Duration::from_secs(60);

/// No node is asked for a token.
const NOWHERE: &str = "127.0.0.1:1";

/// A node whose users file has tokens.
pub(crate) struct Tokens {
    pub(crate) node: FonnNode,
    file: PathBuf,
    _dir: TempDir,
}

impl Tokens {
    /// A node with an admin, and with `namespaces` in its file, which `make` adds tokens to.
    pub(crate) fn start<T>(
        namespaces: &str,
        make: impl FnOnce(&Entry) -> Result<T>,
    ) -> Result<(Self, T)> {
        let options = NodeOptions::new().in_memory().with_http();
        Self::start_as(options, namespaces, make)
    }

    /// The same, with options of its own.
    pub(crate) fn start_as<T>(
        options: NodeOptions,
        namespaces: &str,
        make: impl FnOnce(&Entry) -> Result<T>,
    ) -> Result<(Self, T)> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("users.toml");
        let hash = with_input(NOWHERE, &["user", "hash"], "correct-horse")?.stdout;
        let hash = String::from_utf8(hash)?;
        let root = format!(
            "[[user]]\nname = 'root'\nrole = 'admin'\nhash = '{}'\n",
            hash.trim()
        );
        fs::write(&file, root + namespaces)?;
        let made = make(&Entry(file.display().to_string()))?;
        let node = options.flag("--users-file", &file).start()?;
        let tokens = Self {
            node,
            file,
            _dir: dir,
        };
        Ok((tokens, made))
    }

    pub(crate) fn ask(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<HttpAnswer> {
        let mut client = HttpClient::connect(self.node.http())?;
        let login = format!("Bearer {token}");
        client.request(method, path, &[("authorization", &login)], body)
    }

    fn resp(&self, token: &str) -> Result<RespClient> {
        let mut client = self.node.resp()?;
        client.call(&[b"AUTH", token.as_bytes()])?.ok()?;
        Ok(client)
    }

    fn reload(&mut self) -> Result<()> {
        let daemon = self.node.daemon()?;
        let log = daemon.log();
        daemon.signal(Signal::HUP)?;
        let is_reloaded = || log.text().contains("configuration reloaded");
        daemon.wait_until("the reload", PATIENCE, is_reloaded)
    }
}

/// The file that tokens are added to.
pub(crate) struct Entry(String);

impl Entry {
    pub(crate) fn token(&self, name: &str, role: &str, namespace: &str) -> Result<String> {
        let created = [
            "token",
            "create",
            name,
            "--role",
            role,
            "--namespace",
            namespace,
            "--ttl",
            "1h",
            "--entry",
            &self.0,
        ];
        let secret = text(NOWHERE, &created)?.trim_end().to_owned();
        ensure!(
            secret.starts_with("fonn_") && secret.len() == 69,
            "{secret}"
        );
        Ok(secret)
    }

    /// Adds a line to the table of the token that was made last.
    pub(crate) fn line(&self, line: &str) -> Result<()> {
        let text = fs::read_to_string(&self.0)?;
        Ok(fs::write(&self.0, format!("{text}{line}\n"))?)
    }

    /// A token that expired long ago; it has to be the first one of the file.
    fn expired(&self, name: &str) -> Result<String> {
        let secret = self.token(name, "read-write", "main")?;
        let text = fs::read_to_string(&self.0)?;
        let (before, _) = text.split_once("expires = ").context("no expiry")?;
        fs::write(&self.0, format!("{before}expires = 2020-01-01T00:00:00Z\n"))?;
        Ok(secret)
    }
}

/// Tokens of one namespace.
pub(crate) struct Secrets {
    pub(crate) expired: String,
    pub(crate) writer: String,
    pub(crate) reader: String,
}

impl Secrets {
    /// Adds one of each to the file.
    ///
    /// # Errors
    /// When `fonnctl` does not create it.
    pub(crate) fn create(entry: &Entry) -> Result<Self> {
        Ok(Self {
            expired: entry.expired("old")?,
            writer: entry.token("writer", "read-write", "main")?,
            reader: entry.token("reader", "read", "main")?,
        })
    }
}

fn start() -> Result<(Tokens, Secrets)> {
    Tokens::start("", Secrets::create)
}

#[test]
fn one_token_is_taken_by_every_protocol() -> Result<()> {
    let (tokens, secrets) = start()?;
    let (node, writer) = (&tokens.node, &secrets.writer);
    ensure!(tokens.ask(writer, "PUT", "/k", b"value")?.status == 200);
    let value = RespReply::Bulk(b"value".to_vec());
    for user in [None, Some("any")] {
        let mut client = node.resp()?;
        let auth = [b"AUTH"].map(|it| &it[..]);
        let user = user.map(str::as_bytes);
        let words = [&auth[..], user.as_slice(), &[writer.as_bytes()]].concat();
        client.call(&words)?.ok()?;
        ensure!(client.command("GET k")? == value);
    }
    let mut hello = node.resp()?;
    hello.command(&format!("HELLO 2 AUTH any {writer}"))?;
    ensure!(hello.command("GET k")? == value);
    let mut binary = node.binary()?;
    let plain = format!("\0any\0{writer}");
    let answer = binary.call(SASL_AUTH, "PLAIN", &[], plain.as_bytes(), 0)?;
    ensure!(answer.status == 0, "{answer:?}");
    let mut memcached = node.text()?;
    let login = format!("any {writer}");
    let answer = memcached.store(&format!("set auth 0 0 {}", login.len()), login.as_bytes())?;
    ensure!(answer == "STORED", "{answer}");
    ensure!(memcached.items("get k")?.len() == 1);
    let (code, told) = ctl(node.admin(), Some(("any", writer)), &["key", "k"])?;
    ensure!(code == Some(0), "{told}");
    // A token is no admin.
    let (code, told) = ctl(node.admin(), Some(("any", writer)), &["user", "list"])?;
    ensure!(
        code == Some(3) && told.contains("the token `writer` has read-write"),
        "{told}"
    );
    if let Some(curl) = program("curl")? {
        let mut curl = Command::new(curl);
        curl.args(["-fsS", "--noproxy", "*", "-u", &format!("any:{writer}")]);
        let answer = run(curl.arg(format!("http://{}/k", node.http())))?;
        ensure!(answer == "value", "{answer}");
    }
    let page = node.http_get("/metrics")?.body;
    let mut lines = page.lines();
    let uses = lines.find_map(|it| it.strip_prefix("fonn_token_uses_total{token=\"writer\"} "));
    ensure!(
        uses.context("no metric")?.parse::<f64>()? >= 8.0,
        "{uses:?}"
    );
    Ok(())
}

#[test]
fn a_wrong_token_is_401_and_a_write_by_a_reader_403_in_each_dialect() -> Result<()> {
    let (tokens, secrets) = start()?;
    let unknown = format!("fonn_{}", "0".repeat(64));
    for path in paths() {
        let written = tokens.ask(&secrets.writer, "PUT", &path, b"hello")?;
        ensure!(written.status == 200, "{path}: {written:?}");
        for (token, why) in [(&unknown, "unknown token"), (&secrets.expired, "expired")] {
            let refused = tokens.ask(token, "GET", &path, b"")?;
            ensure!(refused.status == 401, "{path}: {refused:?}");
            ensure!(refused.header("www-authenticate").is_some(), "{refused:?}");
            let line = String::from_utf8(refused.body)?;
            ensure!(line.contains(why), "{path}: {line}");
        }
        let read = tokens.ask(&secrets.reader, "GET", &path, b"")?;
        ensure!(read.status == 200 && read.body == b"hello", "{read:?}");
        for method in ["PUT", "DELETE"] {
            let refused = tokens.ask(&secrets.reader, method, &path, b"other")?;
            ensure!(refused.status == 403, "{method} {path}: {refused:?}");
        }
    }
    let mut reader = tokens.resp(&secrets.reader)?;
    let refused = reader.command("SET k v")?;
    ensure!(
        matches!(&refused, RespReply::Error(it) if it.starts_with("NOPERM")),
        "{refused:?}"
    );
    for token in [&unknown, &secrets.expired] {
        let refused = tokens.node.resp()?.call(&[b"AUTH", token.as_bytes()])?;
        let is_wrong = matches!(&refused, RespReply::Error(it) if it.starts_with("WRONGPASS"));
        ensure!(is_wrong, "{refused:?}");
    }
    Ok(())
}

#[test]
fn a_token_that_is_revoked_is_refused_and_its_connections_end() -> Result<()> {
    let (mut tokens, secrets) = start()?;
    let writer = tokens.resp(&secrets.writer)?;
    let mut reader = tokens.resp(&secrets.reader)?;
    ensure!(tokens.ask(&secrets.writer, "PUT", "/k", b"v")?.status == 200);
    let entry = tokens.file.display().to_string();
    let (code, told) = failure(NOWHERE, &["token", "revoke", "writer", "--entry", &entry])?;
    ensure!(code == Some(2) && told.contains("--yes"), "{told}");
    text(
        NOWHERE,
        &["token", "revoke", "writer", "--entry", &entry, "--yes"],
    )?;
    let list = text(NOWHERE, &["token", "list", "--entry", &entry])?;
    ensure!(
        !list.contains("writer") && list.contains("reader"),
        "{list}"
    );
    let old = list.lines().find(|line| line.starts_with("old "));
    ensure!(old.is_some_and(|line| line.ends_with("expired")), "{list}");
    tokens.reload()?;
    let end = writer.socket().read(&mut [0]);
    // It is no end when nothing comes in time.
    let is_reset = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionReset;
    ensure!(
        matches!(&end, Ok(0)) || end.as_ref().is_err_and(is_reset),
        "a connection of the token lives on: {end:?}"
    );
    ensure!(tokens.ask(&secrets.writer, "GET", "/k", b"")?.status == 401);
    ensure!(reader.command("GET k")? == RespReply::Bulk(b"v".to_vec()));
    let told = [
        tokens.node.log()?.text(),
        tokens.node.http_get("/metrics")?.body,
    ];
    for text in told {
        let is_told = [&secrets.writer, &secrets.reader, &secrets.expired]
            .iter()
            .any(|secret| text.contains(secret.as_str()));
        ensure!(!is_told && !text.contains("sha256:"), "{text}");
    }
    Ok(())
}
