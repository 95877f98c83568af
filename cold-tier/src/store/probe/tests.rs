use std::sync::Arc;

use fonn_base::clock::ManualClock;

use super::*;
use crate::store::fault::{Fault, Rule};
use crate::store::{FaultStore, MemoryStore, Refusal};

fn store() -> FaultStore {
    FaultStore::new(Arc::new(MemoryStore::default()), 1)
}

async fn outcomes(store: &FaultStore) -> Vec<(Check, Outcome)> {
    let findings = probe(store, &Clock::system()).await;
    let outcomes: Vec<_> = findings
        .iter()
        .map(|found| (found.check, found.outcome))
        .collect();
    assert_eq!(
        outcomes.iter().map(|(check, _)| *check).collect::<Vec<_>>(),
        Check::ALL
    );
    for finding in &findings {
        assert!(!finding.sentence.is_empty() && !finding.sentence.ends_with('.'));
        let is_wrong = matches!(finding.outcome, Outcome::Warned | Outcome::Failed);
        assert_eq!(finding.parts().1.is_some(), is_wrong, "{finding:?}");
    }
    outcomes
}

/// What did not pass.
async fn wrong(store: &FaultStore) -> Vec<(Check, Outcome)> {
    let mut outcomes = outcomes(store).await;
    outcomes.retain(|(_, outcome)| *outcome != Outcome::Passed);
    outcomes
}

#[tokio::test]
async fn a_good_store_passes_everything_and_is_left_as_it_was() {
    let store = store();
    assert_eq!(wrong(&store).await, []);
    assert!(store.list("", None, 10).await.unwrap().objects.is_empty());
}

#[tokio::test]
async fn a_store_that_is_down_fails_once_and_the_rest_is_skipped() {
    let store = store();
    store.go_down();
    let outcomes = outcomes(&store).await;
    assert_eq!(outcomes[0], (Check::Reach, Outcome::Failed));
    assert!(
        outcomes[1..]
            .iter()
            .all(|(_, outcome)| *outcome == Outcome::Skipped)
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_not_waited_for() {
    let store = store();
    store.add(Rule::new(Fault::Hang));
    assert_eq!(outcomes(&store).await[0], (Check::Reach, Outcome::Failed));
}

/// A store whose refusals come from a server, so that a denial is one of rights.
#[derive(Debug)]
struct Denying(FaultStore, Operation);

impl crate::store::around::Around for Denying {
    fn inner(&self) -> &dyn ObjectStore {
        &self.0
    }

    fn around<'a, T: crate::store::around::Answer>(
        &'a self,
        call: crate::store::around::Call<'a>,
        start: impl Fn() -> StoreFuture<'a, T> + Send + Sync + 'a,
    ) -> StoreFuture<'a, T> {
        if call.operation != self.1 {
            return start();
        }
        let refusal = Refusal {
            status: 403,
            code: Some("AccessDenied".to_owned()),
            message: "no".to_owned(),
        };
        let error = StoreError::new(call.operation, call.subject, StoreErrorKind::Denied);
        Box::pin(std::future::ready(Err(error.with_source(refusal))))
    }
}

#[tokio::test]
async fn each_missing_right_is_named() {
    for (operation, check, right) in [
        (Operation::Put, Check::Put, "s3:PutObject"),
        (Operation::Get, Check::Get, "s3:GetObject"),
        (Operation::GetSuffix, Check::Get, "s3:GetObject"),
        (Operation::List, Check::List, "s3:ListBucket"),
        (Operation::Delete, Check::Delete, "s3:DeleteObject"),
    ] {
        let findings = probe(&Denying(store(), operation), &Clock::system()).await;
        for finding in findings {
            if finding.check == check {
                assert_eq!(finding.outcome, Outcome::Failed, "{finding:?}");
                assert!(finding.sentence.contains(right), "{finding:?}");
            } else if operation != Operation::Put {
                assert_eq!(finding.outcome, Outcome::Passed, "{finding:?}");
            } else {
                assert_ne!(finding.outcome, Outcome::Failed, "{finding:?}");
            }
        }
    }
}

#[tokio::test]
async fn wrong_bytes_stale_lists_and_undeleted_objects_are_found() {
    for (rule, check) in [
        (Rule::new(Fault::FlipBit), Check::Get),
        (
            Rule::new(Fault::Truncate).on(Operation::GetSuffix),
            Check::Get,
        ),
        (Rule::new(Fault::StaleList), Check::List),
    ] {
        let store = store();
        store.add(rule);
        assert_eq!(wrong(&store).await, [(check, Outcome::Failed)]);
    }
}

#[tokio::test]
async fn clocks_that_differ_are_a_warning_that_says_how_much() {
    let manual = ManualClock::new(1_800_000_000_000);
    let store = MemoryStore::new(manual.clock());
    for (wall_ms, part) in [
        (1_800_000_100_000, "100 s ahead of the store's"),
        (1_799_999_900_000, "100 s behind the store's"),
    ] {
        let here = ManualClock::new(wall_ms);
        let findings = probe(&store, &here.clock()).await;
        let clock = findings
            .iter()
            .find(|found| found.check == Check::Clock)
            .unwrap();
        assert_eq!(clock.outcome, Outcome::Warned);
        assert!(clock.sentence.contains(part), "{clock:?}");
    }
    let here = ManualClock::new(1_800_000_030_000);
    let findings = probe(&store, &here.clock()).await;
    assert!(
        findings
            .iter()
            .all(|found| found.outcome == Outcome::Passed)
    );
}

#[test]
fn codes_of_s3_are_told_apart() {
    for (code, kind, check) in [
        ("NoSuchBucket", StoreErrorKind::Invalid, Check::Bucket),
        (
            "AuthorizationHeaderMalformed",
            StoreErrorKind::Invalid,
            Check::Bucket,
        ),
        (
            "InvalidAccessKeyId",
            StoreErrorKind::Denied,
            Check::Credentials,
        ),
        (
            "SignatureDoesNotMatch",
            StoreErrorKind::Denied,
            Check::Credentials,
        ),
        ("ExpiredToken", StoreErrorKind::Denied, Check::Credentials),
        ("RequestTimeTooSkewed", StoreErrorKind::Denied, Check::Clock),
        ("SlowDown", StoreErrorKind::Throttled, Check::Reach),
    ] {
        let refusal = Refusal {
            status: 400,
            code: Some(code.to_owned()),
            message: "m".to_owned(),
        };
        let error = StoreError::new(Operation::Put, "a", kind).with_source(refusal);
        assert_eq!(diagnose(&error).unwrap().0, check, "{code}");
    }
}

#[test]
fn a_bucket_whose_directory_is_gone_is_not_called_another_service() {
    let source = std::io::Error::from(std::io::ErrorKind::NotFound);
    let error = StoreError::from_io(Operation::Put, "a", source);
    let (check, sentence) = diagnose(&error).unwrap();
    assert_eq!(check, Check::Bucket);
    assert!(sentence.contains("the directory of --cold-tier is gone"));
}
