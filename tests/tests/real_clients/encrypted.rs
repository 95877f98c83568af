//! sccache as a user with a password, over TLS where it can.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use fonn_tests::certificates::Certified;
use fonn_tests::component::program;
use fonn_tests::ctl::with_input;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::project::CProject;
use fonn_tests::sccache::{Mode, Sccache, Storage};

const FILES: usize = 6;
/// With what a URL or a variable might stumble over.
const PASSWORD: &str = "hunter 2/@:ü";

/// A node that asks for a login, and the directory of its users file: `ci` writes and `dev` reads.
fn guarded(flags: &[(&str, String)]) -> Result<(FonnNode, TempDir)> {
    let dir = tempfile::tempdir()?;
    let hash = with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?.stdout;
    let hash = String::from_utf8(hash)?;
    let users = dir.path().join("users.toml");
    let row = |(name, role): (&str, &str)| {
        format!(
            "[[user]]\nname = '{name}'\nrole = '{role}'\nnamespace = 'main'\nhash = '{}'\n",
            hash.trim()
        )
    };
    let rows = [("ci", "read-write"), ("dev", "read")].map(row);
    std::fs::write(&users, rows.concat())?;
    let mut options = NodeOptions::new().flag("--users-file", &users);
    for (flag, value) in flags {
        options = options.flag(flag, value);
    }
    Ok((options.start()?, dir))
}

/// Builds twice; the second time finds everything.
fn hits(sccache: &Path, node: &FonnNode, storage: Storage) -> Result<()> {
    let c = CProject::generate(&node.scratch().join("c"), FILES)?;
    let mut server = Sccache::start(sccache, &node.scratch().join("sccache"), storage)?;
    server.build_c(&c, |_| Ok(()))?;
    server.wait_for_writes(FILES as u64)?;
    server.zero_stats()?;
    c.clean()?;
    server.build_c(&c, |_| Ok(()))?;
    let stats = server.stats()?;
    let found = (stats.hits(), stats.misses());
    ensure!(found == (FILES as u64, 0), "{stats:?}");
    stats.expect_quiet()?;
    let failures = node.metric("fonn_authentication_failures_total")?;
    ensure!(failures == Some(0.0), "failed logins: {failures:?}");
    Ok(())
}

/// Fails if a server comes up; says how many logins have failed at the node since its start.
/// (sccache itself tells of a timeout, whatever the reason.)
fn failed_logins(sccache: &Path, node: &FonnNode, storage: Storage) -> Result<f64> {
    let started = Sccache::start(sccache, &node.scratch().join("refused"), storage);
    ensure!(started.is_err(), "a server came up");
    let failures = node.metric("fonn_authentication_failures_total")?;
    failures.context("no such metric")
}

#[test]
fn sccache_over_tls_logs_in_and_trusts_no_other_authority() -> Result<()> {
    let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
        return Ok(());
    };
    let certified = Certified::new()?;
    let (node, _users) = guarded(&certified.flags())?;
    let storage = |authority: &Certified, password: &str| {
        let storage = Storage::redis(node.addr(), Mode::ReadWrite);
        let storage = storage.encrypted(&authority.file("ca"));
        storage.with_login("ci", password)
    };
    hits(&sccache, &node, storage(&certified, PASSWORD))?;

    let stranger = Certified::new()?;
    let failures = failed_logins(&sccache, &node, storage(&stranger, PASSWORD))?;
    ensure!(failures == 0.0, "the password went to a stranger");
    let failures = failed_logins(&sccache, &node, storage(&certified, "wrong"))?;
    ensure!(failures > 0.0, "nobody asked for the password");
    Ok(())
}

#[test]
fn sccache_over_memcached_logs_in() -> Result<()> {
    let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
        return Ok(());
    };
    let (node, _users) = guarded(&[])?;
    let storage =
        |password| Storage::memcached(node.addr(), Mode::ReadWrite).with_login("ci", password);
    hits(&sccache, &node, storage(PASSWORD))?;
    let failures = failed_logins(&sccache, &node, storage("wrong"))?;
    ensure!(failures > 0.0, "nobody asked for the password");
    Ok(())
}

/// Commands that the node refused because their user may only read.
fn refused(node: &FonnNode) -> Result<f64> {
    let page = node.http_get("/metrics")?.body;
    let name = "fonn_refusals_total{reason=\"read_only\"} ";
    let value = page.lines().find_map(|line| line.strip_prefix(name));
    Ok(value.context("no such metric")?.parse()?)
}

/// Entries of the namespace.
fn entries(node: &FonnNode) -> Result<i64> {
    let mut client = node.resp()?;
    client.call(&[b"AUTH", b"ci", PASSWORD.as_bytes()])?.ok()?;
    client.command("DBSIZE")?.integer()
}

/// A runner that builds unreviewed code: it finds what others built, and nothing of it
/// stays.
#[test]
fn sccache_with_a_credential_that_may_only_read_builds_and_hits_and_changes_nothing() -> Result<()>
{
    let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
        return Ok(());
    };
    let storages: [fn(std::net::SocketAddr, Mode) -> Storage; 2] =
        [Storage::memcached, Storage::redis];
    for storage in storages {
        let (node, _users) = guarded(&[])?;
        // Neither says of itself that it writes nothing: it is the server that knows.
        let logged_in = |user| storage(node.addr(), Mode::ReadWrite).with_login(user, PASSWORD);
        let start = |user: &'static str| {
            Sccache::start(&sccache, &node.scratch().join(user), logged_in(user))
        };
        let c = CProject::generate(&node.scratch().join("c"), FILES)?;
        let mut writer = start("ci")?;
        writer.build_c(&c, |_| Ok(()))?;
        writer.wait_for_writes(FILES as u64)?;
        drop(writer);
        let before = entries(&node)?;

        let mut reader = start("dev")?;
        c.clean()?;
        reader.build_c(&c, |_| Ok(()))?;
        let stats = reader.stats()?;
        let found = (stats.hits(), stats.misses());
        ensure!(found == (FILES as u64, 0), "{stats:?}");
        stats.expect_quiet()?;
        // What is new is compiled; sccache tried one write as it started, and has left it at that.
        let at_start = refused(&node)?;
        let other = CProject::generate(&node.scratch().join("other"), FILES + 1)?;
        reader.build_c(&other, |_| Ok(()))?;
        let stats = reader.stats()?;
        stats.expect_quiet_reads()?;
        drop(reader);
        ensure!(at_start == 1.0, "{at_start} refusals");
        let refused = refused(&node)?;
        ensure!(refused == at_start, "{refused} refusals: {stats:?}");
        let after = entries(&node)?;
        ensure!(after == before, "{before} entries became {after}");
    }
    Ok(())
}
