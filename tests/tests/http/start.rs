//! Whether the port is served, and where.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use fonn_tests::client::HttpClient;
use fonn_tests::cluster::Cluster;
use fonn_tests::node::{NodeOptions, node_program};
use fonn_tests::process::{Daemon, accepts, free_address};
use fonn_tests::router::router_program;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn an_address_that_was_asked_for_and_is_taken_is_an_error() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let taken = listener.local_addr()?.to_string();
    let none = ["--data-dir", "none"];
    let cluster = ["--cluster", "127.0.0.1:1"];
    for (program, more) in [(node_program()?, none), (router_program()?, cluster)] {
        let mut command = Command::new(program);
        command.args(["--listen", &free_address()?.to_string()]);
        command.args(["--admin-listen", &free_address()?.to_string()]);
        command.args(["--http-listen", &taken]).args(more);
        let mut daemon = Daemon::spawn("fonn", &mut command)?;
        ensure!(daemon.wait_exit(LIMIT)?.code() == Some(1));
        let log = daemon.log().text();
        ensure!(
            log.contains(&taken) && log.contains("--http-listen"),
            "{log}"
        );
    }
    Ok(())
}

/// Whatever listens at the default address of this machine, if anything does: two nodes start, and
/// at most one of them has it.
#[test]
fn a_default_address_that_is_taken_costs_a_warning() -> Result<()> {
    let start = || NodeOptions::new().in_memory().omit("--http-listen").start();
    let (first, second) = (start()?, start()?);
    // A node serves before the test has read what it logged.
    let logs = [first.log()?, second.log()?];
    let begun = Instant::now();
    while !logs
        .iter()
        .any(|log| log.text().contains("HTTP is not served"))
    {
        ensure!(begun.elapsed() < LIMIT, "{:?}", logs.map(|log| log.text()));
        std::thread::sleep(Duration::from_millis(10));
    }
    for node in [&first, &second] {
        ensure!(node.text()?.command("version")?.starts_with("VERSION"));
    }
    Ok(())
}

#[test]
fn an_open_address_is_refused_unless_it_is_wanted() -> Result<()> {
    let open = format!("0.0.0.0:{}", free_address()?.port());
    let mut command = Command::new(node_program()?);
    command.args(["--data-dir", "none", "--http-listen", &open]);
    let mut daemon = Daemon::spawn("fonn-node", &mut command)?;
    ensure!(daemon.wait_exit(LIMIT)?.code() == Some(2));
    let log = daemon.log().text();
    ensure!(log.contains(&open) && log.contains("--insecure"), "{log}");
    let node = NodeOptions::new().in_memory();
    let node = node
        .flag("--http-listen", &open)
        .flag("--insecure", "true")
        .start()?;
    ensure!(accepts(open.replace("0.0.0.0", "127.0.0.1").parse()?));
    drop(node);
    Ok(())
}

/// The TCP ports at which a process listens, by `/proc/PID/fd` and `/proc/PID/net/tcp` (proc(5)).
/// Other processes of this machine may listen at the default address.
fn listening(pid: u32) -> Result<BTreeSet<u16>> {
    let mut sockets = HashSet::new();
    for file in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A file may be closed by now.
        let Ok(target) = fs::read_link(file?.path()) else {
            continue;
        };
        let target = target.to_string_lossy();
        let inode = target.strip_prefix("socket:[");
        if let Some(inode) = inode.and_then(|it| it.strip_suffix(']')) {
            sockets.insert(inode.to_owned());
        }
    }
    let mut ports = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, state, _, _, _, _, _, inode, ..] = columns[..] else {
                continue;
            };
            let port = local.rsplit_once(':').map(|(_, port)| port);
            if let (LISTEN, Some(port), true) = (state, port, sockets.contains(inode)) {
                ports.insert(u16::from_str_radix(port, 16)?);
            }
        }
    }
    Ok(ports)
}

/// The state of a listening socket.
const LISTEN: &str = "0A";

fn ports<const N: usize>(addresses: [SocketAddr; N]) -> BTreeSet<u16> {
    addresses.iter().map(SocketAddr::port).collect()
}

#[test]
fn with_none_for_an_address_the_port_is_served_nowhere() -> Result<()> {
    for http in ["none", ""] {
        let mut options = NodeOptions::new().in_memory();
        options = match http {
            // The control: without the flag there would be one more port.
            "" => options.with_http(),
            none => options.flag("--http-listen", none),
        };
        let node = options.start()?;
        let found = listening(node.pid()?)?;
        let mut expected = ports([node.addr(), node.admin()]);
        if http.is_empty() {
            expected.insert(node.http().port());
        }
        ensure!(found == expected, "{http}: {found:?} and not {expected:?}");
    }
    let cluster = Cluster::form_of(1, NodeOptions::new())?;
    let http = free_address()?;
    // A router serves it only if it is told to.
    for (flags, served) in [
        (vec![], None),
        (vec![("--http-listen", "none".to_owned())], None),
        (vec![("--http-listen", http.to_string())], Some(http.port())),
    ] {
        let router = cluster.router_with(flags.clone())?;
        let found = listening(router.pid()?)?;
        let mut expected = ports([router.addr(), router.admin()]);
        expected.extend(served);
        ensure!(
            found == expected,
            "{flags:?}: {found:?} and not {expected:?}"
        );
    }
    Ok(())
}

#[test]
fn a_router_refuses_an_open_address_unless_it_is_wanted() -> Result<()> {
    let http = free_address()?;
    let open = format!("0.0.0.0:{}", http.port());
    let users = tempfile::NamedTempFile::new()?;
    let with_users = ["--users-file", &users.path().display().to_string()];
    for (more, why) in [
        (&[][..], "may read and change everything"),
        (&with_users, "in the clear"),
    ] {
        let mut command = Command::new(router_program()?);
        // No member is asked before the settings are found wrong.
        command.args(["--cluster", "127.0.0.1:1", "--http-listen", &open]);
        let mut daemon = Daemon::spawn("fonn-router", command.args(more))?;
        let status = daemon.wait_exit(LIMIT)?;
        let log = daemon.log().text();
        ensure!(status.code() == Some(2), "{status}: {log}");
        for part in [&open, "--http-listen", "--insecure", why] {
            ensure!(log.contains(part), "{part} is not in {log}");
        }
    }
    let cluster = Cluster::form_of(1, NodeOptions::new())?;
    let flags = [("--http-listen", &*open), ("--insecure", "true")];
    let flags = flags.map(|(name, value)| (name, value.to_owned()));
    let _router = cluster.router_with(flags.to_vec())?;
    let mut client = HttpClient::connect(http)?;
    ensure!(client.put("/a", b"hello")? == 200);
    ensure!(client.get("/a")?.as_deref() == Some(&b"hello"[..]));
    Ok(())
}

#[test]
fn a_node_stops_at_once_although_clients_are_connected() -> Result<()> {
    let mut node = NodeOptions::new().in_memory().with_http().start()?;
    let mut idle = HttpClient::connect(node.http())?;
    ensure!(idle.put("/a", b"hello")? == 200);
    node.stop()?;
    ensure!(idle.at_end()?);
    Ok(())
}
