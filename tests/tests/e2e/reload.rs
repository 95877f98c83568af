//! Reloads under load: certificates, users and budgets change, and no connection of a remaining
//! user notices.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use fonn_tests::certificates::Certified;
use fonn_tests::ctl::with_input;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::free_address;
use fonn_tests::router::FonnRouter;

const PASSWORD: &str = "correct-horse";
const CLIENTS: usize = 8;
const RELOADS: usize = 5;
const LIMIT: Duration = Duration::from_secs(60);

/// Certificate, users and budgets in files that change.
struct Files {
    dir: TempDir,
    hash: String,
}

impl Files {
    fn new() -> Result<Self> {
        let hash = with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?.stdout;
        Ok(Self {
            dir: tempfile::tempdir()?,
            hash: String::from_utf8(hash)?.trim().to_owned(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the state of that number: another certificate, another user beside `ci`, another
    /// budget.
    fn write(&self, number: usize) -> Result<Certified> {
        let certified = Certified::new()?;
        for name in ["cert", "key"] {
            self.replace(name, fs::read_to_string(certified.file(name))?)?;
        }
        let row = |name: &str| {
            let hash = &self.hash;
            format!(
                "[[user]]\nname = '{name}'\nrole = 'read-write'\nnamespace = 'main'\nhash = '{hash}'\n"
            )
        };
        let users = [row("ci"), row(&format!("guest{number}"))].concat();
        self.replace("users", users)?;
        let (ram, disk) = (64 + 16 * number, 1024 + 64 * number);
        let budgets = format!("ram_budget = \"{ram}m\"\ndisk_budget = \"{disk}m\"\n");
        self.replace("budgets", budgets)?;
        Ok(certified)
    }

    /// No process ever reads half a file: they are looked at without a signal, too.
    fn replace(&self, name: &str, content: String) -> Result<()> {
        let new = self.path(&format!("{name}.new"));
        fs::write(&new, content)?;
        Ok(fs::rename(new, self.path(name))?)
    }

    fn flags(&self) -> Vec<(&'static str, String)> {
        let path = |name: &str| self.path(name).display().to_string();
        vec![
            ("--users-file", path("users")),
            ("--tls-cert", path("cert")),
            ("--tls-key", path("key")),
        ]
    }
}

type Encrypted = StreamOwned<ClientConnection, TcpStream>;

fn connect(addr: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// A client that trusts one authority alone.
fn encrypt(stream: TcpStream, authority: &Certified) -> Result<Encrypted> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file("ca"))?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1")?;
    let session = ClientConnection::new(Arc::new(config), name)?;
    Ok(StreamOwned::new(session, stream))
}

fn exchange(stream: &mut impl ReadWrite, request: &str, reply: &str) -> Result<()> {
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut got = vec![0; reply.len()];
    stream
        .read_exact(&mut got)
        .with_context(|| format!("instead of {reply:?}"))?;
    let got = String::from_utf8_lossy(&got);
    ensure!(got == reply, "{got:?} instead of {reply:?}");
    Ok(())
}

trait ReadWrite: Read + Write + Send {}
impl<T: Read + Write + Send> ReadWrite for T {}

fn log_in(stream: &mut impl ReadWrite, user: &str) -> Result<()> {
    let login = format!("AUTH {user} {PASSWORD}\r\n");
    exchange(stream, &login, "+OK\r\n")
}

/// Writes and reads over one connection until it is told to stop.
fn work(stream: &mut impl ReadWrite, name: usize, load: &Load) -> Result<()> {
    let is_resp = name.is_multiple_of(2);
    match is_resp {
        true => log_in(stream, "ci")?,
        false => {
            let login = format!("ci {PASSWORD}");
            let request = format!("set auth 0 0 {}\r\n{login}\r\n", login.len());
            exchange(stream, &request, "STORED\r\n")?;
        }
    }
    let mut round = 0_u64;
    while !load.is_over.load(Ordering::Relaxed) {
        let value = format!("{round:08}").repeat(100);
        let len = value.len();
        match is_resp {
            true => {
                exchange(stream, &format!("SET k{name} {value}\r\n"), "+OK\r\n")?;
                let reply = format!("${len}\r\n{value}\r\n");
                exchange(stream, &format!("GET k{name}\r\n"), &reply)?;
            }
            false => {
                let request = format!("set k{name} 0 0 {len}\r\n{value}\r\n");
                exchange(stream, &request, "STORED\r\n")?;
                let reply = format!("VALUE k{name} 0 {len}\r\n{value}\r\nEND\r\n");
                exchange(stream, &format!("get k{name}\r\n"), &reply)?;
            }
        }
        round += 1;
        load.rounds[name].store(round, Ordering::Relaxed);
    }
    Ok(())
}

#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    rounds: [AtomicU64; CLIENTS],
}

impl Load {
    /// Waits until each client has got so much further.
    fn go_on(&self, rounds: u64) -> Result<()> {
        let seen = |it: &AtomicU64| it.load(Ordering::Relaxed);
        let before: Vec<u64> = self.rounds.iter().map(seen).collect();
        let begun = Instant::now();
        let is_behind = |(now, before): (&AtomicU64, &u64)| seen(now) < before + rounds;
        while self.rounds.iter().zip(&before).any(is_behind) {
            ensure!(begun.elapsed() < LIMIT, "stuck: {:?}", self.rounds);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// Ends the load also when the test fails.
struct Ending<'l>(&'l Load);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Whether a new connection gets a certificate of this authority.
fn shows(addr: SocketAddr, authority: &Certified) -> Result<bool> {
    let mut stream = encrypt(connect(addr)?, authority)?;
    Ok(log_in(&mut stream, "ci").is_ok())
}

/// Loads `addr` with clients while what is in the files changes.
fn reload_under_load(
    addr: SocketAddr,
    files: &Files,
    first: &Certified,
    reload: impl Fn() -> Result<()>,
) -> Result<()> {
    let load = Load::default();
    std::thread::scope(|scope| {
        let ending = Ending(&load);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|name| {
                let load = &load;
                scope.spawn(move || match name < CLIENTS / 2 {
                    true => work(&mut connect(addr)?, name, load),
                    false => work(&mut encrypt(connect(addr)?, first)?, name, load),
                })
            })
            .collect();
        load.go_on(10)?;
        let mut guest = connect(addr)?;
        log_in(&mut guest, "guest0")?;
        let mut current = None;
        for number in 1..=RELOADS {
            let next = files.write(number)?;
            reload()?;
            let begun = Instant::now();
            while !shows(addr, &next)? {
                ensure!(begun.elapsed() < LIMIT, "reload {number} did not come");
            }
            let before = current.as_ref().unwrap_or(first);
            ensure!(!shows(addr, before)?, "the certificate of before");
            load.go_on(10)?;
            let mut guest = connect(addr)?;
            log_in(&mut guest, &format!("guest{number}"))?;
            current = Some(next);
        }
        // A user that is gone from the file is cut off: the users were read anew.
        let mut rest = Vec::new();
        let _ = guest.read_to_end(&mut rest);
        ensure!(rest.is_empty(), "{rest:?}");
        drop(ending);
        for client in clients {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok(())
    })
}

fn signal(pid: u32) -> Result<()> {
    let pid = i32::try_from(pid)?;
    let pid = rustix::process::Pid::from_raw(pid).context("no process")?;
    Ok(rustix::process::kill_process(
        pid,
        rustix::process::Signal::HUP,
    )?)
}

#[test]
fn no_connection_of_a_node_is_dropped_by_reloads_under_load() -> Result<()> {
    let files = Files::new()?;
    let first = files.write(0)?;
    let mut options = NodeOptions::new()
        .omit("--ram-budget")
        .omit("--disk-budget")
        .flag("--config", files.path("budgets"));
    for (name, value) in files.flags() {
        options = options.flag(name, value);
    }
    let node = options.start()?;
    let pid = node.pid()?;
    reload_under_load(node.addr(), &files, &first, || signal(pid))?;
    let budget = |node: &FonnNode, name: &str| node.metric(name);
    let found = [
        budget(&node, "fonn_ram_budget_bytes")?,
        budget(&node, "fonn_disk_budget_bytes")?,
    ];
    let mib = |count: usize| Some((count << 20) as f64);
    let expected = [mib(64 + 16 * RELOADS), mib(1024 + 64 * RELOADS)];
    ensure!(found == expected, "{found:?}");
    let ended = node.metric("fonn_connections_stalled_total")?;
    ensure!(ended == Some(0.0), "{ended:?}");
    Ok(())
}

#[test]
fn no_connection_of_a_router_is_dropped_by_reloads_under_load() -> Result<()> {
    let files = Files::new()?;
    let first = files.write(0)?;
    let listen = free_address()?;
    let _node = NodeOptions::new()
        .flag("--node-id", "a")
        .flag("--cluster-listen", listen.to_string())
        .flag("--bootstrap", "true")
        .start()?;
    // The router asks for the login.
    let router = FonnRouter::start_with(&[listen], files.flags())?;
    let pid = router.pid()?;
    reload_under_load(router.addr(), &files, &first, || signal(pid))
}
