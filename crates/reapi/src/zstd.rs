//! Streams of zstd, a step at a time: the caller yields between steps, and bounds what comes out.

use zstd::stream::raw::{DParameter, Decoder, Encoder, InBuffer, Operation as _, OutBuffer};

/// A step reads or writes at most so many bytes.
pub const STEP_LEN: usize = 128 << 10;

/// Logarithm of the longest window that a client may have chosen: 8 MiB, what all levels but the
/// `--ultra` ones have.
const WINDOW_LOG_MAX: u32 = 23;

/// The level of what is sent.
const LEVEL: i32 = 1;

/// Why a stream is not what was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZstdError {
    /// It is no stream of zstd, or one with a window that is too long.
    #[error("malformed zstd stream")]
    Malformed,
    /// It is longer than its digest says.
    #[error("the blob is longer than its digest says")]
    TooLong,
    /// It ends in a frame.
    #[error("the zstd stream is incomplete")]
    Incomplete,
}

/// Decompresses a stream of one or more frames.
pub struct Inflater {
    decoder: Decoder<'static>,
    len_left: u64,
    /// Whether the stream may end here.
    is_between_frames: bool,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflater")
            .field("len_left", &self.len_left)
            .finish_non_exhaustive()
    }
}

impl Inflater {
    /// Bytes that an inflater of a blob of `len` bytes holds besides what it returns: steps, and as
    /// much of the window as it fills.
    #[must_use]
    pub fn memory_len(len: usize) -> usize {
        len.min(1 << WINDOW_LOG_MAX) + 2 * STEP_LEN
    }

    /// For a blob of `len` bytes.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(len: u64) -> Result<Self, ZstdError> {
        let mut decoder = Decoder::new().map_err(|_| ZstdError::Malformed)?;
        decoder
            .set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))
            .map_err(|_| ZstdError::Malformed)?;
        Ok(Self {
            decoder,
            len_left: len,
            is_between_frames: true,
            buffer: vec![0; STEP_LEN],
        })
    }

    /// Takes a part of `input`, which it shortens, and returns what came out. The input is used up
    /// when both it and what came out are empty.
    ///
    /// # Errors
    /// [`ZstdError`], before more than the length of the blob has come out.
    pub fn step(&mut self, input: &mut &[u8]) -> Result<&[u8], ZstdError> {
        let mut source = InBuffer::around(input);
        let mut sink = OutBuffer::around(&mut self.buffer[..]);
        let hint = self
            .decoder
            .run(&mut source, &mut sink)
            .map_err(|_| ZstdError::Malformed)?;
        let (taken, len) = (source.pos(), sink.pos());
        if taken > 0 || len > 0 {
            self.is_between_frames = hint == 0;
        }
        *input = input.get(taken..).unwrap_or_default();
        self.len_left = self
            .len_left
            .checked_sub(len as u64)
            .ok_or(ZstdError::TooLong)?;
        Ok(self.buffer.get(..len).unwrap_or_default())
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// [`ZstdError::Incomplete`].
    pub fn finish(&self) -> Result<(), ZstdError> {
        match self.is_between_frames {
            true => Ok(()),
            false => Err(ZstdError::Incomplete),
        }
    }
}

/// Compresses a blob to one frame.
pub struct Deflater(Encoder<'static>);

impl std::fmt::Debug for Deflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deflater").finish_non_exhaustive()
    }
}

impl Deflater {
    /// For a blob.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new() -> Result<Self, ZstdError> {
        Encoder::new(LEVEL)
            .map(Self)
            .map_err(|_| ZstdError::Malformed)
    }

    /// Compresses the next bytes, [`STEP_LEN`] at most, to the end of `output`.
    ///
    /// # Errors
    /// If the library fails.
    pub fn step(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<(), ZstdError> {
        let mut source = InBuffer::around(input);
        while source.pos() < input.len() {
            let at = output.len();
            output.reserve(STEP_LEN);
            let mut sink = OutBuffer::around_pos(output, at);
            self.0
                .run(&mut source, &mut sink)
                .map_err(|_| ZstdError::Malformed)?;
        }
        Ok(())
    }

    /// Writes the end of the frame to the end of `output`.
    ///
    /// # Errors
    /// If the library fails.
    pub fn finish(mut self, output: &mut Vec<u8>) -> Result<(), ZstdError> {
        loop {
            let at = output.len();
            output.reserve(STEP_LEN);
            let mut sink = OutBuffer::around_pos(output, at);
            let left = self.0.finish(&mut sink, true);
            if left.map_err(|_| ZstdError::Malformed)? == 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn deflate(blob: &[u8]) -> Vec<u8> {
        let (mut deflater, mut output) = (Deflater::new().unwrap(), Vec::new());
        for part in blob.chunks(STEP_LEN) {
            deflater.step(part, &mut output).unwrap();
        }
        deflater.finish(&mut output).unwrap();
        output
    }

    fn inflate(stream: &[u8], len: u64, step: usize) -> Result<Vec<u8>, ZstdError> {
        let (mut inflater, mut blob) = (Inflater::new(len)?, Vec::new());
        for mut part in stream.chunks(step) {
            loop {
                let out = inflater.step(&mut part)?;
                blob.extend_from_slice(out);
                if out.is_empty() && part.is_empty() {
                    break;
                }
            }
        }
        inflater.finish().map(|()| blob)
    }

    #[test]
    fn a_stream_that_grows_beyond_its_digest_is_stopped() {
        let bomb = deflate(&vec![0; 64 << 20]);
        assert!(bomb.len() < 64 << 10);
        assert_eq!(inflate(&bomb, 1000, 4096), Err(ZstdError::TooLong));
    }

    #[test]
    fn streams_that_are_cut_or_damaged_are_refused() {
        let stream = deflate(b"a blob that is compressed");
        let cut = &stream[..stream.len() - 1];
        assert_eq!(inflate(cut, 25, 100), Err(ZstdError::Incomplete));
        assert_eq!(
            inflate(b"not zstd at all", 25, 100),
            Err(ZstdError::Malformed)
        );
        assert_eq!(inflate(&[], 0, 100), Ok(Vec::new()));
    }

    #[test]
    fn several_frames_are_one_stream() {
        let two = [deflate(b"one"), deflate(b"two")].concat();
        assert_eq!(inflate(&two, 6, 5), Ok(b"onetwo".to_vec()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_compressed_comes_back(
            seed in prop::collection::vec(any::<u8>(), 1..100),
            len in 0..300_000_usize,
            step in 1..200_000_usize,
        ) {
            let blob: Vec<u8> = seed.iter().copied().cycle().take(len).collect();
            prop_assert_eq!(inflate(&deflate(&blob), len as u64, step), Ok(blob));
        }
    }
}
