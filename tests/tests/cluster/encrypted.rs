//! A cluster on addresses that others reach: users, and TLS between all parts.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use fonn_tests::certificates::Certified;
use fonn_tests::client::TextClient;
use fonn_tests::ctl::with_input;
use fonn_tests::node::{FonnNode, NodeOptions, ctl_program};
use fonn_tests::process::free_address;
use fonn_tests::router::FonnRouter;

const LIMIT: Duration = Duration::from_secs(60);
const PASSWORD: &str = "correct-horse";

struct Secured {
    nodes: Vec<FonnNode>,
    router: FonnRouter,
    _certified: Certified,
    _dir: tempfile::TempDir,
}

impl Secured {
    fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let hash = with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?.stdout;
        let hash = String::from_utf8(hash)?;
        let row = |name: &str, role: &str, namespace: &str| {
            let hash = hash.trim();
            format!(
                "[[user]]\nname = '{name}'\nrole = '{role}'\nnamespace = '{namespace}'\nhash = '{hash}'\n"
            )
        };
        let rows = [
            row("ci", "read-write", "main"),
            row("dev", "read", "main"),
            row("other", "read-write", "other"),
            row("root", "admin", "default"),
        ];
        let users = dir.path().join("users.toml");
        std::fs::write(&users, rows.concat())?;
        let certified = Certified::new()?;
        let mut flags = certified.flags().to_vec();
        flags.push(("--users-file", users.display().to_string()));

        let listen: Vec<SocketAddr> = (0..3).map(|_| free_address()).collect::<Result<_>>()?;
        let mut nodes = Vec::new();
        for (name, address) in ["a", "b", "c"].into_iter().zip(&listen) {
            let mut options = NodeOptions::new()
                .flag("--node-id", name)
                // Everybody may come, and nobody said --insecure.
                .flag("--cluster-listen", format!("0.0.0.0:{}", address.port()))
                .flag("--advertise", address.to_string())
                .flag("--ram-budget", "32m")
                .flag("--disk-budget", "256m");
            for (flag, value) in &flags {
                options = options.flag(flag, value);
            }
            options = match nodes.is_empty() {
                true => options.flag("--bootstrap", "true"),
                false => options.flag("--join", listen[0].to_string()),
            };
            nodes.push(options.start()?);
        }
        let router = FonnRouter::start_with(&listen[1..], flags)?;
        let secured = Self {
            nodes,
            router,
            _certified: certified,
            _dir: dir,
        };
        secured.wait_until_active()?;
        Ok(secured)
    }

    fn wait_until_active(&self) -> Result<()> {
        let begun = Instant::now();
        for node in &self.nodes {
            loop {
                let map = map(node)?;
                let members = map["members"].as_array().cloned().unwrap_or_default();
                let active = members
                    .iter()
                    .filter(|it| it["member"]["state"] == "active");
                if active.count() == 3 {
                    break;
                }
                ensure!(begun.elapsed() < LIMIT, "not active: {map}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

/// The map, as an admin sees it.
fn map(node: &FonnNode) -> Result<Value> {
    let output = Command::new(ctl_program()?)
        .args(["map", "--json", "--user", "root"])
        .env("FONN_ADMIN", node.admin().to_string())
        .env("FONN_PASSWORD", PASSWORD)
        .stdin(Stdio::null())
        .output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn log_in(address: SocketAddr, user: &str) -> Result<TextClient> {
    let mut client = TextClient::connect(address)?;
    let login = format!("{user} {PASSWORD}");
    let answer = client.store(&format!("set auth 0 0 {}", login.len()), login.as_bytes())?;
    ensure!(answer == "STORED", "{user}: {answer}");
    Ok(client)
}

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
    let doors = [router]
        .into_iter()
        .chain(secured.nodes.iter().map(FonnNode::addr));
    for door in doors {
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
    Ok(())
}
