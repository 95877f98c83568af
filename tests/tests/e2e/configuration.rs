//! Flags, environment, file; what is refused and how it is said.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use fonn_tests::client::{Cache, is_refusal};
use fonn_tests::node::{FonnNode, NodeOptions, node_program};
use fonn_tests::process::{Daemon, Signal, free_address};
use fonn_tests::router::router_program;

/// Starts the node with flags that it cannot use; returns its exit code and what it said.
fn refused(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(Option<i32>, String)> {
    ended(&node_program()?, arguments, environment)
}

/// The same, of a node or a router.
fn ended(
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<(Option<i32>, String)> {
    let dir = tempfile::tempdir()?;
    let mut command = Command::new(program);
    command.env("XDG_CACHE_HOME", dir.path()).args(arguments);
    command.envs(environment.iter().copied());
    let mut daemon = Daemon::spawn("fonn-node", &mut command)?;
    let status = daemon.wait_exit(Duration::from_secs(60))?;
    Ok((status.code(), daemon.log().text()))
}

#[test]
fn a_bad_flag_ends_in_code_2_and_a_sentence_that_names_it() -> Result<()> {
    let cases: [(&[&str], &[&str]); 16] = [
        (&["--ram-budget", "banana"], &["--ram-budget", "banana"]),
        (&["--disk-budget", "10x"], &["--disk-budget", "10x"]),
        (&["--ram-budget", "1"], &["--ram-budget", "at least"]),
        (
            &["--durability", "sometimes"],
            &["--durability", "sometimes", "batched"],
        ),
        (&["--lru", "exact"], &["--lru", "exact", "strict"]),
        (&["--codec", "ram=rar"], &["--codec", "rar", "lz4"]),
        (&["--threads", "0"], &["--threads", "0"]),
        (&["--max-value", "none"], &["--max-value", "none"]),
        (&["--no-such-flag"], &["--no-such-flag"]),
        (
            &["--users-file", "/nonexistent"],
            &["--users-file /nonexistent", "cannot read"],
        ),
        (&["--tls-cert", "c.pem"], &["--tls-cert", "--tls-key"]),
        (
            &["--tls-cert", "/nonexistent", "--tls-key", "/nonexistent"],
            &["--tls-cert /nonexistent", "cannot read"],
        ),
        (
            &["--admin-listen", "0.0.0.0:1"],
            &["--admin-listen", "--users-file", "--insecure"],
        ),
        (
            &["--listen", "0.0.0.0:1", "--users-file", "u"],
            &[
                "--listen",
                "0.0.0.0:1",
                "in the clear",
                "--tls-cert",
                "--insecure",
            ],
        ),
        (&["--node-id", "a"], &["--node-id", "--cluster-listen"]),
        (
            &[
                "--node-id",
                "a",
                "--cluster-listen",
                "0.0.0.0:1",
                "--bootstrap",
            ],
            &["--cluster-listen", "0.0.0.0:1", "--insecure"],
        ),
    ];
    for (arguments, parts) in cases {
        let (code, text) = refused(arguments, &[])?;
        assert_eq!(code, Some(2), "{arguments:?}: {text}");
        for part in parts {
            assert!(
                text.contains(part),
                "{arguments:?} says nothing of {part}: {text}"
            );
        }
    }
    let (code, text) = refused(&[], &[("FONN_RAM_BUDGET", "banana")])?;
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("banana"), "{text}");
    Ok(())
}

#[test]
fn a_new_member_is_told_to_form_a_cluster_or_to_join_one() -> Result<()> {
    let listen = free_address()?.to_string();
    let (code, text) = refused(&["--node-id", "a", "--cluster-listen", &listen], &[])?;
    // Its disk said so, not its flags.
    assert_eq!(code, Some(1), "{text}");
    for part in ["no cluster yet", "--bootstrap", "--join"] {
        assert!(text.contains(part), "it says nothing of {part}: {text}");
    }
    Ok(())
}

#[test]
fn an_open_listener_is_refused_unless_it_is_wanted() -> Result<()> {
    let open = format!("0.0.0.0:{}", free_address()?.port());
    let [clients, admin] = [free_address()?.to_string(), free_address()?.to_string()];
    let none = ["--data-dir", "none"];
    let member = ["--node-id", "a", "--bootstrap", "--cluster-listen", &open];
    let cluster = ["--cluster", "127.0.0.1:1"];
    for (program, more, listen, admin_listen) in [
        (node_program()?, &none[..], &open, &admin),
        (node_program()?, &none, &clients, &open),
        (node_program()?, &member, &clients, &admin),
        (router_program()?, &cluster, &open, &admin),
        (router_program()?, &cluster, &clients, &open),
    ] {
        let arguments = [&["--listen", listen, "--admin-listen", admin_listen], more].concat();
        let (code, text) = ended(&program, &arguments, &[])?;
        assert_eq!(code, Some(2), "{arguments:?}: {text}");
        assert!(
            text.contains(&open) && text.contains("--insecure"),
            "{arguments:?}: {text}"
        );
    }
    let node = NodeOptions::new()
        .flag("--listen", &open)
        .flag("--insecure", "true")
        .start()?;
    assert!(node.text()?.command("version")?.starts_with("VERSION"));
    Ok(())
}

#[test]
fn an_unknown_key_in_the_file_is_named_with_its_line() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("fonn.toml");
    let path = file.to_string_lossy();
    fs::write(
        &file,
        "# a comment\nram_budget = \"64m\"\nram_bugdet = \"64m\"\n",
    )?;
    let (code, text) = refused(&["--config", &path], &[])?;
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("ram_bugdet") && text.contains('3'), "{text}");
    assert!(text.contains(&*path), "{text}");
    fs::write(&file, "ram_budget = \"64m\"\nmax_value = [1]\n")?;
    let (code, text) = refused(&["--config", &path], &[])?;
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("max_value") || text.contains("line 2"),
        "{text}"
    );
    let (code, text) = refused(&["--config", "/no/such/file.toml"], &[])?;
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("/no/such/file.toml"), "{text}");
    Ok(())
}

