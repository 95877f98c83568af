//! An overlay for each pull request, through a router and at each member.

use std::net::SocketAddr;

use anyhow::{Result, ensure};

use fonn_tests::client::{HttpClient, RespClient, RespReply};
use fonn_tests::issuer::Issuer;
use fonn_tests::process::free_address;
use fonn_tests::secured::{PASSWORD, Secured, ctl};

const TTL_MS: i64 = 7 * 86_400_000;

/// A job, by a token that the router gave for its identity.
struct Job {
    token: String,
    /// Connections to the router and to all members.
    doors: Vec<RespClient>,
    http: HttpClient,
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
            http: HttpClient::connect(http)?,
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
        let answer = self
            .http
            .request(method, &format!("/{key}"), &headers, body)?;
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
