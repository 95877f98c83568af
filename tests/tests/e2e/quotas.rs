//! Quotas of namespaces: a namespace past it loses its own entries, and no other does.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fonn_tests::client::{RespClient, RespReply};
use fonn_tests::ctl::with_input;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::Signal;
use serde_json::Value;

const PASSWORD: &str = "secret";
const QUOTA: f64 = (8 << 20) as f64;
const VALUE_LEN: usize = 50_000;
const LIMIT: Duration = Duration::from_secs(60);

struct Rig {
    node: FonnNode,
    users: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

fn users(quota: &str) -> Result<String> {
    let hashed = with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?;
    let hash = String::from_utf8(hashed.stdout)?;
    let row = |name: &str, role: &str, more: &str| {
        let hash = hash.trim();
        format!("[[user]]\nname = '{name}'\nrole = '{role}'\nhash = '{hash}'\n{more}\n")
    };
    Ok([
        row("calm", "read-write", "namespace = 'calm'"),
        row(
            "busy",
            "read-write",
            &format!("namespace = 'busy'\nbase = 'calm'\nquota = '{quota}'"),
        ),
        row("root", "admin", ""),
    ]
    .concat())
}

impl Rig {
    fn start(change: impl FnOnce(NodeOptions) -> NodeOptions) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("users.toml");
        std::fs::write(&file, users("8m")?)?;
        let options = NodeOptions::new().flag("--users-file", &file);
        Ok(Self {
            node: change(options).start()?,
            users: file,
            _dir: dir,
        })
    }

    fn user(&self, name: &str) -> Result<RespClient> {
        let mut client = self.node.resp()?;
        client
            .call(&[b"AUTH", name.as_bytes(), PASSWORD.as_bytes()])?
            .ok()?;
        Ok(client)
    }

    /// What `fonnctl namespaces` tells a user.
    fn namespaces(&self, user: &str) -> Result<Vec<Value>> {
        let output = std::process::Command::new(fonn_tests::node::ctl_program()?)
            .args(["namespaces", "--json"])
            .env("FONN_ADMIN", self.node.admin().to_string())
            .env("FONN_USER", user)
            .env("FONN_PASSWORD", PASSWORD)
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{error}");
        let list: Value = serde_json::from_slice(&output.stdout)?;
        Ok(list["namespaces"].as_array().context("no list")?.clone())
    }

    fn metric(&self, name: &str) -> Result<f64> {
        // The busy one alone has a quota.
        let name = format!("fonn_namespace_{name}");
        let value = self.node.metric(&name)?;
        value.with_context(|| format!("no {name}"))
    }

