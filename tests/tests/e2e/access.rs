//! Access to the admin port: `fonnctl` and plain HTTP against a node with users and a
//! certificate.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fonn_tests::bucket::{Bucket, Trouble};
use fonn_tests::certificates::Certified;
use fonn_tests::client::{RespReply, binary_request, opcode, status};
use fonn_tests::ctl::{failure, text, with_input};
use fonn_tests::node::{FonnNode, NodeOptions, ctl_program};
use fonn_tests::process::Signal;

use super::configuration::reload;

const PASSWORD: &str = "hunter 2: ü";

const SASL_AUTH: u8 = 0x21;

/// Name, role and what else is in the row.
type User = (&'static str, &'static str, &'static str);

const USERS: [User; 3] = [
    ("dev", "read", "namespace = 'main'"),
    ("ci", "read-write", "namespace = 'main'"),
    ("root", "admin", ""),
];

/// A users file as `fonnctl user hash` helps to write one.
fn users_file(users: &[User]) -> Result<String> {
    let hashed = with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?;
    let hash = String::from_utf8(hashed.stdout)?;
    let hash = hash.trim();
    ensure!(hash.starts_with("$argon2id$"), "no hash: {hash}");
    let row = |(name, role, more): &User| {
        format!("[[user]]\nname = '{name}'\nrole = '{role}'\nhash = '{hash}'\n{more}\n")
    };
    Ok(users.iter().map(row).collect())
}

struct Guarded {
    node: FonnNode,
    file: PathBuf,
    _dir: tempfile::TempDir,
}

impl Guarded {
    fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("users.toml");
        std::fs::write(&file, users_file(&USERS)?)?;
        let node = NodeOptions::new().flag("--users-file", &file).start()?;
        Ok(Self {
            node,
            file,
            _dir: dir,
        })
    }

    fn ctl(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(ctl_program()?);
        command
            .args(arguments)
            .env("FONN_ADMIN", self.node.admin().to_string())
            .env_remove("FONN_PASSWORD")
            .stdin(std::process::Stdio::null())
            .envs(environment.iter().copied());
        Ok(command.output()?)
    }

    fn as_user(&self, user: &str, arguments: &[&str]) -> Result<Output> {
        let environment = [("FONN_USER", user), ("FONN_PASSWORD", PASSWORD)];
        self.ctl(&environment, arguments)
    }
}

/// What went out, if the command failed with 3; never a password.
fn denied(output: &Output) -> Result<String> {
    let text = String::from_utf8(output.stderr.clone())?;
    ensure!(output.status.code() == Some(3), "{}: {text}", output.status);
    ensure!(!text.contains("hunter"), "a password: {text}");
    Ok(text)
}

fn fine(output: &Output) -> Result<String> {
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {error}", output.status);
    Ok(String::from_utf8(output.stdout.clone())?)
}

#[test]
fn fonnctl_logs_in_and_each_role_may_do_what_it_may() -> Result<()> {
    let guarded = Guarded::start()?;
    let bare = denied(&guarded.ctl(&[], &["status"])?)?;
    ensure!(bare.contains("--user"), "{bare}");
    let wrong = [("FONN_PASSWORD", "hunter 3")];
    let wrong = denied(&guarded.ctl(&wrong, &["status", "--user", "dev"])?)?;
    ensure!(wrong.contains("wrong user name or password"), "{wrong}");

    ensure!(fine(&guarded.as_user("dev", &["status"])?)?.contains("fonn-node"));
    let flush = ["flush", "main", "--yes"];
    let refused = denied(&guarded.as_user("dev", &flush)?)?;
    ensure!(refused.contains("read-write"), "{refused}");
    fine(&guarded.as_user("ci", &flush)?)?;
    let foreign = denied(&guarded.as_user("ci", &["flush", "default", "--yes"])?)?;
    ensure!(foreign.contains("namespace"), "{foreign}");
    let codec = ["codec", "ram=lz4"];
    let refused = denied(&guarded.as_user("ci", &codec)?)?;
    ensure!(refused.contains("role admin"), "{refused}");
    fine(&guarded.as_user("root", &codec)?)?;

    // The password from a file, and from standard input.
    let file = guarded.node.scratch().join("password");
    std::fs::write(&file, format!("{PASSWORD}\n"))?;
    let file = file.to_str().context("a path")?;
    let by_file = ["status", "--user", "dev", "--password-file", file];
    fine(&guarded.ctl(&[], &by_file)?)?;
    let by_stdin = ["status", "--user", "dev", "--password-file", "-"];
    let admin = guarded.node.admin().to_string();
    fine(&with_input(&admin, &by_stdin, &format!("{PASSWORD}\n"))?)?;
    // Without any it says where one may come from, and asks no server.
    let none = guarded.ctl(&[], &["status", "--user", "dev"])?;
    ensure!(none.status.code() == Some(2), "{none:?}");
    ensure!(String::from_utf8(none.stderr)?.contains("FONN_PASSWORD"));
    Ok(())
}

