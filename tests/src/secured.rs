//! A cluster on addresses that others reach: users, and TLS between all parts.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::certificates::Certified;
use crate::client::TextClient;
use crate::ctl::with_input;
use crate::node::{FonnNode, NodeOptions, ctl_program};
use crate::process::free_address;
use crate::router::FonnRouter;

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

/// That of all users of the file.
pub const PASSWORD: &str = "correct-horse";

/// Three members `a`, `b`, `c`, and a router. The users file of all has `ci` (read-write) and `dev`
/// (read) in `main`, `other` in a namespace of that name, and `root`, an admin.
#[derive(Debug)]
pub struct Secured {
    /// The members.
    pub nodes: Vec<FonnNode>,
    /// The router.
    pub router: FonnRouter,
    listens: Vec<SocketAddr>,
    flags: Vec<(&'static str, String)>,
    certified: Certified,
    _dir: tempfile::TempDir,
}

impl Secured {
    /// Starts all, and waits until all members are active.
    ///
    /// # Errors
    /// When one does not start, or they do not find together within a minute.
    pub fn start() -> Result<Self> {
        Self::start_with_readers(0)
    }

    /// The same, with so many more users in the file, which may read in `main`.
    ///
    /// # Errors
    /// As [`Secured::start`].
    pub fn start_with_readers(count: usize) -> Result<Self> {
        Self::start_of(count, "")
    }

    /// The same, with these `[[token]]` entries in the file.
    ///
    /// # Errors
    /// As [`Secured::start`].
    pub fn start_with_tokens(entries: &str) -> Result<Self> {
        Self::start_of(0, entries)
    }

    fn start_of(count: usize, entries: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let hash = with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?.stdout;
        let hash = String::from_utf8(hash)?;
        let row = |name: &str, role: &str, namespace: &str| {
            let hash = hash.trim();
            format!(
                "[[user]]\nname = '{name}'\nrole = '{role}'\nnamespace = '{namespace}'\nhash = '{hash}'\n"
            )
        };
        let mut rows = vec![
            row("ci", "read-write", "main"),
            row("dev", "read", "main"),
            row("other", "read-write", "other"),
            row("root", "admin", "default"),
        ];
        // Names of the greatest length.
        rows.extend((0..count).map(|number| row(&format!("{number:064}"), "read", "main")));
        rows.push(entries.to_owned());
        let users = dir.path().join("users.toml");
        std::fs::write(&users, rows.concat())?;
        let certified = Certified::new()?;
        let mut flags = certified.flags().to_vec();
        flags.push(("--users-file", users.display().to_string()));
        let (mut nodes, mut listens) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            nodes.push(member(nodes.len(), &mut listens, &flags)?);
        }
        let router = FonnRouter::start_with(&listens[1..], flags.clone())?;
        let secured = Self {
            nodes,
            router,
            listens,
            flags,
            certified,
            _dir: dir,
        };
        secured.wait_until_active()?;
        Ok(secured)
    }

    /// Starts one more member, and waits until all are active.
    ///
    /// # Errors
    /// As [`Secured::start`].
    pub fn add(&mut self) -> Result<()> {
        let node = member(self.nodes.len(), &mut self.listens, &self.flags)?;
        self.nodes.push(node);
        self.wait_until_active()
    }

    /// One more router, which asks first at `seed`: a member, or what passes on to one.
    ///
    /// # Errors
    /// As [`FonnRouter::start`].
    pub fn router_by(&self, seed: SocketAddr) -> Result<FonnRouter> {
        FonnRouter::start_with(&[seed], self.flags.clone())
    }

    /// One more router, which has an HTTP port.
    ///
    /// # Errors
    /// As [`FonnRouter::start`].
    pub fn router_with_http(&self, http: SocketAddr) -> Result<FonnRouter> {
        let mut flags = self.flags.clone();
        flags.push(("--http-listen", http.to_string()));
        FonnRouter::start_with(&self.listens, flags)
    }

    /// The file of the authority that has signed the certificate of all parts.
    #[must_use]
    pub fn ca(&self) -> String {
        self.certified.file("ca")
    }

    /// Where the members listen for each other and for routers.
    #[must_use]
    pub fn listens(&self) -> &[SocketAddr] {
        &self.listens
    }

    /// Client ports of the router and of all members.
    pub fn doors(&self) -> impl Iterator<Item = SocketAddr> {
        let nodes = self.nodes.iter().map(FonnNode::addr);
        [self.router.addr()].into_iter().chain(nodes)
    }

    /// Waits until all members are active and own slots. Before that a member may ask to try again.
    ///
    /// # Errors
    /// If they do not within a minute.
    pub fn wait_until_active(&self) -> Result<()> {
        let begun = Instant::now();
        for node in &self.nodes {
            loop {
                let (_, map) = ctl(node.admin(), Some(("root", PASSWORD)), &["map", "--json"])?;
                let found: Value = serde_json::from_str(&map).unwrap_or_default();
                let members = found["members"].as_array().cloned().unwrap_or_default();
                let owners = members.iter().filter(|it| {
                    let owned = it["slots_first"].as_u64().unwrap_or_default();
                    it["member"]["state"] == "active" && owned > 0
                });
                if owners.count() == self.nodes.len() {
                    break;
                }
                ensure!(begun.elapsed() < LIMIT, "they do not own slots: {map}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

fn member(
    number: usize,
    listens: &mut Vec<SocketAddr>,
    flags: &[(&'static str, String)],
) -> Result<FonnNode> {
    let listen = free_address()?;
    let mut options = NodeOptions::new()
        .flag("--node-id", crate::cluster::name(number))
        // Every client may connect, without --insecure.
        .flag("--cluster-listen", format!("0.0.0.0:{}", listen.port()))
        .flag("--advertise", listen.to_string())
        .flag("--ram-budget", "32m")
        .flag("--disk-budget", "256m");
    for (flag, value) in flags {
        options = options.flag(flag, value);
    }
    options = options.patient();
    options = match listens.first() {
        None => options.flag("--bootstrap", "true"),
        Some(first) => options.flag("--join", first.to_string()),
    };
    listens.push(listen);
    options.start()
}

/// A connection of a user of the file.
///
/// # Errors
/// When it is not let in.
pub fn log_in(address: SocketAddr, user: &str) -> Result<TextClient> {
    let mut client = TextClient::connect(address)?;
    let login = format!("{user} {PASSWORD}");
    let answer = client.store(&format!("set auth 0 0 {}", login.len()), login.as_bytes())?;
    ensure!(answer == "STORED", "{user}: {answer}");
    Ok(client)
}

/// Exit code, and what `fonnctl` says.
///
/// # Errors
/// When it cannot be run.
pub fn ctl(
    admin: SocketAddr,
    login: Option<(&str, &str)>,
    arguments: &[&str],
) -> Result<(Option<i32>, String)> {
    ctl_with(admin, login, &[], arguments)
}

/// The same, with further variables in the environment.
///
/// # Errors
/// As [`ctl`].
pub fn ctl_with(
    admin: SocketAddr,
    login: Option<(&str, &str)>,
    environment: &[(&str, &str)],
    arguments: &[&str],
) -> Result<(Option<i32>, String)> {
    let mut command = Command::new(ctl_program()?);
    command
        .args(arguments)
        .env("FONN_ADMIN", admin.to_string())
        .envs(environment.iter().copied())
        .stdin(Stdio::null());
    if let Some((user, password)) = login {
        command
            .env("FONN_USER", user)
            .env("FONN_PASSWORD", password);
    }
    let output = command.output().context("running fonnctl")?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8(text)?))
}
