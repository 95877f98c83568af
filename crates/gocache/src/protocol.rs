//! What the go command says and hears: a JSON object a line (Go's `cmd/go/internal/cacheprog`).
//!
//! A `put` of bytes is followed by one more line: a JSON string, the bytes in base64. Answers may
//! come in any order.

use std::io::{self, BufRead, Read, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::read::DecoderReader;
use serde::{Deserialize, Serialize};

use crate::record::NAME_LEN_MAX;

/// The longest line of a request in bytes. Bodies are lines of their own.
const LINE_LEN_MAX: u64 = 64 << 10;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) id: i64,
    pub(crate) command: Command,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Get {
        action: Vec<u8>,
    },
    /// A body of `len` bytes follows, unless it is empty.
    Put {
        action: Vec<u8>,
        output: Vec<u8>,
        len: u64,
    },
    Close,
    /// A command that was not announced, or a name that cannot be.
    Unknown,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RequestLine {
    #[serde(rename = "ID")]
    id: i64,
    #[serde(default)]
    command: String,
    #[serde(rename = "ActionID", default)]
    action: Option<String>,
    #[serde(rename = "OutputID", default)]
    output: Option<String>,
    #[serde(default)]
    body_size: i64,
}

/// An answer.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Answer<'a> {
    #[serde(rename = "ID")]
    pub(crate) id: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) err: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(crate) known_commands: &'a [&'a str],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) miss: bool,
    #[serde(rename = "OutputID", skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u64>,
    /// RFC 3339, in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_path: Option<String>,
}

/// The commands that the helper announces.
pub(crate) const KNOWN_COMMANDS: [&str; 3] = ["get", "put", "close"];

/// The same for a helper that can keep nothing.
pub(crate) const WITHOUT_PUT: [&str; 2] = ["get", "close"];

impl Answer<'_> {
    /// The line of the answer.
    pub(crate) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// A name in base64, as answers have it.
pub(crate) fn base64_of(name: &[u8]) -> String {
    STANDARD.encode(name)
}

/// Reads the next request; none at the end.
///
/// # Errors
/// If the input cannot be read, or is no request.
pub(crate) fn read_request(input: &mut impl BufRead) -> io::Result<Option<Request>> {
    loop {
        let mut line = Vec::new();
        let read = input.take(LINE_LEN_MAX).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        if !line.ends_with(b"\n") && line.len() as u64 == LINE_LEN_MAX {
            return Err(invalid("a request of the go command is too long"));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let line: RequestLine = serde_json::from_slice(&line)?;
        return Ok(Some(Request {
            id: line.id,
            command: command_of(&line),
        }));
    }
}

fn command_of(line: &RequestLine) -> Command {
    let name = |name: &Option<String>| {
        let name = STANDARD.decode(name.as_deref()?).ok()?;
        (1..=NAME_LEN_MAX).contains(&name.len()).then_some(name)
    };
    let known = match line.command.as_str() {
        "get" => name(&line.action).map(|action| Command::Get { action }),
        "put" => name(&line.action)
            .zip(name(&line.output))
            .zip(u64::try_from(line.body_size).ok())
            .map(|((action, output), len)| Command::Put {
                action,
                output,
                len,
            }),
        "close" => Some(Command::Close),
        _ => None,
    };
    known.unwrap_or(Command::Unknown)
}

/// Reads a body of `len` bytes, with the line that it is in.
///
/// # Errors
/// If the input ends or is no such line, if the body has another length, or if `to` takes no more.
pub(crate) fn read_body(input: &mut impl BufRead, len: u64, to: &mut impl Write) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    loop {
        let mut byte = [0];
        input.read_exact(&mut byte)?;
        match byte {
            [b'"'] => break,
            [byte] if byte.is_ascii_whitespace() => {}
            _ => return Err(invalid("the body of a put is no JSON string")),
        }
    }
    let mut quoted = Quoted {
        input,
        has_ended: false,
    };
    let copied = io::copy(&mut DecoderReader::new(&mut quoted, &STANDARD), to)?;
    if !quoted.has_ended || copied != len {
        return Err(invalid(
            "the body of a put has another length than was said",
        ));
    }
    Ok(())
}

