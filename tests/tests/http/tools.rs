//! Build tools as people use them, each from an empty local state.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use fonn_tests::cluster::{Cluster, undisturbed};
use fonn_tests::component::program;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::{free_address, run};
use fonn_tests::project::CProject;
use fonn_tests::sccache::{Mode, Sccache, Stats, Storage};

use super::documented::{documented, exported};
use super::guarded::{Guarded, PASSWORD};

const FILES: usize = 8;

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
    let mut node = node()?;
    let project = CProject::generate(&node.scratch().join("c"), FILES)?;
    let webdav = |node: &FonnNode| Storage::webdav(node.http(), "team-a", Mode::ReadWrite);
    let first = build(&sccache, webdav(&node), &project)?;
    ensure!(
        (first.hits(), first.misses()) == (0, FILES as u64),
        "{first:?}"
    );
    let second = build(&sccache, webdav(&node), &project)?;
    ensure!(
        (second.hits(), second.misses()) == (FILES as u64, 0),
        "{second:?}"
    );
    let over_redis = Storage::redis(node.addr(), Mode::ReadWrite).with_redis_prefix("team-a");
    let third = build(&sccache, over_redis, &project)?;
    ensure!(
        (third.hits(), third.misses()) == (FILES as u64, 0),
        "{third:?}"
    );
    node.kill9()?;
    node.start_again()?;
    let fourth = build(&sccache, webdav(&node), &project)?;
    ensure!(
        (fourth.hits(), fourth.misses()) == (FILES as u64, 0),
        "{fourth:?}"
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
fn sccache_over_webdav_hits_through_a_router() -> Result<()> {
    let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
        return Ok(());
    };
    undisturbed(|| {
        let options = NodeOptions::new()
            .flag("--ram-budget", "64m")
            .flag("--disk-budget", "512m");
        let cluster = Cluster::form_of(3, options)?;
        let http = free_address()?;
        let _router = cluster.router_with(vec![("--http-listen", http.to_string())])?;
        let scratch = tempfile::tempdir()?;
        let project = CProject::generate(scratch.path(), FILES)?;
        let storage = || Storage::webdav(http, "team-a", Mode::ReadWrite);
        let first = build(&sccache, storage(), &project)?;
        ensure!(first.misses() == FILES as u64, "{first:?}");
        let second = build(&sccache, storage(), &project)?;
        ensure!(
            (second.hits(), second.misses()) == (FILES as u64, 0),
            "{second:?}"
        );
        Ok(())
    })
}

fn ccache(program: &Path, dir: &Path, storage: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"CCACHE_") {
            command.env_remove(name);
        }
    }
    command.env("CCACHE_DIR", dir);
    command.env("CCACHE_CONFIGPATH", dir.join("none.conf"));
    command.env("CCACHE_REMOTE_STORAGE", storage);
    command
}

/// Builds the project twice, each time with an empty local cache: the second build hits alone.
fn hits_of_ccache(program: &Path, node: &FonnNode, storage: &str) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let project = CProject::generate(&node.scratch().join("c"), FILES)?;
    // It gives a server 100 ms; here it has all the time that a busy machine may take.
    let storage = format!("{storage}|connect-timeout=60000|operation-timeout=60000");
    for (dir, hits) in [("first", 0), ("second", FILES)] {
        let dir = scratch.path().join(dir);
        project.clean()?;
        let compiler = || {
            let mut command = ccache(program, &dir, &storage);
            command.arg("gcc");
            command
        };
        project.build(compiler, |_| Ok(()))?;
        let text = run(ccache(program, &dir, &storage).arg("--print-stats"))?;
        let stat = |name: &str| -> Result<usize> {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
            Ok(value.with_context(|| text.clone())?.trim().parse()?)
        };
        ensure!(stat("remote_storage_hit")? == hits, "{storage}: {text}");
        ensure!(stat("remote_storage_error")? == 0, "{storage}: {text}");
        ensure!(stat("remote_storage_timeout")? == 0, "{storage}: {text}");
    }
    Ok(())
}

#[test]
fn ccache_hits_with_each_of_its_layouts() -> Result<()> {
    let (Some(program), Some(_)) = (program("ccache")?, program("gcc")?) else {
        return Ok(());
    };
    let node = node()?;
    for layout in ["subdirs", "flat", "bazel"] {
        let url = format!("http://{}/{layout}|layout={layout}", node.http());
        hits_of_ccache(&program, &node, &url)?;
    }
    Ok(())
}

#[test]
fn the_documented_lines_of_sccache_and_ccache_give_hits() -> Result<()> {
    let (Some(_), Some(ccache)) = (program("gcc")?, program("ccache")?) else {
        return Ok(());
    };
    let node = node()?;
    let variables = exported(&documented("ccache", node.http())?);
    let (name, storage) = variables.first().context("no variable")?;
    ensure!(name == "CCACHE_REMOTE_STORAGE");
    hits_of_ccache(&ccache, &node, storage)?;
    let Some(sccache) = program("sccache")? else {
        return Ok(());
    };
    let project = CProject::generate(&node.scratch().join("c"), FILES)?;
    let block = documented("sccache", node.http())?;
    for hits in [0, FILES as u64] {
        let storage = Storage::of_variables(exported(&block));
        let stats = build(&sccache, storage, &project)?;
        ensure!(stats.hits() == hits, "{stats:?}");
    }
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
