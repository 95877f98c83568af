//! Manifests of long values, entries of compressed blobs, and where values are cut.
//!
//! The first byte says which of them reads the rest.
#![no_main]

use fonn_gateway::fuzzing::{chunks_make_the_value, manifest_is_whole, packed_is_kept};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    let holds = match kind % 4 {
        0 => manifest_is_whole(&[b"fonnlng1", rest].concat()),
        1 => manifest_is_whole(&[b"fonnlng1\0\0\0\0", rest].concat()),
        2 => packed_is_kept(&[b"fonnpck1", rest].concat()),
        // The shortest chunks that there are.
        _ => chunks_make_the_value(&rest.repeat(usize::from(*kind)), 1024),
    };
    assert!(holds);
});
