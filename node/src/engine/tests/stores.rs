//! The short way of a store: what it carries out and what it leaves alone. That it does what the
//! long way does is checked by the model.

use fonn_proto::StoreMode;

use super::*;
use crate::stats::Counter;

/// What the short way answers.
pub(super) fn answer(engine: &Engine, job: &Job<'_>, acks: &mut Acks) -> Option<Outcome<'static>> {
    let mut answer = None;
    let word = |outcome: &Outcome<'_>| answer = Some(own(outcome.clone()));
    let is_answered = engine.answer_store(job, engine.moment(), acks, word);
    assert_eq!(is_answered, answer.is_some());
    answer
}

#[test]
fn a_store_is_the_same_on_both_ways() {
    block_on(async {
        for has_disk in [false, true] {
            for codec in ["none", "lz4"] {
                let rigs = [(); 2].map(|()| {
                    Rig::new(Choice {
                        has_disk,
                        ram_codec: codec.parse().unwrap(),
                        ..Choice::default()
                    })
                });
                for rig in &rigs {
                    // The first write reserves versions.
                    rig.set("first", b"1").await;
                }
                for len in [0, 1, 100, 1024] {
                    for expiry in [ExpirySpec::Never, ExpirySpec::InMs(60_000)] {
                        let value = vec![b'v'; len];
                        let store = Command::Store(Store::set(b"key", &value, 7, expiry));
                        let mut acks = Acks::default();
                        let short = answer(rigs[0].engine(), &job(&store), &mut acks);
                        assert!(matches!(short, Some(Outcome::Stored(_))), "{len}");
                        assert_eq!(acks.count(), usize::from(has_disk));
                        assert!(acks.wait().await.is_empty());
                        let (mut acks, mut scratch) = (Acks::default(), Vec::new());
                        let long = rigs[1].engine();
                        let long = long.execute(&job(&store), &mut acks, &mut scratch).await;
                        assert!(matches!(long, Outcome::Stored(_)));
                        assert!(acks.wait().await.is_empty());
                        let [short, long] = [&rigs[0], &rigs[1]].map(|rig| {
                            match hits::answer(rig.engine(), &Get::new(b"key")) {
                                Some(Outcome::Hit(hit)) => hit,
                                other => panic!("{other:?}"),
                            }
                        });
                        assert_eq!(short.value.as_slice(), long.value.as_slice());
                        assert_eq!((short.flags, short.ttl_ms), (long.flags, long.ttl_ms));
                    }
                }
                for rig in &rigs {
                    assert_eq!(rig.engine().stats().total(Counter::CmdSet), 9);
                }
            }
        }
    });
}

#[test]
fn what_depends_on_more_than_the_request_is_left_to_the_long_way() {
    let plain = || Store::set(b"key", b"value", 0, ExpirySpec::Never);
    let long = vec![b'v'; 1025];
    let left = [
        Store {
            mode: StoreMode::Add,
            ..plain()
        },
        Store {
            mode: StoreMode::Append,
            ..plain()
        },
        Store {
            compare: Some(1),
            ..plain()
        },
        Store {
            want_previous: true,
            ..plain()
        },
        Store {
            expiry: ExpirySpec::Keep,
            ..plain()
        },
        // Stored and expired in one.
        Store {
            expiry: ExpirySpec::InMs(0),
            ..plain()
        },
        Store {
            value: &long,
            ..plain()
        },
    ];
    block_on(async {
        let rig = Rig::new(Choice::default());
        for store in left {
            let mut acks = Acks::default();
            let shown = format!("{store:?}");
            let store = Command::Store(store);
            let answered = answer(rig.engine(), &job(&store), &mut acks);
            assert_eq!((answered, acks.count()), (None, 0), "{shown}");
        }
        assert_eq!(rig.get("key").await, None);
    });
}
