//! A record that is still coming: checked and decoded piece by piece.
//!
//! What it holds is the decoded value, and a stored block of it that is not complete. Nothing is
//! given out before the last byte: the checksums of record and frame cover all of it, and a block
//! has none of its own.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use bytes::Bytes;
use fonn_codec::frame::{BLOCK_LEN, ErrorKind, FrameStream, HEADER_LEN as FRAME_HEADER_LEN};
use fonn_codec::{FrameError, checksum};

use crate::segment::record::{CHECKSUM_LEN, Head};
use crate::segment::{Fact, Facts, RECORD_HEAD_LEN, Version};

/// What the caller expects of a record.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The keyspace: namespace × 16 + database.
    pub space: u32,
    /// The key.
    pub key: &'a [u8],
    /// The version.
    pub at: Version,
    /// Bytes of the record.
    pub record_len: usize,
    /// Longest value that is taken, in bytes.
    pub value_len_max: usize,
}

/// An entry that has come as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColdEntry {
    /// Its version.
    pub at: Version,
    /// What is known of it besides its bytes.
    pub facts: Facts,
    /// The value, decoded.
    pub value: Bytes,
    /// The value's frame where it is compressed and has at most [`BLOCK_LEN`] bytes, to be kept in
    /// another tier as it is. That of a longer one would be in memory beside it.
    pub frame: Option<Bytes>,
}

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// It is not the record that is wanted, or not as it was written.
    Damaged,
    /// It is, and in a form that this build cannot decode.
    Foreign(FrameError),
}

/// A record of which a part is there.
#[derive(Debug)]
pub struct RecordStream<'a> {
    wanted: Wanted<'a>,
    /// Bytes that are to come.
    left: usize,
    /// That of what has come behind the checksum itself.
    checksum: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Head, key and the frame's header, as far as they are there.
    Start(Vec<u8>),
    Frame {
        stored_checksum: u32,
        facts: Facts,
        stream: Box<FrameStream>,
        /// The frame as it comes, if it is short.
        frame: Option<Vec<u8>>,
    },
}

impl<'a> RecordStream<'a> {
    /// Nothing is there yet.
    #[must_use]
    pub fn new(wanted: Wanted<'a>) -> Self {
        Self {
            wanted,
            left: wanted.record_len,
            checksum: 0,
            state: State::Start(Vec::new()),
        }
    }

    /// Bytes of the value, once the record has come so far that it says so.
    #[must_use]
    pub fn value_len(&self) -> Option<usize> {
        match &self.state {
            State::Start(_) => None,
            State::Frame { stream, .. } => Some(stream.value_len()),
        }
    }

    /// Bytes that are missing until [`RecordStream::value_len`] is known.
    #[must_use]
    pub fn start_missing(&self) -> usize {
        match &self.state {
            State::Start(start) => self.start_len().saturating_sub(start.len()),
            State::Frame { .. } => 0,
        }
    }

    /// Bytes of head, key and the frame's header.
    fn start_len(&self) -> usize {
        RECORD_HEAD_LEN
            .saturating_add(self.wanted.key.len())
            .saturating_add(FRAME_HEADER_LEN)
    }

