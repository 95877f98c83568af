//! A node that has no file descriptor left for another connection.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fonn_tests::client::RespClient;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::usage::processor_time;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

/// How long the node is watched.
const WATCHED: Duration = Duration::from_secs(3);

/// What the ports say that cannot accept.
const WARNINGS: [&str; 3] = [
    "cannot accept connections",
    "accepting a connection on the HTTP port",
    "accepting a connection on the admin port",
];

/// Lets the node have so many descriptors; returns how many it might have before.
fn limit_descriptors(node: &FonnNode, count: Option<u64>) -> Result<Option<u64>> {
    let pid = i32::try_from(node.pid()?).ok().and_then(Pid::from_raw);
    let pid = pid.context("no process has this number")?;
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: count,
        maximum,
    };
    Ok(prlimit(Some(pid), Resource::Nofile, limit)?.current)
}

fn get(client: &mut RespClient) -> Result<()> {
    let got = client.call(&[b"GET", b"key"])?.bulk()?;
    ensure!(got.as_deref() == Some(b"value"), "{got:?}");
    Ok(())
}

#[test]
fn a_node_without_descriptors_serves_its_connections_and_waits_for_new_ones() -> Result<()> {
    let mut node = NodeOptions::new().with_http().start()?;
    let mut client = node.resp()?;
    client.call(&[b"SET", b"key", b"value"])?.ok()?;
    let open = std::fs::read_dir(format!("/proc/{}/fd", node.pid()?))?.count();
    let before = limit_descriptors(&node, Some(open as u64 + 4))?;
    let mut held = Vec::new();
    for port in [node.addr(), node.http(), node.admin()] {
        for _ in 0..16 {
            held.push(TcpStream::connect(port)?);
        }
    }
    let log = node.log()?;
    let lines = |what: &str| {
        let lines = log.lines().into_iter();
        lines.filter(|line| line.contains(what)).count()
    };
    let are_full = || WARNINGS.iter().all(|what| lines(what) > 0);
    node.daemon()?
        .wait_until("a warning of each port", LIMIT, are_full)?;
    let (begun, used) = (Instant::now(), processor_time(node.pid()?)?);
    while begun.elapsed() < WATCHED {
        get(&mut client)?;
        thread::sleep(Duration::from_millis(10));
    }
    let used = processor_time(node.pid()?)? - used;
    println!("without descriptors: {used:?} of {:?}", begun.elapsed());
    ensure!(
        used < begun.elapsed() / 2,
        "{used:?} of {:?}",
        begun.elapsed()
    );
    for what in WARNINGS {
        // Of each thread that accepts, one in ten seconds.
        let lines_max = 2 * (1 + begun.elapsed().as_secs() as usize / 10 + 1);
        ensure!(lines(what) <= lines_max, "{what}: {} lines", lines(what));
    }
    limit_descriptors(&node, before)?;
    get(&mut node.resp()?)?;
    ensure!(node.http_get("/readyz")?.status == 200);
    Ok(())
}
