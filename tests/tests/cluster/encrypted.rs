//! A cluster on addresses that others reach: users, and TLS between all parts.

use anyhow::{Result, ensure};
use serde_json::Value;

use fonn_tests::certificates::Certified;
use fonn_tests::client::TextClient;
use fonn_tests::ctl::with_input;
use fonn_tests::node::NodeOptions;
use fonn_tests::process::free_address;
use fonn_tests::router::FonnRouter;
use fonn_tests::secured::{PASSWORD, Secured, ctl, log_in};

#[test]
fn a_cluster_across_machines_needs_certificates_and_passwords_and_nothing_is_insecure() -> Result<()>
{
    let secured = Secured::start()?;
    let router = secured.router.addr();
    let keys: Vec<String> = (0..40).map(|number| format!("key-{number}")).collect();
    let mut ci = log_in(router, "ci")?;
    for key in &keys {
        let stored = ci.store(&format!("set {key} 0 0 {}", key.len()), key.as_bytes())?;
        ensure!(stored == "STORED", "{key}: {stored}");
    }
    // Through the router, and through each member, which asks the owner.
    for door in secured.doors() {
        let mut dev = log_in(door, "dev")?;
        for key in &keys {
            let items = dev.items(&format!("get {key}"))?;
            let found = items.first().map(|item| item.value.as_slice());
            ensure!(found == Some(key.as_bytes()), "{key} at {door}: {items:?}");
        }
        let refused = dev.store("set k 0 0 1", b"v")?;
        ensure!(refused != "STORED", "a reader wrote at {door}: {refused}");
        let mut other = log_in(door, "other")?;
        let items = other.items(&format!("get {}", keys[0]))?;
        ensure!(
            items.is_empty(),
            "of another namespace at {door}: {items:?}"
        );
        let bare = TextClient::connect(door)?.command(&format!("get {}", keys[0]))?;
        ensure!(bare.contains("unauthenticated"), "{door}: {bare}");
    }
    // What goes between them is no plain text: the members' port answers TLS alone.
    let page = secured.router.http_get("/readyz")?;
    ensure!(page.status == 200, "{page:?}");
    others_are_asked_with_the_own_login(&secured)
}

/// A caller of the admin port of a router or of a member is asked by every other for the password
/// again.
fn others_are_asked_with_the_own_login(secured: &Secured) -> Result<()> {
    let (router, member) = (secured.router.admin(), secured.nodes[0].admin());
    for door in [router, member] {
        let status = ctl(
            door,
            Some(("dev", PASSWORD)),
            &["status", "--json", "--member", "c"],
        )?;
        let found: Value = serde_json::from_str(&status.1)?;
        ensure!(found["cluster"]["node"] == "c", "{door}: {status:?}");
        let drain = ["drain", "c", "--member", "b"];
        let (code, text) = ctl(door, Some(("dev", PASSWORD)), &drain)?;
        ensure!(
            code == Some(3) && text.contains("needs the role admin"),
            "{text}"
        );
        let (code, text) = ctl(door, Some(("dev", "wrong")), &["status", "--member", "c"])?;
        ensure!(
            code == Some(3) && text.contains("wrong user name"),
            "{text}"
        );
        let (code, text) = ctl(door, None, &["status", "--member", "c"])?;
        ensure!(
            code == Some(3) && text.contains("a login is needed"),
            "{text}"
        );
    }
    Ok(())
}

#[test]
fn a_password_that_came_under_tls_is_not_sent_on_to_a_member_without() -> Result<()> {
    let secrets = Secrets::new()?;
    let listen = free_address()?;
    let node = NodeOptions::new()
        .flag("--node-id", "a")
        .flag("--cluster-listen", listen.to_string())
        .flag("--bootstrap", "true")
        .flag("--users-file", &secrets.users)
        .start()?;
    let root = Some(("root", PASSWORD));
    let users = ("--users-file", secrets.users.clone());
    let certified = Certified::new()?;
    // Certificate and key, and no authority of members.
    let [cert, key, _] = certified.flags();
    let router = FonnRouter::start_with(&[listen], vec![cert, key, users.clone()])?;
    let (code, text) = ctl(router.admin(), root, &["status"])?;
    let is_withheld = text.contains("sends no password") && text.contains("--tls-client-ca");
    ensure!(code == Some(1) && is_withheld, "{code:?} {text}");
    // Where clients come without TLS it makes no difference to send it on.
    let bare = FonnRouter::start_with(&[listen], vec![users])?;
    let (code, text) = ctl(bare.admin(), root, &["status"])?;
    ensure!(code == Some(0), "{code:?} {text}");
    drop(node);
    Ok(())
}

/// A client that makes itself an admin of a router is none of the members.
#[test]
fn a_login_that_only_the_router_knows_is_refused_by_the_member() -> Result<()> {
    let secrets = Secrets::new()?;
    let listen = free_address()?;
    let _node = NodeOptions::new()
        .flag("--node-id", "a")
        .flag("--cluster-listen", listen.to_string())
        .flag("--bootstrap", "true")
        .flag("--users-file", &secrets.users)
        .start()?;
    let known = std::fs::read_to_string(&secrets.users)?;
    let more = format!("{known}{}", known.replace("'root'", "'intruder'"));
    let users = format!("{}.router", secrets.users);
    std::fs::write(&users, more)?;
    let router = FonnRouter::start_with(&[listen], vec![("--users-file", users)])?;
    let intruder = Some(("intruder", PASSWORD));
    for arguments in [
        &["status", "--member", "a"][..],
        &["flush", "default", "--yes"],
        &["user", "list"],
    ] {
        let (code, text) = ctl(router.admin(), intruder, arguments)?;
        let is_refused = code == Some(3) && text.contains("wrong user name or password");
        ensure!(is_refused, "{arguments:?}: {code:?} {text}");
    }
    // A user that both know is admitted.
    let (code, text) = ctl(router.admin(), Some(("root", PASSWORD)), &["status"])?;
    ensure!(code == Some(0), "{code:?} {text}");
    Ok(())
}

/// A users file with an admin.
struct Secrets {
    users: String,
    _dir: tempfile::TempDir,
}

impl Secrets {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let hashed = with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?;
        let hash = String::from_utf8(hashed.stdout)?;
        let users = dir.path().join("users.toml");
        let row = format!(
            "[[user]]\nname = 'root'\nrole = 'admin'\nhash = '{}'\n",
            hash.trim()
        );
        std::fs::write(&users, row)?;
        Ok(Self {
            users: users.display().to_string(),
            _dir: dir,
        })
    }
}
