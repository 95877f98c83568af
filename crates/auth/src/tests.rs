//! Logins by tokens.

use std::net::IpAddr;

use fonn_base::clock::ManualClock;
use tokio::time::Instant;

use super::*;
use crate::testing::{PASSWORD, parsed, row};

const NOW_MS: u64 = 1_700_000_000_000;

fn secret(number: u8) -> TokenSecret {
    TokenSecret::new(&[number; 32])
}

fn token(name: &str, number: u8, more: &str) -> String {
    let hash = secret(number).hash();
    format!("[[token]]\nname = '{name}'\nhash = '{hash}'\nrole = 'read-write'\n{more}\n")
}

fn authenticator(tokens: &[String]) -> (Authenticator, ManualClock) {
    let users = [row("ci", "read", ""), tokens.concat()].concat();
    let clock = ManualClock::new(NOW_MS);
    let auth = Authenticator::new(parsed(&users)).unwrap();
    (auth.with_clock(clock.clock()), clock)
}

fn here() -> Option<IpAddr> {
    Some(IpAddr::from([10, 0, 0, 9]))
}

async fn log_in(auth: &Authenticator, user: &[u8], number: u8) -> Result<Identity, Refusal> {
    let secret = secret(number);
    auth.check(user, secret.text().as_bytes(), here()).await
}

fn unix_ms_text(unix_ms: u64) -> String {
    Expiry::from_unix_ms(unix_ms).unwrap().to_string()
}

#[tokio::test]
async fn a_token_lets_in_by_itself_whatever_the_user_is() {
    let (auth, _) = authenticator(&[token("nightly", 1, "namespace = 'main'")]);
    for user in [&b""[..], b"x", b"ci", b"\xff"] {
        let who = log_in(&auth, user, 1).await.unwrap();
        assert_eq!(who.to_string(), "token `nightly`");
        assert_eq!((who.role, &*who.namespace.name), (Role::ReadWrite, "main"));
        let refused = log_in(&auth, user, 2).await;
        assert_eq!(refused.err(), Some(Refusal::UnknownToken));
    }
    assert_eq!(auth.directory().tokens()[0].logins, 4);
}

