//! What a run saves and what it loses, in mixes of values that shrink and such that do not.

use super::*;

/// SplitMix64: deterministic, and random enough.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// True for this share of the throws.
    fn is(&mut self, share: f64) -> bool {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64 <= share
    }

    fn noise(&mut self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len.div_ceil(8))
            .flat_map(|_| self.next().to_le_bytes())
            .collect();
        bytes.truncate(len);
        bytes
    }
}

/// What became of a sequence of values, as shares of all of them.
#[derive(Debug)]
struct Shares {
    /// Values that were looked at.
    looked_at: f64,
    /// Values that would have shrunk and were left as they were.
    lost: f64,
    /// Of those that would have shrunk.
    lost_of_shrinking: f64,
}

/// Lets a run see values that do or do not shrink.
fn simulate(count: usize, mut shrinks: impl FnMut(usize) -> bool) -> Shares {
    let mut run = Run::default();
    let (mut looked_at, mut lost, mut shrinking) = (0_u32, 0_u32, 0_u32);
    for at in 0..count {
        let does = shrinks(at);
        shrinking += u32::from(does);
        if !run.is_look_due() {
            run.pass();
            lost += u32::from(does);
            continue;
        }
        looked_at += 1;
        if does {
            run.end();
        } else {
            run.saw_none();
        }
    }
    let share = |part: u32, of: f64| f64::from(part) / of;
    Shares {
        looked_at: share(looked_at, count as f64),
        lost: share(lost, count as f64),
        lost_of_shrinking: share(lost, f64::from(shrinking.max(1))),
    }
}

#[test]
fn mixes_lose_next_to_nothing_where_a_tenth_or_more_shrinks() {
    for (share, lost_max) in [(0.1, 0.01), (0.15, 0.001), (0.2, 1e-4), (0.5, 0.0)] {
        let mut dice = Dice(7);
        let shares = simulate(1_000_000, |_| dice.is(share));
        let lost = shares.lost_of_shrinking;
        assert!(lost <= lost_max, "{lost} of what shrinks, {share} of all");
    }
}

#[test]
fn no_mix_loses_more_than_a_few_of_a_hundred_values() {
    for per_mille in [1, 2, 5, 10, 20, 25, 30, 40, 50, 70] {
        let mut dice = Dice(3);
        let shares = simulate(500_000, |_| dice.is(f64::from(per_mille) / 1000.0));
        assert!(shares.lost < 0.015, "{per_mille}/1000: {shares:?}");
    }
    // In step with anything that the looks might do.
    for period in (2..700).chain((700..3000).step_by(37)) {
        let shares = simulate(40_000, |at| at % period == 0);
        assert!(shares.lost < 0.02, "every {period}th: {shares:?}");
    }
    // The worst that was found: noise for as long as it takes to trust it, and then a little text.
    for noise in (1..1200).step_by(23) {
        for text in [1, 4, 16, 25, 31, 100] {
            let shares = simulate(60_000, |at| at % (noise + text) >= noise);
            assert!(shares.lost < 0.032, "{noise} then {text}: {shares:?}");
        }
    }
}

#[test]
fn a_long_run_is_looked_at_one_time_in_sixteen() {
    let shares = simulate(1_000_000, |_| false);
    assert!((0.061..0.064).contains(&shares.looked_at), "{shares:?}");
    // All of the first 64.
    let shares = simulate(64, |_| false);
    assert_eq!(shares.looked_at, 1.0);
}

#[test]
fn text_behind_noise_is_found_within_thirty_values() {
    for noise in (0..5000).step_by(61) {
        let mut run = Run::default();
        simulate_noise(&mut run, noise);
        let left = (0..).take_while(|_| {
            let is_left = !run.is_look_due();
            if is_left {
                run.pass();
            }
            is_left
        });
        let left = left.count();
        assert!(left <= 30, "{left} behind {noise}");
        run.end();
        assert!(run.is_look_due());
    }
}

fn simulate_noise(run: &mut Run, count: usize) {
    for _ in 0..count {
        if run.is_look_due() {
            run.saw_none();
        } else {
            run.pass();
        }
    }
}

