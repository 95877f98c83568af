//! Several threads make the same bytes as one.

use fonn_codec::frame::{BLOCK_LEN, HEADER_LEN};
use fonn_codec::{
    CodecSpec, Encoded, Encoding, Frame, FrameError, Verbatim, compress, encode, encode_verbatim,
    reason_to_leave,
};

use crate::corpora;
use crate::{LIMIT, specs};

/// Appends the frame of a value as [`encode`] does, with threads that share the attempt.
fn encode_shared(
    spec: CodecSpec,
    value: &[u8],
    threads: usize,
    out: &mut Vec<u8>,
) -> Result<Encoded, fonn_codec::frame::EncodeError> {
    let attempt = match reason_to_leave(spec, 256, value) {
        Some(reason) => Err(reason),
        None => compress(spec, value, threads, out),
    };
    attempt.or_else(|reason| encode_verbatim(reason, value, out))
}

#[test]
fn threads_make_the_same_frame_and_the_same_value() {
    for make in [corpora::text, corpora::mixed, corpora::random] {
        // Below the length for threads, whole parts, and a last part of a block and a bit.
        for len in [300_000, 16 * BLOCK_LEN, 25 * BLOCK_LEN + 77] {
            let value = make(len);
            for spec in specs().into_iter().filter(|spec| spec.level() <= Some(6)) {
                let (mut alone, mut shared) = (b"before".to_vec(), b"before".to_vec());
                let one = encode(spec, 256, &value, &mut alone).unwrap();
                let many = encode_shared(spec, &value, 3, &mut shared).unwrap();
                assert_eq!(one, many, "{len} {spec}");
                assert!(alone == shared, "{len} {spec}");

                let frame = Frame::parse(&shared[6..], LIMIT).unwrap();
                frame.verify().unwrap();
                let mut back = vec![0xEE; 100];
                frame.decode_shared(3, &mut back).unwrap();
                assert!(back == value, "{len} {spec}");
            }
        }
    }
}

#[test]
fn a_value_of_several_turns_is_the_same() {
    // Two threads put 8 MiB together at a time.
    let value = corpora::text((17 << 20) + 77);
    for name in ["lz4", "zstd:1"] {
        let Ok(spec) = name.parse() else { continue };
        let (mut alone, mut shared) = (Vec::new(), Vec::new());
        encode(spec, 256, &value, &mut alone).unwrap();
        encode_shared(spec, &value, 2, &mut shared).unwrap();
        assert!(alone == shared, "{name}");
        let mut back = Vec::new();
        let frame = Frame::parse(&shared, LIMIT).unwrap();
        frame.decode_shared(2, &mut back).unwrap();
        assert!(back == value, "{name}");
    }
}

#[test]
fn a_value_that_hardly_shrinks_is_verbatim_for_threads_too() {
    // Two of 40 blocks can be compressed, of which one is not enough.
    let mut value = corpora::random(39 * BLOCK_LEN);
    value.extend(corpora::zeros(BLOCK_LEN));
    for spec in crate::compressing_specs() {
        let mut out = b"before".to_vec();
        let encoded = encode_shared(spec, &value, 4, &mut out).unwrap();
        assert!(matches!(
            encoded.encoding,
            Encoding::Verbatim(Verbatim::DidNotShrink | Verbatim::LooksRandom)
        ));
        assert_eq!(out.len(), 6 + HEADER_LEN + value.len());
    }
}

#[test]
fn a_damaged_part_is_an_error_and_leaves_nothing() {
    let value = corpora::text(40 * BLOCK_LEN);
    for spec in crate::compressing_specs() {
        let mut bytes = Vec::new();
        encode(spec, 256, &value, &mut bytes).unwrap();
        // The last blocks, which are another thread's, in a way that no codec takes.
        let len = bytes.len();
        bytes[len - 3000..].fill(0xFF);
        let frame = Frame::parse(&bytes, LIMIT).unwrap();
        let mut out = vec![1; 10];
        let error = frame.decode_shared(3, &mut out).unwrap_err();
        assert!(matches!(error, FrameError::Decode { .. }), "{spec}");
        assert!(out.is_empty());
    }
}
