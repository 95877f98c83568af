//! Many clients, slow clients, clients that never read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use fonn_tests::client::{Cache, Dialect, binary_request, opcode, resp_request};
use fonn_tests::load::{self, LoadOptions, Protocol, Sizes, Target};
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::raise_open_files;
use fonn_tests::usage::rss_bytes;
use fonn_tests::values::{Content, ValuePool};

const MIB: u64 = 1 << 20;
/// No client waits so long for others, even on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Guarantee 5: resident memory for a RAM budget. A program that was not optimised is larger.
fn rss_max(budget: u64) -> u64 {
    let unoptimised = match std::env::var_os("FONN_NODE_BIN") {
        Some(_) => 0,
        None => 16 * MIB,
    };
    budget + budget * 15 / 100 + 64 * MIB + unoptimised
}

fn drive(node: &FonnNode, protocol: Protocol, connections: usize) -> Result<load::Report> {
    let mut options = LoadOptions::new(Target::Tcp(node.addr()), protocol);
    options.connections = NonZeroUsize::new(connections).context("no connections")?;
    options.value_size = Sizes {
        min: 100,
        max: 4096,
    };
    options.keys = 2000;
    options.get_ratio = 0.8;
    options.operations = Some(40_000);
    let report = load::run(&options)?;
    ensure!(
        report.is_clean() && report.unexpected_misses == 0,
        "{report}"
    );
    Ok(report)
}

