//! As whom `fonnctl` calls, and where the password comes from: never from the command line, which
//! everybody on the machine can read.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use super::args;
use super::error::CtlError;
use super::user::{check_password, read_limited, read_password, without_line_end};

/// A password in the environment.
const VARIABLE: &str = "FONN_PASSWORD";
/// In the place of a file: standard input.
const STDIN: &str = "-";

/// A user and a password.
pub(super) struct Login {
    pub user: String,
    pub password: Vec<u8>,
}

/// Who is to be logged in; nobody if no user is named.
pub(super) fn read(args: &args::Login) -> Result<Option<Login>, CtlError> {
    read_with(args, std::env::var_os(VARIABLE))
}

/// The same, with what is in the environment.
pub(super) fn read_with(
    args: &args::Login,
    variable: Option<OsString>,
) -> Result<Option<Login>, CtlError> {
    let Some(user) = args.user.clone() else {
        return match args.password_file {
            None => Ok(None),
            Some(_) => Err(CtlError::Input(
                "--password-file is given without --user NAME".to_owned(),
            )),
        };
    };
    if user.contains(':') {
        return Err(CtlError::Input(format!(
            "no user can be `{user}`: there is a colon in it, by which HTTP separates user and password"
        )));
    }
    let (password, source) = match (&args.password_file, variable) {
        (Some(path), _) if path == Path::new(STDIN) => {
            (read_password("Password: ")?, "standard input")
        }
        (Some(path), _) => (read_file(path)?, "--password-file"),
        (None, Some(password)) => (password.into_vec(), VARIABLE),
        (None, None) if io::stdin().is_terminal() => {
            let prompt = format!("Password of {user}: ");
            (read_password(&prompt)?, "the terminal")
        }
        (None, None) => {
            return Err(CtlError::Input(format!(
                "there is no password for --user {user}: set {VARIABLE}, or give --password-file FILE (- is \
                 standard input)"
            )));
        }
    };
    check_password(&password, source)?;
    Ok(Some(Login { user, password }))
}

fn read_file(path: &Path) -> Result<Vec<u8>, CtlError> {
    let read = File::open(path).and_then(read_limited);
    let bytes = read.map_err(|error| {
        let path = path.display();
        CtlError::Input(format!("--password-file {path}: cannot read it: {error}"))
    })?;
    Ok(without_line_end(&bytes).to_vec())
}
