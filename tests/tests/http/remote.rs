//! Bazel over gRPC. Its action tells the time, so the same output twice was not made twice.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};

use fonn_tests::client::HttpClient;
use fonn_tests::cluster::Cluster;
use fonn_tests::component::program;
use fonn_tests::node::NodeOptions;
use fonn_tests::process::free_address;
use fonn_tests::values::{Content, ValuePool};

use super::bazel::Workspace;
use super::documented::documented;
use super::guarded::Guarded;

/// What Bazel says of a hit.
const HIT: &str = "1 remote cache hit";

const SECTION: &str = "Bazel over gRPC";

/// `ci:correct-horse`, `dev:…` and `ci:wrong-horse` as HTTP Basic has them.
const CI: &str = "Basic Y2k6Y29ycmVjdC1ob3JzZQ==";
const DEV: &str = "Basic ZGV2OmNvcnJlY3QtaG9yc2U=";
const WRONG: &str = "Basic Y2k6d3JvbmctaG9yc2U=";

/// The path of a text in the content-addressed store.
fn path_of(text: &str) -> Result<String> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("text");
    std::fs::write(&file, text)?;
    let output = Command::new("sha256sum").arg(&file).output()?;
    let output = String::from_utf8(output.stdout)?;
    let hash = output.split_whitespace().next().context("no digest")?;
    Ok(format!("/cas/{hash}"))
}

#[test]
fn bazel_hits_over_grpc_and_builds_again_what_is_gone() -> Result<()> {
    let Some(bazel) = program("bazel")? else {
        return Ok(());
    };
    let mut node = NodeOptions::new().with_http().start()?;
    let line = documented(SECTION, node.http())?;
    let workspace = Workspace::new(&bazel)?;
    let (_, first) = workspace.build(&line)?;
    node.kill9()?;
    node.start_again()?;
    let (text, second) = workspace.build(&line)?;
    ensure!(text.contains(HIT) && first == second, "{text}");
    // The entries are those of HTTP.
    let (text, third) = workspace.build(&documented("Bazel", node.http())?)?;
    ensure!(text.contains(HIT) && first == third, "{text}");
    let (text, other) = workspace.build_with(&line, &["--remote_instance_name=other"])?;
    ensure!(
        !text.contains("remote cache hit") && other != first,
        "{text}"
    );
    // Without an output the result of its action is no result, and the action runs again.
    let mut door = HttpClient::connect(node.http())?;
    let removed = door.request("DELETE", &path_of(&first)?, &[], b"")?;
    ensure!(removed.status == 204, "{removed:?}");
    let (text, fourth) = workspace.build(&line)?;
    ensure!(
        !text.contains("remote cache hit") && fourth != first,
        "{text}"
    );
    let incomplete = node.metric("fonn_reapi_action_results_total")?;
    ensure!(
        incomplete.is_some_and(|count| count >= 3.0),
        "{incomplete:?}"
    );
    Ok(())
}

#[test]
fn bazel_hits_over_grpc_through_a_router_and_after_a_member_is_lost() -> Result<()> {
    let Some(bazel) = program("bazel")? else {
        return Ok(());
    };
    let mut cluster = Cluster::form_of(3, NodeOptions::new().with_http())?;
    let http = free_address()?;
    let _router = cluster.router_with(vec![("--http-listen", http.to_string())])?;
    let line = documented(SECTION, http)?;
    let workspace = Workspace::new(&bazel)?;
    let (_, first) = workspace.build(&line)?;
    let (text, second) = workspace.build(&line)?;
    ensure!(text.contains(HIT) && first == second, "{text}");
    let member = documented(SECTION, cluster.nodes[1].http())?;
    let (text, third) = workspace.build(&member)?;
    ensure!(text.contains(HIT) && first == third, "{text}");
    cluster.nodes[2].kill9()?;
    // What only the lost member had is built again; no build fails.
    workspace.build(&line)?;
    let (_, fourth) = workspace.build(&member)?;
    let (text, fifth) = workspace.build(&line)?;
    ensure!(text.contains(HIT) && fourth == fifth, "{text}");
    Ok(())
}

#[test]
fn bazel_over_grpc_reads_as_a_reader_and_builds_without_a_login() -> Result<()> {
    let Some(bazel) = program("bazel")? else {
        return Ok(());
    };
    let guarded = Guarded::start(NodeOptions::new().in_memory())?;
    let workspace = Workspace::new(&bazel)?;
    let build = |section: &str, login: &str, more: &[&str]| {
        let line = documented(section, guarded.node.http())?;
        let header = format!("--remote_header=authorization={login}");
        let more: Vec<&str> = more.iter().copied().chain([&*header]).collect();
        workspace.build_with(&line, &more)
    };
    // Bazel 2.1 sends its header with reads alone over gRPC, and with all requests over HTTP.
    let (_, first) = build("Bazel", CI, &[])?;
    for login in [CI, DEV] {
        let (text, again) = build(SECTION, login, &[])?;
        ensure!(text.contains(HIT) && again == first, "{text}");
    }
    // A client without a login that only reads builds by itself.
    let (text, own) = build(SECTION, WRONG, &["--remote_upload_local_results=false"])?;
    ensure!(!text.contains("remote cache hit") && own != first, "{text}");
    Ok(())
}

#[test]
fn no_build_over_grpc_fails_while_the_budget_evicts() -> Result<()> {
    let Some(bazel) = program("bazel")? else {
        return Ok(());
    };
    let options = NodeOptions::new().in_memory().with_http();
    let node = options.flag("--ram-budget", "64m").start()?;
    let line = documented(SECTION, node.http())?;
    let workspace = Workspace::new(&bazel)?;
    let is_over = AtomicBool::new(false);
    let pool = ValuePool::new(Content::Random, 1 << 20);
    let fill = || -> Result<u64> {
        let mut door = HttpClient::connect(node.http())?;
        let mut number = 0;
        while !is_over.load(Ordering::Relaxed) {
            door.put(
                &format!("/fill/{number}"),
                &pool.value(number, 1 << 20).to_vec(),
            )?;
            number += 1;
        }
        Ok(number)
    };
    let filled = std::thread::scope(|scope| {
        let filler = scope.spawn(fill);
        let built = (0..4).try_for_each(|_| workspace.build(&line).map(|_| ()));
        is_over.store(true, Ordering::Relaxed);
        let filled = filler.join().unwrap();
        built.and(filled)
    })?;
    ensure!(filled > 128, "{filled} MiB were written");
    Ok(())
}
