//! Builds with sccache through a router, while something fails.

use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use rustix::process::Signal;

use fonn_tests::bucket::Bucket;
use fonn_tests::cluster::{Cluster, name};
use fonn_tests::component::program;
use fonn_tests::project::CProject;
use fonn_tests::router::FonnRouter;
use fonn_tests::sccache::{Mode, Sccache, Storage};

const FILES: usize = 24;

/// Three members with a bucket, a router in front, and what is to happen in the middle of a build.
struct Scene {
    bucket: Bucket,
    cluster: Cluster,
    router: FonnRouter,
}

/// Builds, has something fail in the middle of the second build, and builds again. The builds succeed; all
/// compilations of the third are hits.
fn builds_go_on(fail: impl FnOnce(&mut Scene) -> Result<()> + Send) -> Result<()> {
    let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
        return Ok(());
    };
    let bucket = Bucket::in_process()?;
    let cluster = Cluster::form(3, Some(&bucket))?;
    cluster.wait_agreed()?;
    let router = cluster.router()?;
    let mut scene = Scene {
        bucket,
        cluster,
        router,
    };
    let scratch = tempfile::tempdir()?;
    let project = CProject::generate(&scratch.path().join("c"), FILES)?;
    let start = |router: &FonnRouter| {
        let storage = Storage::memcached(router.addr(), Mode::ReadWrite);
        Sccache::start(&sccache, &scratch.path().join("sccache"), storage)
    };
    let mut server = start(&scene.router)?;
    server.build_c(&project, |_| Ok(()))?;
    server.wait_for_writes(FILES as u64)?;
    for node in &scene.cluster.nodes {
        let begun = std::time::Instant::now();
        while node.metric("fonn_cold_unspilled_bytes")? != Some(0.0) {
            ensure!(begun.elapsed() < Duration::from_secs(60), "not spilled");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    project.clean()?;
    {
        let failing = Mutex::new(Some((fail, &mut scene)));
        server.build_c(&project, |number| {
            if number != FILES / 2 {
                return Ok(());
            }
            let mut failing = failing.lock().map_err(|_| anyhow!("poisoned"))?;
            failing.take().map_or(Ok(()), |(fail, scene)| fail(scene))
        })?;
    }
    // Within ten seconds everything is as it was; on a machine under load it may take longer until it is seen who is gone.
    let nodes = scene.cluster.nodes.iter().enumerate();
    let gone: Vec<usize> = nodes
        .filter(|(_, node)| node.pid().is_err())
        .map(|(index, _)| index)
        .collect();
    scene.cluster.wait(&gone, "who is gone is down", |states| {
        let mut gone = gone.iter();
        gone.all(|index| states.get(&name(*index)).is_some_and(|it| it == "down"))
    })?;
    scene.cluster.wait_settled(&gone)?;
    std::thread::sleep(Duration::from_secs(5));
    drop(server);
    let mut server = start(&scene.router)?;
    project.clean()?;
    server.build_c(&project, |_| Ok(()))?;
    let stats = server.stats()?;
    let wanted = (FILES as u64, 0);
    ensure!((stats.hits(), stats.misses()) == wanted, "{stats:?}");
    stats.expect_quiet()
}

#[test]
fn a_build_goes_on_when_a_member_is_killed() -> Result<()> {
    builds_go_on(|scene| {
        let leader = scene.cluster.leader()?;
        scene.cluster.nodes[(leader + 1) % 3].kill9()
    })
}

#[test]
fn a_build_goes_on_when_the_leader_is_killed() -> Result<()> {
    builds_go_on(|scene| {
        let leader = scene.cluster.leader()?;
        scene.cluster.nodes[leader].kill9()
    })
}

#[test]
fn a_build_goes_on_when_the_router_is_killed_and_comes_back() -> Result<()> {
    builds_go_on(|scene| {
        scene.router.kill9()?;
        scene.router.start_again()
    })
}

#[test]
fn a_build_goes_on_when_the_bucket_is_gone() -> Result<()> {
    builds_go_on(|scene| {
        scene.bucket.go_down();
        Ok(())
    })
}

#[test]
fn a_build_goes_on_when_a_member_is_paused_and_resumed() -> Result<()> {
    builds_go_on(|scene| {
        let leader = scene.cluster.leader()?;
        let daemon = scene.cluster.nodes[(leader + 1) % 3].daemon()?;
        daemon.signal(Signal::STOP)?;
        std::thread::sleep(Duration::from_secs(4));
        let daemon = scene.cluster.nodes[(leader + 1) % 3].daemon()?;
        daemon.signal(Signal::CONT)
    })
}
