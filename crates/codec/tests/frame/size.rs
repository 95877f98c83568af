//! How small frames are.

use fonn_codec::frame::{BLOCK_LEN, HEADER_LEN};
use fonn_codec::{Encoding, Verbatim};

use crate::corpora;
use crate::{compressing_specs, framed, specs};

#[test]
fn a_frame_of_a_short_value_costs_sixteen_bytes() {
    for spec in specs() {
        let (frame, _) = framed(spec, &corpora::random(100));
        assert_eq!(frame.len(), 116, "{spec}");
    }
}

#[test]
fn synthetic_values_shrink_as_much_as_they_can() {
    for spec in compressing_specs() {
        // An LZ4 match of 255 bytes takes one byte, a Snappy match of 64 bytes three.
        let ratio_min = match spec.codec().name() {
            "lz4" => 200,
            "snappy" => 20,
            _ => 100,
        };
        for len in [BLOCK_LEN, 256 << 10, 2 << 20] {
            let (frame, _) = framed(spec, &corpora::zeros(len));
            assert!(
                frame.len() * ratio_min <= len,
                "{spec} {len}: {}",
                frame.len()
            );
            let pattern: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let (frame, _) = framed(spec, &pattern);
            assert!(frame.len() * 15 <= len, "{spec} {len}: {}", frame.len());
        }
    }
}

#[test]
fn text_and_objects_shrink() {
    for spec in compressing_specs() {
        for len in [5000, 16 << 10, 200 << 10, 1 << 20] {
            for value in [corpora::text(len), corpora::object(len)] {
                let (frame, encoded) = framed(spec, &value);
                assert_eq!(encoded.encoding, Encoding::Compressed(spec), "{len}");
                assert!(frame.len() * 10 < len * 9, "{spec} {len}: {}", frame.len());
            }
        }
    }
}

#[test]
fn values_of_200_kib_shrink_to_less_than_a_quarter() {
    // The lines of a log, without the random identifiers that no codec can shrink.
    let lines = String::from_utf8(corpora::json(400 << 10)).unwrap();
    let mut value: Vec<u8> = lines
        .lines()
        .filter_map(|line| line.split_once(",\"request_id\""))
        .flat_map(|(front, _)| [front.as_bytes(), b"}\n"].concat())
        .collect();
    value.truncate(200 << 10);
    assert_eq!(value.len(), 200 << 10);
    for spec in compressing_specs() {
        // What has no entropy coder (zstd leaves most of its own out below level 0) gets to
        // about 4.
        let is_fast = spec.level().is_none_or(|level| level < 0);
        let ratio_min = if is_fast { 3.0 } else { 4.25 };
        let (frame, _) = framed(spec, &value);
        let ratio = value.len() as f64 / frame.len() as f64;
        assert!(ratio >= ratio_min, "{spec}: {ratio:.2}");
    }
}

#[test]
fn a_value_that_hardly_shrinks_is_stored_verbatim() {
    // 30 of 2000 bytes could be saved: less than 1/32.
    let mut value = corpora::random(1970);
    value.resize(2000, 0);
    for spec in compressing_specs() {
        let (frame, encoded) = framed(spec, &value);
        assert!(matches!(
            encoded.encoding,
            Encoding::Verbatim(Verbatim::DidNotShrink | Verbatim::LooksRandom)
        ));
        assert_eq!(frame.len(), value.len() + HEADER_LEN);
    }
}
