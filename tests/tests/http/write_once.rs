//! A namespace that keeps its first values, over HTTP.

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;

use super::access::paths;
use fonn_reapi::messages::{ActionResult, GetActionResultRequest, UpdateActionResultRequest};
use fonn_reapi::{DigestFunction, Hasher, Method};
use prost::Message as _;

use serde_json::Value;

use super::guarded::PASSWORD;
use super::tokens::Tokens;
use fonn_tests::client::{HttpClient, RemoteClient};
use fonn_tests::secured::ctl;

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

#[test]
fn the_first_result_of_an_action_stays_and_is_what_a_second_update_is_told() -> Result<()> {
    let namespace = "[[namespace]]\nname = 'kept'\nwrite_once = true\n";
    let (tokens, token) = Tokens::start(namespace, |entry| entry.token("w", "read-write", "kept"))?;
    let client = RemoteClient::connect(tokens.node.http())?;
    let client = client.with_login(&format!("Bearer {token}"))?;
    let action = Some(
        Hasher::new(DigestFunction::Sha256)
            .digest(b"action")
            .message(),
    );
    let result = |printed: &'static [u8]| ActionResult {
        stdout_raw: Bytes::from_static(printed),
        ..ActionResult::default()
    };
    for printed in [b"first", b"other"] {
        let update = UpdateActionResultRequest {
            action_digest: action.clone(),
            action_result: result(printed).encode_to_vec().into(),
            ..UpdateActionResultRequest::default()
        };
        let told: ActionResult = client.ask(Method::UpdateActionResult, &update)?;
        ensure!(told == result(b"first"), "{told:?}");
    }
    let get = GetActionResultRequest {
        action_digest: action,
        ..GetActionResultRequest::default()
    };
    let found: ActionResult = client.ask(Method::GetActionResult, &get)?;
    ensure!(found == result(b"first"), "{found:?}");
    let (_, told) = ctl(
        tokens.node.admin(),
        Some(("root", PASSWORD)),
        &["--json", "tools"],
    )?;
    let told: Value = serde_json::from_str(&told).context(told)?;
    // What was not stored is not counted.
    let stored = result(b"first").encoded_len();
    ensure!(told["uses"][0]["stored_bytes"] == stored, "{told:#}");
    Ok(())
}
