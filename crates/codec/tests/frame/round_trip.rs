//! What goes in comes out.

use fonn_codec::frame::BLOCK_LEN;
use fonn_codec::{CodecSpec, Encoding, Frame, FrameError, Verbatim, encode, registry};
use proptest::prelude::*;

use crate::corpora::{self, CORPORA};
use crate::{LIMIT, compressing_specs, decoded, framed, specs};

#[test]
fn every_codec_round_trips_every_corpus_at_every_size() {
    const SIZES: [usize; 17] = [
        0,
        1,
        2,
        15,
        64,
        255,
        256,
        1000,
        4096,
        65_534,
        65_536,
        BLOCK_LEN - 1,
        BLOCK_LEN,
        BLOCK_LEN + 1,
        2 * BLOCK_LEN - 1,
        2 * BLOCK_LEN,
        5 * BLOCK_LEN + 77,
    ];
    for corpus in &CORPORA {
        for size in SIZES {
            let value = (corpus.make)(size);
            for spec in specs() {
                let (frame, encoded) = framed(spec, &value);
                let back = decoded(&frame).unwrap();
                assert!(back == value, "{} {size} {spec} {encoded:?}", corpus.name);
                assert_eq!(
                    Frame::parse(&frame, LIMIT).unwrap().encoding(),
                    encoded.encoding
                );
            }
        }
    }
}

#[test]
fn levels_may_change_from_call_to_call() {
    let value = corpora::object(30_000);
    for _ in 0..2 {
        for spec in compressing_specs() {
            let (frame, encoded) = framed(spec, &value);
            assert_eq!(encoded.encoding, Encoding::Compressed(spec));
            assert_eq!(decoded(&frame).unwrap(), value);
        }
    }
}

#[test]
fn the_slowest_levels_round_trip() {
    let Some(zstd) = registry::by_name("zstd").filter(|codec| codec.is_available()) else {
        return;
    };
    let value = [corpora::text(200_000), corpora::object(100_000)].concat();
    let (fast, _) = framed(CodecSpec::new(zstd, Some(3)).unwrap(), &value);
    for level in 13..=22 {
        let spec = CodecSpec::new(zstd, Some(level)).unwrap();
        for len in [300, 20_000, BLOCK_LEN, value.len()] {
            let (frame, encoded) = framed(spec, &value[..len]);
            assert_eq!(encoded.encoding, Encoding::Compressed(spec), "{len}");
            assert!(decoded(&frame).unwrap() == value[..len], "{spec} {len}");
            assert!(len < value.len() || frame.len() < fast.len(), "{spec}");
        }
    }
}

#[test]
fn a_large_value_round_trips() {
    let value = corpora::mixed(20 << 20);
    for text in ["none", "lz4", "zstd:1"] {
        let Ok(spec) = text.parse() else { continue };
        let (frame, _) = framed(spec, &value);
        assert!(decoded(&frame).unwrap() == value, "{text}");
    }
}

#[test]
fn frames_are_appended_to_what_is_there() {
    let value = corpora::text(200_000);
    for spec in specs() {
        let mut out = b"before".to_vec();
        let first = encode(spec, 256, &value, &mut out).unwrap();
        let second = encode(spec, 256, &corpora::random(1000), &mut out).unwrap();
        let (before, frames) = out.split_at(6);
        assert_eq!(before, b"before");
        let (one, two) = frames.split_at(first.frame_len);
        assert_eq!(two.len(), second.frame_len);
        assert!(decoded(one).unwrap() == value);
        assert!(decoded(two).unwrap() == corpora::random(1000));
    }
}

#[test]
fn the_buffer_for_a_value_may_hold_anything_before() {
    for spec in specs() {
        for value in [
            corpora::text(70_000),
            corpora::text(300_000),
            corpora::random(500),
            vec![],
        ] {
            let (frame, _) = framed(spec, &value);
            let frame = Frame::parse(&frame, LIMIT).unwrap();
            for before in [
                vec![],
                vec![0xEE; 10],
                vec![0xEE; 400_000],
                Vec::with_capacity(90_000),
            ] {
                let mut out = before;
                frame.decode_into(&mut out).unwrap();
                assert!(out == value, "{spec}");
            }
        }
    }
}

