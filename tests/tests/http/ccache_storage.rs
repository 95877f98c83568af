//! The storage helper of ccache, driven over its socket as ccache does.
//!
//! A ccache that starts it is a row of the table of build tools.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use fonn_tests::certificates::Certified;
use fonn_tests::node::NodeOptions;
use fonn_tests::process::Daemon;
use fonn_tests::program::Program;

use super::tokens::{Secrets, Tokens};

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

const KEY: &[u8] = &[
    0x13, 0x12, 0x94, 0x0b, 0xaa, 0x1d, 0xc1, 0x35, 0x26, 0x69, 0xf2, 0x58, 0x4d, 0x78, 0x2d, 0x14,
    0xbb, 0x9a, 0xf2, 0x6a,
];

/// A helper process with a socket of its own.
struct Helper {
    daemon: Daemon,
    socket: PathBuf,
    _dir: TempDir,
}

/// A connection of ccache to it.
struct Ccache(UnixStream);

#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Done,
    Value(Vec<u8>),
    NotDone,
    Error(String),
}

impl Helper {
    fn start(url: &str, attributes: &[(&str, &str)]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("socket");
        let mut command = Program::CCACHE_STORAGE.command(false)?;
        command
            .env("CRSH_IPC_ENDPOINT", &socket)
            .env("CRSH_URL", url)
            .env("CRSH_IDLE_TIMEOUT", "0")
            .env("CRSH_NUM_ATTR", attributes.len().to_string());
        for (number, (key, value)) in attributes.iter().enumerate() {
            command
                .env(format!("CRSH_ATTR_KEY_{number}"), key)
                .env(format!("CRSH_ATTR_VALUE_{number}"), value);
        }
        let mut daemon = Daemon::spawn("ccache-storage-fonn", &mut command)?;
        daemon.wait_until("the socket", LIMIT, || UnixStream::connect(&socket).is_ok())?;
        Ok(Self {
            daemon,
            socket,
            _dir: dir,
        })
    }

    fn connect(&self) -> Result<Ccache> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(2 * LIMIT))?;
        let mut ccache = Ccache(stream);
        ensure!(ccache.take(5)? == [1, 3, 0, 1, 2]);
        Ok(ccache)
    }
}

