//! Artifacts, ranges, lists of events and paths in documents: no input panics or breaks an
//! invariant.
//!
//! The first byte says which parser reads the rest.
#![no_main]

use fonn_gateway::fuzzing::{
    artifact_is_kept, events_are_bounded, path_adds_no_element, range_lies_within,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    let holds = match kind % 4 {
        0 => artifact_is_kept(rest),
        1 => range_lies_within(rest, usize::from(*kind)),
        2 => events_are_bounded(rest),
        _ => std::str::from_utf8(rest).is_ok_and(path_adds_no_element)
            || std::str::from_utf8(rest).is_err(),
    };
    assert!(holds);
});
