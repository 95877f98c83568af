//! ccache with its Redis storage: a connection for every compiler run. It gives one 100 ms; here it
//! has all the time that a busy machine may take.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use fonn_tests::component::program;
use fonn_tests::node::FonnNode;
use fonn_tests::process::run;

use fonn_tests::project::CProject;

const FILES: usize = 20;

fn ccache(ccache: &Path, node: &FonnNode, dir: &str) -> Command {
    let mut command = Command::new(ccache);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"CCACHE_") {
            command.env_remove(name);
        }
    }
    // Each build with an empty local cache, as on a fresh runner.
    command.env("CCACHE_DIR", node.scratch().join(dir));
    command.env("CCACHE_CONFIGPATH", node.scratch().join("no-ccache.conf"));
    let patient = "connect-timeout=60000|operation-timeout=60000";
    let storage = format!("redis://{}|{patient}", node.addr());
    command.env("CCACHE_REMOTE_STORAGE", storage);
    command
}

fn stat(program: &Path, node: &FonnNode, dir: &str, name: &str) -> Result<u64> {
    let text = run(ccache(program, node, dir).arg("--print-stats"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}\t")));
    Ok(line
        .with_context(|| format!("no {name} in {text}"))?
        .trim()
        .parse()?)
}

#[test]
fn ccache_hits_from_an_empty_local_cache() -> Result<()> {
    let (Some(program), Some(_)) = (program("ccache")?, program("gcc")?) else {
        return Ok(());
    };
    let mut node = FonnNode::start()?;
    let project = CProject::generate(&node.scratch().join("c"), FILES)?;
    let build = |node: &FonnNode, dir: &str| -> Result<()> {
        project.clean()?;
        let compiler = || {
            let mut command = ccache(&program, node, dir);
            command.arg("gcc");
            command
        };
        project.build(compiler, |_| Ok(()))
    };
    build(&node, "first")?;
    assert_eq!(stat(&program, &node, "first", "cache_miss")?, FILES as u64);
    for (restart, dir) in [(false, "second"), (true, "third")] {
        if restart {
            node.kill9()?;
            node.start_again()?;
        }
        build(&node, dir)?;
        let hits = stat(&program, &node, dir, "direct_cache_hit")?
            + stat(&program, &node, dir, "preprocessed_cache_hit")?;
        assert_eq!(hits, FILES as u64, "{dir}");
        assert_eq!(
            stat(&program, &node, dir, "remote_storage_hit")?,
            FILES as u64,
            "{dir}"
        );
        assert_eq!(
            stat(&program, &node, dir, "remote_storage_error")?,
            0,
            "{dir}"
        );
        assert_eq!(
            stat(&program, &node, dir, "remote_storage_timeout")?,
            0,
            "{dir}"
        );
    }
    // Without the node a build is a miss, not a failure.
    node.kill9()?;
    build(&node, "alone")
}
