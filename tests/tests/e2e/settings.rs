//! The settings in force: what is told of them, where they come from, and what a reload makes of
//! them; and events.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use fonn_tests::certificates::Certified;
use fonn_tests::client::RespReply;
use fonn_tests::ctl::{json, lines, text, with_input};
use fonn_tests::node::{FonnNode, NodeOptions, ctl_program};

use super::configuration::reload;

const LIMIT: Duration = Duration::from_secs(60);

/// The settings of a node as `fonnctl` tells them.
fn told(node: &FonnNode) -> Result<Value> {
    json(&node.admin().to_string(), &["config"])
}

fn setting(config: &Value, key: &str) -> Result<Value> {
    let settings = config["settings"].as_array().context("no settings")?;
    let found = settings.iter().find(|it| it["key"] == key);
    Ok(found
        .with_context(|| format!("no {key}: {config}"))?
        .clone())
}

/// Value and origin of a setting.
fn said(node: &FonnNode, key: &str) -> Result<(String, String)> {
    let setting = setting(&told(node)?, key)?;
    let text = |field: &str| setting[field].as_str().unwrap_or_default().to_owned();
    Ok((text("value"), text("origin")))
}

/// What memcached's and Redis's clients are told of a setting.
fn clients_are_told(node: &FonnNode, key: &str) -> Result<(String, String)> {
    let stats = node.text()?.stats("stats settings")?;
    let found = stats.into_iter().find(|(name, _)| name == key);
    let (_, by_stats) = found.with_context(|| format!("no {key}"))?;
    let RespReply::Array(pair) = node.resp()?.command(&format!("CONFIG GET {key}"))? else {
        anyhow::bail!("CONFIG GET is no list");
    };
    let [_, RespReply::Bulk(by_config)] = &pair[..] else {
        anyhow::bail!("{pair:?}");
    };
    Ok((by_stats, String::from_utf8(by_config.clone())?))
}

fn pair(value: &str, origin: &str) -> (String, String) {
    (value.to_owned(), origin.to_owned())
}

#[test]
fn each_setting_is_told_with_its_origin_and_follows_a_reload() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("fonn.toml");
    fs::write(
        &file,
        "ram_budget = \"64m\"\nmax_value = \"1m\"\ncodec_min_bytes = \"1k\"\nzone = \"z\"\n",
    )?;
    let mut node = NodeOptions::new()
        .omit("--ram-budget")
        .flag("--config", &file)
        .env("FONN_CODEC_MIN_BYTES", "2k")
        .env("FONN_MAX_VALUE", "2m")
        .flag("--max-value", "4m")
        .start()?;
    let config = told(&node)?;
    ensure!(
        config["file"] == file.to_string_lossy().as_ref(),
        "{config}"
    );
    for (key, value, origin) in [
        ("max_value", "4m", "flag"),
        ("codec_min_bytes", "2k", "environment"),
        ("ram_budget", "64m", "file"),
        ("lru", "approximate", "default"),
        ("cold_tier", "none", "default"),
    ] {
        let found = said(&node, key)?;
        ensure!(found == pair(value, origin), "{key}: {found:?}");
    }
    let table = text(&node.admin().to_string(), &["config"])?;
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let row = table.lines().map(words).find(|it| it[0] == "ram_budget");
    ensure!(row == Some(words("ram_budget 64m file yes")), "{table}");

    let changed = "ram_budget = \"32m\"\nmax_value = \"1m\"\nlru = \"strict\"\n";
    reload(&mut node, &file, changed, &["configuration reloaded"])?;
    let config = told(&node)?;
    let budget = setting(&config, "ram_budget")?;
    ensure!(
        budget["value"] == "32m" && budget["origin"] == "file",
        "{budget}"
    );
    ensure!(budget["changed_at_ms"].as_u64() > Some(0), "{budget}");
    let lru = setting(&config, "lru")?;
    let is_old = lru["value"] == "approximate" && lru["origin"] == "default";
    ensure!(is_old && lru["after_restart"] == "strict", "{lru}");
    ensure!(setting(&config, "max_value")?["changed_at_ms"] == 0);
    let both = clients_are_told(&node, "ram_budget")?;
    ensure!(both == pair("32m", "32m"), "{both:?}");
    let both = clients_are_told(&node, "lru")?;
    ensure!(both == pair("approximate", "approximate"), "{both:?}");

    // What an admin sets lasts until the next reload.
    let admin = node.admin().to_string();
    text(&admin, &["codec", "fresh=zstd:1"])?;
    let by_admin = "ram=none,fresh=zstd:1,compacted=zstd:3,cold=zstd:9";
    ensure!(said(&node, "codec")? == pair(by_admin, "admin"));
    ensure!(clients_are_told(&node, "codec")? == pair(by_admin, by_admin));
    let codec = "ram_budget = \"32m\"\ncodec = \"fresh=snappy\"\n";
    reload(&mut node, &file, codec, &["configuration reloaded"])?;
    let by_file = "ram=none,fresh=snappy,compacted=zstd:3,cold=zstd:9";
    ensure!(said(&node, "codec")? == pair(by_file, "file"));
    ensure!(setting(&told(&node)?, "lru")?["after_restart"].is_null());
    Ok(())
}

