//! A namespace that keeps its first values, over HTTP.

use anyhow::{Result, ensure};

use super::access::paths;
use super::tokens::Tokens;
use fonn_tests::client::HttpClient;

#[test]
fn the_first_value_stays_in_each_dialect_and_nx_is_told_so() -> Result<()> {
    let namespace = "[[namespace]]\nname = 'kept'\nwrite_once = true\n";
    let (tokens, writer) =
        Tokens::start(namespace, |entry| entry.token("w", "read-write", "kept"))?;
    let login = format!("Bearer {writer}");
    let headers = [
        ("authorization", &*login),
        ("accept", "application/octet-stream"),
        ("content-type", "application/octet-stream"),
    ];
    let mut client = HttpClient::connect(tokens.node.http())?;
    for path in paths() {
        let mut ask = |method: &str, body: &[u8]| client.request(method, &path, &headers, body);
        let first = ask("PUT", b"hello")?;
        ensure!(first.status == 200, "{path}: {first:?}");
        // A content address takes no other value.
        if !path.contains("/cas/") {
            let expected = if path.starts_with("/v1/cache/") {
                409
            } else {
                200
            };
            let second = ask("PUT", b"other")?;
            ensure!(second.status == expected, "{path}: {second:?}");
        }
        let removed = ask("DELETE", b"")?;
        ensure!(removed.status == 403, "{path}: {removed:?}");
        let found = ask("GET", b"")?;
        ensure!(
            found.status == 200 && found.body == b"hello",
            "{path}: {found:?}"
        );
    }
    Ok(())
}
