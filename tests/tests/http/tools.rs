//! What sccache and curl do beside the situations that each build tool is checked in (`clients`).

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use fonn_tests::component::program;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::run;
use fonn_tests::project::CProject;
use fonn_tests::sccache::{Mode, Sccache, Stats, Storage};
use fonn_tests::spilled::metric;

use super::documented::documented;
use super::guarded::{Guarded, PASSWORD};

const FILES: usize = 3;

fn node() -> Result<FonnNode> {
    NodeOptions::new().with_http().start()
}

/// Builds the project with an sccache of its own, and returns what it says.
fn build(program: &Path, storage: Storage, project: &CProject) -> Result<Stats> {
    let scratch = tempfile::tempdir()?;
    let mut server = Sccache::start(program, scratch.path(), storage)?;
    project.clean()?;
    server.build_c(project, |_| Ok(()))?;
    let stats = server.stats()?;
    if stats.misses() > 0 {
        server.wait_for_writes(stats.misses())?;
    }
    let stats = server.stats()?;
    stats.expect_quiet()?;
    Ok(stats)
}

#[test]
fn sccache_over_webdav_shares_entries_with_sccache_over_redis() -> Result<()> {
    let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
        return Ok(());
    };
    let node = node()?;
    let project = CProject::generate(&node.scratch().join("c"), FILES)?;
    let webdav = |node: &FonnNode| Storage::webdav(node.http(), "team-a", Mode::ReadWrite);
    let first = build(&sccache, webdav(&node), &project)?;
    ensure!(
        (first.hits(), first.misses()) == (0, FILES as u64),
        "{first:?}"
    );
    // It is told apart from other clients of any path.
    let stored = metric(&node, "fonn_tool_stored_bytes_total{tool=\"sccache\"}")?;
    ensure!(stored > 0.0, "{stored} bytes");
    let over_redis = Storage::redis(node.addr(), Mode::ReadWrite).with_redis_prefix("team-a");
    let second = build(&sccache, over_redis, &project)?;
    ensure!(
        (second.hits(), second.misses()) == (FILES as u64, 0),
        "{second:?}"
    );
    Ok(())
}

#[test]
fn sccache_of_a_reader_hits_and_one_with_a_wrong_password_does_not_start() -> Result<()> {
    let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
        return Ok(());
    };
    let guarded = Guarded::start(NodeOptions::new().in_memory())?;
    let project = CProject::generate(&guarded.node.scratch().join("c"), FILES)?;
    let storage = |mode, user: &str, password: &str| {
        Storage::webdav(guarded.node.http(), "", mode).with_login(user, password)
    };
    let storage_of = |user| storage(Mode::ReadWrite, user, PASSWORD);
    let first = build(&sccache, storage_of("ci"), &project)?;
    ensure!(first.misses() == FILES as u64, "{first:?}");
    // What it finds out at its start is that it may only read.
    let second = build(&sccache, storage_of("dev"), &project)?;
    ensure!(second.hits() == FILES as u64, "{second:?}");
    let scratch = tempfile::tempdir()?;
    let wrong = storage(Mode::ReadWrite, "ci", "wrong-horse");
    let error = Sccache::start(&sccache, scratch.path(), wrong).unwrap_err();
    ensure!(format!("{error:#}").contains("401"), "{error:#}");
    Ok(())
}

#[test]
fn the_documented_lines_of_curl_work() -> Result<()> {
    let Some(_) = program("curl")? else {
        return Ok(());
    };
    let node = node()?;
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("file"), "hello")?;
    let block = documented("Anything else", node.http())?;
    let mut shell = Command::new("sh");
    shell
        .args(["-ec", &block])
        .current_dir(dir.path())
        .env("no_proxy", "*");
    run(&mut shell)?;
    ensure!(fs::read(dir.path().join("copy"))? == b"hello");
    Ok(())
}
