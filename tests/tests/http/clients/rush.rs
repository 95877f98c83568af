//! Rush. `.ci/run` fills the folder in which Rush keeps pnpm, so the test needs no registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use fonn_tests::component::{present, program};

use super::super::documented::{after, without_variables};
use super::scripts::{commit_all, remove, said, write};
use super::{Build, Endpoint, Found, Tool};

/// The tool of this file, if it is installed.
///
/// # Errors
/// In CI, when it is missing.
pub(super) fn all() -> Result<Vec<Box<dyn Tool>>> {
    let (Some(link), Some(_)) = (program("rush")?, program("node")?) else {
        return Ok(Vec::new());
    };
    // The program is a link into the packages. The folder with pnpm is beside them.
    let program = fs::canonicalize(&link)?;
    let packages = program
        .ancestors()
        .find(|dir| dir.ends_with("node_modules"));
    let pnpm = packages.map(|dir| dir.with_file_name("global"));
    let Some(pnpm) = present("the folder of rush", pnpm.filter(|dir| dir.is_dir()))? else {
        return Ok(Vec::new());
    };
    Ok(vec![Box::new(Rush::new(program, pnpm)?)])
}

/// A repository of Rush with one project. Its script tells the time, so the same output twice was
/// not made twice.
struct Rush {
    program: PathBuf,
    /// The folder with pnpm.
    pnpm: PathBuf,
    dir: TempDir,
}

impl Rush {
    fn new(program: PathBuf, pnpm: PathBuf) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let files = [
            ("rush.json", include_str!("rush/rush.json")),
            ("app/package.json", include_str!("rush/package.json")),
            (
                "app/config/rush-project.json",
                r#"{"operationSettings":[{"operationName":"build","outputFolderNames":["out"]}]}"#,
            ),
            (
                ".gitignore",
                "home/\ncommon/temp/\nnode_modules/\n.rush/\nrush-logs/\nout/\n",
            ),
            ("home/.keep", ""),
        ];
        write(dir.path(), &files)?;
        commit_all(dir.path())?;
        let rush = Self { program, pnpm, dir };
        let mut install = Command::new(&rush.program);
        said(rush.clean(install.arg("update")))?;
        Ok(rush)
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    /// The command without settings of the developer.
    fn clean<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        without_variables(command, &["RUSH_", "GIT_", "npm_config_"]);
        command
            .env("RUSH_GLOBAL_FOLDER", &self.pnpm)
            .env("HOME", self.root().join("home"))
            .env("NO_COLOR", "1")
            .current_dir(self.root())
    }
}

impl Tool for Rush {
    fn name(&self) -> String {
        "Rush".to_owned()
    }

    fn build(&self, at: &Endpoint) -> Result<Build> {
        remove(
            self.root(),
            &[
                "common/temp/build-cache",
                "app/out",
                "app/.rush/temp/operation",
            ],
        )?;
        // The first block is a file, and those after it are for the shell.
        let blocks = at.blocks("Rush")?;
        let [file, shell, .., shell_of_user] = blocks.as_slice() else {
            anyhow::bail!("the section has fewer than three blocks");
        };
        write(
            self.root(),
            &[("common/config/rush/build-cache.json", file)],
        )?;
        let lines = match at.token {
            None => shell,
            Some(_) => shell_of_user,
        };
        // What the lines export stays: it is no variable of the developer.
        let mut command = after(lines, &self.program);
        let said = said(self.clean(command.arg("build")))?;
        let made = self.root().join("app/out/made");
        Ok(Build {
            found: Found::all_if(said.contains("\"app\" was restored from the build cache")),
            output: fs::read(&made).with_context(|| format!("no output:\n{said}"))?,
            said,
        })
    }
}
