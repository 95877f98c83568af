//! Cargo, as a shell starts it.

use std::env;
use std::path::Path;
use std::process::Command;

/// Variables of the package xtask, which `cargo xtask` sets. Build scripts that look at them run
/// again when they change, as that of ring does: then all crates above it are built anew.
const OF_THIS_PACKAGE: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];

/// The command `cargo` in the directory `root`, without the variables of the package xtask.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    for (name, _) in env::vars_os() {
        let bytes = name.as_encoded_bytes();
        if OF_THIS_PACKAGE
            .iter()
            .any(|prefix| bytes.starts_with(prefix.as_bytes()))
        {
            command.env_remove(&name);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_this_package_are_not_passed_on() {
        assert!(
            env::var_os("CARGO_MANIFEST_DIR").is_some(),
            "cargo test sets it"
        );
        let command = cargo(Path::new("/"));
        let removed = |name: &str| command.get_envs().any(|it| it == (name.as_ref(), None));
        assert!(removed("CARGO_MANIFEST_DIR") && removed("CARGO_PKG_NAME"));
        assert!(!removed("CARGO") && !removed("PATH"));
    }
}
