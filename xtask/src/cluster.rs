//! `cargo xtask cluster`: nodes, routers and a bucket on this machine, for trying them out.
//!
//! Everything is one directory, which is removed at the end unless it is to be kept. The programs
//! are children in process groups of their own, so that Ctrl-C reaches this process alone, which
//! stops them in order.

mod children;
mod home;
mod ports;
mod ready;
mod table;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use fonn_base::shutdown::StopSignals;

use self::children::Children;
use self::home::Home;
use self::ports::{Member, Ports, Role};
use self::ready::Progress;
use crate::cargo::cargo;

/// From the start of the programs until all are ready.
const START_LIMIT: Duration = Duration::from_secs(60);

/// From the signal to stop until all programs are gone.
const STOP_LIMIT: Duration = Duration::from_millis(9_500);

/// Of that, what the nodes wait for the routers.
const ROUTERS_LIMIT: Duration = Duration::from_secs(2);

/// How often children and signals are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

const ABOUT: &str = "Nodes, routers and a bucket on this machine, for trying them out";

const AFTER_HELP: &str = "\
The bucket is a directory; with AWS_ENDPOINT_URL set it is s3://fonn/local there, which has to exist \
(--bucket names another).
Ctrl-C and SIGTERM stop everything within 10 seconds, a second one at once.
Exit codes: 0 clean stop, 1 something could not be started, 2 wrong usage.";

#[derive(Debug, Parser)]
#[command(name = "cargo xtask cluster", bin_name = "cargo xtask cluster", about = ABOUT, after_help = AFTER_HELP)]
struct Options {
    /// Nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: u16,
    /// Routers
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=16))]
    routers: u16,
    /// Where everything is kept; empty, or what an earlier run kept [default: a temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keeps the data: the next run with --dir goes on with it, on the same ports
    #[arg(long)]
    keep: bool,
    /// First of the ports to listen on, of three a node and two a router [default: free ones]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// The bucket below all nodes: s3://bucket/prefix or file:///dir [default: a directory]
    #[arg(long, value_name = "URL")]
    bucket: Option<String>,
    /// Builds the programs optimised
    #[arg(long)]
    release: bool,
    /// A program that is built already
    #[arg(long, value_name = "FILE", env = "FONN_NODE_BIN")]
    node_bin: Option<PathBuf>,
    /// A program that is built already
    #[arg(long, value_name = "FILE", env = "FONN_ROUTER_BIN")]
    router_bin: Option<PathBuf>,
    /// A program that is built already
    #[arg(long, value_name = "FILE", env = "FONN_CTL_BIN")]
    ctl_bin: Option<PathBuf>,
}

/// The programs.
struct Programs {
    node: PathBuf,
    router: PathBuf,
    /// To be named only.
    ctl: PathBuf,
}

/// Runs a cluster until a signal comes. `args` are the arguments behind `cluster`.
pub fn run(args: &[String], root: &Path) -> Result<ExitCode> {
    let words = std::iter::once("cluster").chain(args.iter().map(String::as_str));
    let options = match Options::try_parse_from(words) {
        Ok(options) => options,
        Err(error) => {
            // There is no other place to report it when the standard streams are closed.
            let _ = error.print();
            return Ok(ExitCode::from(error.exit_code() as u8));
        }
    };
    // From here on signals end the programs too.
    let signals = signals()?;
    let programs = programs(&options, root)?;
    let home = Home::open(options.dir.as_deref(), options.keep)?;
    let ran = with_home(&options, &programs, &home, &signals);
    let removed = home.close();
    let code = match ran {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    };
    removed?;
    Ok(code)
}

fn with_home(
    options: &Options,
    programs: &Programs,
    home: &Home,
    signals: &Receiver<()>,
) -> Result<ExitCode> {
    let ports = home.ports(|| Ports::choose(options.nodes, options.routers, options.port))?;
    ensure!(
        ports.count(Role::Node) == options.nodes && ports.count(Role::Router) == options.routers,
        "{} has {} nodes and {} routers; give the same --nodes and --routers, or another --dir",
        home.dir().display(),
        ports.count(Role::Node),
        ports.count(Role::Router),
    );
    let bucket = bucket(options, home);
    let mut children = Children::default();
    let setup = Setup {
        ports: &ports,
        programs,
        home,
        bucket: &bucket,
    };
    let started = start(&mut children, &setup, signals);
    let ended = started.and_then(|is_stopped| match is_stopped {
        true => Ok(()),
        false => {
            let told = table::Told {
                ports: &ports,
                dir: &home.dir().display().to_string(),
                bucket: &bucket,
                ctl: &programs.ctl.display().to_string(),
                keep: options.keep,
            };
            told.print(|name| children.pid(name))?;
            serve(&mut children, signals)
        }
    });
    let is_clean = stop(&mut children, signals)?;
    ended?;
    Ok(ExitCode::from(u8::from(!is_clean)))
}