#[test]
fn a_run_keeps_its_place_in_a_word() {
    let mut run = Run::default();
    for _ in 0..3000 {
        simulate_noise(&mut run, 1);
        assert_eq!(Run::from_bits(run.to_bits()), run);
        assert!(u32::from(run.length) <= RUN_MAX && u32::from(run.passes) < 2 * INTERVAL_MAX);
    }
}

fn spec(text: &str) -> CodecSpec {
    text.parse().unwrap()
}

#[cfg(feature = "lz4")]
#[test]
fn values_of_a_run_are_left_without_a_look_until_one_shrinks() {
    let runs = Runs::default();
    let mut dice = Dice(11);
    let reason = |runs: &Runs, value: &[u8]| runs.reason_to_leave(spec("lz4"), 256, value);
    let mut reasons = Vec::new();
    for _ in 0..2000 {
        match reason(&runs, &dice.noise(1024)) {
            Some(reason) => reasons.push(reason),
            // One in hundreds is tried.
            None => runs.tell(1024, false),
        }
    }
    let unlooked = reasons
        .iter()
        .filter(|&&it| it == Verbatim::NoCodec)
        .count();
    assert!((1300..1800).contains(&unlooked), "{unlooked} of 2000");
    // Other lengths are runs of their own, and the longest have none.
    assert_eq!(
        reason(&runs, &dice.noise(4096)),
        Some(Verbatim::LooksRandom)
    );
    for _ in 0..200 {
        let long = dice.noise(LOOKED_AT_FROM_LEN);
        assert_ne!(reason(&runs, &long), Some(Verbatim::NoCodec));
        runs.tell(long.len(), false);
    }
    // What needs no look has its own reason always.
    let text = b"over and over, ".repeat(70);
    let zip = [b"\x28\xb5\x2f\xfd".to_vec(), text.clone()].concat();
    assert_eq!(reason(&runs, &zip), Some(Verbatim::Recognized));
    assert_eq!(reason(&runs, b"short"), Some(Verbatim::BelowThreshold));
    // Text is found before long, and from then on at once.
    let found = (0..).find(|_| reason(&runs, &text).is_none()).unwrap();
    assert!(found <= 30);
    runs.tell(text.len(), true);
    for _ in 0..100 {
        assert_eq!(reason(&runs, &text), None);
        runs.tell(text.len(), true);
        assert_ne!(reason(&runs, &dice.noise(1024)), Some(Verbatim::NoCodec));
    }
}

#[cfg(feature = "lz4")]
#[test]
fn attempts_that_do_not_shrink_are_a_run_too_and_another_codec_begins_anew() {
    let runs = Runs::default();
    // Not random, and nothing that LZ4 could shorten.
    let stubborn: Vec<u8> = Dice(5).noise(2000).iter().map(|byte| byte % 140).collect();
    let attempts = |runs: &Runs| {
        let tries = (0..1000).filter(|_| {
            let is_tried = runs.reason_to_leave(spec("lz4"), 256, &stubborn).is_none();
            if is_tried {
                let shrank = crate::compress(spec("lz4"), &stubborn, 1, &mut Vec::new()).is_ok();
                assert!(!shrank);
                runs.tell(stubborn.len(), shrank);
            }
            is_tried
        });
        tries.count()
    };
    let first = attempts(&runs);
    assert!((100..300).contains(&first), "{first} of 1000");
    let later = attempts(&runs);
    assert!((30..100).contains(&later), "{later} of 1000");
    runs.forget();
    // With other lots, so not exactly as many.
    let anew = attempts(&runs);
    assert!(anew.abs_diff(first) < 60, "{anew} and {first} of 1000");
}

#[test]
fn with_no_codec_nothing_is_looked_at_or_remembered() {
    let runs = Runs::default();
    let text = b"over and over, ".repeat(70);
    for _ in 0..1000 {
        let reason = runs.reason_to_leave(CodecSpec::none(), 256, &text);
        assert_eq!(reason, Some(Verbatim::NoCodec));
    }
    assert!(
        runs.classes
            .iter()
            .all(|run| run.load(Ordering::Relaxed) == 0)
    );
}
