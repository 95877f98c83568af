//! What one command may cost: lookups, memory, and the time that a shard is locked.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fonn_proto::batch::ABSENT_STEPS_MAX;
use fonn_proto::{SetRange, StoreMode};

use super::*;

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("k{number}")).collect()
}

fn batch(keys: &[String]) -> Batch<'_> {
    all_or_none(keys.iter().map(|key| (key.as_str(), &b"v"[..])))
}

#[tokio::test]
async fn an_all_or_nothing_store_looks_all_its_keys_up_in_one_round() {
    let rig = Rig::new(Choice {
        ram_bytes: 8 << 20,
        ..Choice::default()
    });
    let engine = rig.engine();
    let keys = keys(ABSENT_STEPS_MAX);
    let batch = batch(&keys);
    let lookups = || engine.disk().unwrap().stats().snapshot().reads_missed;
    let mut acks = Acks::default();
    let stored = engine.execute_batch(SPACE, &batch, &mut acks).await;
    assert!(is_stored(&stored));
    assert_eq!(acks.wait().await, []);
    assert_eq!(lookups(), keys.len() as u64);
    // One that is there decides, and what others have is of no interest.
    evict_all(engine);
    let stored = engine.execute_batch(SPACE, &batch, &mut acks).await;
    assert!(!is_stored(&stored));
}

#[tokio::test]
async fn an_all_or_nothing_store_of_too_many_pairs_is_refused() {
    let rig = Rig::new(Choice::default());
    let keys = keys(ABSENT_STEPS_MAX + 1);
    let (batch, mut acks) = (batch(&keys), Acks::default());
    let stored = rig.engine().execute_batch(SPACE, &batch, &mut acks).await;
    assert_eq!(stored, ServerOutcome::Failed(Failure::TooLarge));
}

#[tokio::test]
async fn an_all_or_nothing_store_whose_client_has_gone_stores_nothing() {
    let rig = Rig::new(Choice::default());
    // The disk's thread is rarely so fast that a store does not have to wait for it.
    for round in 0..100 {
        let keys: Vec<_> = keys(10).iter().map(|it| format!("{round}{it}")).collect();
        let (batch, mut acks) = (batch(&keys), Acks::default());
        let is_begun = {
            let mut store = pin!(rig.engine().execute_batch(SPACE, &batch, &mut acks));
            let mut cx = Context::from_waker(Waker::noop());
            store.as_mut().poll(&mut cx).is_pending()
        };
        if is_begun {
            for key in &keys {
                assert_eq!(rig.get(key).await, None);
            }
            return;
        }
    }
    panic!("no store had to wait");
}

/// Its client may go at each wait, and the other owners have not heard of it then.
#[tokio::test]
async fn an_all_or_nothing_store_that_has_stored_does_not_wait_again() {
    let rig = Rig::new(Choice {
        ram_bytes: 8 << 20,
        has_disk: false,
        ..Choice::default()
    });
    let keys = keys(ABSENT_STEPS_MAX);
    let (batch, mut acks) = (batch(&keys), Acks::default());
    let mut store = pin!(rig.engine().execute_batch(SPACE, &batch, &mut acks));
    let mut cx = Context::from_waker(Waker::noop());
    let stored = loop {
        match store.as_mut().poll(&mut cx) {
            Poll::Ready(stored) => break stored,
            Poll::Pending => assert_eq!(rig.get(&keys[0]).await, None),
        }
    };
    assert!(is_stored(&stored));
}

#[tokio::test]
async fn an_all_or_nothing_store_with_a_value_that_is_too_large_stores_nothing() {
    for has_disk in [true, false] {
        let rig = Rig::new(Choice {
            has_disk,
            ..Choice::default()
        });
        let long = vec![7; VALUE_LEN_MAX + 1];
        let batch = all_or_none([("a", &b"v"[..]), ("b", &long), ("c", b"v")]);
        let mut acks = Acks::default();
        let stored = rig.engine().execute_batch(SPACE, &batch, &mut acks).await;
        assert_eq!(stored, ServerOutcome::Failed(Failure::TooLarge));
        acks.wait().await;
        for key in ["a", "b", "c"] {
            assert_eq!(rig.get(key).await, None, "{key}, disk: {has_disk}");
        }
    }
}

