//! sccache over WebDAV, and ccache with each of its layouts and with the storage helper.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use fonn_tests::component::program;
use fonn_tests::process::run;
use fonn_tests::program::Program;
use fonn_tests::project::CProject;
use fonn_tests::sccache::{Sccache, Storage};

use super::super::documented::{after, exported, without_variables};
use super::{Build, Endpoint, Found, Refused, Tool};

const FILES: usize = 3;

/// A compiler whose objects differ each time, which those of gcc do not: it adds to each some bytes
/// that no linker reads. So an object with the bytes of an earlier one was not compiled again.
const COMPILER: &str = r#"#!/bin/sh
GCC "$@" || exit
is_object= output=
while [ $# != 0 ]; do
    case $1 in
    -c) is_object=true ;;
    -o) output=$2 ;;
    esac
    shift
done
# `-` is no file: a tool asks what the compiler is.
[ -z "$is_object" ] || [ "$output" = - ] || head -c 16 /dev/urandom >>"$output"
"#;

/// The tools of this file that are installed.
///
/// # Errors
/// In CI, when one is missing.
pub(super) fn all() -> Result<Vec<Box<dyn Tool>>> {
    let mut tools: Vec<Box<dyn Tool>> = Vec::new();
    let Some(gcc) = program("gcc")? else {
        return Ok(tools);
    };
    if let Some(program) = program("sccache")? {
        tools.push(Box::new(SccacheTool {
            program,
            project: Project::new(&gcc)?,
        }));
    }
    if let Some(program) = program("ccache-with-helpers")? {
        tools.push(Box::new(HelpedCcache::new(program, &gcc)?));
    }
    if let Some(program) = program("ccache")? {
        for layout in ["subdirs", "flat", "bazel"] {
            tools.push(Box::new(CcacheTool {
                program: program.clone(),
                layout,
                project: Project::new(&gcc)?,
            }));
        }
    }
    Ok(tools)
}

/// Sources and their compiler, in a directory that lives as long as they do.
struct Project {
    sources: CProject,
    dir: TempDir,
}

impl Project {
    fn new(gcc: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let sources = CProject::generate(dir.path(), FILES)?;
        let project = Self { sources, dir };
        let compiler = project.compiler();
        fs::create_dir(project.bin())?;
        fs::write(
            &compiler,
            COMPILER.replace("GCC", &gcc.display().to_string()),
        )?;
        fs::set_permissions(&compiler, Permissions::from_mode(0o755))?;
        Ok(project)
    }

    /// The directory of the compiler.
    fn bin(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    fn compiler(&self) -> PathBuf {
        self.bin().join("gcc")
    }

    /// All objects.
    fn output(&self) -> Result<Vec<u8>> {
        let objects = (0..FILES).map(|number| self.dir.path().join(format!("unit{number}.o")));
        let objects = objects.map(fs::read).collect::<Result<Vec<_>, _>>()?;
        Ok(objects.concat())
    }
}

/// The search path, with a directory before all others.
fn path_after(dir: PathBuf) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(dir).chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(paths)?)
}

/// A verdict on a number of hits.
fn found(hits: usize) -> Found {
    match hits {
        0 => Found::Nothing,
        FILES => Found::All,
        _ => Found::Some,
    }
}

struct SccacheTool {
    program: PathBuf,
    project: Project,
}

impl Tool for SccacheTool {
    fn name(&self) -> String {
        "sccache".to_owned()
    }

    fn build(&self, at: &Endpoint) -> Result<Build> {
        let scratch = tempfile::tempdir()?;
        let mut variables = exported(&at.lines("sccache")?);
        // sccache finds `gcc` there.
        let path = path_after(self.project.bin())?;
        variables.push(("PATH".to_owned(), path.to_string_lossy().into_owned()));
        let storage = Storage::of_variables(variables);
        let mut server = Sccache::start(&self.program, scratch.path(), storage)?;
        self.project.sources.clean()?;
        server.build_c(&self.project.sources, |_| Ok(()))?;
        if at.may_write {
            // sccache stores behind the compiler's back.
            let misses = server.stats()?.misses();
            server.wait_for_writes(misses)?;
        }
        let stats = server.stats()?;
        stats.expect_quiet_reads()?;
        Ok(Build {
            found: found(usize::try_from(stats.hits())?),
            said: format!("{stats:?}"),
            output: self.project.output()?,
        })
    }

    fn when_refused(&self) -> Refused {
        Refused::Ends("401")
    }
}

struct CcacheTool {
    program: PathBuf,
    layout: &'static str,
    project: Project,
}

