//! The go command with `fonnctl gocache`, where the cache cannot be used: the build goes on.
//!
//! A go command with a cache is a row of the table of build tools.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use fonn_tests::component::program;
use fonn_tests::node::{FonnNode, NodeOptions, ctl_program};
use fonn_tests::process::{Signal, free_address};
use fonn_tests::spilled::wait_until;

use super::documented::without_variables;

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(120);

const PACKAGES: usize = 8;

/// What the go command runs its tools with: the compilation of the last package says that it
/// begins, and waits until it may go on.
const TOOL: &str = r#"#!/bin/sh
case " $* " in
*" -p example.test/sum "*)
    touch DIR/begun
    while [ ! -e DIR/may-go-on ]; do sleep 0.02; done
    ;;
esac
exec "$@"
"#;

/// A module of some packages, and one that imports all.
pub(crate) struct Module {
    go: PathBuf,
    dir: TempDir,
}

/// Makes a source an old one. The go command stores no index of a directory whose files are less
/// than two seconds old, so a build soon after it stores more.
///
/// # Errors
/// When the file cannot be opened.
pub(crate) fn make_old(path: &Path) -> Result<()> {
    let file = File::options().append(true).open(path)?;
    let hour = Duration::from_secs(3600);
    Ok(file.set_modified(SystemTime::now() - hour)?)
}

/// A build that ended well.
#[derive(Debug)]
pub(crate) struct Built {
    said: String,
    /// By the helper's last line.
    pub(crate) hits: u64,
    misses: u64,
    stored: u64,
    pub(crate) sent: u64,
    pub(crate) failures: u64,
}

impl Built {
    fn of(said: String) -> Result<Self> {
        let line = said.lines().find(|line| line.contains(" misses, "));
        let line = line.with_context(|| format!("no line of fonnctl in: {said}"))?;
        let number = |what: &str| -> Result<u64> {
            let (before, _) = line.split_once(what).with_context(|| line.to_owned())?;
            let number = before.rsplit([' ', '(']).next().unwrap_or_default();
            Ok(number.parse()?)
        };
        Ok(Self {
            hits: number(" hits")?,
            misses: number(" misses")?,
            stored: number(" stored")?,
            sent: number(" sent")?,
            failures: number(" failures")?,
            said,
        })
    }

    /// Checks that all came from the server.
    pub(crate) fn expect_hits(&self) -> Result<()> {
        let is_all = self.hits > PACKAGES as u64 && self.stored == 0 && self.failures == 0;
        ensure!(is_all, "{self:?}");
        Ok(())
    }

    /// Checks that nothing came from the server, and nothing failed.
    pub(crate) fn expect_no_hits(&self) -> Result<()> {
        ensure!((self.hits, self.failures) == (0, 0), "{self:?}");
        Ok(())
    }

    /// Checks that the helper has warned so, once, and of nothing else.
    fn expect_one_warning(&self, part: &str) -> Result<()> {
        let warnings = self
            .said
            .lines()
            .filter(|it| it.contains("goes on without"));
        let warnings: Vec<&str> = warnings.collect();
        ensure!(
            warnings.len() == 1 && warnings[0].contains(part),
            "{part}: {}",
            self.said
        );
        Ok(())
    }
}