#[test]
fn a_slice_takes_the_value_if_it_has_its_length() {
    for spec in specs() {
        for value in [corpora::text(300_000), corpora::random(500), vec![]] {
            let (bytes, _) = framed(spec, &value);
            let frame = Frame::parse(&bytes, LIMIT).unwrap();
            let mut out = vec![0xEE; value.len() + 1];
            assert_eq!(
                frame.decode_to(&mut out),
                Err(FrameError::Length {
                    expected: value.len(),
                    found: value.len() + 1
                })
            );
            frame.decode_to(&mut out[1..]).unwrap();
            assert!(out[1..] == value, "{spec}");
        }
    }
}

#[test]
fn verbatim_payloads_are_the_value_itself() {
    let value = corpora::random(300_000);
    for spec in specs() {
        let (bytes, _) = framed(spec, &value);
        let range = Frame::parse(&bytes, LIMIT).unwrap().verbatim().unwrap();
        assert!(bytes[range] == value, "{spec}");
    }
    for spec in compressing_specs() {
        let (bytes, _) = framed(spec, &corpora::text(1000));
        assert_eq!(
            Frame::parse(&bytes, LIMIT).unwrap().verbatim(),
            None,
            "{spec}"
        );
    }
}

#[test]
fn the_reason_for_verbatim_is_told_and_kept() {
    // Spread over too many values to shrink, over too few to look random.
    let skewed: Vec<u8> = corpora::random(300).iter().map(|byte| byte % 140).collect();
    let text = corpora::text(5000);
    for spec in compressing_specs() {
        let cases: [(&[u8], usize, Verbatim); 6] = [
            (&[], 0, Verbatim::BelowThreshold),
            (&text, 5001, Verbatim::BelowThreshold),
            (&corpora::precompressed(5000), 256, Verbatim::Recognized),
            (&corpora::random(5000), 256, Verbatim::LooksRandom),
            (&corpora::random(200), 0, Verbatim::DidNotShrink),
            (&[7], 0, Verbatim::DidNotShrink),
        ];
        for (value, min_bytes, reason) in cases {
            let mut out = Vec::new();
            let encoded = encode(spec, min_bytes, value, &mut out).unwrap();
            assert_eq!(
                encoded.encoding,
                Encoding::Verbatim(reason),
                "{spec} {}",
                value.len()
            );
            let frame = Frame::parse(&out, LIMIT).unwrap();
            assert_eq!(frame.encoding(), encoded.encoding);
        }
        assert_eq!(
            framed(spec, &text).1.encoding,
            Encoding::Compressed(spec),
            "{spec}"
        );
        assert_eq!(decoded(&framed(spec, &skewed).0).unwrap(), skewed);
    }
    let (_, encoded) = framed(CodecSpec::none(), &text);
    assert_eq!(encoded.encoding, Encoding::Verbatim(Verbatim::NoCodec));
}

#[test]
fn a_value_that_is_half_random_is_compressed_in_the_other_half() {
    let mut value = corpora::text(2 * BLOCK_LEN);
    value.extend(corpora::random(2 * BLOCK_LEN));
    for spec in compressing_specs() {
        let (frame, encoded) = framed(spec, &value);
        assert_eq!(encoded.encoding, Encoding::Compressed(spec));
        assert!(
            frame.len() < 3 * BLOCK_LEN + BLOCK_LEN / 2,
            "{spec}: {}",
            frame.len()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_values_round_trip(
        seed in any::<u64>(),
        // Runs of a byte, of noise, or of text: (kind, length).
        parts in prop::collection::vec((0..3u8, 0..60_000usize), 0..8),
        spec in prop::sample::select(specs()),
        min_bytes in prop::sample::select(vec![0, 256, 100_000]),
    ) {
        let mut value = Vec::new();
        for (index, &(kind, len)) in parts.iter().enumerate() {
            match kind {
                0 => value.resize(value.len() + len, index as u8),
                1 => value.extend(corpora::random_of(seed ^ index as u64, len)),
                _ => value.extend(corpora::text(len)),
            }
        }
        let mut frame = Vec::new();
        encode(spec, min_bytes, &value, &mut frame).unwrap();
        prop_assert!(frame.len() <= value.len() + 16);
        prop_assert!(decoded(&frame).unwrap() == value);
    }

    #[test]
    fn short_values_round_trip(
        value in prop::collection::vec(0..6u8, 0..600),
        spec in prop::sample::select(specs()),
    ) {
        prop_assert_eq!(decoded(&framed(spec, &value).0).unwrap(), value);
    }
}
