//! Turborepo, whose task tells the time, with signatures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use tempfile::TempDir;

use fonn_tests::component::program;
use fonn_tests::node::NodeOptions;
use fonn_tests::process::run;

use super::documented::{Endpoint, exported, without_variables};

const KEY: &str = "a key of more than thirty-two bytes";

/// A workspace with one package.
pub(crate) struct Workspace {
    turbo: PathBuf,
    dir: TempDir,
}

impl Workspace {
    pub(crate) fn new(turbo: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let package = dir.path().join("packages/a");
        fs::create_dir_all(&package)?;
        for (file, text) in [
            (
                "package.json",
                r#"{"name":"w","private":true,"packageManager":"npm@10.0.0","workspaces":["packages/*"]}"#,
            ),
            (
                "package-lock.json",
                r#"{"name":"w","lockfileVersion":3,"packages":{"":{"name":"w","workspaces":["packages/*"]},"packages/a":{"name":"a","version":"1.0.0"},"node_modules/a":{"resolved":"packages/a","link":true}}}"#,
            ),
            (
                "turbo.json",
                r#"{"tasks":{"build":{"outputs":["dist/**"]}},"remoteCache":{"enabled":true,"signature":true,"preflight":true}}"#,
            ),
            (
                "packages/a/package.json",
                r#"{"name":"a","version":"1.0.0","scripts":{"build":"mkdir -p dist && date +%N > dist/out"}}"#,
            ),
        ] {
            fs::write(dir.path().join(file), text)?;
        }
        Ok(Self {
            turbo: turbo.to_owned(),
            dir,
        })
    }

    /// Builds without anything that was built before, with these variables beside the documented
    /// ones; returns what Turborepo says, and the output.
    pub(crate) fn build_with(
        &self,
        at: &Endpoint,
        environment: &[(&str, &str)],
    ) -> Result<(String, String)> {
        let root = self.dir.path();
        for dir in [
            ".turbo",
            "packages/a/.turbo",
            "packages/a/dist",
            "node_modules/.cache",
        ] {
            if root.join(dir).exists() {
                fs::remove_dir_all(root.join(dir))?;
            }
        }
        let mut command = Command::new(&self.turbo);
        without_variables(&mut command, &["TURBO_"]);
        command.envs(exported(&at.lines("Turborepo")?));
        command
            .env("TURBO_REMOTE_CACHE_SIGNATURE_KEY", KEY)
            .envs(environment.iter().copied());
        command
            .env("TURBO_TELEMETRY_DISABLED", "1")
            .env("DO_NOT_TRACK", "1")
            .env("HOME", root);
        let text = run(command.args(["run", "build"]).current_dir(root))?;
        Ok((text, fs::read_to_string(root.join("packages/a/dist/out"))?))
    }
}

#[test]
fn turborepo_trusts_only_what_its_key_has_signed() -> Result<()> {
    let (Some(turbo), Some(_)) = (program("turbo")?, program("npm")?) else {
        return Ok(());
    };
    let node = NodeOptions::new().in_memory().with_http().start()?;
    let at = Endpoint::open(node.http());
    let workspace = Workspace::new(&turbo)?;
    let (_, first) = workspace.build_with(&at, &[])?;
    let (text, second) = workspace.build_with(&at, &[])?;
    ensure!(text.contains("FULL TURBO") && first == second, "{text}");
    let page = node.http_get("/metrics")?.body;
    ensure!(
        page.contains("fonn_http_turborepo_events_total{event=\"remote_hit\"} 1"),
        "{page}"
    );
    for other in [
        ("TURBO_TEAM", "other"),
        (
            "TURBO_REMOTE_CACHE_SIGNATURE_KEY",
            "another key of more than 32 bytes",
        ),
    ] {
        let (text, output) = workspace.build_with(&at, &[other])?;
        ensure!(
            !text.contains("FULL TURBO") && output != first,
            "{other:?}: {text}"
        );
    }
    // Without the node a build is not faster, and no failure.
    drop(node);
    workspace.build_with(&at, &[])?;
    Ok(())
}
