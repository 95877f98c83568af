//! Identities of a real OIDC issuer, exchanged for tokens, by each way in.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use fonn_tests::client::{HttpAnswer, HttpClient, RespReply};
use fonn_tests::component::program;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::run;
use fonn_tests::secured::ctl;

/// The audiences that the nodes accept; the issuer signs with the algorithm in the query.
const AUDIENCES: [&str; 3] = [
    "https://cache.test/?alg=RS256",
    "https://cache.test/?alg=ES256",
    "https://cache.test/?alg=EdDSA",
];

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// The issuer. It ends when its standard input does.
struct Provider {
    child: Child,
    url: String,
    address: SocketAddr,
}

impl Drop for Provider {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It ends by itself; an error means that it has.
        let _ = self.child.wait();
    }
}

impl Provider {
    fn start(node: &Path) -> Result<Self> {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts/oidc_provider.mjs");
        let mut child = Command::new(node)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().context("no output")?;
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url)?;
        let url = url.trim_end().to_owned();
        let address = url.strip_prefix("http://").context("no issuer")?;
        Ok(Self {
            address: address.parse()?,
            child,
            url,
        })
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<String> {
        let mut client = HttpClient::connect(self.address)?;
        let answer = client.request(method, path, headers, body.as_bytes())?;
        let text = String::from_utf8(answer.body)?;
        ensure!(answer.status == 200, "{path}: {} {text}", answer.status);
        Ok(text)
    }

    /// An identity token of `issuer`, for an audience, by a clock that is so many seconds ahead.
    fn token(&self, issuer: &str, audience: &str, clock: i64) -> Result<String> {
        let headers = [
            FORM,
            // `job:secret`.
            ("authorization", "Basic am9iOnNlY3JldA=="),
            ("x-clock", &clock.to_string()),
        ];
        let audience = audience.replace('?', "%3F").replace('=', "%3D");
        let body = format!("grant_type=client_credentials&resource={audience}");
        let path = format!("/token?as={issuer}");
        let answer: Value = serde_json::from_str(&self.ask("POST", &path, &headers, &body)?)?;
        let token = answer["access_token"].as_str().context("no token")?;
        Ok(token.to_owned())
    }

    fn rotate(&self) -> Result<()> {
        self.ask("POST", "/rotate", &[], "").map(drop)
    }

    fn fetches(&self) -> Result<u64> {
        Ok(self.ask("GET", "/fetches", &[], "")?.parse()?)
    }
}

/// Two nodes with one users file.
struct Nodes {
    nodes: [FonnNode; 2],
    _dir: TempDir,
}

impl Nodes {
    fn start(issuer: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("token.key"), "5a".repeat(32))?;
        let file = dir.path().join("users.toml");
        let text = format!(
            "exchange = {{ key_file = 'token.key' }}\n\
             [[oidc]]\nname = 'ci'\nissuer = '{issuer}'\naudience = {AUDIENCES:?}\n\
             [[oidc.rule]]\nname = 'main'\nrole = 'read-write'\nnamespace = 'acme'\n\
             when = {{ repository_id = '123', ref = 'refs/heads/*' }}\n"
        );
        fs::write(&file, text)?;
        let start = || {
            let node = NodeOptions::new().in_memory().with_http();
            node.flag("--users-file", &file).start()
        };
        Ok(Self {
            nodes: [start()?, start()?],
            _dir: dir,
        })
    }

    /// Asks the first node for a token in exchange.
    fn exchange(&self, identity: &str) -> Result<HttpAnswer> {
        let body = format!(
            "grant_type=urn:ietf:params:oauth:grant-type:token-exchange&subject_token={identity}&\
             subject_token_type=urn:ietf:params:oauth:token-type:jwt"
        );
        let mut client = HttpClient::connect(self.nodes[0].http())?;
        client.request("POST", "/v1/token", &[FORM], body.as_bytes())
    }

    fn granted(&self, identity: &str) -> Result<String> {
        let answer = self.exchange(identity)?;
        let text = String::from_utf8(answer.body.clone())?;
        ensure!(answer.status == 200, "{answer:?}: {text}");
        ensure!(
            answer.header("cache-control") == Some("no-store"),
            "{answer:?}"
        );
        let granted: Value = serde_json::from_str(&text)?;
        ensure!(
            granted["token_type"] == "Bearer" && granted["expires_in"] == 3600,
            "{text}"
        );
        Ok(granted["access_token"]
            .as_str()
            .context("no token")?
            .to_owned())
    }

    /// What each way in says to a token: HTTP, RESP, gRPC of the admin port.
    fn ways_in(&self, node: usize, token: &str) -> Result<[bool; 3]> {
        let node = &self.nodes[node];
        let login = format!("Bearer {token}");
        let mut http = HttpClient::connect(node.http())?;
        let put = http.request("PUT", "/k", &[("authorization", &login)], b"v")?;
        ensure!(matches!(put.status, 200 | 401), "{put:?}");
        let mut resp = node.resp()?;
        let auth = resp.call(&[b"AUTH", b"any", token.as_bytes()])?;
        let (code, _) = ctl(node.admin(), Some(("any", token)), &["key", "k"])?;
        Ok([put.status == 200, auth.ok().is_ok(), code == Some(0)])
    }
}

