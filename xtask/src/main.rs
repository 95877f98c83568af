//! Project tools: `cargo xtask COMMAND`.

mod admin_api;
mod cluster;
mod codegen;
mod generated;
mod metrics_list;
mod protocols;
mod sbom;
mod settings;
mod tidy;

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

const USAGE: &str = "\
Usage: cargo xtask COMMAND

Commands:
  tidy           check who imports whom, the length of files, and that no machine's paths are in them
  codegen        write proto/src/gen/ from proto/fonn/v1/*.proto
  admin-api      write the reference of the admin port, docs/admin-api.md, from the comments of these
  protocols      write the tables of docs/protocols.md
  sample-config  write deploy/config/node.sample.toml and the settings in README.md
  metrics-list   write the tables of docs/metrics.md
  sbom           print the bill of materials of a release (CycloneDX)
  cluster        start nodes, routers and a bucket on this machine (cluster --help)
";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            // Nobody is left to tell when the standard streams are closed.
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
            let findings = tidy::check(&root()?)?;
            let mut out = io::stdout().lock();
            for finding in &findings {
                writeln!(out, "{finding}")?;
            }
            Ok(ExitCode::from(u8::from(!findings.is_empty())))
        }
        ["codegen"] => write(&codegen::FILES),
        ["admin-api"] => write(&admin_api::FILES),
        ["protocols"] => write(&protocols::FILES),
        ["sample-config"] => write(&settings::FILES),
        ["metrics-list"] => write(&metrics_list::FILES),
        ["sbom"] => {
            io::stdout().write_all(sbom::text(&root()?)?.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
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
