//! The programs under test: those that the environment names, else those that are built with this
//! package.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

/// A program under test.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Names another one.
    variable: &'static str,
    /// As it is built with this package.
    name: &'static str,
}

impl Program {
    /// The node.
    pub const NODE: Self = Self {
        variable: "FONN_NODE_BIN",
        name: "fonn-node-under-test",
    };
    /// The router.
    pub const ROUTER: Self = Self {
        variable: "FONN_ROUTER_BIN",
        name: "fonn-router-under-test",
    };
    /// The admin command.
    pub const CTL: Self = Self {
        variable: "FONN_CTL_BIN",
        name: "fonnctl-under-test",
    };
    /// The storage helper of ccache.
    pub const CCACHE_STORAGE: Self = Self {
        variable: "FONN_CCACHE_STORAGE_BIN",
        name: "ccache-storage-fonn-under-test",
    };

    /// Where it is.
    ///
    /// # Errors
    /// When there is none.
    pub fn path(self) -> Result<PathBuf> {
        if let Some(program) = std::env::var_os(self.variable) {
            return Ok(PathBuf::from(program));
        }
        self.built()
            .with_context(|| format!("set {}", self.variable))
    }

    /// The one that is built with this package.
    fn built(self) -> Result<PathBuf> {
        // Test executables lie in target/PROFILE/deps, this package's programs one level up; Cargo
        // builds them before it runs the suites in tests/.
        let this = std::env::current_exe()?;
        let dirs = this.ancestors().skip(1).take(2);
        let program = dirs
            .map(|dir| dir.join(self.name))
            .find(|file| file.is_file());
        program.with_context(|| format!("no {} beside {}", self.name, this.display()))
    }

    /// A command that runs it; the developer's own settings do not reach it. Only the one that is
    /// built with this package can say that it is of another release.
    ///
    /// # Errors
    /// When there is none.
    pub fn command(self, is_other_release: bool) -> Result<Command> {
        let mut command = Command::new(match is_other_release {
            true => self.built()?,
            false => self.path()?,
        });
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"FONN_") {
                command.env_remove(name);
            }
        }
        Ok(command)
    }
}
