//! Identities of a real OIDC issuer, exchanged for tokens, by each way in.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fonn_reapi::messages::FindMissingBlobsRequest;
use fonn_reapi::{Method, frame};
use serde_json::Value;
use tempfile::TempDir;
use tonic::Code;

use fonn_tests::certificates::Certified;
use fonn_tests::client::{HttpAnswer, HttpClient, RemoteClient, RespClient, RespReply};
use fonn_tests::component::program;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::free_address;
use fonn_tests::router::FonnRouter;
use fonn_tests::secured::ctl;

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

/// The audiences that the nodes accept; the issuer signs with the algorithm in the query.
const AUDIENCES: [&str; 3] = [
    "https://cache.test/?alg=RS256",
    "https://cache.test/?alg=ES256",
    "https://cache.test/?alg=EdDSA",
];

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// A job, and what its issuer says of it.
struct Job<'j> {
    /// Which issuer of the script it is.
    issuer: &'j str,
    audience: &'j str,
    /// How many seconds the clock of the issuer is ahead.
    clock: i64,
    reference: &'j str,
}

/// The job whose identity token is right in all respects.
const RIGHT: Job<'static> = Job {
    issuer: "main",
    audience: AUDIENCES[0],
    clock: 0,
    reference: "refs/heads/main",
};

/// A job whose rule gives it a token for a second.
const BRIEF: Job<'static> = Job {
    reference: "refs/heads/brief",
    ..RIGHT
};

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

    /// The identity token of a job.
    fn token(&self, job: &Job<'_>) -> Result<String> {
        let headers = [
            FORM,
            // `job:secret`.
            ("authorization", "Basic am9iOnNlY3JldA=="),
            ("x-clock", &job.clock.to_string()),
            ("x-ref", job.reference),
        ];
        let audience = job.audience.replace('?', "%3F").replace('=', "%3D");
        let body = format!("grant_type=client_credentials&resource={audience}");
        let path = format!("/token?as={}", job.issuer);
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

/// A users file with an issuer and its rules.
struct Users {
    file: PathBuf,
    _dir: TempDir,
}

impl Users {
    fn write(issuer: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("token.key"), "5a".repeat(32))?;
        let file = dir.path().join("users.toml");
        // The first rule that holds decides.
        let text = format!(
            "exchange = {{ key_file = 'token.key' }}\n\
             [[oidc]]\nname = 'ci'\nissuer = '{issuer}'\naudience = {AUDIENCES:?}\n\
             [[oidc.rule]]\nname = 'brief'\nrole = 'read-write'\nnamespace = 'acme'\nttl = '1s'\n\
             when = {{ repository_id = '123', ref = '{}' }}\n\
             [[oidc.rule]]\nname = 'main'\nrole = 'read-write'\nnamespace = 'acme'\n\
             when = {{ repository_id = '123', ref = 'refs/heads/*' }}\n",
            BRIEF.reference
        );
        fs::write(&file, text)?;
        Ok(Self { file, _dir: dir })
    }
}

/// The ports of a node or a router.
#[derive(Clone, Copy, Debug)]
struct Ports {
    client: SocketAddr,
    http: SocketAddr,
    admin: SocketAddr,
}

/// What a token meets that is taken, or refused, by every way in.
const TAKEN: [bool; 4] = [true; 4];
const REFUSED: [bool; 4] = [false; 4];

impl Ports {
    fn of(node: &FonnNode) -> Self {
        Self {
            client: node.addr(),
            http: node.http(),
            admin: node.admin(),
        }
    }

    /// Asks for a token in exchange.
    fn exchange(&self, identity: &str) -> Result<HttpAnswer> {
        let body = format!(
            "grant_type=urn:ietf:params:oauth:grant-type:token-exchange&subject_token={identity}&\
             subject_token_type=urn:ietf:params:oauth:token-type:jwt"
        );
        let mut client = HttpClient::connect(self.http)?;
        client.request("POST", "/v1/token", &[FORM], body.as_bytes())
    }

