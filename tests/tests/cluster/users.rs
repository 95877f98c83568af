//! Users that members agree on: put, changed and removed while everything runs.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use fonn_tests::client::{BinaryClient, RespClient, RespReply, TextClient};
use fonn_tests::node::{FonnNode, NodeOptions, http_get};
use fonn_tests::process::free_address;
use fonn_tests::secured::{PASSWORD, Secured, ctl, ctl_with, log_in};

/// A busy machine needs its time; it takes milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

/// That of the user that is put.
const SECRET: &str = "battery-staple";

const SASL_AUTH: u8 = 0x21;

/// What `fonnctl` says to an admin, if it ends with `code`.
fn root(admin: SocketAddr, code: i32, arguments: &[&str]) -> Result<String> {
    let environment = [("FONN_NEW_PASSWORD", SECRET)];
    let login = Some(("root", PASSWORD));
    let (found, text) = ctl_with(admin, login, &environment, arguments)?;
    ensure!(found == Some(code), "{arguments:?}: {found:?} {text}");
    let is_secret = text.contains("argon2") || text.contains(SECRET);
    ensure!(!is_secret, "a secret: {text}");
    Ok(text)
}

/// Waits until those at these admin ports have the users of a revision.
fn wait_for(admins: &[SocketAddr], revision: f64) -> Result<()> {
    let begun = Instant::now();
    for admin in admins {
        loop {
            let page = http_get(*admin, "/metrics")?.body;
            let known = page
                .lines()
                .find_map(|line| line.strip_prefix("fonn_users_revision "));
            if known.is_some_and(|known| known.parse::<f64>().is_ok_and(|it| it >= revision)) {
                break;
            }
            ensure!(
                begun.elapsed() < LIMIT,
                "{admin} has {known:?}, not {revision}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

impl Watched<'_> {
    fn admins(&self) -> Vec<SocketAddr> {
        let nodes = self.0.nodes.iter().map(FonnNode::admin);
        [self.0.router.admin()].into_iter().chain(nodes).collect()
    }

    /// Has users changed at `admin`, and waits until all processes apply it.
    fn change(&self, admin: SocketAddr, arguments: &[&str]) -> Result<()> {
        let text = root(admin, 0, &[&["user"], arguments, &["--json"]].concat())?;
        let change: Value = serde_json::from_str(&text)?;
        wait_for(&self.admins(), change["revision"].as_f64().unwrap_or(0.0))
    }
}

/// A cluster whose users change.
struct Watched<'s>(&'s Secured);

fn resp(door: SocketAddr, user: &str, password: &str) -> Result<Option<RespClient>> {
    let mut client = RespClient::connect(door)?;
    let answer = client.call(&[b"AUTH", user.as_bytes(), password.as_bytes()])?;
    Ok((answer == RespReply::Simple("OK".to_owned())).then_some(client))
}

/// Whether the user is let in, by each way to log in.
fn is_let_in(door: SocketAddr) -> Result<[bool; 4]> {
    let mut text = TextClient::connect(door)?;
    let login = format!("new {SECRET}");
    let answer = text.store(&format!("set auth 0 0 {}", login.len()), login.as_bytes())?;
    let mut binary = BinaryClient::connect(door)?;
    let plain = format!("\0new\0{SECRET}");
    let sasl = binary.call(SASL_AUTH, "PLAIN", &[], plain.as_bytes(), 0)?;
    // A user learns of the server; other clients get an error.
    let mut hello = RespClient::connect(door)?;
    let greeted = hello.command(&format!("HELLO 3 AUTH new {SECRET}"))?;
    Ok([
        resp(door, "new", SECRET)?.is_some(),
        answer == "STORED",
        sasl.status == 0,
        matches!(greeted, RespReply::Map(_))
            && !matches!(hello.command("GET k")?, RespReply::Error(_)),
    ])
}

fn is_closed(client: &mut RespClient) -> bool {
    client.reply().is_err()
}

#[test]
fn a_user_that_is_put_anywhere_is_let_in_everywhere_until_it_is_removed() -> Result<()> {
    let mut secured = Secured::start()?;
    let router = secured.router.admin();
    let put = ["put", "new", "--role", "read-write", "--namespace", "main"];
    Watched(&secured).change(router, &put)?;
    for door in secured.doors() {
        let ways = is_let_in(door)?;
        ensure!(ways == [true; 4], "{door}: {ways:?}");
        let mut new = resp(door, "new", SECRET)?.expect("let in");
        new.command("SET k v")?.ok()?;
        let mut dev = log_in(door, "dev")?;
        let found = dev.items("get k")?;
        ensure!(found.len() == 1, "another namespace at {door}");
    }

    // A change cuts off the changed user, and no other.
    let mut held = Vec::new();
    for door in secured.doors() {
        let new = resp(door, "new", SECRET)?.expect("let in");
        let ci = resp(door, "ci", PASSWORD)?.expect("let in");
        held.push((new, ci));
    }
    let put = ["put", "new", "--role", "read", "--keep-password"];
    Watched(&secured).change(secured.nodes[1].admin(), &put)?;
    for (new, ci) in &mut held {
        ensure!(is_closed(new), "a connection with the role of before");
        ci.command("SET k w")?.ok()?;
    }
    for door in secured.doors() {
        let mut new = resp(door, "new", SECRET)?.expect("let in");
        let refused = new.command("SET k x")?;
        ensure!(matches!(refused, RespReply::Error(_)), "{refused:?}");
        let found = new.command("GET k")?.bulk()?;
        ensure!(found.as_deref() == Some(&b"w"[..]), "{door}: {found:?}");
    }

    // A restarted process knows it before clients may ask; a new one gets to know it.
    secured.nodes[2].stop()?;
    secured.nodes[2].start_again()?;
    ensure!(is_let_in(secured.nodes[2].addr())? == [true; 4]);
    secured.router.stop()?;
    secured.router.start_again()?;
    ensure!(is_let_in(secured.router.addr())? == [true; 4]);
    secured.add()?;
    let watched = Watched(&secured);
    wait_for(&watched.admins(), 1.0)?;
    ensure!(is_let_in(secured.nodes[3].addr())? == [true; 4]);

    let mut held = Vec::new();
    for door in secured.doors() {
        held.push(resp(door, "new", SECRET)?.expect("let in"));
    }
    watched.change(router, &["remove", "new", "--yes"])?;
    ensure!(held.iter_mut().all(is_closed), "one stays");
    for door in secured.doors() {
        let ways = is_let_in(door)?;
        ensure!(ways == [false; 4], "{door}: {ways:?}");
    }
    let refused = secured
        .router
        .metric("fonn_router_authentication_failures_total")?;
    ensure!(refused >= 1.0, "{refused} logins were refused");
    nothing_secret_was_told(&secured)
}

/// Neither in events nor in logs.
fn nothing_secret_was_told(secured: &Secured) -> Result<()> {
    for node in &secured.nodes {
        let log = node.log()?.text();
        ensure!(
            log.contains("users of the cluster: `new` is removed"),
            "{log}"
        );
        let is_secret = log.contains("argon2") || log.contains(SECRET);
        ensure!(!is_secret, "a secret: {log}");
    }
    Ok(())
}

#[test]
fn users_are_listed_and_what_cannot_be_is_refused_with_the_remedy() -> Result<()> {
    let secured = Secured::start()?;
    let (router, member) = (secured.router.admin(), secured.nodes[2].admin());
    let pull = ["put", "pr", "--role", "read-write", "--namespace", "pull"];
    let over = ["--base", "main", "--quota", "2g"];
    let watched = Watched(&secured);
    watched.change(member, &[&pull[..], &over].concat())?;
    for door in [router, member] {
        let list = root(door, 0, &["user", "list", "--json"])?;
        let list: Value = serde_json::from_str(&list)?;
        let users = list["users"].as_array().cloned().unwrap_or_default();
        let names: Vec<&str> = users.iter().filter_map(|it| it["name"].as_str()).collect();
        ensure!(names == ["ci", "dev", "other", "pr", "root"], "{list}");
        let pr = &users[3];
        ensure!(
            pr["role"] == "read-write" && pr["source"] == "cluster",
            "{pr}"
        );
        let is_over = pr["base"] == "main" && pr["quota_bytes"] == (2_u64 << 30);
        ensure!(is_over && users[4]["source"] == "file", "{list}");
    }
    // The tiers go by the quota, on each member.
    for name in ["a", "b", "c"] {
        let list = root(router, 0, &["namespaces", "--json", "--member", name])?;
        let list: Value = serde_json::from_str(&list)?;
        let all = list["namespaces"].as_array().cloned().unwrap_or_default();
        let pull = all.iter().find(|it| it["name"] == "pull");
        let quota = pull.map(|it| it["quota_bytes"].clone());
        ensure!(quota == Some((2_u64 << 30).into()), "{name}: {list}");
    }
    // What the base has is read, and not changed.
    log_in(secured.router.addr(), "ci")?.store("set k 0 0 1", b"v")?;
    let mut pr = resp(secured.nodes[0].addr(), "pr", SECRET)?.expect("let in");
    let found = pr.command("GET k")?.bulk()?;
    ensure!(found.as_deref() == Some(&b"v"[..]), "{found:?}");
    pr.command("SET k w")?.ok()?;
    let mut dev = log_in(secured.nodes[1].addr(), "dev")?;
    ensure!(dev.items("get k")?[0].value == b"v", "the base was changed");

    for (arguments, part) in [
        (
            &["put", "root", "--role", "read"][..],
            "is in the users file",
        ),
        (&["remove", "root", "--yes"], "is in the users file"),
        (&["remove", "nobody", "--yes"], "no user `nobody`"),
        (&["put", "a:b", "--role", "read"], "colon"),
        (&["put", "x"], "a new one needs a role"),
        (
            &["put", "x", "--role", "read", "--keep-password"],
            "needs a password",
        ),
        (
            &["put", "x", "--role", "read", "--namespace", "a b"],
            "without a space",
        ),
        (
            &[
                "put",
                "x",
                "--role",
                "read",
                "--namespace",
                "x",
                "--base",
                "y",
            ],
            "no user is in namespace `y`",
        ),
        (
            &[
                "put",
                "x",
                "--role",
                "read",
                "--namespace",
                "main",
                "--base",
                "other",
            ],
            "the users file says what the base",
        ),
    ] {
        let text = root(router, 1, &[&["user"], arguments].concat())?;
        ensure!(text.contains(part), "{arguments:?}: {text}");
    }
    let dev = Some(("dev", PASSWORD));
    for arguments in [&["user", "list"][..], &["user", "remove", "pr", "--yes"]] {
        let (code, text) = ctl(router, dev, arguments)?;
        let is_denied = code == Some(3) && text.contains("needs the role admin");
        ensure!(is_denied, "{arguments:?}: {text}");
    }
    Ok(())
}

#[test]
fn without_certificates_of_members_no_user_is_admitted_by_what_they_agree_on() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let hash = ctl_hash()?;
    let users = dir.path().join("users.toml");
    let row = format!("[[user]]\nname = 'root'\nrole = 'admin'\nhash = '{hash}'\n");
    std::fs::write(&users, row)?;
    let node = NodeOptions::new()
        .flag("--node-id", "a")
        .flag("--cluster-listen", free_address()?.to_string())
        .flag("--bootstrap", "true")
        .flag("--users-file", &users)
        .start()?;
    let put = ["user", "put", "new", "--role", "admin"];
    let text = root(node.admin(), 1, &put)?;
    ensure!(text.contains("--tls-client-ca"), "{text}");
    let list = root(node.admin(), 0, &["user", "list"])?;
    ensure!(list.contains("users file"), "{list}");
    Ok(())
}

fn ctl_hash() -> Result<String> {
    let hashed = fonn_tests::ctl::with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?;
    Ok(String::from_utf8(hashed.stdout)?.trim().to_owned())
}
