use tokio::time::Instant;

use super::*;
use crate::store::fault::{Fault, Rule};
use crate::store::{FaultStore, MemoryStore, ObjectKey, StoreErrorKind, suite};

const OPTIONS: RetryOptions = RetryOptions {
    backoff: Backoff {
        base: Duration::from_millis(100),
        cap: Duration::from_secs(1),
        attempts_max: 5,
    },
    budget_max: 100,
    answers_per_retry: 2,
};

fn stores(options: RetryOptions) -> (Arc<FaultStore>, RetryStore) {
    let faulty = Arc::new(FaultStore::new(Arc::new(MemoryStore::default()), 7));
    let store: Arc<dyn ObjectStore> = Arc::clone(&faulty) as _;
    (faulty, RetryStore::new(store, options, SplitMix64::new(7)))
}

fn retries(store: &RetryStore) -> u64 {
    store.retries.load(Ordering::Relaxed)
}

fn key() -> ObjectKey {
    ObjectKey::new("a/b").unwrap()
}

#[tokio::test]
async fn keeps_the_contract_of_stores() {
    let (_, store) = stores(OPTIONS);
    suite::run(Arc::new(store)).await;
}

#[tokio::test(start_paused = true)]
async fn what_may_pass_is_tried_again_after_waiting() {
    for kind in StoreErrorKind::ALL {
        let (faulty, store) = stores(OPTIONS);
        faulty.add(Rule::new(Fault::Error(kind)).times(3));
        let begun = Instant::now();
        let result = store.put(&key(), "body".into()).await;
        let (retries, waited) = (retries(&store), begun.elapsed());
        if kind.is_retryable() {
            result.unwrap();
            assert_eq!(retries, 3, "{kind}");
            assert!(!waited.is_zero() && waited <= Duration::from_millis(100 + 200 + 400));
        } else {
            assert_eq!(result.unwrap_err().kind, kind);
            assert_eq!((retries, waited), (0, Duration::ZERO), "{kind}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_acknowledgement_is_made_up_for() {
    let (faulty, store) = stores(OPTIONS);
    faulty.add(Rule::new(Fault::LostAnswer(StoreErrorKind::Timeout)).times(1));
    store.put(&key(), "body".into()).await.unwrap();
    assert_eq!(store.get(&key()).await.unwrap(), "body");
    faulty.add(Rule::new(Fault::LostAnswer(StoreErrorKind::Unavailable)).times(1));
    store.delete(&key()).await.unwrap();
    assert_eq!(retries(&store), 2);
}

#[tokio::test(start_paused = true)]
async fn it_gives_up_after_the_attempts_and_keeps_the_last_error() {
    let (faulty, store) = stores(OPTIONS);
    faulty.add(Rule::new(Fault::Error(StoreErrorKind::Throttled)));
    let error = store.put(&key(), "body".into()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Throttled);
    assert_eq!(faulty.injected(), 6);
    assert_eq!(retries(&store), 5);
}

#[tokio::test(start_paused = true)]
async fn a_dead_store_is_not_asked_a_multiple_and_recovery_pays_again() {
    let options = RetryOptions {
        budget_max: 3,
        answers_per_retry: 2,
        ..OPTIONS
    };
    let (faulty, store) = stores(options);
    faulty.go_down();
    for _ in 0..20 {
        store.get(&key()).await.unwrap_err();
    }
    assert_eq!(retries(&store), 3);
    faulty.come_up();
    // Also an answer of *not found* is one of a working store; two pay for one retry.
    for _ in 0..2 {
        let error = store.get(&key()).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::NotFound);
    }
    faulty.add(Rule::new(Fault::Error(StoreErrorKind::Throttled)).times(1));
    store.put(&key(), "body".into()).await.unwrap();
    assert_eq!(retries(&store), 4);
}

#[test]
fn the_budget_does_not_overflow_what_it_began_with() {
    let budget = Budget::new(2, 3);
    for _ in 0..100 {
        budget.give_back();
    }
    assert_eq!([(); 3].map(|()| budget.take()), [true, true, false]);
    for _ in 0..3 {
        assert!(!budget.take());
        budget.give_back();
    }
    assert!(budget.take());
}
