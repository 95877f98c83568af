//! The login of `fonnctl`.

use std::ffi::OsString;

use super::args;
use super::error::CtlError;
use super::password::Wanted;

/// A password in the environment.
const VARIABLE: &str = "FONN_PASSWORD";

/// A user and a password.
pub(super) struct Login {
    pub user: String,
    pub password: Vec<u8>,
}

/// The user to log in; none without a name.
pub(super) async fn read(args: &args::Login) -> Result<Option<Login>, CtlError> {
    read_with(args, std::env::var_os(VARIABLE)).await
}

/// The same, with what is in the environment.
pub(super) async fn read_with(
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
    let password = Wanted {
        file: (args.password_file.as_deref(), "--password-file"),
        variable: (VARIABLE, variable),
        prompt: &format!("Password of {user}: "),
        whose: &format!("--user {user}"),
    }
    .read()
    .await?;
    Ok(Some(Login { user, password }))
}