#[test]
fn a_reload_applies_disk_budget_codecs_and_log_level() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("fonn.toml");
    fs::write(&file, "disk_budget = \"1g\"\n")?;
    let mut node = NodeOptions::new()
        .omit("--disk-budget")
        .flag("--config", &file)
        .start()?;
    let budget = |node: &FonnNode| {
        let status = json(&node.admin().to_string(), &["status"])?;
        status["disk"]["budget_bytes"].as_u64().context("no budget")
    };
    ensure!(budget(&node)? == 1 << 30);
    let active = |node: &FonnNode, level: &str, codec: &str| -> Result<bool> {
        let page = node.http_get("/metrics")?.body;
        let labels = [format!("codec=\"{codec}\""), format!("level=\"{level}\"")];
        Ok(page.lines().any(|line| {
            line.starts_with("fonn_codec_active{")
                && labels.iter().all(|it| line.contains(it))
                && line.ends_with(" 1")
        }))
    };
    ensure!(active(&node, "fresh", "lz4")? && active(&node, "compacted", "zstd:3")?);
    let changed = "disk_budget = \"512m\"\ncodec = [\"fresh=snappy\", \"compacted=zlib:6\"]\nlog = \"warn\"\n";
    fs::write(&file, changed)?;
    // Of this reload nothing is logged any more: it is no warning.
    let log = node.log()?;
    node.daemon()?.signal(fonn_tests::process::Signal::HUP)?;
    let admin = node.admin().to_string();
    node.daemon()?.wait_until("the reload", LIMIT, || {
        let shown = json(&admin, &["config"]).ok();
        let value = shown.and_then(|it| setting(&it, "log").ok());
        value.is_some_and(|it| it["value"] == "warn")
    })?;
    ensure!(budget(&node)? == 512 << 20);
    ensure!(active(&node, "fresh", "snappy")? && active(&node, "compacted", "zlib:6")?);
    ensure!(!active(&node, "fresh", "lz4")?);
    let text = log.text();
    ensure!(!text.contains("configuration reloaded"), "{text}");
    let louder = "log = \"debug\"\n";
    reload(&mut node, &file, louder, &["configuration reloaded"])?;
    Ok(())
}

#[test]
fn a_reload_of_the_ram_budget_names_what_keeps_its_size() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("fonn.toml");
    fs::write(&file, "ram_budget = \"256m\"\n")?;
    let options = NodeOptions::new().omit("--ram-budget");
    let mut node = options.flag("--config", &file).start()?;
    let log = node.log()?;
    let names = "disk queue 32m instead of 8m, disk memory 32m instead of 16m";
    reload(&mut node, &file, "ram_budget = \"64m\"\n", &[names])?;
    let admin = node.admin().to_string();
    let events = lines(&admin, &["events"])?;
    let is_told = |event: &Value| {
        event["message"]
            .as_str()
            .is_some_and(|it| it.contains(names))
    };
    ensure!(events.iter().any(is_told), "{events:?}");
    // Back at what it was started with there is nothing to name.
    let before = log.text().matches("tiers below RAM").count();
    let as_before = "ram_budget = \"256m\"\n";
    reload(&mut node, &file, as_before, &["configuration reloaded"])?;
    ensure!(log.text().matches("tiers below RAM").count() == before);
    Ok(())
}

