//! Recognizes bytes that no codec will shrink, so that the attempt can be saved.
//!
//! Two looks, both cheap: [`format()`] knows compressed file formats from their first bytes, and
//! [`looks_random`] judges a small sample. Neither is ever a matter of correctness: a wrong yes
//! costs a ratio, a wrong no costs one attempt. A wrong yes would last as long as the value and the
//! attempt is made once, so both say yes only when it is plain.

mod entropy;
mod format;

pub use entropy::looks_random;
pub use format::{Format, format};
