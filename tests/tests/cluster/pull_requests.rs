//! An overlay for each pull request, through a router and at each member.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use fonn_tests::client::{HttpClient, RespClient, RespReply};
use fonn_tests::issuer::{Issuer, QUOTA_BYTES};
use fonn_tests::node::FonnNode;
use fonn_tests::process::free_address;
use fonn_tests::secured::{PASSWORD, Secured, ctl};
use fonn_tests::values::{Content, ValuePool};

const TTL_MS: i64 = 7 * 86_400_000;

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

/// A job, by a token that the router gave for its identity.
struct Job {
    token: String,
    /// Connections to the router and to all members.
    doors: Vec<RespClient>,
    /// The HTTP port of the router.
    http: SocketAddr,
}

impl Job {
    fn new(secured: &Secured, http: SocketAddr, token: String) -> Result<Self> {
        let open = |door| -> Result<RespClient> {
            let mut client = RespClient::connect(door)?;
            client.call(&[b"AUTH", token.as_bytes()])?.ok()?;
            Ok(client)
        };
        Ok(Self {
            doors: secured.doors().map(open).collect::<Result<_>>()?,
            http,
            token,
        })
    }

    /// What each door says to a command.
    fn ask_all(&mut self, command: &str) -> Result<Vec<RespReply>> {
        self.doors
            .iter_mut()
            .map(|it| it.command(command))
            .collect()
    }

    /// Whether a key has this value at each door, and over HTTP.
    fn finds(&mut self, key: &str, value: Option<&str>) -> Result<()> {
        let value = value.map(|it| it.as_bytes().to_vec());
        for reply in self.ask_all(&format!("GET {key}"))? {
            ensure!(reply.clone().bulk()? == value, "{key}: {reply:?}");
        }
        let answer = self.ask_http("GET", key, b"")?;
        ensure!(answer == value, "{key} over HTTP: {answer:?}");
        Ok(())
    }

    fn ask_http(&mut self, method: &str, key: &str, body: &[u8]) -> Result<Option<Vec<u8>>> {
        let login = format!("Bearer {}", self.token);
        let headers = [("authorization", &*login)];
        // A connection of its own: the server has little patience with one that has not logged in.
        let mut client = HttpClient::connect(self.http)?;
        let answer = client.request(method, &format!("/{key}"), &headers, body)?;
        match answer.status {
            200 | 201 | 204 => Ok(Some(answer.body)),
            404 => Ok(None),
            status => anyhow::bail!("{method} {key}: {status}"),
        }
    }
}

/// A pull request stores a bad artifact under each key that the main branch will compute.
#[test]
fn what_a_pull_request_stores_is_its_own_at_every_door_of_a_cluster() -> Result<()> {
    let issuer = Issuer::new()?;
    let secured = Secured::start_with_tokens(&issuer.tables())?;
    let http = free_address()?;
    let _router = secured.router_with_http(http)?;
    let job = |reference: &str| Job::new(&secured, http, issuer.token(http, reference)?);
    let mut main = job("refs/heads/main")?;
    let mut attacker = job("refs/pull/7/merge")?;
    let mut other = job("refs/pull/8/merge")?;
    let count = attacker.doors.len();
    let keys: Vec<String> = (0..2 * count)
        .map(|number| format!("key-{number}"))
        .collect();
    for (number, key) in keys.iter().enumerate() {
        match attacker.doors.get_mut(number) {
            Some(door) => door.command(&format!("SET {key} poison"))?.ok()?,
            None => drop(attacker.ask_http("PUT", key, b"poison")?),
        }
        attacker.finds(key, Some("poison"))?;
        main.finds(key, None)?;
        other.finds(key, None)?;
        main.doors[number % count]
            .command(&format!("SET {key} own"))?
            .ok()?;
        main.finds(key, Some("own"))?;
        other.finds(key, Some("own"))?;
        attacker.finds(key, Some("poison"))?;
    }
    // Each lists what is its own. Members list what they have copies of.
    let mut found = Vec::new();
    for reply in attacker.ask_all("SCAN 0 COUNT 1000")?.into_iter().skip(1) {
        let keys = reply.array()?.remove(1).array()?;
        found.extend(
            keys.into_iter()
                .map(RespReply::bulk)
                .collect::<Result<Vec<_>>>()?,
        );
    }
    found.sort();
    found.dedup();
    ensure!(found.len() == keys.len(), "{found:?}");
    for reply in other.ask_all("DBSIZE")? {
        ensure!(reply == RespReply::Integer(0), "{reply:?}");
    }
    ensure!(attacker.doors[0].command("DBSIZE")?.integer()? == keys.len() as i64);

    for (number, key) in keys.iter().take(count).enumerate() {
        let left = attacker.doors[number]
            .command(&format!("PTTL {key}"))?
            .integer()?;
        ensure!((1..=TTL_MS).contains(&left), "{key} lives for {left} ms");
        let left = main.doors[number]
            .command(&format!("PTTL {key}"))?
            .integer()?;
        ensure!(left == -1, "{key} of the main branch lives for {left} ms");
        // A transaction reads the base and writes the overlay, wherever the owner is.
        let door = &mut other.doors[number];
        for command in ["MULTI", &format!("GET {key}"), &format!("SET {key} mine")] {
            door.command(command)?;
        }
        let done = door.command("EXEC")?.array()?;
        ensure!(
            done.first() == Some(&RespReply::Bulk(b"own".to_vec())),
            "{done:?}"
        );
        other.finds(key, Some("mine"))?;
        main.finds(key, Some("own"))?;
        // What it removes is its own, and the base shows again.
        let removed = attacker.doors[number].command(&format!("DEL {key}"))?;
        ensure!(removed == RespReply::Integer(1), "{removed:?}");
        attacker.finds(key, Some("own"))?;
    }
    let token = attacker.token.clone();
    let login = Some(("any", token.as_str()));
    let key = &keys[count];
    let admin = secured.nodes[0].admin();
    let (code, told) = ctl(admin, login, &["key", key, "--delete", "--yes"])?;
    ensure!(code == Some(0), "{told}");
    attacker.finds(key, Some("own"))?;
    main.finds(key, Some("own"))?;
    for command in ["FLUSHDB", "FLUSHALL"] {
        for reply in attacker.ask_all(command)? {
            let is_refused = matches!(&reply, RespReply::Error(it) if it.starts_with("NOPERM"));
            ensure!(is_refused, "{command}: {reply:?}");
        }
    }
    let flush = ["flush", "acme-pr-{ref}", "--yes"];
    let (code, told) = ctl(admin, login, &flush)?;
    ensure!(
        code != Some(0) && told.contains("an admin may flush it"),
        "{told}"
    );
    let (code, told) = ctl(admin, Some(("root", PASSWORD)), &flush)?;
    ensure!(code == Some(0), "{told}");
    for key in &keys {
        attacker.finds(key, Some("own"))?;
        other.finds(key, Some("own"))?;
    }
    Ok(())
}

