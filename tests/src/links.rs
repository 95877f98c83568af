//! Links between processes that a test cuts, delays and heals, each direction by itself.
//!
//! Every server of the test has a proxy in front of it, whose address is what others are told.
//! Whose a connection is, the kernel knows: the sockets of each process are listed in `/proc`. So
//! one proxy a server is enough for rules by pairs of processes. Connections of the test's own
//! clients do not go through proxies, and are never cut.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// What is under way in one direction of a connection at most: so many reads of up to 64 KiB.
const CHUNKS_MAX: usize = 256;
const CHUNK_LEN: usize = 64 << 10;

/// What becomes of what one process sends another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It does not arrive before the link is healed, as when packets are dropped and sent again.
    Hold,
    /// Connections end at once, and new ones too.
    End,
    /// It arrives so much later.
    Delay(Duration),
}

#[derive(Clone, Debug, Default)]
struct Rules {
    /// Both ends.
    links: BTreeMap<(String, String), Rule>,
    /// Names of processes.
    names: HashMap<u32, String>,
}

impl Rules {
    /// The rule for one direction between a process and a named one.
    fn of(&self, pid: Option<u32>, server: &str, is_forward: bool) -> Option<Rule> {
        let client = self.names.get(&pid?)?.clone();
        let pair = match is_forward {
            true => (client, server.to_owned()),
            false => (server.to_owned(), client),
        };
        self.links.get(&pair).copied()
    }
}

/// The links of one test; clones are the same.
#[derive(Clone, Debug)]
pub struct Links(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    rules: watch::Sender<Rules>,
    // The tasks run on it, and end with it.
    runtime: Runtime,
}

/// A proxy in front of a server that may start later.
#[derive(Clone, Debug)]
pub struct Proxy {
    address: SocketAddr,
    server: Arc<Mutex<Option<SocketAddr>>>,
}

impl Proxy {
    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells it where the server listens.
    pub fn passes_to(&self, server: SocketAddr) {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
    }
}

impl Links {
    /// Links that are all whole.
    ///
    /// # Errors
    /// When there are no threads to be had.
    pub fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("cannot start a runtime for the links")?;
        Ok(Self(Arc::new(Shared {
            rules: watch::Sender::new(Rules::default()),
            runtime,
        })))
    }

    /// A proxy on a port of its own in front of a server of the process `name`.
    ///
    /// # Errors
    /// When there is no port to be had.
    pub fn proxy(&self, name: &str) -> Result<Proxy> {
        let runtime = &self.0.runtime;
        let listener = runtime
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .context("cannot listen for a link")?;
        let proxy = Proxy {
            address: listener.local_addr()?,
            server: Arc::default(),
        };
        let (rules, at, name) = (self.0.rules.subscribe(), proxy.clone(), name.to_owned());
        runtime.spawn(async move {
            while let Ok((client, from)) = listener.accept().await {
                let server = *at.server.lock().unwrap_or_else(PoisonError::into_inner);
                let link = Link {
                    rules: rules.clone(),
                    pid: owner(from, at.address),
                    server: name.clone(),
                };
                if let Some(server) = server {
                    tokio::spawn(link.pass_on(client, server));
                }
            }
        });
        Ok(proxy)
    }

    /// Says which process is the one of that name.
    pub fn name(&self, pid: u32, name: &str) {
        self.0.rules.send_modify(|rules| {
            rules.names.retain(|_, known| known != name);
            rules.names.insert(pid, name.to_owned());
        });
    }

    /// Sets the rule for what `from` sends `to`.
    pub fn set(&self, from: &str, to: &str, rule: Rule) {
        let pair = (from.to_owned(), to.to_owned());
        self.0.rules.send_modify(|rules| {
            rules.links.insert(pair, rule);
        });
    }

    /// Sets the rule for both directions.
    pub fn set_both(&self, one: &str, other: &str, rule: Rule) {
        self.set(one, other, rule);
        self.set(other, one, rule);
    }

    /// All links are whole again.
    pub fn heal(&self) {
        self.0.rules.send_modify(|rules| rules.links.clear());
    }
}

/// One connection.
#[derive(Clone)]
struct Link {
    rules: watch::Receiver<Rules>,
    /// Whose it is, if it is one of the test's processes.
    pid: Option<u32>,
    server: String,
}

impl Link {
    fn rule(&mut self, is_forward: bool) -> Option<Rule> {
        let rules = self.rules.borrow_and_update();
        rules.of(self.pid, &self.server, is_forward)
    }

