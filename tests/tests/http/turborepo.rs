//! Turborepo, whose task tells the time, with signatures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use tempfile::TempDir;

use fonn_tests::component::program;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::run;

use super::documented::{documented, exported};

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

    /// Builds without anything that was built before; returns what Turborepo says, and the output.
    fn build(&self, node: &FonnNode, team: &str, key: &str) -> Result<(String, String)> {
        let environment = [
            ("TURBO_TEAM", team),
            ("TURBO_REMOTE_CACHE_SIGNATURE_KEY", key),
        ];
        self.build_with(node, &environment)
    }

    /// The same, with other variables in the environment than those of the documentation.
    pub(crate) fn build_with(
        &self,
        node: &FonnNode,
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
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"TURBO_") {
                command.env_remove(name);
            }
        }
        command.envs(exported(&documented("Turborepo", node.http())?));
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
fn turborepo_hits_and_trusts_only_what_its_key_has_signed() -> Result<()> {
    let (Some(turbo), Some(_)) = (program("turbo")?, program("npm")?) else {
        return Ok(());
    };
    let mut node = NodeOptions::new().with_http().start()?;
    let workspace = Workspace::new(&turbo)?;
    let (_, first) = workspace.build(&node, "acme", KEY)?;
    node.kill9()?;
    node.start_again()?;
    let (text, second) = workspace.build(&node, "acme", KEY)?;
    ensure!(text.contains("FULL TURBO") && first == second, "{text}");
    let page = node.http_get("/metrics")?.body;
    ensure!(
        page.contains("fonn_http_turborepo_events_total{event=\"remote_hit\"} 1"),
        "{page}"
    );
    for (team, key) in [
        ("other", KEY),
        ("acme", "another key of more than 32 bytes"),
    ] {
        let (text, output) = workspace.build(&node, team, key)?;
        ensure!(
            !text.contains("FULL TURBO") && output != first,
            "{team}: {text}"
        );
    }
    // Without the node a build is not faster, and no failure.
    node.kill9()?;
    workspace.build(&node, "acme", KEY)?;
    Ok(())
}