/// Nothing is held for it but a little buffer, so there is no hurry.
#[test]
fn a_client_that_sends_a_byte_a_second_is_answered_when_it_has_asked() -> Result<()> {
    // Longer than a client may stop, and longer than a request may take that memory is reserved
    // for.
    const SECONDS: usize = 75;
    let node = FonnNode::start()?;
    let key = |rest: usize| "k".repeat(SECONDS - rest);
    let requests: [(Vec<u8>, &[u8]); 4] = [
        (format!("get {}\r\n", key(6)).into_bytes(), b"END\r\n"),
        (format!("mg {} v\r\n", key(7)).into_bytes(), b"EN\r\n"),
        (resp_request(&[b"GET", key(20).as_bytes()]), b"$-1\r\n"),
        (
            binary_request(opcode::GETK, key(24).as_bytes(), &[], &[], 0, 1),
            b"\x81\x0c",
        ),
    ];
    thread::scope(|scope| {
        let clients: Vec<_> = requests
            .iter()
            .map(|(request, reply)| {
                let node = &node;
                scope.spawn(move || -> Result<()> {
                    ensure!(request.len() >= SECONDS, "{} bytes", request.len());
                    let mut stream = TcpStream::connect(node.addr())?;
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
                    for byte in request {
                        stream.write_all(&[*byte])?;
                        thread::sleep(Duration::from_secs(1));
                    }
                    let mut found = vec![0; reply.len()];
                    stream.read_exact(&mut found)?;
                    let text = String::from_utf8_lossy(request);
                    ensure!(found == *reply, "{text}: {}", found.escape_ascii());
                    Ok(())
                })
            })
            .collect();
        for client in clients {
            client
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let stalled = node.metric("fonn_connections_stalled_total")?;
    ensure!(stalled == Some(0.0), "{stalled:?}");
    Ok(())
}

#[test]
fn ten_thousand_idle_connections_leave_room_for_five_hundred_active_ones() -> Result<()> {
    raise_open_files(11_000)?;
    let node = NodeOptions::new().flag("--ram-budget", "64m").start()?;
    let mut idle = Vec::with_capacity(10_000);
    for number in 0..10_000 {
        let stream =
            TcpStream::connect(node.addr()).with_context(|| format!("connection {number}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        idle.push(stream);
    }
    // Half of them have spoken, and so have all their state.
    for stream in idle.iter_mut().step_by(2) {
        stream.write_all(b"mn\r\n")?;
    }
    let mut reply = [0; 4];
    for stream in idle.iter_mut().step_by(2) {
        stream.read_exact(&mut reply)?;
        assert_eq!(&reply, b"MN\r\n");
    }
    for protocol in [Protocol::Text, Protocol::Binary, Protocol::Resp] {
        drive(&node, protocol, 500)?;
    }
    let rss = rss_bytes(node.pid()?)?;
    assert!(
        rss <= rss_max(64 * MIB),
        "10,500 connections: {} MiB resident",
        rss / MIB
    );
    for (number, stream) in idle.iter_mut().enumerate() {
        stream.write_all(b"mn\r\n")?;
        stream
            .read_exact(&mut reply)
            .with_context(|| format!("idle connection {number}"))?;
        assert_eq!(&reply, b"MN\r\n");
    }
    Ok(())
}

/// Clients that work beside what a test does.
#[derive(Default)]
struct Others {
    is_over: AtomicBool,
    /// How often each of them had all its answers.
    rounds: AtomicU64,
}

impl Others {
    /// Waits until they have been answered what they asked since. The client that they would wait
    /// for does nothing meanwhile, and is cut off later than that.
    fn go_on(&self) -> Result<()> {
        let (begun, before) = (Instant::now(), self.rounds.load(Ordering::Acquire));
        while self.rounds.load(Ordering::Acquire) < before + 2 {
            let waited = begun.elapsed();
            ensure!(waited < WAIT_MAX, "other clients wait for {waited:?}");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Runs `body` while other clients work.
fn while_others_work(node: &FonnNode, body: impl FnOnce(&Others) -> Result<()>) -> Result<()> {
    let others = Others::default();
    thread::scope(|scope| {
        let worker = scope.spawn(|| -> Result<()> {
            let mut clients = Vec::new();
            for dialect in Dialect::ALL {
                clients.push(dialect.connect(node.addr())?);
            }
            while !others.is_over.load(Ordering::Acquire) {
                for (number, client) in clients.iter_mut().enumerate() {
                    let key = format!("worker-{number}");
                    client.set(&key, b"value", None)?;
                    ensure!(client.get(&key)?.as_deref() == Some(&b"value"[..]));
                }
                others.rounds.fetch_add(1, Ordering::Release);
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        let outcome = body(&others);
        others.is_over.store(true, Ordering::Release);
        let worked = worker.join().expect("the worker does not panic");
        worked.and(outcome)
    })
}

#[test]
fn a_client_that_never_reads_costs_bounded_memory_and_no_other_waits() -> Result<()> {
    const VALUES: u64 = 300;
    let node = NodeOptions::new().flag("--ram-budget", "64m").start()?;
    let pool = ValuePool::new(Content::Random, 1 << 20);
    let mut writer = node.binary()?;
    for number in 0..VALUES {
        writer.set(
            &format!("large-{number}"),
            &pool.value(number, 1 << 20).to_vec(),
            None,
        )?;
    }
    while_others_work(&node, |others| {
        // Far more than the sockets hold, from far more than the RAM budget holds.
        let mut readers = Vec::new();
        for protocol in [Protocol::Text, Protocol::Binary, Protocol::Resp] {
            let mut stream = TcpStream::connect(node.addr())?;
            stream.set_nonblocking(true)?;
            for number in 0..VALUES {
                let key = format!("large-{number}");
                let request = match protocol {
                    Protocol::Text => format!("get {key}\r\n").into_bytes(),
                    Protocol::Resp => fonn_tests::client::resp_request(&[b"GET", key.as_bytes()]),
                    Protocol::Binary => {
                        fonn_tests::client::binary_request(0, key.as_bytes(), &[], &[], 0, 0)
                    }
                };
                if stream.write(&request).is_err() {
                    break;
                }
            }
            readers.push(stream);
        }
        let watched = Instant::now();
        while watched.elapsed() < Duration::from_secs(15) {
            let rss = rss_bytes(node.pid()?)?;
            ensure!(rss <= rss_max(64 * MIB), "{} MiB resident", rss / MIB);
            others.go_on()?;
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    })
}

#[test]
fn a_client_that_sends_a_byte_at_a_time_for_seconds_is_served_and_no_other_waits() -> Result<()> {
    let node = NodeOptions::new().flag("--threads", "1").start()?;
    while_others_work(&node, |others| {
        let request = b"set slow 0 0 40\r\n0123456789012345678901234567890123456789\r\n";
        let mut stream = TcpStream::connect(node.addr())?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        for byte in request {
            stream.write_all(&[*byte])?;
            thread::sleep(Duration::from_millis(200));
            others.go_on()?;
        }
        let mut reply = [0; 8];
        stream.read_exact(&mut reply)?;
        ensure!(&reply == b"STORED\r\n");
        Ok(())
    })?;
    assert_eq!(node.text()?.items("get slow")?[0].value.len(), 40);
    Ok(())
}

/// One client stops inside a request, one never reads; both are cut off, an idle one is not.
#[test]
fn stalled_clients_are_cut_off_and_idle_ones_are_not() -> Result<()> {
    let node = FonnNode::start()?;
    let mut writer = node.binary()?;
    writer.set("large", &vec![1; 30 << 20], None)?;
    let mut idle = node.text()?;
    assert_eq!(idle.command("mn")?, "MN");
    let mut half = node.text()?;
    half.send(b"set k 0 0 100\r\nonly so much")?;
    let mut deaf = node.text()?;
    deaf.send(b"get large\r\n")?;
    let stalled = || -> Result<String> {
        let stats = node.text()?.stats("stats")?;
        let found = stats
            .into_iter()
            .find(|(name, _)| name == "stalled_connections");
        Ok(found.context("stats has no stalled_connections")?.1)
    };
    let started = Instant::now();
    while stalled()? != "2" {
        ensure!(
            started.elapsed() < Duration::from_secs(90),
            "stalled: {}",
            stalled()?
        );
        thread::sleep(Duration::from_millis(200));
    }
    assert!(half.at_end()?);
    assert_eq!(idle.command("mn")?, "MN", "an idle connection lives");
    assert_eq!(node.text()?.items("get k")?, vec![]);
    Ok(())
}