    /// Takes the next bytes, of any number.
    ///
    /// # Errors
    /// [`StreamError::Damaged`]. The stream is of no use then.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), StreamError> {
        self.left = self
            .left
            .checked_sub(piece.len())
            .ok_or(StreamError::Damaged)?;
        let mut rest = piece;
        let missing = self.start_missing();
        if let State::Start(start) = &mut self.state {
            let (front, back) = rest.split_at(missing.min(rest.len()));
            start.extend_from_slice(front);
            rest = back;
            if front.len() < missing {
                return Ok(());
            }
            let start = std::mem::take(start);
            self.begin_frame(&start)?;
        }
        self.checksum = checksum::crc32c_append(self.checksum, rest);
        if let State::Frame { stream, frame, .. } = &mut self.state {
            stream.feed(rest).map_err(|_| StreamError::Damaged)?;
            if let Some(frame) = frame {
                frame.extend_from_slice(rest);
            }
        }
        Ok(())
    }

    /// Head, key and the frame's header are there.
    fn begin_frame(&mut self, start: &[u8]) -> Result<(), StreamError> {
        let Wanted {
            space,
            key,
            at,
            record_len,
            value_len_max,
        } = self.wanted;
        let head = Head::parse(start).map_err(|_| StreamError::Damaged)?;
        let (_, checked) = start
            .split_at_checked(CHECKSUM_LEN)
            .ok_or(StreamError::Damaged)?;
        self.checksum = checksum::crc32c(checked);
        let (keyed, frame) = start
            .split_at_checked(RECORD_HEAD_LEN.saturating_add(key.len()))
            .ok_or(StreamError::Damaged)?;
        let is_wanted = (head.space, head.at) == (space, at)
            && head.key_len == key.len()
            && head.record_len() == record_len
            && keyed.ends_with(key);
        let facts = match head.fact(&[]) {
            Ok(Fact::Put { facts, .. }) if is_wanted => facts,
            _ => return Err(StreamError::Damaged),
        };
        let frame_len = head.frame_len;
        let stream = FrameStream::begin(frame, frame_len, value_len_max)
            .map_err(|_| StreamError::Damaged)?;
        // Of a value that is not compressed it is the value itself.
        let is_kept = frame_len <= BLOCK_LEN
            && frame_len < stream.value_len().saturating_add(FRAME_HEADER_LEN);
        self.state = State::Frame {
            stored_checksum: head.checksum,
            facts,
            stream: Box::new(stream),
            frame: is_kept.then(|| {
                let mut kept = Vec::with_capacity(frame_len);
                kept.extend_from_slice(frame);
                kept
            }),
        };
        Ok(())
    }

    /// The value, once all bytes were fed.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn finish(self) -> Result<ColdEntry, StreamError> {
        let State::Frame {
            stored_checksum,
            facts,
            stream,
            frame,
        } = self.state
        else {
            return Err(StreamError::Damaged);
        };
        if self.left > 0 || self.checksum != stored_checksum {
            return Err(StreamError::Damaged);
        }
        let value = stream.finish().map_err(|error| match error.kind() {
            ErrorKind::Unsupported => StreamError::Foreign(error),
            ErrorKind::Corrupt => StreamError::Damaged,
        })?;
        Ok(ColdEntry {
            at: self.wanted.at,
            facts,
            value: value.into(),
            frame: frame.map(Bytes::from),
        })
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)] // Of small numbers, known to the tests.
mod tests {
    use fonn_codec::Frame;
    use fonn_codec::frame::is_intact;
    use proptest::prelude::*;

    use super::*;
    use crate::segment::Record;

    const AT: Version = 7;

    fn framed(codec: &str, value: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        fonn_codec::encode(codec.parse().unwrap(), 16, value, &mut frame).unwrap();
        frame
    }

    fn record(key: &[u8], frame: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Record {
            space: 3,
            key,
            at: AT,
            fact: Fact::Put {
                facts: Facts::default(),
                frame,
            },
        }
        .encode_into(&mut out);
        out
    }

