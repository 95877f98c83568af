//! Bazel, whose action tells the time: the same output twice was not made twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use tempfile::TempDir;

use fonn_tests::component::program;
use fonn_tests::node::NodeOptions;

use super::clients::{Build, Endpoint, Found, Tool};
use super::documented::documented;

/// Debian's, which reads the system's settings to find its parts.
const DEBIAN: &str = "bazel-4";

/// A workspace, and what Bazel keeps of it. Its server ends with it.
pub(crate) struct Workspace {
    bazel: PathBuf,
    section: &'static str,
    dir: TempDir,
}

/// The versions of Bazel that are installed, over both protocols. Version 2.1 logs in over gRPC
/// with reads alone, so it has tests of its own there.
///
/// # Errors
/// In CI, when one is missing.
pub(crate) fn all() -> Result<Vec<Box<dyn Tool>>> {
    let mut tools: Vec<Box<dyn Tool>> = Vec::new();
    for (name, section) in [
        ("bazel", "Bazel"),
        (DEBIAN, "Bazel"),
        (DEBIAN, "Bazel over gRPC"),
    ] {
        if let Some(bazel) = program(name)? {
            tools.push(Box::new(Workspace::of(&bazel, section)?));
        }
    }
    Ok(tools)
}

impl Workspace {
    /// One whose server is started anew for each test.
    pub(crate) fn new(bazel: &Path) -> Result<Self> {
        Self::of(bazel, "Bazel")
    }

    /// One whose output has 4 MB.
    pub(crate) fn with_large_output(bazel: &Path, section: &'static str) -> Result<Self> {
        let random = "head -c 3000000 /dev/urandom | base64 -w0";
        Self::with_command(bazel, section, &format!("(date +%N; {random})"))
    }

    fn of(bazel: &Path, section: &'static str) -> Result<Self> {
        Self::with_command(bazel, section, "date +%N")
    }

    fn with_command(bazel: &Path, section: &'static str, command: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::create_dir(dir.path().join("w"))?;
        fs::write(dir.path().join("w/WORKSPACE"), "")?;
        // Workspaces that share a cache share no action.
        let rule = format!(
            "genrule(name = \"g\", outs = [\"out\"], cmd = \"{command} > $@ # {} {section}\")\n",
            bazel.display()
        );
        fs::write(dir.path().join("w/BUILD"), rule)?;
        Ok(Self {
            bazel: bazel.to_owned(),
            section,
            dir,
        })
    }

    /// Runs lines with this `bazel`; returns what it says.
    fn run(&self, lines: &str) -> Result<String> {
        let mut command = Command::new("sh");
        let shim = "startup=\"$*\"\nbazel() { \"$BAZEL\" $startup \"$@\"; }";
        command.arg("-ec").arg(format!("{shim}\n{lines}")).arg("sh");
        command.arg(format!(
            "--output_user_root={}",
            self.dir.path().join("root").display()
        ));
        command.args(["--nohome_rc", "--max_idle_secs=60"]);
        // A start of Java that compiles little of itself is a shorter one.
        command.arg("--host_jvm_args=-XX:TieredStopAtLevel=1");
        if !self.bazel.ends_with(DEBIAN) {
            command.arg("--nosystem_rc");
        }
        command
            .current_dir(self.dir.path().join("w"))
            .env("BAZEL", &self.bazel)
            .env("HOME", self.dir.path());
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{lines}: {text}");
        Ok(text)
    }

    /// Builds without anything that was built before.
    pub(crate) fn build(&self, documented: &str) -> Result<(String, String)> {
        self.build_with(documented, &[])
    }

    /// The same with more arguments.
    pub(crate) fn build_with(&self, documented: &str, more: &[&str]) -> Result<(String, String)> {
        let more: Vec<String> = more.iter().map(|it| format!(" '{it}'")).collect();
        let line = documented.trim_end();
        let text = self.run(&format!("bazel clean\n{line}{}", more.concat()))?;
        let output = fs::read_to_string(self.dir.path().join("w/bazel-bin/out"))?;
        Ok((text, output))
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // Else it ends by itself after a minute.
        let _ = self.run("bazel shutdown");
    }
}

impl Tool for Workspace {
    fn name(&self) -> String {
        let program = self.bazel.file_name().unwrap_or_default();
        format!("{} ({})", self.section, program.display())
    }

    fn build(&self, at: &Endpoint) -> Result<Build> {
        let (said, output) = self.build_with(&at.lines(self.section)?, &[])?;
        Ok(Build {
            found: Found::all_if(said.contains("1 remote cache hit")),
            output: output.into_bytes(),
            said,
        })
    }
}

#[test]
fn bazel_keeps_instances_apart_and_builds_without_the_node() -> Result<()> {
    let Some(bazel) = program("bazel")? else {
        return Ok(());
    };
    let mut node = NodeOptions::new().in_memory().with_http().start()?;
    let line = documented("Bazel", node.http())?;
    let workspace = Workspace::new(&bazel)?;
    let (_, first) = workspace.build(&line)?;
    let other = line.replace(&node.http().to_string(), &format!("{}/other", node.http()));
    let (text, second) = workspace.build(&other)?;
    ensure!(
        !text.contains("remote cache hit") && second != first,
        "{text}"
    );
    // Without the node a build is not faster, and no failure.
    node.kill9()?;
    let (_, third) = workspace.build(&line)?;
    ensure!(third != first && third != second);
    Ok(())
}
