//! sccache, over a node that is lost.

use anyhow::Result;

use fonn_tests::bucket::Bucket;
use fonn_tests::component::program;
use fonn_tests::project::CProject;
use fonn_tests::sccache::{Mode, Sccache, Storage};

use fonn_tests::spilled::{destroy, metric, over, wait_until_ready, wait_until_spilled};

#[test]
fn a_build_after_the_loss_of_the_node_hits_out_of_the_bucket() -> Result<()> {
    const FILES: usize = 30;
    let (Some(sccache), Some(_)) = (program("sccache")?, program("gcc")?) else {
        return Ok(());
    };
    let bucket = Bucket::in_process()?;
    let scratch = tempfile::tempdir()?;
    let project = CProject::generate(&scratch.path().join("c"), FILES)?;
    let start = |node: &fonn_tests::node::FonnNode| {
        let storage = Storage::memcached(node.addr(), Mode::ReadWrite);
        Sccache::start(&sccache, &scratch.path().join("sccache"), storage)
    };

    let first = over(&bucket).start()?;
    let mut server = start(&first)?;
    server.build_c(&project, |_| Ok(()))?;
    server.wait_for_writes(FILES as u64)?;
    let stats = server.stats()?;
    stats.expect_quiet()?;
    assert_eq!((stats.hits(), stats.misses()), (0, FILES as u64));
    drop(server);
    wait_until_spilled(&first)?;
    destroy(first)?;

    let second = over(&bucket).start()?;
    wait_until_ready(&second)?;
    let mut server = start(&second)?;
    project.clean()?;
    server.build_c(&project, |_| Ok(()))?;
    let stats = server.stats()?;
    stats.expect_quiet()?;
    assert_eq!(
        (stats.hits(), stats.misses()),
        (FILES as u64, 0),
        "{stats:?}"
    );
    // Each of them, and maybe sccache's look at its storage at the start.
    let cold = metric(&second, "fonn_hits_total{tier=\"cold\"}")?;
    assert!(cold >= FILES as f64, "{cold} hits out of the bucket");
    Ok(())
}
