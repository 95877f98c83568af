//! The binary parser must make progress on any bytes and find the same requests however they are
//! cut into reads; the replies' lengths must add up.

#![no_main]

use fonn_proto::drive::drive;
use fonn_proto::memcached::binary::{HEADER_LEN, MAGIC_RESPONSE, Parser};
use fonn_proto::request::{Body, ServerOutcome, Step};
use fonn_proto::{Failure, Limits, Out, Outcome};
use libfuzzer_sys::fuzz_target;

/// Small, so that the fuzzer finds both sides of the limit.
const LIMITS: Limits = Limits { value_len_max: 64 };

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (bytes, reads) = input;
    let reads: Vec<usize> = reads.iter().map(|&size| usize::from(size)).collect();
    let run = |reads: &[usize]| drive(&mut Parser::new(LIMITS), Parser::parse, &bytes, reads);
    assert_eq!(run(&reads), run(&[]));
    check_replies(&bytes);
});

/// Answers every request, and walks the replies.
fn check_replies(mut bytes: &[u8]) {
    let mut parser = Parser::new(LIMITS);
    let mut out = Out::new();
    loop {
        let used = match parser.parse(bytes) {
            Step::Need { .. } => break,
            Step::Skip { len } => len.min(bytes.len() as u64) as usize,
            Step::Request { mut request, len } => {
                match &request.body {
                    Body::Data(commands) => {
                        for command in commands {
                            for outcome in [Outcome::Miss, Outcome::Failed(Failure::Busy)] {
                                request.reply.each(command, &outcome, &mut out);
                            }
                        }
                    }
                    Body::Server(command) => {
                        let rows = vec![("name".to_owned(), "value".to_owned())];
                        let outcome = ServerOutcome::Pairs(rows);
                        request.reply.server(command, &outcome, &mut out);
                    }
                    Body::Answer | Body::Queued(_) | Body::LogOut | Body::Close | Body::Broken => {}
                }
                request.reply.finish(&mut out);
                if matches!(request.body, Body::Close | Body::Broken) {
                    break;
                }
                len
            }
        };
        bytes = &bytes[used..];
    }
    let replies = out.to_vec();
    let mut rest = replies.as_slice();
    while !rest.is_empty() {
        assert_eq!(rest[0], MAGIC_RESPONSE);
        let body_len = u32::from_be_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
        rest = &rest[HEADER_LEN + body_len..];
    }
}