impl Ccache {
    fn take(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn message(&mut self) -> Result<String> {
        let len = self.take(1)?[0];
        Ok(String::from_utf8(self.take(len.into())?)?)
    }

    fn ask(&mut self, code: u8, key: &[u8], rest: &[u8]) -> Result<Reply> {
        let len = u8::try_from(key.len())?;
        self.0.write_all(&[&[code, len], key, rest].concat())?;
        Ok(match self.take(1)?[0] {
            0 if code == 0 => {
                let len = u64::from_ne_bytes(self.take(8)?.try_into().unwrap_or_default());
                Reply::Value(self.take(usize::try_from(len)?)?)
            }
            0 => Reply::Done,
            1 => Reply::NotDone,
            2 => Reply::Error(self.message()?),
            other => bail!("reply {other}"),
        })
    }

    fn get(&mut self) -> Result<Reply> {
        self.ask(0, KEY, &[])
    }

    fn put(&mut self, flags: u8, value: &[u8]) -> Result<Reply> {
        let len = (value.len() as u64).to_ne_bytes();
        self.ask(1, KEY, &[&[flags][..], &len, value].concat())
    }

    fn remove(&mut self) -> Result<Reply> {
        self.ask(2, KEY, &[])
    }

    /// What the helper says that is wrong.
    fn diagnostics(&mut self) -> Result<Vec<String>> {
        self.0.write_all(&[4])?;
        ensure!(self.message()?.starts_with("ccache-storage-fonn "));
        let count = self.take(1)?[0];
        (0..count).map(|_| self.message()).collect()
    }
}

#[test]
fn the_helper_of_ccache_stores_over_tls_with_a_token_and_survives_its_node() -> Result<()> {
    let certified = Certified::new()?;
    let options = NodeOptions::new()
        .in_memory()
        .with_http()
        .flag("--tls-cert", certified.file("cert"))
        .flag("--tls-key", certified.file("key"));
    let (mut tokens, secrets) = Tokens::start_as(options, "", Secrets::create)?;
    let url = format!("fonn://{}/ccache", tokens.node.http());
    let ca = certified.file("ca");
    let tls = [("ca", ca.as_str()), ("deadline", "60s")];
    let with = |token: &str| Helper::start(&url, &[&[("bearer-token", token)], &tls[..]].concat());

    let mut writer = with(&secrets.writer)?;
    let mut first = writer.connect()?;
    let long: Vec<u8> = (0..3_000_000_u32).map(|at| at as u8).collect();
    ensure!(first.get()? == Reply::NotDone);
    ensure!(first.put(0, &long)? == Reply::Done);
    ensure!(first.put(0, b"kept out")? == Reply::NotDone);
    ensure!(writer.connect()?.get()? == Reply::Value(long.clone()));
    ensure!(first.put(1, b"replaced")? == Reply::Done);
    ensure!(first.get()? == Reply::Value(b"replaced".to_vec()));
    ensure!(first.remove()? == Reply::Done);
    ensure!(first.remove()? == Reply::NotDone);
    ensure!(first.put(1, &long)? == Reply::Done);
    ensure!(first.diagnostics()?.is_empty());

    let file = TempDir::new()?;
    let file = file.path().join("token");
    fs::write(&file, format!("{}\n", secrets.reader))?;
    let file = file.to_str().context("a path")?;
    let reader = Helper::start(&url, &[&[("token-file", file)], &tls[..]].concat())?;
    let mut reader = reader.connect()?;
    ensure!(reader.get()? == Reply::Value(long));
    ensure!(reader.put(1, b"mine")? == Reply::NotDone);
    ensure!(reader.diagnostics()?[0].contains("(403)"));

    for (token, ca) in [
        (secrets.expired.as_str(), ca.as_str()),
        (&secrets.writer, ""),
    ] {
        // Without its own authority nothing knows the certificate.
        let stranger = Certified::new()?;
        let ca = match ca {
            "" => stranger.file("ca"),
            ca => ca.to_owned(),
        };
        let attributes = [
            ("bearer-token", token),
            ("ca", ca.as_str()),
            ("deadline", "60s"),
        ];
        let refused = Helper::start(&url, &attributes)?;
        let mut refused = refused.connect()?;
        ensure!(refused.get()? == Reply::NotDone);
        ensure!(refused.put(1, b"none")? == Reply::NotDone);
        ensure!(refused.diagnostics()?.len() == 1);
    }

    tokens.node.kill9()?;
    ensure!(first.get()? == Reply::NotDone);
    ensure!(first.put(1, b"nowhere")? == Reply::NotDone);
    ensure!(first.diagnostics()?[0].starts_with("no reply from "));
    tokens.node.start_again()?;
    // Two failures are too few for a pause.
    ensure!(first.put(1, b"again")? == Reply::Done);
    ensure!(first.get()? == Reply::Value(b"again".to_vec()));

    first.0.write_all(&[3])?;
    ensure!(first.take(1)? == [0]);
    ensure!(writer.daemon.wait_exit(LIMIT)?.success());
    ensure!(!writer.socket.exists());
    Ok(())
}

#[test]
fn a_helper_of_ccache_with_malformed_settings_says_so_in_each_reply() -> Result<()> {
    let helper = Helper::start("fonn://127.0.0.1:1/ccache", &[("layout", "flat")])?;
    let mut ccache = helper.connect()?;
    let Reply::Error(error) = ccache.get()? else {
        bail!("no error");
    };
    ensure!(error.starts_with("unknown attribute @layout"), "{error}");
    ensure!(ccache.diagnostics()? == [error]);
    Ok(())
}
