//! Offences that were there before their rule: `xtask/prose.ratchet` has their number in each file,
//! and the number may only fall.
//!
//! A file of the ratchet's list fails with more offences than its number, and also with fewer:
//! `cargo xtask prose --lower` writes the lower number down.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;
use super::prose::Offence;

/// Where the numbers are.
pub const PATH: &str = "xtask/prose.ratchet";

const HEAD: &str = "\
# How often each file breaks a rule about prose. A number may only fall.
# `cargo xtask prose --lower` writes lower numbers; a line of zero goes away.
";

/// How many offences of a rule a file may have.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ratchet {
    counts: BTreeMap<(String, String), usize>,
}

impl Ratchet {
    /// Reads the numbers of the repository at `root`; without the file there are none.
    pub fn read(root: &Path) -> Result<Option<Self>> {
        match fs::read_to_string(root.join(PATH)) {
            Ok(text) => Self::parse(&text).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {PATH}")),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let mut counts = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            if line.starts_with('#') || line.is_empty() {
                continue;
            }
            let entry = || -> Option<((String, String), usize)> {
                let mut fields = line.splitn(3, ' ');
                let rule = fields.next()?.to_owned();
                let count = fields.next()?.parse().ok()?;
                Some(((rule, fields.next()?.to_owned()), count))
            };
            let (key, count) = entry()
                .with_context(|| format!("{PATH}:{}: expected RULE COUNT PATH", index + 1))?;
            counts.insert(key, count);
        }
        Ok(Self { counts })
    }

    /// The numbers that `offences` come to.
    pub fn of(offences: &[Offence]) -> Self {
        let mut counts = BTreeMap::new();
        for offence in offences {
            let key = (offence.rule.to_owned(), offence.finding.path.clone());
            *counts.entry(key).or_insert(0) += 1;
        }
        Self { counts }
    }

    /// How many offences there may be in all.
    pub fn total(&self) -> usize {
        self.counts.values().sum()
    }

    /// The lower one of both numbers of each file.
    pub fn lowered_to(mut self, now: &Self) -> Self {
        for (key, count) in &mut self.counts {
            *count = (*count).min(now.counts.get(key).copied().unwrap_or(0));
        }
        self.counts.retain(|_, count| *count > 0);
        self
    }

    /// Writes the numbers to the repository at `root`.
    pub fn write(&self, root: &Path) -> Result<()> {
        let mut text = HEAD.to_owned();
        for ((rule, path), count) in &self.counts {
            writeln!(text, "{rule} {count} {path}")?;
        }
        fs::write(root.join(PATH), text).with_context(|| format!("writing {PATH}"))
    }

    /// What is wrong: the offences of files that have more than their number, and the files that
    /// have fewer.
    pub fn check(&self, offences: Vec<Offence>) -> Vec<Finding> {
        let now = Self::of(&offences);
        let mut findings = Vec::new();
        let allowed = |key: &(String, String)| self.counts.get(key).copied().unwrap_or(0);
        let count = |key: &(String, String)| now.counts.get(key).copied().unwrap_or(0);
        for offence in offences {
            let key = (offence.rule.to_owned(), offence.finding.path.clone());
            if count(&key) > allowed(&key) {
                findings.push(offence.finding);
            }
        }
        for (key, max) in &self.counts {
            let (rule, path) = key;
            if count(key) != *max {
                findings.push(Finding {
                    path: path.clone(),
                    line: None,
                    message: format!(
                        "{} times `{rule}`, and {PATH} says {max}: {}",
                        count(key),
                        if count(key) > *max {
                            "the number may only fall"
                        } else {
                            "lower it with `cargo xtask prose --lower`"
                        }
                    ),
                });
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(path: &str, count: usize) -> Vec<Offence> {
        let finding = Finding {
            path: path.to_owned(),
            line: Some(1),
            message: "x".to_owned(),
        };
        let rule = "words";
        vec![Offence { rule, finding }; count]
    }

    #[test]
    fn the_number_of_a_file_must_be_met_and_other_files_have_none() {
        let ratchet = Ratchet::parse("# head\nwords 2 a b.rs\n").unwrap();
        assert!(ratchet.check(offences("a b.rs", 2)).is_empty());
        assert_eq!(ratchet.check(offences("a b.rs", 3)).len(), 4);
        let fewer = ratchet.check(offences("a b.rs", 1));
        assert_eq!(fewer.len(), 1);
        assert!(fewer[0].message.contains("lower it"), "{fewer:?}");
        let mut both = offences("a b.rs", 2);
        both.extend(offences("new.rs", 1));
        assert_eq!(ratchet.check(both)[0].path, "new.rs");
    }

    #[test]
    fn numbers_fall_and_never_rise() {
        let ratchet = Ratchet::parse("words 2 a.rs\nwords 1 b.rs\n").unwrap();
        let mut now = offences("a.rs", 1);
        now.extend(offences("c.rs", 5));
        let lowered = ratchet.lowered_to(&Ratchet::of(&now));
        assert_eq!(lowered, Ratchet::parse("words 1 a.rs\n").unwrap());
        assert_eq!(lowered.total(), 1);
    }

    #[test]
    fn what_is_written_is_read_again_and_a_malformed_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("xtask")).unwrap();
        assert_eq!(Ratchet::read(dir.path()).unwrap(), None);
        let ratchet = Ratchet::of(&offences("a b.rs", 3));
        ratchet.write(dir.path()).unwrap();
        assert_eq!(Ratchet::read(dir.path()).unwrap(), Some(ratchet));
        let error = Ratchet::parse("words x a.rs\n").unwrap_err().to_string();
        assert!(error.contains("prose.ratchet:1: expected"), "{error}");
    }
}
