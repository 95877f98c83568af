//! The header of a login: no value panics, and a user and a password are the same in any spelling.
//!
//! The first byte says which scheme the rest belongs to.
#![no_main]

use fonn_admin::fuzzing::{login_is_read, pair_is_a_login};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    let holds = match kind % 4 {
        0 => login_is_read(rest),
        1 => login_is_read(&[b"Basic ", rest].concat()),
        2 => login_is_read(&[b"Bearer ", rest].concat()),
        _ => pair_is_a_login(rest),
    };
    assert!(holds);
});
