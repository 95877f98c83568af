//! From a frame to the frame that compaction makes of it.

use fonn_codec::{CodecId, CodecSpec, Encoding, Frame, Verbatim};

use crate::levels::LevelCodec;

/// Room for values and frames, used again and again.
#[derive(Default)]
pub(crate) struct Workspace {
    value: Vec<u8>,
    /// The new frame, if [`Workspace::recode`] made one.
    pub(crate) frame: Vec<u8>,
}

/// Buffers above this are given back after a large value.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

impl Workspace {
    /// Makes [`Workspace::frame`] the frame that replaces `frame`; false if that stays as it is:
    /// because it has the codec already, is known not to shrink, did not become shorter, or cannot
    /// be read (which is no business of compaction).
    pub(crate) fn recode(
        &mut self,
        frame: &[u8],
        level: &LevelCodec,
        value_len_max: usize,
    ) -> bool {
        let (spec, min_bytes) = level.active();
        let Ok(parsed) = Frame::parse(frame, value_len_max) else {
            return false;
        };
        let len = parsed.original_len();
        if len < min_bytes || !is_worth_trying(parsed.encoding(), spec) {
            return false;
        }
        self.frame.clear();
        let meter = level.meter();
        let (encoded, cpu) = meter.time(len, || {
            let value = match parsed.verbatim() {
                Some(range) => frame.get(range)?,
                None => {
                    parsed.decode_into(&mut self.value).ok()?;
                    &self.value
                }
            };
            level.offer(value);
            // All are looked at: what is left now is left for good.
            Some(match fonn_codec::reason_to_leave(spec, min_bytes, value) {
                Some(reason) => Err(reason),
                None => fonn_codec::compress(spec, value, 1, &mut self.frame),
            })
        });
        match encoded {
            Some(Ok(encoded)) => {
                meter.count(encoded.encoding, len, encoded.frame_len, cpu);
                encoded.frame_len < frame.len()
            }
            Some(Err(reason)) => {
                level.left(reason, len);
                meter.count_vain(cpu);
                false
            }
            None => false,
        }
    }

    /// Gives back what a large value took. What is kept is not cleared: decoding would fill it with
    /// zeros.
    pub(crate) fn shrink(&mut self) {
        for buffer in [&mut self.value, &mut self.frame] {
            buffer.truncate(BUFFER_BYTES_KEPT);
            buffer.shrink_to(BUFFER_BYTES_KEPT);
        }
    }
}

/// Whether a value stored in one way may become shorter with `spec`.
pub(crate) fn is_worth_trying(encoding: Encoding, spec: CodecSpec) -> bool {
    if spec.id() == CodecId::NONE {
        return false;
    }
    match encoding {
        Encoding::Compressed(now) => now != spec,
        // What did not shrink with a fast codec may with a better one.
        Encoding::Verbatim(
            Verbatim::NoCodec | Verbatim::BelowThreshold | Verbatim::DidNotShrink,
        ) => true,
        Encoding::Verbatim(Verbatim::Recognized | Verbatim::LooksRandom) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levels::Level;

    fn spec(text: &str) -> CodecSpec {
        text.parse().unwrap()
    }

    fn framed(codec: &str, value: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        fonn_codec::encode(spec(codec), 256, value, &mut frame).unwrap();
        frame
    }

    fn recoded(frame: &[u8], codec: &str) -> Option<Vec<u8>> {
        let mut workspace = Workspace::default();
        let level = LevelCodec::new(Level::Compacted, codec.parse().unwrap(), 256);
        let is_new = workspace.recode(frame, &level, usize::MAX);
        is_new.then(|| workspace.frame.clone())
    }

    fn value_of(frame: &[u8]) -> Vec<u8> {
        let mut value = Vec::new();
        let frame = Frame::parse(frame, usize::MAX).unwrap();
        frame.verify().unwrap();
        frame.decode_into(&mut value).unwrap();
        value
    }

    #[test]
    fn a_frame_of_another_codec_becomes_one_of_this_codec_with_the_same_value() {
        let text = b"over and over, and a little different each time; ".repeat(9000);
        for fresh in ["none", "lz4", "snappy", "zlib:1", "zstd:-7"] {
            let new = recoded(&framed(fresh, &text), "zstd:3").unwrap();
            assert_eq!(value_of(&new), text, "{fresh}");
            assert_eq!(new, framed("zstd:3", &text), "{fresh}");
        }
    }

    #[test]
    fn what_has_the_codec_or_is_known_not_to_shrink_is_left_alone() {
        let text = b"over and over, ".repeat(100);
        let packed = [b"\x28\xb5\x2f\xfd".to_vec(), vec![0; 5000]].concat();
        for (fresh, value, last) in [
            ("zstd:3", &text, "zstd:3"),
            ("none", &text, "none"),
            ("lz4", &text, "none"),
            ("lz4", &packed, "zstd:3"),
            ("none", &b"short".to_vec(), "zstd:3"),
        ] {
            let recoded = recoded(&framed(fresh, value), last);
            assert_eq!(recoded, None, "{fresh} to {last}");
        }
    }

    #[test]
    fn a_frame_never_becomes_longer() {
        let text = b"over and over, and a little different each time; ".repeat(9000);
        assert_eq!(recoded(&framed("zstd:9", &text), "lz4"), None);
    }

    #[test]
    fn what_is_no_frame_is_left_alone() {
        assert_eq!(recoded(b"not a frame", "zstd:3"), None);
        let mut frame = framed("lz4", &b"over and over, ".repeat(100));
        frame.truncate(40);
        assert_eq!(recoded(&frame, "zstd:3"), None);
    }
}
