//! A build through sccache with a far bucket: straight to it, and through a node.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bucket::Bucket;
use crate::delay::DelayProxy;
use crate::node::{FonnNode, NodeOptions};
use crate::process::find_program;
use crate::project::CProject;
use crate::sccache::{Mode, Sccache, Storage};

const SPILL_LIMIT: Duration = Duration::from_secs(60);

/// What is built, and how far the bucket is.
#[derive(Clone, Copy, Debug)]
pub struct BuildOptions {
    /// Sources of the project.
    pub files: usize,
    /// How much longer a round trip to the bucket takes.
    pub round_trip: Duration,
    /// Builds of each kind; the fastest counts.
    pub rounds: usize,
}

/// Wall times of one round.
#[derive(Clone, Copy, Debug)]
struct Times {
    compiler: Duration,
    straight_misses: Duration,
    straight_hits: Duration,
    fonn_misses: Duration,
    /// Out of the bucket, by a node that is new.
    fonn_cold: Duration,
    /// By the same node again.
    fonn_warm: Duration,
}

impl Times {
    fn min(self, other: Self) -> Self {
        Self {
            compiler: self.compiler.min(other.compiler),
            straight_misses: self.straight_misses.min(other.straight_misses),
            straight_hits: self.straight_hits.min(other.straight_hits),
            fonn_misses: self.fonn_misses.min(other.fonn_misses),
            fonn_cold: self.fonn_cold.min(other.fonn_cold),
            fonn_warm: self.fonn_warm.min(other.fonn_warm),
        }
    }
}

/// Builds a project with nothing, something and everything cached, and tells the wall times.
///
/// # Errors
/// When sccache or gcc is not installed, or a build did not hit or miss as it had to.
pub fn compare_build(options: &BuildOptions) -> Result<String> {
    let sccache = find_program("sccache").context("sccache is not installed")?;
    let gcc = find_program("gcc").context("gcc is not installed")?;
    let bucket = Bucket::in_process()?;
    let rig = Rig {
        proxy: DelayProxy::start(bucket.address(), options.round_trip)?,
        bucket,
        sccache,
        scratch: tempfile::tempdir()?,
        files: options.files,
    };
    let project = CProject::generate(&rig.scratch.path().join("c"), options.files)?;
    let mut best: Option<Times> = None;
    for round in 0..options.rounds.max(1) {
        let compiler = timed(&project, || {
            project.build(|| std::process::Command::new(&gcc), |_| Ok(()))
        })?;
        let (straight_misses, straight_hits) = rig.straight(&project, round)?;
        let (fonn_misses, fonn_cold, fonn_warm) = rig.through_a_node(&project, round)?;
        let times = Times {
            compiler,
            straight_misses,
            straight_hits,
            fonn_misses,
            fonn_cold,
            fonn_warm,
        };
        best = Some(best.map_or(times, |best| best.min(times)));
    }
    let best = best.context("no round")?;
    let mut table = String::from("| seconds | all misses | all hits |\n|---|---|---|\n");
    let seconds = |time: Duration| time.as_secs_f64();
    writeln!(table, "| no cache | {:.2} | – |", seconds(best.compiler))?;
    writeln!(
        table,
        "| sccache, straight to the bucket | {:.2} | {:.2} |",
        seconds(best.straight_misses),
        seconds(best.straight_hits)
    )?;
    writeln!(
        table,
        "| sccache, fonn, its disk lost before the hits | {:.2} | {:.2} |",
        seconds(best.fonn_misses),
        seconds(best.fonn_cold)
    )?;
    writeln!(
        table,
        "| sccache, fonn, the same node again | – | {:.2} |",
        seconds(best.fonn_warm)
    )?;
    Ok(table)
}

fn timed(project: &CProject, build: impl FnOnce() -> Result<()>) -> Result<Duration> {
    project.clean()?;
    let begun = Instant::now();
    build()?;
    Ok(begun.elapsed())
}

/// What all rounds share.
struct Rig {
    proxy: DelayProxy,
    bucket: Bucket,
    sccache: std::path::PathBuf,
    scratch: tempfile::TempDir,
    files: usize,
}

impl Rig {
    fn environment(&self) -> Vec<(&'static str, String)> {
        self.bucket
            .environment_through(&format!("http://{}", self.proxy.address()))
    }

    fn server(&self, storage: Storage) -> Result<Sccache> {
        Sccache::start(&self.sccache, &self.scratch.path().join("sccache"), storage)
    }

    /// One build through `server`, of which `hits` files have to be found.
    fn build(&self, server: &mut Sccache, project: &CProject, hits: usize) -> Result<Duration> {
        server.zero_stats()?;
        let took = timed(project, || server.build_c(project, |_| Ok(())))?;
        let files = self.files as u64;
        server.wait_for_writes(files - hits as u64)?;
        let stats = server.stats()?;
        stats.expect_quiet()?;
        ensure!(
            (stats.hits(), stats.misses()) == (hits as u64, files - hits as u64),
            "{hits} hits were expected: {stats:?}"
        );
        Ok(took)
    }

    fn straight(&self, project: &CProject, round: usize) -> Result<(Duration, Duration)> {
        let storage = Storage::s3(
            &self.proxy.address().to_string(),
            self.bucket.name(),
            &format!("straight-{round}"),
            self.environment(),
        );
        let mut server = self.server(storage)?;
        let misses = self.build(&mut server, project, 0)?;
        let hits = self.build(&mut server, project, self.files)?;
        Ok((misses, hits))
    }

    fn through_a_node(
        &self,
        project: &CProject,
        round: usize,
    ) -> Result<(Duration, Duration, Duration)> {
        let start = || {
            let url = format!("s3://{}/fonn-{round}", self.bucket.name());
            let mut options = NodeOptions::new()
                .flag("--cold-tier", url)
                .flag("--spill", "write-behind:1s");
            for (name, value) in self.environment() {
                options = options.env(name, value);
            }
            options.start()
        };
        let over = |node: &FonnNode| self.server(Storage::memcached(node.addr(), Mode::ReadWrite));
        let mut first = start()?;
        let misses = self.build(&mut over(&first)?, project, 0)?;
        wait_for(&first, "fonn_cold_unspilled_bytes", 0.0)?;
        first.kill9()?;
        drop(first);
        let second = start()?;
        wait_for(&second, "fonn_cold_index_ready", 1.0)?;
        let mut server = over(&second)?;
        let cold = self.build(&mut server, project, self.files)?;
        let warm = self.build(&mut server, project, self.files)?;
        Ok((misses, cold, warm))
    }
}

fn wait_for(node: &FonnNode, metric: &str, value: f64) -> Result<()> {
    let deadline = Instant::now() + SPILL_LIMIT;
    while node.metric(metric)? != Some(value) {
        ensure!(
            Instant::now() < deadline,
            "{metric} does not become {value}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