impl Module {
    /// None where the go command is not installed.
    pub(crate) fn new() -> Result<Option<Self>> {
        let Some(go) = program("go")? else {
            return Ok(None);
        };
        let dir = tempfile::tempdir()?;
        let root = dir.path();
        let source = |name: &str, text: &str| -> Result<()> {
            let path = root.join("module").join(name);
            fs::create_dir_all(path.parent().context("a file without a directory")?)?;
            fs::write(&path, text)?;
            make_old(&path)
        };
        source("go.mod", "module example.test/sum\n\ngo 1.24\n")?;
        let (mut imports, mut sum) = (String::new(), String::new());
        for number in 0..PACKAGES {
            let name = format!("p{number}");
            let text = format!("package {name}\n\nfunc Of(a int) int {{ return a + {number} }}\n");
            source(&format!("{name}/of.go"), &text)?;
            imports.push_str(&format!("import \"example.test/sum/{name}\"\n"));
            sum.push_str(&format!(" + {name}.Of(a)"));
        }
        let text = format!("package sum\n\n{imports}\nfunc Of(a int) int {{ return a{sum} }}\n");
        source("sum.go", &text)?;
        let tool = TOOL.replace("DIR", &root.display().to_string());
        fs::write(root.join("tool"), tool)?;
        fs::set_permissions(root.join("tool"), Permissions::from_mode(0o755))?;
        fs::create_dir(root.join("tmp"))?;
        Ok(Some(Self { go, dir }))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A path where no directory can be, not even for root.
    fn unusable(&self) -> Result<PathBuf> {
        fs::write(self.path("file"), "")?;
        Ok(self.path("file").join("dir"))
    }

    /// The go command with these flags of the helper, which has no directory of earlier builds.
    fn command(&self, flags: &str, arguments: &[&str]) -> Result<Command> {
        let home = self.path("home");
        if home.exists() {
            fs::remove_dir_all(&home)?;
        }
        fs::create_dir(&home)?;
        let mut command = Command::new(&self.go);
        without_variables(&mut command, &["GO", "FONN_"]);
        let helper = ctl_program()?;
        command
            .args(arguments)
            .current_dir(self.path("module"))
            .env(
                "GOCACHEPROG",
                format!("{} gocache {flags}", helper.display()),
            )
            .env("HOME", &home)
            .env("XDG_CACHE_HOME", home.join("cache"))
            .env("TMPDIR", self.path("tmp"))
            .env("GOTOOLCHAIN", "local")
            .env("GOPROXY", "off")
            .env("FONN_GOCACHE_STATS", "true");
        Ok(command)
    }

    /// Builds the module, and checks that there is something.
    pub(crate) fn build(&self, flags: &str, more: &[&str]) -> Result<Built> {
        let archive = self.path("sum.a");
        if archive.exists() {
            fs::remove_file(&archive)?;
        }
        let arguments = [&["build", "-o", "../sum.a"], more, &["."]].concat();
        let built = run(&mut self.command(flags, &arguments)?)?;
        ensure!(fs::metadata(archive)?.len() > 0, "{}", built.said);
        Ok(built)
    }
}

fn run(command: &mut Command) -> Result<Built> {
    let output = command.output().context("starting the go command")?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    ensure!(output.status.success(), "{command:?}: {said}");
    Built::of(said)
}

/// Requests over HTTP that the node has answered.
fn requests(node: &FonnNode) -> Result<u64> {
    let answered = node.metric("fonn_http_requests_total")?;
    Ok(answered.context("no such metric")? as u64)
}

fn node() -> Result<FonnNode> {
    NodeOptions::new().in_memory().with_http().start()
}

fn is_empty(dir: &Path) -> Result<bool> {
    Ok(fs::read_dir(dir)?.next().is_none())
}

#[test]
fn a_hit_of_the_go_command_is_one_request() -> Result<()> {
    let Some(module) = Module::new()? else {
        return Ok(());
    };
    let node = node()?;
    let flags = format!("--server {} --deadline 60s --upload-wait 60s", node.http());
    let mut before = requests(&node)?;
    for is_first in [true, false] {
        let built = module.build(&flags, &[])?;
        let after = requests(&node)?;
        // Each build begins without a directory, so a hit or a miss is one request.
        let expected = built.hits + built.misses + built.sent;
        ensure!(after - before == expected, "{before} to {after}: {built:?}");
        ensure!(
            built.failures == 0 && built.sent == built.stored,
            "{built:?}"
        );
        ensure!(is_first == (built.hits == 0), "{built:?}");
        ensure!(is_first || built.hits > PACKAGES as u64, "{built:?}");
        before = after;
    }
    Ok(())
}

#[test]
fn go_builds_without_a_server_at_the_address_and_with_one_that_hangs() -> Result<()> {
    let Some(module) = Module::new()? else {
        return Ok(());
    };
    let built = module.build(&format!("--server {}", free_address()?), &[])?;
    ensure!(built.hits == 0 && built.sent == 0 && built.failures > 0);
    let mut node = node()?;
    node.daemon()?.signal(Signal::STOP)?;
    // The kernel accepts connections, and nothing answers them.
    let short = "--deadline 100ms --upload-wait 100ms";
    let built = module.build(&format!("--server {} {short}", node.http()), &[])?;
    ensure!(built.hits == 0 && built.sent == 0 && built.failures > 0);
    node.daemon()?.signal(Signal::CONT)?;
    Ok(())
}

#[test]
fn go_builds_although_the_server_is_killed_in_the_middle() -> Result<()> {
    let Some(module) = Module::new()? else {
        return Ok(());
    };
    let mut node = node()?;
    let flags = format!("--server {}", node.http());
    let tool = module.path("tool");
    let more = ["-toolexec", tool.to_str().context("a path")?];
    let built = thread::scope(|scope| {
        let building = scope.spawn(|| module.build(&flags, &more));
        let killed = wait_until("the last package begins", LIMIT, || {
            ensure!(!building.is_finished(), "the build is over");
            Ok(module.path("begun").exists())
        })
        .and_then(|()| node.kill9());
        // The tool goes on in any case.
        fs::write(module.path("may-go-on"), "")?;
        let built = building.join().unwrap();
        killed.and(built)
    })?;
    ensure!(
        built.failures > 0 && built.stored > PACKAGES as u64,
        "{built:?}"
    );
    Ok(())
}

#[test]
fn go_builds_without_a_directory_of_the_helper() -> Result<()> {
    let Some(module) = Module::new()? else {
        return Ok(());
    };
    let node = node()?;
    let unusable = module.unusable()?;
    let flags = format!(
        "--server {} --deadline 60s --upload-wait 60s --dir {}",
        node.http(),
        unusable.display()
    );
    let first = module.build(&flags, &[])?;
    ensure!(first.hits == 0 && first.sent == first.stored, "{first:?}");
    let second = module.build(&flags, &[])?;
    ensure!(second.hits > PACKAGES as u64, "{second:?}");
    for built in [first, second] {
        built.expect_one_warning("cannot use the directory")?;
    }
    ensure!(is_empty(&module.path("tmp"))?, "the place is left over");

    // Nor is there a place for temporary directories. The go command has one of its own.
    for arguments in [
        &["build", "-o", "../sum.a", "."][..],
        &["vet", "./..."],
        &["list", "-export", "./..."],
    ] {
        let mut command = module.command(&flags, arguments)?;
        command
            .env("TMPDIR", &unusable)
            .env("GOTMPDIR", module.path("tmp"));
        let built = run(&mut command)?;
        ensure!(
            (built.hits, built.stored, built.failures) == (0, 0, 0),
            "{built:?}"
        );
        for part in ["cannot use the directory", "cannot make a temporary"] {
            let count = built.said.matches(part).count();
            ensure!(count == 1, "{part}: {built:?}");
        }
    }
    ensure!(requests(&node)? > 0);
    Ok(())
}

#[test]
fn go_builds_without_the_file_of_its_token() -> Result<()> {
    let Some(module) = Module::new()? else {
        return Ok(());
    };
    let node = node()?;
    let before = requests(&node)?;
    let file = module.path("none");
    for (flags, part) in [("--token-file", "--token-file"), ("--tls-ca", "--tls-ca")] {
        let flags = format!("--server {} {flags} {}", node.http(), file.display());
        let built = module.build(&flags, &[])?;
        built.expect_one_warning(part)?;
        ensure!((built.hits, built.sent, built.failures) == (0, 0, 0));
    }
    ensure!(requests(&node)? == before, "the server was asked");
    Ok(())
}