    /// Waits until the namespace was counted and is within its quota.
    fn within_quota(&self) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while self.metric("used_bytes")? > QUOTA {
            ensure!(Instant::now() < deadline, "it stays past its quota");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn value(n: usize) -> Vec<u8> {
    // No codec shrinks it.
    let mut state = n as u64 + 1;
    let byte = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(byte).take(VALUE_LEN).collect()
}

/// Writes keys of these numbers; a refusal for the moment is tried again. How many there were.
fn write(client: &mut RespClient, numbers: std::ops::Range<usize>) -> Result<usize> {
    let mut refused = 0;
    for n in numbers {
        let deadline = Instant::now() + LIMIT;
        let (key, value) = (format!("k{n}"), value(n));
        loop {
            match client.call(&[b"SET", key.as_bytes(), &value])? {
                RespReply::Error(error) => {
                    ensure!(error.starts_with("OOM"), "{error}");
                    refused += 1;
                    ensure!(Instant::now() < deadline, "refused for ever");
                    std::thread::sleep(Duration::from_millis(10));
                }
                other => break other.ok()?,
            }
        }
    }
    Ok(refused)
}

/// Which keys below `count` are there, with their own values.
fn present(client: &mut RespClient, count: usize) -> Result<Vec<usize>> {
    let mut present = Vec::new();
    for n in 0..count {
        let key = format!("k{n}");
        if let Some(found) = client.call(&[b"GET", key.as_bytes()])?.bulk()? {
            ensure!(found == value(n), "another value of {key}");
            present.push(n);
        }
    }
    Ok(present)
}

#[test]
fn a_namespace_at_its_quota_loses_its_own_oldest_and_no_other_notices() -> Result<()> {
    // A disk that the busy one could fill several times over.
    let mut rig = Rig::start(|options| options.flag("--disk-budget", "64m"))?;
    let mut calm = rig.user("calm")?;
    let mut busy = rig.user("busy")?;
    for n in 0..400 {
        let key = format!("c{n}");
        calm.call(&[b"SET", key.as_bytes(), &value(n)])?.ok()?;
    }
    let refused = write(&mut busy, 0..4000)?;
    rig.within_quota()?;
    let undisturbed = |client: &mut RespClient| -> Result<()> {
        for n in 0..400 {
            let key = format!("c{n}");
            let found = client.call(&[b"GET", key.as_bytes()])?.bulk()?;
            ensure!(found == Some(value(n)), "{key} was pushed out");
        }
        Ok(())
    };
    undisturbed(&mut calm)?;
    let mut left = present(&mut busy, 4000)?;
    ensure!((100..=170).contains(&left.len()), "{} are left", left.len());
    ensure!(left.last() == Some(&3999), "the newest is there");
    ensure!(left.first() > Some(&3700), "the oldest went first");
    // The layer below is read through, and does not count.
    let through = busy.call(&[b"GET", b"c7"])?.bulk()?;
    ensure!(through == Some(value(7)), "the base shows");

    let told = rig.namespaces("root")?;
    let names: Vec<_> = told.iter().filter_map(|it| it["name"].as_str()).collect();
    ensure!(names == ["busy", "calm", "default"], "{names:?}");
    let it = &told[0];
    let number = |name: &str| it[name].as_f64().unwrap_or(0.0);
    ensure!(
        number("quota_bytes") == QUOTA && it["base"] == "calm",
        "{it}"
    );
    ensure!((6e6..=QUOTA).contains(&number("used_bytes")), "{it}");
    // Of the last count, after which some were written.
    let counted = left.len() - 30..=left.len();
    ensure!(counted.contains(&(number("entries") as usize)), "{it}");
    ensure!(number("quota_evictions") >= 3800.0, "{it}");
    ensure!(number("quota_refusals") as usize == refused, "{it}");
    ensure!(number("ram_bytes") <= QUOTA, "{it}");
    ensure!(number("stores") as usize == 4000 + refused, "{it}");
    ensure!(number("hits") as usize == left.len(), "{it}");
    ensure!(rig.metric("quota_evictions_total")? >= 3800.0);
    let own: Vec<_> = rig.namespaces("calm")?;
    ensure!(own.len() == 1 && own[0]["name"] == "calm", "{own:?}");

    // Over a stop and a kill it knows as much as before.
    for is_killed in [false, true] {
        if is_killed {
            rig.node.kill9()?;
        } else {
            rig.node.stop()?;
        }
        rig.node.start_again()?;
        calm = rig.user("calm")?;
        busy = rig.user("busy")?;
        // What was at the quota may be counted once more, and then gives up an eighth.
        let again = present(&mut busy, 4000)?;
        ensure!(
            left.ends_with(&again) && again.len() * 10 >= left.len() * 8,
            "{:?} of {} are there, instead of {:?} of {}",
            again.first(),
            again.len(),
            left.first(),
            left.len()
        );
        undisturbed(&mut calm)?;
        let deadline = Instant::now() + LIMIT;
        loop {
            let it = rig.namespaces("busy")?.remove(0);
            left = present(&mut busy, 4000)?;
            if it["entries"].as_u64() == Some(left.len() as u64) {
                break;
            }
            ensure!(Instant::now() < deadline, "not counted: {it}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    write(&mut busy, 4000..4400)?;
    rig.within_quota()?;
    ensure!(present(&mut busy, 4400)?.last() == Some(&4399));
    undisturbed(&mut calm)?;
    Ok(())
}

#[test]
fn a_quota_is_changed_while_the_node_runs() -> Result<()> {
    let mut rig = Rig::start(NodeOptions::in_memory)?;
    let mut busy = rig.user("busy")?;
    write(&mut busy, 0..400)?;
    let before = present(&mut busy, 400)?.len();
    ensure!((120..=170).contains(&before), "{before} are left");
    let large = vec![b'v'; 5 << 20];
    let refused = busy.call(&[b"SET", b"large", &large])?;
    ensure!(matches!(refused, RespReply::Error(_)), "half of the quota");
    std::fs::write(&rig.users, users("2m")?)?;
    rig.node.daemon()?.signal(Signal::HUP)?;
    let deadline = Instant::now() + LIMIT;
    while rig.metric("quota_bytes")? > 3e6 || rig.metric("used_bytes")? > 2.1e6 {
        ensure!(Instant::now() < deadline, "not reloaded");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The row has changed, so its connections were closed.
    let after = present(&mut rig.user("busy")?, 400)?.len();
    ensure!((20..=45).contains(&after), "{after} are left");
    Ok(())
}

#[test]
fn only_the_namespace_that_is_asked_for_is_warmed() -> Result<()> {
    let mut rig = Rig::start(|options| options)?;
    for user in ["calm", "busy"] {
        let mut client = rig.user(user)?;
        for n in 0..20 {
            client
                .call(&[b"SET", format!("k{n}").as_bytes(), &[b'v'; 1000]])?
                .ok()?;
        }
    }
    rig.node.stop()?;
    rig.node.start_again()?;
    let warm = |user: &str, arguments: &[&str]| {
        std::process::Command::new(fonn_tests::node::ctl_program()?)
            .args(["warm", "--json"])
            .args(arguments)
            .env("FONN_ADMIN", rig.node.admin().to_string())
            .env("FONN_USER", user)
            .env("FONN_PASSWORD", PASSWORD)
            .output()
            .context("fonnctl")
    };
    let denied = warm("calm", &["--namespace", "calm"])?;
    ensure!(denied.status.code() == Some(3), "{denied:?}");
    for (arguments, brought) in [(&["--namespace", "calm"][..], 20), (&[], 20)] {
        let output = warm("root", arguments)?;
        let text = String::from_utf8(output.stdout)?;
        let last: Value = serde_json::from_str(text.lines().last().context("no news")?)?;
        ensure!(last["from_disk"] == brought, "{last}");
        let present = if arguments.is_empty() { 20 } else { 0 };
        ensure!(last["present"] == present, "{last}");
    }
    Ok(())
}
