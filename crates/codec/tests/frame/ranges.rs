//! A range of a value is the slice of the whole.

use fonn_codec::frame::{BLOCK_LEN, ErrorKind};
use fonn_codec::{Frame, FrameError};
use proptest::prelude::*;

use crate::corpora;
use crate::{LIMIT, framed, specs};

#[test]
fn ranges_at_the_borders_of_blocks_are_slices_of_the_whole() {
    let lens = [
        0,
        1,
        1000,
        BLOCK_LEN,
        BLOCK_LEN + 1,
        2 * BLOCK_LEN,
        3 * BLOCK_LEN + 500,
    ];
    for len in lens {
        for value in [
            corpora::text(len),
            corpora::random(len),
            corpora::mixed(len),
        ] {
            for spec in specs() {
                let (bytes, _) = framed(spec, &value);
                let frame = Frame::parse(&bytes, LIMIT).unwrap();
                let mut places: Vec<usize> = (0..4)
                    .flat_map(|block| {
                        let border = block * BLOCK_LEN;
                        [border.saturating_sub(1), border, border + 1, border + 300]
                    })
                    .chain([len])
                    .filter(|&place| place <= len)
                    .collect();
                places.dedup();
                let mut out = Vec::new();
                for &start in &places {
                    for &end in places.iter().filter(|&&end| end >= start) {
                        frame.decode_range(start..end, &mut out).unwrap();
                        assert!(out == value[start..end], "{spec} {len} {start}..{end}");
                    }
                }
            }
        }
    }
}

#[test]
#[allow(clippy::reversed_empty_ranges)]
fn a_range_outside_the_value_is_an_error_and_leaves_nothing() {
    for spec in specs() {
        for len in [0, 1000, BLOCK_LEN + 5] {
            let (bytes, _) = framed(spec, &corpora::text(len));
            let frame = Frame::parse(&bytes, LIMIT).unwrap();
            for range in [
                0..len + 1,
                len + 1..len + 1,
                len + 1..len + 2,
                2..1,
                0..usize::MAX,
            ] {
                let mut out = b"old".to_vec();
                let error = frame.decode_range(range.clone(), &mut out).unwrap_err();
                assert_eq!(
                    error,
                    FrameError::Range {
                        start: range.start,
                        end: range.end,
                        len
                    }
                );
                assert_eq!(error.kind(), ErrorKind::Invalid);
                assert!(out.is_empty());
            }
        }
    }
}

#[test]
fn a_range_needs_only_its_own_blocks() {
    let value = corpora::text(4 * BLOCK_LEN);
    for spec in specs() {
        let (mut bytes, encoded) = framed(spec, &value);
        if Frame::parse(&bytes, LIMIT).unwrap().verbatim().is_some() {
            continue;
        }
        // The last block becomes nonsense, the first ones do not care.
        let tail = encoded.frame_len - 2000;
        bytes[tail..].fill(0xFF);
        let frame = Frame::parse(&bytes, LIMIT).unwrap();
        let mut out = Vec::new();
        frame.decode_range(5..3 * BLOCK_LEN, &mut out).unwrap();
        assert!(out == value[5..3 * BLOCK_LEN], "{spec}");
        assert!(frame.verify().is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_range_is_the_slice_of_the_whole(
        len in 0..700_000usize,
        ends in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        spec in prop::sample::select(specs()),
    ) {
        let value = corpora::mixed(len);
        let (a, b) = (ends.0.index(len + 1), ends.1.index(len + 1));
        let range = a.min(b)..a.max(b);
        let (bytes, _) = framed(spec, &value);
        let mut out = Vec::new();
        Frame::parse(&bytes, LIMIT).unwrap().decode_range(range.clone(), &mut out).unwrap();
        prop_assert!(out == value[range]);
    }
}