#[test]
fn no_setting_has_a_secret() -> Result<()> {
    const PASSWORD: &str = "hunter-2-of-many";
    let dir = tempfile::tempdir()?;
    let hash = with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?.stdout;
    let hash = String::from_utf8(hash)?.trim().to_owned();
    let users = dir.path().join("users.toml");
    let row = |name: &str, role: &str| {
        format!("[[user]]\nname = '{name}'\nrole = '{role}'\nhash = '{hash}'\n")
    };
    fs::write(&users, row("root", "admin") + &row("dev", "read-write"))?;
    let password = dir.path().join("password");
    fs::write(&password, PASSWORD)?;
    let certified = Certified::new()?;
    let bucket = format!("file://{}", dir.path().join("bucket").display());
    let node = NodeOptions::new()
        .flag("--users-file", &users)
        .flag("--tls-cert", certified.file("cert"))
        .flag("--tls-key", certified.file("key"))
        .flag("--cold-tier", &bucket)
        .flag("--s3-endpoint", "http://name:endpoint-secret@127.0.0.1:9")
        .env("AWS_ACCESS_KEY_ID", "access-secret")
        .env("AWS_SECRET_ACCESS_KEY", "aws-secret")
        .start()?;
    let admin = node.admin().to_string();
    let password = password.to_string_lossy();
    let login = |user| ["--user", user, "--password-file", &password];
    let mut shown = vec![
        text(&admin, &[&["config"], &login("root")[..]].concat())?,
        text(
            &admin,
            &[&["config", "--json"], &login("root")[..]].concat(),
        )?,
    ];
    let users_file = users.to_string_lossy();
    ensure!(
        shown[0].contains(&*users_file),
        "paths are no secret: {}",
        shown[0]
    );
    let mut client = node.resp()?;
    client.command(&format!("AUTH root {PASSWORD}"))?.ok()?;
    let RespReply::Array(pairs) = client.command("CONFIG GET *")? else {
        anyhow::bail!("CONFIG GET is no list");
    };
    let texts = pairs.into_iter().map(|it| match it {
        RespReply::Bulk(bytes) => Ok(String::from_utf8(bytes)?),
        other => anyhow::bail!("{other:?}"),
    });
    shown.push(texts.collect::<Result<Vec<_>>>()?.join(" "));
    ensure!(
        shown.iter().all(|it| it.contains("s3_endpoint")),
        "{shown:?}"
    );
    let key = fs::read_to_string(certified.file("key"))?;
    let of_key = key.lines().nth(1).context("no key")?;
    let salted = hash.rsplit('$').next().context("no hash")?;
    for text in &shown {
        for secret in [PASSWORD, "secret", of_key, salted] {
            ensure!(!text.contains(secret), "{secret} in {text}");
        }
    }
    // Users without the role `admin` learn nothing.
    let refused = [&["config"], &login("dev")[..]].concat();
    let refused = fonn_tests::ctl::failure(&admin, &refused)?;
    ensure!(refused.0 == Some(3), "{refused:?}");
    Ok(())
}

#[test]
fn events_are_listed_and_followed() -> Result<()> {
    let node = NodeOptions::new().in_memory().start()?;
    let admin = node.admin().to_string();
    // It is ready a moment before it records that.
    let begun = Instant::now();
    let first = loop {
        let first = lines(&admin, &["events"])?;
        let is_ready = |it: &Value| {
            it["message"]
                .as_str()
                .is_some_and(|it| it.contains("is ready"))
        };
        if first.iter().any(is_ready) {
            break first;
        }
        ensure!(begun.elapsed() < LIMIT, "{first:?}");
    };
    let newest = first.last().context("a start is an event")?["sequence"].as_u64();
    let newest = newest.context("no number")?.to_string();
    let after = ["events", "--after", &newest];
    ensure!(lines(&admin, &after)?.is_empty());
    text(&admin, &["codec", "ram=lz4"])?;
    let listed = lines(&admin, &after)?;
    let message = "codec of ram was set to lz4, before none";
    let [event] = &listed[..] else {
        anyhow::bail!("one event: {listed:?}");
    };
    ensure!(
        event["level"] == "info" && event["topic"] == "settings",
        "{event}"
    );
    ensure!(event["message"] == message, "{event}");
    let table = text(&admin, &["events"])?;
    ensure!(
        table.contains("WHAT HAPPENED") && table.contains(message),
        "{table}"
    );

    let mut following = Command::new(ctl_program()?)
        .args(["events", "--follow", "--after", &newest])
        .env("FONN_ADMIN", &admin)
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = following.stdout.take().context("no standard output")?;
    let (to, told) = sync_channel(16);
    thread::spawn(move || {
        let lines = BufReader::new(stdout).lines();
        // The test has what it wants when no receiver is left.
        lines
            .map_while(Result::ok)
            .all(|line| to.send(line).is_ok())
    });
    let line = told.recv_timeout(LIMIT)?;
    ensure!(
        line.ends_with(&format!("info settings: {message}")),
        "{line}"
    );
    text(&admin, &["codec", "ram=none"])?;
    let line = told.recv_timeout(LIMIT)?;
    ensure!(line.contains("codec of ram was set to none"), "{line}");
    following.kill()?;
    following.wait()?;
    Ok(())
}
