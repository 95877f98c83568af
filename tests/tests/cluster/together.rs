//! What is of one member alone is asked of all of them at a router.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use fonn_tests::bucket::Bucket;
use fonn_tests::client::TextClient;
use fonn_tests::cluster::Cluster;
use fonn_tests::ctl::{failure, fonnctl, json, lines, text};

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);
const NAMES: [&str; 3] = ["a", "b", "c"];

fn names(of: &Value) -> Vec<&str> {
    let rows = of.as_array().into_iter().flatten();
    rows.filter_map(|row| row["member"].as_str()).collect()
}

/// What `fonnctl top` shows, and whether all answered: on a busy machine one may be late.
fn look(door: &str) -> Result<(bool, Value)> {
    let output = fonnctl(door, &["top", "--once", "--json"])?;
    let top = serde_json::from_slice(&output.stdout)?;
    Ok((output.status.success(), top))
}

#[test]
fn top_at_a_router_shows_all_members_together_and_each() -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    let router = cluster.router()?;
    cluster.ctl(0, &["replicas", "2"])?;
    cluster.wait_agreed()?;
    let door = router.admin().to_string();
    let mut client = TextClient::connect(router.addr())?;
    for n in 0..300 {
        client.store(&format!("set k{n} 0 0 100"), &[b'v'; 100])?;
    }
    let begun = Instant::now();
    let top = loop {
        for n in 0..300 {
            client.items(&format!("get k{n}"))?;
        }
        let (is_well, top) = look(&door)?;
        let gets = |row: &Value| row["gets_per_second"].as_f64() > Some(0.0);
        let rows = top["members"].as_array().context("no members")?;
        if is_well && rows.len() == 3 && rows.iter().all(gets) {
            break top;
        }
        ensure!(begun.elapsed() < LIMIT, "{top}");
    };
    ensure!(top["member"].is_null(), "{top}");
    ensure!(names(&top["members"]) == NAMES, "{top}");
    let rows = top["members"].as_array().context("no members")?;
    for part in ["gets_per_second", "sent_bytes_per_second"] {
        let parts: f64 = rows.iter().filter_map(|row| row[part].as_f64()).sum();
        let whole = top[part].as_f64().context("no sum")?;
        ensure!((parts - whole).abs() < 1e-6, "{part}: {top}");
    }
    for (tier, part) in [(0, "entries"), (0, "budget_bytes"), (1, "budget_bytes")] {
        let of = |it: &Value| it["tiers"][tier][part].as_f64();
        let parts: f64 = rows.iter().filter_map(of).sum();
        ensure!(
            of(&top) == Some(parts) && parts > 0.0,
            "{tier} {part}: {top}"
        );
    }
    // Every entry is there as often as there are copies, and each member has some.
    ensure!(top["tiers"][0]["entries"] == 600.0, "{top}");
    ensure!(top["hit_ratio"] == 1.0, "{top}");
    ensure!(top["router"]["connections"] == 1.0, "{top}");
    let namespaces = &top["namespaces"]["namespaces"];
    ensure!(namespaces[0]["ram_entries"] == 600, "{top}");
    ensure!(json(&door, &["namespaces"])?["namespaces"][0]["ram_entries"] == 600);
    // In between the router was asked for something.
    let mut requests = 0.0;
    while requests == 0.0 {
        let mut command = std::process::Command::new(fonn_tests::node::ctl_program()?);
        command.args(["--admin", &door, "top", "--json"]);
        let child = command.stdout(std::process::Stdio::piped()).spawn()?;
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_secs(2) {
            client.items("get k1")?;
            std::thread::sleep(Duration::from_millis(5));
        }
        let top: Value = serde_json::from_slice(&child.wait_with_output()?.stdout)?;
        requests = top["router"]["requests_per_second"].as_f64().unwrap_or(0.0);
        ensure!(begun.elapsed() < 2 * LIMIT, "{top}");
    }
    let shown = loop {
        let shown = String::from_utf8(fonnctl(&door, &["top"])?.stdout)?;
        if shown.contains("cluster  3 of 3 members together, ready") {
            break shown;
        }
        ensure!(begun.elapsed() < 2 * LIMIT, "{shown}");
    };
    ensure!(shown.starts_with(&format!("router   {door}, ")), "{shown}");
    ensure!(
        shown.contains("MEMBER") && shown.contains("TO SPILL"),
        "{shown}"
    );

    // One that falls keeps its row, and the others go on.
    cluster.nodes[2].kill9()?;
    cluster.wait(&[2], "it is down", |states| states["c"] == "down")?;
    let begun = Instant::now();
    loop {
        let (is_well, top) = look(&door)?;
        ensure!(names(&top["members"]) == NAMES, "{top}");
        if top["members"][2]["state"] == "down" {
            ensure!(top["members"][2]["missing"] != "", "{top}");
            ensure!(top["members"][0]["missing"] == "", "{top}");
            // Something is wrong, and the exit code says so.
            ensure!(!is_well, "{top}");
            break;
        }
        // The asked member did not know it yet.
        ensure!(begun.elapsed() < LIMIT, "{top}");
    }
    Ok(())
}

