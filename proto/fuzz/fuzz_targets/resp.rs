//! Any bytes, cut into any reads, give the same requests, and never a panic or a standstill.
#![no_main]

use fonn_proto::Limits;
use fonn_proto::drive::drive;
use fonn_proto::resp::Parser;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (reads, bytes) = input;
    let reads: Vec<usize> = reads.into_iter().map(usize::from).collect();
    let requests = |reads: &[usize]| {
        drive(
            &mut Parser::new(Limits { value_len_max: 64 }, 1),
            Parser::parse,
            &bytes,
            reads,
        )
    };
    let whole = requests(&[]);
    assert_eq!(requests(&[1]), whole);
    assert_eq!(requests(&reads), whole);
});
