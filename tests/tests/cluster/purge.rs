//! The writers of entries, and purges of what one wrote, through a router and at each member.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use fonn_tests::client::{HttpClient, RespClient};
use fonn_tests::ctl::text;
use fonn_tests::issuer::Issuer;
use fonn_tests::process::free_address;
use fonn_tests::secured::{PASSWORD, Secured, ctl};

/// A busy machine needs its time; it takes milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

const KEYS: usize = 12;

/// The identity of the main branch, as the users file names its issuer.
const MAIN: &str = "ci:repo:acme/app:refs/heads/main";

/// What `fonnctl` says to an admin, as JSON: one value a line.
fn root(admin: SocketAddr, arguments: &[&str]) -> Result<Vec<Value>> {
    let arguments = [arguments, &["--json"]].concat();
    let (_, told) = ctl(admin, Some(("root", PASSWORD)), &arguments)?;
    let values = told.lines().map(serde_json::from_str);
    values
        .collect::<Result<_, _>>()
        .with_context(|| format!("{arguments:?}: {told}"))
}

/// Whether each copy of a key that an owner has is of this writer.
fn is_written_by(admin: SocketAddr, namespace: &str, key: &str, writer: &str) -> Result<bool> {
    let answers = root(admin, &["key", key, "--namespace", namespace])?;
    let copies = answers.iter().filter_map(|it| it["copies"].as_array());
    let mut copies = copies.flatten().peekable();
    Ok(copies.peek().is_some() && copies.all(|copy| copy["writer"] == writer))
}

/// Names are told to all members a moment after a login.
fn wait_for_writer(admin: SocketAddr, namespace: &str, key: &str, writer: &str) -> Result<()> {
    let begun = Instant::now();
    while !is_written_by(admin, namespace, key, writer)? {
        let told = root(admin, &["key", key, "--namespace", namespace])?;
        ensure!(begun.elapsed() < LIMIT, "{key} of {writer}: {told:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn purge(admin: SocketAddr, writer: &str, how: &[&str]) -> Result<u64> {
    let told = root(admin, &[&["purge", "--writer", writer], how].concat())?;
    let last = told.last().context("no answer")?;
    ensure!(last["uncounted"] == serde_json::json!([]), "{last}");
    last["entries"].as_u64().context("no figure")
}

fn open(door: SocketAddr, secret: &[u8]) -> Result<RespClient> {
    let mut client = RespClient::connect(door)?;
    let words: &[&[u8]] = match secret.starts_with(b"fonn") {
        true => &[b"AUTH", secret],
        false => &[b"AUTH", b"ci", secret],
    };
    client.call(words)?.ok()?;
    Ok(client)
}

/// Whether the keys of a prefix are found at every door.
fn find(secured: &Secured, secret: &[u8], prefix: &str, is_there: bool) -> Result<()> {
    for door in secured.doors() {
        let mut client = open(door, secret)?;
        for number in 0..KEYS {
            let found = client.command(&format!("GET {prefix}-{number}"))?.bulk()?;
            ensure!(found.is_some() == is_there, "{prefix}-{number} at {door}");
        }
    }
    Ok(())
}

#[test]
fn what_a_leaked_identity_wrote_is_named_and_purged_in_the_whole_cluster() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let entry = dir.path().join("tokens.toml").display().to_string();
    let arguments = ["token", "create", "leaked", "--role", "read-write"];
    let place = ["--namespace", "main", "--entry", &entry];
    let leaked = text("127.0.0.1:1", &[&arguments[..], &place].concat())?;
    let leaked = leaked.trim_end().as_bytes();
    let issuer = Issuer::new()?;
    let tables = std::fs::read_to_string(&entry)? + &issuer.tables();
    let mut secured = Secured::start_with_tokens(&tables)?;
    let http = free_address()?;
    let router = secured.router_with_http(http)?;
    let admin = router.admin();
    let job = issuer.token(http, "refs/heads/main")?;

    let doors: Vec<SocketAddr> = secured.doors().collect();
    for number in 0..KEYS {
        let door = doors[number % doors.len()];
        let mut ci = open(door, PASSWORD.as_bytes())?;
        let mut bad = open(door, leaked)?;
        for (key, writers) in [("good", "c"), ("overwritten", "cb"), ("mended", "bc")] {
            for writer in writers.chars() {
                let client = if writer == 'c' { &mut ci } else { &mut bad };
                client.command(&format!("SET {key}-{number} v"))?.ok()?;
            }
        }
        // In one transaction, and by a command about several keys.
        bad.command("MULTI")?;
        bad.command(&format!("SET bad-{number} v"))?;
        bad.command("EXEC")?.array()?;
        let stored = bad.command(&format!("MSETNX worse-{number} v"))?;
        ensure!(stored.integer()? == 1, "worse-{number}");
        let login = format!("Bearer {job}");
        let put = HttpClient::connect(http)?.request(
            "PUT",
            &format!("/artifact-{number}"),
            &[("authorization", &login)],
            b"v",
        )?;
        ensure!(matches!(put.status, 200 | 201), "{put:?}");
    }
    for number in 0..KEYS {
        wait_for_writer(admin, "main", &format!("good-{number}"), "ci")?;
        wait_for_writer(admin, "main", &format!("mended-{number}"), "ci")?;
        for key in ["bad", "worse", "overwritten"] {
            wait_for_writer(admin, "main", &format!("{key}-{number}"), "leaked")?;
        }
        wait_for_writer(admin, "acme", &format!("artifact-{number}"), MAIN)?;
    }

    // It is for admins.
    let token = std::str::from_utf8(leaked)?;
    let refused = ["purge", "--writer", "ci", "--yes"];
    let (code, told) = ctl(admin, Some(("any", token)), &refused)?;
    ensure!(code != Some(0), "{told}");
    find(&secured, leaked, "good", true)?;

    let of_leaked = 3 * KEYS as u64;
    ensure!(purge(admin, "leaked", &["--dry-run"])? == of_leaked);
    ensure!(purge(admin, "leaked", &["--namespace", "acme", "--yes"])? == 0);
    ensure!(
        purge(
            admin,
            "leaked",
            &["--since", "2099-01-01T00:00:00Z", "--yes"]
        )? == 0
    );
    find(&secured, leaked, "bad", true)?;
    ensure!(purge(admin, "leaked", &["--yes"])? == of_leaked);
    let check = |secured: &Secured| -> Result<()> {
        for prefix in ["bad", "worse", "overwritten"] {
            find(secured, leaked, prefix, false)?;
        }
        find(secured, leaked, "good", true)?;
        find(secured, leaked, "mended", true)
    };
    check(&secured)?;
    ensure!(purge(admin, "leaked", &["--yes"])? == 0, "it is done");

    // A member that comes back with its disk knows it.
    secured.nodes[1].kill9()?;
    secured.nodes[1].start_again()?;
    secured.wait_until_active()?;
    check(&secured)?;

    // At a member, of an identity of an issuer.
    ensure!(purge(secured.nodes[2].admin(), MAIN, &["--yes"])? == KEYS as u64);
    let login = format!("Bearer {job}");
    for number in 0..KEYS {
        let path = format!("/artifact-{number}");
        let headers = [("authorization", &*login)];
        let found = HttpClient::connect(http)?.request("GET", &path, &headers, b"")?;
        ensure!(found.status == 404, "{path}: {found:?}");
    }
    // What it writes later counts.
    open(doors[0], leaked)?.command("SET bad-0 v")?.ok()?;
    let found = open(doors[1], leaked)?.command("GET bad-0")?.bulk()?;
    ensure!(found.is_some(), "written after the purge");
    Ok(())
}