fn append<'a>(key: &'a str, value: &'a [u8]) -> Command<'a> {
    Command::Store(Store {
        mode: StoreMode::Append,
        ..Store::set(key.as_bytes(), value, 0, ExpirySpec::Never)
    })
}

/// Values that take a while to decode, to copy or to encode, with each codec and from each tier.
#[tokio::test]
async fn a_long_value_is_made_of_what_is_there_in_whatever_form() {
    for codec in ["none", "lz4"] {
        let rig = Rig::new(Choice {
            ram_bytes: 8 << 20,
            ram_codec: codec.parse().unwrap(),
            disk_codecs: (codec.parse().unwrap(), CodecChoice::none()),
            value_len_max: 1 << 20,
            disk_value_len_max: 1 << 20,
            ..Choice::default()
        });
        let mut expected = b"compressible ".repeat(8000);
        rig.set("k", &expected).await;
        for round in 0..3 {
            if round == 1 {
                evict_all(rig.engine());
            }
            let more = [b'a' + round; 5000];
            rig.run(&append("k", &more)).await;
            expected.extend_from_slice(&more);
            assert!(rig.get("k").await.unwrap() == expected, "{codec} {round}");
        }
        let offset = expected.len() as u64 + 10;
        rig.run(&Command::SetRange(SetRange {
            key: b"k",
            offset,
            value: b"end",
        }))
        .await;
        expected.extend_from_slice(&[0; 10]);
        expected.extend_from_slice(b"end");
        assert!(rig.get("k").await.unwrap() == expected, "{codec}");
        evict_all(rig.engine());
        assert!(rig.get("k").await.unwrap() == expected, "{codec}");
        let previous = Command::Store(Store {
            want_previous: true,
            ..Store::set(b"k", b"new", 0, ExpirySpec::Never)
        });
        let Outcome::Stored(stored) = rig.run(&previous).await else {
            panic!("it was not stored");
        };
        assert!(stored.previous.unwrap() == expected, "{codec}");
    }
}

#[tokio::test]
async fn what_was_made_of_a_value_counts_only_while_the_entry_has_it() {
    let rig = Rig::new(Choice {
        ram_bytes: 8 << 20,
        ..Choice::default()
    });
    let engine = rig.engine();
    let command = append("k", b"+");
    let job = job(&command);
    rig.set("k", &[1; 30_000]).await;
    let attempt = |prepared: &Prepared| {
        engine.attempt(&job, None, prepared, &mut Acks::default(), &mut Vec::new())
    };
    let mut prepared = Prepared::default();
    let Attempt::Prepare(long) = attempt(&prepared) else {
        panic!("it was made under the lock");
    };
    engine.prepare(&job, long, &mut prepared);
    rig.set("k", &[2; 30_000]).await;
    let Attempt::Prepare(long) = attempt(&prepared) else {
        panic!("it was made of an older value");
    };
    engine.prepare(&job, long, &mut prepared);
    assert!(matches!(attempt(&prepared), Attempt::Done(..)));
    assert_eq!(
        rig.get("k").await.unwrap(),
        [&[2; 30_000][..], b"+"].concat()
    );
}

#[tokio::test]
async fn a_process_that_is_too_large_still_receives_a_part_of_its_budget_between_two_looks() {
    let rig = Rig::new(Choice {
        ram_bytes: 8 << 20,
        ..Choice::default()
    });
    let engine = rig.engine();
    engine.resident.store(1 << 40, Ordering::Relaxed);
    let receive = |bytes| {
        let is_received = engine.try_receive(bytes);
        if is_received {
            engine.ram().release(bytes);
        }
        is_received
    };
    for _ in 0..4 {
        assert!(receive(32 << 10));
    }
    assert!(!receive(32 << 10));
    // At the next look.
    engine.received.store(0, Ordering::Relaxed);
    assert!(receive(4 << 20), "one always goes");
}
