//! What a user is told at a router and at members: of its own namespace, and nothing of others.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Result, ensure};

use fonn_tests::client::{RespClient, RespReply};
use fonn_tests::secured::{PASSWORD, Secured, log_in};

const KEYS: usize = 50;

fn resp(door: SocketAddr, user: &str) -> Result<RespClient> {
    let mut client = RespClient::connect(door)?;
    client.command(&format!("AUTH {user} {PASSWORD}"))?.ok()?;
    Ok(client)
}

/// The rows of `stats` or another command of that kind.
fn stats(door: SocketAddr, user: &str, command: &str) -> Result<BTreeMap<String, String>> {
    let rows = log_in(door, user)?.stats(command)?;
    Ok(rows.into_iter().collect())
}

fn number(rows: &BTreeMap<String, String>, name: &str) -> Option<usize> {
    rows.get(name)?.parse().ok()
}

fn info(door: SocketAddr, user: &str) -> Result<String> {
    let text = resp(door, user)?.command("INFO")?.bulk()?;
    Ok(String::from_utf8(text.unwrap_or_default())?)
}

/// Keys that a whole scan comes by.
fn scanned(client: &mut RespClient) -> Result<usize> {
    let (mut cursor, mut found) = ("0".to_owned(), 0);
    loop {
        let reply = client.command(&format!("SCAN {cursor} COUNT 1000"))?;
        let RespReply::Array(parts) = reply else {
            anyhow::bail!("{reply:?}");
        };
        let [next, RespReply::Array(keys)] = parts.as_slice() else {
            anyhow::bail!("{parts:?}");
        };
        found += keys.len();
        cursor = String::from_utf8(next.clone().bulk()?.unwrap_or_default())?;
        if cursor == "0" {
            return Ok(found);
        }
    }
}

#[test]
fn users_are_told_of_their_own_namespace_alone_at_routers_and_members() -> Result<()> {
    let secured = Secured::start()?;
    let router = secured.router.addr();
    let mut ci = resp(router, "ci")?;
    for number in 0..KEYS {
        ci.command(&format!("SET k{number} v"))?.ok()?;
        ci.command(&format!("GET k{number}"))?.bulk()?;
    }
    for door in secured.doors() {
        let told = stats(door, "other", "stats")?;
        for name in ["get_hits", "get_misses", "cmd_set", "curr_items"] {
            let found = number(&told, name);
            ensure!(found == Some(0), "{name} is {found:?} at {door}: {told:?}");
        }
        for name in ["bytes", "limit_maxbytes", "curr_connections", "evictions"] {
            ensure!(!told.contains_key(name), "{name} at {door}: {told:?}");
        }
        let items = stats(door, "other", "stats items")?;
        let none = BTreeMap::from([("items:1:number".to_owned(), "0".to_owned())]);
        ensure!(items == none, "{items:?}");
        let info = info(door, "other")?;
        for (part, is_told) in [
            ("keyspace_hits:0\r\n", true),
            ("used_memory", false),
            ("connected_clients", false),
            ("evicted_keys", false),
            ("keys=", false),
        ] {
            ensure!(info.contains(part) == is_told, "{part} at {door}: {info}");
        }
        let mut other = resp(door, "other")?;
        ensure!(other.command("DBSIZE")?.integer()? == 0, "keys at {door}");
        ensure!(other.command("RANDOMKEY")?.bulk()?.is_none(), "at {door}");
        ensure!(scanned(&mut other)? == 0, "keys at {door}");
    }
    // The router says of the own namespace what all members together have.
    let own = stats(router, "dev", "stats")?;
    for name in ["get_hits", "cmd_set", "curr_items"] {
        let found = number(&own, name);
        ensure!(found >= Some(KEYS), "{name} is {found:?}: {own:?}");
    }
    ensure!(scanned(&mut resp(router, "dev")?)? >= KEYS);
    let all = stats(router, "root", "stats")?;
    for name in ["bytes", "limit_maxbytes", "curr_connections"] {
        ensure!(number(&all, name) > Some(0), "{name}: {all:?}");
    }
    Ok(())
}
