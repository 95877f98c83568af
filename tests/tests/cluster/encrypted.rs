//! A cluster on addresses that others reach: users, and TLS between all parts.

use anyhow::{Result, ensure};
use serde_json::Value;

use fonn_tests::client::TextClient;
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

/// Who calls the admin port of a router or of a member is asked by every other for the password again.
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
