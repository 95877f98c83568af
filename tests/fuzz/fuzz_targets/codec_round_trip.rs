//! Any value comes back from every codec at every level, in a frame of at most 16 bytes more.

#![no_main]

use fonn_codec::{CodecSpec, Frame, encode, registry};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, u8, &[u8])| {
    let (codec, level, repeat, seed) = input;
    let all = registry::all();
    let codec = &all[usize::from(codec) % all.len()];
    let level = codec.levels().map(|levels| {
        let count = levels.max.abs_diff(levels.min) + 1;
        levels
            .min
            .wrapping_add((level % count).cast_signed())
            .min(12)
    });
    let Ok(spec) = CodecSpec::new(codec, level) else {
        return;
    };
    // Long enough now and then for more than one block.
    let value = seed.repeat(1 << (repeat % 8));
    let mut bytes = Vec::new();
    let encoded = encode(spec, 0, &value, &mut bytes).expect("is short");
    assert_eq!(encoded.frame_len, bytes.len());
    assert!(bytes.len() <= value.len() + 16);
    let frame = Frame::parse(&bytes, value.len()).expect("was just encoded");
    frame.verify().expect("was just encoded");
    let mut back = Vec::new();
    frame.decode_into(&mut back).expect("was just encoded");
    assert!(back == value);
});
