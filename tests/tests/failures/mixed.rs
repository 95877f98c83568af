//! Members and routers of two minor versions.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use fonn_node::cli::Release;
use fonn_proto::Out;
use fonn_proto::peer::hello::{self, Hello};
use fonn_proto::peer::{Envelope, FrameError, Kind, Refusal, Reply, Request, Step, next};
use fonn_tests::client::Dialect;
use fonn_tests::cluster::Cluster;
use fonn_tests::promised::is_strict;
use fonn_tests::release;

use fonn_tests::traffic::{Load, still, value};

/// Entries that are there before, and stay as they are.
const STILL: u64 = 2000;
const CLIENTS: u64 = 4;
/// Operations that go on at least, in every state of the upgrade.
const OPERATIONS: u64 = 300;
/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

/// The map, as member `at` knows it.
fn map(cluster: &Cluster, at: usize) -> Result<Value> {
    Ok(serde_json::from_str(&cluster.ctl(at, &["map", "--json"])?)?)
}

/// The versions of the members, as member `at` knows them.
fn versions(cluster: &Cluster, at: usize) -> Result<Vec<String>> {
    let map = map(cluster, at)?;
    let members = map["members"].as_array().into_iter().flatten();
    Ok(members
        .map(|it| {
            it["member"]["version"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
        .collect())
}

/// Speaks to a member of `cluster` as one of a later version does: it says so, asks what this
/// version does not know, and goes on with what it does.
fn ask_as_a_newer_one(member: SocketAddr, cluster: &str) -> Result<()> {
    let mut stream = TcpStream::connect(member)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let ours = Hello {
        version: u16::MAX,
        ..Hello::new("newer", cluster, 1 << 20)
    };
    let mut out = Out::new();
    ours.encode(Ok(()), &mut out);
    for id in 1..=3 {
        let envelope = Envelope {
            id,
            ..Envelope::default()
        };
        let mut frame = Out::new();
        Request::Ping.encode(envelope, 1 << 20, None, &mut frame)?;
        let mut frame = frame.to_vec();
        if id != 3 {
            // An opcode, or a flag, that no version has yet.
            let (at, byte) = if id == 1 { (1, 0x7e) } else { (3, 0x80) };
            *frame.get_mut(at).context("a head")? = byte;
            let Err(FrameError::Checksum { expected, .. }) = next(Kind::Request, &frame, 1 << 20)
            else {
                bail!("the checksum covers it");
            };
            let sum = frame.get_mut(4..8).context("a head")?;
            sum.copy_from_slice(&expected.to_le_bytes());
        }
        out.put(&frame);
    }
    stream.write_all(&out.to_vec())?;
    let mut input = Vec::new();
    let mut more = |input: &mut Vec<u8>| -> Result<()> {
        let mut chunk = [0; 4096];
        let count = stream.read(&mut chunk)?;
        ensure!(count > 0, "the connection was closed");
        input.extend_from_slice(chunk.get(..count).unwrap_or_default());
        Ok(())
    };
    loop {
        match Hello::decode(&input)? {
            hello::Step::Need { .. } => more(&mut input)?,
            hello::Step::Hello { verdict, len, .. } => {
                verdict?;
                input.drain(..len);
                break;
            }
        }
    }
    let mut answers = 0;
    while answers < 3 {
        let len = match next(Kind::Reply, &input, 1 << 20)? {
            Step::Frame { head, body, len } => {
                let expected = match head.envelope.id {
                    3 => Reply::Pong,
                    _ => Reply::Refused(Refusal::Unsupported),
                };
                ensure!(Reply::decode(&head, body, None)? == expected, "{head:?}");
                len
            }
            _ => 0,
        };
        match len {
            0 => more(&mut input)?,
            len => {
                input.drain(..len);
                answers += 1;
            }
        }
    }
    Ok(())
}

/// One member after the other becomes newer; one of them goes back, and forth again.
fn upgrade(cluster: &mut Cluster, load: &Load, newer: &Release) -> Result<()> {
    let older = Release::this();
    load.go_on(OPERATIONS)?;
    for (index, release) in [(0, newer), (0, &older), (0, newer), (1, newer), (2, newer)] {
        cluster.restart_as(index, release)?;
        // A member whose short absence no member noticed says its version a moment later.
        let begun = Instant::now();
        for at in 0..3 {
            while versions(cluster, at)?.get(index) != Some(&release.version) {
                let versions = versions(cluster, at)?;
                ensure!(begun.elapsed() < LIMIT, "{versions:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let map = map(cluster, 0)?;
        let id = map["status"]["cluster"].as_str().unwrap_or_default();
        for node in &cluster.nodes {
            ask_as_a_newer_one(node.addr(), id)?;
        }
        load.go_on(OPERATIONS)?;
    }
    Ok(())
}

#[test]
fn members_are_upgraded_one_by_one_under_load_unnoticed() -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    cluster.ctl(0, &["replicas", "2"])?;
    cluster.wait_agreed()?;
    let newer = release::next();
    let routers = [cluster.router()?, cluster.router_as(&newer)?];
    let mut client = Dialect::Binary.connect(routers[0].addr())?;
    let load = Load::over(STILL, &mut *client)?;
    let addresses = routers.each_ref().map(|it| it.addr());
    load.beside(CLIENTS, &addresses, || upgrade(&mut cluster, &load, &newer))?;
    let (hits, misses) = (load.hits.into_inner(), load.misses.into_inner());
    let refused = load.refused.into_inner();
    eprintln!("{hits} hits and {misses} misses of what was stored, {refused} refused writes");
    ensure!(hits > 1000, "{hits} hits");
    // A machine that stands still for seconds is noticed, whatever the release.
    let (misses_max, refused_max) = match is_strict() {
        true => (hits / 1000, 0),
        false => (hits / 100, hits / 100),
    };
    ensure!(misses <= misses_max, "{misses} misses beside {hits} hits");
    ensure!(refused <= refused_max, "{refused} writes were refused");
    for number in 0..STILL {
        let key = still(number);
        ensure!(client.get(&key)? == Some(value(&key, 1)), "{key}");
    }
    Ok(())
}