#[test]
fn a_key_is_looked_for_and_a_codec_set_at_every_member_of_a_router() -> Result<()> {
    let cluster = Cluster::form_patient(3)?;
    let router = cluster.router()?;
    cluster.wait_agreed()?;
    let door = router.admin().to_string();
    let mut client = TextClient::connect(router.addr())?;
    for n in 0..12 {
        let key = format!("k{n}");
        client.store(&format!("set {key} 0 0 1"), b"v")?;
        let found = lines(&door, &["key", &key])?;
        let asked: Vec<&str> = found
            .iter()
            .filter_map(|it| it["member"].as_str())
            .collect();
        ensure!(asked == NAMES, "{found:?}");
        // One owner has it, whichever it is.
        let has = |it: &&Value| it["copies"].as_array().is_some_and(|it| !it.is_empty());
        ensure!(found.iter().filter(has).count() == 1, "{found:?}");
        text(&door, &["key", &key])?;
    }
    let (code, _) = failure(&door, &["key", "absent"])?;
    ensure!(code == Some(1), "{code:?}");

    let changed = text(&door, &["codec", "compacted=zlib:4"])?;
    for name in NAMES {
        ensure!(changed.contains(&format!("member {name}\n")), "{changed}");
        let of = json(&door, &["codec", "--member", name])?;
        ensure!(of.to_string().contains("zlib:4"), "{name}: {of}");
    }
    let all = lines(&door, &["codec"])?;
    ensure!(all.len() == 3 && all[1]["member"] == "b", "{all:?}");
    // At a member it is of that member.
    let own = cluster.nodes[1].admin().to_string();
    text(&own, &["codec", "compacted=zlib:2"])?;
    let of = json(&door, &["codec", "--member", "a"])?;
    ensure!(of.to_string().contains("zlib:4"), "{of}");

    let warmed = lines(&door, &["warm"])?;
    for name in NAMES {
        let ended = |it: &&Value| it["member"] == name && it["end"] != "unspecified";
        ensure!(warmed.iter().any(|it| ended(&it)), "{name}: {warmed:?}");
    }
    Ok(())
}

#[test]
fn events_of_all_members_are_followed_at_a_router() -> Result<()> {
    let cluster = Cluster::form_patient(3)?;
    let router = cluster.router()?;
    cluster.wait_agreed()?;
    let door = router.admin().to_string();
    let mut following = Command::new(fonn_tests::node::ctl_program()?)
        .args(["events", "--follow", "--json"])
        .env("FONN_ADMIN", &door)
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = following.stdout.take().context("no standard output")?;
    let (to, told) = sync_channel(64);
    std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines();
        // The test has what it wants when no receiver is left.
        lines
            .map_while(Result::ok)
            .all(|line| to.send(line).is_ok())
    });
    // Of each what is remembered comes first, and then what happens.
    for (about, change) in [
        ("is ready after", None),
        ("zlib:4", Some("compacted=zlib:4")),
        ("zlib:2", Some("compacted=zlib:2")),
    ] {
        if let Some(change) = change {
            text(&door, &["codec", change])?;
        }
        let mut from = BTreeSet::new();
        while from.len() < 3 {
            let event: Value = serde_json::from_str(&told.recv_timeout(LIMIT)?)?;
            let member = event["member"].as_str().context("of whom?")?;
            let message = event["message"].as_str().context("no message")?;
            if message.contains(about) {
                from.insert(member.to_owned());
            }
        }
        ensure!(from.iter().eq(NAMES.iter()), "{about}: {from:?}");
    }
    following.kill()?;
    following.wait()?;
    Ok(())
}

