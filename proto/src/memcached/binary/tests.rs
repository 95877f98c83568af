//! Tests of the binary dialect. Packets are put together here by hand, not by the code under test.

#![allow(clippy::arithmetic_side_effects)]

mod parse;
mod properties;
mod reply;

use super::Parser;
use crate::request::{self, Body, Limits, Request, ServerOutcome, Step};
use crate::{Out, Outcome};

/// Echoed in every reply.
const OPAQUE: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];

/// `--max-value` in these tests.
const LIMITS: Limits = Limits {
    value_len_max: 1000,
};

/// Flags 0xabcd0123 and expiry 100, as SET has them.
const STORE_EXTRAS: [u8; 8] = [0xab, 0xcd, 0x01, 0x23, 0, 0, 0, 100];

/// A request with consistent lengths.
fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    packet_with_cas(opcode, extras, key, value, 0)
}

fn packet_with_cas(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let body_len = (extras.len() + key.len() + value.len()) as u32;
    let mut bytes = header(opcode, key.len() as u16, extras.len() as u8, body_len);
    bytes[16..24].copy_from_slice(&cas.to_be_bytes());
    [&bytes, extras, key, value].concat()
}

/// A request's header, with whatever lengths.
fn header(opcode: u8, key_len: u16, extras_len: u8, body_len: u32) -> Vec<u8> {
    let [k0, k1] = key_len.to_be_bytes();
    let [b0, b1, b2, b3] = body_len.to_be_bytes();
    let mut bytes = vec![0x80, opcode, k0, k1, extras_len, 0, 0, 0, b0, b1, b2, b3];
    bytes.extend(OPAQUE);
    bytes.extend([0; 8]);
    bytes
}

/// The bytes of a reply.
fn answer(opcode: u8, status: u16, cas: u64, parts: (&[u8], &[u8], &[u8])) -> Vec<u8> {
    let (extras, key, value) = parts;
    let body_len = (extras.len() + key.len() + value.len()) as u32;
    let mut bytes = vec![0x81, opcode];
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend([extras.len() as u8, 0]);
    bytes.extend(status.to_be_bytes());
    bytes.extend(body_len.to_be_bytes());
    bytes.extend(OPAQUE);
    bytes.extend(cas.to_be_bytes());
    [&bytes, extras, key, value].concat()
}

/// The bytes of a reply without a value; a miss has a text in its place.
fn bare(opcode: u8, status: u16) -> Vec<u8> {
    let text: &[u8] = if status == 1 { b"Not found" } else { b"" };
    answer(opcode, status, 0, (b"", b"", text))
}

/// Parses one complete packet and looks at the request.
fn with_request<R>(bytes: &[u8], look: impl FnOnce(Request<'_>) -> R) -> R {
    match Parser::new(LIMITS).parse(bytes) {
        Step::Request { request, len } => {
            assert_eq!(len, bytes.len(), "the request is the whole packet");
            look(request)
        }
        other => panic!("no request but {other:?}"),
    }
}

/// What the client reads when the packet's command comes out like this.
fn reply_to(bytes: &[u8], outcome: &Outcome<'_>) -> Vec<u8> {
    with_request(bytes, |mut request| {
        let Body::Data(commands) = &request.body else {
            panic!("no command: {request:?}")
        };
        let [command] = &commands[..] else {
            panic!("not one command: {commands:?}")
        };
        let mut out = Out::new();
        request.reply.each(command, outcome, &mut out);
        request.reply.finish(&mut out);
        out.to_vec()
    })
}

/// What the client reads when the server's part comes out like this.
fn server_reply_to(bytes: &[u8], outcome: &ServerOutcome) -> Vec<u8> {
    with_request(bytes, |mut request| {
        let Body::Server(command) = &request.body else {
            panic!("no server command: {request:?}")
        };
        let mut out = Out::new();
        request.reply.server(command, outcome, &mut out);
        out.to_vec()
    })
}

/// Feeds the bytes as they are and collects what is answered without an executor. None if the
/// connection is to be closed.
fn answers(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut parser = Parser::new(LIMITS);
    let mut out = Out::new();
    while !bytes.is_empty() {
        let used = match parser.parse(bytes) {
            Step::Need { .. } => break,
            Step::Skip { len } => len.min(bytes.len() as u64) as usize,
            Step::Request { mut request, len } => {
                assert!(matches!(request.reply, request::Reply::Binary(_)));
                match request.body {
                    Body::Answer | Body::Queued(_) | Body::LogOut => {
                        request.reply.finish(&mut out);
                    }
                    Body::Close | Body::Broken => {
                        request.reply.finish(&mut out);
                        return (out.to_vec(), true);
                    }
                    Body::Data(_) | Body::Server(_) => panic!("needs an executor: {request:?}"),
                }
                len
            }
        };
        bytes = &bytes[used..];
    }
    (out.to_vec(), false)
}