    /// Waits until what goes that way arrives.
    async fn open(&mut self, is_forward: bool) {
        while self.rule(is_forward) == Some(Rule::Hold) {
            if self.rules.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until it is to end.
    async fn end(mut self) {
        let is_over = |link: &mut Self, way| link.rule(way) == Some(Rule::End);
        while !is_over(&mut self, true) && !is_over(&mut self, false) {
            if self.rules.changed().await.is_err() {
                return;
            }
        }
    }

    /// A connection, until either side closes it or the rules end it.
    async fn pass_on(mut self, client: TcpStream, server: SocketAddr) {
        let end = self.clone().end();
        let pass = async {
            self.open(true).await;
            self.open(false).await;
            let Ok(server) = TcpStream::connect(server).await else {
                return;
            };
            // A failure of either only means that small writes wait a little.
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::join!(
                self.clone().carry(from_client, to_server, true),
                self.clone().carry(from_server, to_client, false),
            );
        };
        tokio::select! {
            () = end => {}
            () = pass => {}
        }
    }

    /// One direction, in order.
    async fn carry(self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_forward: bool) {
        let (chunks, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
        let (mut reading, mut writing) = (self.clone(), self);
        let read = async move {
            loop {
                let mut chunk = Vec::with_capacity(CHUNK_LEN);
                if !matches!(from.read_buf(&mut chunk).await, Ok(1..)) {
                    return;
                }
                let at = match reading.rule(is_forward) {
                    Some(Rule::Delay(delay)) => Instant::now() + delay,
                    _ => Instant::now(),
                };
                if chunks.send((at, chunk)).await.is_err() {
                    return;
                }
            }
        };
        let write = async move {
            while let Some((at, chunk)) = due.recv().await {
                tokio::time::sleep_until(at).await;
                writing.open(is_forward).await;
                if to.write_all(&chunk).await.is_err() {
                    return;
                }
            }
            // The end comes no sooner than the bytes before it, and the other side may still
            // answer.
            writing.open(is_forward).await;
            let _ = to.shutdown().await;
        };
        tokio::join!(read, write);
    }
}

/// The process of the test that has the socket with these ends.
fn owner(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let inode = inode(
        &fs::read_to_string("/proc/net/tcp").ok()?,
        local.port(),
        remote.port(),
    )?;
    let wanted = format!("socket:[{inode}]");
    let own = std::process::id();
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let is_child = fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| parent(&stat) == Some(own));
        let sockets = is_child.then(|| fs::read_dir(format!("/proc/{pid}/fd")));
        let sockets = sockets.and_then(Result::ok).into_iter().flatten().flatten();
        let mut targets = sockets.filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.any(|target| target.as_os_str() == wanted.as_str())
    })
}

/// The socket of these ports in the kernel's table.
fn inode(table: &str, local: u16, remote: u16) -> Option<u64> {
    let port = |text: &str| u16::from_str_radix(text.rsplit(':').next()?, 16).ok();
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let ends = (port(fields.next()?), port(fields.next()?));
        let inode = fields.nth(6)?.parse().ok()?;
        (ends == (Some(local), Some(remote)) && inode != 0).then_some(inode)
    })
}

/// The parent of a process; its name stands in parentheses and may contain anything.
fn parent(stat: &str) -> Option<u32> {
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net;
    use std::process::{Command, Stdio};

    use super::*;

    /// A process that sends what it is told, and shows what it gets: an endless echo through a
    /// proxy.
    fn remote(links: &Links) -> (std::process::Child, net::TcpStream, net::TcpStream) {
        let server = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = links.proxy("server").unwrap();
        proxy.passes_to(server.local_addr().unwrap());
        let control = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{}; exec 4<>/dev/tcp/127.0.0.1/{}; cat <&3 >&4 & cat <&4 >&3",
            proxy.address().port(),
            control.local_addr().unwrap().port(),
        );
        let child = Command::new("bash")
            .args(["-c", &script])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        links.name(child.id(), "client");
        let (control, _) = control.accept().unwrap();
        let (server, _) = server.accept().unwrap();
        for stream in [&control, &server] {
            stream
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
        }
        (child, control, server)
    }

    fn read(stream: &mut net::TcpStream) -> u8 {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn one_direction_is_held_until_it_is_healed_and_the_other_is_not() {
        let links = Links::new().unwrap();
        let (mut child, mut control, mut server) = remote(&links);
        control.write_all(b"1").unwrap();
        assert_eq!(read(&mut server), b'1');
        links.set("client", "server", Rule::Hold);
        control.write_all(b"2").unwrap();
        server.write_all(b"a").unwrap();
        assert_eq!(read(&mut control), b'a');
        server
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        assert!(server.read(&mut [0]).is_err(), "it came through a cut link");
        links.heal();
        server
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        assert_eq!(read(&mut server), b'2');
        links.set("server", "client", Rule::End);
        assert!(matches!(server.read(&mut [0]), Ok(0) | Err(_)));
        drop(control);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_owner_of_a_socket_is_found_by_its_ports() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 777 1 0 20 4 30 10 -1\n   \
            1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 778 1 0 20 4 30 10 -1\n";
        assert_eq!(inode(table, 0xc350, 0x1f90), Some(778));
        assert_eq!(inode(table, 0xc350, 0x1f91), None);
        assert_eq!(parent("12 (a) b) S 7 12 12 0"), Some(7));
    }
}
