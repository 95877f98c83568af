//! What build tools get out of the cache, by tool and identity.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use fonn_tests::secured::ctl;
use fonn_tests::spilled::metric;

use super::guarded::PASSWORD;
use super::tokens::{Secrets, Tokens};

#[test]
fn hits_misses_and_bytes_are_told_by_tool_and_identity() -> Result<()> {
    let (tokens, secrets) = Tokens::start("", Secrets::create)?;
    let (writer, reader) = (&secrets.writer, &secrets.reader);
    for (token, method, path, body, status) in [
        (writer, "PUT", "/a", &b"hello"[..], 200),
        (writer, "PUT", "/v1/cache/1", b"abc", 200),
        (reader, "GET", "/a", b"", 200),
        (reader, "GET", "/a", b"", 200),
        (reader, "GET", "/b", b"", 404),
        (reader, "GET", "/cache/b", b"", 404),
        // What asks for no value is no lookup, and a refused write stores nothing.
        (reader, "HEAD", "/a", b"", 200),
        (reader, "PUT", "/a", b"evil", 403),
        (reader, "GET", "/status", b"", 200),
    ] {
        let answer = tokens.ask(token, method, path, body)?;
        ensure!(
            answer.status == status,
            "{method} {path}: {}",
            answer.status
        );
    }
    let stranger = tokens.ask("fonn_stranger", "GET", "/a", b"")?;
    ensure!(stranger.status == 401, "{}", stranger.status);

    let admin = tokens.node.admin();
    let (code, told) = ctl(admin, Some(("root", PASSWORD)), &["--json", "tools"])?;
    ensure!(code == Some(0), "{told}");
    let told: Value = serde_json::from_str(&told).context(told)?;
    let used = |identity, tool, [hits, misses, served, stored]: [u64; 4]| {
        json!({
            "namespace": "main", "identity": identity, "tool": tool, "hits": hits, "misses": misses,
            "served_bytes": served, "stored_bytes": stored,
        })
    };
    let expected = json!([
        used("reader", "generic", [2, 1, 10, 0]),
        used("reader", "gradle", [0, 1, 0, 0]),
        used("writer", "generic", [0, 0, 0, 5]),
        used("writer", "nx", [0, 0, 0, 3]),
    ]);
    ensure!(told["uses"] == expected, "{told:#}");

    // Names of identities are for admins.
    let (code, told) = ctl(admin, Some(("any", reader)), &["tools"])?;
    ensure!(code == Some(3), "{told}");

    for (series, value) in [
        (
            "fonn_tool_lookups_total{tool=\"generic\",outcome=\"hit\"}",
            2.0,
        ),
        (
            "fonn_tool_lookups_total{tool=\"gradle\",outcome=\"miss\"}",
            1.0,
        ),
        ("fonn_tool_served_bytes_total{tool=\"generic\"}", 10.0),
        ("fonn_tool_stored_bytes_total{tool=\"nx\"}", 3.0),
    ] {
        let found = metric(&tokens.node, series)?;
        ensure!((found - value).abs() < 0.5, "{series} {found}");
    }
    Ok(())
}
