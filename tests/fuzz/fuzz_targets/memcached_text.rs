//! Memcached text and meta: no input may panic or break the contract of a parser, and the requests
//! must not depend on how the network cuts the stream into reads.
//!
//! The input's first byte is the number of read sizes that follow it; the rest is the stream.
#![no_main]

use fonn_proto::drive::drive;
use fonn_proto::memcached::text::Parser;
use fonn_proto::request::Limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&count, rest)) = input.split_first() else {
        return;
    };
    let (sizes, stream) = rest.split_at(usize::from(count % 16).min(rest.len()));
    let reads: Vec<usize> = sizes.iter().map(|&size| size.into()).collect();
    let requests = |reads: &[usize]| {
        let mut parser = Parser::new(Limits { value_len_max: 64 });
        drive(&mut parser, Parser::parse, stream, reads)
    };
    assert_eq!(requests(&[]), requests(&reads));
});