/// Whether a node stores a value of `len` bytes.
fn stores(node: &FonnNode, len: usize) -> Result<bool> {
    match node.binary()?.set("k", &vec![0; len], None) {
        Ok(()) => Ok(true),
        Err(error) if is_refusal(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

#[test]
fn a_flag_beats_the_environment_and_that_beats_the_file() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("fonn.toml");
    fs::write(&file, "max_value = \"1k\"\n")?;
    let from_file = NodeOptions::new().in_memory().flag("--config", &file);
    let node = from_file.clone().start()?;
    assert!(stores(&node, 1024)? && !stores(&node, 1025)?);
    let from_environment = from_file.env("FONN_MAX_VALUE", "2k");
    let node = from_environment.clone().start()?;
    assert!(stores(&node, 2048)? && !stores(&node, 2049)?);
    let node = from_environment.flag("--max-value", "4k").start()?;
    assert!(stores(&node, 4096)? && !stores(&node, 4097)?);
    Ok(())
}

#[test]
fn a_port_in_use_ends_in_code_1_and_its_name() -> Result<()> {
    let node = NodeOptions::new().in_memory().start()?;
    let (taken, admin) = (node.addr().to_string(), free_address()?.to_string());
    let arguments = [
        "--listen",
        &taken,
        "--admin-listen",
        &admin,
        "--data-dir",
        "none",
    ];
    let (code, text) = refused(&arguments, &[])?;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&taken), "{text}");
    Ok(())
}

#[test]
fn help_has_every_flag_with_its_default() -> Result<()> {
    let output = Command::new(node_program()?).arg("--help").output()?;
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout)?;
    let flags = [
        ("--config", ""),
        ("--listen", "127.0.0.1:11211"),
        ("--admin-listen", "127.0.0.1:11280"),
        ("--http-listen", "127.0.0.1:11290"),
        ("--http-deadline", "2s"),
        ("--data-dir", "$XDG_CACHE_HOME/fonn"),
        ("--ram-budget", "25%"),
        ("--disk-budget", "10g"),
        ("--max-value", "256m"),
        ("--threads", "cores"),
        ("--durability", "batched"),
        ("--lru", "approximate"),
        ("--codec", "ram=none"),
        ("--codec-min-bytes", "256"),
    ];
    for (flag, default) in flags {
        assert!(
            text.contains(flag) && text.contains(default),
            "{flag} {default}: {text}"
        );
    }
    let output = Command::new(node_program()?).arg("--version").output()?;
    assert!(String::from_utf8(output.stdout)?.contains(env!("CARGO_PKG_VERSION")));
    Ok(())
}

