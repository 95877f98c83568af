//! What routers tell Redis Cluster clients.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use fonn_tests::client::{RespClient, RespReply};
use fonn_tests::cluster::Cluster;
use fonn_tests::node::NodeOptions;
use fonn_tests::process::free_address;
use fonn_tests::router::FonnRouter;

/// Within this a member that is alone has formed its cluster, and a router knows that it did.
const LIMIT: Duration = Duration::from_secs(30);

/// First slot, last slot and port of each range that a router tells.
fn ranges(router: &FonnRouter) -> Result<Vec<(i64, i64, i64)>> {
    let mut client = RespClient::connect(router.addr())?;
    let rows = client.command("CLUSTER SLOTS")?.array()?;
    let range = |row: RespReply| {
        let mut parts = row.array()?.into_iter();
        let mut next = || parts.next().unwrap_or(RespReply::Null);
        let (first, last) = (next().integer()?, next().integer()?);
        let port = next().array()?.into_iter().nth(1);
        Ok((first, last, port.unwrap_or(RespReply::Null).integer()?))
    };
    rows.into_iter().map(range).collect()
}

#[test]
fn each_router_owns_all_slots_for_its_clients_and_serves_what_others_stored() -> Result<()> {
    let cluster = Cluster::form(3, None)?;
    let members = cluster.listens();
    let start = |at: usize| FonnRouter::start(&members[at..=at]);
    let mut routers = [start(0)?, start(1)?, start(2)?];
    let mut clients = Vec::new();
    for router in &routers {
        let port = i64::from(router.addr().port());
        ensure!(ranges(router)? == [(0, 16_383, port)]);
        clients.push(RespClient::connect(router.addr())?);
    }
    for n in 0..60 {
        let client = &mut clients[n % 3];
        client.command("READONLY")?.ok()?;
        client.command(&format!("SET k{n} v{n}"))?.ok()?;
        let other = &mut clients[(n + 1) % 3];
        let value = other.command(&format!("GET k{n}"))?.bulk()?;
        ensure!(value == Some(format!("v{n}").into_bytes()), "k{n}");
    }
    // A router that comes back has the same id.
    let id = |router: &FonnRouter| {
        let mut client = RespClient::connect(router.addr())?;
        client.command("CLUSTER MYID")?.bulk()
    };
    let before = id(&routers[1])?;
    routers[1].kill9()?;
    ensure!(id(&routers[0])? != before);
    routers[1].start_again()?;
    ensure!(id(&routers[1])? == before);
    Ok(())
}

#[test]
fn a_router_asks_no_member_of_another_cluster_at_an_address_that_it_knows() -> Result<()> {
    let mut cluster = Cluster::form(1, None)?;
    let router = cluster.router()?;
    let mut client = RespClient::connect(router.addr())?;
    client.command("SET first 1")?.ok()?;
    cluster.nodes[0].kill9()?;
    // The founder of another cluster has the address for clients now.
    let other = NodeOptions::new()
        .flag("--node-id", "another")
        .flag("--cluster-listen", free_address()?.to_string())
        .flag("--bootstrap", "true")
        .start_at(cluster.nodes[0].addr())?;
    let mut direct = other.resp()?;
    let begun = Instant::now();
    while direct.command("SET own 2")?.ok().is_err() {
        ensure!(begun.elapsed() < LIMIT, "the other cluster does not serve");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The router tries for as long as it takes until a member is known to be down.
    let reply = client.command("SET key value")?;
    ensure!(reply.ok().is_err(), "the other cluster took it");
    ensure!(direct.command("GET key")?.bulk()?.is_none());
    Ok(())
}

#[test]
fn a_router_of_a_cluster_that_was_formed_anew_says_that_it_has_to_be_restarted() -> Result<()> {
    let mut cluster = Cluster::form(1, None)?;
    let mut router = cluster.router()?;
    let node = &mut cluster.nodes[0];
    node.kill9()?;
    std::fs::remove_dir_all(node.data_dir().join("raft"))?;
    // With `--bootstrap` it forms another cluster at the same addresses.
    node.start_again()?;
    let begun = Instant::now();
    let mut told = router.http_get("/readyz")?;
    while told.status == 200 {
        ensure!(begun.elapsed() < LIMIT, "the router is still ready");
        std::thread::sleep(Duration::from_millis(50));
        told = router.http_get("/readyz")?;
    }
    ensure!(told.body.contains("restart this router"), "{told:?}");
    router.kill9()?;
    router.start_again()?;
    let mut client = RespClient::connect(router.addr())?;
    client.command("SET key value")?.ok()?;
    let value = client.command("GET key")?.bulk()?;
    ensure!(value == Some(b"value".to_vec()), "{value:?}");
    Ok(())
}

#[test]
fn a_router_is_told_at_the_address_that_it_advertises() -> Result<()> {
    let cluster = Cluster::form(1, None)?;
    for (name, port) in [("127.0.0.2:7001", 7001), ("localhost:7002", 7002)] {
        let router = cluster.router_with(vec![("--advertise", name.to_owned())])?;
        ensure!(ranges(&router)? == [(0, 16_383, port)]);
        let mut client = RespClient::connect(router.addr())?;
        let nodes = client.command("CLUSTER NODES")?.bulk()?;
        let nodes = String::from_utf8(nodes.unwrap_or_default())?;
        ensure!(nodes.contains(&format!(" {name}@0 myself,")), "{nodes}");
    }
    Ok(())
}
