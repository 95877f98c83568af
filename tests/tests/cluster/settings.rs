//! The settings of routers and members, and the events of all, asked at a router.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use fonn_tests::client::{RespClient, RespReply};
use fonn_tests::ctl::{lines, with_input};
use fonn_tests::node::NodeOptions;
use fonn_tests::process::free_address;
use fonn_tests::router::FonnRouter;
use fonn_tests::secured::{PASSWORD, Secured, ctl};

const LIMIT: Duration = Duration::from_secs(60);

/// What `fonnctl` tells an admin, an object a line.
fn told(secured: &Secured, arguments: &[&str]) -> Result<Vec<Value>> {
    let arguments = [arguments, &["--json"]].concat();
    let login = Some(("root", PASSWORD));
    let (code, text) = ctl(secured.router.admin(), login, &arguments)?;
    ensure!(code == Some(0), "{code:?}: {text}");
    let lines = text.lines().map(serde_json::from_str);
    Ok(lines.collect::<Result<_, _>>()?)
}

fn setting(config: &Value, key: &str) -> Option<(Value, Value)> {
    let settings = config["settings"].as_array()?;
    let found = settings.iter().find(|it| it["key"] == key)?;
    Some((found["value"].clone(), found["origin"].clone()))
}

#[test]
fn a_router_tells_admins_its_own_settings_and_those_of_each_member() -> Result<()> {
    let secured = Secured::start()?;
    let all = told(&secured, &["config"])?;
    let [router, members @ ..] = &all[..] else {
        anyhow::bail!("nothing is told");
    };
    ensure!(router["member"].is_null(), "{router}");
    let (_, origin) = setting(router, "cluster").context("a router has a cluster")?;
    ensure!(origin == "flag", "{router}");
    ensure!(setting(router, "data_dir").is_none(), "{router}");
    let names: Vec<&Value> = members.iter().map(|it| &it["member"]).collect();
    ensure!(names == ["a", "b", "c"], "{names:?}");
    for member in members {
        let name = setting(member, "node_id").context("no node_id")?;
        ensure!(
            name == (member["member"].clone(), "flag".into()),
            "{member}"
        );
    }
    let one = told(&secured, &["config", "--member", "b"])?;
    let is_b = one.len() == 1 && setting(&one[0], "node_id").is_some_and(|it| it.0 == "b");
    ensure!(is_b, "{one:?}");

    let events = told(&secured, &["events"])?;
    for name in ["a", "b", "c"] {
        ensure!(events.iter().any(|it| it["member"] == name), "{events:?}");
    }
    let at = |event: &Value| event["at_ms"].as_u64();
    ensure!(events.is_sorted_by_key(at), "{events:?}");

    for (user, code) in [("dev", 3), ("ci", 3), ("root", 0)] {
        let login = Some((user, PASSWORD));
        for door in [secured.router.admin(), secured.nodes[0].admin()] {
            let (found, text) = ctl(door, login, &["config"])?;
            ensure!(found == Some(code), "{user}: {found:?} {text}");
        }
    }
    Ok(())
}

#[test]
fn a_reload_changes_the_log_level_of_a_router_and_tells_what_waits_for_a_restart() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("router.toml");
    std::fs::write(&file, "log = \"info\"\nmax_value = \"1m\"\n")?;
    let listen = free_address()?;
    let _node = NodeOptions::new()
        .flag("--node-id", "a")
        .flag("--cluster-listen", listen.to_string())
        .flag("--bootstrap", "true")
        .start()?;
    let flags = vec![("--config", file.display().to_string())];
    let router = FonnRouter::start_with(&[listen], flags)?;
    let admin = router.admin().to_string();
    let own = || -> Result<Value> {
        let mut all = lines(&admin, &["config"])?;
        ensure!(!all.is_empty(), "nothing is told");
        Ok(all.swap_remove(0))
    };
    let log = |config: &Value| setting(config, "log");
    let info = Some(("info".into(), "file".into()));
    ensure!(log(&own()?) == info, "{:?}", own()?);

    std::fs::write(&file, "log = \"debug\"\nmax_value = \"2m\"\n")?;
    let pid = Pid::from_raw(i32::try_from(router.pid()?)?).context("no process")?;
    kill_process(pid, Signal::HUP)?;
    let (begun, debug) = (Instant::now(), Some(("debug".into(), "file".into())));
    let mut config = own()?;
    while log(&config) != debug {
        ensure!(begun.elapsed() < LIMIT, "{config}");
        std::thread::sleep(Duration::from_millis(50));
        config = own()?;
    }
    let settings = config["settings"].as_array().context("no settings")?;
    let max_value = settings.iter().find(|it| it["key"] == "max_value");
    let max_value = max_value.context("no max_value")?;
    let is_old = max_value["value"] == "1m" && max_value["can_reload"] == false;
    ensure!(is_old && max_value["after_restart"] == "2m", "{max_value}");
    Ok(())
}

#[test]
fn a_reload_puts_no_other_users_of_a_router_in_force() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (file, before, other) = (path("router.toml"), path("before"), path("other"));
    let hash = with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?.stdout;
    let hash = String::from_utf8(hash)?;
    let row = |name: &str| {
        let hash = hash.trim();
        format!("[[user]]\nname = '{name}'\nrole = 'admin'\nhash = '{hash}'\n")
    };
    std::fs::write(&before, row("root"))?;
    std::fs::write(&other, row("new"))?;
    std::fs::write(&file, format!("users_file = {before:?}\n"))?;
    let listen = free_address()?;
    let _node = NodeOptions::new()
        .flag("--node-id", "a")
        .flag("--cluster-listen", listen.to_string())
        .flag("--bootstrap", "true")
        .start()?;
    let router = FonnRouter::start_with(&[listen], vec![("--config", file.clone())])?;
    let log_in = |user: &str| -> Result<(RespClient, RespReply)> {
        let mut client = RespClient::connect(router.addr())?;
        let answer = client.command(&format!("AUTH {user} {PASSWORD}"))?;
        Ok((client, answer))
    };
    let (mut held, answer) = log_in("root")?;
    answer.ok()?;

    std::fs::write(&file, format!("users_file = {other:?}\n"))?;
    let pid = Pid::from_raw(i32::try_from(router.pid()?)?).context("no process")?;
    kill_process(pid, Signal::HUP)?;
    let begun = Instant::now();
    loop {
        let (_, text) = ctl(
            router.admin(),
            Some(("root", PASSWORD)),
            &["config", "--json"],
        )?;
        let own = text.lines().next().context("nothing is told")?;
        let own: Value = serde_json::from_str(own)?;
        let settings = own["settings"].as_array().context("no settings")?;
        let users = settings.iter().find(|it| it["key"] == "users_file");
        let users = users.context("no users_file")?;
        if users["after_restart"] == other.as_str() {
            ensure!(users["value"] == before.as_str(), "{users}");
            break;
        }
        ensure!(begun.elapsed() < LIMIT, "not reloaded: {users}");
        std::thread::sleep(Duration::from_millis(50));
    }
    held.command("SET k v")?.ok()?;
    log_in("root")?.1.ok()?;
    let (_, new) = log_in("new")?;
    ensure!(matches!(new, RespReply::Error(_)), "{new:?}");
    let bare = RespClient::connect(router.addr())?.command("GET k")?;
    ensure!(matches!(bare, RespReply::Error(_)), "{bare:?}");
    Ok(())
}
