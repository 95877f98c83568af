//! The short way of a read: what it answers and what it leaves alone. That its answers are those of
//! the long way is checked by the model.

use fonn_proto::{Arith, ArithOp, StoreMode};

use super::*;

/// What the short way answers.
pub(super) fn answer(engine: &Engine, get: &Get<'_>) -> Option<Outcome<'static>> {
    let mut answer = None;
    let word = |outcome: &Outcome<'_>| answer = Some(own(outcome.clone()));
    let mut scratch = b"of the request before".to_vec();
    let is_answered = engine.answer_hit(SPACE, get, engine.moment(), &mut scratch, word);
    assert_eq!(is_answered, answer.is_some());
    answer
}

fn rig(ram_codec: &str) -> Rig {
    Rig::new(Choice {
        has_disk: false,
        ram_codec: ram_codec.parse().unwrap(),
        ..Choice::default()
    })
}

fn hit(rig: &Rig, get: &Get<'_>) -> fonn_proto::Hit<'static> {
    match answer(rig.engine(), get) {
        Some(Outcome::Hit(hit)) => hit,
        other => panic!("{other:?}"),
    }
}

#[test]
fn values_of_all_lengths_are_answered_whatever_codec_they_rest_in() {
    block_on(async {
        for codec in ["none", "lz4"] {
            let rig = rig(codec);
            for len in [0, 1, 100, 1024, 1025, 4096, 4097, 20_000] {
                let value: Vec<u8> = b"fonn ".iter().copied().cycle().take(len).collect();
                rig.set("key", &value).await;
                let found = hit(&rig, &Get::new(b"key"));
                assert_eq!((found.value.as_slice(), found.value_len), (&value[..], len));
                let facts = hit(&rig, &Get::facts(b"key"));
                assert_eq!((facts.value.as_slice(), facts.value_len), (&[][..], len));
            }
        }
    });
}

#[test]
fn a_buffer_is_handed_on_from_value_to_value_and_shows_nothing_of_the_last_one() {
    block_on(async {
        let rig = rig("lz4");
        let value =
            |len: usize| -> Vec<u8> { b"fonn ".iter().copied().cycle().take(len).collect() };
        let mut scratch = Vec::new();
        for len in [20_000, 1000, 19_999, 30_000, 300, 30_000] {
            rig.set("key", &value(len)).await;
            let capacity = scratch.capacity();
            let place = scratch.as_ptr();
            let mut found = Vec::new();
            let word = |outcome: &Outcome<'_>| match outcome {
                Outcome::Hit(hit) => found.extend_from_slice(hit.value.as_slice()),
                other => panic!("{other:?}"),
            };
            let get = Get::new(b"key");
            let engine = rig.engine();
            assert!(engine.answer_hit(SPACE, &get, engine.moment(), &mut scratch, word));
            assert_eq!(found, value(len));
            // Where it is long enough it is neither another one nor shorter: nothing is filled with
            // zeros.
            assert!(capacity < len || (scratch.as_ptr() == place && scratch.len() == capacity));
        }
        assert_eq!(scratch.len(), 30_000);
    });
}

#[test]
fn a_read_counts_as_a_use_only_if_it_shall() {
    block_on(async {
        let rig = rig("none");
        rig.set("key", b"value").await;
        rig.clock.advance(Duration::from_secs(5));
        assert!(!hit(&rig, &Get::facts(b"key")).fetched_before);
        let first = hit(&rig, &Get::new(b"key"));
        assert_eq!((first.fetched_before, first.idle_s), (false, 5));
        let second = hit(&rig, &Get::new(b"key"));
        assert_eq!((second.fetched_before, second.idle_s), (true, 0));
    });
}

#[test]
fn refused_changes_are_no_use_and_changes_of_facts_keep_the_mark() {
    let incr = || {
        Command::Arith(Arith {
            key: b"key",
            op: ArithOp::Increment(1),
            initial: None,
            absent_is_zero: false,
            touch: None,
            compare: None,
            new_version: None,
        })
    };
    block_on(async {
        let rig = rig("none");
        let is_marked = || hit(&rig, &Get::facts(b"key")).fetched_before;
        rig.set("key", b"value").await;
        assert_eq!(rig.run(&incr()).await, Outcome::NotANumber);
        let add = Store {
            mode: StoreMode::Add,
            ..Store::set(b"key", b"other", 0, ExpirySpec::Never)
        };
        rig.run(&Command::Store(add)).await;
        assert!(!is_marked(), "a refused command does not use the entry");
        rig.touch("key", ExpirySpec::InMs(90_000)).await;
        assert!(is_marked(), "a touch uses it");
        rig.set("key", b"5").await;
        assert!(!is_marked());
        rig.get("key").await;
        rig.run(&incr()).await;
        assert!(is_marked(), "a number that grows is the same entry");
        let vivify = Get {
            vivify: Some(ExpirySpec::Never),
            ..Get::new(b"new")
        };
        rig.run(&Command::Get(vivify)).await;
        let made = hit(&rig, &Get::facts(b"new")).fetched_before;
        assert!(made, "the read that creates an entry uses it");
    });
}

#[test]
fn what_is_not_visible_or_not_in_ram_is_left_to_the_long_way() {
    block_on(async {
        let rig = rig("none");
        let read = Get::new(b"key");
        assert_eq!(answer(rig.engine(), &read), None);
        rig.set("key", b"value").await;
        rig.touch("key", ExpirySpec::InMs(1000)).await;
        assert!(answer(rig.engine(), &read).is_some());
        rig.clock.advance(Duration::from_secs(1));
        assert_eq!(answer(rig.engine(), &read), None);
        rig.set("key", b"value").await;
        rig.engine().flush(&[SPACE], 0).await.unwrap();
        assert_eq!(answer(rig.engine(), &read), None);

        let rig = Rig::new(Choice::default());
        rig.set("key", b"value").await;
        assert!(answer(rig.engine(), &read).is_some());
        rig.engine()
            .execute(
                &job(&Command::Delete(Delete::new(b"key"))),
                &mut Acks::default(),
                &mut Vec::new(),
            )
            .await;
        assert_eq!(answer(rig.engine(), &read), None, "a tombstone is no entry");
    });
}

#[test]
fn reads_that_change_something_are_left_to_the_long_way() {
    block_on(async {
        let rig = rig("none");
        rig.set("key", b"value").await;
        let read = || Get::new(b"key");
        let changing = [
            Get {
                touch: Some(ExpirySpec::Never),
                ..read()
            },
            Get {
                vivify: Some(ExpirySpec::Never),
                ..read()
            },
            Get {
                recache_below_s: Some(9),
                claim: true,
                ..read()
            },
            Get {
                delete: true,
                ..read()
            },
        ];
        for get in &changing {
            assert_eq!(answer(rig.engine(), get), None, "{get:?}");
        }
        let claiming = Get {
            claim: true,
            ..read()
        };
        assert!(answer(rig.engine(), &claiming).is_some());
        let stale = Command::Delete(Delete {
            mark_stale: true,
            ..Delete::new(b"key")
        });
        rig.run(&stale).await;
        assert_eq!(
            answer(rig.engine(), &claiming),
            None,
            "its token is to be given out"
        );
        assert!(hit(&rig, &read()).stale);
    });
}
