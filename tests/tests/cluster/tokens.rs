//! Tokens of the users file, at members and through a router.

use std::fs;

use anyhow::{Result, ensure};

use fonn_tests::client::{RespClient, RespReply};
use fonn_tests::ctl::text;
use fonn_tests::secured::{Secured, ctl};

#[test]
fn members_and_router_take_the_tokens_of_their_file() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("tokens.toml");
    let entry = file.display().to_string();
    let create = |name: &str, role: &str| -> Result<String> {
        let arguments = [
            "token",
            "create",
            name,
            "--role",
            role,
            "--namespace",
            "main",
            "--entry",
        ];
        let secret = text("127.0.0.1:1", &[&arguments[..], &[&entry]].concat())?;
        Ok(secret.trim_end().to_owned())
    };
    let (writer, reader) = (create("writer", "read-write")?, create("reader", "read")?);
    let secured = Secured::start_with_tokens(&fs::read_to_string(&file)?)?;
    let open = |door, token: &str| -> Result<RespClient> {
        let mut client = RespClient::connect(door)?;
        client.call(&[b"AUTH", token.as_bytes()])?.ok()?;
        Ok(client)
    };
    for (number, door) in secured.doors().enumerate() {
        let key = format!("key-{number}");
        open(door, &writer)?
            .command(&format!("SET {key} v"))?
            .ok()?;
        for door in secured.doors() {
            let mut reader = open(door, &reader)?;
            let found = reader.command(&format!("GET {key}"))?;
            ensure!(found == RespReply::Bulk(b"v".to_vec()), "{key}: {found:?}");
            let refused = reader.command(&format!("SET {key} w"))?;
            ensure!(matches!(&refused, RespReply::Error(it) if it.starts_with("NOPERM")));
        }
        let unknown = format!("fonn_{}", "0".repeat(64));
        let mut client = RespClient::connect(door)?;
        let refused = client.call(&[b"AUTH", unknown.as_bytes()])?;
        ensure!(matches!(&refused, RespReply::Error(it) if it.starts_with("WRONGPASS")));
    }
    // The router sends the call on to the member, with the token.
    let login = Some(("any", &*writer));
    let arguments = ["--member", "b", "status"];
    let (code, told) = ctl(secured.router.admin(), login, &arguments)?;
    ensure!(code == Some(0), "{told}");
    Ok(())
}
