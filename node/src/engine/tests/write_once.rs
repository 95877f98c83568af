//! Namespaces that keep their first values, over RAM and disk.

use fonn_auth::Namespace;

use super::*;

fn keep(rig: &Rig, is_write_once: bool) {
    rig.engine().namespaces().set([Arc::new(Namespace {
        name: "default".into(),
        number: SPACE.namespace(),
        base: None,
        quota: None,
        is_write_once,
        ttl: None,
    })]);
}

#[tokio::test]
async fn the_first_value_stays_in_ram_on_disk_and_over_a_restart() {
    let mut rig = Rig::new(Choice::default());
    keep(&rig, true);
    rig.set("k", b"first").await;
    rig.set("k", b"second").await;
    assert_eq!(rig.get("k").await.as_deref(), Some(&b"first"[..]));
    evict_all(rig.engine());
    rig.set("k", b"third").await;
    assert_eq!(rig.get("k").await.as_deref(), Some(&b"first"[..]));
    rig.reopen();
    keep(&rig, true);
    rig.set("k", b"fourth").await;
    assert_eq!(rig.get("k").await.as_deref(), Some(&b"first"[..]));
    // The rule is of the namespace, not of the entry.
    keep(&rig, false);
    rig.set("k", b"fifth").await;
    assert_eq!(rig.get("k").await.as_deref(), Some(&b"fifth"[..]));
}

#[tokio::test]
async fn all_other_changes_are_refused_whether_or_not_there_is_an_entry() {
    let rig = Rig::new(Choice::default());
    keep(&rig, true);
    rig.set("k", b"first").await;
    let refused = Outcome::Failed(Failure::ReadOnly);
    for key in ["k", "absent"] {
        let delete = Command::Delete(Delete::new(key.as_bytes()));
        assert_eq!(rig.run(&delete).await, refused, "{key}");
        assert_eq!(
            rig.touch(key, ExpirySpec::Immediately).await,
            refused,
            "{key}"
        );
    }
    let batch = Batch {
        steps: vec![BatchStep::Command(set("k", b"second"))],
        ..Batch::default()
    };
    let mut acks = Acks::default();
    let outcome = rig.engine().execute_batch(SPACE, &batch, &mut acks).await;
    assert_eq!(outcome, ServerOutcome::Failed(Failure::ReadOnly));
    assert_eq!(rig.get("k").await.as_deref(), Some(&b"first"[..]));
}

#[tokio::test]
async fn a_batch_that_needs_its_keys_absent_stores_first_values_alone() {
    let rig = Rig::new(Choice::default());
    keep(&rig, true);
    let mut acks = Acks::default();
    for (keys, is_first) in [(["a", "b"], true), (["b", "c"], false)] {
        let batch = all_or_none(keys.map(|key| (key, &b"v"[..])));
        let outcome = rig.engine().execute_batch(SPACE, &batch, &mut acks).await;
        assert_eq!(is_stored(&outcome), is_first, "{keys:?}");
        assert!(acks.wait().await.is_empty());
        evict_all(rig.engine());
    }
    assert_eq!(rig.get("c").await, None);
}
