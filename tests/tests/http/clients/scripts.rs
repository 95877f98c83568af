//! Nx, Turborepo and moon. Their task tells the time, so the same output twice was not made twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use fonn_tests::component::{present, program};

use super::super::documented::{after, without_variables};
use super::super::turborepo;
use super::{Build, Endpoint, Found, Refused, Tool};

/// The tools of this file that are installed.
///
/// # Errors
/// In CI, when one is missing.
pub(super) fn all() -> Result<Vec<Box<dyn Tool>>> {
    let mut tools: Vec<Box<dyn Tool>> = Vec::new();
    if let Some(nx) = Nx::new()? {
        tools.push(Box::new(nx));
    }
    if let (Some(turbo), Some(_)) = (program("turbo")?, program("npm")?) {
        tools.push(Box::new(turborepo::Workspace::new(&turbo)?));
    }
    if let Some(moon) = program("moon")? {
        for section in ["moon", "moon over gRPC"] {
            tools.push(Box::new(Moon::new(&moon, section)?));
        }
    }
    Ok(tools)
}

/// What a command says that ends well.
pub(super) fn said(command: &mut Command) -> Result<String> {
    let output = command.output().context("starting a build tool")?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    ensure!(output.status.success(), "{command:?}: {text}");
    Ok(text)
}

/// Removes directories and files below `root`.
pub(super) fn remove(root: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let path = root.join(name);
        if path.is_dir() {
            fs::remove_dir_all(path)?;
        } else if path.exists() {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Writes files below `root`.
pub(super) fn write(root: &Path, files: &[(&str, &str)]) -> Result<()> {
    for (name, text) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().context("a file without a directory")?)?;
        fs::write(path, text)?;
    }
    Ok(())
}

/// Makes `root` a repository of git, with all its files in one commit.
pub(super) fn commit_all(root: &Path) -> Result<()> {
    for arguments in [
        &["init", "-q", "-b", "main"][..],
        &["add", "-A"],
        &["commit", "-q", "-m", "all"],
    ] {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=test", "-c", "user.email=test@example.com"])
            .args(arguments)
            .current_dir(root);
        without_variables(&mut git, &["GIT_"]);
        said(&mut git)?;
    }
    Ok(())
}

/// A workspace of Nx with one project.
pub(crate) struct Nx {
    program: PathBuf,
    dir: TempDir,
}

impl Nx {
    /// `None` when Nx is not installed.
    ///
    /// # Errors
    /// In CI, when Nx is missing.
    pub(crate) fn new() -> Result<Option<Self>> {
        let (Some(link), Some(_)) = (program("nx")?, program("node")?) else {
            return Ok(None);
        };
        // The program is a link into the packages, which a workspace has, too.
        let program = fs::canonicalize(&link)?;
        let packages = program
            .ancestors()
            .find(|dir| dir.ends_with("node_modules"))
            .map(Path::to_owned);
        let Some(packages) = present("the packages of nx", packages)? else {
            return Ok(None);
        };
        let dir = tempfile::tempdir()?;
        std::os::unix::fs::symlink(packages, dir.path().join("node_modules"))?;
        let project = r#"{"name":"a","targets":{"build":{"command":"mkdir -p dist && (printenv STAMP || date +%N) > dist/out","cache":true,
            "inputs":["{projectRoot}/project.json"],"outputs":["{workspaceRoot}/dist"]}}}"#;
        let files = [
            ("nx.json", r#"{"analytics":false}"#),
            ("package.json", r#"{"name":"w","private":true}"#),
            ("a/project.json", project),
        ];
        write(dir.path(), &files)?;
        Ok(Some(Self { program, dir }))
    }

    /// Builds with these variables, which are no input of the hash. The task writes `STAMP` instead
    /// of the time.
    pub(crate) fn build_with(&self, at: &Endpoint, environment: &[(&str, &str)]) -> Result<Build> {
        let root = self.dir.path();
        remove(root, &[".nx", "dist", "home"])?;
        fs::create_dir(root.join("home"))?;
        let mut command = after(&at.lines("Nx")?, &self.program);
        without_variables(&mut command, &["NX_"]);
        command
            .env("NX_DAEMON", "false")
            .env("NO_COLOR", "1")
            .env("HOME", root.join("home"))
            .envs(environment.iter().copied());
        let said = said(command.args(["run", "a:build"]).current_dir(root))?;
        Ok(Build {
            found: Found::all_if(said.contains("for 1 out of 1 tasks")),
            output: fs::read(root.join("dist/out"))?,
            said,
        })
    }
}

