//! Every command of both servers exists here too, or has a row in the table of differences.

use anyhow::{Context as _, Result};
use fonn_proto::differences::{DIFFERENCES, Protocol};
use fonn_tests::client::resp_request;
use fonn_tests::node::FonnNode;

use crate::sequence::Real;
use crate::wire::Wire;

/// The commands of memcached 1.6.18 (`proto_text.c`), which it does not tell.
const MEMCACHED: [&str; 36] = [
    "get k",
    "gets k",
    "gat 0 k",
    "gats 0 k",
    "set k 0 0 1\r\nv",
    "add k 0 0 1\r\nv",
    "replace k 0 0 1\r\nv",
    "append k 0 0 1\r\nv",
    "prepend k 0 0 1\r\nv",
    "cas k 0 0 1 1\r\nv",
    "delete k",
    "incr k 1",
    "decr k 1",
    "touch k 0",
    "flush_all",
    "verbosity 1",
    "version",
    "stats",
    "mg k",
    "ms k 1\r\nv",
    "md k",
    "ma k",
    "me k",
    "mn",
    "shutdown x",
    "cache_memlimit 64",
    "slabs automove 0",
    "lru tune 1",
    "lru mode flat",
    "lru temp_ttl 61",
    "lru_crawler disable",
    "lru_crawler crawl 1",
    "watch",
    "refresh_certs",
    "extstore x",
    "stats settings",
];

fn is_absent(protocol: &[Protocol], command: &str) -> bool {
    let rows = DIFFERENCES
        .iter()
        .filter(|row| protocol.contains(&row.protocol));
    rows.into_iter().any(|row| row.covers(command))
}

/// All words of a RESP reply.
fn words(reply: &[u8]) -> Vec<String> {
    let lines = reply.split(|byte| *byte == b'\n');
    let lines = lines.map(|line| String::from_utf8_lossy(line).trim_end().to_owned());
    lines
        .filter(|line| !line.is_empty() && !line.starts_with(['*', '$', '~', '+', ':']))
        .collect()
}

#[test]
fn every_command_of_redis_exists_or_has_a_row() -> Result<()> {
    let Some(peer) = Real::Redis.start()? else {
        return Ok(());
    };
    let node = FonnNode::start()?;
    let (mut theirs, mut ours) = (Wire::connect(peer.addr)?, Wire::connect(node.addr())?);
    theirs.send(&resp_request(&[b"COMMAND", b"LIST"]))?;
    let commands = words(&theirs.resp()?);
    anyhow::ensure!(
        commands.len() > 300,
        "redis tells {} commands",
        commands.len()
    );
    for command in commands {
        ours.send(&resp_request(&[b"COMMAND", b"INFO", command.as_bytes()]))?;
        let reply = ours.resp()?;
        let exists = !reply.ends_with(b"*1\r\n$-1\r\n");
        let absent = is_absent(&[Protocol::Redis], &command);
        assert!(exists || absent, "{command} neither exists nor has a row");
    }
    Ok(())
}

#[test]
fn every_command_of_memcached_exists_or_has_a_row() -> Result<()> {
    let Some(peer) = Real::Memcached.start()? else {
        return Ok(());
    };
    let node = FonnNode::start()?;
    for line in MEMCACHED {
        let call = |addr| -> Result<Vec<u8>> {
            let mut wire = Wire::connect_text(addr)?;
            wire.send(format!("{line}\r\nmn\r\n").as_bytes())?;
            wire.until_no_op()
        };
        let name = line.split(' ').next().context("a name")?;
        let absent = is_absent(&[Protocol::Text, Protocol::Memcached], name);
        // `watch` does not answer `mn` any more there, and `shutdown` may stop it.
        if !absent {
            assert!(
                !call(peer.addr)?.starts_with(b"ERROR"),
                "{line} is none of memcached"
            );
        }
        let is_unknown = call(node.addr())?.starts_with(b"ERROR");
        assert_eq!(is_unknown, absent, "{line}");
    }
    Ok(())
}

#[test]
fn rules_of_the_comparisons_have_rows() {
    for id in ["clock", "cas", "binary error bodies"] {
        assert!(DIFFERENCES.iter().any(|row| row.id == id), "{id}");
    }
}
