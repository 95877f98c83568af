//! Calls, lists of blocks, queries and the index of GitHub Actions' cache service.
//!
//! The first byte says which parser reads the rest, the second what the rest begins with.
#![no_main]

use fonn_gateway::fuzzing::{actions_call_is_bounded, index_is_kept};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    let holds = match kind % 4 {
        0 | 1 => index_is_kept(&[b"fonnghi1", rest].concat()),
        2 => actions_call_is_bounded(rest),
        _ => actions_call_is_bounded(&[b"<BlockList><Latest>", rest].concat()),
    };
    assert!(holds);
});