#[test]
fn a_key_is_deleted_when_that_is_meant_and_allowed_and_the_exit_code_says_which() -> Result<()> {
    let guarded = Guarded::start()?;
    let mut client = guarded.node.resp()?;
    client.call(&[b"AUTH", b"ci", PASSWORD.as_bytes()])?.ok()?;
    client.command("SET k v")?.ok()?;
    let mut is_there = || Ok::<_, anyhow::Error>(client.command("EXISTS k")?.integer()? == 1);
    let delete = ["key", "k", "--delete", "--yes"];
    for (user, arguments, code) in [
        // Wrong usage, for each user: no server is asked.
        ("ci", &delete[..3], 2),
        ("ci", &["key", "k", "--yes"], 2),
        ("dev", &delete, 3),
        (
            "ci",
            &["key", "k", "--namespace", "default", "--delete", "--yes"],
            3,
        ),
        ("ci", &["key", "absent", "--delete", "--yes"], 1),
    ] {
        let output = guarded.as_user(user, arguments)?;
        let found = output.status.code();
        ensure!(found == Some(code), "{user} {arguments:?}: {output:?}");
        ensure!(is_there()?, "{user} {arguments:?}");
    }
    let told = fine(&guarded.as_user("ci", &delete)?)?;
    ensure!(told == "deleted\n" && !is_there()?, "{told}");
    let again = guarded.as_user("ci", &delete)?;
    let told = String::from_utf8(again.stdout)?;
    ensure!(
        again.status.code() == Some(1) && told == "not there\n",
        "{told}"
    );
    Ok(())
}

#[test]
fn users_of_a_node_without_a_cluster_are_those_of_its_file() -> Result<()> {
    let guarded = Guarded::start()?;
    let list = fine(&guarded.as_user("root", &["user", "list"])?)?;
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let lines: Vec<_> = list.lines().map(words).collect();
    let dev = ["dev", "read", "main", "-", "users", "file"];
    ensure!(lines.len() == 4 && lines[2] == dev, "{list}");
    ensure!(!list.contains("argon2"), "{list}");
    let put = ["user", "put", "new", "--role", "read"];
    let environment = [
        ("FONN_USER", "root"),
        ("FONN_PASSWORD", PASSWORD),
        ("FONN_NEW_PASSWORD", "x"),
    ];
    let refused = guarded.ctl(&environment, &put)?;
    let text = String::from_utf8(refused.stderr)?;
    ensure!(refused.status.code() == Some(1), "{text}");
    ensure!(
        text.contains("no cluster") && text.contains("--users-file"),
        "{text}"
    );
    // Without users the list is empty.
    let open = NodeOptions::new().in_memory().start()?;
    let (code, text) = failure(&open.admin().to_string(), &["user", "list"])?;
    ensure!(code == Some(1) && text.contains("--users-file"), "{text}");
    Ok(())
}

