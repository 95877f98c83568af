//! A build of a Go project with nothing cached, with the go command's own cache, and with Fonn.

#![allow(clippy::print_stderr, reason = "progress of a run of minutes")]

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::delay::DelayProxy;
use crate::node::{NodeOptions, ctl_program};
use crate::process::find_program;

/// What is built, and how far the node is.
#[derive(Clone, Debug)]
pub struct GoOptions {
    /// Directory of the module; the modules that it needs have been downloaded.
    pub module: PathBuf,
    /// The package that is built.
    pub package: String,
    /// How much longer a round trip to the node takes in the last row.
    pub round_trip: Duration,
    /// Builds of each kind; the fastest counts.
    pub rounds: usize,
}

/// A project, and an empty place for each of its builds.
struct Project<'o> {
    options: &'o GoOptions,
    go: PathBuf,
    ctl: PathBuf,
    dir: tempfile::TempDir,
}

impl Project<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, cache: &Path) -> Command {
        let mut command = Command::new(&self.go);
        command.current_dir(&self.options.module);
        command.env("GOFLAGS", "-mod=mod").env("GOPROXY", "off");
        command.env("GOCACHE", cache);
        command
    }

    /// Packages of the build.
    fn packages(&self) -> Result<usize> {
        let mut list = self.command(&self.path("list"));
        let list = list
            .args(["list", "-deps", &self.options.package])
            .output()?;
        ensure!(list.status.success(), "go list: {}", text(&list.stderr));
        Ok(text(&list.stdout).lines().count())
    }

    /// Builds; how long it took, and what was written to standard error.
    fn build(&self, cache: &Path, program: Option<&str>) -> Result<(Duration, String)> {
        let mut build = self.command(cache);
        if let Some(program) = program {
            build.env("GOCACHEPROG", program);
        }
        let output = self.path("program");
        build
            .arg("build")
            .arg("-o")
            .arg(&output)
            .arg(&self.options.package);
        let begun = Instant::now();
        let built = build.output()?;
        let took = begun.elapsed();
        let said = text(&built.stderr);
        ensure!(
            built.status.success() && output.exists(),
            "go build: {said}"
        );
        fs::remove_file(output)?;
        Ok((took, said))
    }

    /// Builds with an empty place of its own for what the go command reads, by the helper in front
    /// of a server.
    fn build_with(&self, server: SocketAddr, is_filled: bool) -> Result<Duration> {
        let (cache, outputs) = (self.path("fonn-cache"), self.path("fonn-outputs"));
        let program = format!(
            "{} gocache --stats --server {server} --dir {}",
            self.ctl.display(),
            outputs.display()
        );
        let (took, said) = self.build(&cache, Some(&program))?;
        eprint!("{said}");
        let (hits, misses) = (number(&said, " hits"), number(&said, " misses"));
        let (hits, misses) = hits.zip(misses).context("no line of the helper")?;
        ensure!(
            !is_filled || misses * 100 <= hits,
            "not everything was a hit: {said}"
        );
        for dir in [cache, outputs] {
            // The go command makes none where a program is its cache.
            let _ = fs::remove_dir_all(dir);
        }
        Ok(took)
    }
}

/// The number before `what` in what the helper says at the end.
fn number(said: &str, what: &str) -> Option<u64> {
    let (before, _) = said.split_once(what)?;
    before.rsplit(' ').next()?.parse().ok()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Builds a project with nothing and with everything cached, and tells the wall times.
///
/// # Errors
/// When Go is not installed, the project is not built, or a build did not hit as it had to.
pub fn compare_go(options: &GoOptions) -> Result<String> {
    let project = Project {
        options,
        go: find_program("go").context("go is not installed")?,
        ctl: ctl_program()?.canonicalize()?,
        dir: tempfile::tempdir()?,
    };
    let node = NodeOptions::new().with_http().start()?;
    let far = DelayProxy::start(node.http(), options.round_trip)?;
    let packages = project.packages()?;
    let (mut none, mut local, mut near, mut distant, mut filling) = (
        Duration::MAX,
        Duration::MAX,
        Duration::MAX,
        Duration::MAX,
        Duration::MAX,
    );
    for round in 0..options.rounds.max(1) {
        let cache = project.path("own-cache");
        none = none.min(project.build(&cache, None)?.0);
        local = local.min(project.build(&cache, None)?.0);
        fs::remove_dir_all(cache)?;
        if round == 0 {
            filling = project.build_with(node.http(), false)?;
        }
        near = near.min(project.build_with(node.http(), true)?);
        distant = distant.min(project.build_with(far.address(), true)?);
    }
    let mut table = format!("| cache of a build of {packages} packages | seconds |\n|---|---|\n");
    let latency = format!("Fonn, {} ms away", options.round_trip.as_millis());
    for (name, took) in [
        ("none", none),
        ("Fonn on the same host, nothing stored before", filling),
        ("the go command's own, filled", local),
        ("Fonn on the same host, filled", near),
        (&latency, distant),
    ] {
        writeln!(table, "| {name} | {:.2} |", took.as_secs_f64())?;
    }
    Ok(table)
}
