//! Project tools: `cargo xtask COMMAND`.

mod admin_api;
mod cargo;
mod cluster;
mod codegen;
mod crates;
mod generated;
mod metrics_list;
mod prose;
mod protocols;
mod sbom;
mod settings;
mod suites;
mod tidy;

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

const USAGE: &str = "\
Usage: cargo xtask COMMAND

Commands:
  tidy           check imports between crates, the length of files, paths of machines, and prose
                 (--commits BASE..HEAD also checks the subjects of these commits)
  codegen        write proto/src/gen/ from proto/fonn/v1/*.proto
  crates         write the graph and the table of crates in docs/architecture.md, from the manifests
  admin-api      write the reference of the admin port, docs/admin-api.md, from the comments of these
  protocols      write the tables of docs/protocols.md
  sample-config  write deploy/config/node.sample.toml and the settings in README.md
  metrics-list   write the tables of docs/metrics.md
  sbom           print the bill of materials of a release (CycloneDX)
  ci-suite       run suites that take minutes (ci-suite NAME…), or list them
  cluster        start nodes, routers and a bucket on this machine (cluster --help)
";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            // There is no other place to report it when the standard streams are closed.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Exit codes: 0 clean, 1 findings, 2 wrong usage or a tool that could not work.
fn run() -> Result<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["tidy"] => {
            writeln!(
                io::stderr(),
                "tidy: commit subjects are not checked, because there is no range (--commits BASE..HEAD)"
            )?;
            tidy_up(None)
        }
        ["tidy", "--commits", range] => tidy_up(Some(range)),
        ["codegen"] => write(&codegen::FILES),
        ["crates"] => write(&crates::FILES),
        ["admin-api"] => write(&admin_api::FILES),
        ["protocols"] => write(&protocols::FILES),
        ["sample-config"] => write(&settings::FILES),
        ["metrics-list"] => write(&metrics_list::FILES),
        ["sbom"] => {
            io::stdout().write_all(sbom::text(&root()?)?.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        ["ci-suite", ..] => suites::run(args.get(1..).unwrap_or_default(), &root()?),
        ["cluster", ..] => cluster::run(args.get(1..).unwrap_or_default(), &root()?),
        ["help" | "--help" | "-h"] => {
            io::stdout().write_all(USAGE.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            io::stderr().write_all(USAGE.as_bytes())?;
            Ok(ExitCode::from(2))
        }
    }
}

/// Prints what `tidy` finds.
fn tidy_up(commits: Option<&str>) -> Result<ExitCode> {
    let findings = tidy::check(&root()?, commits)?;
    let mut out = io::stdout().lock();
    for finding in &findings {
        writeln!(out, "{finding}")?;
    }
    Ok(ExitCode::from(u8::from(!findings.is_empty())))
}

/// Writes generated files, and says which have changed.
fn write(files: &[generated::File]) -> Result<ExitCode> {
    let root = root()?;
    for file in files {
        let outcome = if file.write(&root)? {
            "written"
        } else {
            "up to date"
        };
        writeln!(io::stdout(), "{}: {outcome}", file.path)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The directory of the workspace, the parent of this package's.
fn root() -> Result<PathBuf> {
    let package = env::var_os("CARGO_MANIFEST_DIR").context("run it as `cargo xtask`")?;
    let root = Path::new(&package)
        .parent()
        .context("xtask has no parent directory")?;
    Ok(root.to_owned())
}