/// The signals to stop, each as a message.
fn signals() -> Result<Receiver<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let installed = {
        let _inside = runtime.enter();
        StopSignals::install()
    };
    let mut stop = installed.context("cannot handle signals")?;
    let (sender, signals) = mpsc::sync_channel(16);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                loop {
                    stop.recv().await;
                    // A second signal needs no second wake.
                    let _ = sender.try_send(());
                }
            });
        })
        .context("cannot start a thread")?;
    Ok(signals)
}

/// Builds the programs that are not given.
fn programs(options: &Options, root: &Path) -> Result<Programs> {
    if let (Some(node), Some(router)) = (&options.node_bin, &options.router_bin) {
        for program in [node, router] {
            ensure!(program.is_file(), "there is no {}", program.display());
        }
        return Ok(Programs {
            node: node.clone(),
            router: router.clone(),
            ctl: options.ctl_bin.clone().unwrap_or("fonnctl".into()),
        });
    }
    let mut command = cargo(root);
    command.arg("build").args([
        "--workspace",
        "--bin",
        "fonn-node",
        "--bin",
        "fonn-router",
        "--bin",
        "fonnctl",
    ]);
    command.arg("--message-format=json-render-diagnostics");
    if options.release {
        command.arg("--release");
    }
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.context("running cargo build")?;
    ensure!(
        output.status.success(),
        "cargo build ended with {}",
        output.status
    );
    let built = |name: &str| executable(&output.stdout, name);
    Ok(Programs {
        node: options
            .node_bin
            .clone()
            .map_or_else(|| built("fonn-node"), Ok)?,
        router: options
            .router_bin
            .clone()
            .map_or_else(|| built("fonn-router"), Ok)?,
        ctl: options
            .ctl_bin
            .clone()
            .map_or_else(|| built("fonnctl"), Ok)?,
    })
}

/// Where Cargo says that it has put a program.
fn executable(messages: &[u8], name: &str) -> Result<PathBuf> {
    let messages = String::from_utf8_lossy(messages);
    let of_line = |line: &str| -> Option<PathBuf> {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == name).then_some(())?;
        Some(PathBuf::from(message["executable"].as_str()?))
    };
    let found = messages.lines().find_map(of_line);
    found.with_context(|| format!("cargo build does not tell where {name} is"))
}

fn bucket(options: &Options, home: &Home) -> String {
    match &options.bucket {
        Some(bucket) => bucket.clone(),
        None if std::env::var_os("AWS_ENDPOINT_URL").is_some() => "s3://fonn/local".to_owned(),
        None => format!("file://{}", home.bucket().display()),
    }
}

/// The steps of a start: the node that forms the cluster, those that join it, the routers.
const STEPS: [fn(&Ports, usize) -> bool; 3] = [
    |ports, at| at == ports.first_node(),
    |ports, at| at > ports.first_node(),
    |ports, at| at < ports.first_node(),
];

/// Starts everything, and waits until all serve by one map. True if a signal came first.
fn start(children: &mut Children, setup: &Setup<'_>, signals: &Receiver<()>) -> Result<bool> {
    let ports = setup.ports;
    let begun = Instant::now();
    let mut shown = Shown::default();
    for (step, is_in_step) in STEPS.iter().enumerate() {
        for (at, member) in ports.members().iter().enumerate() {
            if is_in_step(ports, at) {
                let command = setup.command(at, member)?;
                let log = setup.home.of_member(&member.name)?.join("log");
                children.start(&member.name, command, &log)?;
            }
        }
        loop {
            let progress = Progress::look(ports);
            shown.show(&progress);
            let is_done = match step {
                0 => progress.has_map(),
                1 => progress.has_nodes(),
                _ => progress.is_complete(),
            };
            if is_done {
                break;
            }
            if let Some(child) = children.ended() {
                shown.end();
                bail!("{} before it was ready\n{}", child.how(), child.log_end());
            }
            if begun.elapsed() > START_LIMIT {
                shown.end();
                bail!("not ready within {START_LIMIT:?}: {progress}");
            }
            if is_signalled(signals, LOOK_INTERVAL) {
                shown.end();
                return Ok(true);
            }
        }
    }
    shown.end();
    Ok(false)
}

/// What the programs are started with.
struct Setup<'a> {
    ports: &'a Ports,
    programs: &'a Programs,
    home: &'a Home,
    bucket: &'a str,
}

