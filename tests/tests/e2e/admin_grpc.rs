//! The admin command against a node.

use std::io::Read as _;
use std::process::{Command, Stdio};

use anyhow::Result;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use fonn_tests::ctl::{failure, fonnctl, json, text, with_input};
use fonn_tests::node::{FonnNode, NodeOptions, ctl_program};
use fonn_tests::process::free_address;

#[test]
fn status_and_keys_are_shown() -> Result<()> {
    let node = FonnNode::start()?;
    let admin = node.admin().to_string();
    let value = vec![b'x'; 5000];
    node.text()?.store("set greeting 7 0 5000", &value)?;
    node.text()?.items("get greeting")?;
    let status = text(&admin, &["status"])?;
    let version = format!("fonn-node {}", env!("CARGO_PKG_VERSION"));
    for part in [
        version.as_str(),
        "ready",
        &node.addr().to_string(),
        "256.0 MiB",
        "batched",
    ] {
        assert!(status.contains(part), "no {part} in\n{status}");
    }
    let status = json(&admin, &["status"])?;
    assert_eq!(status["ram"]["entries"], 1);
    assert_eq!(status["lookups"]["hits"][0]["name"], "ram");
    assert_eq!(status["lookups"]["hits"][0]["count"], 1);

    let shown = text(&admin, &["key", "greeting"])?;
    let tiers: Vec<&str> = shown
        .lines()
        .filter_map(|it| it.split(' ').next())
        .collect();
    assert_eq!(tiers, ["TIER", "ram", "disk"], "{shown}");
    let key = json(&admin, &["key", "greeting"])?;
    let disk = &key["copies"][1];
    assert_eq!(disk["tier"], "disk");
    assert_eq!(disk["codec"], "lz4");
    assert_eq!(disk["value_bytes"], 5000);
    let absent = fonnctl(&admin, &["key", "absent"])?;
    assert_eq!(absent.status.code(), Some(1));
    assert_eq!(absent.stdout, b"no tier has this key\n");

    text(&admin, &["flush", "default", "--yes"])?;
    assert!(node.text()?.items("get greeting")?.is_empty());
    let flushed = fonnctl(&admin, &["key", "greeting"])?;
    assert_eq!(
        flushed.status.code(),
        Some(1),
        "a flushed key is not served"
    );
    Ok(())
}

#[test]
fn codecs_change_while_the_node_runs() -> Result<()> {
    let node = FonnNode::start()?;
    let admin = node.admin().to_string();
    let changed = text(&admin, &["codec", "fresh=zstd:3"])?;
    assert!(changed.starts_with("fresh: zstd:3, was lz4"), "{changed}");
    let codecs = text(&admin, &["codec"])?;
    let is_new = |line: &str| line.split_whitespace().eq(["fresh", "zstd:3"]);
    assert!(codecs.lines().any(is_new), "{codecs}");
    node.text()?.store("set k 0 0 5000", &[b'x'; 5000])?;
    let key = json(&admin, &["key", "k"])?;
    assert_eq!(key["copies"][1]["codec"], "zstd:3");
    let (code, error) = failure(&admin, &["codec", "fresh=best"])?;
    assert_eq!(code, Some(1));
    assert!(error.contains("best"), "{error}");
    Ok(())
}

#[test]
fn a_node_without_cold_tier_has_a_doctor_for_the_rest() -> Result<()> {
    let node = NodeOptions::new().in_memory().start()?;
    let admin = node.admin().to_string();
    let output = fonnctl(&admin, &["doctor"])?;
    let findings = String::from_utf8(output.stdout)?;
    for check in ["admin port", "readiness", "clock", "client port"] {
        let ok = format!("ok       {check}: ");
        assert!(findings.contains(&ok), "no {check} in\n{findings}");
    }
    assert!(findings.contains("skipped  bucket: "), "{findings}");
    assert_eq!(output.status.code(), Some(0), "nothing is wrong");
    let sentence =
        "error: this node has no cold tier; start it with --cold-tier s3://bucket/prefix\n";
    for command in ["status", "ls", "verify", "rebuild"] {
        let (code, error) = failure(&admin, &["cold", command])?;
        assert_eq!((code, error.as_str()), (Some(1), sentence), "{command}");
    }
    Ok(())
}

#[test]
fn wrong_addresses_and_usage_are_explained() -> Result<()> {
    let nobody = free_address()?.to_string();
    let (code, error) = failure(&nobody, &["status"])?;
    assert_eq!(code, Some(1));
    for part in [
        "no node answers at",
        nobody.as_str(),
        "--admin",
        "FONN_ADMIN",
    ] {
        assert!(error.contains(part), "no {part} in {error}");
    }
    // The client port is not the admin port.
    let node = FonnNode::start()?;
    let (code, error) = failure(&node.addr().to_string(), &["status"])?;
    assert_eq!(code, Some(1));
    assert!(
        error.contains("does not answer as the admin port"),
        "{error}"
    );
    for usage in [
        &["flush", "default"][..],
        &["codec", "ram"],
        &["absent"],
        &[],
    ] {
        assert_eq!(failure(&nobody, usage)?.0, Some(2), "{usage:?}");
    }
    Ok(())
}

#[test]
fn passwords_are_hashed_and_completions_printed_without_a_node() -> Result<()> {
    let nobody = free_address()?.to_string();
    let hashed = with_input(&nobody, &["user", "hash"], "secret\n")?;
    assert!(hashed.status.success());
    let hash = String::from_utf8(hashed.stdout)?;
    assert!(hash.starts_with("$argon2id$v=19$"), "{hash}");
    assert!(!hash.contains("secret"));
    assert_eq!(
        with_input(&nobody, &["user", "hash"], "\n")?.status.code(),
        Some(2)
    );
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&nobody, &["completions", shell])?;
        assert!(script.contains("doctor"), "{shell}");
    }
    Ok(())
}

#[test]
fn a_terminal_shows_what_is_typed_after_an_interrupt() -> Result<()> {
    let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&keyboard)?;
    unlockpt(&keyboard)?;
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let terminal = rustix::fs::open(ptsname(&keyboard, Vec::new())?, flags, Mode::empty())?;
    let shows = || -> Result<bool> {
        let modes = tcgetattr(&terminal)?.local_modes;
        Ok(modes.contains(LocalModes::ECHO))
    };
    assert!(shows()?);
    let mut child = Command::new(ctl_program()?)
        .args(["user", "hash"])
        .stdin(terminal.try_clone()?)
        .stderr(Stdio::piped())
        .spawn()?;
    let mut prompt = [0; 9];
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_exact(&mut prompt)?;
    assert_eq!(&prompt, b"Password:");
    assert!(!shows()?, "the terminal shows passwords");
    kill_process(Pid::from_child(&child), Signal::INT)?;
    assert_eq!(child.wait()?.code(), Some(130));
    assert!(shows()?, "the terminal stays silent");
    Ok(())
}

#[test]
fn the_admin_port_drains_with_the_node() -> Result<()> {
    let mut node = FonnNode::start()?;
    let admin = node.admin().to_string();
    text(&admin, &["status"])?;
    node.stop()?;
    assert_eq!(failure(&admin, &["status"])?.0, Some(1));
    Ok(())
}