    /// The token that is given for an identity, for so many seconds.
    fn granted(&self, identity: &str, ttl: u64) -> Result<String> {
        let answer = self.exchange(identity)?;
        let text = String::from_utf8(answer.body.clone())?;
        ensure!(answer.status == 200, "{answer:?}: {text}");
        ensure!(
            answer.header("cache-control") == Some("no-store"),
            "{answer:?}"
        );
        let granted: Value = serde_json::from_str(&text)?;
        ensure!(
            granted["token_type"] == "Bearer" && granted["expires_in"] == ttl,
            "{text}"
        );
        Ok(granted["access_token"]
            .as_str()
            .context("no token")?
            .to_owned())
    }

    /// Checks that no token is given for an identity, and that the answer says why.
    fn refuses(&self, identity: &str, why: &str) -> Result<()> {
        let refused = self.exchange(identity)?;
        let text = String::from_utf8(refused.body)?;
        ensure!(refused.status == 400 && text.contains(why), "{why}: {text}");
        let told: Value = serde_json::from_str(&text)?;
        ensure!(
            told["error"] == "invalid_request" && told["access_token"].is_null(),
            "{text}"
        );
        ensure!(!text.contains(identity), "{text}");
        Ok(())
    }

    /// A write over HTTP.
    fn put(&self, token: &str) -> Result<HttpAnswer> {
        let login = format!("Bearer {token}");
        let mut http = HttpClient::connect(self.http)?;
        http.request("PUT", "/k", &[("authorization", &login)], b"v")
    }

    /// What each way in says to a token: HTTP, RESP, gRPC of the admin port, and gRPC of the port
    /// for build tools.
    fn ways_in(&self, token: &str) -> Result<[bool; 4]> {
        let put = self.put(token)?;
        ensure!(matches!(put.status, 200 | 401), "{put:?}");
        let mut resp = RespClient::connect(self.client)?;
        let auth = resp.call(&[b"AUTH", b"any", token.as_bytes()])?;
        let is_refused = matches!(&auth, RespReply::Error(error) if error.starts_with("WRONGPASS"));
        ensure!(is_refused || auth.clone().ok().is_ok(), "{auth:?}");
        let (code, told) = ctl(self.admin, Some(("any", token)), &["key", "k"])?;
        ensure!(matches!(code, Some(0 | 3)), "{code:?}: {told}");
        // None of no blobs is missing.
        let remote = RemoteClient::connect(self.http)?.with_login(&format!("Bearer {token}"))?;
        let message = frame(&FindMissingBlobsRequest::default());
        let missing = remote.call(Method::FindMissingBlobs, vec![message])?.code;
        ensure!(
            matches!(missing, Code::Ok | Code::Unauthenticated),
            "{missing:?}"
        );
        Ok([
            put.status == 200,
            !is_refused,
            code == Some(0),
            missing == Code::Ok,
        ])
    }
}

/// Two nodes with one users file. The second one takes the tokens that the first one gives.
struct Nodes {
    nodes: [FonnNode; 2],
    _users: Users,
}

impl Nodes {
    fn start(issuer: &str) -> Result<Self> {
        let users = Users::write(issuer)?;
        let start = || {
            let node = NodeOptions::new().in_memory().with_http();
            node.flag("--users-file", &users.file).start()
        };
        Ok(Self {
            nodes: [start()?, start()?],
            _users: users,
        })
    }

    fn ports(&self) -> [Ports; 2] {
        [Ports::of(&self.nodes[0]), Ports::of(&self.nodes[1])]
    }
}