/// The bytes up to a quotation mark, which is taken.
struct Quoted<'i, I> {
    input: &'i mut I,
    has_ended: bool,
}

impl<I: BufRead> Read for Quoted<'_, I> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.has_ended || out.is_empty() {
            return Ok(0);
        }
        let there = self.input.fill_buf()?;
        let there = there.get(..there.len().min(out.len())).unwrap_or(there);
        let end = there.iter().position(|byte| *byte == b'"');
        let taken = end.unwrap_or(there.len());
        for (to, from) in out.iter_mut().zip(there.iter().take(taken)) {
            *to = *from;
        }
        if end.is_some() {
            self.has_ended = true;
            self.input.consume(taken + 1);
        } else {
            self.input.consume(taken);
        }
        Ok(taken)
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_are_read_one_by_one_with_their_bodies() {
        let text = concat!(
            "{\"ID\":1,\"Command\":\"get\",\"ActionID\":\"AQI=\"}\n",
            "\n",
            "{\"ID\":2,\"Command\":\"put\",\"ActionID\":\"AQI=\",\"OutputID\":\"Aw==\",\"BodySize\":5}\n",
            "\"aGVsbG8=\"\n",
            "{\"ID\":3,\"Command\":\"put\",\"ActionID\":\"AQI=\",\"OutputID\":\"Aw==\",\"BodySize\":0}\n",
            "{\"ID\":4,\"Command\":\"close\"}\n",
            "{\"ID\":5,\"Command\":\"sing\"}\n",
            "{\"ID\":6,\"Command\":\"get\"}",
        );
        // A buffer of a few bytes: no piece of the input is together.
        let mut input = BufReader::with_capacity(3, text.as_bytes());
        let mut next = || read_request(&mut input);
        let (action, output) = (vec![1, 2], vec![3]);
        let get = Command::Get {
            action: action.clone(),
        };
        assert_eq!(next().unwrap().unwrap().command, get);
        let put = next().unwrap().unwrap();
        let len = 5;
        assert_eq!(put.id, 2);
        let expected = Command::Put {
            action,
            output,
            len,
        };
        assert_eq!(put.command, expected);
        let mut body = Vec::new();
        read_body(&mut input, len, &mut body).unwrap();
        assert_eq!(body, b"hello");
        let empty = read_request(&mut input).unwrap().unwrap();
        assert!(matches!(empty.command, Command::Put { len: 0, .. }));
        read_body(&mut input, 0, &mut body).unwrap();
        for expected in [Command::Close, Command::Unknown, Command::Unknown] {
            let request = read_request(&mut input).unwrap().unwrap();
            assert_eq!(request.command, expected);
        }
        assert_eq!(read_request(&mut input).unwrap(), None);
    }

    #[test]
    fn a_body_of_another_length_is_an_error() {
        for (text, len) in [
            ("\"aGVsbG8=\"\n", 4),
            ("\"aGVsbG8=\"\n", 6),
            ("\"aGVs", 3),
            ("5\n", 1),
        ] {
            let read = read_body(&mut text.as_bytes(), len, &mut Vec::new());
            assert!(read.is_err(), "{text} {len}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_an_error() {
        let line = vec![b' '; 1 << 20];
        assert!(read_request(&mut line.as_slice()).is_err());
    }

    proptest! {
        #[test]
        fn bodies_of_all_lengths_are_read(
            body in prop::collection::vec(any::<u8>(), 1..300),
            buffer in 1..40_usize,
        ) {
            let line = format!("\"{}\"\nnext", STANDARD.encode(&body));
            let mut input = BufReader::with_capacity(buffer, line.as_bytes());
            let mut read = Vec::new();
            read_body(&mut input, body.len() as u64, &mut read).unwrap();
            prop_assert_eq!(read, body);
            let mut rest = String::new();
            input.read_to_string(&mut rest).unwrap();
            prop_assert_eq!(rest, "\nnext");
        }

        #[test]
        fn no_input_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut input = bytes.as_slice();
            let _ = read_request(&mut input);
            let _ = read_body(&mut input, 3, &mut Vec::new());
        }
    }
}
