//! What ccache and its storage helper say to each other (ccache's
//! `doc/remote_storage_helper_spec.md`, version 1). Integers are in the byte order of the host.
//!
//! | request | bytes | reply |
//! |---|---|---|
//! | get | `00`, key | `00`, u64 length, value; or `01`: there is none |
//! | put | `01`, key, u8 flags, u64 length, value | `00`; or `01`: it is not stored |
//! | remove | `02`, key | `00`; or `01`: there was none |
//! | stop | `03` | `00` |
//! | info | `04` | u8 length, name; u8 count, and for each a u8 length and a line |
//! | exists | `05`, key | `00`, u8: 0 or 1 |
//!
//! A key is a u8 length and its bytes. Each reply but that of info may be `02`, a u8 length and a
//! message. In flags, bit 0 says that an older value is replaced.

use bytes::{BufMut as _, BytesMut};

/// Longest head of a request in bytes: that of a put, without its value.
pub(crate) const HEAD_LEN_MAX: usize = 2 + u8::MAX as usize + 1 + 8;

/// Version 1 with three capabilities: get, put and remove; info; exists.
pub(crate) const GREETING: [u8; 5] = [1, 3, 0, 1, 2];

/// It was done.
pub(crate) const OK: u8 = 0;
/// It was not done: a miss, or a value that is not stored.
pub(crate) const NOOP: u8 = 1;
const ERROR: u8 = 2;

/// A request; a put is followed by its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Get {
        key: Vec<u8>,
    },
    Put {
        key: Vec<u8>,
        mode: PutMode,
        value_len: u64,
    },
    Remove {
        key: Vec<u8>,
    },
    Stop,
    Info,
    Exists {
        key: Vec<u8>,
    },
}

/// What a put does where there is a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutMode {
    Replace,
    Keep,
}

/// The bytes are no request. The connection cannot go on, because the end of it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown request {0}; expected 0 to 5")]
pub(crate) struct Malformed(pub(crate) u8);

impl Request {
    /// The request at the beginning of `bytes`, and its length without a value. None if more bytes
    /// are needed.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let Some((&code, rest)) = bytes.split_first() else {
            return Ok(None);
        };
        match code {
            3 => return Ok(Some((Self::Stop, 1))),
            4 => return Ok(Some((Self::Info, 1))),
            0..=2 | 5 => (),
            _ => return Err(Malformed(code)),
        }
        let Some((key, rest)) = key(rest) else {
            return Ok(None);
        };
        let key = key.to_vec();
        let request = match code {
            0 => Self::Get { key },
            2 => Self::Remove { key },
            5 => Self::Exists { key },
            _ => {
                let Some((&[flags], rest)) = rest.split_first_chunk() else {
                    return Ok(None);
                };
                let Some((&value_len, rest)) = rest.split_first_chunk() else {
                    return Ok(None);
                };
                let put = Self::Put {
                    key,
                    mode: match flags & 1 {
                        0 => PutMode::Keep,
                        _ => PutMode::Replace,
                    },
                    value_len: u64::from_ne_bytes(value_len),
                };
                return Ok(Some((put, bytes.len() - rest.len())));
            }
        };
        Ok(Some((request, bytes.len() - rest.len())))
    }
}

/// A key, and what is behind it.
fn key(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    rest.split_at_checked(len.into())
}

/// What is before the value of a get.
pub(crate) fn value_head(value_len: usize) -> [u8; 9] {
    let mut head = [OK; 9];
    head[1..].copy_from_slice(&(value_len as u64).to_ne_bytes());
    head
}

/// A reply that something failed.
pub(crate) fn error(text: &str) -> BytesMut {
    let mut reply = BytesMut::new();
    reply.put_u8(ERROR);
    put_message(&mut reply, text);
    reply
}

