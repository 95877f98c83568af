//! The form in which a value goes to the bucket.

use bytes::Bytes;
use fonn_codec::frame::{Encoding, ErrorKind, FrameError, Verbatim, is_intact};
use fonn_codec::{CodecId, CodecSpec, Encoded, Frame};

use crate::codec::ValueCodec;

/// Gives the frame for the bucket: the same bytes where nothing would be gained, that is, if it has
/// that codec already, does not shrink or is known not to, or no codec is asked for; and where this
/// build cannot decode it, so that others can.
///
/// # Errors
/// [`FrameError`]: it is damaged or of a value of more than `limit` bytes. A wrong byte must not be
/// given a right checksum.
pub(crate) fn recode(
    frame: &Bytes,
    codec: &dyn ValueCodec,
    limit: usize,
) -> Result<Bytes, FrameError> {
    let parsed = match Frame::parse(frame, limit) {
        Err(error) if error.kind() == ErrorKind::Unsupported && is_intact(frame) => {
            return Ok(frame.clone());
        }
        parsed => parsed?,
    };
    parsed.verify()?;
    let len = parsed.original_len();
    let (spec, min_bytes) = codec.active();
    let stays = len < min_bytes || !is_worth_trying(parsed.encoding(), spec);
    let is_wanted = codec.wants(len);
    let mut recoded = None;
    let mut failure = None;
    codec.run(len, &mut || {
        let as_it_is = Encoded {
            encoding: parsed.encoding(),
            original_len: len,
            frame_len: frame.len(),
        };
        if stays && !is_wanted {
            return Some(as_it_is);
        }
        let mut decoded = Vec::new();
        let raw = match parsed.verbatim() {
            Some(range) => frame.get(range).unwrap_or_default(),
            None => {
                if let Err(error) = parsed.decode_into(&mut decoded) {
                    failure = Some(error);
                    return None;
                }
                decoded.as_slice()
            }
        };
        if is_wanted {
            codec.sample(raw);
        }
        if stays {
            return Some(as_it_is);
        }
        let mut out = Vec::new();
        let encoded = match fonn_codec::reason_to_leave(spec, min_bytes, raw) {
            None => fonn_codec::compress(spec, raw, 1, &mut out),
            Some(reason) => Err(reason),
        };
        match encoded {
            Ok(encoded) if encoded.frame_len < frame.len() => {
                out.shrink_to_fit();
                recoded = Some(Bytes::from(out));
                Some(encoded)
            }
            _ => Some(as_it_is),
        }
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(recoded.unwrap_or_else(|| frame.clone())),
    }
}

/// Whether a value stored in one way may become shorter with `spec`.
fn is_worth_trying(encoding: Encoding, spec: CodecSpec) -> bool {
    spec.id() != CodecId::NONE
        && match encoding {
            Encoding::Compressed(present) => present.id() != spec.id(),
            Encoding::Verbatim(reason) => match reason {
                Verbatim::NoCodec | Verbatim::BelowThreshold => true,
                Verbatim::Recognized | Verbatim::LooksRandom | Verbatim::DidNotShrink => false,
            },
        }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::codec::FixedCodec;
    use fonn_codec::checksum;

    fn fixed(spec: CodecSpec) -> FixedCodec {
        FixedCodec {
            spec,
            min_bytes: 256,
        }
    }

    fn frame(spec: &str, raw: &[u8]) -> Bytes {
        let mut out = Vec::new();
        fonn_codec::encode(spec.parse().unwrap(), 16, raw, &mut out).unwrap();
        out.into()
    }

    #[test]
    fn values_change_their_codec_and_stay_the_same() {
        let raw = b"compressible ".repeat(1000);
        let plain = frame("none", &raw);
        let packed = recode(&plain, &fixed("zstd".parse().unwrap()), 1 << 20).unwrap();
        assert!(packed.len() < plain.len() / 10);
        let mut back = Vec::new();
        Frame::parse(&packed, 1 << 20)
            .unwrap()
            .decode_into(&mut back)
            .unwrap();
        assert_eq!(back, raw);
        let again = recode(&packed, &fixed("zstd".parse().unwrap()), 1 << 20).unwrap();
        assert_eq!(again.as_ptr(), packed.as_ptr());
        let none = recode(&packed, &fixed(CodecSpec::none()), 1 << 20).unwrap();
        assert_eq!(none.as_ptr(), packed.as_ptr());
    }

    #[test]
    fn what_does_not_become_shorter_keeps_its_bytes() {
        let text = b"compressible, and a little different each time; ".repeat(1000);
        // Not known to be random: it was not looked at.
        let noise: Vec<u8> = (0..700_u64)
            .flat_map(|at| {
                at.wrapping_mul(0x9E37_79B9_7F4A_7C15)
                    .rotate_left(23)
                    .to_le_bytes()
            })
            .collect();
        for (present, raw, wanted) in [("zstd:19", &text, "lz4"), ("none", &noise, "zstd")] {
            let before = frame(present, raw);
            let after = recode(&before, &fixed(wanted.parse().unwrap()), 1 << 20).unwrap();
            assert_eq!(after.as_ptr(), before.as_ptr(), "{present} to {wanted}");
        }
    }

    #[test]
    fn a_damaged_frame_is_refused() {
        let mut bytes = frame("none", &[7; 500]).to_vec();
        bytes[100] ^= 1;
        let damaged = Bytes::from(bytes);
        assert!(recode(&damaged, &fixed("zstd".parse().unwrap()), 1 << 20).is_err());
        assert!(recode(&damaged, &fixed(CodecSpec::none()), 1 << 20).is_err());
    }

    /// A frame of a codec that no build has: what a later one may write.
    fn unknown_frame() -> Vec<u8> {
        let mut bytes = vec![0xF1, 0xEE, 0, 0, 200, 0, 0, 0, 100, 0, 0, 0];
        let payload = [7; 100];
        let checksum = checksum::crc32c_append(checksum::crc32c(&bytes), &payload);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(&payload);
        bytes
    }

    #[test]
    fn what_only_another_build_can_decode_goes_as_it_is_unless_it_is_damaged() {
        let bytes = Bytes::from(unknown_frame());
        let codec = fixed("zstd".parse().unwrap());
        let same = recode(&bytes, &codec, 1 << 20).unwrap();
        assert_eq!(same, bytes);
        let mut damaged = bytes.to_vec();
        damaged[50] ^= 1;
        assert!(recode(&damaged.into(), &codec, 1 << 20).is_err());
    }

    /// Wants every value, and notes what it gets.
    #[derive(Debug, Default)]
    struct Curious {
        samples: Mutex<Vec<Vec<u8>>>,
        encoded: Mutex<Vec<Encoded>>,
    }

    impl ValueCodec for Curious {
        fn active(&self) -> (CodecSpec, usize) {
            ("lz4".parse().unwrap(), 256)
        }

        fn wants(&self, _: usize) -> bool {
            true
        }

        fn sample(&self, value: &[u8]) {
            self.samples.lock().push(value.to_vec());
        }

        fn run(&self, _: usize, encode: &mut dyn FnMut() -> Option<Encoded>) -> Option<Encoded> {
            let encoded = encode();
            self.encoded.lock().extend(encoded);
            encoded
        }
    }

    #[test]
    fn values_are_sampled_as_they_were_also_where_they_stay() {
        let raw = b"compressible ".repeat(1000);
        let codec = Curious::default();
        for spec in ["none", "lz4", "zstd"] {
            recode(&frame(spec, &raw), &codec, 1 << 20).unwrap();
        }
        let encoded = codec.encoded.lock();
        assert_eq!(encoded.len(), 3);
        assert!(encoded.iter().all(|it| it.frame_len < raw.len() / 10));
        assert_eq!(*codec.samples.lock(), [&raw[..], &raw, &raw]);
    }
}
