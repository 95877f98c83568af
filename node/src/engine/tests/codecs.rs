//! Values in the codecs of their levels: what counts, and what changes them.

use super::*;
use fonn_proto::StoreMode;

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
fn what_is_appended_or_prepended_gets_the_codec_of_fresh_values_wherever_it_was() {
    block_on(async {
        for (upper, last) in [("lz4", "zstd:3"), ("zlib:1", "none"), ("none", "snappy")] {
            let rig = Rig::new(Choice {
                disk_codecs: (upper.parse().unwrap(), last.parse().unwrap()),
                ..Choice::default()
            });
            let disk = rig.engine().disk().unwrap();
            let mut expected = text(1, 5000);
            rig.set("key", &expected).await;
            for round in 0..3 {
                evict_all(rig.engine());
                if round > 0 {
                    disk.settle_all().await;
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
                    "{upper} {last}"
                );
                let values = |id| disk.upper().meter().of(id).values;
                let encoded: u64 = (0..5).map(values).sum();
                assert_eq!(encoded, round + 2, "each write was encoded once");
            }
            disk.settle_all().await;
            evict_all(rig.engine());
            assert_eq!(rig.get("key").await, Some(expected), "{upper} {last}");
        }
    });
}
