//! Cache poisoning (CVE-2025-36852): a pull request stores a bad artifact under the key that the
//! main branch will compute.
//!
//! The identity of each pull request has an overlay of its own over the namespace of the main
//! branch. It reads what the main branch built, and writes where no other job reads.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};

use fonn_tests::client::HttpClient;
use fonn_tests::component::program;
use fonn_tests::issuer::Issuer;

use super::clients::{Endpoint, Found, Nx};
use super::tokens::Tokens;
use super::turborepo::Workspace;

/// Tokens of the main branch and of two pull requests.
struct Identities {
    main: String,
    attacker: String,
    other: String,
}

fn start() -> Result<(Tokens, Identities)> {
    let issuer = Issuer::new()?;
    let (tokens, ()) = Tokens::start(&issuer.tables(), |_| Ok(()))?;
    let token = |reference| issuer.token(tokens.node.http(), reference);
    let identities = Identities {
        main: token("refs/heads/main")?,
        attacker: token("refs/pull/1/merge")?,
        other: token("refs/pull/2/merge")?,
    };
    Ok((tokens, identities))
}

/// The requests of Nx.
struct NxRequests<'n> {
    client: HttpClient,
    login: String,
    path: &'n str,
}

impl<'n> NxRequests<'n> {
    fn new(tokens: &Tokens, secret: &str, path: &'n str) -> Result<Self> {
        Ok(Self {
            client: HttpClient::connect(tokens.node.http())?,
            login: format!("Bearer {secret}"),
            path,
        })
    }

    fn ask(&mut self, method: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let headers = [
            ("authorization", &*self.login),
            ("accept", "application/octet-stream"),
            ("content-type", "application/octet-stream"),
        ];
        let answer = self.client.request(method, self.path, &headers, body)?;
        Ok((answer.status, answer.body))
    }

    fn put(&mut self, value: &[u8]) -> Result<u16> {
        Ok(self.ask("PUT", value)?.0)
    }

    fn get(&mut self) -> Result<Option<Vec<u8>>> {
        match self.ask("GET", b"")? {
            (200, value) => Ok(Some(value)),
            (404, _) => Ok(None),
            other => anyhow::bail!("{other:?}"),
        }
    }
}

#[test]
fn what_a_pull_request_puts_under_a_hash_of_nx_is_its_own() -> Result<()> {
    let (tokens, who) = start()?;
    let path = "/v1/cache/17575332623054215528";
    let mut main = NxRequests::new(&tokens, &who.main, path)?;
    let mut attacker = NxRequests::new(&tokens, &who.attacker, path)?;
    let mut other = NxRequests::new(&tokens, &who.other, path)?;
    ensure!(attacker.put(b"poison")? == 200);
    ensure!(attacker.get()?.as_deref() == Some(&b"poison"[..]));
    ensure!(main.get()?.is_none() && other.get()?.is_none());
    ensure!(main.put(b"own")? == 200);
    for (name, nx) in [("main", &mut main), ("other", &mut other)] {
        let found = nx.get()?;
        ensure!(found.as_deref() == Some(&b"own"[..]), "{name}: {found:?}");
    }
    // The first value of a hash stays, also for a second writer of the same namespace.
    ensure!(main.put(b"another")? == 409 && main.get()?.as_deref() == Some(&b"own"[..]));
    // What the attacker removes is its own, and the value of the main branch shows again.
    ensure!(attacker.ask("DELETE", b"")?.0 == 204);
    ensure!(attacker.get()?.as_deref() == Some(&b"own"[..]));
    ensure!(attacker.ask("DELETE", b"")?.0 == 404 && main.get()?.as_deref() == Some(&b"own"[..]));
    Ok(())
}

/// The workflow file of a build: no input of a hash, and neither is what it sets in the
/// environment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Workflow {
    Honest,
    /// It makes the build write `poison`.
    Poisoned,
}

/// Lets the pull request poison its cache, and all identities build after it. `build` builds with a
/// token, and returns what the tool said, whether it was a hit, and the output.
fn check(
    who: &Identities,
    build: impl Fn(&str, Workflow) -> Result<(String, bool, String)>,
) -> Result<()> {
    build(&who.attacker, Workflow::Poisoned)?;
    let (text, is_hit, output) = build(&who.attacker, Workflow::Honest)?;
    ensure!(
        is_hit && output == "poison\n",
        "the poison was not stored: {text}"
    );
    let (text, is_hit, own) = build(&who.main, Workflow::Honest)?;
    ensure!(!is_hit && own != "poison\n", "{text}");
    for (name, token) in [("main", &who.main), ("another pull request", &who.other)] {
        let (text, is_hit, output) = build(token, Workflow::Honest)?;
        ensure!(is_hit && output == own, "{name}: {text}");
    }
    Ok(())
}

#[test]
fn a_pull_request_poisons_no_build_of_the_main_branch_of_nx() -> Result<()> {
    let Some(nx) = Nx::new()? else {
        return Ok(());
    };
    let (tokens, who) = start()?;
    check(&who, |token, workflow| {
        let at = Endpoint::with_token(tokens.node.http(), token);
        let environment: &[_] = match workflow {
            Workflow::Honest => &[],
            Workflow::Poisoned => &[("STAMP", "poison")],
        };
        let build = nx.build_with(&at, environment)?;
        let output = String::from_utf8(build.output)?;
        Ok((build.said, build.found == Found::All, output))
    })
}

/// The worst case: the pull request has the key of the signatures, too.
#[test]
fn a_pull_request_poisons_no_build_of_the_main_branch_of_turborepo() -> Result<()> {
    let (Some(turbo), Some(_)) = (program("turbo")?, program("npm")?) else {
        return Ok(());
    };
    let (tokens, who) = start()?;
    let workspace = Workspace::new(&turbo)?;
    // Turborepo hands few variables on, and the search path is one of them.
    let programs = tempfile::tempdir()?;
    let date = programs.path().join("date");
    fs::write(&date, "#!/bin/sh\necho poison\n")?;
    fs::set_permissions(&date, Permissions::from_mode(0o755))?;
    let path = std::env::var("PATH")?;
    let poisoned = format!("{}:{path}", programs.path().display());
    check(&who, |token, workflow| {
        let at = Endpoint::with_token(tokens.node.http(), token);
        let path = match workflow {
            Workflow::Honest => &path,
            Workflow::Poisoned => &poisoned,
        };
        let (text, output) = workspace.build_with(&at, &[("PATH", path)])?;
        let is_hit = text.contains("FULL TURBO");
        Ok((text, is_hit, output))
    })
}
