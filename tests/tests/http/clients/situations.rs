//! The situations of a cache, each with all tools.
//!
//! By default they are those of one node. `FONN_SITUATIONS=all` has all situations, and `quick` has
//! them with the tools that build within seconds.

#![allow(clippy::print_stderr, reason = "the table of rows and their times")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use fonn_tests::client::HttpClient;
use fonn_tests::cluster::Cluster;
use fonn_tests::node::NodeOptions;
use fonn_tests::process::free_address;
use fonn_tests::values::{Content, ValuePool};

use super::super::tokens::{Secrets, Tokens};
use super::{Build, Endpoint, Found, Refused, Tool, all};

/// Builds at a time.
const JOBS: usize = 2;

/// Tools that take up to half a minute for a build.
const SLOW: [&str; 4] = ["Gradle", "Maven", "Nx", "Rush"];

/// Budgets of a member that evicts, and the length of the values that fill them.
const EVICTING_RAM_MIB: u64 = 64;
const EVICTING_DISK_MIB: u64 = 64;
const FILLING_LEN: usize = 1 << 20;

/// Has the form of a token, and no entry of a users file has it.
const UNKNOWN: &str = "fonn_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Checks each tool in one situation; returns what `check` returns, in the order of the tools.
fn each<T: Send>(
    tools: &[Box<dyn Tool>],
    situation: &str,
    check: impl Fn(usize, &dyn Tool) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let queue: Mutex<VecDeque<usize>> = Mutex::new((0..tools.len()).collect());
    let next = || {
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.pop_front()
    };
    let work = || {
        let mut done = Vec::new();
        while let Some(number) = next() {
            let (tool, begun) = (&tools[number], Instant::now());
            let checked = check(number, &**tool);
            let (name, seconds) = (tool.name(), begun.elapsed().as_secs_f64());
            eprintln!("{seconds:>7.2} s  {name} | {situation}");
            done.push((
                number,
                checked.with_context(|| format!("{name}, {situation}")),
            ));
        }
        done
    };
    let mut all = thread::scope(|scope| {
        let workers: Vec<_> = (0..JOBS).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|it| it.join());
        joined.collect::<Result<Vec<_>, _>>()
    })
    .map_err(|_| anyhow!("a worker panicked"))?
    .into_iter()
    .flatten()
    .collect::<Vec<_>>();
    all.sort_by_key(|(number, _)| *number);
    let failures: Vec<String> = all
        .iter()
        .filter_map(|(_, checked)| checked.as_ref().err().map(|error| format!("{error:#}")))
        .collect();
    ensure!(failures.is_empty(), "{}", failures.join("\n\n"));
    all.into_iter().map(|(_, checked)| checked).collect()
}

/// Builds with each tool, and checks what was found.
fn build(
    tools: &[Box<dyn Tool>],
    at: &Endpoint,
    situation: &str,
    found: Found,
) -> Result<Vec<Build>> {
    each(tools, situation, |_, tool| {
        let build = tool.build(at)?;
        build.expect(found, situation)?;
        Ok(build)
    })
}

/// Builds with each tool, and checks that the cache gives what `first` made.
fn build_again(
    tools: &[Box<dyn Tool>],
    at: &Endpoint,
    situation: &str,
    first: &[Build],
) -> Result<()> {
    each(tools, situation, |number, tool| {
        let first = first.get(number).context("no first build")?;
        tool.build(at)?.expect_output_of(first, situation)
    })?;
    Ok(())
}

fn at_a_node(tools: &[Box<dyn Tool>]) -> Result<()> {
    let mut node = NodeOptions::new().with_http().start()?;
    let at = Endpoint::open(node.http());
    let first = build(tools, &at, "an empty node", Found::Nothing)?;
    build_again(tools, &at, "a node", &first)?;
    node.kill9()?;
    node.start_again()?;
    build_again(tools, &at, "after kill -9", &first)
}

fn through_a_router(tools: &[Box<dyn Tool>]) -> Result<()> {
    let options = NodeOptions::new()
        .flag("--ram-budget", "64m")
        .flag("--disk-budget", "512m");
    let mut cluster = Cluster::form_of(3, options)?;
    let http = free_address()?;
    let _router = cluster.router_with(vec![("--http-listen", http.to_string())])?;
    let at = Endpoint::open(http);
    let first = build(tools, &at, "an empty cluster", Found::Nothing)?;
    build_again(tools, &at, "through a router", &first)?;
    cluster.nodes[2].kill9()?;
    // Every build ends well, whatever its tool finds.
    each(tools, "while a member is lost", |_, tool| tool.build(&at))?;
    let is_down = |state: &String| state == "down";
    cluster.wait(&[2], "the lost member is down", |states| {
        states.get("c").is_some_and(is_down)
    })?;
    cluster.wait_settled(&[2])?;
    let second = each(tools, "a member is down", |_, tool| tool.build(&at))?;
    build_again(tools, &at, "a member is down, again", &second)
}

