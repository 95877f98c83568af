//! The writers of entries, and purges of what one wrote, through a router and at each member.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use fonn_reapi::messages::{
    ActionResult, Digest, GetActionResultRequest, ReadRequest, UpdateActionResultRequest,
};
use fonn_reapi::{DigestFunction, Hasher, Method, frame};
use prost::Message as _;
use serde_json::Value;
use tempfile::TempDir;
use tonic::Code;

use fonn_tests::certificates::Certified;
use fonn_tests::client::{HttpClient, RemoteClient, RespClient};
use fonn_tests::cluster::name;
use fonn_tests::ctl::{text, with_input};
use fonn_tests::issuer::Issuer;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::free_address;
use fonn_tests::router::FonnRouter;
use fonn_tests::secured::{PASSWORD, Secured, ctl};
use fonn_tests::values::{Content, ValuePool};

/// A busy machine needs its time; it takes milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

const KEYS: usize = 12;

/// No node is asked for a token.
const NOWHERE: &str = "127.0.0.1:1";

/// The identity of the main branch, as the users file names its issuer.
const MAIN: &str = "ci:repo:acme/app:refs/heads/main";

/// What `fonnctl` says to an admin, as JSON: one value a line.
fn root(admin: SocketAddr, arguments: &[&str]) -> Result<Vec<Value>> {
    let arguments = [arguments, &["--json"]].concat();
    let (_, told) = ctl(admin, Some(("root", PASSWORD)), &arguments)?;
    let values = told.lines().map(serde_json::from_str);
    values
        .collect::<Result<_, _>>()
        .with_context(|| format!("{arguments:?}: {told}"))
}

/// Whether each copy of a key that an owner has is of this writer.
fn is_written_by(admin: SocketAddr, namespace: &str, key: &str, writer: &str) -> Result<bool> {
    let answers = root(admin, &["key", key, "--namespace", namespace])?;
    let copies = answers.iter().filter_map(|it| it["copies"].as_array());
    let mut copies = copies.flatten().peekable();
    Ok(copies.peek().is_some() && copies.all(|copy| copy["writer"] == writer))
}