/// The value of a metric of the namespace of all overlays.
fn metric(node: &FonnNode, name: &str) -> Result<f64> {
    let page = node.http_get("/metrics")?.body;
    let start = format!("fonn_namespace_{name}{{namespace=\"acme-pr-{{ref}}\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&start));
    let value = value.with_context(|| format!("no {start}"))?;
    Ok(value.parse()?)
}

/// Stores a value at a door. A member that is too far past the quota refuses for as long as it
/// counts.
fn store(door: &mut RespClient, key: &str, value: &[u8]) -> Result<()> {
    let begun = Instant::now();
    while let RespReply::Error(error) = door.call(&[b"SET", key.as_bytes(), value])? {
        let is_for_now = error.starts_with("OOM") || error.starts_with("TRYAGAIN");
        ensure!(is_for_now, "{key}: {error}");
        ensure!(
            begun.elapsed() < LIMIT,
            "{key} is refused for ever: {error}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// All pull requests share one quota, so the oldest entries of each may go. The main branch has no
/// quota here, and every pull request goes on reading its entries (ADR 0025).
#[test]
fn a_pull_request_past_the_quota_costs_the_main_branch_nothing_and_no_other_its_reads() -> Result<()>
{
    const VALUE_LEN: usize = 50_000;
    const BUILT: u64 = 40;
    /// What three members may hold is a third of that.
    const WRITTEN: u64 = 9 * QUOTA_BYTES / VALUE_LEN as u64;
    let issuer = Issuer::new()?;
    let secured = Secured::start_with_tokens(&issuer.tables())?;
    let http = free_address()?;
    let _router = secured.router_with_http(http)?;
    let job = |reference: &str| Job::new(&secured, http, issuer.token(http, reference)?);
    let mut main = job("refs/heads/main")?;
    let mut attacker = job("refs/pull/7/merge")?;
    let mut other = job("refs/pull/8/merge")?;
    let count = main.doors.len();
    let pool = ValuePool::new(Content::Random, VALUE_LEN);
    let value = |number| pool.value(number, VALUE_LEN);
    for number in 0..BUILT {
        let key = format!("built-{number}");
        store(&mut main.doors[0], &key, &value(number).to_vec())?;
    }
    other.doors[0].command("SET early 8")?.ok()?;
    for number in 0..WRITTEN {
        let door = &mut attacker.doors[number as usize % count];
        store(door, &format!("own-{number}"), &value(number).to_vec())?;
    }
    for node in &secured.nodes {
        let begun = Instant::now();
        while metric(node, "used_bytes")? > QUOTA_BYTES as f64 {
            ensure!(begun.elapsed() < LIMIT, "a member stays past the quota");
            std::thread::sleep(Duration::from_millis(20));
        }
        ensure!(metric(node, "quota_evictions_total")? > 0.0);
    }
    let mut lost = 0;
    for number in 0..WRITTEN {
        let key = format!("own-{number}");
        match attacker.doors[0].command(&format!("GET {key}"))?.bulk()? {
            Some(found) => value(number).check(&found)?,
            None => lost += 1,
        }
    }
    ensure!(lost > 0, "nothing was pushed out");
    // Main, and what the other pull request reads of it, is all there.
    for number in 0..BUILT {
        let key = format!("built-{number}");
        for job in [&mut main, &mut other, &mut attacker] {
            for reply in job.ask_all(&format!("GET {key}"))? {
                let found = reply.bulk()?.with_context(|| format!("{key} is gone"))?;
                value(number).check(&found)?;
            }
        }
    }
    // What the other one stored may be gone, and is never another value.
    for reply in other.ask_all("GET early")? {
        let found = reply.bulk()?;
        ensure!(found.is_none_or(|it| it == b"8"), "another value");
    }
    // It stores as before, and what it stores is its own.
    for number in 0..count {
        let key = format!("late-{number}");
        store(&mut other.doors[number], &key, b"mine")?;
        other.finds(&key, Some("mine"))?;
        main.finds(&key, None)?;
        attacker.finds(&key, None)?;
    }
    Ok(())
}
