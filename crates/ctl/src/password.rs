//! Passwords: their sources, and their hashes. Never from an argument, which every user of the
//! machine can read.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal as _, Read, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use argon2::Argon2;
use argon2::password_hash::PasswordHasher as _;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::error::CtlError;

/// Longest password that is read; what is longer is a file by mistake.
const PASSWORD_MAX_BYTES: u64 = 1024;

/// In the place of a file: standard input.
pub(super) const STDIN: &str = "-";

/// A password that is wanted, and the places where it may be.
pub(super) struct Wanted<'w> {
    /// A file that was named, and the flag for that.
    pub file: (Option<&'w Path>, &'static str),
    /// The environment variable for it, with what is in there.
    pub variable: (&'static str, Option<OsString>),
    /// What is asked on a terminal.
    pub prompt: &'w str,
    /// Whose it is, for errors.
    pub whose: &'w str,
}

impl Wanted<'_> {
    /// From the file, else from the environment, else from a terminal.
    pub(super) async fn read(self) -> Result<Vec<u8>, CtlError> {
        let ((file, flag), (name, variable)) = (self.file, self.variable);
        let (password, source) = match (file, variable) {
            (Some(path), _) if path == Path::new(STDIN) => {
                (read_password(self.prompt).await?, "standard input")
            }
            (Some(path), _) => (read_file(path, flag)?, flag),
            (None, Some(password)) => (password.into_vec(), name),
            (None, None) if io::stdin().is_terminal() => {
                (read_password(self.prompt).await?, "the terminal")
            }
            (None, None) => {
                let whose = self.whose;
                return Err(CtlError::Input(format!(
                    "there is no password for {whose}: set {name}, or give {flag} FILE (- is standard input)"
                )));
            }
        };
        check_password(&password, source)?;
        Ok(password)
    }
}

/// The text of a file that holds a secret, without the line's end.
pub(super) fn read_secret(path: &Path, flag: &'static str) -> Result<String, CtlError> {
    let bytes = read_file(path, flag)?;
    String::from_utf8(bytes)
        .map_err(|_| CtlError::Input(format!("{flag} {}: it is no text", path.display())))
}

fn read_file(path: &Path, flag: &str) -> Result<Vec<u8>, CtlError> {
    let read = File::open(path).and_then(read_limited);
    let bytes = read.map_err(|error| {
        let path = path.display();
        CtlError::Input(format!("{flag} {path}: cannot read it: {error}"))
    })?;
    Ok(without_line_end(&bytes).to_vec())
}

/// argon2id with the parameters of the crate's default (OWASP's first choice: 19 MiB, two passes)
/// and a random salt, as a PHC string.
pub(super) fn hash_password(password: &[u8]) -> Result<String, CtlError> {
    check_password(password, "standard input")?;
    match Argon2::default().hash_password(password) {
        Ok(hash) => Ok(hash.to_string()),
        Err(error) => Err(CtlError::NotNow(format!(
            "cannot hash the password: {error}"
        ))),
    }
}

/// A password that could be one, from `source`.
fn check_password(password: &[u8], source: &str) -> Result<(), CtlError> {
    let what = match password.len() as u64 {
        0 => "is empty",
        1..=PASSWORD_MAX_BYTES => return Ok(()),
        _ => "has more than 1024 bytes",
    };
    Err(CtlError::Input(format!(
        "the password from {source} {what}"
    )))
}

/// From standard input: one line of a terminal, without showing it, or all there is; without the
/// line's end. The terminal shows what is typed again once this is done, or dropped.
pub(super) async fn read_password(prompt: &str) -> Result<Vec<u8>, CtlError> {
    let input = |error: io::Error| {
        CtlError::Input(format!(
            "cannot read the password from standard input: {error}"
        ))
    };
    let password = if io::stdin().is_terminal() {
        let silence = Without::begin(LocalModes::ECHO).map_err(input)?;
        let _ = write!(io::stderr(), "{prompt}");
        let line = blocking(|| {
            let mut line = String::new();
            io::stdin().read_line(&mut line).map(|_| line.into_bytes())
        });
        let line = line.await.map_err(input)?;
        drop(silence);
        let _ = writeln!(io::stderr());
        line
    } else {
        let all = blocking(|| read_limited(io::stdin().lock()));
        all.await.map_err(input)?
    };
    Ok(without_line_end(&password).to_vec())
}

/// Reads off the reactor, which notices signals meanwhile.
async fn blocking(
    read: impl FnOnce() -> io::Result<Vec<u8>> + Send + 'static,
) -> io::Result<Vec<u8>> {
    let read = tokio::task::spawn_blocking(read).await;
    read.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// All there is, as far as a password may go, and a little, so that more is noticed.
fn read_limited(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(PASSWORD_MAX_BYTES + 3).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn without_line_end(text: &[u8]) -> &[u8] {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.strip_suffix(b"\r").unwrap_or(text)
}

/// The terminal at standard input is without some of its modes, until this is dropped.
#[derive(Debug)]
pub(super) struct Without(Termios);

impl Without {
    pub(super) fn begin(modes: LocalModes) -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut now = before.clone();
        now.local_modes.remove(modes);
        tcsetattr(io::stdin(), OptionalActions::Flush, &now)?;
        Ok(Self(before))
    }
}

impl Drop for Without {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
