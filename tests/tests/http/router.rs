//! Through a router, and through members that do not own the key.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use fonn_reapi::messages::{FindMissingBlobsRequest, FindMissingBlobsResponse};
use fonn_reapi::{DigestFunction, Hasher, Method};
use fonn_tests::client::{Cache as _, HttpClient, RemoteClient};
use fonn_tests::cluster::Cluster;
use fonn_tests::node::NodeOptions;
use fonn_tests::process::free_address;
use fonn_tests::values::{Content, ValuePool};

const KEYS: usize = 30;

/// `--http-deadline`, and what a busy machine takes besides.
const READ_MAX: Duration = Duration::from_secs(12);

fn options() -> NodeOptions {
    let options = NodeOptions::new().with_http();
    options
        .flag("--ram-budget", "64m")
        .flag("--disk-budget", "512m")
}

fn key(number: usize) -> String {
    format!("team/{number}")
}

#[test]
fn every_door_of_a_cluster_leads_to_the_same_entries() -> Result<()> {
    let cluster = Cluster::form_of(3, options().patient())?;
    let http = free_address()?;
    let router = cluster.router_with(vec![("--http-listen", http.to_string())])?;
    let mut doors = vec![HttpClient::connect(http)?];
    for node in &cluster.nodes {
        doors.push(HttpClient::connect(node.http())?);
    }
    let mut text = fonn_tests::client::TextClient::connect(router.addr())?;
    for number in 0..KEYS {
        let (key, at) = (key(number), number % doors.len());
        let value = format!("value {number}").into_bytes();
        ensure!(doors[at].put(&format!("/{key}"), &value)? == 200);
        for door in &mut doors {
            ensure!(
                door.get(&format!("/{key}"))?.as_ref() == Some(&value),
                "{key}"
            );
        }
        ensure!(text.get(&key)?.as_ref() == Some(&value), "{key}");
    }
    let large = ValuePool::new(Content::Random, 16 << 20)
        .value(1, 16 << 20)
        .to_vec();
    ensure!(doors[0].put("/large", &large)? == 200);
    for door in &mut doors {
        ensure!(door.get("/large")?.as_ref() == Some(&large));
        let part = door.request("GET", "/large", &[("range", "bytes=-3")], b"")?;
        ensure!(part.status == 206 && part.body == large[large.len() - 3..]);
        ensure!(door.request("HEAD", "/large", &[], b"")?.status == 200);
    }
    ensure!(doors[1].request("DELETE", "/large", &[], b"")?.status == 204);
    ensure!(doors[2].get("/large")?.is_none() && doors[0].get("/large")?.is_none());
    Ok(())
}

#[test]
fn a_look_for_many_blobs_asks_each_member_in_a_few_writes() -> Result<()> {
    const BLOBS: usize = 1000;
    let cluster = Cluster::form_of(3, options().patient())?;
    let http = free_address()?;
    let router = cluster.router_with(vec![("--http-listen", http.to_string())])?;
    let client = RemoteClient::connect(http)?;
    let digests = (0..BLOBS).map(|number| {
        let hasher = Hasher::new(DigestFunction::Sha256);
        hasher.digest(&number.to_le_bytes()).message()
    });
    let request = FindMissingBlobsRequest {
        blob_digests: digests.collect(),
        ..FindMissingBlobsRequest::default()
    };
    let counted = |what| router.metric(&format!("fonn_peer_{what}_total"));
    let before = (counted("requests")?, counted("writes")?);
    let answer: FindMissingBlobsResponse = client.ask(Method::FindMissingBlobs, &request)?;
    ensure!(answer.missing_blob_digests.len() == BLOBS);
    let requests = counted("requests")? - before.0;
    let writes = counted("writes")? - before.1;
    // The blobs are asked for in four steps. A member has a few connections, and other tasks use
    // them too.
    ensure!(
        requests >= BLOBS as f64 && writes <= 100.0,
        "{writes} writes of {requests} requests"
    );
    Ok(())
}

/// A read never breaks a build: whatever a lost member had is a miss, in time.
#[test]
fn reads_are_hits_or_misses_when_a_member_is_killed() -> Result<()> {
    let mut cluster = Cluster::form_of(3, options())?;
    let http = free_address()?;
    let _router = cluster.router_with(vec![("--http-listen", http.to_string())])?;
    let mut door = HttpClient::connect(http)?;
    for number in 0..KEYS {
        ensure!(door.put(&format!("/{}", key(number)), b"value")? == 200);
    }
    cluster.nodes[2].kill9()?;
    let member = cluster.nodes[0].http();
    for mut door in [door, HttpClient::connect(member)?] {
        for number in 0..KEYS {
            let begun = Instant::now();
            // Any status but 200 and 404 is an error here.
            if let Some(value) = door.get(&format!("/{}", key(number)))? {
                ensure!(value == b"value");
            }
            ensure!(begun.elapsed() < READ_MAX, "{:?}", begun.elapsed());
        }
    }
    Ok(())
}