#[test]
fn the_doctor_at_a_router_examines_every_member_and_names_the_one_that_is_gone() -> Result<()> {
    let mut cluster = Cluster::form(3, None)?;
    let router = cluster.router()?;
    cluster.wait_agreed()?;
    let door = router.admin().to_string();
    let findings = lines(&door, &["doctor"])?;
    for name in NAMES {
        for check in ["member", "readiness", "clock", "client port"] {
            let is_it = |it: &&Value| it["member"] == name && it["check"] == check;
            let found: Vec<_> = findings.iter().filter(is_it).collect();
            ensure!(found.len() == 1, "{name}, {check}: {findings:?}");
            ensure!(found[0]["severity"] == "ok", "{}", found[0]);
        }
    }
    let shown = text(&door, &["doctor"])?;
    ensure!(shown.starts_with("member a\nok "), "{shown}");
    // Of one that is named it is told as of a node.
    let own = lines(&door, &["doctor", "--member", "b"])?;
    ensure!(own.iter().all(|it| it["member"].is_null()), "{own:?}");

    cluster.nodes[2].kill9()?;
    let begun = Instant::now();
    loop {
        let output = fonnctl(&door, &["doctor", "--json"])?;
        ensure!(output.status.code() == Some(1), "{output:?}");
        let rows = String::from_utf8(output.stdout)?;
        let rows: Vec<Value> = rows
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?;
        let failed = rows.iter().filter(|it| it["severity"] == "failed");
        let failed: Vec<&str> = failed.filter_map(|it| it["member"].as_str()).collect();
        ensure!(failed == ["c"], "{rows:?}");
        let is_last = rows
            .iter()
            .any(|it| it["message"] == "it is down by the map");
        if is_last {
            return Ok(());
        }
        // The member that told the map did not know it yet.
        ensure!(begun.elapsed() < LIMIT, "{rows:?}");
    }
}

#[test]
fn status_at_a_router_has_a_row_for_each_member_and_is_bad_with_one_that_is_gone() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let mut cluster = Cluster::form(3, Some(&bucket))?;
    let router = cluster.router()?;
    cluster.wait_agreed()?;
    let door = router.admin().to_string();
    let told = lines(&door, &["status"])?;
    let (own, standings) = told.split_first().context("no lines")?;
    ensure!(own["router"]["behind_ms"] == 0, "{own}");
    ensure!(standings.len() == 3, "{standings:?}");
    for (standing, name) in standings.iter().zip(NAMES) {
        ensure!(standing["member"] == name, "{standing}");
        ensure!(standing["state"] == "active", "{standing}");
        ensure!(standing["status"]["cluster"]["node"] == name, "{standing}");
    }
    let shown = text(&door, &["status"])?;
    let mut shown_lines = shown.lines();
    let router = shown_lines.next().unwrap_or_default();
    ensure!(router.contains("applies epoch"), "{shown}");
    ensure!(
        shown_lines.any(|it| it.starts_with("MEMBER  STATE")),
        "{shown}"
    );
    // At a member, and of one that is named, it is of that member.
    let own = cluster.nodes[1].admin().to_string();
    ensure!(json(&own, &["status"])?["cluster"]["node"] == "b");
    ensure!(json(&door, &["status", "--member", "c"])?["cluster"]["node"] == "c");
    let tiers = lines(&door, &["cold", "status"])?;
    let asked: Vec<&str> = tiers
        .iter()
        .filter_map(|it| it["member"].as_str())
        .collect();
    ensure!(asked == NAMES, "{tiers:?}");

    cluster.nodes[2].kill9()?;
    cluster.wait(&[2], "c is down", |states| states["c"] == "down")?;
    let begun = Instant::now();
    loop {
        let output = fonnctl(&door, &["status", "--json"])?;
        ensure!(output.status.code() == Some(1), "{output:?}");
        let rows = String::from_utf8(output.stdout)?;
        let last = rows.lines().last().context("no rows")?;
        let gone: Value = serde_json::from_str(last)?;
        ensure!(gone["member"] == "c" && gone["status"].is_null(), "{rows}");
        if gone["state"] == "down" {
            return Ok(());
        }
        // The member that told the map did not know it yet.
        ensure!(begun.elapsed() < LIMIT, "{rows}");
    }
}
