//! The framing of gRPC: each message follows a byte that says whether it is compressed, and its
//! length in big endian.
//!
//! | offset | size | type | meaning |
//! |---|---|---|---|
//! | 0 | 1 | u8 | 0; 1 for a compressed message, which is not supported |
//! | 1 | 4 | u32, big endian | length of the message |
//! | 5 | length | bytes | the message |

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message;

use crate::error::ReapiError;

/// Longest message that is received: what clients of gRPC send at most, unless they were told
/// otherwise.
pub const MESSAGE_LEN_MAX: usize = 4 << 20;

/// Bytes before a message.
const HEAD_LEN: usize = 5;

/// Bytes that are taken for the first of a message before they have come.
const CAPACITY_MAX: usize = 64 << 10;

/// Field 10 of [`ReadResponse`](crate::messages::ReadResponse), a field with a length.
const READ_DATA_TAG: u8 = 10 << 3 | 2;

/// Cuts messages out of a body as it comes.
#[derive(Debug, Default)]
pub struct Deframer(BytesMut);

impl Deframer {
    /// Takes the next bytes of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.put_slice(bytes);
    }

    /// Bytes that wait for the rest of their message.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no bytes wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next message; `None` until all of it has come. A length that is announced reserves
    /// little.
    ///
    /// # Errors
    /// [`ReapiError`], as soon as the head of the message has come.
    pub fn pull(&mut self) -> Result<Option<Bytes>, ReapiError> {
        let Some(len) = head(&self.0)? else {
            return Ok(None);
        };
        let missing = (HEAD_LEN + len).saturating_sub(self.0.len());
        if missing > 0 {
            self.0.reserve(missing.min(CAPACITY_MAX));
            return Ok(None);
        }
        self.0.advance(HEAD_LEN);
        Ok(Some(self.0.split_to(len).freeze()))
    }
}

/// The length of the message whose head `bytes` begin with; `None` if more has to come.
fn head(bytes: &[u8]) -> Result<Option<usize>, ReapiError> {
    let Some([flag, len @ ..]) = bytes.first_chunk::<HEAD_LEN>() else {
        return Ok(None);
    };
    if *flag != 0 {
        return Err(ReapiError::CompressedMessage);
    }
    let len = u32::from_be_bytes(*len) as usize;
    match len > MESSAGE_LEN_MAX {
        true => Err(too_long(len)),
        false => Ok(Some(len)),
    }
}

fn too_long(len: usize) -> ReapiError {
    ReapiError::TooLong {
        what: "a message",
        len,
        len_max: MESSAGE_LEN_MAX,
    }
}

/// A message with its head.
#[must_use]
pub fn frame(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(HEAD_LEN + len);
    put_head(&mut bytes, len);
    // A buffer that grows takes every message.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// What stands before a message of so many bytes.
#[must_use]
pub fn frame_head(message_len: usize) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEAD_LEN);
    put_head(&mut bytes, message_len);
    bytes.freeze()
}

/// The head of a message of so many bytes.
fn put_head(bytes: &mut BytesMut, len: usize) {
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
}

/// What stands before the data of a [`ReadResponse`](crate::messages::ReadResponse): so the data
/// are sent from where they are.
#[must_use]
pub fn frame_read(data_len: usize) -> Bytes {
    let varint_len = prost::length_delimiter_len(data_len);
    let mut bytes = BytesMut::with_capacity(HEAD_LEN + 1 + varint_len);
    put_head(&mut bytes, 1 + varint_len + data_len);
    bytes.put_u8(READ_DATA_TAG);
    let _ = prost::encode_length_delimiter(data_len, &mut bytes);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::messages::ReadResponse;

    #[test]
    fn the_head_of_a_read_is_the_one_that_its_message_has() {
        for len in [1, 127, 128, 300, 70_000] {
            let data = Bytes::from(vec![7; len]);
            let whole = frame(&ReadResponse { data: data.clone() });
            assert_eq!([frame_read(len), data].concat(), whole.to_vec());
        }
    }

    #[test]
    fn a_length_that_is_announced_reserves_little_and_one_beyond_the_bound_is_refused() {
        let mut deframer = Deframer::default();
        deframer.push(&[0, 0, 0x3f, 0xff, 0xff, 1]);
        assert_eq!(deframer.pull(), Ok(None));
        assert!(deframer.0.capacity() <= 2 * CAPACITY_MAX);
        let mut deframer = Deframer::default();
        deframer.push(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(deframer.pull(), Err(too_long(0xffff_ffff)));
        let mut deframer = Deframer::default();
        deframer.push(&[1, 0, 0, 0, 0]);
        assert_eq!(deframer.pull(), Err(ReapiError::CompressedMessage));
    }

    proptest! {
        #[test]
        fn messages_come_out_however_the_body_is_cut(
            lens in prop::collection::vec(0..300_usize, 0..8),
            step in 1..50_usize,
        ) {
            let messages: Vec<_> = lens.iter().map(|len| Bytes::from(vec![1; *len])).collect();
            let mut body = BytesMut::new();
            for message in &messages {
                put_head(&mut body, message.len());
                body.put_slice(message);
            }
            let (mut deframer, mut found) = (Deframer::default(), Vec::new());
            for part in body.chunks(step) {
                deframer.push(part);
                while let Some(message) = deframer.pull().unwrap() {
                    found.push(message);
                }
            }
            prop_assert!(deframer.is_empty());
            prop_assert_eq!(found, messages);
        }
    }
}
