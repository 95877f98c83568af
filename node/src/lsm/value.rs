//! Values as frames: what goes into a record behind its key.
//!
//! The frame is the codec crate's (`docs/formats/value-frame.md`). A value that is stored verbatim is
//! neither copied into its frame nor out of it.

use bytes::Bytes;

pub(crate) use fonn_codec::frame::is_intact;
use fonn_codec::frame::{ErrorKind, HEADER_LEN};
use fonn_codec::{CodecSpec, Encoding, Frame, FrameError, Verbatim, sniff};

/// Below it, copying a value is cheaper than writing it from where it is.
const COPY_LEN_MAX: usize = 2048;

/// First byte of a frame of the version that is written.
const FRAME_FORMAT: u8 = 0xF1;

/// A value ready to be written: the bytes that were appended to the scratch buffer, and a tail that
/// is written from where it is.
#[derive(Debug)]
pub(crate) struct EncodedValue {
    /// How the value is stored.
    pub(crate) encoding: Encoding,
    /// Length of the whole frame in bytes.
    pub(crate) frame_len: usize,
    /// What follows the bytes in the scratch buffer.
    pub(crate) tail: Bytes,
}

/// Encodes `raw`, appending the frame, or what precedes its tail, to `scratch`. None if it is longer
/// than a frame can be.
pub(crate) fn encode(
    spec: CodecSpec,
    min_bytes: usize,
    raw: &Bytes,
    scratch: &mut Vec<u8>,
) -> Option<EncodedValue> {
    if raw.len() > COPY_LEN_MAX
        && let Some(reason) = reason_to_leave(spec, min_bytes, raw)
    {
        scratch.extend_from_slice(&verbatim_header(reason, raw)?);
        return Some(EncodedValue {
            encoding: Encoding::Verbatim(reason),
            frame_len: HEADER_LEN + raw.len(),
            tail: raw.clone(),
        });
    }
    let encoded = fonn_codec::encode(spec, min_bytes, raw, scratch).ok()?;
    Some(EncodedValue {
        encoding: encoded.encoding,
        frame_len: encoded.frame_len,
        tail: Bytes::new(),
    })
}

/// Why the codec would not even be tried, as [`fonn_codec::encode`] decides it.
fn reason_to_leave(spec: CodecSpec, min_bytes: usize, raw: &[u8]) -> Option<Verbatim> {
    if spec == CodecSpec::none() {
        Some(Verbatim::NoCodec)
    } else if raw.len() < min_bytes {
        Some(Verbatim::BelowThreshold)
    } else if sniff::format(raw).is_some() {
        Some(Verbatim::Recognized)
    } else if sniff::looks_random(raw) {
        Some(Verbatim::LooksRandom)
    } else {
        None
    }
}

/// The header of a verbatim frame. `verbatim_frames_are_the_codec_crates` holds it to the format.
fn verbatim_header(reason: Verbatim, raw: &[u8]) -> Option<[u8; HEADER_LEN]> {
    let len = u32::try_from(raw.len()).ok()?.to_le_bytes();
    let mut header = [0; HEADER_LEN];
    let (checked, checksum) = header.split_last_chunk_mut::<4>()?;
    checked.copy_from_slice(&[[FRAME_FORMAT, 0, reason as u8, 0], len, len].concat());
    *checksum = crc32c::crc32c_append(crc32c::crc32c(checked), raw).to_le_bytes();
    Some(header)
}

/// Why a frame gives no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Undecodable {
    /// The bytes are not those that were written, or no frame.
    Damaged,
    /// They are in order, and need a codec or a format that this build does not have.
    Unsupported(FrameError),
}

/// Verifies a frame and decodes it. A value longer than `len_max` counts as damage. A verbatim value
/// shares `frame`'s memory.
pub(crate) fn decode(frame: &Bytes, len_max: usize) -> Result<Bytes, Undecodable> {
    let parsed = Frame::parse(frame, len_max).map_err(|error| match error.kind() {
        ErrorKind::Unsupported if is_intact(frame) => Undecodable::Unsupported(error),
        _ => Undecodable::Damaged,
    })?;
    let damaged = |_| Undecodable::Damaged;
    parsed.verify().map_err(damaged)?;
    match parsed.verbatim() {
        Some(range) => Ok(frame.slice(range)),
        None => {
            let mut value = Vec::new();
            parsed.decode_into(&mut value).map_err(damaged)?;
            Ok(value.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn frame(spec: CodecSpec, raw: &Bytes) -> (Vec<u8>, Bytes) {
        let mut scratch = Vec::new();
        let encoded = encode(spec, 256, raw, &mut scratch).unwrap();
        assert_eq!(encoded.frame_len, scratch.len() + encoded.tail.len());
        (scratch, encoded.tail)
    }

    #[test]
    fn verbatim_frames_are_the_codec_crates() {
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
        assert_eq!(decode(&head.into(), usize::MAX), Ok(text.clone()));
        let (head, tail) = frame(CodecSpec::none(), &text);
        let stored = Bytes::from([&head[..], &tail].concat());
        let value = decode(&stored, text.len()).unwrap();
        assert_eq!(value, text);
        assert_eq!(value.as_ptr(), stored[HEADER_LEN..].as_ptr());
        assert_eq!(decode(&stored, text.len() - 1), Err(Undecodable::Damaged));
    }

    #[test]
    fn a_damaged_frame_is_none() {
        let (head, tail) = frame(CodecSpec::none(), &random(3000));
        let stored = [&head[..], &tail].concat();
        for at in (0..stored.len()).step_by(7) {
            let mut damaged = stored.clone();
            damaged[at] ^= 0x10;
            assert!(!is_intact(&damaged));
            assert_eq!(
                decode(&damaged.into(), usize::MAX),
                Err(Undecodable::Damaged)
            );
        }
    }
}
