//! Connections of clients that have not logged in, and requests that announce more than they send.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fonn_tests::certificates::Certified;
use fonn_tests::client::{RespClient, RespReply, resp_request};
use fonn_tests::cluster::Cluster;
use fonn_tests::ctl::with_input;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::usage::{rss_bytes, rss_peak_bytes};

const MIB: u64 = 1 << 20;

const PASSWORD: &str = "correct-horse";

/// A client that waits longer for an answer does not get one.
const PATIENCE: Duration = Duration::from_secs(60);

/// Guarantee 5: resident memory for a RAM budget. A program that was not optimised is larger.
fn rss_max(budget: u64) -> u64 {
    let unoptimised = match std::env::var_os("FONN_NODE_BIN") {
        Some(_) => 0,
        None => 16 * MIB,
    };
    budget + budget * 15 / 100 + 64 * MIB + unoptimised
}

/// A node in memory with the user `ci`, which may write, and TLS.
struct Guarded {
    node: FonnNode,
    _certified: Certified,
    _dir: tempfile::TempDir,
}

impl Guarded {
    fn start(ram_budget: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let hash = with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?.stdout;
        let hash = String::from_utf8(hash)?;
        let users = dir.path().join("users.toml");
        let row = format!(
            "[[user]]\nname = 'ci'\nrole = 'read-write'\nhash = '{}'\n",
            hash.trim()
        );
        std::fs::write(&users, row)?;
        let certified = Certified::new()?;
        let mut options = NodeOptions::new()
            .in_memory()
            .flag("--users-file", &users)
            .flag("--ram-budget", ram_budget);
        for (flag, value) in certified.flags() {
            options = options.flag(flag, value);
        }
        Ok(Self {
            node: options.start()?,
            _certified: certified,
            _dir: dir,
        })
    }

    fn log_in(&self) -> Result<RespClient> {
        let mut client = self.node.resp()?;
        client.call(&[b"AUTH", b"ci", PASSWORD.as_bytes()])?.ok()?;
        Ok(client)
    }

    fn rss(&self) -> Result<u64> {
        rss_bytes(self.node.pid()?)
    }
}

