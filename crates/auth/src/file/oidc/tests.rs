mod overlays;

use std::collections::HashMap;

use tempfile::TempDir;

use super::*;
use crate::{CredentialKind, Directory, ExchangeError, ExchangedToken, Identity, namespace_number};

const KEY: &str = "0101010101010101010101010101010101010101010101010101010101010101";
const OTHER_KEY: &str = "0202020202020202020202020202020202020202020202020202020202020202";

const FILE: &str = "
[exchange]
key_file = 'token.key'

[[namespace]]
name = 'acme'

[[namespace]]
name = 'acme-pr'
base = 'acme'

[[oidc]]
name = 'github'
issuer = 'https://token.actions.githubusercontent.com'
audience = 'https://cache.acme.example'

[[oidc.rule]]
name = 'main'
when = { repository_id = '123', ref = 'refs/heads/main' }
role = 'read-write'
namespace = 'acme'
ttl = '2h'

[[oidc.rule]]
name = 'pull-requests'
when = { repository_id = 123, ref = ['refs/pull/*', 'refs/heads/dependabot/*'] }
role = 'read-write'
namespace = 'acme-pr'
";

const NOW_MS: u64 = 1_800_000_000_000;

struct Files(TempDir);

impl Files {
    fn new(keys: &str) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write("token.key", keys);
        files
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn load(&self, text: &str) -> Result<Directory, String> {
        self.write("users.toml", text);
        let path = self.0.path().join("users.toml");
        Directory::load(&path).map_err(|error| error.to_string())
    }
}

/// Exchanges an identity with these claims.
fn exchange(
    directory: &Directory,
    claims: &[(&str, &str)],
) -> Result<ExchangedToken, ExchangeError> {
    let sub = [("sub", "repo:acme/app:environment:x")];
    let of = |&(name, text): &(&str, &str)| (name.to_owned(), vec![text.to_owned()]);
    let claims: HashMap<String, Vec<String>> = sub.iter().chain(claims).map(of).collect();
    let texts = |claim: &str| claims.get(claim).map_or(&[][..], Vec::as_slice);
    directory.exchange.exchange("github", texts, NOW_MS)
}

const MAIN: [(&str, &str); 2] = [("repository_id", "123"), ("ref", "refs/heads/main")];

fn verify(directory: &Directory, token: &ExchangedToken) -> Option<Identity> {
    directory.exchange.verify(token.secret.as_bytes())
}

#[test]
fn the_first_rule_whose_conditions_hold_gives_role_and_namespace() {
    let directory = Files::new(KEY).load(FILE).unwrap();
    let token = exchange(&directory, &MAIN).unwrap();
    assert_eq!((&*token.rule, token.ttl.as_secs()), ("main", 7200));
    let identity = verify(&directory, &token).unwrap();
    assert_eq!(
        identity.to_string(),
        "identity `github:repo:acme/app:environment:x`"
    );
    assert_eq!(identity.role, Role::ReadWrite);
    assert_eq!(&*identity.namespace.name, "acme");
    assert_eq!(identity.kind, CredentialKind::Exchanged);
    let end_ms = NOW_MS + 7_200_000;
    assert!(directory.holds(&identity, end_ms - 1) && !directory.holds(&identity, end_ms));

    for reference in ["refs/pull/7/merge", "refs/heads/dependabot/npm"] {
        let claims = [("repository_id", "123"), ("ref", reference)];
        let token = exchange(&directory, &claims).unwrap();
        assert_eq!(
            token.identity.namespace.base,
            Some(namespace_number("acme"))
        );
        assert_eq!((&*token.rule, token.ttl), ("pull-requests", TTL));
    }
    for claims in [
        &[("repository_id", "124"), ("ref", "refs/heads/main")][..],
        &[("repository_id", "123"), ("ref", "refs/heads/main2")],
        &[("repository_id", "123")],
        &[("ref", "refs/heads/main")],
        &[],
    ] {
        assert_eq!(
            exchange(&directory, claims).err(),
            Some(ExchangeError::NoRule),
            "{claims:?}"
        );
    }
}

#[test]
fn a_rule_says_whether_builds_are_told_to_store_results() {
    let reader = "role = 'read'\nupdate_enabled = false";
    let text = FILE.replacen("role = 'read-write'", reader, 1);
    let directory = Files::new(KEY).load(&text).unwrap();
    let token = exchange(&directory, &MAIN).unwrap();
    assert!(!verify(&directory, &token).unwrap().update_enabled);
    let writer = FILE.replacen("role =", "update_enabled = false\nrole =", 1);
    let error = Files::new(KEY).load(&writer).err().unwrap();
    assert!(error.contains("is for the role `read`"), "{error}");
}

#[test]
fn a_subject_has_to_be_visible_ascii_text() {
    let directory = Files::new(KEY).load(FILE).unwrap();
    for subject in ["", "two words", "line\n", "ü", &"x".repeat(255)] {
        let claims = [MAIN[0], MAIN[1], ("sub", subject)];
        assert_eq!(
            exchange(&directory, &claims).err(),
            Some(ExchangeError::Subject),
            "{subject}"
        );
    }
}

