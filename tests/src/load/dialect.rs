//! The three client protocols, as little of them as a load generator needs.
//!
//! Requests: get and set without expiry. Replies are recognised by their first bytes; what
//! follows a value's head (its body and a fixed tail) is consumed by the connection without
//! being gathered. Sources: memcached `doc/protocol.txt`, `BinaryProtocolRevamped` wiki page,
//! redis.io "RESP protocol spec".

use anyhow::{Context, Result, bail};

const BINARY_HEADER_LEN: usize = 24;
const BINARY_RESPONSE_MAGIC: u8 = 0x81;
const BINARY_NOT_FOUND: u16 = 1;
/// A status line or a `VALUE` line longer than this is not the protocol.
const LINE_LEN_MAX: usize = 2048;

/// A client protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// memcached text.
    Text,
    /// memcached binary.
    Binary,
    /// Redis serialization protocol, version 2.
    Resp,
}

/// The two operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Reads the value of a key.
    Get,
    /// Stores a value.
    Set,
}

/// The beginning of a reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// More bytes are needed.
    Incomplete,
    /// A get found nothing; `used` bytes long.
    Miss {
        /// Bytes of the reply.
        used: usize,
    },
    /// A set was done.
    Stored {
        /// Bytes of the reply.
        used: usize,
    },
    /// A get found a value that follows after `used` bytes, with the protocol's tail behind it.
    Value {
        /// Bytes before the value.
        used: usize,
        /// Bytes of the value.
        len: usize,
    },
    /// The server answered with an error.
    Refused {
        /// Bytes of the reply.
        used: usize,
        /// What it said.
        message: String,
    },
}