#[test]
fn a_user_that_is_gone_is_refused_and_secrets_are_nowhere() -> Result<()> {
    let mut guarded = Guarded::start()?;
    fine(&guarded.as_user("dev", &["status"])?)?;
    std::fs::write(&guarded.file, users_file(&USERS[1..])?)?;
    guarded.node.daemon()?.signal(Signal::HUP)?;
    let log = guarded.node.daemon()?.log();
    let is_reloaded = || log.text().contains("configuration reloaded");
    guarded
        .node
        .daemon()?
        .wait_until("the reload", Duration::from_secs(60), is_reloaded)?;
    let gone = denied(&guarded.as_user("dev", &["status"])?)?;
    ensure!(gone.contains("wrong user name or password"), "{gone}");
    let ci = fine(&guarded.as_user("ci", &["status", "--json"])?)?;
    let metrics = guarded.node.http_get("/metrics")?;
    ensure!(metrics.status == 200, "from the same machine: {metrics:?}");
    let counted = "fonn_admin_logins_refused_total{reason=\"wrong\"} 1\n";
    ensure!(metrics.body.contains(counted), "{metrics:?}");
    let log = log.text();
    for text in [&ci, &metrics.body, &log] {
        ensure!(
            !text.contains("hunter") && !text.contains("argon2"),
            "{text}"
        );
    }
    ensure!(log.contains("wrong user name or password"), "{log}");
    Ok(())
}

/// As a secret that is mounted into a container changes: no signal comes there.
#[test]
fn a_users_file_that_is_replaced_is_read_without_a_signal() -> Result<()> {
    let mut guarded = Guarded::start()?;
    fine(&guarded.as_user("dev", &["status"])?)?;
    let new = guarded.file.with_extension("new");
    std::fs::write(&new, users_file(&USERS[1..])?)?;
    std::fs::rename(&new, &guarded.file)?;
    let daemon = guarded.node.daemon()?;
    let log = daemon.log();
    let is_reloaded = || log.text().contains("users were reloaded");
    daemon.wait_until("the reload", Duration::from_secs(60), is_reloaded)?;
    let gone = denied(&guarded.as_user("dev", &["status"])?)?;
    ensure!(gone.contains("wrong user name or password"), "{gone}");
    fine(&guarded.as_user("ci", &["status"])?)?;
    Ok(())
}

/// A client that can change the configuration cannot put other users in the place of those that are
/// in force, nor switch logins off: that takes a restart. And a file that is no good changes
/// nothing.
#[test]
fn a_reload_takes_no_other_users_file_and_none_that_is_broken() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (file, before, other) = (path("fonn.toml"), path("before"), path("other"));
    std::fs::write(&before, users_file(&USERS)?)?;
    std::fs::write(&other, users_file(&[("new", "admin", "")])?)?;
    std::fs::write(&file, format!("users_file = {before:?}\n"))?;
    let mut node = NodeOptions::new()
        .in_memory()
        .flag("--config", &file)
        .start()?;
    let log_in = |node: &FonnNode, user: &str| -> Result<RespReply> {
        node.resp()?
            .call(&[b"AUTH", user.as_bytes(), PASSWORD.as_bytes()])
    };
    let mut held = node.resp()?;
    held.call(&[b"AUTH", b"ci", PASSWORD.as_bytes()])?.ok()?;
    let broken = users_file(&[("ci", "master", "")])?;
    for (users, configuration, expected) in [
        (None, format!("users_file = {other:?}\n"), "--users-file"),
        (None, String::new(), "--users-file"),
        (
            Some(broken),
            format!("users_file = {before:?}\n"),
            "stay as they were",
        ),
    ] {
        if let Some(users) = users {
            std::fs::write(&before, users)?;
        }
        reload(&mut node, Path::new(&file), &configuration, &[expected])?;
        held.command("SET k v")?.ok()?;
        log_in(&node, "ci")?.ok()?;
        let new = log_in(&node, "new")?;
        ensure!(matches!(new, RespReply::Error(_)), "{expected}: {new:?}");
        let bare = node.resp()?.command("GET k")?;
        ensure!(matches!(bare, RespReply::Error(_)), "{expected}: {bare:?}");
    }
    let log = node.log()?.text();
    ensure!(
        log.contains("master") && !log.contains("argon2") && !log.contains("hunter"),
        "{log}"
    );
    Ok(())
}

