//! Recognizes bytes that no codec will shrink, so that the attempt can be saved.
//!
//! Two looks, both cheap: [`is_compressed`] knows compressed formats from their first bytes, and
//! [`looks_random`] judges a small sample. Neither is ever a matter of correctness: a wrong yes
//! costs a ratio, a wrong no costs one attempt. A wrong yes would last as long as the value and the
//! attempt is made once, so both say yes only when it is plain.
//!
//! A look costs a tenth of a microsecond, and more where the bytes come out of another processor's
//! cache. [`Runs`] remembers whether the last values shrank, and saves most of the looks where none
//! did for long.

mod entropy;
mod format;
mod runs;

use crate::frame::Verbatim;
use crate::registry::Support;
use crate::spec::CodecSpec;

pub use entropy::looks_random;
pub use format::is_compressed;
pub use runs::Runs;

/// Why a value is better left as it is, if that takes no look at its content.
pub(crate) fn before_a_look(spec: CodecSpec, min_bytes: usize, raw: &[u8]) -> Option<Verbatim> {
    if !matches!(spec.codec().support(), Support::Compiled(_)) {
        Some(Verbatim::NoCodec)
    } else if raw.len() < min_bytes || raw.is_empty() {
        Some(Verbatim::BelowThreshold)
    } else if is_compressed(raw) {
        Some(Verbatim::Recognized)
    } else {
        None
    }
}
