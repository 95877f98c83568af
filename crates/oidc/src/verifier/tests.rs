use std::path::PathBuf;

use jsonwebtoken::Algorithm;
use serde_json::json;
use tokio::time::advance;

use super::*;
use crate::tests_support::{AUDIENCE, Signer, URL, claims, set};

struct Published {
    issuer: Issuer,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Published {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.json");
        let issuer = Issuer {
            url: URL.to_owned(),
            audiences: vec![AUDIENCE.to_owned()],
            jwks: Some(path.clone()),
            ca: None,
        };
        Self {
            issuer,
            path,
            _dir: dir,
        }
    }

    fn publish(&self, signers: &[&Signer]) {
        std::fs::write(&self.path, set(signers)).unwrap();
    }
}

async fn outcome(verifier: &Verifier, issuer: &Issuer, signer: &Signer) -> Option<Rejection> {
    let token = signer.token(&claims(&json!({})));
    let presented = Presented::read(&token).unwrap();
    verifier.verify(&presented, issuer).await.err()
}

fn signer(id: &str) -> Signer {
    Signer::new(id, Algorithm::EdDSA)
}

#[tokio::test(start_paused = true)]
async fn a_rotated_key_is_found_at_once_and_unknown_ones_are_asked_for_at_most_every_30_s() {
    let (published, verifier) = (Published::new(), Verifier::new());
    let issuer = &published.issuer;
    let [first, second, third] = ["1", "2", "3"].map(signer);
    published.publish(&[&first]);
    assert_eq!(outcome(&verifier, issuer, &first).await, None);
    published.publish(&[&second]);
    assert_eq!(outcome(&verifier, issuer, &second).await, None);
    assert_eq!(
        outcome(&verifier, issuer, &first).await,
        Some(Rejection::UnknownKey)
    );
    published.publish(&[&third]);
    assert_eq!(
        outcome(&verifier, issuer, &third).await,
        Some(Rejection::UnknownKey)
    );
    advance(FETCH_INTERVAL).await;
    assert_eq!(outcome(&verifier, issuer, &third).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_key_is_believed_for_ten_minutes_at_most() {
    let (published, verifier) = (Published::new(), Verifier::new());
    let issuer = &published.issuer;
    let [first, second] = ["1", "2"].map(signer);
    published.publish(&[&first]);
    assert_eq!(outcome(&verifier, issuer, &first).await, None);
    published.publish(&[&second]);
    assert_eq!(outcome(&verifier, issuer, &first).await, None);
    advance(KEYS_FRESH).await;
    assert_eq!(
        outcome(&verifier, issuer, &first).await,
        Some(Rejection::UnknownKey)
    );
}

#[tokio::test(start_paused = true)]
async fn keys_outlive_an_outage_of_their_issuer_for_a_day() {
    let (published, verifier) = (Published::new(), Verifier::new());
    let issuer = &published.issuer;
    let first = signer("1");
    let failed = outcome(&verifier, issuer, &first).await;
    assert!(
        matches!(failed, Some(Rejection::Keys(FetchError::File { .. }))),
        "{failed:?}"
    );
    published.publish(&[&first]);
    let failed = outcome(&verifier, issuer, &first).await;
    assert_eq!(failed, Some(Rejection::Keys(FetchError::Recently)));
    advance(RETRY_INTERVAL).await;
    assert_eq!(outcome(&verifier, issuer, &first).await, None);
    std::fs::remove_file(&published.path).unwrap();
    advance(KEYS_KEPT / 2).await;
    assert_eq!(outcome(&verifier, issuer, &first).await, None);
    advance(KEYS_KEPT / 2).await;
    let failed = outcome(&verifier, issuer, &first).await;
    assert!(matches!(failed, Some(Rejection::Keys(_))), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_kept_verify_while_another_task_fetches_newer_ones() {
    let (published, verifier) = (Published::new(), Verifier::new());
    let issuer = &published.issuer;
    let first = signer("1");
    published.publish(&[&first]);
    assert_eq!(outcome(&verifier, issuer, &first).await, None);
    let kept = verifier.kept(issuer);
    let _fetching = kept.fetching.lock().await;
    let soon = || {
        let outcome = outcome(&verifier, issuer, &first);
        tokio::time::timeout(Duration::from_secs(1), outcome)
    };
    advance(KEYS_FRESH).await;
    assert_eq!(soon().await, Ok(None));
    advance(KEYS_KEPT).await;
    assert!(soon().await.is_err(), "they are too old");
}

#[tokio::test]
async fn a_token_of_another_issuer_is_refused_before_keys_are_fetched() {
    let (published, verifier) = (Published::new(), Verifier::new());
    let other = Issuer {
        url: "https://other.test".to_owned(),
        ..published.issuer.clone()
    };
    let first = signer("1");
    assert_eq!(
        outcome(&verifier, &other, &first).await,
        Some(Rejection::Issuer)
    );
}
