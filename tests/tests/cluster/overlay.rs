//! A namespace over another one, and quotas, at a router and at members.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use fonn_tests::client::{BinaryClient, MetaClient, RespClient, RespReply, TextClient};
use fonn_tests::node::FonnNode;
use fonn_tests::secured::{PASSWORD, Secured, ctl_with, log_in};
use fonn_tests::values::{Content, ValuePool};

use crate::roles::{BINARY, Needs, RESP, TEXT};

const SASL_AUTH: u8 = 0x21;
const LIMIT: Duration = Duration::from_secs(60);
const QUOTA: u64 = 8 << 20;

/// What the base has of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Base {
    /// Everything but the time left.
    facts: Vec<String>,
    value: Option<Vec<u8>>,
    left_s: i64,
}

/// A user of the base.
fn user_of_base(door: SocketAddr) -> Result<MetaClient> {
    let mut client = MetaClient::connect(door)?;
    let login = format!("ci {PASSWORD}");
    let head = format!("set auth 0 0 {}", login.len());
    let answer = client.text().store(&head, login.as_bytes())?;
    ensure!(answer == "STORED", "{answer}");
    Ok(client)
}

/// What it sees.
fn seen(client: &mut MetaClient) -> Result<Base> {
    let (line, value) = client.meta_get("mg k v f c s t")?;
    let (times, facts): (Vec<_>, Vec<_>) = line
        .split(' ')
        .map(str::to_owned)
        .partition(|word| word.starts_with('t'));
    let left_s = times.first().context("no time")?[1..].parse()?;
    Ok(Base {
        facts,
        value,
        left_s,
    })
}

