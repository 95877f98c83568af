//! Any bytes are an error or a value of the length they claim, within the limit. The checksum,
//! which a fuzzer does not guess, is asked but not relied on: the codecs get the bytes in any case.

#![no_main]

use fonn_codec::Frame;
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Ok(frame) = Frame::parse(bytes, LIMIT) else {
        return;
    };
    let is_verified = frame.verify().is_ok();
    let mut value = Vec::new();
    let is_decoded = frame.decode_into(&mut value).is_ok();
    assert!(value.capacity() <= LIMIT);
    assert_eq!(
        value.len(),
        if is_decoded { frame.original_len() } else { 0 }
    );
    if let Some(range) = frame.verbatim() {
        assert_eq!(bytes[range], value);
    }
    // A buffer that is used again takes the other way through the codecs.
    let mut room = vec![0; frame.original_len()];
    let is_filled = frame.decode_to(&mut room).is_ok();
    if is_decoded {
        assert!(is_filled);
        assert_eq!(room, value);
    }
    // Only to keep the call.
    std::hint::black_box(is_verified);
});