impl Protocol {
    /// Appends a get request.
    pub(super) fn push_get(self, key: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Text => {
                out.extend_from_slice(b"get ");
                out.extend_from_slice(key);
                out.extend_from_slice(b"\r\n");
            }
            Self::Binary => {
                push_binary_header(0x00, key.len(), 0, key.len(), out);
                out.extend_from_slice(key);
            }
            Self::Resp => {
                out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$");
                push_decimal(key.len(), out);
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(key);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Appends a set request up to the value, which has `len` bytes.
    pub(super) fn push_set(self, key: &[u8], len: usize, out: &mut Vec<u8>) {
        match self {
            Self::Text => {
                out.extend_from_slice(b"set ");
                out.extend_from_slice(key);
                out.extend_from_slice(b" 0 0 ");
                push_decimal(len, out);
                out.extend_from_slice(b"\r\n");
            }
            Self::Binary => {
                push_binary_header(0x01, key.len(), 8, 8 + key.len() + len, out);
                out.extend_from_slice(&[0; 8]);
                out.extend_from_slice(key);
            }
            Self::Resp => {
                out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$");
                push_decimal(key.len(), out);
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(key);
                out.extend_from_slice(b"\r\n$");
                push_decimal(len, out);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// What follows the value of a set request.
    pub(super) const fn set_tail(self) -> &'static [u8] {
        match self {
            Self::Text | Self::Resp => b"\r\n",
            Self::Binary => b"",
        }
    }

    /// What follows the value of a get reply.
    pub(super) const fn value_tail(self) -> &'static [u8] {
        match self {
            Self::Text => b"\r\nEND\r\n",
            Self::Resp => b"\r\n",
            Self::Binary => b"",
        }
    }

    /// Recognises the reply at the start of `input`.
    ///
    /// # Errors
    /// When it is not a reply of the protocol.
    pub(super) fn parse_head(self, operation: Operation, input: &[u8]) -> Result<Head> {
        match self {
            Self::Text => parse_text(operation, input),
            Self::Binary => parse_binary(operation, input),
            Self::Resp => parse_resp(operation, input),
        }
    }
}

fn push_binary_header(opcode: u8, key: usize, extras: u8, body: usize, out: &mut Vec<u8>) {
    let mut header = [0; BINARY_HEADER_LEN];
    header[0] = 0x80;
    header[1] = opcode;
    header[2..4].copy_from_slice(&(key as u16).to_be_bytes());
    header[4] = extras;
    header[8..12].copy_from_slice(&(body as u32).to_be_bytes());
    out.extend_from_slice(&header);
}

fn push_decimal(number: usize, out: &mut Vec<u8>) {
    use std::io::Write as _;
    // Writing into a vector cannot fail.
    let _ = write!(out, "{number}");
}

fn parse_text(operation: Operation, input: &[u8]) -> Result<Head> {
    let Some((line, used)) = split_line(input)? else {
        return Ok(Head::Incomplete);
    };
    match operation {
        Operation::Set if line == b"STORED" => return Ok(Head::Stored { used }),
        Operation::Get if line == b"END" => return Ok(Head::Miss { used }),
        Operation::Get if line.starts_with(b"VALUE ") => {
            let len = line.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
            return Ok(Head::Value {
                used,
                len: parse_decimal(len)?,
            });
        }
        _ => {}
    }
    if [
        &b"SERVER_ERROR"[..],
        b"CLIENT_ERROR",
        b"ERROR",
        b"NOT_STORED",
    ]
    .iter()
    .any(|start| line.starts_with(start))
    {
        return Ok(Head::Refused {
            used,
            message: lossy(line),
        });
    }
    bail!("not a text reply to {operation:?}: {:?}", lossy(line))
}

fn parse_binary(operation: Operation, input: &[u8]) -> Result<Head> {
    let Some(header) = input.first_chunk::<BINARY_HEADER_LEN>() else {
        return Ok(Head::Incomplete);
    };
    let expected = u8::from(operation == Operation::Set);
    if header[0] != BINARY_RESPONSE_MAGIC || header[1] != expected {
        bail!("not a binary reply to {operation:?}: {header:02x?}");
    }
    let key = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let extras = usize::from(header[4]);
    let status = u16::from_be_bytes([header[6], header[7]]);
    let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
    if status == 0 && operation == Operation::Get {
        let used = BINARY_HEADER_LEN + extras + key;
        let len = body
            .checked_sub(extras + key)
            .context("binary lengths contradict each other")?;
        return Ok(if input.len() < used {
            Head::Incomplete
        } else {
            Head::Value { used, len }
        });
    }
    let used = BINARY_HEADER_LEN + body;
    let Some(message) = input.get(BINARY_HEADER_LEN..used) else {
        return Ok(Head::Incomplete);
    };
    Ok(match status {
        0 => Head::Stored { used },
        BINARY_NOT_FOUND if operation == Operation::Get => Head::Miss { used },
        _ => Head::Refused {
            used,
            message: format!("status {status:#06x} {}", lossy(message)),
        },
    })
}

fn parse_resp(operation: Operation, input: &[u8]) -> Result<Head> {
    let Some((line, used)) = split_line(input)? else {
        return Ok(Head::Incomplete);
    };
    match (operation, line) {
        (Operation::Get, b"$-1" | b"_") => Ok(Head::Miss { used }),
        (Operation::Set, b"+OK") => Ok(Head::Stored { used }),
        (Operation::Get, [b'$', len @ ..]) => Ok(Head::Value {
            used,
            len: parse_decimal(len)?,
        }),
        (_, [b'-', message @ ..]) => Ok(Head::Refused {
            used,
            message: lossy(message),
        }),
        _ => bail!("not a RESP reply to {operation:?}: {:?}", lossy(line)),
    }
}

/// The first line without its end, and its length with it.
fn split_line(input: &[u8]) -> Result<Option<(&[u8], usize)>> {
    let window = &input[..input.len().min(LINE_LEN_MAX)];
    match window.iter().position(|&byte| byte == b'\n') {
        Some(end) => {
            let line = &input[..end];
            Ok(Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1)))
        }
        None if input.len() >= LINE_LEN_MAX => bail!("a reply line has no end"),
        None => Ok(None),
    }
}

fn parse_decimal(digits: &[u8]) -> Result<usize> {
    let text = std::str::from_utf8(digits).context("a length is not text")?;
    text.parse()
        .with_context(|| format!("{text:?} is not a length"))
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_replies_are_told_apart() {
        let text = Protocol::Text;
        let value = text
            .parse_head(Operation::Get, b"VALUE k 0 10\r\nabc")
            .unwrap();
        assert_eq!(value, Head::Value { used: 14, len: 10 });
        assert_eq!(
            text.parse_head(Operation::Get, b"END\r\n").unwrap(),
            Head::Miss { used: 5 }
        );
        let stored = text.parse_head(Operation::Set, b"STORED\r\n").unwrap();
        assert_eq!(stored, Head::Stored { used: 8 });
        let refused = text
            .parse_head(Operation::Set, b"SERVER_ERROR too large\r\n")
            .unwrap();
        assert_eq!(
            refused,
            Head::Refused {
                used: 24,
                message: "SERVER_ERROR too large".into()
            }
        );
        assert!(text.parse_head(Operation::Set, b"END\r\n").is_err());
        assert_eq!(
            text.parse_head(Operation::Get, b"VALUE k 0").unwrap(),
            Head::Incomplete
        );
    }

    #[test]
    fn binary_replies_are_told_apart() {
        let mut reply = vec![0; 24 + 4 + 5];
        reply[0] = 0x81;
        reply[4] = 4;
        reply[11] = 9;
        let head = Protocol::Binary.parse_head(Operation::Get, &reply).unwrap();
        assert_eq!(head, Head::Value { used: 28, len: 5 });
        assert_eq!(
            Protocol::Binary
                .parse_head(Operation::Get, &reply[..27])
                .unwrap(),
            Head::Incomplete
        );
        reply[7] = 1;
        let head = Protocol::Binary.parse_head(Operation::Get, &reply).unwrap();
        assert_eq!(head, Head::Miss { used: 33 });
        assert!(Protocol::Binary.parse_head(Operation::Set, &reply).is_err());
    }

    #[test]
    fn resp_replies_are_told_apart() {
        let resp = Protocol::Resp;
        assert_eq!(
            resp.parse_head(Operation::Get, b"$12\r\n").unwrap(),
            Head::Value { used: 5, len: 12 }
        );
        assert_eq!(
            resp.parse_head(Operation::Get, b"$-1\r\n").unwrap(),
            Head::Miss { used: 5 }
        );
        assert_eq!(
            resp.parse_head(Operation::Set, b"+OK\r\n").unwrap(),
            Head::Stored { used: 5 }
        );
        assert!(matches!(
            resp.parse_head(Operation::Set, b"-ERR busy\r\n").unwrap(),
            Head::Refused { used: 11, .. }
        ));
    }

    #[test]
    fn an_endless_line_is_an_error() {
        assert!(
            Protocol::Resp
                .parse_head(Operation::Get, &[b'$'; 4000])
                .is_err()
        );
    }
}
