//! The writers of entries reach the bucket and come back, and so do purges.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use fonn_tests::bucket::Bucket;
use fonn_tests::client::RespClient;
use fonn_tests::ctl::{text, with_input};
use fonn_tests::node::FonnNode;
use fonn_tests::secured::ctl;

use fonn_tests::spilled::{destroy, metric, over, wait_until_ready, wait_until_spilled};

const NOWHERE: &str = "127.0.0.1:1";
const PASSWORD: &str = "correct-horse";

fn start(bucket: &Bucket, users: &Path) -> Result<FonnNode> {
    let node = over(bucket).flag("--users-file", users).start()?;
    wait_until_ready(&node)?;
    Ok(node)
}

fn open(node: &FonnNode, token: &str) -> Result<RespClient> {
    let mut client = node.resp()?;
    client.call(&[b"AUTH", token.as_bytes()])?.ok()?;
    Ok(client)
}

fn find(node: &FonnNode, token: &str, key: &str, is_there: bool) -> Result<()> {
    let found = open(node, token)?.command(&format!("GET {key}"))?.bulk()?;
    ensure!(found.is_some() == is_there, "{key}: {found:?}");
    Ok(())
}

#[test]
fn what_only_the_bucket_has_is_purged_and_stays_so_without_the_disk() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let dir = tempfile::tempdir()?;
    let users = dir.path().join("users.toml");
    let hash = with_input(NOWHERE, &["user", "hash"], PASSWORD)?.stdout;
    let hash = String::from_utf8(hash)?;
    let admin = format!(
        "[[user]]\nname = 'root'\nrole = 'admin'\nhash = '{}'\n",
        hash.trim()
    );
    std::fs::write(&users, admin)?;
    let entry = users.display().to_string();
    let token = |name: &str| -> Result<String> {
        let arguments = ["token", "create", name, "--role", "read-write"];
        let place = ["--namespace", "main", "--entry", &entry];
        let secret = text(NOWHERE, &[&arguments[..], &place].concat())?;
        Ok(secret.trim_end().to_owned())
    };
    let (good, leaked) = (token("good")?, token("leaked")?);

    let node = start(&bucket, &users)?;
    open(&node, &good)?.command("SET good v")?.ok()?;
    open(&node, &good)?.command("SET overwritten v")?.ok()?;
    wait_until_spilled(&node)?;
    for key in ["bad", "read", "overwritten"] {
        open(&node, &leaked)?
            .command(&format!("SET {key} v"))?
            .ok()?;
    }
    wait_until_spilled(&node)?;
    destroy(node)?;

    let mut node = start(&bucket, &users)?;
    let root = Some(("root", PASSWORD));
    let writer_of = |key: &str| -> Result<()> {
        let arguments = ["key", key, "--namespace", "main", "--json"];
        let (_, told) = ctl(node.admin(), root, &arguments)?;
        ensure!(told.contains("\"writer\":\"leaked\""), "{told}");
        Ok(())
    };
    // One of them comes back from the bucket before the purge, with its writer.
    find(&node, &good, "read", true)?;
    writer_of("read")?;
    // The bucket alone has the other.
    writer_of("bad")?;
    let purge = ["purge", "--writer", "leaked", "--yes"];
    let (code, told) = ctl(node.admin(), root, &purge)?;
    ensure!(code == Some(0), "{told}");
    let check = |node: &FonnNode| -> Result<()> {
        for key in ["bad", "read", "overwritten"] {
            find(node, &good, key, false)?;
        }
        ensure!((metric(node, "fonn_purges_in_force")? - 1.0).abs() < 0.1);
        find(node, &good, "good", true)
    };
    check(&node)?;
    node.kill9()?;
    node.start_again()?;
    wait_until_ready(&node)?;
    check(&node)?;
    // The key of a purged entry is free, though the index of the bucket has it.
    let mut client = open(&node, &good)?;
    client.command("SET bad mended NX")?.ok().context("NX")?;
    wait_until_spilled(&node)?;
    destroy(node)?;

    let node = start(&bucket, &users)?;
    for key in ["read", "overwritten"] {
        find(&node, &good, key, false)?;
    }
    find(&node, &good, "good", true)?;
    find(&node, &good, "bad", true)
}