fn connect(addr: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Whether the server ends a connection; all that it says before is thrown away.
fn is_ended(stream: &mut TcpStream) -> bool {
    let mut buf = [0; 4096];
    loop {
        match stream.read(&mut buf) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn what_clients_without_a_login_announce_reserves_nothing_and_evicts_nothing() -> Result<()> {
    const ENTRIES: usize = 40;
    let guarded = Guarded::start("64m")?;
    let mut ci = guarded.log_in()?;
    let value = vec![b'v'; MIB as usize];
    for number in 0..ENTRIES {
        let key = format!("key-{number}");
        ci.call(&[b"SET", key.as_bytes(), &value])?.ok()?;
    }
    let binary = [&[0x80, 1, 0, 1, 8, 0, 0, 0, 0x0a, 0, 0, 9][..], &[0; 12]].concat();
    let announced: [&[u8]; 4] = [
        b"set k 0 0 178956400\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$178956400\r\n",
        b"*1000000\r\n$3\r\nDEL\r\n",
        &binary,
    ];
    for request in announced.iter().cycle().take(40) {
        let mut client = connect(guarded.node.addr())?;
        client.write_all(request)?;
        ensure!(
            is_ended(&mut client),
            "{} is waited for",
            request.escape_ascii()
        );
    }
    // What may be waited for takes nothing of the budget either.
    let mut waiting = Vec::new();
    for _ in 0..400 {
        let mut client = connect(guarded.node.addr())?;
        client.write_all(b"*2\r\n$4\r\nAUTH\r\n$16000\r\nabc")?;
        waiting.push(client);
    }
    for number in 0..ENTRIES {
        let key = format!("key-{number}");
        let there = ci.call(&[b"EXISTS", key.as_bytes()])?.integer()?;
        ensure!(there == 1, "{key} was evicted");
    }
    ci.call(&[b"SET", b"more", &value[..512 * 1024]])?.ok()?;
    let reserved = guarded.node.metric("fonn_receiving_bytes")?;
    ensure!(reserved == Some(0.0), "{reserved:?} bytes are reserved");
    Ok(())
}

#[test]
fn a_million_arguments_without_a_login_cost_no_memory() -> Result<()> {
    let guarded = Guarded::start("64m")?;
    let before = rss_peak_bytes(guarded.node.pid()?)?;
    let request = [
        &b"*1000000\r\n$3\r\nDEL\r\n"[..],
        &b"$0\r\n\r\n".repeat(999_999),
    ]
    .concat();
    for _ in 0..8 {
        let mut client = connect(guarded.node.addr())?;
        // It is cut off in the middle.
        let _ = client.write_all(&request);
        ensure!(is_ended(&mut client), "it is taken in");
    }
    let after = rss_peak_bytes(guarded.node.pid()?)?;
    ensure!(
        after < before + 8 * MIB,
        "{} MiB more",
        (after - before) / MIB
    );
    Ok(())
}

#[test]
fn handshakes_and_connections_without_a_login_end_and_cost_little_meanwhile() -> Result<()> {
    const COUNT: usize = 1500;
    fonn_tests::process::raise_open_files(COUNT as u64 + 500)?;
    let guarded = Guarded::start("64m")?;
    // The start of a handshake message of 64 KiB.
    let endless = [
        &[0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..],
        &[b'x'; 15_000],
    ]
    .concat();
    let mut strangers = Vec::new();
    let mut highest = 0;
    for number in 0..COUNT {
        let mut client = connect(guarded.node.addr())?;
        match number % 3 {
            0 => {}
            1 => client.write_all(b"*2\r\n$4\r\nAUTH\r\n$16000\r\nabc")?,
            // It may have had to give way already.
            _ => drop(client.write_all(&endless)),
        }
        strangers.push(client);
        if number % 100 == 0 {
            highest = highest.max(guarded.rss()?);
        }
    }
    // A client that logs in gets in, also where others keep all places.
    let mut ci = guarded.log_in()?;
    ci.call(&[b"SET", b"k", b"v"])?.ok()?;
    highest = highest.max(guarded.rss()?);
    ensure!(
        highest <= rss_max(64 * MIB),
        "{} MiB resident",
        highest / MIB
    );
    for (number, client) in strangers.iter_mut().enumerate() {
        ensure!(is_ended(client), "connection {number} lives on");
    }
    ensure!(ci.command("PING")? == RespReply::Simple("PONG".to_owned()));
    Ok(())
}

#[test]
fn handshakes_where_plaintext_would_do_are_bounded_by_source_too() -> Result<()> {
    const BY_SOURCE_MAX: usize = 512;
    const COUNT: usize = BY_SOURCE_MAX + 100;
    fonn_tests::process::raise_open_files(COUNT as u64 + 500)?;
    let certified = Certified::new()?;
    let node = NodeOptions::new()
        .in_memory()
        .flag("--tls-cert", certified.file("cert"))
        .flag("--tls-key", certified.file("key"))
        .start()?;
    let mut strangers = Vec::new();
    for _ in 0..COUNT {
        let mut client = connect(node.addr())?;
        // The start of a handshake message.
        client.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc])?;
        strangers.push(client);
    }
    // Without the bound all would live until their deadline, 10 s after their beginning.
    let begun = Instant::now();
    let mut ended = 0;
    while ended < COUNT - BY_SOURCE_MAX {
        ensure!(begun.elapsed() < Duration::from_secs(5), "{ended} gave way");
        strangers.retain_mut(|client| {
            let is_ended = client.set_nonblocking(true).is_ok() && is_ended(client);
            ended += usize::from(is_ended);
            !is_ended
        });
        std::thread::sleep(Duration::from_millis(10));
    }
    ensure!(ended == COUNT - BY_SOURCE_MAX, "{ended} gave way");
    ensure!(node.resp()?.command("PING")? == RespReply::Simple("PONG".to_owned()));
    Ok(())
}

/// Each connection gives others their turn behind 128 requests, whose replies are 256 KiB here.
#[test]
fn replies_that_gather_between_the_turns_of_connections_take_little_memory() -> Result<()> {
    const COUNT: usize = 1000;
    const GETS: usize = 250;
    fonn_tests::process::raise_open_files(COUNT as u64 + 500)?;
    let node = NodeOptions::new()
        .in_memory()
        .flag("--ram-budget", "64m")
        .start()?;
    let value = [b'v'; 2048];
    node.resp()?.call(&[b"SET", b"k", &value])?.ok()?;
    let requests = resp_request(&[b"GET", b"k"]).repeat(GETS);
    let mut clients = Vec::new();
    for _ in 0..COUNT {
        clients.push(connect(node.addr())?);
    }
    for client in &mut clients {
        client.write_all(&requests)?;
        // It may have been cut off already, since it reads nothing.
        let _ = client.shutdown(Shutdown::Write);
    }
    for client in &mut clients {
        ensure!(is_ended(client), "a connection is not served");
    }
    let highest = rss_peak_bytes(node.pid()?)?;
    ensure!(
        highest <= rss_max(64 * MIB),
        "{} MiB resident",
        highest / MIB
    );
    Ok(())
}

/// Announces values and sends a little of them, at a rate that keeps the connections.
#[test]
fn a_source_that_announces_much_and_sends_little_holds_little() -> Result<()> {
    let node = NodeOptions::new()
        .in_memory()
        .flag("--ram-budget", "64m")
        .start()?;
    let mut greedy = Vec::new();
    for _ in 0..64 {
        let mut client = connect(node.addr())?;
        client.write_all(b"set k 0 0 30000000\r\nabc")?;
        greedy.push(client);
    }
    let mut other = node.resp()?;
    let value = vec![b'v'; 4 << 20];
    for round in 0..10 {
        let key = format!("key-{round}");
        other.call(&[b"SET", key.as_bytes(), &value])?.ok()?;
        let there = other.call(&[b"EXISTS", key.as_bytes()])?.integer()?;
        ensure!(there == 1, "{key} was evicted at once");
    }
    let reserved = node.metric("fonn_receiving_bytes")?.context("no figure")?;
    ensure!(
        reserved <= (64 * 130 * 1024) as f64,
        "{reserved} bytes for 64 × 3"
    );
    Ok(())
}

#[test]
fn a_set_that_is_refused_for_its_size_removes_the_old_value_through_a_router_too() -> Result<()> {
    let cluster = Cluster::form_patient(2)?;
    cluster.wait_agreed()?;
    let router = cluster.router_with(vec![("--max-value", "100k".to_owned())])?;
    let mut client = RespClient::connect(router.addr())?;
    let big = vec![b'v'; 100 * 1024 + 1];
    for (number, request) in [
        [
            format!("set key-0 0 0 {}\r\n", big.len()).as_bytes(),
            &big,
            b"\r\n",
        ]
        .concat(),
        [
            format!("ms key-1 {}\r\n", big.len()).as_bytes(),
            &big,
            b"\r\n",
        ]
        .concat(),
        resp_request(&[b"SET", b"key-2", &big]),
    ]
    .iter()
    .enumerate()
    {
        let key = format!("key-{number}");
        client.call(&[b"SET", key.as_bytes(), b"old"])?.ok()?;
        let mut writer = connect(router.addr())?;
        writer.write_all(request)?;
        let mut answer = [0; 12];
        writer.read_exact(&mut answer)?;
        let answer = answer.escape_ascii().to_string();
        ensure!(
            answer == "SERVER_ERROR" || answer.starts_with("-ERR value"),
            "{answer}"
        );
        let there = client.call(&[b"EXISTS", key.as_bytes()])?.integer()?;
        ensure!(there == 0, "{key} is read after the error");
    }
    Ok(())
}
