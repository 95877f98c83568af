//! Bodies of requests for the exchange of a token: no body panics, and a token is the same in any
//! spelling.
//!
//! The first byte says whether the rest is a body, or the token in one.
#![no_main]

use fonn_gateway::fuzzing::{exchange_is_read, token_is_exchanged};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    let holds = match (kind % 2, std::str::from_utf8(rest)) {
        (0, _) => exchange_is_read(rest),
        (_, Ok(token)) => token_is_exchanged(token),
        (_, Err(_)) => true,
    };
    assert!(holds);
});
