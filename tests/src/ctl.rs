//! The admin command, as an operator runs it.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Runs `fonnctl` against an admin port.
///
/// # Errors
/// When it cannot be run.
pub fn fonnctl(admin: &str, arguments: &[&str]) -> Result<Output> {
    with_input(admin, arguments, "")
}

/// The same, with standard input.
///
/// # Errors
/// When it cannot be run.
pub fn with_input(admin: &str, arguments: &[&str], input: &str) -> Result<Output> {
    let mut child = Command::new(crate::node::ctl_program()?)
        .args(arguments)
        .env("FONN_ADMIN", admin)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting fonnctl")?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    // Commands that read nothing may be gone already.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    Ok(child.wait_with_output()?)
}

/// Standard output of a command that ends well.
///
/// # Errors
/// When it does not.
pub fn text(admin: &str, arguments: &[&str]) -> Result<String> {
    let output = fonnctl(admin, arguments)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {stderr}");
    Ok(String::from_utf8(output.stdout)?)
}

/// What a command that ends well prints with `--json`: one object.
///
/// # Errors
/// When it does not.
pub fn json(admin: &str, arguments: &[&str]) -> Result<Value> {
    let arguments = [arguments, &["--json"]].concat();
    Ok(serde_json::from_str(&text(admin, &arguments)?)?)
}

/// What a command prints with `--json`, however it ends: an object a line.
///
/// # Errors
/// When something else is printed.
pub fn lines(admin: &str, arguments: &[&str]) -> Result<Vec<Value>> {
    let arguments = [arguments, &["--json"]].concat();
    let output = fonnctl(admin, &arguments)?;
    let text = String::from_utf8(output.stdout)?;
    let lines = text.lines().map(serde_json::from_str);
    Ok(lines.collect::<Result<_, _>>()?)
}

/// Exit code and standard error of a command that does not.
///
/// # Errors
/// When it cannot be run.
pub fn failure(admin: &str, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let output = fonnctl(admin, arguments)?;
    let stderr = String::from_utf8(output.stderr)?;
    Ok((output.status.code(), stderr))
}
