//! Damaged or hostile bytes are errors: never another value, a panic, or much memory.

use fonn_codec::frame::{BLOCK_LEN, ErrorKind, HEADER_LEN, Header};
use fonn_codec::{Frame, FrameError};
use proptest::prelude::*;

use crate::corpora::{self, CORPORA, Noise};
use crate::{LIMIT, compressing_specs, decoded, framed, specs};

#[test]
fn every_change_of_one_byte_of_a_small_frame_is_detected() {
    let values = [
        vec![],
        vec![1],
        corpora::text(300),
        corpora::random(100),
        corpora::zeros(700),
    ];
    for spec in specs() {
        for value in &values {
            let (good, _) = framed(spec, value);
            for at in 0..good.len() {
                let mut bad = good.clone();
                for change in 1..=255u8 {
                    bad[at] = good[at] ^ change;
                    let result = decoded(&bad);
                    assert!(
                        result.is_err(),
                        "{spec} {} at {at} by {change:#x}",
                        value.len()
                    );
                }
            }
        }
    }
}

#[test]
fn random_changes_of_one_byte_of_a_large_frame_are_detected() {
    let mut noise = Noise(11);
    for spec in specs() {
        for corpus in &CORPORA {
            let (mut frame, _) = framed(spec, &(corpus.make)(3 * BLOCK_LEN + 123));
            for _ in 0..150 {
                let at = noise.below(frame.len());
                let change = 1 + noise.below(255) as u8;
                frame[at] ^= change;
                assert!(decoded(&frame).is_err(), "{spec} {} at {at}", corpus.name);
                frame[at] ^= change;
            }
            assert!(decoded(&frame).is_ok());
        }
    }
}

