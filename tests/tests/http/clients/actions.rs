//! `@actions/cache`, by which jobs of GitHub Actions keep files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use fonn_tests::component::program;

use super::super::documented::{after, without_variables};
use super::scripts::{remove, said, write};
use super::{Build, Endpoint, Found, Tool};

/// Restores `out` by a key and prefixes. If nothing is found and there is a file to make, it makes
/// and saves one.
const SCRIPT: &str = r"
const { mkdirSync, writeFileSync } = await import('node:fs')
const { randomBytes } = await import('node:crypto')
const cache = await import(process.env.ACTIONS_CACHE)
const [len, key, ...prefixes] = process.argv.slice(2)
const found = await cache.restoreCache(['out'], key, prefixes)
if (found === undefined && len !== '0') {
  mkdirSync('out', { recursive: true })
  writeFileSync('out/file', randomBytes(Number(len)).toString('hex'))
  await cache.saveCache(['out'], key)
}
console.log(`found ${found}`)
";

/// The tool of this file, if it is installed.
///
/// # Errors
/// In CI, when it is missing.
pub(super) fn all() -> Result<Vec<Box<dyn Tool>>> {
    Ok(match ActionsCache::new()? {
        Some(tool) => vec![Box::new(tool)],
        None => Vec::new(),
    })
}

/// A job with a directory of its own.
pub(crate) struct ActionsCache {
    program: PathBuf,
    dir: TempDir,
}

impl ActionsCache {
    /// None if it is not installed.
    ///
    /// # Errors
    /// In CI, when it is missing.
    pub(crate) fn new() -> Result<Option<Self>> {
        let Some(program) = program("actions-cache")? else {
            return Ok(None);
        };
        let dir = tempfile::tempdir()?;
        write(dir.path(), &[("job.mjs", SCRIPT)])?;
        Ok(Some(Self { program, dir }))
    }

    /// Restores by a key and prefixes, after a wipe. Makes and saves a file of `2 * len` bytes if
    /// nothing is found.
    ///
    /// # Errors
    /// With what the client says, when it fails.
    pub(crate) fn restore(&self, at: &Endpoint, len: usize, keys: &[&str]) -> Result<Restored> {
        let root = self.dir.path();
        remove(root, &["out", "temp"])?;
        fs::create_dir(root.join("temp"))?;
        let said = said(self.command(at, root)?.arg(len.to_string()).args(keys))?;
        let (_, key) = said.rsplit_once("found ").with_context(|| said.clone())?;
        let key = key.lines().next().unwrap_or_default();
        Ok(Restored {
            key: (key != "undefined").then(|| key.to_owned()),
            file: fs::read(root.join("out/file")).unwrap_or_default(),
            said,
        })
    }

    fn command(&self, at: &Endpoint, root: &Path) -> Result<Command> {
        let mut command = after(&at.lines("GitHub Actions")?, &self.program);
        without_variables(&mut command, &["ACTIONS_", "GITHUB_", "RUNNER_", "CACHE_"]);
        command
            .env("RUNNER_TEMP", root.join("temp"))
            .env("GITHUB_WORKSPACE", root)
            .current_dir(root)
            .arg("job.mjs");
        Ok(command)
    }
}

/// What came of a restore.
pub(crate) struct Restored {
    /// The key that was found.
    pub(crate) key: Option<String>,
    /// The file afterwards.
    pub(crate) file: Vec<u8>,
    said: String,
}

impl Restored {
    /// Checks that this key was found, with this file.
    pub(crate) fn expect(&self, key: &str, file: &[u8]) -> Result<()> {
        ensure!(self.key.as_deref() == Some(key), "{}", self.said);
        ensure!(self.file == file, "another file: {}", self.said);
        Ok(())
    }
}

impl Tool for ActionsCache {
    fn name(&self) -> String {
        "GitHub Actions".to_owned()
    }

    /// Restores by the key, and after a hit also by a prefix of it. While a member is lost, the
    /// prefix can be a miss after a hit by the key.
    fn build(&self, at: &Endpoint) -> Result<Build> {
        let restored = self.restore(at, 4096, &["job-1"])?;
        let (mut found, mut said) = (Found::Nothing, restored.said);
        if restored.key.is_some() {
            let by_prefix = self.restore(at, 0, &["job-none", "job-"])?;
            said.push_str(&by_prefix.said);
            found = match by_prefix.key {
                Some(_) => {
                    by_prefix.expect("job-1", &restored.file)?;
                    Found::All
                }
                None => Found::Some,
            };
        }
        Ok(Build {
            found,
            output: restored.file,
            said,
        })
    }
}
