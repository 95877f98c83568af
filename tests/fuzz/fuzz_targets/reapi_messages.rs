//! Bodies of calls and action results: no bytes may panic, and messages come out however the body
//! is cut.
#![no_main]

use fonn_reapi::{Deframer, References, inlined};
use libfuzzer_sys::fuzz_target;

fn messages(body: &[u8], step: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut deframer, mut found) = (Deframer::default(), Vec::new());
    for part in body.chunks(step) {
        deframer.push(part);
        loop {
            match deframer.pull() {
                Ok(Some(message)) => found.push(message.to_vec()),
                Ok(None) => break,
                Err(_) => return (found, false),
            }
        }
    }
    (found, true)
}

fuzz_target!(|input: &[u8]| {
    let whole = messages(input, usize::MAX);
    assert_eq!(whole, messages(input, 1));
    for message in whole.0.iter().map(Vec::as_slice).chain([input]) {
        assert!(inlined(message).count() <= message.len());
        let Ok(mut references) = References::of_result(message, 0) else {
            continue;
        };
        // Every message that is referred to is this same message.
        while let Some((referrer, _)) = references.next_referrer() {
            if references.extend(referrer, message).is_err() {
                break;
            }
        }
        assert!(references.blobs().count() <= 1 << 20);
    }
});