#[test]
fn every_process_with_the_file_verifies_a_token_until_rule_or_key_change() {
    let [one, other] = [KEY, KEY].map(|key| Files::new(key).load(FILE).unwrap());
    let token = exchange(&one, &MAIN).unwrap();
    let identity = verify(&other, &token).unwrap();
    assert!(other.holds(&identity, NOW_MS));
    // The key became an earlier one.
    let rotated = Files::new(&format!("# new\n{OTHER_KEY}\n\n{KEY}\n"))
        .load(FILE)
        .unwrap();
    assert!(verify(&rotated, &token).is_some() && rotated.holds(&identity, NOW_MS));
    let renewed = exchange(&rotated, &MAIN).unwrap();
    assert!(verify(&one, &renewed).is_none());
    let withdrawn = Files::new(OTHER_KEY).load(FILE).unwrap();
    assert!(verify(&withdrawn, &token).is_none() && !withdrawn.holds(&identity, NOW_MS));
    for changed in [
        FILE.replacen("role = 'read-write'", "role = 'read'", 1),
        FILE.replace("'refs/heads/main'", "'refs/heads/trunk'"),
        FILE.replace("namespace = 'acme'\n", ""),
        FILE.replace("'2h'", "'1h'"),
        FILE.replace("cache.acme", "cache2.acme"),
        FILE.replace("'main'", "'trunk'"),
        FILE.replacen(
            "role = 'read-write'",
            "role = 'read'\nupdate_enabled = false",
            1,
        ),
    ] {
        let directory = Files::new(KEY).load(&changed).unwrap();
        assert!(verify(&directory, &token).is_none(), "{changed}");
        assert!(!directory.holds(&identity, NOW_MS), "{changed}");
    }
}

#[test]
fn paths_are_relative_to_the_file() {
    let files = Files::new(KEY);
    let text = FILE.replace(
        "audience =",
        "jwks = 'keys.json'\nca = '/etc/ca.pem'\naudience =",
    );
    let directory = files.load(&text).unwrap();
    let issuer = directory
        .issuer("https://token.actions.githubusercontent.com")
        .unwrap();
    assert_eq!(issuer.jwks, Some(files.0.path().join("keys.json")));
    assert_eq!(issuer.ca, Some(PathBuf::from("/etc/ca.pem")));
    assert!(directory.issuer("https://evil.test").is_none());
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_no_key_is_shown() {
    let files = Files::new(KEY);
    let refused = |from: &str, to: &str, part: &str| {
        assert!(FILE.contains(from), "{from}");
        let error = files.load(&FILE.replacen(from, to, 1)).expect_err(part);
        assert!(error.contains(part), "{error}");
    };
    let when = "when = { repository_id = '123', ref = 'refs/heads/main' }";
    refused(
        when,
        "when = {}",
        "line 19: `when` of the rule `main` is empty",
    );
    refused(
        when,
        "when = { ref = [] }",
        "`when` of the rule `main` is empty",
    );
    refused(when, "", "missing field `when`");
    refused(
        "role = 'read-write'",
        "role = 'admin'",
        "line 20: the rule `main` cannot make admins",
    );
    refused("'2h'", "'25h'", "line 22: `ttl`: expected 1s to 24h");
    refused(
        "'pull-requests'",
        "'main'",
        "the rule `main` is there twice",
    );
    refused("'https://cache.acme.example'", "''", "`audience` is empty");
    refused("'https://cache.acme.example'", "[]", "`audience` is empty");
    for url in [
        "http://issuer.test",
        "issuer.test",
        "http://127.0.0.1.evil.test",
        "http://localhost@evil.test",
        "https://",
    ] {
        refused(
            "https://token.actions.githubusercontent.com",
            url,
            "line 14: `issuer`: expected the https URL",
        );
    }
    refused(
        "[exchange]\nkey_file = 'token.key'\n",
        "",
        "name the file of the key",
    );
    refused("'token.key'", "'absent.key'", "absent.key: No such file");
    files.write("token.key", "not-a-key\n");
    let error = files.load(FILE).unwrap_err();
    assert!(error.contains("line 3: `key_file`") && error.contains("64 lower-case hex digits"));
    assert!(!error.contains("not-a-key"), "{error}");
    let twice = FILE.to_owned() + &FILE[FILE.find("[[oidc]]").unwrap()..];
    files.write("token.key", KEY);
    assert!(
        files
            .load(&twice)
            .unwrap_err()
            .contains("the issuer `github` is there twice")
    );
    let error = files.load(
        &twice
            .replace("github'", "other'")
            .replacen("other'", "github'", 1),
    );
    assert!(error.unwrap_err().contains("has a table already"));
}

#[test]
fn issuers_alone_let_clients_in_and_local_ones_need_no_tls() {
    let files = Files::new(KEY);
    for url in [
        "http://127.0.0.1:8080",
        "http://localhost/realm",
        "http://[::1]:1",
    ] {
        let text = FILE.replace("https://token.actions.githubusercontent.com", url);
        assert!(files.load(&text).unwrap().has_issuers());
    }
    // A text without its folder makes no tokens.
    let bare = Directory::of_text(FILE, Path::new("users.toml")).unwrap();
    assert_eq!(exchange(&bare, &MAIN).err(), Some(ExchangeError::Changed));
}
