//! Values as frames: what goes into a record behind its key.
//!
//! The frame is the codec crate's (`docs/formats/value-frame.md`). A value that is stored verbatim
//! is neither copied into its frame nor out of it. A large one is encoded and decoded by as many
//! threads as there are idle processors: the writer is one thread, and a client waits for the whole
//! of it.

use bytes::Bytes;

pub(crate) use fonn_codec::frame::is_intact;
use fonn_codec::frame::{ErrorKind, HEADER_LEN, verbatim_header};
use fonn_codec::{Frame, FrameError};

use crate::levels::{IdleCpus, Lent, LevelCodec};

/// Below it, copying a value is cheaper than writing it from where it is.
const COPY_LEN_MAX: usize = 2048;

/// From which length on idle processors help: starting a thread costs 0.1 ms, as much as decoding
/// some 300 KiB.
const SHARED_LEN_MIN: usize = 4 << 20;

/// Bytes of the value for each that helps, at least.
const SHARE_LEN: usize = 2 << 20;

/// A value ready to be written: the bytes that were appended to the scratch buffer, and a tail that
/// is written from where it is.
#[derive(Debug)]
pub(crate) struct EncodedValue {
    /// Length of the whole frame in bytes.
    pub(crate) frame_len: usize,
    /// What follows the bytes in the scratch buffer.
    pub(crate) tail: Bytes,
    /// Threads that encoded it.
    pub(crate) threads: usize,
}

/// A value that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    pub(crate) value: Bytes,
    /// Threads that decoded it.
    pub(crate) threads: usize,
}

/// Those that help with a value of `len` bytes.
fn helpers(len: usize, idle: &IdleCpus) -> Lent<'_> {
    let wanted = if len < SHARED_LEN_MIN {
        0
    } else {
        len / SHARE_LEN - 1
    };
    idle.lend(wanted)
}

/// Encodes `raw` with the codec of a level, if it is not shorter than the bytes beside that;
/// appends the frame, or what precedes its tail, to `scratch`. None if it is longer than a frame
/// can be.
pub(crate) fn encode(
    level: &LevelCodec,
    raw: &Bytes,
    scratch: &mut Vec<u8>,
    idle: &IdleCpus,
) -> Option<EncodedValue> {
    let attempt = level.plan(raw).and_then(|spec| {
        let lent = helpers(raw.len(), idle);
        let threads = 1 + lent.count();
        let encoded = level.attempt(spec, raw, threads, scratch)?;
        Ok((encoded, threads))
    });
    let reason = match attempt {
        Ok((encoded, threads)) => {
            return Some(EncodedValue {
                frame_len: encoded.frame_len,
                tail: Bytes::new(),
                threads,
            });
        }
        Err(reason) => reason,
    };
    let tail = if raw.len() > COPY_LEN_MAX {
        scratch.extend_from_slice(&verbatim_header(reason, raw).ok()?);
        raw.clone()
    } else {
        fonn_codec::encode_verbatim(reason, raw, scratch).ok()?;
        Bytes::new()
    };
    level.left(reason, raw.len());
    Some(EncodedValue {
        frame_len: HEADER_LEN + raw.len(),
        tail,
        threads: 1,
    })
}

/// Why a frame gives no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Undecodable {
    /// The bytes are not those that were written, or no frame.
    Damaged,
    /// They are in order, and need a codec or a format that this build does not have.
    Unsupported(FrameError),
}

/// Verifies a frame and decodes it. A value longer than `len_max` counts as damage. A verbatim
/// value shares `frame`'s memory.
pub(crate) fn decode(
    frame: &Bytes,
    len_max: usize,
    idle: &IdleCpus,
) -> Result<Decoded, Undecodable> {
    let parsed = Frame::parse(frame, len_max).map_err(|error| match error.kind() {
        ErrorKind::Unsupported if is_intact(frame) => Undecodable::Unsupported(error),
        _ => Undecodable::Damaged,
    })?;
    let damaged = |_| Undecodable::Damaged;
    parsed.verify().map_err(damaged)?;
    if let Some(range) = parsed.verbatim() {
        let value = frame.slice(range);
        return Ok(Decoded { value, threads: 1 });
    }
    let lent = helpers(parsed.original_len(), idle);
    let threads = 1 + lent.count();
    let mut value = Vec::new();
    parsed.decode_shared(threads, &mut value).map_err(damaged)?;
    let value = value.into();
    Ok(Decoded { value, threads })
}

#[cfg(test)]
mod tests {
    use fonn_codec::{CodecSpec, Encoding};

    use super::*;
    use crate::levels::{CodecChoice, Level};

