//! Values in the codecs of their levels: what counts, and what changes them.

use super::*;
use fonn_proto::{Arith, ArithOp, StoreMode};

/// Bytes that shrink, different for each seed.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let line = format!("{seed} says: over and over, and a little different each time {seed:x};\n");
    line.bytes().cycle().take(len).collect()
}

#[test]
fn the_ram_budget_counts_what_is_stored() {
    const LEN: usize = 20_000;
    block_on(async {
        for (codec, fits_all) in [("lz4", true), ("none", false)] {
            let rig = Rig::new(Choice {
                ram_codec: codec.parse().unwrap(),
                ..Choice::default()
            });
            for n in 0..100 {
                rig.set(&format!("k{n}"), &text(n, LEN)).await;
            }
            let mut shard = 0;
            for _ in 0..16 {
                rig.engine().upkeep_once(&mut shard).await;
            }
            let stats = rig.engine().ram().stats();
            assert!(stats.used_bytes <= stats.budget_bytes, "{codec} {stats:?}");
            assert!(100 * LEN > 7 * stats.budget_bytes);
            let evicted = stats.counters.evictions;
            if fits_all {
                assert_eq!((stats.entries, evicted), (100, 0), "{codec}");
            } else {
                let most = stats.budget_bytes / LEN;
                assert!(stats.entries <= most && evicted > 0, "{codec} {stats:?}");
            }
            for n in 0..100 {
                let value = rig.get(&format!("k{n}")).await;
                assert_eq!(value, Some(text(n, LEN)), "{codec}");
            }
        }
    });
}

#[test]
fn values_in_ram_that_do_not_shrink_are_soon_left_alone_and_text_is_found_again() {
    block_on(async {
        let rig = Rig::new(Choice {
            has_disk: false,
            ram_codec: "lz4".parse().unwrap(),
            ..Choice::default()
        });
        let engine = rig.engine();
        let is_framed = |key: &str| {
            let located = engine.locate_in_ram(SPACE, key.as_bytes()).unwrap();
            located.form.unwrap().codec == "lz4"
        };
        let noise = |seed: u64| -> Vec<u8> {
            let word = |at: u64| xxhash_rust::xxh3::xxh3_64_with_seed(&at.to_le_bytes(), seed);
            (0..125).flat_map(|at| word(at).to_le_bytes()).collect()
        };
        for n in 0..1000 {
            rig.set("key", &noise(n)).await;
            assert!(!is_framed("key"));
        }
        let unlooked = engine.ram_codec().meter().unlooked();
        assert!((650..950).contains(&unlooked), "{unlooked} of 1000");
        let mut left = 0;
        while left <= 30 {
            rig.set("text", &text(left, 1000)).await;
            assert_eq!(rig.get("text").await, Some(text(left, 1000)));
            if is_framed("text") {
                break;
            }
            left += 1;
        }
        assert!(left <= 30, "none of {left} was looked at");
        for n in 0..100 {
            rig.set("text", &text(n, 1000)).await;
            assert!(is_framed("text"), "{n}");
        }
    });
}

#[test]
fn what_is_appended_or_prepended_gets_the_codec_of_fresh_values_wherever_it_was() {
    block_on(async {
        for (fresh, last) in [("lz4", "zstd:3"), ("zlib:1", "none"), ("none", "snappy")] {
            let rig = Rig::new(Choice {
                disk_codecs: (fresh.parse().unwrap(), last.parse().unwrap()),
                ..Choice::default()
            });
            let disk = rig.engine().disk().unwrap();
            let mut expected = text(1, 5000);
            rig.set("key", &expected).await;
            for round in 0..3 {
                evict_all(rig.engine());
                if round > 0 {
                    disk.compact_all().await;
                }
                let piece = text(round + 2, 3000);
                let (mode, grown) = if round == 1 {
                    (StoreMode::Prepend, [&piece[..], &expected].concat())
                } else {
                    (StoreMode::Append, [&expected[..], &piece].concat())
                };
                let store = Store {
                    mode,
                    ..Store::set(b"key", &piece, 0, ExpirySpec::Never)
                };
                let outcome = rig.run(&Command::Store(store)).await;
                assert!(matches!(outcome, Outcome::Stored(_)), "{outcome:?}");
                expected = grown;
                evict_all(rig.engine());
                assert_eq!(
                    rig.get("key").await.as_ref(),
                    Some(&expected),
                    "{fresh} {last}"
                );
                let values = |id| disk.fresh().meter().of(id).values;
                let encoded: u64 = (0..5).map(values).sum();
                assert_eq!(encoded, round + 2, "each write was encoded once");
            }
            disk.compact_all().await;
            evict_all(rig.engine());
            assert_eq!(rig.get("key").await, Some(expected), "{fresh} {last}");
        }
    });
}

#[test]
fn a_value_that_is_too_long_for_a_number_is_not_decoded_to_be_refused() {
    block_on(async {
        let rig = Rig::new(Choice {
            has_disk: false,
            ram_codec: "lz4".parse().unwrap(),
            ..Choice::default()
        });
        rig.set("key", &vec![b'1'; 20_000]).await;
        let located = rig.engine().locate_in_ram(SPACE, b"key").unwrap();
        assert_eq!(located.form.unwrap().codec, "lz4");
        for op in [ArithOp::Float(1.0), ArithOp::Increment(1)] {
            let arith = Command::Arith(Arith {
                key: b"key",
                op,
                initial: None,
                absent_is_zero: true,
                touch: None,
                compare: None,
                new_version: None,
            });
            let attempt = rig.attempt(&arith, None);
            assert!(matches!(attempt, Attempt::Done(Outcome::NotANumber)));
        }
    });
}
