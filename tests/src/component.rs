//! Programs that the suites need and the project does not build.
//!
//! Where one is missing, a developer's run says so and goes on; in CI (`CI=true`, `.ci/run`
//! installs everything) it is a failure, so that nothing is skipped in silence.

#![allow(clippy::print_stderr, reason = "a skipped test must say so")]

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::process::find_program;

/// The program `name`, from the variable `FONN_<NAME>` or the search path.
///
/// # Errors
/// In CI, when it is missing.
pub fn program(name: &str) -> Result<Option<PathBuf>> {
    let variable = format!("FONN_{}", name.to_ascii_uppercase().replace('-', "_"));
    let found = std::env::var_os(variable)
        .map(PathBuf::from)
        .or_else(|| find_program(name));
    present(name, found)
}

/// `found`, after it was said (or, in CI, failed) that `name` is missing.
///
/// # Errors
/// In CI, when `found` is `None`.
pub fn present<T>(name: &str, found: Option<T>) -> Result<Option<T>> {
    if found.is_none() {
        if in_ci() {
            bail!("{name} is missing, and in CI no test is skipped");
        }
        eprintln!("SKIPPED: {name} is not installed; .ci/run installs it");
    }
    Ok(found)
}

/// Whether skipping is a failure.
#[must_use]
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// The preloadable library that moves the wall clock of a process (Debian package `libfaketime`).
///
/// # Errors
/// In CI, when it is missing.
pub fn clock_shifter() -> Result<Option<PathBuf>> {
    let architecture = std::env::consts::ARCH;
    let places = [
        format!("/usr/lib/{architecture}-linux-gnu/faketime/libfaketime.so.1"),
        "/usr/lib64/faketime/libfaketime.so.1".to_owned(),
        "/usr/lib/faketime/libfaketime.so.1".to_owned(),
    ];
    present(
        "libfaketime",
        places
            .into_iter()
            .map(PathBuf::from)
            .find(|file| file.is_file()),
    )
}
