//! Bazel, whose action tells the time: the same output twice was not made twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use tempfile::TempDir;

use fonn_tests::component::program;
use fonn_tests::node::NodeOptions;

use super::documented::documented;

/// A workspace, and what Bazel keeps of it.
pub(crate) struct Workspace {
    bazel: PathBuf,
    dir: TempDir,
}

impl Workspace {
    pub(crate) fn new(bazel: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::create_dir(dir.path().join("w"))?;
        fs::write(dir.path().join("w/WORKSPACE"), "")?;
        let rule = "genrule(name = \"g\", outs = [\"out\"], cmd = \"date +%N > $@\")\n";
        fs::write(dir.path().join("w/BUILD"), rule)?;
        Ok(Self {
            bazel: bazel.to_owned(),
            dir,
        })
    }

    /// Runs a command of Bazel; returns what it says.
    fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.bazel);
        command
            .arg("--output_user_root")
            .arg(self.dir.path().join("root"));
        command
            .args(["--batch", "--nohome_rc", "--nosystem_rc"])
            .args(arguments);
        command
            .current_dir(self.dir.path().join("w"))
            .env("HOME", self.dir.path());
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{arguments:?}: {text}");
        Ok(text)
    }

    /// Builds without anything that was built before.
    pub(crate) fn build(&self, documented: &str) -> Result<(String, String)> {
        self.build_with(documented, &[])
    }

    /// The same with more arguments.
    pub(crate) fn build_with(&self, documented: &str, more: &[&str]) -> Result<(String, String)> {
        self.run(&["clean"])?;
        let arguments = documented.split_whitespace().skip(1);
        let arguments: Vec<&str> = arguments.chain(more.iter().copied()).collect();
        let text = self.run(&arguments)?;
        let output = fs::read_to_string(self.dir.path().join("w/bazel-bin/out"))?;
        Ok((text, output))
    }
}

#[test]
fn bazel_hits_and_builds_again_what_is_gone() -> Result<()> {
    let Some(bazel) = program("bazel")? else {
        return Ok(());
    };
    let mut node = NodeOptions::new().with_http().start()?;
    let line = documented("Bazel", node.http())?;
    let workspace = Workspace::new(&bazel)?;
    let (_, first) = workspace.build(&line)?;
    node.kill9()?;
    node.start_again()?;
    let (text, second) = workspace.build(&line)?;
    ensure!(text.contains("1 remote cache hit"), "{text}");
    ensure!(first == second, "{text}");
    // Another instance has other entries.
    let other = line.replace(&node.http().to_string(), &format!("{}/other", node.http()));
    let (text, third) = workspace.build(&other)?;
    ensure!(
        !text.contains("remote cache hit") && third != first,
        "{text}"
    );
    // Without the node a build is not faster, and no failure.
    node.kill9()?;
    let (_, fourth) = workspace.build(&line)?;
    ensure!(fourth != first && fourth != third);
    Ok(())
}