/// Stores values until it is told to end. Says once that members with those budgets evict.
fn fill(http: SocketAddr, has_filled: SyncSender<()>, is_over: &AtomicBool) -> Result<()> {
    let pool = ValuePool::new(Content::Random, FILLING_LEN);
    let mut door = HttpClient::connect(http)?;
    let enough = 3 * (EVICTING_RAM_MIB + EVICTING_DISK_MIB);
    let (mut number, mut stored) = (0, 0);
    while !is_over.load(Ordering::Relaxed) {
        let value = pool.value(number, FILLING_LEN).to_vec();
        let status = door.put(&format!("/fill/{number}"), &value)?;
        number += 1;
        // A member that is busy may refuse a value, but not most of them.
        ensure!(number < 4 * enough || stored > number / 4, "{status}");
        if status != 200 {
            continue;
        }
        stored += 1;
        if stored == enough {
            ensure!(door.get("/fill/0")?.is_none(), "nothing was evicted");
            // The builds may have ended already.
            let _ = has_filled.send(());
        }
    }
    Ok(())
}

fn while_the_budget_evicts(tools: &[Box<dyn Tool>]) -> Result<()> {
    let options = NodeOptions::new()
        .flag("--ram-budget", format!("{EVICTING_RAM_MIB}m"))
        .flag("--disk-budget", format!("{EVICTING_DISK_MIB}m"))
        .patient();
    let cluster = Cluster::form_of(3, options)?;
    let http = free_address()?;
    let _router = cluster.router_with(vec![("--http-listen", http.to_string())])?;
    let at = Endpoint::open(http);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (has_filled, filled) = sync_channel(1);
        let filler = scope.spawn(|| fill(http, has_filled, &is_over));
        // It also ends when the filler does, whose error follows.
        let built = filled.recv().map_err(|_| anyhow!("no value was stored"));
        let built = built.and_then(|()| {
            // Every build ends well, whatever its tool finds.
            for situation in ["while the budget evicts", "while the budget evicts, again"] {
                each(tools, situation, |_, tool| tool.build(&at))?;
            }
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        let filled = filler.join().map_err(|_| anyhow!("the filler panicked"))?;
        filled.and(built)
    })
}

fn with_tokens(tools: &[Box<dyn Tool>]) -> Result<()> {
    let (tokens, secrets) = Tokens::start("", Secrets::create)?;
    let with = |token: &str| Endpoint::with_token(tokens.node.http(), token);
    let writer = with(&secrets.writer);
    let reader = with(&secrets.reader).read_only();
    build(tools, &reader, "a reader, and no entries", Found::Nothing)?;
    // So the reader has stored nothing.
    let first = build(tools, &writer, "a writer, and no entries", Found::Nothing)?;
    build_again(tools, &reader, "a reader", &first)?;
    for (situation, token) in [
        ("a wrong token", UNKNOWN),
        ("an expired token", secrets.expired.as_str()),
    ] {
        each(tools, situation, |number, tool| {
            match (tool.build(&with(token)), tool.when_refused()) {
                (Ok(build), Refused::BuildsOn) => {
                    let own = build.output.is_empty() || build.output != first[number].output;
                    ensure!(own, "the output is that of the writer: {}", build.said);
                    build.expect(Found::Nothing, situation)
                }
                (Err(error), Refused::Ends(part)) => {
                    let told = format!("{error:#}");
                    ensure!(told.contains(part), "{part} is not in {told}");
                    Ok(())
                }
                (Ok(build), Refused::Ends(_)) => bail!("it built: {}", build.said),
                (Err(error), Refused::BuildsOn) => Err(error),
            }
        })?;
    }
    build_again(tools, &writer, "a writer", &first)
}

#[test]
fn every_build_tool_hits_in_every_situation() -> Result<()> {
    let mut tools = all()?;
    let asked = std::env::var("FONN_SITUATIONS");
    match asked.as_deref() {
        Err(_) => return at_a_node(&tools),
        Ok("all") => {}
        Ok("quick") => tools.retain(|tool| !SLOW.contains(&&*tool.name())),
        Ok(other) => bail!("FONN_SITUATIONS is {other:?}; it may be `all`, `quick` or not set"),
    }
    at_a_node(&tools)?;
    through_a_router(&tools)?;
    while_the_budget_evicts(&tools)?;
    with_tokens(&tools)
}
