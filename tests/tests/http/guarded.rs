//! A node with users.

use std::fs;

use anyhow::Result;
use tempfile::TempDir;

use fonn_tests::ctl::with_input;
use fonn_tests::node::{FonnNode, NodeOptions};

/// That of all users.
pub(crate) const PASSWORD: &str = "correct-horse";

/// A node where `ci` may write and `dev` may read the same namespace, and `other` has one of its
/// own.
pub(crate) struct Guarded {
    pub(crate) node: FonnNode,
    _dir: TempDir,
}

impl Guarded {
    pub(crate) fn start(options: NodeOptions) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let hash = with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?.stdout;
        let hash = String::from_utf8(hash)?;
        let row = |name: &str, role: &str, namespace: &str| {
            let hash = hash.trim();
            format!(
                "[[user]]\nname = '{name}'\nrole = '{role}'\nnamespace = '{namespace}'\nhash = '{hash}'\n"
            )
        };
        let rows = [
            row("ci", "read-write", "main"),
            row("dev", "read", "main"),
            row("other", "read-write", "other"),
        ];
        let users = dir.path().join("users.toml");
        fs::write(&users, rows.concat())?;
        let node = options.with_http().flag("--users-file", &users).start()?;
        Ok(Self { node, _dir: dir })
    }
}