#[test]
fn a_client_that_fails_to_log_in_is_counted_and_logged_with_its_address_and_nothing_secret()
-> Result<()> {
    let mut guarded = Guarded::start()?;
    let node = &mut guarded.node;
    let mut client = node.resp()?;
    let long = vec![b'x'; 200];
    for (user, password) in [
        (&b"ci"[..], &b"hunter 3"[..]),
        (b"ci\nERROR forged \x1b[31m", PASSWORD.as_bytes()),
        (&long, b"hunter 3"),
    ] {
        let refused = client.call(&[b"AUTH", user, password])?;
        ensure!(matches!(refused, RespReply::Error(_)), "{refused:?}");
    }
    let log = node.log()?;
    let told = || {
        let lines = log.lines().into_iter();
        lines.filter(|it| it.contains("wrong user name or password"))
    };
    node.daemon()?
        .wait_until("three lines", Duration::from_secs(60), || {
            told().count() == 3
        })?;
    let told: Vec<String> = told().collect();
    ensure!(told.iter().all(|it| it.contains("127.0.0.1")), "{told:?}");
    ensure!(told[0].contains("user=ci "), "{told:?}");
    ensure!(told.iter().all(|it| it.len() < 300), "{told:?}");
    for part in ["forged", "\x1b[31m", "xxx", "hunter"] {
        ensure!(!told.concat().contains(part), "{part}: {told:?}");
    }
    let counted = node.metric("fonn_authentication_failures_total")?;
    ensure!(counted == Some(3.0), "{counted:?}");
    Ok(())
}

#[test]
fn the_admin_port_speaks_tls_with_clients_that_have_a_certificate() -> Result<()> {
    let certified = Certified::new()?;
    let file = |name: &str| certified.file(name);
    let mut node = NodeOptions::new()
        .in_memory()
        .flag("--tls-cert", file("cert"))
        .flag("--tls-key", file("key"))
        .flag("--tls-client-ca", file("ca"))
        .start()?;
    let log = node.log()?;
    let is_told = || log.text().contains("admin   https://");
    node.daemon()?
        .wait_until("the banner", Duration::from_secs(60), is_told)?;
    let url = format!("https://{}", node.admin());
    let (ca, cert, key) = (file("ca"), file("cert"), file("key"));
    let shown = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    let status = [&["status"], &shown[..]].concat();
    ensure!(text(&url, &status)?.contains("fonn-node"));
    let by_address = text(&node.admin().to_string(), &status)?;
    ensure!(by_address.contains("fonn-node"), "--tls-ca alone does it");
    // Nothing is shown; another authority is trusted; none is.
    let bare = failure(&url, &["status", "--tls-ca", &ca])?;
    ensure!(bare.0 == Some(1), "{bare:?}");
    let elsewhere = Certified::new()?.file("ca");
    let other = Certified::new()?;
    let other = failure(&url, &["status", "--tls-ca", &other.file("ca")])?;
    ensure!(
        other.0 == Some(1) && other.1.contains("no TLS with"),
        "{other:?}"
    );
    let gone = failure(&url, &["status", "--tls-ca", &elsewhere])?;
    ensure!(
        gone.1.contains(&format!("--tls-ca {elsewhere}")),
        "{gone:?}"
    );
    let none = failure(&url, &["status"])?;
    ensure!(none.1.contains("--tls-ca FILE"), "{none:?}");
    // From the same machine, as before.
    ensure!(text(&node.admin().to_string(), &["status"])?.contains("fonn-node"));
    ensure!(node.http_get("/healthz")?.status == 200);
    Ok(())
}

