//! The frame from outside: round trips, damage, sizes.

mod corpora;
mod corruption;
mod round_trip;
mod shared;
mod size;

use fonn_codec::frame::HEADER_LEN;
use fonn_codec::{CodecSpec, Encoded, Frame, FrameError, encode, registry};

/// No limit that matters here.
const LIMIT: usize = 1 << 30;

/// Every codec of this build, at its lowest, default and highest level. (Not above zstd:12, which
/// takes minutes.)
fn specs() -> Vec<CodecSpec> {
    let mut specs = Vec::new();
    for codec in registry::all().iter().filter(|codec| codec.is_available()) {
        let levels = codec.levels().map_or(vec![None], |levels| {
            vec![
                Some(levels.min),
                Some(levels.default),
                Some(levels.max.min(12)),
            ]
        });
        specs.extend(
            levels
                .into_iter()
                .map(|level| CodecSpec::new(codec, level).expect("is available")),
        );
    }
    specs
}

/// The specs that compress.
fn compressing_specs() -> Vec<CodecSpec> {
    specs()
        .into_iter()
        .filter(|&spec| spec != CodecSpec::none())
        .collect()
}

/// A value's frame, with the threshold at 0.
fn framed(spec: CodecSpec, raw: &[u8]) -> (Vec<u8>, Encoded) {
    let mut out = Vec::new();
    let encoded = encode(spec, 0, raw, &mut out).expect("is short");
    assert_eq!(encoded.original_len, raw.len());
    assert_eq!(encoded.frame_len, out.len());
    assert!(
        out.len() <= raw.len() + HEADER_LEN,
        "never larger than the value and the header"
    );
    (out, encoded)
}

/// Parses, verifies and decodes.
fn decoded(frame: &[u8]) -> Result<Vec<u8>, FrameError> {
    let frame = Frame::parse(frame, LIMIT)?;
    frame.verify()?;
    let mut value = Vec::new();
    frame.decode_into(&mut value)?;
    Ok(value)
}