/// Puts `pr`, whose namespace lies over `main`.
fn put_overlay(secured: &Secured) -> Result<()> {
    let root = Some(("root", PASSWORD));
    let environment = [("FONN_NEW_PASSWORD", PASSWORD)];
    let quota = QUOTA.to_string();
    let put = [
        "user",
        "put",
        "pr",
        "--role",
        "read-write",
        "--namespace",
        "pull",
        "--base",
        "main",
        "--quota",
        &quota,
    ];
    let (code, text) = ctl_with(secured.router.admin(), root, &environment, &put)?;
    ensure!(code == Some(0), "{text}");
    for door in secured.doors() {
        let begun = Instant::now();
        while log_in(door, "pr").is_err() {
            ensure!(begun.elapsed() < LIMIT, "`pr` is not known at {door}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// One connection of the overlay's user in each protocol.
struct Overlay {
    text: TextClient,
    resp: RespClient,
    binary: BinaryClient,
}

impl Overlay {
    fn log_in(door: SocketAddr) -> Result<Self> {
        let mut resp = RespClient::connect(door)?;
        resp.command(&format!("AUTH pr {PASSWORD}"))?.ok()?;
        let mut binary = BinaryClient::connect(door)?;
        let plain = format!("\0pr\0{PASSWORD}");
        let reply = binary.call(SASL_AUTH, "PLAIN", &[], plain.as_bytes(), 0)?;
        ensure!(reply.status == 0, "{reply:?}");
        Ok(Self {
            text: log_in(door, "pr")?,
            resp,
            binary,
        })
    }

    fn say(&mut self, command: &str) -> Result<()> {
        self.text.send(format!("{command}\r\nmn\r\n").as_bytes())?;
        while self.text.line()? != "MN" {}
        Ok(())
    }

    /// What a write of the overlay's own would hide.
    fn forget(&mut self) -> Result<()> {
        ensure!(self.text.command("flush_all")? == "OK");
        let found = self.text.items("get k")?;
        ensure!(found.len() == 1, "the base does not show: {found:?}");
        Ok(())
    }
}

#[test]
fn no_command_of_an_overlay_changes_its_base_in_any_protocol() -> Result<()> {
    let secured = Secured::start()?;
    put_overlay(&secured)?;
    for door in [secured.router.addr(), secured.nodes[0].addr()] {
        let mut ci = user_of_base(door)?;
        // A number, so that arithmetic would not fail for what it is.
        ensure!(ci.text().store("set k 5 100000 2", b"70")? == "STORED");
        let base = seen(&mut ci)?;
        let token = base.facts.iter().find_map(|fact| fact.strip_prefix('c'));
        let token = token.context("no token")?.to_owned();
        let mut unchanged = |command: &str| -> Result<()> {
            let now = seen(&mut ci)?;
            let is_same = (&now.facts, &now.value) == (&base.facts, &base.value);
            let elapsed = base.left_s - now.left_s;
            ensure!(
                is_same && (0..=300).contains(&elapsed),
                "{command} at {door}: {base:?} became {now:?}"
            );
            Ok(())
        };
        let mut overlay = Overlay::log_in(door)?;
        let of_base = format!("cas k 0 0 1 {token}\r\nx");
        let texts = TEXT.iter().filter(|(needs, _)| *needs == Needs::Write);
        let more = [of_base.as_str(), "mg k v T0", "md k I T1", "ms k 1 MA\r\nx"];
        for command in texts.map(|(_, command)| *command).chain(more) {
            overlay.say(command)?;
            unchanged(command)?;
            overlay.forget()?;
        }
        for (_, command) in RESP.iter().filter(|(needs, _)| *needs == Needs::Write) {
            overlay.resp.command(command)?;
            unchanged(command)?;
            overlay.forget()?;
        }
        for (needs, (code, key, extras, value)) in BINARY {
            if *needs == Needs::Write {
                overlay.binary.answers(*code, key, extras, value)?;
                unchanged(&format!("{code:#04x}"))?;
                overlay.forget()?;
            }
        }
        // What it writes it has to itself.
        ensure!(overlay.text.store("set k 0 0 3", b"own")? == "STORED");
        ensure!(overlay.text.items("get k")?[0].value == b"own");
        unchanged("set")?;
    }
    Ok(())
}

/// The value of a metric of the overlay's namespace.
fn metric(node: &FonnNode, name: &str) -> Result<f64> {
    let page = node.http_get("/metrics")?.body;
    let start = format!("fonn_namespace_{name}{{namespace=\"pull\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&start));
    let value = value.with_context(|| format!("no {start}"))?;
    Ok(value.parse()?)
}

#[test]
fn each_member_keeps_the_quota_of_what_is_written_through_a_router() -> Result<()> {
    const VALUE_LEN: usize = 50_000;
    const COUNT: u64 = 1500;
    let secured = Secured::start()?;
    put_overlay(&secured)?;
    let router = secured.router.addr();
    let mut ci = log_in(router, "ci")?;
    let pool = ValuePool::new(Content::Random, VALUE_LEN);
    for number in 0..50 {
        let value = pool.value(number, VALUE_LEN).to_vec();
        let stored = ci.store(&format!("set base{number} 0 0 {VALUE_LEN}"), &value)?;
        ensure!(stored == "STORED", "{stored}");
    }
    let mut pr = RespClient::connect(router)?;
    pr.command(&format!("AUTH pr {PASSWORD}"))?.ok()?;
    for number in 0..COUNT {
        let begun = Instant::now();
        let (key, value) = (
            format!("own{number}"),
            pool.value(number, VALUE_LEN).to_vec(),
        );
        // A member that is too far past it refuses for as long as it counts, and a machine with
        // much to do is late.
        while let RespReply::Error(error) = pr.call(&[b"SET", key.as_bytes(), &value])? {
            let is_for_now = error.starts_with("OOM") || error.starts_with("TRYAGAIN");
            ensure!(is_for_now, "{error}");
            ensure!(begun.elapsed() < LIMIT, "refused for ever: {error}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    for node in &secured.nodes {
        ensure!(metric(node, "quota_bytes")? == QUOTA as f64);
        let begun = Instant::now();
        while metric(node, "used_bytes")? > QUOTA as f64 {
            ensure!(begun.elapsed() < LIMIT, "a member stays past its quota");
            std::thread::sleep(Duration::from_millis(20));
        }
        let evicted = metric(node, "quota_evictions_total")?;
        ensure!(evicted > 0.0, "a third of all fits a member's quota");
    }
    let mut left = 0;
    for number in 0..COUNT {
        let key = format!("own{number}");
        if let Some(found) = pr.call(&[b"GET", key.as_bytes()])?.bulk()? {
            pool.value(number, VALUE_LEN).check(&found)?;
            left += 1;
        }
    }
    // What three members may hold, and no less than an eighth below.
    let most = 3 * QUOTA / VALUE_LEN as u64;
    ensure!((most * 6 / 10..=most).contains(&left), "{left} of {most}");
    for number in 0..50 {
        let items = ci.items(&format!("get base{number}"))?;
        let item = items
            .first()
            .context("an entry of the base was pushed out")?;
        pool.value(number, VALUE_LEN).check(&item.value)?;
    }
    Ok(())
}