impl Tool for Nx {
    fn name(&self) -> String {
        "Nx".to_owned()
    }

    fn when_refused(&self) -> Refused {
        // The line of the 401 follows.
        Refused::Ends("Unauthorized: ")
    }

    fn build(&self, at: &Endpoint) -> Result<Build> {
        self.build_with(at, &[])
    }
}

impl Tool for turborepo::Workspace {
    fn name(&self) -> String {
        "Turborepo, signed".to_owned()
    }

    fn build(&self, at: &Endpoint) -> Result<Build> {
        let (said, output) = self.build_with(at, &[])?;
        Ok(Build {
            found: Found::all_if(said.contains("FULL TURBO")),
            output: output.into_bytes(),
            said,
        })
    }
}

/// A workspace of moon with one project. moon wants a repository with a commit.
pub(crate) struct Moon {
    program: PathBuf,
    section: &'static str,
    dir: TempDir,
}

impl Moon {
    fn new(program: &Path, section: &'static str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        // Over gRPC blobs go in streams that moon compresses, and one of them is long.
        let (remote, more) = match section {
            "moon over gRPC" => (
                "remote: {cache: {compression: 'zstd', verifyIntegrity: true}}\n",
                "head -c 8000000 /dev/urandom >> out\n",
            ),
            _ => ("", ""),
        };
        let script = format!("# {section}\ndate +%N > out\n{more}");
        let workspace =
            format!("projects: ['a']\nvcs: {{defaultBranch: 'main'}}\ntelemetry: false\n{remote}");
        let files = [
            (".moon/workspace.yml", workspace.as_str()),
            (
                "a/moon.yml",
                "tasks: {build: {command: 'sh make.sh', inputs: ['make.sh'], outputs: ['out']}}\n",
            ),
            ("a/make.sh", script.as_str()),
        ];
        write(dir.path(), &files)?;
        fs::create_dir(dir.path().join("home"))?;
        commit_all(dir.path())?;
        Ok(Self {
            program: program.to_owned(),
            section,
            dir,
        })
    }

    /// moon over gRPC; none where it is not installed.
    ///
    /// # Errors
    /// In CI, when it is missing.
    pub(crate) fn over_grpc() -> Result<Option<Self>> {
        let Some(moon) = program("moon")? else {
            return Ok(None);
        };
        Self::new(&moon, "moon over gRPC").map(Some)
    }

    /// Builds with these lines, without the local state of earlier builds.
    pub(crate) fn build_with(&self, lines: &str) -> Result<Build> {
        let root = self.dir.path();
        remove(root, &[".moon/cache", "a/out"])?;
        let mut command = after(lines, &self.program);
        without_variables(&mut command, &["MOON_", "GIT_"]);
        command.env("HOME", root.join("home")).env("NO_COLOR", "1");
        let said = said(command.args(["run", "a:build"]).current_dir(root))?;
        Ok(Build {
            found: Found::all_if(said.contains("cached from remote")),
            output: fs::read(root.join("a/out"))?,
            said,
        })
    }
}

impl Tool for Moon {
    fn name(&self) -> String {
        self.section.to_owned()
    }

    fn build(&self, at: &Endpoint) -> Result<Build> {
        self.build_with(&at.lines(self.section)?)
    }
}
