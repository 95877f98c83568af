//! Whether the port is served, and where.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use fonn_tests::client::HttpClient;
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

#[test]
fn a_node_stops_at_once_although_clients_are_connected() -> Result<()> {
    let mut node = NodeOptions::new().in_memory().with_http().start()?;
    let mut idle = HttpClient::connect(node.http())?;
    ensure!(idle.put("/a", b"hello")? == 200);
    node.stop()?;
    ensure!(idle.at_end()?);
    Ok(())
}