#[test]
fn identities_of_an_issuer_are_exchanged_for_tokens_that_every_node_takes() -> Result<()> {
    let Some(node) = program("oidc-provider")? else {
        return Ok(());
    };
    let provider = Provider::start(&node)?;
    let nodes = Nodes::start(&provider.url)?;
    // Each algorithm.
    let mut tokens = Vec::new();
    for audience in AUDIENCES {
        tokens.push(nodes.granted(&provider.token("main", audience, 0)?)?);
    }
    ensure!(nodes.ways_in(0, &tokens[0])? == [true; 3]);
    ensure!(nodes.ways_in(1, &tokens[1])? == [true; 3]);
    let writes = &nodes.nodes[0];
    let mut resp = writes.resp()?;
    resp.call(&[b"AUTH", tokens[2].as_bytes()])?.ok()?;
    ensure!(resp.command("GET k")? == RespReply::Bulk(b"v".to_vec()));
    grpc_takes(
        writes,
        &tokens[0],
        &tokens[0].replace("fonnx_01", "fonnx_02"),
    )?;

    // None of these is exchanged, and none is a token by itself.
    let good = provider.token("main", AUDIENCES[0], 0)?;
    let mut parts = good.split('.').skip(1);
    let (said, signature) = parts.next().zip(parts.next()).context("no parts")?;
    // {"alg":"none"}
    let none = format!("eyJhbGciOiJub25lIn0.{said}.");
    let swapped = provider.token("main", AUDIENCES[0], -30)?;
    let (swapped, _) = swapped.rsplit_once('.').context("no signature")?;
    for (identity, why) in [
        (
            provider.token("main", "https://evil.test/?alg=RS256", 0)?,
            "another audience",
        ),
        (
            provider.token("other", AUDIENCES[0], 0)?,
            "issuer of the token is not known",
        ),
        (provider.token("main", AUDIENCES[0], -7200)?, "has expired"),
        (none, "algorithm of the token is not accepted"),
        (
            format!("{swapped}.{signature}"),
            "signature of the token is wrong",
        ),
        (tokens[0].clone(), "no signed JSON Web Token"),
    ] {
        let refused = nodes.exchange(&identity)?;
        let text = String::from_utf8(refused.body)?;
        ensure!(refused.status == 400 && text.contains(why), "{why}: {text}");
        ensure!(
            text.contains("\"invalid_request\"") && !text.contains(&identity),
            "{text}"
        );
        if identity != tokens[0] {
            ensure!(nodes.ways_in(0, &identity)? == [false; 3], "{why}");
        }
    }

    // A key that the issuer publishes from now on is found at once; further unknown ones cause no
    // further fetch.
    let before = provider.fetches()?;
    provider.rotate()?;
    let rotated = nodes.granted(&provider.token("main", AUDIENCES[1], 0)?)?;
    ensure!(nodes.ways_in(1, &rotated)? == [true; 3]);
    for identity in [good, provider.token("unpublished", AUDIENCES[2], 0)?] {
        let refused = nodes.exchange(&identity)?;
        let text = String::from_utf8(refused.body)?;
        ensure!(
            refused.status == 400 && text.contains("no key of the id"),
            "{text}"
        );
    }
    ensure!(provider.fetches()? == before + 1, "{}", provider.fetches()?);
    let page = writes.http_get("/metrics")?.body;
    for (outcome, count) in [
        ("accepted", 4),
        ("audience", 1),
        ("key", 2),
        ("signature", 1),
    ] {
        let line = format!("fonn_token_exchanges_total{{outcome=\"{outcome}\"}} {count}\n");
        ensure!(page.contains(&line), "{line} is not in {page}");
    }
    let log = writes.log()?.text();
    ensure!(
        !log.contains("eyJ") && !log.contains("fonnx_"),
        "a token is in {log}"
    );
    Ok(())
}

/// Asks over gRPC whether blobs are missing: none, since the message is empty.
fn grpc_takes(node: &FonnNode, right: &str, wrong: &str) -> Result<()> {
    let Some(curl) = program("curl")? else {
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let message = dir.path().join("message");
    fs::write(&message, [0; 5])?;
    // A refusal comes before the message is read, and the node ends the stream then (RFC 9113,
    // section 8.1). The curl of Debian 12 loses an answer that comes while it sends, so it sends no
    // message there.
    let message = format!("@{}", message.display());
    let calls: [(_, &[&str], _); 2] = [
        (right, &["--data-binary", &message], "grpc-status: 0"),
        (wrong, &["-X", "POST"], "grpc-status: 16"),
    ];
    for (token, body, status) in calls {
        let service = "build.bazel.remote.execution.v2.ContentAddressableStorage";
        let told = run(Command::new(&curl)
            .args([
                "-sS",
                "--noproxy",
                "*",
                "--http2-prior-knowledge",
                "-o",
                "/dev/null",
                "-D",
                "-",
            ])
            .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
            .args(["-H", &format!("authorization: Bearer {token}")])
            .args(body)
            .arg(format!("http://{}/{service}/FindMissingBlobs", node.http())))?;
        ensure!(told.contains(status), "{status} is not in {told}");
    }
    Ok(())
}

#[test]
fn without_an_issuer_nothing_is_exchanged() -> Result<()> {
    let node = NodeOptions::new().in_memory().with_http().start()?;
    let mut client = HttpClient::connect(node.http())?;
    let answer = client.request("POST", "/v1/token", &[FORM], b"grant_type=x")?;
    ensure!(answer.status == 404, "{answer:?}");
    // The node may have answered before it read the body, and ends the connection then.
    let mut client = HttpClient::connect(node.http())?;
    let answer = client.request("PUT", "/v1/token", &[], b"value")?;
    ensure!(answer.status == 405, "{answer:?}");
    Ok(())
}