    fn random(len: usize) -> Bytes {
        let mut state = 88_172_645_463_325_252_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        };
        (0..len).map(|_| next()).collect::<Vec<_>>().into()
    }

    fn level(spec: CodecSpec) -> LevelCodec {
        LevelCodec::new(Level::Fresh, CodecChoice::Fixed(spec), 256)
    }

    fn frame(spec: CodecSpec, raw: &Bytes) -> (Vec<u8>, Bytes) {
        let mut scratch = Vec::new();
        let idle = IdleCpus::default();
        let encoded = encode(&level(spec), raw, &mut scratch, &idle).unwrap();
        assert_eq!(encoded.frame_len, scratch.len() + encoded.tail.len());
        (scratch, encoded.tail)
    }

    fn decoded(frame: impl Into<Bytes>, len_max: usize) -> Result<Bytes, Undecodable> {
        decode(&frame.into(), len_max, &IdleCpus::default()).map(|decoded| decoded.value)
    }

    #[test]
    fn a_frame_with_a_tail_has_the_bytes_of_one_without() {
        let zip = [b"PK\x03\x04".to_vec(), vec![0; 5000]].concat();
        for raw in [
            random(0),
            random(100),
            random(5000),
            random(200_000),
            zip.into(),
        ] {
            for spec in [CodecSpec::none(), "lz4".parse().unwrap()] {
                let mut expected = Vec::new();
                fonn_codec::encode(spec, 256, &raw, &mut expected).unwrap();
                let (head, tail) = frame(spec, &raw);
                assert_eq!([&head[..], &tail].concat(), expected);
                let is_copied = raw.len() <= COPY_LEN_MAX;
                assert!(is_copied || !tail.is_empty() || spec != CodecSpec::none());
            }
        }
    }

    #[test]
    fn values_decode_to_what_they_were_and_verbatim_ones_without_a_copy() {
        let text: Bytes = b"the same again and again, ".repeat(1000).into();
        let (head, tail) = frame("lz4".parse().unwrap(), &text);
        assert!(tail.is_empty() && head.len() < text.len() / 2);
        assert_eq!(decoded(head, usize::MAX), Ok(text.clone()));
        let (head, tail) = frame(CodecSpec::none(), &text);
        let stored = Bytes::from([&head[..], &tail].concat());
        let value = decoded(stored.clone(), text.len()).unwrap();
        assert_eq!(value, text);
        assert_eq!(value.as_ptr(), stored[HEADER_LEN..].as_ptr());
        assert_eq!(decoded(stored, text.len() - 1), Err(Undecodable::Damaged));
    }

    #[test]
    fn a_damaged_frame_is_none() {
        let (head, tail) = frame(CodecSpec::none(), &random(3000));
        let stored = [&head[..], &tail].concat();
        for at in (0..stored.len()).step_by(7) {
            let mut damaged = stored.clone();
            damaged[at] ^= 0x10;
            assert!(!is_intact(&damaged));
            assert_eq!(decoded(damaged, usize::MAX), Err(Undecodable::Damaged));
        }
    }

    #[test]
    fn idle_processors_help_with_large_values_and_the_bytes_are_the_same() {
        let spec: CodecSpec = "lz4".parse().unwrap();
        let idle = IdleCpus::default();
        for (len, idle_count, threads) in [
            (SHARED_LEN_MIN - 1, 8, 1),
            (SHARED_LEN_MIN, 8, 2),
            (8 << 20, 8, 4),
            (8 << 20, 1, 2),
            (8 << 20, 0, 1),
        ] {
            idle.set(idle_count);
            let text = b"over and over, and a little different; ".iter().copied();
            let raw: Bytes = text.cycle().take(len).collect::<Vec<_>>().into();
            let mut shared = Vec::new();
            let encoded = encode(&level(spec), &raw, &mut shared, &idle).unwrap();
            assert_eq!(encoded.threads, threads, "{len} bytes, {idle_count} idle");
            let frame = Frame::parse(&shared, usize::MAX).unwrap();
            assert_eq!(frame.encoding(), Encoding::Compressed(spec));
            let mut alone = Vec::new();
            fonn_codec::encode(spec, 256, &raw, &mut alone).unwrap();
            assert!(shared == alone, "{len} bytes, {idle_count} idle");
            let decoded = decode(&shared.into(), usize::MAX, &idle).unwrap();
            assert_eq!(decoded.threads, threads, "{len} bytes, {idle_count} idle");
            assert!(decoded.value == raw, "{len} bytes, {idle_count} idle");
            assert_eq!(idle.lend(9).count(), idle_count, "all came back");
        }
    }

    #[test]
    fn what_is_stored_verbatim_needs_no_helper() {
        let idle = IdleCpus::default();
        idle.set(8);
        let raw = random(SHARED_LEN_MIN);
        let mut head = Vec::new();
        let lz4 = level("lz4".parse().unwrap());
        let encoded = encode(&lz4, &raw, &mut head, &idle).unwrap();
        assert_eq!(encoded.threads, 1);
        let stored = Bytes::from([&head[..], &encoded.tail].concat());
        let decoded = decode(&stored, usize::MAX, &idle).unwrap();
        assert_eq!((decoded.value, decoded.threads), (raw, 1));
    }
}