#[test]
fn identities_of_an_issuer_are_exchanged_for_tokens_that_every_node_takes() -> Result<()> {
    let Some(node) = program("oidc-provider")? else {
        return Ok(());
    };
    let provider = Provider::start(&node)?;
    let nodes = Nodes::start(&provider.url)?;
    let [first, second] = nodes.ports();
    // Each algorithm.
    let mut tokens = Vec::new();
    for audience in AUDIENCES {
        let identity = provider.token(&Job { audience, ..RIGHT })?;
        tokens.push(first.granted(&identity, 3600)?);
    }
    for token in &tokens {
        ensure!(first.ways_in(token)? == TAKEN);
        ensure!(second.ways_in(token)? == TAKEN);
    }
    let mut resp = RespClient::connect(first.client)?;
    resp.call(&[b"AUTH", tokens[2].as_bytes()])?.ok()?;
    ensure!(resp.command("GET k")? == RespReply::Bulk(b"v".to_vec()));
    // The control: what only looks like such a token is refused.
    let forged = tokens[0].replace("fonnx_01", "fonnx_02");
    ensure!(forged != tokens[0] && first.ways_in(&forged)? == REFUSED);
    Ok(())
}

/// None of these is exchanged, and none is a token by itself. After each of them the right identity
/// is exchanged as before: so each was refused for what it is.
#[test]
fn wrong_identities_are_neither_exchanged_nor_taken_by_any_way_in() -> Result<()> {
    let Some(node) = program("oidc-provider")? else {
        return Ok(());
    };
    let provider = Provider::start(&node)?;
    let nodes = Nodes::start(&provider.url)?;
    let [first, second] = nodes.ports();
    let right = provider.token(&RIGHT)?;
    let mut parts = right.split('.').skip(1);
    let (said, signature) = parts.next().zip(parts.next()).context("no parts")?;
    let earlier = provider.token(&Job {
        clock: -30,
        ..RIGHT
    })?;
    let (earlier, _) = earlier.rsplit_once('.').context("no signature")?;
    let wrong = [
        (
            provider.token(&Job {
                audience: "https://evil.test/?alg=RS256",
                ..RIGHT
            })?,
            "another audience",
        ),
        (
            provider.token(&Job {
                issuer: "other",
                ..RIGHT
            })?,
            "issuer of the token is not known",
        ),
        (
            provider.token(&Job {
                clock: -7200,
                ..RIGHT
            })?,
            "has expired",
        ),
        (
            // {"alg":"none"}
            format!("eyJhbGciOiJub25lIn0.{said}."),
            "algorithm of the token is not accepted",
        ),
        (
            format!("{earlier}.{signature}"),
            "signature of the token is wrong",
        ),
    ];
    let check = |identity: &str, why: &str, right: &str| -> Result<()> {
        first.refuses(identity, why)?;
        ensure!(first.ways_in(identity)? == REFUSED, "{why}");
        let token = first.granted(right, 3600)?;
        ensure!(first.ways_in(&token)? == TAKEN, "after: {why}");
        ensure!(second.ways_in(&token)? == TAKEN, "after: {why}");
        Ok(())
    };
    for (identity, why) in &wrong {
        check(identity, why, &right)?;
    }
    // The right identity itself opens nothing, and the token for it is no identity.
    ensure!(first.ways_in(&right)? == REFUSED);
    first.refuses(&first.granted(&right, 3600)?, "no signed JSON Web Token")?;

    // A key that the issuer publishes from now on is found at once. Further unknown ones cause no
    // further fetch.
    let before = provider.fetches()?;
    provider.rotate()?;
    let rotated = provider.token(&RIGHT)?;
    let token = first.granted(&rotated, 3600)?;
    ensure!(first.ways_in(&token)? == TAKEN && second.ways_in(&token)? == TAKEN);
    let unknown = provider.token(&Job {
        issuer: "unpublished",
        ..RIGHT
    })?;
    for identity in [right, unknown] {
        check(&identity, "no key of the id", &rotated)?;
    }
    ensure!(provider.fetches()? == before + 1, "{}", provider.fetches()?);

    let page = nodes.nodes[0].http_get("/metrics")?.body;
    for (outcome, count) in [
        ("accepted", 9),
        ("algorithm", 1),
        ("audience", 1),
        ("issuer", 1),
        ("key", 2),
        ("malformed", 1),
        ("signature", 1),
        ("time", 1),
    ] {
        let line = format!("fonn_token_exchanges_total{{outcome=\"{outcome}\"}} {count}\n");
        ensure!(page.contains(&line), "{line} is not in {page}");
    }
    let log = nodes.nodes[0].log()?.text();
    ensure!(
        !log.contains("eyJ") && !log.contains("fonnx_"),
        "a token is in {log}"
    );
    Ok(())
}