impl CcacheTool {
    fn command(&self, dir: &Path, lines: &str) -> Command {
        // ccache gives a server 100 ms. Here it has the time that a busy machine may take.
        let more = format!(
            "CCACHE_REMOTE_STORAGE=\"$CCACHE_REMOTE_STORAGE|layout={}|connect-timeout=60000|operation-timeout=60000\"",
            self.layout
        );
        let mut command = after(&format!("{lines}\n{more}"), &self.program);
        without_variables(&mut command, &["CCACHE_"]);
        command
            .env("CCACHE_DIR", dir)
            .env("CCACHE_CONFIGPATH", dir.join("none.conf"));
        command
    }
}

impl Tool for CcacheTool {
    fn name(&self) -> String {
        format!("ccache, layout {}", self.layout)
    }

    fn build(&self, at: &Endpoint) -> Result<Build> {
        let dir = tempfile::tempdir()?;
        let lines = at.lines("ccache")?;
        self.project.sources.clean()?;
        let compiler = || {
            let mut command = self.command(dir.path(), &lines);
            command.arg(self.project.compiler());
            command
        };
        self.project.sources.build(compiler, |_| Ok(()))?;
        ccache_build(self.command(dir.path(), &lines), &self.project)
    }
}

/// ccache 4.13 or later, which starts the storage helper by itself.
pub(crate) struct HelpedCcache {
    program: PathBuf,
    /// Has the helper by its name.
    bin: TempDir,
    project: Project,
}

impl HelpedCcache {
    /// None where ccache of such a version or gcc is not installed.
    ///
    /// # Errors
    /// In CI, when one is missing.
    pub(crate) fn installed() -> Result<Option<Self>> {
        let (Some(gcc), Some(ccache)) = (program("gcc")?, program("ccache-with-helpers")?) else {
            return Ok(None);
        };
        Self::new(ccache, &gcc).map(Some)
    }

    fn new(program: PathBuf, gcc: &Path) -> Result<Self> {
        let bin = tempfile::tempdir()?;
        let helper = Program::CCACHE_STORAGE.path()?;
        symlink(helper, bin.path().join("ccache-storage-fonn"))?;
        Ok(Self {
            program,
            bin,
            project: Project::new(gcc)?,
        })
    }

    fn command(&self, dir: &Path, lines: &str) -> Result<Command> {
        // The times that a busy machine may take. A helper that is left over ends by itself.
        let more = "CCACHE_REMOTE_STORAGE=\"$CCACHE_REMOTE_STORAGE data-timeout=60s request-timeout=120s \
                    idle-timeout=60s @deadline=60s\"";
        let mut command = after(&format!("{lines}\n{more}"), &self.program);
        without_variables(&mut command, &["CCACHE_"]);
        command
            .env("PATH", path_after(self.bin.path().to_owned())?)
            .env("XDG_RUNTIME_DIR", dir)
            .env("CCACHE_DIR", dir)
            .env("CCACHE_CONFIGPATH", dir.join("none.conf"));
        Ok(command)
    }

    /// Builds with these lines, without the local state of earlier builds.
    pub(crate) fn build_with(&self, lines: &str) -> Result<Build> {
        let dir = tempfile::tempdir()?;
        self.project.sources.clean()?;
        // Checked here, since a build closure cannot fail.
        self.command(dir.path(), lines)?;
        let compiler = || {
            let command = self.command(dir.path(), lines);
            let mut command = command.unwrap_or_else(|_| Command::new("false"));
            command.arg(self.project.compiler());
            command
        };
        let built = self.project.sources.build(compiler, |_| Ok(()));
        let stopped = run(self
            .command(dir.path(), lines)?
            .arg("--stop-storage-helpers"));
        built?;
        stopped?;
        ccache_build(self.command(dir.path(), lines)?, &self.project)
    }
}

impl Tool for HelpedCcache {
    fn name(&self) -> String {
        "ccache, storage helper".to_owned()
    }

    fn build(&self, at: &Endpoint) -> Result<Build> {
        self.build_with(&at.lines("ccache with the storage helper")?)
    }
}

/// What a build found by the statistics of ccache. No request may have failed but by a miss.
fn ccache_build(mut ccache: Command, project: &Project) -> Result<Build> {
    let said = run(ccache.arg("--print-stats"))?;
    let stat = |name: &str| -> Result<usize> {
        let mut lines = said.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        Ok(value.with_context(|| said.clone())?.trim().parse()?)
    };
    ensure!(stat("remote_storage_timeout")? == 0, "{said}");
    Ok(Build {
        found: found(stat("remote_storage_hit")?),
        output: project.output()?,
        said,
    })
}
