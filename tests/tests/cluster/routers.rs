//! Routers that know of each other: what they tell Redis Cluster clients, and what becomes of it
//! when one is gone.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use fonn_tests::client::{RespClient, RespReply};
use fonn_tests::cluster::Cluster;
use fonn_tests::ctl::{json, text};
use fonn_tests::promised::at_most;
use fonn_tests::router::FonnRouter;

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);
/// Until a router that is killed owns nothing any more by the others: a second of patience, and
/// pings.
const GONE: Duration = Duration::from_secs(5);

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

/// Waits until these routers divide the slots between themselves, and tell the same. How long it
/// took.
fn wait_divided(routers: &[&FonnRouter]) -> Result<Duration> {
    let begun = Instant::now();
    let mut ports: Vec<_> = routers
        .iter()
        .map(|it| i64::from(it.addr().port()))
        .collect();
    // The order is that of the addresses as they are written.
    ports.sort_by_key(ToString::to_string);
    let count = ports.len() as i64;
    let wanted: Vec<_> = (0..count)
        .zip(ports)
        .map(|(at, port)| (16_384 * at / count, 16_384 * (at + 1) / count - 1, port))
        .collect();
    for router in routers {
        loop {
            let told = ranges(router)?;
            if told == wanted {
                break;
            }
            ensure!(begun.elapsed() < LIMIT, "{told:?}, not {wanted:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(begun.elapsed())
}

/// The router, asked itself, knows of so many.
fn count(router: &FonnRouter) -> Result<f64> {
    router.metric("fonn_router_routers")
}

#[test]
fn routers_at_different_members_divide_the_slots_and_the_last_one_has_all() -> Result<()> {
    let cluster = Cluster::form(3, None)?;
    let members = cluster.listens();
    let start = |at: usize| FonnRouter::start(&members[at..=at]);
    // Not at the one that asks all others alone.
    let mut routers = [start(1)?, start(2)?, start(2)?];
    let [first, second, third] = routers.each_ref();
    wait_divided(&[first, second, third])?;
    ensure!(count(first)? == 3.0, "{}", count(first)?);
    // A member without routers hears of the last one a ping later.
    for node in &cluster.nodes {
        let begun = Instant::now();
        loop {
            let known = node.metric("fonn_cluster_routers")?;
            if known == Some(3.0) {
                break;
            }
            ensure!(begun.elapsed() < LIMIT, "{known:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let map = json(&first.admin().to_string(), &["map"])?;
    let told = map["status"]["routers"].as_array().map(Vec::len);
    ensure!(told == Some(3), "{map}");
    let shown = text(&first.admin().to_string(), &["map"])?;
    ensure!(shown.contains(&second.addr().to_string()), "{shown}");

    // Any of them serves any slot, and redirects no client.
    let mut clients = Vec::new();
    for router in [first, second, third] {
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

    // Killed, and told to end.
    let limit = at_most(GONE, LIMIT);
    routers[1].kill9()?;
    let took = wait_divided(&[&routers[0], &routers[2]])?;
    println!("a router that was killed was forgotten after {took:?}");
    ensure!(took < limit, "{took:?}");
    routers[2].stop()?;
    let took = wait_divided(&[&routers[0]])?;
    println!("a router that ended was forgotten after {took:?}");
    ensure!(took < limit, "{took:?}");

    // It comes back under the same id.
    let id = |router: &FonnRouter| {
        let mut client = RespClient::connect(router.addr())?;
        client.command("CLUSTER MYID")?.bulk()
    };
    let before = id(&routers[0])?;
    routers[1].start_again()?;
    let [first, second, _] = routers.each_ref();
    wait_divided(&[first, second])?;
    ensure!(id(first)? == before && id(second)? != before);
    Ok(())
}

#[test]
fn routers_stay_known_when_the_member_that_they_follow_is_killed() -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    let members = cluster.listens().to_vec();
    // Each begins at a member of its own, and goes on at others.
    let routers = [
        FonnRouter::start(&members[1..=1])?,
        FonnRouter::start(&members[2..=2])?,
    ];
    wait_divided(&routers.each_ref())?;
    cluster.nodes[1].kill9()?;
    cluster.wait(&[1], "b is down", |states| states["b"] == "down")?;
    wait_divided(&routers.each_ref())?;
    // A cluster whose voters are gone tells of its own routers alone, and they serve what there is.
    cluster.nodes[2].kill9()?;
    cluster.nodes[0].kill9()?;
    for router in &routers {
        let begun = Instant::now();
        while count(router)? != 1.0 {
            ensure!(
                begun.elapsed() < LIMIT,
                "it still knows of {}",
                count(router)?
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    for node in &mut cluster.nodes {
        node.start_again()?;
    }
    wait_divided(&routers.each_ref())?;
    Ok(())
}

#[test]
fn a_router_is_told_at_the_address_that_it_advertises() -> Result<()> {
    let cluster = Cluster::form(1, None)?;
    let names = ["127.0.0.2:7001", "localhost:7002"];
    let flags = |name: &str| vec![("--advertise", name.to_owned())];
    let routers = [
        cluster.router_with(flags(names[0]))?,
        cluster.router_with(flags(names[1]))?,
    ];
    for router in &routers {
        let begun = Instant::now();
        loop {
            let told = ranges(router)?;
            if told == [(0, 8191, 7001), (8192, 16_383, 7002)] {
                break;
            }
            ensure!(begun.elapsed() < LIMIT, "{told:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut client = RespClient::connect(router.addr())?;
        let nodes = client.command("CLUSTER NODES")?.bulk()?;
        let nodes = String::from_utf8(nodes.unwrap_or_default())?;
        let is_told = names
            .iter()
            .all(|name| nodes.contains(&format!(" {name}@0 ")));
        ensure!(is_told && nodes.matches("myself").count() == 1, "{nodes}");
    }
    Ok(())
}