#[test]
fn an_exchanged_token_is_refused_by_every_way_in_once_its_time_is_over() -> Result<()> {
    let Some(node) = program("oidc-provider")? else {
        return Ok(());
    };
    let provider = Provider::start(&node)?;
    let nodes = Nodes::start(&provider.url)?;
    let [first, second] = nodes.ports();
    let brief = first.granted(&provider.token(&BRIEF)?, 1)?;
    // On a busy machine its time may be over before it is used at all.
    let begun = Instant::now();
    let refused = loop {
        let answer = first.put(&brief)?;
        match answer.status {
            200 => {}
            401 => break String::from_utf8(answer.body)?,
            _ => bail!("{answer:?}"),
        }
        ensure!(begun.elapsed() < LIMIT, "it does not expire");
        thread::sleep(Duration::from_millis(20));
    };
    // An unknown token would be refused with other words.
    ensure!(refused.contains("the token has expired"), "{refused}");
    ensure!(first.ways_in(&brief)? == REFUSED);
    // The control: a token of the other rule.
    let lasting = first.granted(&provider.token(&RIGHT)?, 3600)?;
    ensure!(first.ways_in(&lasting)? == TAKEN);
    // The other node has a clock of its own, on the same machine.
    ensure!(second.ways_in(&brief)? == REFUSED && second.ways_in(&lasting)? == TAKEN);
    Ok(())
}

#[test]
fn a_token_that_a_router_gives_is_taken_by_a_member_and_by_the_router() -> Result<()> {
    let Some(node) = program("oidc-provider")? else {
        return Ok(());
    };
    let provider = Provider::start(&node)?;
    let users = Users::write(&provider.url)?;
    // A member whose clients log in takes the word of a router that has a certificate.
    let certified = Certified::new()?;
    let mut flags = certified.flags().to_vec();
    flags.push(("--users-file", users.file.display().to_string()));
    let listen = free_address()?;
    let mut options = NodeOptions::new()
        .with_http()
        .flag("--node-id", "a")
        .flag("--cluster-listen", listen.to_string())
        .flag("--bootstrap", "true");
    for (name, value) in &flags {
        options = options.flag(name, value);
    }
    let member = options.start()?;
    let http = free_address()?;
    flags.push(("--http-listen", http.to_string()));
    let router = FonnRouter::start_with(&[listen], flags)?;
    let router = Ports {
        client: router.addr(),
        http,
        admin: router.admin(),
    };
    let member = Ports::of(&member);
    let token = router.granted(&provider.token(&RIGHT)?, 3600)?;
    for ports in [member, router] {
        // A member that has just formed its cluster may ask to try again. A router does so until it
        // knows that member.
        let begun = Instant::now();
        while ports.put(&token)?.status == 503 {
            ensure!(begun.elapsed() < LIMIT, "{ports:?} takes no writes");
            thread::sleep(Duration::from_millis(20));
        }
        ensure!(ports.ways_in(&token)? == TAKEN, "{ports:?}");
    }
    let wrong = provider.token(&Job {
        issuer: "other",
        ..RIGHT
    })?;
    router.refuses(&wrong, "issuer of the token is not known")?;
    ensure!(router.ways_in(&wrong)? == REFUSED);
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