/// Names are told to all members a moment after a login.
fn wait_for_writer(admin: SocketAddr, namespace: &str, key: &str, writer: &str) -> Result<()> {
    let begun = Instant::now();
    while !is_written_by(admin, namespace, key, writer)? {
        let told = root(admin, &["key", key, "--namespace", namespace])?;
        ensure!(begun.elapsed() < LIMIT, "{key} of {writer}: {told:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn purge(admin: SocketAddr, writer: &str, how: &[&str]) -> Result<u64> {
    let told = root(admin, &[&["purge", "--writer", writer], how].concat())?;
    let last = told.last().context("no answer")?;
    ensure!(last["uncounted"] == serde_json::json!([]), "{last}");
    last["entries"].as_u64().context("no figure")
}

/// A token that may write in `main`; its entry is added to a file.
fn token(name: &str, entry: &Path) -> Result<String> {
    let entry = entry.display().to_string();
    let arguments = ["token", "create", name, "--role", "read-write"];
    let place = ["--namespace", "main", "--entry", &entry];
    let secret = text(NOWHERE, &[&arguments[..], &place].concat())?;
    Ok(secret.trim_end().to_owned())
}

fn open(door: SocketAddr, secret: &[u8]) -> Result<RespClient> {
    let mut client = RespClient::connect(door)?;
    let words: &[&[u8]] = match secret.starts_with(b"fonn") {
        true => &[b"AUTH", secret],
        false => &[b"AUTH", b"ci", secret],
    };
    client.call(words)?.ok()?;
    Ok(client)
}

/// Whether the keys of a prefix are found at every door.
fn find(secured: &Secured, secret: &[u8], prefix: &str, is_there: bool) -> Result<()> {
    for door in secured.doors() {
        let mut client = open(door, secret)?;
        for number in 0..KEYS {
            let found = client.command(&format!("GET {prefix}-{number}"))?.bulk()?;
            ensure!(found.is_some() == is_there, "{prefix}-{number} at {door}");
        }
    }
    Ok(())
}

#[test]
fn what_a_leaked_identity_wrote_is_named_and_purged_in_the_whole_cluster() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let entry = dir.path().join("tokens.toml");
    let leaked = token("leaked", &entry)?;
    let leaked = leaked.as_bytes();
    let issuer = Issuer::new()?;
    let tables = fs::read_to_string(&entry)? + &issuer.tables();
    let mut secured = Secured::start_with_tokens(&tables)?;
    let http = free_address()?;
    let router = secured.router_with_http(http)?;
    let admin = router.admin();
    let job = issuer.token(http, "refs/heads/main")?;

    let doors: Vec<SocketAddr> = secured.doors().collect();
    for number in 0..KEYS {
        let door = doors[number % doors.len()];
        let mut ci = open(door, PASSWORD.as_bytes())?;
        let mut bad = open(door, leaked)?;
        for (key, writers) in [("good", "c"), ("overwritten", "cb"), ("mended", "bc")] {
            for writer in writers.chars() {
                let client = if writer == 'c' { &mut ci } else { &mut bad };
                client.command(&format!("SET {key}-{number} v"))?.ok()?;
            }
        }
        // In one transaction, and by a command about several keys.
        bad.command("MULTI")?;
        bad.command(&format!("SET bad-{number} v"))?;
        bad.command("EXEC")?.array()?;
        let stored = bad.command(&format!("MSETNX worse-{number} v"))?;
        ensure!(stored.integer()? == 1, "worse-{number}");
        let login = format!("Bearer {job}");
        let put = HttpClient::connect(http)?.request(
            "PUT",
            &format!("/artifact-{number}"),
            &[("authorization", &login)],
            b"v",
        )?;
        ensure!(matches!(put.status, 200 | 201), "{put:?}");
    }
    for number in 0..KEYS {
        wait_for_writer(admin, "main", &format!("good-{number}"), "ci")?;
        wait_for_writer(admin, "main", &format!("mended-{number}"), "ci")?;
        for key in ["bad", "worse", "overwritten"] {
            wait_for_writer(admin, "main", &format!("{key}-{number}"), "leaked")?;
        }
        wait_for_writer(admin, "acme", &format!("artifact-{number}"), MAIN)?;
    }

    // It is for admins.
    let token = std::str::from_utf8(leaked)?;
    let refused = ["purge", "--writer", "ci", "--yes"];
    let (code, told) = ctl(admin, Some(("any", token)), &refused)?;
    ensure!(code != Some(0), "{told}");
    find(&secured, leaked, "good", true)?;

    let of_leaked = 3 * KEYS as u64;
    ensure!(purge(admin, "leaked", &["--dry-run"])? == of_leaked);
    ensure!(purge(admin, "leaked", &["--namespace", "acme", "--yes"])? == 0);
    ensure!(
        purge(
            admin,
            "leaked",
            &["--since", "2099-01-01T00:00:00Z", "--yes"]
        )? == 0
    );
    find(&secured, leaked, "bad", true)?;
    ensure!(purge(admin, "leaked", &["--yes"])? == of_leaked);
    let check = |secured: &Secured| -> Result<()> {
        for prefix in ["bad", "worse", "overwritten"] {
            find(secured, leaked, prefix, false)?;
        }
        find(secured, leaked, "good", true)?;
        find(secured, leaked, "mended", true)
    };
    check(&secured)?;
    ensure!(purge(admin, "leaked", &["--yes"])? == 0, "it is done");

    // A member that comes back with its disk knows it.
    secured.nodes[1].kill9()?;
    secured.nodes[1].start_again()?;
    secured.wait_until_active()?;
    check(&secured)?;

    // At a member, of an identity of an issuer.
    ensure!(purge(secured.nodes[2].admin(), MAIN, &["--yes"])? == KEYS as u64);
    let login = format!("Bearer {job}");
    for number in 0..KEYS {
        let path = format!("/artifact-{number}");
        let headers = [("authorization", &*login)];
        let found = HttpClient::connect(http)?.request("GET", &path, &headers, b"")?;
        ensure!(found.status == 404, "{path}: {found:?}");
    }
    // What it writes later counts.
    open(doors[0], leaked)?.command("SET bad-0 v")?.ok()?;
    let found = open(doors[1], leaked)?.command("GET bad-0")?.bulk()?;
    ensure!(found.is_some(), "written after the purge");
    Ok(())
}

/// Three members and a router that serve build tools, and store values of 1 MiB at most whole.
/// Their users file has `root` and the tokens `leaked` and `good`.
struct Tools {
    nodes: Vec<FonnNode>,
    router: FonnRouter,
    http: SocketAddr,
    leaked: String,
    good: String,
    _certified: Certified,
    _dir: TempDir,
}

impl Tools {
    fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("users.toml");
        let hash = with_input(NOWHERE, &["user", "hash"], PASSWORD)?.stdout;
        let hash = String::from_utf8(hash)?;
        let root = format!(
            "[[user]]\nname = 'root'\nrole = 'admin'\nhash = '{}'\n",
            hash.trim()
        );
        fs::write(&file, root)?;
        let (leaked, good) = (token("leaked", &file)?, token("good", &file)?);
        let certified = Certified::new()?;
        let mut flags = certified.flags().to_vec();
        flags.push(("--users-file", file.display().to_string()));
        flags.push(("--max-value", "1m".to_owned()));
        let (mut nodes, mut listens) = (Vec::new(), Vec::new());
        for number in 0..3 {
            let listen = free_address()?;
            let mut options = NodeOptions::new()
                .with_http()
                .patient()
                .flag("--node-id", name(number))
                .flag("--cluster-listen", listen.to_string())
                .flag("--ram-budget", "64m")
                .flag("--disk-budget", "512m");
            for (name, value) in &flags {
                options = options.flag(name, value);
            }
            options = match listens.first() {
                None => options.flag("--bootstrap", "true"),
                Some(first) => options.flag("--join", SocketAddr::to_string(first)),
            };
            nodes.push(options.start()?);
            listens.push(listen);
        }
        let http = free_address()?;
        flags.push(("--http-listen", http.to_string()));
        let router = FonnRouter::start_with(&listens, flags)?;
        let tools = Self {
            nodes,
            router,
            http,
            leaked,
            good,
            _certified: certified,
            _dir: dir,
        };
        tools.wait_until_active()?;
        Ok(tools)
    }

    /// Waits until all members own slots. Before that a member may ask to try again.
    fn wait_until_active(&self) -> Result<()> {
        let begun = Instant::now();
        for node in &self.nodes {
            loop {
                let (_, map) = ctl(node.admin(), Some(("root", PASSWORD)), &["map", "--json"])?;
                let found: Value = serde_json::from_str(&map).unwrap_or_default();
                let owners = found["members"].as_array().into_iter().flatten();
                let owners = owners.filter(|it| {
                    let owned = it["slots_first"].as_u64().unwrap_or_default();
                    it["member"]["state"] == "active" && owned > 0
                });
                if owners.count() == self.nodes.len() {
                    break;
                }
                ensure!(begun.elapsed() < LIMIT, "they do not own slots: {map}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// The HTTP ports of the router and of all members.
    fn doors(&self) -> Vec<SocketAddr> {
        let nodes = self.nodes.iter().map(FonnNode::http);
        [self.http].into_iter().chain(nodes).collect()
    }
}

/// What a build of one identity stores at one door: an action result and a blob over gRPC, and by a
/// PUT a value that is longer than `--max-value`.
struct Stored {
    writer: &'static str,
    login: String,
    action: Digest,
    blob: Bytes,
    path: String,
    long: Vec<u8>,
}

/// Longer than `--max-value`. The longest chunk has 4 MiB, so there may be one chunk alone.
const LONG_LEN: usize = 3 << 20;
const CHUNKS_MIN: u64 = 1;

fn digest_of(bytes: &[u8]) -> Digest {
    let hasher = Hasher::new(DigestFunction::Sha256);
    hasher.digest(bytes).message()
}

impl Stored {
    /// Stores all of it at the door of that number. No two of them have a chunk in common.
    fn write(tools: &Tools, writer: &'static str, number: usize) -> Result<Self> {
        let name = format!("{writer}-{number}");
        let mark = (2 * number + usize::from(writer == "good")) as u8;
        let pool = ValuePool::new(Content::Random, LONG_LEN);
        let long = pool.value(1, LONG_LEN).to_vec();
        let token = match writer {
            "good" => &tools.good,
            _ => &tools.leaked,
        };
        let stored = Self {
            writer,
            login: format!("Bearer {token}"),
            action: digest_of(format!("action of {name}").as_bytes()),
            blob: format!("blob of {name}").into(),
            path: format!("long-{name}"),
            long: long.iter().map(|byte| byte ^ mark).collect(),
        };
        let door = tools.doors()[number];
        let remote = stored.remote(door)?;
        let result = ActionResult {
            stdout_raw: stored.blob.clone(),
            ..ActionResult::default()
        };
        let update = UpdateActionResultRequest {
            action_digest: Some(stored.action.clone()),
            action_result: result.encode_to_vec().into(),
            ..UpdateActionResultRequest::default()
        };
        let updated = remote.call(Method::UpdateActionResult, vec![frame(&update)])?;
        ensure!(updated.code == Code::Ok, "{name}: {updated:?}");
        remote.write(
            &format!("uploads/{number}/{}", stored.resource()),
            &stored.blob,
        )?;
        let put = stored.http(door, "PUT", &stored.long)?;
        ensure!(put.0 == 200, "{name}: {}", put.0);
        Ok(stored)
    }

    fn remote(&self, door: SocketAddr) -> Result<RemoteClient> {
        RemoteClient::connect(door)?.with_login(&self.login)
    }

    fn http(&self, door: SocketAddr, method: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let headers = [("authorization", &*self.login)];
        let mut client = HttpClient::connect(door)?;
        let answer = client.request(method, &format!("/{}", self.path), &headers, body)?;
        Ok((answer.status, answer.body))
    }

    /// The name of the blob.
    fn resource(&self) -> String {
        let Digest { hash, size_bytes } = digest_of(&self.blob);
        format!("blobs/{hash}/{size_bytes}")
    }

    /// Waits until an admin is told at a door of which writer each entry is.
    fn wait_for_writer(&self, admin: SocketAddr) -> Result<()> {
        let (action, blob) = (&self.action.hash, digest_of(&self.blob).hash);
        for key in [
            format!("ac/{action}"),
            format!("cas/{blob}"),
            self.path.clone(),
        ] {
            wait_for_writer(admin, "main", &key, self.writer)?;
        }
        Ok(())
    }

    /// Whether all of it, or nothing, is found at each door.
    fn find(&self, tools: &Tools, is_there: bool) -> Result<()> {
        let code = match is_there {
            true => Code::Ok,
            false => Code::NotFound,
        };
        for door in tools.doors() {
            let at = format!("{} at {door}", self.path);
            let remote = self.remote(door)?;
            let get = GetActionResultRequest {
                action_digest: Some(self.action.clone()),
                ..GetActionResultRequest::default()
            };
            let result = remote.call(Method::GetActionResult, vec![frame(&get)])?;
            ensure!(result.code == code, "the result of {at}: {:?}", result.code);
            let read = ReadRequest {
                resource_name: self.resource(),
                ..ReadRequest::default()
            };
            let blob = remote.call(Method::Read, vec![frame(&read)])?;
            ensure!(blob.code == code, "the blob of {at}: {:?}", blob.code);
            let (status, body) = self.http(door, "GET", b"")?;
            let is_right = match is_there {
                true => status == 200 && body == self.long,
                false => status == 404,
            };
            ensure!(is_right, "{at}: {status}, {} bytes", body.len());
            if is_there {
                let result: ActionResult = result.message()?;
                ensure!(result.stdout_raw == self.blob, "the result of {at}");
                ensure!(remote.read(&self.resource())? == self.blob, "{at}");
            }
        }
        Ok(())
    }
}

#[test]
fn what_an_identity_wrote_over_grpc_and_in_chunks_is_purged_and_nothing_else() -> Result<()> {
    let tools = Tools::start()?;
    let write = |writer| -> Result<Vec<Stored>> {
        let doors = 0..tools.doors().len();
        doors
            .map(|number| Stored::write(&tools, writer, number))
            .collect()
    };
    let (leaked, good) = (write("leaked")?, write("good")?);
    for stored in leaked.iter().chain(&good) {
        stored.wait_for_writer(tools.router.admin())?;
        stored.find(&tools, true)?;
    }
    let admin = tools.router.admin();
    let counted = purge(admin, "leaked", &["--dry-run"])?;
    // A result, a blob, a manifest and chunks.
    let least = leaked.len() as u64 * (3 + CHUNKS_MIN);
    ensure!(counted >= least, "{counted} entries, expected {least}");
    for stored in &leaked {
        stored.find(&tools, true)?;
    }
    ensure!(purge(admin, "leaked", &["--yes"])? == counted);
    for stored in &leaked {
        stored.find(&tools, false)?;
    }
    for stored in &good {
        stored.find(&tools, true)?;
    }
    ensure!(purge(admin, "leaked", &["--yes"])? == 0, "it is done");
    // At a member, of the other identity.
    let of_good = purge(tools.nodes[1].admin(), "good", &["--yes"])?;
    ensure!(of_good >= least, "{of_good} entries, expected {least}");
    for stored in &good {
        stored.find(&tools, false)?;
    }
    Ok(())
}