/// The reply to info; no more than 255 lines of it.
pub(crate) fn info(identity: &str, lines: &[String]) -> BytesMut {
    let lines = &lines[..lines.len().min(u8::MAX.into())];
    let mut reply = BytesMut::new();
    put_message(&mut reply, identity);
    reply.put_u8(lines.len() as u8);
    for line in lines {
        put_message(&mut reply, line);
    }
    reply
}

/// A text behind its length, cut between two characters to what the length can say.
fn put_message(to: &mut BytesMut, text: &str) {
    let mut len = text.len().min(u8::MAX.into());
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    to.put_u8(len as u8);
    to.put_slice(&text.as_bytes()[..len]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As ccache writes it.
    fn encode(request: &Request) -> Vec<u8> {
        let with_key = |code: u8, key: &[u8]| {
            let mut bytes = vec![code, key.len() as u8];
            bytes.extend_from_slice(key);
            bytes
        };
        match request {
            Request::Get { key } => with_key(0, key),
            Request::Put {
                key,
                mode,
                value_len,
            } => {
                let mut bytes = with_key(1, key);
                bytes.push(u8::from(*mode == PutMode::Replace));
                bytes.extend_from_slice(&value_len.to_ne_bytes());
                bytes
            }
            Request::Remove { key } => with_key(2, key),
            Request::Stop => vec![3],
            Request::Info => vec![4],
            Request::Exists { key } => with_key(5, key),
        }
    }

    fn request() -> impl Strategy<Value = Request> {
        let key = || prop::collection::vec(any::<u8>(), 0..=255);
        let mode = prop_oneof![Just(PutMode::Keep), Just(PutMode::Replace)];
        prop_oneof![
            key().prop_map(|key| Request::Get { key }),
            (key(), mode, any::<u64>()).prop_map(|(key, mode, value_len)| Request::Put {
                key,
                mode,
                value_len
            }),
            key().prop_map(|key| Request::Remove { key }),
            Just(Request::Stop),
            Just(Request::Info),
            key().prop_map(|key| Request::Exists { key }),
        ]
    }

    proptest! {
        #[test]
        fn a_request_is_read_as_it_was_written(request in request(), next in any::<[u8; 3]>()) {
            let mut bytes = encode(&request);
            let len = bytes.len();
            prop_assert!(len <= HEAD_LEN_MAX);
            for part in 0..len {
                prop_assert_eq!(Request::parse(&bytes[..part]), Ok(None));
            }
            bytes.extend_from_slice(&next);
            prop_assert_eq!(Request::parse(&bytes), Ok(Some((request, len))));
        }

        #[test]
        fn messages_fit_their_lengths(text in ".*", lines in prop::collection::vec(".{0,300}", 0..300)) {
            let reply = error(&text);
            prop_assert_eq!(reply.len(), 2 + usize::from(reply[1]));
            prop_assert!(text.starts_with(std::str::from_utf8(&reply[2..]).unwrap()));
            let reply = info(&text, &lines);
            let mut rest = &reply[1 + usize::from(reply[0])..];
            let count = rest[0];
            rest = &rest[1..];
            prop_assert_eq!(usize::from(count), lines.len().min(255));
            for line in lines.iter().take(255) {
                let (said, behind) = key(rest).unwrap();
                prop_assert!(line.starts_with(std::str::from_utf8(said).unwrap()));
                rest = behind;
            }
            prop_assert!(rest.is_empty());
        }
    }

    #[test]
    fn other_bytes_are_no_request() {
        assert_eq!(Request::parse(&[6, 0]), Err(Malformed(6)));
        assert_eq!(Request::parse(b"GET / HTTP/1.1"), Err(Malformed(b'G')));
        // Flags that are not known yet change nothing.
        let bytes = [&[1, 1, b'k', 0xfe][..], &9_u64.to_ne_bytes()].concat();
        let put = Request::Put {
            key: b"k".to_vec(),
            mode: PutMode::Keep,
            value_len: 9,
        };
        assert_eq!(Request::parse(&bytes), Ok(Some((put, bytes.len()))));
    }
}
