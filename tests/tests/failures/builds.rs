//! Builds with sccache through routers, while something fails.

#![allow(clippy::print_stderr, reason = "what it took must be on record")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

use fonn_tests::bucket::Bucket;
use fonn_tests::cluster::Cluster;
use fonn_tests::component::program;
use fonn_tests::node::FonnNode;
use fonn_tests::project::CProject;
use fonn_tests::promised::at_most;
use fonn_tests::router::FonnRouter;
use fonn_tests::sccache::{Mode, Sccache, Storage};

const FILES: usize = 24;
/// So long after a fault builds may miss entries.
const RECOVERY: Duration = Duration::from_secs(10);
/// The same on a machine under load.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a client may go on with a router that is gone: sccache gives up a lookup after a
/// minute.
const LOOKUPS: Duration = Duration::from_secs(180);

/// Three members with a bucket, and two routers in front: what may fail.
struct Scene {
    bucket: Bucket,
    cluster: Cluster,
    routers: [FonnRouter; 2],
}

/// How sccache reaches the routers.
type Door = fn([SocketAddr; 2], Mode) -> Storage;

/// The first router alone.
fn one_router([first, _]: [SocketAddr; 2], mode: Mode) -> Storage {
    Storage::memcached(first, mode)
}

/// Any of them.
fn both_routers(routers: [SocketAddr; 2], mode: Mode) -> Storage {
    Storage::redis_cluster(&routers, mode)
}

/// A project that was built once; the bucket has all of it.
struct Build {
    sccache: PathBuf,
    scratch: TempDir,
    project: CProject,
    door: Door,
    routers: [SocketAddr; 2],
}

