//! sccache over WebDAV, and ccache with each of its layouts.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use fonn_tests::component::program;
use fonn_tests::process::run;
use fonn_tests::project::CProject;
use fonn_tests::sccache::{Sccache, Storage};

use super::super::documented::{after, exported, without_variables};
use super::{Build, Endpoint, Found, Refused, Tool};

const FILES: usize = 3;

/// The tools of this file that are installed.
///
/// # Errors
/// In CI, when one is missing.
pub(super) fn all() -> Result<Vec<Box<dyn Tool>>> {
    let mut tools: Vec<Box<dyn Tool>> = Vec::new();
    if program("gcc")?.is_none() {
        return Ok(tools);
    }
    if let Some(program) = program("sccache")? {
        tools.push(Box::new(SccacheTool {
            program,
            project: Project::new()?,
        }));
    }
    if let Some(program) = program("ccache")? {
        for layout in ["subdirs", "flat", "bazel"] {
            tools.push(Box::new(CcacheTool {
                program: program.clone(),
                layout,
                project: Project::new()?,
            }));
        }
    }
    Ok(tools)
}

/// Sources, and a directory that lives as long as they do.
struct Project {
    sources: CProject,
    _dir: TempDir,
}

impl Project {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let sources = CProject::generate(dir.path(), FILES)?;
        Ok(Self { sources, _dir: dir })
    }
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
        let storage = Storage::of_variables(exported(&at.lines("sccache")?));
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
            output: Vec::new(),
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
            command.arg("gcc");
            command
        };
        self.project.sources.build(compiler, |_| Ok(()))?;
        let said = run(self.command(dir.path(), &lines).arg("--print-stats"))?;
        let stat = |name: &str| -> Result<usize> {
            let mut lines = said.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
            Ok(value.with_context(|| said.clone())?.trim().parse()?)
        };
        ensure!(stat("remote_storage_timeout")? == 0, "{said}");
        Ok(Build {
            found: found(stat("remote_storage_hit")?),
            output: Vec::new(),
            said,
        })
    }
}
