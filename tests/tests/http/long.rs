//! Values that are longer than `--max-value`.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use fonn_tests::client::{Cache as _, HttpClient, RespClient, TextClient};
use fonn_tests::cluster::Cluster;
use fonn_tests::component::program;
use fonn_tests::node::NodeOptions;
use fonn_tests::process::free_address;
use fonn_tests::usage::rss_bytes;
use fonn_tests::values::{Content, ValuePool};

use super::bazel::Workspace;
use super::documented::documented;

/// Length of the values.
const LEN: usize = 6 << 20;

/// `--http-deadline`, and what a busy machine takes besides.
const READ_MAX: Duration = Duration::from_secs(12);

fn options() -> NodeOptions {
    let options = NodeOptions::new().with_http();
    options.flag("--max-value", "1m")
}

/// A value that has no chunk of another one.
fn value(seed: u64) -> Vec<u8> {
    let pool = ValuePool::new(Content::Random, LEN);
    let mut value = pool.value(0, LEN).to_vec();
    for step in value.chunks_mut(64 << 10) {
        step[0] = seed as u8;
    }
    value
}

#[test]
fn a_long_value_outlives_a_crash_and_other_protocols_miss_it() -> Result<()> {
    let mut node = options().start()?;
    let mut http = HttpClient::connect(node.http())?;
    let (first, mut second) = (value(1), value(1));
    second.splice(LEN / 2..LEN / 2, *b"inserted");
    ensure!(http.put("/first", &first)? == 200);
    ensure!(http.put("/second", &second)? == 200);
    // All of the second but a chunk or two was there.
    let stored = node.metric("fonn_http_chunk_bytes_total")?;
    ensure!(
        stored.is_some_and(|it| it >= 2.0 * LEN as f64),
        "{stored:?}"
    );
    let page = node.http_get("/metrics")?.body;
    let new = "fonn_http_chunk_bytes_total{outcome=\"stored\"} ";
    let new = page.lines().find_map(|line| line.strip_prefix(new));
    let new: usize = new.unwrap_or_default().parse()?;
    ensure!(new < LEN + (3 << 20), "{new} bytes in new chunks");
    ensure!(node.text()?.get("first")?.is_none());
    ensure!(RespClient::connect(node.addr())?.get("first")?.is_none());
    node.kill9()?;
    node.start_again()?;
    let mut http = HttpClient::connect(node.http())?;
    ensure!(http.get("/first")? == Some(first));
    let range = [("range", "bytes=3145720-3145739")];
    let part = http.request("GET", "/second", &range, b"")?;
    ensure!(part.status == 206 && part.body == second[3_145_720..3_145_740]);
    ensure!(http.get("/second")? == Some(second));
    Ok(())
}

#[test]
fn a_long_value_is_had_by_every_door_and_is_a_hit_or_a_miss_when_a_member_is_lost() -> Result<()> {
    let mut cluster = Cluster::form_of(3, options())?;
    let http = free_address()?;
    let flags = vec![
        ("--http-listen", http.to_string()),
        ("--max-value", "1m".to_owned()),
    ];
    let router = cluster.router_with(flags)?;
    let mut doors = vec![HttpClient::connect(http)?];
    for node in &cluster.nodes {
        doors.push(HttpClient::connect(node.http())?);
    }
    for (seed, door) in doors.iter_mut().enumerate() {
        ensure!(door.put(&format!("/{seed}"), &value(seed as u64))? == 200);
    }
    for door in &mut doors {
        for seed in 0..4 {
            ensure!(
                door.get(&format!("/{seed}"))? == Some(value(seed)),
                "{seed}"
            );
        }
    }
    ensure!(TextClient::connect(router.addr())?.get("0")?.is_none());
    cluster.nodes[2].kill9()?;
    for door in &mut doors[..2] {
        for seed in 0..4 {
            let begun = Instant::now();
            let found = door.get(&format!("/{seed}"))?;
            ensure!(found.is_none_or(|it| it == value(seed)), "{seed}");
            ensure!(begun.elapsed() < READ_MAX, "{:?}", begun.elapsed());
        }
    }
    Ok(())
}

#[test]
fn long_values_are_hits_or_misses_while_the_budget_evicts() -> Result<()> {
    let options = options().in_memory().flag("--ram-budget", "64m");
    let node = options.start()?;
    let mut http = HttpClient::connect(node.http())?;
    let (mut hits, mut misses) = (0, 0);
    for seed in 0..24 {
        ensure!(http.put(&format!("/{seed}"), &value(seed))? == 200);
        for earlier in [seed, seed / 2] {
            match http.get(&format!("/{earlier}"))? {
                Some(found) => {
                    ensure!(found == value(earlier), "{earlier}");
                    hits += 1;
                }
                None => misses += 1,
            }
        }
    }
    ensure!(hits >= 24 && misses > 0, "{hits} hits, {misses} misses");
    // The budget, 15 % of it and 64 MiB.
    let rss = rss_bytes(node.pid()?)?;
    ensure!(rss < (64 << 20) * 115 / 100 + (64 << 20), "{rss} bytes");
    Ok(())
}

#[test]
fn bazel_stores_outputs_that_are_longer_than_a_value() -> Result<()> {
    let Some(bazel) = program("bazel")? else {
        return Ok(());
    };
    for section in ["Bazel", "Bazel over gRPC"] {
        let mut node = options().start()?;
        let workspace = Workspace::with_large_output(&bazel, section)?;
        let (_, first) = workspace.build(&documented(section, node.http())?)?;
        let chunks = node.metric("fonn_http_chunk_bytes_total")?;
        ensure!(chunks.is_some_and(|it| it > 3e6), "{chunks:?} in chunks");
        node.kill9()?;
        node.start_again()?;
        let (text, second) = workspace.build(&documented(section, node.http())?)?;
        ensure!(text.contains("1 remote cache hit"), "{text}");
        ensure!(first == second && first.len() > 3 << 20, "{}", first.len());
    }
    Ok(())
}
