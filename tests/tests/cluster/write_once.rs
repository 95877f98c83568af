//! A namespace that keeps its first values, at members and through a router.

use std::fs;

use anyhow::{Result, ensure};

use fonn_tests::client::{RespClient, RespReply, TextClient};
use fonn_tests::ctl::text;
use fonn_tests::secured::{PASSWORD, Secured, ctl};

const NAMESPACE: &str = "[[namespace]]\nname = 'kept'\nwrite_once = true\n";

#[test]
fn the_first_value_stays_whichever_door_and_protocol_it_is_written_by() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("tokens.toml");
    let entry = file.display().to_string();
    let create = [
        "token",
        "create",
        "writer",
        "--role",
        "read-write",
        "--namespace",
        "kept",
        "--entry",
        &entry,
    ];
    let secret = text("127.0.0.1:1", &create)?;
    let token = secret.trim_end();
    let secured =
        Secured::start_with_tokens(&(NAMESPACE.to_owned() + &fs::read_to_string(&file)?))?;
    let resp = |door| -> Result<RespClient> {
        let mut client = RespClient::connect(door)?;
        client.call(&[b"AUTH", token.as_bytes()])?.ok()?;
        Ok(client)
    };
    let memcached = |door| -> Result<TextClient> {
        let mut client = TextClient::connect(door)?;
        let login = format!("any {token}");
        let answer = client.store(&format!("set auth 0 0 {}", login.len()), login.as_bytes())?;
        ensure!(answer == "STORED", "{answer}");
        Ok(client)
    };
    let doors: Vec<_> = secured.doors().collect();
    for (number, first) in doors.iter().enumerate() {
        let key = format!("key-{number}");
        resp(*first)?.command(&format!("SET {key} first"))?.ok()?;
        for door in &doors {
            let mut client = resp(*door)?;
            client.command(&format!("SET {key} second"))?.ok()?;
            for refused in [
                format!("DEL {key}"),
                format!("APPEND {key} x"),
                format!("EXPIRE {key} 1"),
                format!("GETDEL {key}"),
                format!("SETRANGE {key} 0 x"),
                "FLUSHDB".to_owned(),
                "FLUSHALL".to_owned(),
            ] {
                let reply = client.command(&refused)?;
                let is_refused = matches!(&reply, RespReply::Error(it) if it.starts_with("NOPERM"));
                ensure!(is_refused, "{refused}: {reply:?}");
            }
            let stored = memcached(*door)?.store(&format!("set {key} 0 0 5"), b"third")?;
            ensure!(stored == "STORED", "{stored}");
            let added = memcached(*door)?.store(&format!("add {key} 0 0 5"), b"third")?;
            ensure!(added == "NOT_STORED", "{added}");
            let found = client.command(&format!("GET {key}"))?;
            ensure!(
                found == RespReply::Bulk(b"first".to_vec()),
                "{key}: {found:?}"
            );
        }
    }
    // What the writer may not do an admin may.
    let admin = secured.nodes[0].admin();
    for arguments in [
        &["key", "key-0", "--delete", "--yes"][..],
        &["flush", "kept", "--yes"],
    ] {
        let (code, told) = ctl(admin, Some(("any", token)), arguments)?;
        ensure!(
            code != Some(0) && told.contains("write_once"),
            "{arguments:?}: {told}"
        );
    }
    let (code, told) = ctl(admin, Some(("root", PASSWORD)), &["flush", "kept", "--yes"])?;
    ensure!(code == Some(0), "{told}");
    let mut client = resp(doors[0])?;
    client.command("SET key-0 after")?.ok()?;
    ensure!(client.command("GET key-0")? == RespReply::Bulk(b"after".to_vec()));
    Ok(())
}
