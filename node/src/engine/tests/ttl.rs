//! Namespaces whose entries live for a bounded time, over RAM and disk.

use fonn_auth::Namespace;
use fonn_proto::{ExpireCondition, SetRange, Touch};

use super::*;

const TTL_MS: u64 = 7 * 86_400_000;

fn bounded(choice: Choice) -> Rig {
    let rig = Rig::new(choice);
    rig.engine().namespaces().set([Arc::new(Namespace {
        name: "default".into(),
        number: SPACE.namespace(),
        base: None,
        quota: None,
        is_write_once: false,
        ttl: Some(Duration::from_millis(TTL_MS)),
    })]);
    rig
}

/// What is written without an end, or touched for longer, is gone when the time of the namespace is
/// over.
#[tokio::test]
async fn no_way_of_writing_makes_an_entry_that_outlives_its_namespaces_time() {
    for has_disk in [true, false] {
        let rig = bounded(Choice {
            has_disk,
            ..Choice::default()
        });
        let engine = rig.engine();
        let long = ExpirySpec::InMs(10 * TTL_MS);
        rig.set("set", b"v").await;
        rig.set("evicted", b"v").await;
        rig.run(&Command::Store(Store::set(b"long", b"v", 0, long)))
            .await;
        let range = SetRange {
            key: b"range",
            offset: 1,
            value: b"v",
        };
        rig.run(&Command::SetRange(range)).await;
        let mut acks = Acks::default();
        let batch = all_or_none([("pair-1", &b"v"[..]), ("pair-2", b"v")]);
        let stored = engine.execute_batch(SPACE, &batch, &mut acks).await;
        assert!(is_stored(&stored));
        assert!(acks.wait().await.is_empty());
        // In the middle of its time one is touched: it lives as long again, and no longer.
        rig.clock.advance(Duration::from_millis(TTL_MS / 2));
        for (key, expiry) in [("long", long), ("range", ExpirySpec::Never)] {
            rig.run(&Command::Touch(Touch {
                key: key.as_bytes(),
                expiry,
                condition: ExpireCondition::Always,
            }))
            .await;
        }
        if has_disk {
            evict_all(engine);
        }
        let keys = ["evicted", "long", "pair-1", "pair-2", "range", "set"];
        for (advance_ms, left) in [
            (TTL_MS / 2 - 1, &keys[..]),
            (1, &["long", "range"]),
            (TTL_MS / 2 - 1, &["long", "range"]),
            (1, &[]),
        ] {
            rig.clock.advance(Duration::from_millis(advance_ms));
            for key in keys {
                let is_there = rig.get(key).await.is_some();
                assert_eq!(is_there, left.contains(&key), "{key}, disk: {has_disk}");
            }
        }
    }
}
