//! What docs/build-tools.md tells users to paste.

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result};

/// The address that the page names.
const ADDRESS: &str = "127.0.0.1:11290";

/// Where a build tool finds its cache.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// The HTTP port of a node or a router.
    pub(crate) address: SocketAddr,
    /// What the tool logs in with.
    pub(crate) token: Option<String>,
    /// Whether what the tool stores is kept.
    pub(crate) may_write: bool,
}

impl Endpoint {
    /// One without users.
    pub(crate) const fn open(address: SocketAddr) -> Self {
        Self {
            address,
            token: None,
            may_write: true,
        }
    }

    /// One where clients log in.
    pub(crate) fn with_token(address: SocketAddr, token: &str) -> Self {
        Self {
            token: Some(token.to_owned()),
            ..Self::open(address)
        }
    }

    /// The same, with a token that may only read.
    pub(crate) const fn read_only(mut self) -> Self {
        self.may_write = false;
        self
    }

    /// The lines of a section: those of its first block, or with a token those of its last one.
    ///
    /// # Errors
    /// When the page has no such section, or the section has no block.
    pub(crate) fn lines(&self, section: &str) -> Result<String> {
        let blocks = self.blocks(section)?;
        let block = match self.token {
            None => blocks.first(),
            Some(_) => blocks.last(),
        };
        Ok(block
            .context("the section has no lines to paste")?
            .to_owned())
    }

    /// All blocks of a section, with this address and this token.
    ///
    /// # Errors
    /// When the page has no such section.
    pub(crate) fn blocks(&self, section: &str) -> Result<Vec<String>> {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/build-tools.md");
        let page = fs::read_to_string(page)?;
        let section = page
            .split_once(&format!("\n## {section}\n"))
            .with_context(|| format!("docs/build-tools.md has no section {section}"))?;
        let section = section.1.split("\n## ").next().unwrap_or_default();
        let blocks = section.split("\n```").skip(1).step_by(2);
        let token = self.token.as_deref().unwrap_or("none");
        let address = self.address.to_string();
        let filled = blocks
            .filter_map(|block| block.split_once('\n'))
            .map(|(_, lines)| with_token(&lines.replace(ADDRESS, &address), token));
        Ok(filled.collect())
    }
}

/// Lines with `token` in the place of `TOKEN`, which is also the end of some names.
fn with_token(lines: &str, token: &str) -> String {
    let mut parts = lines.split("TOKEN");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        filled.push_str(match filled.ends_with('_') {
            true => "TOKEN",
            false => token,
        });
        filled.push_str(part);
    }
    filled
}

/// The first block of a section, with the address of a node.
pub(crate) fn documented(section: &str, address: SocketAddr) -> Result<String> {
    Endpoint::open(address).lines(section)
}

/// The variables that such a block exports.
pub(crate) fn exported(block: &str) -> Vec<(String, String)> {
    let lines = block
        .lines()
        .filter_map(|line| line.strip_prefix("export "));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.trim_matches('\'').to_owned()))
        .collect()
}

/// A shell that runs such a block, and then `program` in its place.
pub(crate) fn after(block: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("sh");
    command
        .arg("-ec")
        .arg(format!("{block}\nexec \"$0\" \"$@\""));
    command.arg(program);
    command
}

/// Leaves to a command no variable of the developer's own whose name begins with one of these.
pub(crate) fn without_variables(command: &mut Command, prefixes: &[&str]) {
    for (name, _) in std::env::vars_os() {
        let is_own = |prefix: &&str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
        if prefixes.iter().any(is_own) {
            command.env_remove(&name);
        }
    }
}
