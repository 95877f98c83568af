//! How long something may take in a test.

use std::time::Duration;

/// What is `promised` where `FONN_STRICT_TIMES` is set, on a machine that has nothing else to do
/// with programs that are optimized; else what a machine under load may need.
#[must_use]
pub fn at_most(promised: Duration, patient: Duration) -> Duration {
    if is_strict() { promised } else { patient }
}

/// Whether times are held to what is promised.
#[must_use]
pub fn is_strict() -> bool {
    std::env::var_os("FONN_STRICT_TIMES").is_some_and(|it| !it.is_empty())
}