impl Setup<'_> {
    /// The command that starts the program at a place among all.
    fn command(&self, at: usize, member: &Member) -> Result<Command> {
        let mut command = match member.role {
            Role::Node => Command::new(&self.programs.node),
            Role::Router => Command::new(&self.programs.router),
        };
        command.args(["--listen", &member.client_address()]);
        command.args(["--admin-listen", &member.admin_address()]);
        command.args(["--http-listen", "none"]);
        command.args(["--threads", "2"]);
        let seeds = self.ports.of(Role::Node).map(Member::cluster_address);
        let seeds: Vec<String> = seeds.collect();
        match member.role {
            Role::Router => {
                command.args(["--cluster", &seeds.join(",")]);
            }
            Role::Node => {
                let data = self.home.of_member(&member.name)?.join("data");
                command.args(["--node-id", &member.name]);
                command.args(["--cluster-listen", &member.cluster_address()]);
                command.arg("--data-dir").arg(data);
                command.args(["--ram-budget", "128m", "--disk-budget", "1g"]);
                command.args(["--cold-tier", self.bucket]);
                // A node that is in a cluster stays there, so either may be given again.
                if at == self.ports.first_node() {
                    command.arg("--bootstrap");
                } else if let Some(first) = seeds.first() {
                    command.args(["--join", first]);
                }
            }
        }
        Ok(command)
    }
}

/// The progress, on one line of a terminal; elsewhere a line for each change.
#[derive(Default)]
struct Shown {
    last: String,
}

impl Shown {
    fn show(&mut self, progress: &Progress) {
        let text = progress.to_string();
        if text == self.last {
            return;
        }
        let mut err = io::stderr().lock();
        let _ = match err.is_terminal() {
            true => write!(err, "\r\x1b[K{text}"),
            false => writeln!(err, "{text}"),
        };
        let _ = err.flush();
        self.last = text;
    }

    fn end(&self) {
        let mut err = io::stderr().lock();
        if err.is_terminal() && !self.last.is_empty() {
            let _ = writeln!(err);
        }
    }
}

/// Waits for a signal. A program that ends meanwhile is told of: a user that tries out a failure
/// does that.
fn serve(children: &mut Children, signals: &Receiver<()>) -> Result<()> {
    while !is_signalled(signals, LOOK_INTERVAL) {
        if let Some(child) = children.ended() {
            let _ = writeln!(io::stderr(), "{} | {}", child.name(), child.how());
        }
        ensure!(!children.is_empty(), "no program runs any more");
    }
    Ok(())
}

/// Stops all programs; whatever is left when the time is over, or at another signal, is killed.
/// True if all ended by themselves and cleanly.
fn stop(children: &mut Children, signals: &Receiver<()>) -> Result<bool> {
    if !children.is_empty() {
        let _ = writeln!(io::stderr(), "stopping");
    }
    let begun = Instant::now();
    // Routers go first: to them, nodes that stop are failures.
    children.terminate(|name| name.starts_with("router"));
    let (mut is_clean, mut are_nodes_told) = (true, false);
    while !children.is_empty() {
        let are_routers_gone = !children.any(|name| name.starts_with("router"));
        if !are_nodes_told && (are_routers_gone || begun.elapsed() > ROUTERS_LIMIT) {
            children.terminate(|name| name.starts_with("node"));
            are_nodes_told = true;
        }
        if begun.elapsed() > STOP_LIMIT || is_signalled(signals, LOOK_INTERVAL) {
            children.kill()?;
            return Ok(false);
        }
        while let Some(child) = children.ended() {
            if !child.is_clean() {
                is_clean = false;
                let _ = writeln!(io::stderr(), "{} | {}", child.name(), child.how());
            }
        }
    }
    Ok(is_clean)
}

fn is_signalled(signals: &Receiver<()>, wait: Duration) -> bool {
    match signals.recv_timeout(wait) {
        Ok(()) | Err(RecvTimeoutError::Disconnected) => true,
        Err(RecvTimeoutError::Timeout) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_where_cargo_says_that_it_is() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"fonn-node"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"fonn-node"},"executable":"/t/n"}"#,
            "\nno message\n",
        );
        let found = executable(messages.as_bytes(), "fonn-node").unwrap();
        assert_eq!(found, Path::new("/t/n"));
        assert!(executable(messages.as_bytes(), "fonn-router").is_err());
    }

    #[test]
    fn wrong_usage_starts_nothing() {
        for wrong in [
            "--nodes=0",
            "--nodes=17",
            "--routers=17",
            "--port=70000",
            "x",
        ] {
            let words = ["cluster", wrong];
            assert!(Options::try_parse_from(words).is_err(), "{wrong}");
        }
        let options = Options::try_parse_from(["cluster"]).unwrap();
        assert_eq!((options.nodes, options.routers), (3, 2));
    }
}
