//! Clients that find the owners of keys by themselves: at a node in no cluster, at a router, and at
//! the members of a cluster.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use fonn_tests::component::{present, program};
use fonn_tests::ctl::json;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::{free_address, run};
use fonn_tests::project::CProject;
use fonn_tests::router::FonnRouter;
use fonn_tests::sccache::{Mode, Sccache, Storage};

/// A busy machine needs its time; what is asked for is far less.
const LIMIT: Duration = Duration::from_secs(60);

fn member(name: &str, listen: &str) -> NodeOptions {
    NodeOptions::new()
        .flag("--node-id", name)
        .flag("--cluster-listen", listen)
        .flag("--ram-budget", "32m")
        .flag("--disk-budget", "256m")
        .patient()
}

/// A member that has formed a cluster, and the address of its cluster listener.
fn bootstrapped() -> Result<(FonnNode, String)> {
    let listen = free_address()?.to_string();
    let node = member("a", &listen).flag("--bootstrap", "true").start()?;
    wait_for_owners(&node, 1)?;
    Ok((node, listen))
}

/// Waits until a node knows that so many members own slots.
fn wait_for_owners(node: &FonnNode, count: usize) -> Result<()> {
    let begun = Instant::now();
    loop {
        let map = json(&node.admin().to_string(), &["map"]);
        let owners = map.as_ref().ok().and_then(|map| {
            let members = map["members"].as_array()?;
            let owning = members
                .iter()
                .filter(|it| it["slots_first"].as_u64().is_some_and(|slots| slots > 0));
            Some(owning.count())
        });
        if owners == Some(count) {
            return Ok(());
        }
        ensure!(begun.elapsed() < LIMIT, "no {count} owners: {map:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn three() -> Result<Vec<FonnNode>> {
    let (first, seed) = bootstrapped()?;
    let mut nodes = vec![first];
    for name in ["b", "c"] {
        let listen = free_address()?.to_string();
        nodes.push(member(name, &listen).flag("--join", &seed).start()?);
    }
    for node in &nodes {
        wait_for_owners(node, 3)?;
    }
    Ok(nodes)
}

/// Python, if it has redis-py.
fn redis_py() -> Result<Option<PathBuf>> {
    let Some(python) = program("python3")? else {
        return Ok(None);
    };
    let probe = run(Command::new(&python).args(["-c", "import redis"]));
    Ok(present("redis for Python", probe.ok())?.map(|_| python))
}

/// redis-py's cluster client, sent to `addr`, finds `servers` that own slots, and works.
fn redis_py_works(addr: SocketAddr, servers: usize) -> Result<bool> {
    let Some(python) = redis_py()? else {
        return Ok(false);
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/cluster.py");
    let mut command = Command::new(&python);
    command
        .arg(&script)
        .args([addr.ip().to_string(), addr.port().to_string()])
        .arg(servers.to_string());
    let text = run(&mut command)?;
    assert!(text.contains("were found"), "{text}");
    Ok(true)
}

#[test]
fn redis_py_finds_its_way_in_a_node_in_no_cluster() -> Result<()> {
    for node in [FonnNode::start()?, NodeOptions::new().in_memory().start()?] {
        redis_py_works(node.addr(), 1)?;
    }
    Ok(())
}

#[test]
fn redis_py_finds_its_way_through_a_router() -> Result<()> {
    let (_node, seed) = bootstrapped()?;
    let router = FonnRouter::start(&[seed.parse()?])?;
    redis_py_works(router.addr(), 1).map(drop)
}

#[test]
fn redis_py_goes_to_the_owners_of_a_cluster() -> Result<()> {
    let nodes = three()?;
    if !redis_py_works(nodes[1].addr(), 3)? {
        return Ok(());
    }
    // No member forwarded anything: each has the entries that it owns.
    let mut counts = Vec::new();
    for node in &nodes {
        counts.push(node.resp()?.command("DBSIZE")?.integer()?);
    }
    let sum: i64 = counts.iter().sum();
    for count in &counts {
        assert!(*count > sum / 5, "{counts:?}");
    }
    Ok(())
}

/// Commands that a router has passed on to members.
fn forwarded(router: &FonnRouter) -> Result<f64> {
    router.metric("fonn_router_commands_total{event=\"forwarded\"}")
}

#[test]
fn redis_py_goes_on_with_another_router_when_its_own_is_killed() -> Result<()> {
    let Some(python) = redis_py()? else {
        return Ok(());
    };
    let (_node, seed) = bootstrapped()?;
    let seed = seed.parse()?;
    let mut routers = [FonnRouter::start(&[seed])?, FonnRouter::start(&[seed])?];
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/goes_on.py");
    let mut child = Command::new(&python)
        .arg(&script)
        .arg(LIMIT.as_secs().to_string())
        .args(routers.each_ref().map(|it| it.addr().to_string()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
    let mut next = || {
        lines
            .next()
            .context("the client has ended")?
            .context("reading")
    };
    let port: u16 = next()?.parse()?;
    let used = routers.iter().position(|it| it.addr().port() == port);
    let used = used.context("the client uses another server")?;
    let other = forwarded(&routers[1 - used])?;
    routers[used].kill9()?;
    drop(child.stdin.take());
    let end = next()?;
    ensure!(forwarded(&routers[1 - used])? > other);
    ensure!(end.starts_with("no key was lost"), "{end}");
    println!("{end}");
    ensure!(child.wait()?.success());
    Ok(())
}

#[test]
fn redis_cli_agrees_with_each_of_two_routers() -> Result<()> {
    let Some(cli) = program("redis-cli")? else {
        return Ok(());
    };
    let (_node, seed) = bootstrapped()?;
    let seed = seed.parse()?;
    for router in [FonnRouter::start(&[seed])?, FonnRouter::start(&[seed])?] {
        check(&cli, router.addr(), 1)?;
        assert_eq!(redis_cli(&cli, router.addr(), "-c SET foo bar")?, "OK");
        assert_eq!(redis_cli(&cli, router.addr(), "GET foo")?, "bar");
    }
    Ok(())
}

fn redis_cli(program: &Path, addr: SocketAddr, line: &str) -> Result<String> {
    let mut command = Command::new(program);
    command.args(["-h", &addr.ip().to_string(), "-p", &addr.port().to_string()]);
    command.args(line.split(' '));
    Ok(run(&mut command)?.trim_end().to_owned())
}

/// `redis-cli --cluster check`, which leaves with an error if anything is wrong.
fn check(program: &Path, addr: SocketAddr, servers: usize) -> Result<()> {
    let mut command = Command::new(program);
    command.args(["--cluster", "check", &addr.to_string()]);
    let text = run(&mut command)?;
    let masters = text.matches("M: ").count();
    ensure!(
        text.contains("[OK] All nodes agree about slots configuration.")
            && text.contains("[OK] All 16384 slots covered.")
            && masters == servers,
        "{text}"
    );
    Ok(())
}

#[test]
fn redis_cli_takes_each_kind_of_server_for_a_cluster() -> Result<()> {
    let Some(cli) = program("redis-cli")? else {
        return Ok(());
    };
    let lone = FonnNode::start()?;
    let (member, seed) = bootstrapped()?;
    let router = FonnRouter::start(&[seed.parse()?])?;
    for addr in [lone.addr(), member.addr(), router.addr()] {
        check(&cli, addr, 1)?;
        assert_eq!(redis_cli(&cli, addr, "-c SET foo bar")?, "OK");
        assert_eq!(redis_cli(&cli, addr, "-c GET foo")?, "bar");
        assert_eq!(redis_cli(&cli, addr, "CLUSTER KEYSLOT foo")?, "12182");
        let count = redis_cli(&cli, addr, "CLUSTER COUNTKEYSINSLOT 12182")?;
        assert_eq!(count, "1");
        let id = redis_cli(&cli, addr, "CLUSTER MYID")?;
        assert_eq!(id.len(), 40, "{id}");
        assert!(redis_cli(&cli, addr, "CLUSTER NODES")?.starts_with(&id));
    }
    Ok(())
}

#[test]
fn redis_cli_agrees_with_the_members_of_a_cluster() -> Result<()> {
    let Some(cli) = program("redis-cli")? else {
        return Ok(());
    };
    let nodes = three()?;
    let mut ids = Vec::new();
    for node in &nodes {
        check(&cli, node.addr(), 3)?;
        ids.push(redis_cli(&cli, node.addr(), "CLUSTER MYID")?);
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    // All tell the same.
    let slots = |node: &FonnNode| redis_cli(&cli, node.addr(), "CLUSTER SLOTS");
    let first = slots(&nodes[0])?;
    for node in &nodes {
        assert_eq!(slots(node)?, first);
    }
    Ok(())
}

#[test]
fn an_id_stays_the_same_across_a_restart() -> Result<()> {
    let (mut node, _) = bootstrapped()?;
    let id = |node: &FonnNode| {
        node.resp()?
            .command("CLUSTER MYID")
            .map(|it| format!("{it:?}"))
    };
    let before = id(&node)?;
    node.kill9()?;
    node.start_again()?;
    assert_eq!(id(&node)?, before);
    Ok(())
}

/// Files of a build.
const FILES: u64 = 20;

/// Builds a project with sccache, told of `addrs` as servers of a Redis cluster, as often as there
/// are hits expected.
fn sccache_hits(addrs: &[SocketAddr], scratch: &Path, expected: &[u64]) -> Result<()> {
    let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
        return Ok(());
    };
    let c = CProject::generate(&scratch.join("c"), FILES as usize)?;
    let storage = Storage::redis_cluster(addrs, Mode::ReadWrite);
    let mut server = Sccache::start(&sccache, &scratch.join("sccache"), storage)?;
    for &hits in expected {
        server.zero_stats()?;
        c.clean()?;
        server.build_c(&c, |_| Ok(()))?;
        let stats = server.stats()?;
        assert_eq!(stats.hits(), hits, "{stats:?}");
        server.wait_for_writes(FILES - hits)?;
        server.stats()?.expect_quiet()?;
    }
    Ok(())
}

#[test]
fn sccache_with_cluster_endpoints_hits_at_a_node_in_no_cluster() -> Result<()> {
    let node = FonnNode::start()?;
    sccache_hits(&[node.addr()], node.scratch(), &[0, FILES])
}

#[test]
fn sccache_with_cluster_endpoints_hits_through_routers_and_at_members() -> Result<()> {
    let nodes = three()?;
    let seed = json(&nodes[0].admin().to_string(), &["map"])?;
    let seed = seed["members"][0]["member"]["cluster_address"].as_str();
    let seed = seed.unwrap_or_default().to_owned();
    let routers = [
        FonnRouter::start(&[seed.parse()?])?,
        FonnRouter::start(&[seed.parse()?])?,
    ];
    let addrs: Vec<_> = routers.iter().map(FonnRouter::addr).collect();
    sccache_hits(&addrs, &nodes[0].scratch().join("routers"), &[0, FILES])?;
    let addrs: Vec<_> = nodes.iter().map(FonnNode::addr).collect();
    // Where the routers put them is where the clients look.
    sccache_hits(&addrs, &nodes[0].scratch().join("members"), &[FILES])
}