#[tokio::test(start_paused = true)]
async fn a_token_waits_for_no_password() {
    let (auth, _) = authenticator(&[token("nightly", 1, "")]);
    let busy = auth.occupy();
    let begun = Instant::now();
    // The source guesses so often that its passwords wait.
    for number in 10..30 {
        assert!(log_in(&auth, b"", number).await.is_err());
    }
    log_in(&auth, b"", 1).await.unwrap();
    assert_eq!(begun.elapsed().as_millis(), 0);
    drop(busy);
    auth.check(b"ci", PASSWORD, here()).await.unwrap();
    assert!(begun.elapsed().as_secs() >= 20, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_token_that_is_repeated_counts_once() {
    let (auth, _) = authenticator(&[]);
    for _ in 0..100 {
        assert!(log_in(&auth, b"", 7).await.is_err());
    }
    let begun = Instant::now();
    auth.check(b"ci", PASSWORD, here()).await.unwrap();
    assert_eq!(begun.elapsed().as_millis(), 0);
}

#[tokio::test]
async fn a_token_that_expires_or_is_revoked_is_no_longer_held() {
    let expires = format!("expires = {}", unix_ms_text(NOW_MS + 5000));
    let rows = [token("short", 1, &expires), token("long", 2, "")];
    let (auth, clock) = authenticator(&rows);
    let short = log_in(&auth, b"", 1).await.unwrap();
    let long = log_in(&auth, b"", 2).await.unwrap();
    assert!(auth.holds(&short) && auth.holds(&long));
    assert_eq!(auth.expiry_wait(&short).unwrap().as_millis(), 5000);
    assert_eq!(auth.expiry_wait(&long), None);
    clock.advance(std::time::Duration::from_secs(5));
    assert!(!auth.holds(&short) && auth.has_expired(&short) && auth.holds(&long));
    assert_eq!(log_in(&auth, b"", 1).await.err(), Some(Refusal::Expired));
    // A user of the same name as a token that is gone is another identity.
    auth.replace(parsed(&row("long", "read-write", "")));
    assert!(!auth.holds(&long));
    assert_eq!(
        log_in(&auth, b"", 2).await.err(),
        Some(Refusal::UnknownToken)
    );
}

#[tokio::test]
async fn tokens_are_in_force_beside_what_members_agreed_on() {
    let (auth, _) = authenticator(&[token("nightly", 1, "")]);
    let records = Records {
        revision: 1,
        ..Records::default()
    };
    let held = log_in(&auth, b"", 1).await.unwrap();
    assert!(auth.replicate(records));
    assert!(auth.holds(&held) && log_in(&auth, b"", 1).await.is_ok());
}

#[test]
fn metrics_name_tokens_and_tell_no_secret() {
    let expires = format!("expires = {}", unix_ms_text(NOW_MS));
    let (auth, _) = authenticator(&[token("nightly", 1, &expires)]);
    let metrics = fonn_base::metrics::Metrics::new();
    metrics::register(&metrics, Some(auth.into()));
    let page = metrics.render().unwrap();
    for line in [
        "fonn_tokens 1\n",
        "fonn_token_uses_total{token=\"nightly\"} 0\n",
        "fonn_token_expiry_timestamp_seconds{token=\"nightly\"} 1700000000\n",
        "fonn_token_logins_total{outcome=\"unknown\"} 0\n",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    assert!(!page.contains("sha256") && !page.contains(secret(1).text()));
}

/// An authenticator with an issuer `ci`, whose rule is for every `ref`, and the folder of its
/// files.
fn with_issuer() -> (Authenticator, ManualClock, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users.toml");
    let text = "
        exchange = { key_file = 'key' }
        [[oidc]]
        name = 'ci'
        issuer = 'https://issuer.test'
        audience = 'cache'
        rule = [{ name = 'all', when = { ref = '*' }, role = 'read', ttl = '5s' }]
    ";
    std::fs::write(&path, text).unwrap();
    std::fs::write(dir.path().join("key"), "0a".repeat(32)).unwrap();
    let clock = ManualClock::new(NOW_MS);
    let auth = Authenticator::new(Directory::load(&path).unwrap()).unwrap();
    (auth.with_clock(clock.clock()), clock, dir)
}

#[tokio::test]
async fn a_signed_token_lets_in_until_it_expires_or_its_issuer_is_gone() {
    let (auth, clock, _dir) = with_issuer();
    let claim = ["job".to_owned()];
    let token = auth.exchange("ci", |_| &claim).unwrap();
    let log_in = async |text: String| auth.check(b"any", text.as_bytes(), here()).await;
    let who = log_in(token.secret.clone()).await.unwrap();
    assert_eq!(who.to_string(), "identity `ci:job`");
    assert!(auth.holds(&who));
    assert_eq!(auth.expiry_wait(&who).unwrap().as_millis(), 5000);
    // It is a token by its form: it waits for no password, and is never one.
    let wrong = token.secret.replace("fonnx_01", "fonnx_02");
    for wrong in [wrong, "fonnx_".to_owned(), "fonnx_zz".to_owned()] {
        assert_eq!(log_in(wrong).await.err(), Some(Refusal::UnknownToken));
    }
    clock.advance(std::time::Duration::from_secs(5));
    assert!(!auth.holds(&who));
    let expired = log_in(token.secret).await;
    assert_eq!(expired.err(), Some(Refusal::ExpiredExchange));
    let token = auth.exchange("ci", |_| &claim).unwrap();
    let who = log_in(token.secret.clone()).await.unwrap();
    auth.replicate(Records {
        revision: 1,
        ..Records::default()
    });
    assert!(auth.holds(&who));
    auth.replace(parsed(&row("ci", "read", "")));
    assert!(!auth.holds(&who));
    let gone = log_in(token.secret).await;
    assert_eq!(gone.err(), Some(Refusal::UnknownToken));
    assert_eq!(
        auth.exchange("ci", |_| &claim).err(),
        Some(ExchangeError::Changed)
    );
}