/// The credentials of the bucket and the hashes of passwords: whatever goes wrong, they are in
/// nothing that is told.
#[test]
fn secrets_are_in_no_setting_metric_log_or_finding() -> Result<()> {
    const SECRETS: [&str; 2] = ["Zg7qk3Vt9sUwQx1pLmN5", "Hn4bRt8cYd2wEs6vKj0a"];
    /// What keys begin with: no secret, but nothing that figures or the log are to tell of.
    const KEY: &str = "Xe5vMw7dPa";
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("users.toml");
    std::fs::write(&file, users_file(&USERS)?)?;
    let bucket = Bucket::in_process()?;
    let mut options = NodeOptions::new()
        .flag("--users-file", &file)
        .flag("--cold-tier", bucket.url())
        .flag("--spill", "write-behind:100ms");
    for (name, value) in bucket.environment() {
        options = options.env(name, value);
    }
    let mut node = options
        .env("AWS_SECRET_ACCESS_KEY", SECRETS[0])
        .env("AWS_SESSION_TOKEN", SECRETS[1])
        .start()?;
    let admin = node.admin().to_string();
    let mut told = Vec::new();
    for trouble in [
        None,
        Some(Trouble::Disconnects),
        Some(Trouble::NoSuchBucket),
    ] {
        if let Some(trouble) = trouble {
            bucket.fail(trouble);
        }
        let mut client = node.resp()?;
        client
            .call(&[b"AUTH", b"root", PASSWORD.as_bytes()])?
            .ok()?;
        for number in 0..20 {
            client.command(&format!("SET {KEY}{number} v"))?.ok()?;
        }
        // A miss that asks the bucket where there is trouble.
        client.command("GET absent")?;
        let mut settings = Vec::new();
        for part in client.command("CONFIG GET *")?.array()? {
            settings.extend(part.bulk()?.unwrap_or_default());
            settings.push(b'\n');
        }
        told.push(String::from_utf8(settings)?);
        let info = client.command("INFO everything")?.bulk()?;
        told.push(String::from_utf8(info.unwrap_or_default())?);
        // The text protocol has no words for a password with a blank.
        let mut binary = node.binary()?;
        let plain = format!("\0root\0{PASSWORD}");
        let reply = binary.call(SASL_AUTH, "PLAIN", &[], plain.as_bytes(), 0)?;
        ensure!(reply.status == status::OK, "{reply:?}");
        for kind in ["", "settings", "conns"] {
            binary.send(&binary_request(
                opcode::STAT,
                kind.as_bytes(),
                &[],
                &[],
                0,
                7,
            ))?;
            let mut rows = String::new();
            loop {
                let reply = binary.reply()?;
                ensure!(reply.status == status::OK, "{reply:?}");
                if reply.key.is_empty() {
                    break;
                }
                rows += &String::from_utf8([reply.key, reply.value, vec![b'\n']].concat())?;
            }
            told.push(rows);
        }
        let figures = node.http_get("/metrics")?.body;
        let named = USERS.iter().map(|(name, ..)| format!("\"{name}\""));
        for name in named.chain([KEY.to_owned()]) {
            ensure!(!figures.contains(&name), "{name} is in {figures}");
        }
        told.push(figures);
        for arguments in [&["doctor"][..], &["status", "--json"], &["cold"]] {
            let output = Command::new(ctl_program()?)
                .args(arguments)
                .env("FONN_ADMIN", &admin)
                .env("FONN_USER", "root")
                .env("FONN_PASSWORD", PASSWORD)
                .stdin(std::process::Stdio::null())
                .output()?;
            let text = [output.stdout, output.stderr].concat();
            told.push(String::from_utf8(text)?);
        }
        ensure!(told.iter().all(|it| it.len() > 30), "{told:?}");
    }
    // It is there to be found: what is no secret is told.
    ensure!(told[0].contains(bucket.url()), "{}", told[0]);
    node.daemon()?.signal(Signal::HUP)?;
    let log = node.log()?;
    let is_reloaded = || log.text().contains("configuration reloaded");
    node.daemon()?
        .wait_until("the reload", Duration::from_secs(60), is_reloaded)?;
    ensure!(!log.text().contains(KEY), "{}", log.text());
    told.push(log.text());
    for text in &told {
        for secret in [&SECRETS[..], &["hunter", "argon2"]].concat() {
            ensure!(!text.contains(secret), "{secret} is in {text}");
        }
    }
    Ok(())
}
