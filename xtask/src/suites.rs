//! `cargo xtask ci-suite NAME`: the suites that take minutes. `cargo test --workspace` leaves them
//! out, or runs a short form of them; CI runs them all.

use std::env;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::cargo;

/// A suite: one run of `cargo test --locked --workspace`.
struct Suite {
    name: &'static str,
    about: &'static str,
    /// Nodes come from `cargo build --release`: what they promise in seconds is asserted.
    has_optimised_nodes: bool,
    /// Variables that are not set already.
    variables: &'static [(&'static str, &'static str)],
    arguments: &'static [&'static str],
}

const SUITES: &[Suite] = &[
    Suite {
        name: "simulations",
        about: "the cluster and its replication with 150 and 300 seeds",
        has_optimised_nodes: false,
        variables: &[
            ("FONN_SIMULATION_SEEDS", "150"),
            ("FONN_REPLICATION_SEEDS", "300"),
        ],
        arguments: &[
            "--lib",
            "--test",
            "proof",
            "--",
            "simulation::whatever_happens",
            "simulation::no_seed",
        ],
    },
    Suite {
        name: "crash",
        about: "kill -9 at random moments under a writer that keeps book",
        has_optimised_nodes: true,
        variables: &[("FONN_CRASH_ROUNDS", "30")],
        arguments: &["--test", "crash", "--", "--nocapture"],
    },
    Suite {
        name: "failures",
        about: "machines, links and buckets fail under load; the bucket stays away for two minutes",
        has_optimised_nodes: true,
        variables: &[("FONN_STRICT_TIMES", "1"), ("FONN_OUTAGE_SECONDS", "120")],
        arguments: &["--test", "failures", "--", "--test-threads", "2"],
    },
    Suite {
        name: "silence",
        about: "each member in turn falls silent in each way: the rows of docs/failures.md",
        has_optimised_nodes: true,
        variables: &[("FONN_STRICT_TIMES", "1"), ("FONN_SILENCE", "all")],
        arguments: &[
            "--test",
            "silence",
            "--",
            "--nocapture",
            "--test-threads",
            "2",
        ],
    },
    Suite {
        name: "consistency",
        about: "action results and their blobs for minutes, while the budget evicts and a member is lost",
        has_optimised_nodes: true,
        variables: &[("FONN_CONSISTENCY_SECONDS", "90")],
        arguments: &[
            "--test",
            "http",
            "--",
            "--nocapture",
            "a_result_that_is_returned_has_all_its_blobs",
        ],
    },
    Suite {
        name: "large",
        about: "a blob of 10 GiB, stored and read over HTTP",
        has_optimised_nodes: true,
        variables: &[("FONN_LARGE_BYTES", "10737418240")],
        arguments: &[
            "--test",
            "http",
            "--",
            "--nocapture",
            "a_blob_of_the_greatest_length",
        ],
    },
    Suite {
        name: "situations",
        about: "each build tool at a node, through a router, beside eviction and with tokens",
        has_optimised_nodes: true,
        variables: &[("FONN_SITUATIONS", "all")],
        arguments: &[
            "--test",
            "http",
            "--",
            "--nocapture",
            "every_build_tool_hits_in_every_situation",
        ],
    },
    Suite {
        name: "clients",
        about: "compile caches, command line tools and libraries as they are installed",
        has_optimised_nodes: false,
        variables: &[],
        arguments: &["--test", "real_clients"],
    },
];

/// Runs the suites of these names one after another, or lists all.
///
/// # Errors
///
/// A name that is none, and `cargo` that cannot be started.
pub(crate) fn run(names: &[String], root: &Path) -> Result<ExitCode> {
    if names.is_empty() {
        io::stdout().write_all(list().as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    for name in names {
        let Some(suite) = SUITES.iter().find(|it| it.name == name) else {
            bail!("there is no suite {name}; these are there:\n{}", list());
        };
        if !suite.run(root)? {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list() -> String {
    let mut text = String::new();
    for suite in SUITES {
        let _ = writeln!(text, "  {:<12} {}", suite.name, suite.about);
    }
    text
}

impl Suite {
    /// Whether all its tests passed.
    fn run(&self, root: &Path) -> Result<bool> {
        let mut tests = cargo(root);
        tests.args(["test", "--locked", "--workspace"]);
        tests.args(self.arguments);
        for (name, value) in self.variables {
            if env::var_os(name).is_none() {
                tests.env(name, value);
            }
        }
        if self.has_optimised_nodes && env::var_os("FONN_NODE_BIN").is_none() {
            tests.env("FONN_NODE_BIN", optimised_node(root)?);
        }
        Ok(tests.status().context("cargo test")?.success())
    }
}

/// Builds what `cargo run --release --bin fonn-node` starts.
fn optimised_node(root: &Path) -> Result<PathBuf> {
    let built = cargo(root)
        .args(["build", "--release", "--locked", "--bin", "fonn-node"])
        .status()
        .context("cargo build")?;
    ensure!(built.success(), "the node could not be built");
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/fonn-node"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    /// A suite that `cargo test` leaves out and that is not listed here would never run.
    #[test]
    fn what_cargo_test_leaves_out_is_a_suite() {
        let manifest = crate::root().unwrap().join("tests/Cargo.toml");
        let manifest: toml::Table = fs::read_to_string(manifest).unwrap().parse().unwrap();
        let left_out: BTreeSet<&str> = manifest["test"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|it| it["test"].as_bool() == Some(false))
            .map(|it| it["name"].as_str().unwrap())
            .collect();
        let listed = SUITES.iter().flat_map(|it| it.arguments);
        let listed: BTreeSet<&str> = listed.copied().collect();
        assert!(left_out.is_subset(&listed), "{left_out:?} {listed:?}");
        assert!(!left_out.is_empty());
    }

    #[test]
    fn a_name_that_is_none_is_an_error_with_those_that_are() {
        let error = run(&["nights".into()], Path::new("/")).unwrap_err();
        assert!(error.to_string().contains("failures"), "{error}");
    }
}
