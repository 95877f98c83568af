//! Each process answers for every member: routers and members send on what is for another.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use fonn_tests::cluster::Cluster;
use fonn_tests::ctl::{failure, json, lines};
use fonn_tests::node::http_get;
use fonn_tests::promised::at_most;

/// A member that is gone is noticed by then.
const GONE_LIMIT: Duration = Duration::from_secs(20);
/// A busy machine needs its time.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_router_and_every_member_answer_for_all_members() -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    let router = cluster.router()?;
    cluster.wait_agreed()?;
    let doors = [
        router.admin().to_string(),
        cluster.nodes[0].admin().to_string(),
        cluster.nodes[1].admin().to_string(),
    ];
    let mut client = cluster.nodes[2].text()?;
    ensure!(client.store("set k 0 0 1", b"v")? == "STORED");
    for door in &doors {
        for member in ["a", "b", "c"] {
            let status = json(door, &["status", "--member", member])?;
            ensure!(status["cluster"]["node"] == member, "{door}: {status}");
        }
        // Of the cluster itself all tell the same.
        let map = json(door, &["map"])?;
        let members = map["members"].as_array().map_or(0, Vec::len);
        ensure!(members == 3, "{door}: {map}");
        let found = lines(door, &["key", "k", "--member", "c"])?;
        ensure!(!found.is_empty(), "{door}");
        let (code, text) = failure(door, &["status", "--member", "z"])?;
        let is_told = text.contains("no member `z`") && text.contains("a, b, c");
        ensure!(code == Some(1) && is_told, "{door}: {text}");
    }
    // The page is there too, and the router speaks for the cluster without a named member.
    let page = http_get(router.admin(), "/")?;
    ensure!(
        page.status == 200 && page.body.contains("<title>"),
        "{page:?}"
    );
    let all = lines(&doors[0], &["status"])?;
    let (routers, members): (Vec<_>, Vec<_>) = all.iter().partition(|it| it["member"].is_null());
    let knows_all = |it: &&&Value| it["status"]["cluster"]["members"] == 3;
    ensure!(members.iter().filter(knows_all).count() == 3, "{all:?}");
    let follows = |it: &Value| it["router"]["followed"].as_array().map_or(0, Vec::len);
    let is_told = routers.len() == 1 && follows(routers[0]) == 2;
    ensure!(is_told && routers[0]["router"]["behind_ms"] == 0, "{all:?}");

    // What is shown together at a member is of that member, which is named; so it is where one is
    // asked for.
    let top = json(&doors[0], &["top", "--once", "--member", "b"])?;
    let is_b = top["member"] == "b" && top["cluster"]["status"]["node"] == "b";
    ensure!(is_b, "{top}");
    let top = json(&doors[1], &["top", "--once"])?;
    let is_a = top["member"] == "a" && top["cluster"]["status"]["node"] == "a";
    ensure!(is_a, "{top}");

    cluster.nodes[2].kill9()?;
    for door in &doors {
        let begun = Instant::now();
        let (code, text) = failure(door, &["status", "--member", "c"])?;
        let is_told = text.contains("`c`") && text.contains("does not answer");
        ensure!(code == Some(1) && is_told, "{door}: {code:?} {text}");
        let took = begun.elapsed();
        ensure!(took < at_most(GONE_LIMIT, PATIENCE), "{took:?}");
        // And those that live answer as before.
        let status = json(door, &["status", "--member", "a"])?;
        ensure!(status["cluster"]["node"] == "a", "{door}: {status}");
    }
    Ok(())
}

#[test]
fn a_key_is_looked_for_at_its_owners_whichever_member_is_asked() -> Result<()> {
    let cluster = Cluster::form_patient(3)?;
    let router = cluster.router()?;
    cluster.wait_agreed()?;
    let own = cluster.nodes[0].admin().to_string();
    let mut client = cluster.nodes[0].text()?;
    let mut elsewhere = 0;
    for n in 0..12 {
        let key = format!("k{n}");
        ensure!(client.store(&format!("set {key} 0 0 1"), b"v")? == "STORED");
        // Good although the member that is asked may not have it.
        let (code, text) = failure(&own, &["key", &key])?;
        ensure!(code == Some(0), "{key}: {text}");
        let found = lines(&own, &["key", &key])?;
        let owner = &found[0]["owners"][0];
        let has_it = |it: &&Value| it["copies"].as_array().is_some_and(|it| !it.is_empty());
        let having: Vec<&Value> = found
            .iter()
            .filter(has_it)
            .map(|it| &it["member"])
            .collect();
        ensure!(having == [owner], "{key}: {found:?}");
        let through_router = lines(router.admin().to_string().as_str(), &["key", &key])?;
        let says_so = |it: &Value| it["owners"][0] == *owner;
        ensure!(through_router.iter().all(says_so), "{through_router:?}");
        // One that is named answers for itself alone.
        let (code, _) = failure(&own, &["key", &key, "--member", "a"])?;
        ensure!(code == Some(i32::from(owner != "a")), "{key}: {code:?}");
        elsewhere += u32::from(owner != "a");
    }
    ensure!(elsewhere > 0, "all keys are the asked member's own");
    let (code, _) = failure(&own, &["key", "absent"])?;
    ensure!(code == Some(1), "{code:?}");
    Ok(())
}