impl Build {
    /// None where there is no sccache or no compiler.
    fn first(door: Door) -> Result<Option<(Self, Scene)>> {
        let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
            return Ok(None);
        };
        let bucket = Bucket::in_process()?;
        let cluster = Cluster::form(3, Some(&bucket))?;
        cluster.wait_agreed()?;
        let routers = [cluster.router()?, cluster.router()?];
        let scratch = tempfile::tempdir()?;
        let build = Self {
            sccache,
            project: CProject::generate(&scratch.path().join("c"), FILES)?,
            scratch,
            door,
            routers: routers.each_ref().map(FonnRouter::addr),
        };
        let mut server = build.server(Mode::ReadWrite)?;
        server.build_c(&build.project, |_| Ok(()))?;
        server.wait_for_writes(FILES as u64)?;
        for node in &cluster.nodes {
            let begun = Instant::now();
            while node.metric("fonn_cold_unspilled_bytes")? != Some(0.0) {
                ensure!(begun.elapsed() < PATIENCE, "not spilled");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        let scene = Scene {
            bucket,
            cluster,
            routers,
        };
        Ok(Some((build, scene)))
    }

    /// The same project at another place: it has the same keys, and may be built meanwhile.
    fn elsewhere(&self) -> Result<Self> {
        let scratch = tempfile::tempdir()?;
        Ok(Self {
            sccache: self.sccache.clone(),
            project: CProject::generate(&scratch.path().join("c"), FILES)?,
            scratch,
            door: self.door,
            routers: self.routers,
        })
    }

    fn server(&self, mode: Mode) -> Result<Sccache> {
        let storage = (self.door)(self.routers, mode);
        Sccache::start(&self.sccache, &self.scratch.path().join("sccache"), storage)
    }

    /// Builds once more, and has something fail when all files but the `last` ones were begun. The
    /// build succeeds. Returns when it failed.
    fn again_while(
        &self,
        last: usize,
        scene: &mut Scene,
        fail: impl FnOnce(&mut Scene) -> Result<()> + Send,
    ) -> Result<Instant> {
        let server = self.server(Mode::ReadWrite)?;
        self.project.clean()?;
        let failing = Mutex::new((Some(fail), scene, None));
        server.build_c(&self.project, |number| {
            if number != FILES - last {
                return Ok(());
            }
            let mut failing = failing.lock().map_err(|_| anyhow!("poisoned"))?;
            let (fail, scene, failed) = &mut *failing;
            *failed = Some(Instant::now());
            fail.take().map_or(Ok(()), |fail| fail(scene))
        })?;
        let (_, _, failed) = failing.into_inner().map_err(|_| anyhow!("poisoned"))?;
        failed.context("nothing failed")
    }

    /// Builds until all compilations of a build are hits, without storing anything. Returns how
    /// long after `failed` that build began.
    fn recovery(&self, failed: Instant) -> Result<Duration> {
        loop {
            let after = failed.elapsed();
            let mut server = self.server(Mode::ReadOnly)?;
            self.project.clean()?;
            server.build_c(&self.project, |_| Ok(()))?;
            let stats = server.stats()?;
            if (stats.hits(), stats.misses()) == (FILES as u64, 0) {
                stats.expect_quiet()?;
                return Ok(after);
            }
            ensure!(after < PATIENCE, "{after:?} after the fault: {stats:?}");
        }
    }

    /// As [`Self::recovery`], in the time that is promised.
    fn recovers(&self, failed: Instant) -> Result<()> {
        let took = self.recovery(failed)?;
        eprintln!("a build of hits alone began {took:?} after the fault");
        ensure!(took <= at_most(RECOVERY, PATIENCE), "{took:?}");
        Ok(())
    }
}

/// Builds, has something fail in the middle of the second build, and builds again. The builds
/// succeed; all compilations of one that begins soon are hits.
fn builds_go_on(door: Door, fail: impl FnOnce(&mut Scene) -> Result<()> + Send) -> Result<()> {
    let Some((build, mut scene)) = Build::first(door)? else {
        return Ok(());
    };
    let failed = build.again_while(FILES / 2, &mut scene, fail)?;
    build.recovers(failed)
}

#[test]
fn a_build_goes_on_when_a_member_is_killed() -> Result<()> {
    builds_go_on(one_router, |scene| {
        let leader = scene.cluster.leader()?;
        scene.cluster.nodes[(leader + 1) % 3].kill9()
    })
}

#[test]
fn a_build_goes_on_when_the_leader_is_killed() -> Result<()> {
    builds_go_on(one_router, |scene| {
        let leader = scene.cluster.leader()?;
        scene.cluster.nodes[leader].kill9()
    })
}

#[test]
fn a_build_goes_on_when_the_router_is_killed_and_comes_back() -> Result<()> {
    builds_go_on(one_router, |scene| {
        scene.routers[0].kill9()?;
        scene.routers[0].start_again()
    })
}

#[test]
fn a_build_goes_on_through_the_other_router_when_one_is_killed() -> Result<()> {
    let Some((build, mut scene)) = Build::first(both_routers)? else {
        return Ok(());
    };
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let received = |router: &FonnRouter| router.metric("fonn_router_received_bytes_total");
    let [first, second] = scene.routers.each_ref().map(received);
    let before = first? - second?;
    let fail = |scene: &mut Scene| {
        // sccache uses one of them for all slots. The one that this build uses is lost.
        let [first, second] = scene.routers.each_ref().map(received);
        let used = usize::from(second? - first? + before > 0.0);
        scene.routers[used].kill9()?;
        Ok(tell.send(Instant::now())?)
    };
    std::thread::scope(|scope| {
        // It ends when its client has found the other router: redis-rs before 1.0 waits for up to a
        // minute.
        let running = scope.spawn(|| {
            let failed = build.again_while(2, &mut scene, fail)?;
            let took = failed.elapsed();
            eprintln!("the build in progress ended {took:?} after the fault");
            ensure!(took <= LOOKUPS, "{took:?}");
            Ok(())
        });
        let failed = told.recv().context("the build in progress failed")?;
        build.elsewhere()?.recovers(failed)?;
        running.join().map_err(|_| anyhow!("it panicked"))?
    })
}

#[test]
fn a_build_goes_on_when_the_bucket_is_gone() -> Result<()> {
    builds_go_on(one_router, |scene| {
        scene.bucket.go_down();
        Ok(())
    })
}

#[test]
fn a_build_goes_on_when_a_member_is_paused_and_resumed() -> Result<()> {
    builds_go_on(one_router, |scene| {
        let leader = scene.cluster.leader()?;
        let daemon = scene.cluster.nodes[(leader + 1) % 3].daemon()?;
        daemon.signal(Signal::STOP)?;
        std::thread::sleep(Duration::from_secs(4));
        let daemon = scene.cluster.nodes[(leader + 1) % 3].daemon()?;
        daemon.signal(Signal::CONT)
    })
}

#[test]
fn builds_go_on_without_hits_while_all_members_are_gone() -> Result<()> {
    let Some((build, mut scene)) = Build::first(one_router)? else {
        return Ok(());
    };
    let all = |scene: &mut Scene| scene.cluster.nodes.iter_mut().try_for_each(FonnNode::kill9);
    build.again_while(FILES / 2, &mut scene, all)?;
    // One that begins without them: sccache finds a cache that works and has nothing.
    let mut server = build.server(Mode::ReadWrite)?;
    build.project.clean()?;
    server.build_c(&build.project, |_| Ok(()))?;
    let stats = server.stats()?;
    let wanted = (0, FILES as u64);
    ensure!((stats.hits(), stats.misses()) == wanted, "{stats:?}");
    stats.expect_quiet_reads()?;
    drop(server);
    for node in &mut scene.cluster.nodes {
        node.start_again()?;
    }
    build.recovers(Instant::now())
}