#[test]
fn decoding_without_verifying_gives_the_right_length_or_an_error() {
    // The checksum is what keeps bad bytes out; this is about panics and lengths without it.
    for spec in compressing_specs() {
        for value in [corpora::text(300), corpora::zeros(BLOCK_LEN + 500)] {
            let (good, _) = framed(spec, &value);
            let mut out = Vec::new();
            for at in 0..good.len().min(600) {
                for change in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
                    let mut bad = good.clone();
                    bad[at] ^= change;
                    let Ok(frame) = Frame::parse(&bad, 1 << 20) else {
                        continue;
                    };
                    match frame.decode_into(&mut out) {
                        Ok(()) => assert_eq!(out.len(), frame.original_len()),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Corrupt);
                            assert!(out.is_empty(), "no part of a bad value is left");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_new_vector_and_one_that_is_used_again_get_the_same() {
    let mut noise = Noise(17);
    for spec in compressing_specs() {
        let (good, _) = framed(spec, &corpora::mixed(2 * BLOCK_LEN + 500));
        let len = Frame::parse(&good, LIMIT).unwrap().original_len();
        for _ in 0..40 {
            let mut bad = good.clone();
            let at = HEADER_LEN + noise.below(bad.len() - HEADER_LEN);
            bad[at] ^= 1 + noise.below(255) as u8;
            let Ok(frame) = Frame::parse(&bad, LIMIT) else {
                continue;
            };
            // Room for more than the value: a block that gives too much must be found by its
            // length.
            let (mut new, mut used) = (Vec::with_capacity(2 * len), vec![7; len]);
            let results = (frame.decode_into(&mut new), frame.decode_into(&mut used));
            assert_eq!(results.0, results.1, "{spec} at {at}");
            assert!(new == used, "{spec} at {at}");
        }
    }
}

#[test]
fn every_truncation_and_every_extension_is_an_error() {
    for spec in specs() {
        for value in [
            corpora::text(900),
            corpora::random(900),
            corpora::zeros(2 * BLOCK_LEN),
        ] {
            let (frame, _) = framed(spec, &value);
            let step = if frame.len() > 4096 { 997 } else { 1 };
            for len in (0..frame.len()).step_by(step) {
                let error = Frame::parse(&frame[..len], LIMIT).unwrap_err();
                let expected = if len < HEADER_LEN {
                    FrameError::Truncated { len }
                } else {
                    FrameError::Length {
                        expected: frame.len(),
                        found: len,
                    }
                };
                assert_eq!(error, expected);
            }
            let mut longer = frame.clone();
            longer.push(0);
            let expected = FrameError::Length {
                expected: frame.len(),
                found: longer.len(),
            };
            assert_eq!(Frame::parse(&longer, LIMIT).unwrap_err(), expected);
        }
    }
}

/// A header as an attacker would write it.
fn header(codec: u8, detail: u8, blocks: u8, original_len: u32, stored_len: u32) -> Vec<u8> {
    let mut bytes = vec![0xF1, codec, detail, blocks];
    bytes.extend_from_slice(&original_len.to_le_bytes());
    bytes.extend_from_slice(&stored_len.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes
}

#[test]
fn header_fields_that_no_encoder_writes_are_refused() {
    let parse = |bytes: &[u8]| Header::parse(bytes, LIMIT).unwrap_err();
    assert_eq!(
        parse(b"not a frame at all"),
        FrameError::NotAFrame { found: b'n' }
    );
    for version in (0..16).filter(|&version| version != 1) {
        let mut bytes = header(0, 0, 0, 0, 0);
        bytes[0] = 0xF0 | version;
        let error = parse(&bytes);
        assert_eq!(error, FrameError::Version { found: version });
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    for id in 5..=255 {
        let error = parse(&header(id, 0, 0, 100, 50));
        assert_eq!(error, FrameError::UnknownCodec { id });
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    let field = |name| FrameError::Field { name };
    assert_eq!(parse(&header(0, 5, 0, 10, 10)), field("detail"), "reason");
    assert_eq!(
        parse(&header(1, 1, 0, 100, 50)),
        field("detail"),
        "lz4 has no levels"
    );
    assert_eq!(parse(&header(3, 0, 0, 100, 50)), field("detail"), "zlib:0");
    assert_eq!(
        parse(&header(3, 10, 0, 100, 50)),
        field("detail"),
        "zlib:10"
    );
    assert_eq!(
        parse(&header(4, 23, 0, 100, 50)),
        field("detail"),
        "zstd:23"
    );
    assert_eq!(
        parse(&header(4, 0xF8, 0, 100, 50)),
        field("detail"),
        "zstd:-8"
    );
    assert_eq!(
        parse(&header(0, 0, 17, 1 << 20, 1 << 20)),
        field("blocks"),
        "verbatim"
    );
    assert_eq!(
        parse(&header(1, 0, 17, 1 << 17, 50)),
        field("blocks"),
        "one block"
    );
    assert_eq!(
        parse(&header(1, 0, 0, (1 << 17) + 1, 50)),
        field("blocks"),
        "two blocks"
    );
    assert_eq!(
        parse(&header(1, 0, 16, (1 << 17) + 1, 50)),
        field("blocks"),
        "other length"
    );
    assert_eq!(
        parse(&header(0, 0, 0, 10, 11)),
        field("stored length"),
        "verbatim"
    );
    assert_eq!(
        parse(&header(1, 0, 0, 10, 10)),
        field("stored length"),
        "not smaller"
    );
    assert_eq!(
        parse(&header(1, 0, 0, 10, 0)),
        field("stored length"),
        "nothing"
    );
    assert_eq!(
        parse(&header(1, 0, 17, 1 << 18, 9)),
        field("stored length"),
        "no room"
    );
}

#[test]
fn an_oversized_claim_is_refused_before_anything_is_allocated() {
    // 256 MiB in 30 bytes: its index alone would not fit.
    let mut bytes = header(1, 0, 17, 256 << 20, 14);
    bytes.resize(30, 1);
    assert_eq!(
        Frame::parse(&bytes, LIMIT).unwrap_err(),
        FrameError::Field {
            name: "stored length"
        }
    );
    // Beyond the limit of the caller.
    let (frame, _) = framed(specs()[0], &corpora::random(1001));
    assert_eq!(
        Frame::parse(&frame, 1000).unwrap_err(),
        FrameError::OverLimit {
            claimed: 1001,
            limit: 1000
        }
    );
    assert!(Frame::parse(&frame, 1001).is_ok());
    assert_eq!(
        Header::parse(&header(0, 0, 0, u32::MAX, u32::MAX), 1 << 20).unwrap_err(),
        FrameError::OverLimit {
            claimed: u32::MAX as usize,
            limit: 1 << 20
        }
    );
}

#[test]
fn a_block_index_out_of_order_is_refused() {
    for spec in compressing_specs() {
        let (good, _) = framed(spec, &corpora::text(2 * BLOCK_LEN + 9));
        let index: Vec<u32> = good[16..28]
            .chunks(4)
            .map(|entry| u32::from_le_bytes(entry.try_into().unwrap()))
            .collect();
        let end = index[2];
        for (bad, block) in [
            ([0, index[1], end], 0),
            ([index[0], index[0], end], 1),
            ([index[0], index[0] - 1, end], 1),
            ([index[0], end, end], 2),
            ([index[0], end + 1, end], 1),
            ([index[0], u32::MAX, end], 1),
            // The last block has 9 bytes at most.
            ([index[0], end - 10, end], 2),
            ([index[0], index[1], end - 1], 3),
        ] {
            let mut bytes = good.clone();
            for (place, entry) in bytes[16..28].chunks_mut(4).zip(bad) {
                place.copy_from_slice(&entry.to_le_bytes());
            }
            let error = Frame::parse(&bytes, LIMIT).unwrap_err();
            assert_eq!(
                error,
                FrameError::Index { block },
                "{spec} {index:?} {bad:?}"
            );
        }
    }
}

#[test]
fn an_absent_codec_is_told_apart_from_an_unknown_one() {
    for codec in fonn_codec::registry::all()
        .iter()
        .filter(|codec| !codec.is_available())
    {
        let detail = codec
            .levels()
            .map_or(0, |levels| levels.default.cast_unsigned());
        let mut bytes = header(codec.id().as_u8(), detail, 0, 100, 4);
        bytes.extend_from_slice(&[0; 4]);
        let error = Frame::parse(&bytes, LIMIT).unwrap_err();
        let feature = codec.feature().unwrap();
        assert_eq!(
            error,
            FrameError::AbsentCodec {
                codec: codec.name(),
                feature
            }
        );
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_an_error_or_a_value_within_the_limit(
        codec in 0..6u8,
        detail in 0..10u8,
        blocks in prop::sample::select(vec![0, 17]),
        original_len in prop::sample::select(vec![0u32, 1, 40, 5000, 1 << 17, 1 << 18, 1 << 28]),
        payload in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut bytes = header(codec, detail, blocks, original_len, payload.len() as u32);
        bytes.extend_from_slice(&payload);
        if let Ok(frame) = Frame::parse(&bytes, 1 << 20) {
            let mut out = Vec::new();
            if frame.decode_into(&mut out).is_ok() {
                prop_assert_eq!(out.len(), frame.original_len());
            }
            prop_assert!(out.capacity() <= 1 << 20);
        }
    }
}
