//! The go command, with `fonnctl gocache`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use fonn_tests::component::program;
use fonn_tests::node::ctl_program;

use super::super::documented::{after, without_variables};
use super::super::gocache::make_old;
use super::scripts::{remove, said, write};
use super::{Build, Endpoint, Found, Tool};

/// The tool of this file, if it is installed.
///
/// # Errors
/// In CI, when it is missing.
pub(super) fn all() -> Result<Vec<Box<dyn Tool>>> {
    let Some(program) = program("go")? else {
        return Ok(Vec::new());
    };
    Ok(vec![Box::new(Go::new(program)?)])
}

/// What the go command runs its tools with. The archives of Go's compiler are the same each time.
/// This script gives the compiler another name for the source directory each time. So an archive
/// with the bytes of an earlier one was not compiled again. The go command does not know that name.
const TOOL: &str = r#"#!/bin/sh
previous=
for argument; do
    shift
    [ "$previous" != -trimpath ] || argument="$argument;$PWD=>/built/$(date +%s%N)"
    previous=$argument
    set -- "$@" "$argument"
done
exec "$@"
"#;

struct Go {
    program: PathBuf,
    dir: TempDir,
}

impl Go {
    fn new(program: PathBuf) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let files = [
            ("go.mod", "module example.test/sum\n\ngo 1.24\n"),
            (
                "sum.go",
                "package sum\n\nfunc Of(a, b int) int { return a + b }\n",
            ),
            ("bin/tool", TOOL),
        ];
        write(dir.path(), &files)?;
        for name in ["go.mod", "sum.go"] {
            make_old(&dir.path().join(name))?;
        }
        fs::set_permissions(dir.path().join("bin/tool"), Permissions::from_mode(0o755))?;
        // By the name that the documented lines have.
        symlink(ctl_program()?, dir.path().join("bin/fonnctl"))?;
        Ok(Self { program, dir })
    }
}

impl Tool for Go {
    fn name(&self) -> String {
        "Go".to_owned()
    }

    fn build(&self, at: &Endpoint) -> Result<Build> {
        let root = self.dir.path();
        remove(root, &["home", "sum.a"])?;
        let home = root.join("home");
        fs::create_dir(&home)?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(root.join("bin")).chain(std::env::split_paths(&path));
        let mut command = after(&at.lines("Go")?, &self.program);
        without_variables(&mut command, &["GO", "FONN_"]);
        command
            .env("PATH", std::env::join_paths(paths)?)
            .env("HOME", &home)
            .env("XDG_CACHE_HOME", home.join("cache"))
            .env("GOTOOLCHAIN", "local")
            .env("GOPROXY", "off")
            .env("FONN_GOCACHE_STATS", "true");
        command.args(["build", "-o", "sum.a", "-toolexec"]);
        let said = said(
            command
                .arg(root.join("bin/tool"))
                .arg(".")
                .current_dir(root),
        )?;
        let archive = root.join("sum.a");
        ensure!(archive.exists(), "no output: {said}");
        Ok(Build {
            found: found(&said).with_context(|| format!("no line of fonnctl in: {said}"))?,
            output: fs::read(archive)?,
            said,
        })
    }
}

/// What the helper says that it found. One of its outputs the go command does without when it is
/// lost, and never stores again. So a build with hits that stored nothing found all that it needs.
fn found(said: &str) -> Option<Found> {
    let (_, summary) = said.split_once("fonnctl gocache: ")?;
    let number = |what: &str| {
        let (before, _) = summary.split_once(what)?;
        before.rsplit(' ').next()?.parse::<u64>().ok()
    };
    let (hits, misses) = (number(" hits")?, number(" misses")?);
    Some(match (hits, misses, number(" stored")?) {
        (0, _, _) => Found::Nothing,
        (_, 0, _) | (_, _, 0) => Found::All,
        _ => Found::Some,
    })
}