    fn wanted(bytes: &[u8]) -> Wanted<'static> {
        Wanted {
            space: 3,
            key: b"key",
            at: AT,
            record_len: bytes.len(),
            value_len_max: 1 << 20,
        }
    }

    fn stream(wanted: Wanted<'_>, bytes: &[u8], lens: &[usize]) -> Result<ColdEntry, StreamError> {
        let mut stream = RecordStream::new(wanted);
        let mut rest = bytes;
        for len in lens.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*len).clamp(1, rest.len()));
            stream.feed(piece)?;
            rest = after;
        }
        stream.finish()
    }

    /// What a reader makes of a record that is there at once.
    fn at_once(wanted: Wanted<'_>, bytes: &[u8]) -> Result<(Facts, Vec<u8>), StreamError> {
        let damaged = |_| StreamError::Damaged;
        let record = Record::decode(bytes).map_err(|_| StreamError::Damaged)?;
        let Fact::Put { facts, frame } = record.fact else {
            return Err(StreamError::Damaged);
        };
        if (record.space, record.key, record.at) != (wanted.space, wanted.key, wanted.at) {
            return Err(StreamError::Damaged);
        }
        let parsed = Frame::parse(frame, wanted.value_len_max).map_err(|error| {
            if error.kind() == ErrorKind::Unsupported && is_intact(frame) {
                StreamError::Foreign(error)
            } else {
                StreamError::Damaged
            }
        })?;
        parsed.verify().map_err(damaged)?;
        let mut value = Vec::new();
        parsed.decode_into(&mut value).map_err(damaged)?;
        Ok((facts, value))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn any_split_gives_what_the_whole_gives(
            codec in prop_oneof![Just("none"), Just("lz4"), Just("zstd")],
            value in (prop_oneof![0..300usize, 0..300_000usize], 1..50u8).prop_map(|(len, step)| {
                (0..len).map(|at| (at / 3 % 251) as u8 ^ step).collect::<Vec<u8>>()
            }),
            lens in proptest::collection::vec(prop_oneof![1..90usize, 1..200_000usize], 1..5),
            damage in proptest::option::of((any::<prop::sample::Index>(), 1..=255u8)),
        ) {
            let frame = framed(codec, &value);
            let mut bytes = record(b"key", &frame);
            if let Some((at, bits)) = damage {
                let at = at.index(bytes.len());
                bytes[at] ^= bits;
            }
            let streamed = stream(wanted(&bytes), &bytes, &lens);
            if let Ok(received) = &streamed {
                let is_kept = frame.len() <= BLOCK_LEN && frame.len() < value.len() + FRAME_HEADER_LEN;
                prop_assert_eq!(received.frame.as_deref(), is_kept.then_some(&frame[..]));
            }
            let streamed = streamed.map(|received| (received.facts, received.value.to_vec()));
            prop_assert_eq!(streamed, at_once(wanted(&bytes), &bytes));
        }
    }

    #[test]
    fn only_the_record_that_was_asked_for_is_taken() {
        let bytes = record(b"key", &framed("zstd", &[9; 5000]));
        let take = |wanted: Wanted<'_>| stream(wanted, &bytes, &[7]).map(|it| it.value);
        let right = wanted(&bytes);
        assert_eq!(take(right), Ok(vec![9; 5000].into()));
        let later = AT + 1;
        for wrong in [
            Wanted {
                key: b"yek",
                ..right
            },
            Wanted {
                key: b"ke",
                ..right
            },
            Wanted {
                key: b"keyy",
                ..right
            },
            Wanted { space: 2, ..right },
            Wanted { at: later, ..right },
            Wanted {
                value_len_max: 4999,
                ..right
            },
            Wanted {
                record_len: bytes.len() - 1,
                ..right
            },
            Wanted {
                record_len: bytes.len() + 1,
                ..right
            },
        ] {
            assert_eq!(take(wrong), Err(StreamError::Damaged), "{wrong:?}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            let taken = stream(right, &damaged, &[50]);
            assert_eq!(taken, Err(StreamError::Damaged), "byte {at}");
        }
        let cut = stream(right, &bytes[..bytes.len() - 1], &[50]);
        assert_eq!(cut, Err(StreamError::Damaged));
        let mut tombstone = Vec::new();
        Record {
            space: 3,
            key: b"key",
            at: AT,
            fact: Fact::Tombstone,
        }
        .encode_into(&mut tombstone);
        let taken = stream(wanted(&tombstone), &tombstone, &[50]);
        assert_eq!(taken, Err(StreamError::Damaged));
    }

    #[test]
    fn what_is_in_order_and_cannot_be_decoded_is_not_damage() {
        // A codec id that no build has, in a frame and a record that are in order.
        let mut frame = vec![0xF1, 0xEE, 0, 0, 200, 0, 0, 0, 100, 0, 0, 0];
        let payload = [7; 100];
        let checksum = checksum::crc32c_append(checksum::crc32c(&frame), &payload);
        frame.extend_from_slice(&checksum.to_le_bytes());
        frame.extend_from_slice(&payload);
        let bytes = record(b"key", &frame);
        let foreign = StreamError::Foreign(FrameError::UnknownCodec { id: 0xEE });
        assert_eq!(stream(wanted(&bytes), &bytes, &[11]), Err(foreign));
        // The same with a wrong byte is damage, whatever the record's checksum says.
        frame[40] ^= 1;
        let bytes = record(b"key", &frame);
        let taken = stream(wanted(&bytes), &bytes, &[11]);
        assert_eq!(taken, Err(StreamError::Damaged));
    }

    #[test]
    fn what_a_value_takes_is_known_before_it_comes() {
        let bytes = record(b"key", &framed("zstd", &[9; 500_000]));
        let start = RECORD_HEAD_LEN + 3 + FRAME_HEADER_LEN;
        let mut stream = RecordStream::new(wanted(&bytes));
        stream.feed(&bytes[..start - 1]).unwrap();
        assert_eq!((stream.value_len(), stream.start_missing()), (None, 1));
        stream.feed(&bytes[start - 1..start]).unwrap();
        assert_eq!(stream.value_len(), Some(500_000));
    }
}
