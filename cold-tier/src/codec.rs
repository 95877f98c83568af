//! The codec that values get in the bucket.

use std::fmt::Debug;

use fonn_codec::{CodecSpec, Encoded};

/// What decides the codec of values that are spilled. [`FixedCodec`] never changes its mind.
///
/// Called on threads that may block, for every value; [`ValueCodec::active`] must be cheap.
pub trait ValueCodec: Debug + Send + Sync + 'static {
    /// The codec for the next value, and the length in bytes from which on it is used.
    fn active(&self) -> (CodecSpec, usize);

    /// Counts a value of `len` bytes, and tells whether it is one to [`sample`](Self::sample).
    fn wants(&self, _len: usize) -> bool {
        false
    }

    /// Gets a value, decoded.
    fn sample(&self, _value: &[u8]) {}

    /// Runs `encode` for a value of `len` bytes, and may measure it. It gives how the value will
    /// rest, also where it stays as it was.
    fn run(&self, _len: usize, encode: &mut dyn FnMut() -> Option<Encoded>) -> Option<Encoded> {
        encode()
    }
}

/// Always the same codec.
#[derive(Clone, Copy, Debug)]
pub struct FixedCodec {
    /// The codec.
    pub spec: CodecSpec,
    /// Shorter values are stored verbatim, in bytes.
    pub min_bytes: usize,
}

impl ValueCodec for FixedCodec {
    fn active(&self) -> (CodecSpec, usize) {
        (self.spec, self.min_bytes)
    }
}
