//! Tests of the whole dialect: bytes in, bytes out.

mod cluster;
mod compatibility;
mod framing;
mod model;
mod replies;
mod session;
mod transaction;

use super::Parser;
use crate::Out;
use crate::request::{Body, Limits, Step};
use model::Model;

const LIMITS: Limits = Limits {
    value_len_max: 1 << 20,
};

/// A connection to a store in memory.
struct Client {
    parser: Parser,
    model: Model,
}

impl Client {
    fn new() -> Self {
        Self::with_limits(LIMITS)
    }

    fn with_limits(limits: Limits) -> Self {
        Self {
            parser: Parser::new(limits, 7),
            model: Model::default(),
        }
    }

    /// A connection that speaks RESP3.
    fn resp3() -> Self {
        let mut client = Self::new();
        assert!(client.send(b"HELLO 3\r\n").starts_with("%8\\r\\n"));
        client
    }

    /// Sends bytes and returns all replies, escaped; `<closed>` follows where the connection ended.
    fn send(&mut self, bytes: &[u8]) -> String {
        let mut out = Out::new();
        let mut start = 0;
        while start < bytes.len() {
            match self.parser.parse(&bytes[start..]) {
                Step::Need { .. } => break,
                Step::Skip { len } => {
                    start += usize::try_from(len).unwrap().min(bytes.len() - start);
                }
                Step::Request { mut request, len } => {
                    start += len;
                    let closes = matches!(request.body, Body::Close | Body::Broken);
                    self.model.answer(&mut request, &mut out);
                    if closes {
                        return format!("{}<closed>", out.to_vec().escape_ascii());
                    }
                }
            }
        }
        out.to_vec().escape_ascii().to_string()
    }

    /// Sends one request as an array of bulk strings.
    fn call(&mut self, args: &[&[u8]]) -> String {
        self.send(&array(args))
    }

    /// Sends one request given as words without quotes.
    fn words(&mut self, line: &str) -> String {
        self.call(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }
}

/// A request as an array of bulk strings.
fn array(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n", arg.len()).into_bytes());
        bytes.extend(*arg);
        bytes.extend(b"\r\n");
    }
    bytes
}
