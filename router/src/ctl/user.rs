//! `fonnctl user hash`.

use std::io::{self, IsTerminal as _, Read, Write as _};

use argon2::Argon2;
use argon2::password_hash::PasswordHasher as _;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde::Serialize;

use super::Verdict;
use super::error::CtlError;
use super::output::Output;

/// Longest password that is read; what is longer is a file by mistake.
const PASSWORD_MAX_BYTES: u64 = 1024;

#[derive(Serialize)]
struct Hashed {
    hash: String,
}

/// Reads a password and shows its hash. No node is asked.
pub(super) fn hash(output: &Output) -> Result<Verdict, CtlError> {
    let hash = hash_password(&read_password("Password: ")?)?;
    output.show(&Hashed { hash }, |hashed| format!("{}\n", hashed.hash))?;
    Ok(Verdict::Good)
}

/// argon2id with the parameters of the crate's default (OWASP's first choice: 19 MiB, two passes) and a
/// random salt, as a PHC string.
pub(super) fn hash_password(password: &[u8]) -> Result<String, CtlError> {
    check_password(password, "standard input")?;
    match Argon2::default().hash_password(password) {
        Ok(hash) => Ok(hash.to_string()),
        Err(error) => Err(CtlError::Input(format!(
            "cannot hash the password: {error}"
        ))),
    }
}

/// A password that could be one, from `source`.
pub(super) fn check_password(password: &[u8], source: &str) -> Result<(), CtlError> {
    let what = match password.len() as u64 {
        0 => "is empty",
        1..=PASSWORD_MAX_BYTES => return Ok(()),
        _ => "has more than 1024 bytes",
    };
    Err(CtlError::Input(format!(
        "the password from {source} {what}"
    )))
}

/// From standard input: one line of a terminal, without showing it, or all there is; without the line's end.
pub(super) fn read_password(prompt: &str) -> Result<Vec<u8>, CtlError> {
    let input = |error: io::Error| {
        CtlError::Input(format!(
            "cannot read the password from standard input: {error}"
        ))
    };
    let password = if io::stdin().is_terminal() {
        let silence = Silence::begin().map_err(input)?;
        let _ = write!(io::stderr(), "{prompt}");
        let mut line = String::new();
        io::stdin().read_line(&mut line).map_err(input)?;
        drop(silence);
        let _ = writeln!(io::stderr());
        line.into_bytes()
    } else {
        read_limited(io::stdin().lock()).map_err(input)?
    };
    Ok(without_line_end(&password).to_vec())
}

/// All there is, as far as a password may go, and a little, so that more is noticed.
pub(super) fn read_limited(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(PASSWORD_MAX_BYTES + 3).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn without_line_end(text: &[u8]) -> &[u8] {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.strip_suffix(b"\r").unwrap_or(text)
}

/// The terminal does not show what is typed, until this is dropped.
struct Silence(Termios);

impl Silence {
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // A terminal that is gone shows nothing.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
