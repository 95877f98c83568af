//! The form in which a value goes to the bucket.

use bytes::Bytes;
use fonn_codec::frame::{Encoding, FrameError, Verbatim};
use fonn_codec::{CodecId, CodecSpec, Frame};

/// Gives the frame for the bucket: the same bytes where nothing would be gained, that is, if it has
/// that codec already, is known not to shrink, or no codec is asked for.
///
/// # Errors
/// [`FrameError`]: it is damaged or of a value of more than `limit` bytes. A wrong byte must not be
/// given a right checksum.
pub(crate) fn recode(
    frame: &Bytes,
    spec: CodecSpec,
    min_bytes: usize,
    limit: usize,
) -> Result<Bytes, FrameError> {
    let parsed = Frame::parse(frame, limit)?;
    parsed.verify()?;
    let stays = spec.id() == CodecId::NONE
        || parsed.original_len() < min_bytes
        || match parsed.encoding() {
            Encoding::Compressed(present) => present.id() == spec.id(),
            Encoding::Verbatim(reason) => match reason {
                Verbatim::NoCodec | Verbatim::BelowThreshold => false,
                Verbatim::Recognized | Verbatim::LooksRandom | Verbatim::DidNotShrink => true,
            },
        };
    if stays {
        return Ok(frame.clone());
    }
    let mut decoded = Vec::new();
    let raw = match parsed.verbatim() {
        Some(range) => frame.get(range).unwrap_or_default(),
        None => {
            parsed.decode_into(&mut decoded)?;
            decoded.as_slice()
        }
    };
    let mut recoded = Vec::new();
    match fonn_codec::encode(spec, min_bytes, raw, &mut recoded) {
        Ok(_) => {
            recoded.shrink_to_fit();
            Ok(recoded.into())
        }
        // Longer than a frame can be: it could not have been one.
        Err(_) => Ok(frame.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(spec: &str, raw: &[u8]) -> Bytes {
        let mut out = Vec::new();
        fonn_codec::encode(spec.parse().unwrap(), 16, raw, &mut out).unwrap();
        out.into()
    }

    #[test]
    fn values_change_their_codec_and_stay_the_same() {
        let raw = b"compressible ".repeat(1000);
        let plain = frame("none", &raw);
        let packed = recode(&plain, "zstd".parse().unwrap(), 256, 1 << 20).unwrap();
        assert!(packed.len() < plain.len() / 10);
        let mut back = Vec::new();
        Frame::parse(&packed, 1 << 20)
            .unwrap()
            .decode_into(&mut back)
            .unwrap();
        assert_eq!(back, raw);
        let again = recode(&packed, "zstd".parse().unwrap(), 256, 1 << 20).unwrap();
        assert_eq!(again.as_ptr(), packed.as_ptr());
        let none = recode(&packed, CodecSpec::none(), 256, 1 << 20).unwrap();
        assert_eq!(none.as_ptr(), packed.as_ptr());
    }

    #[test]
    fn a_damaged_frame_is_refused() {
        let mut bytes = frame("none", &[7; 500]).to_vec();
        bytes[100] ^= 1;
        let damaged = Bytes::from(bytes);
        assert!(recode(&damaged, "zstd".parse().unwrap(), 256, 1 << 20).is_err());
        assert!(recode(&damaged, CodecSpec::none(), 256, 1 << 20).is_err());
    }
}
