//! Streams of zstd: no bytes may panic, and never more comes out than was promised.
#![no_main]

use fonn_reapi::Inflater;
use libfuzzer_sys::fuzz_target;

const LEN_MAX: usize = 1 << 20;

fuzz_target!(|input: &[u8]| {
    let mut inflater = Inflater::new(LEN_MAX as u64).expect("memory");
    let (mut rest, mut len) = (input, 0);
    loop {
        let Ok(out) = inflater.step(&mut rest).map(<[u8]>::len) else {
            return;
        };
        len += out;
        assert!(len <= LEN_MAX);
        if out == 0 && rest.is_empty() {
            break;
        }
    }
    let _ = inflater.finish();
});
