//! What docs/build-tools.md tells people to paste.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result};

/// The first block of shell lines in a section of docs/build-tools.md, with the address of a node.
pub(crate) fn documented(section: &str, address: SocketAddr) -> Result<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/build-tools.md");
    let page = fs::read_to_string(page)?;
    let section = page.split_once(&format!("\n## {section}\n"));
    let block = section.and_then(|(_, rest)| rest.split_once("```sh\n")?.1.split_once("```"));
    let (block, _) = block.context("the section has no lines to paste")?;
    Ok(block.replace("127.0.0.1:11290", &address.to_string()))
}

/// The variables that such a block exports.
pub(crate) fn exported(block: &str) -> Vec<(String, String)> {
    let lines = block
        .lines()
        .filter_map(|line| line.strip_prefix("export "));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}