#[test]
fn the_bare_command_uses_the_cache_directory_of_the_user() -> Result<()> {
    let (listen, admin) = (free_address()?.to_string(), free_address()?.to_string());
    let dir = tempfile::tempdir()?;
    let mut command = Command::new(node_program()?);
    command.env("XDG_CACHE_HOME", dir.path());
    command.args(["--listen", &listen, "--admin-listen", &admin]);
    let mut daemon = Daemon::spawn("fonn-node", &mut command)?;
    let made = dir.path().join("fonn");
    daemon.wait_until("data directory", Duration::from_secs(60), || made.is_dir())?;
    let addr = listen.parse()?;
    daemon.wait_until("socket", Duration::from_secs(60), || {
        fonn_tests::process::accepts(addr)
    })?;
    assert!(daemon.terminate(Duration::from_secs(60))?.success());
    Ok(())
}

#[test]
fn a_unix_socket_is_served_beside_tcp() -> Result<()> {
    use std::io::{Read, Write};

    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("fonn.sock");
    let node = NodeOptions::new()
        .in_memory()
        .flag("--listen", format!("unix:{}", socket.display()))
        .start()?;
    node.text()?.store("set k 0 0 3", b"tcp")?;
    let mut stream = UnixStream::connect(&socket)?;
    stream.write_all(b"get k\r\n")?;
    let mut reply = vec![0; b"VALUE k 0 3\r\ntcp\r\nEND\r\n".len()];
    stream.read_exact(&mut reply)?;
    assert_eq!(reply, b"VALUE k 0 3\r\ntcp\r\nEND\r\n");
    Ok(())
}

/// Writes the file, sends SIGHUP and waits for a line in the log with one of `expected`.
pub(super) fn reload(
    node: &mut FonnNode,
    file: &Path,
    content: &str,
    expected: &[&str],
) -> Result<()> {
    fs::write(file, content)?;
    let log = node.daemon()?.log();
    let before = log.lines().len();
    node.daemon()?.signal(Signal::HUP)?;
    node.daemon()?
        .wait_until("a line about the reload", Duration::from_secs(60), || {
            let text = log.lines().split_off(before).join("\n");
            expected.iter().any(|part| text.contains(part))
        })?;
    Ok(())
}

#[test]
fn a_reload_changes_budgets_and_says_what_it_cannot_change() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("fonn.toml");
    fs::write(&file, "ram_budget = \"64m\"\nmax_value = \"1k\"\n")?;
    let options = NodeOptions::new()
        .in_memory()
        .omit("--ram-budget")
        .flag("--config", &file);
    let mut node = options.start()?;
    let limit = |node: &FonnNode| -> Result<u64> {
        let stats = node.text()?.stats("stats")?;
        let found = stats.into_iter().find(|(name, _)| name == "limit_maxbytes");
        Ok(found.context("no limit_maxbytes")?.1.parse()?)
    };
    assert_eq!(limit(&node)?, 64 << 20);
    let changed = "ram_budget = \"96m\"\nmax_value = \"1k\"\nlru = \"strict\"\n";
    reload(&mut node, &file, changed, &["configuration reloaded"])?;
    assert_eq!(limit(&node)?, 96 << 20);
    let log = node.log()?;
    node.daemon()?.wait_until(
        "lru, which needs a restart",
        Duration::from_secs(60),
        || log.text().contains("lru"),
    )?;
    // A file that cannot be read changes nothing and does not end the process.
    reload(&mut node, &file, "max_value = \n", &["not reloaded"])?;
    assert_eq!(limit(&node)?, 96 << 20);
    assert!(stores(&node, 1024)? && !stores(&node, 1025)?);
    Ok(())
}
