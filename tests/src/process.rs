//! Processes under test: started with their output kept, awaited with a deadline, and gone when
//! the test is.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Pid;
pub use rustix::process::Signal;

use crate::rng::Rng;

/// Lines of output that are kept.
const LOG_LINES_MAX: usize = 20_000;
/// Lines of output that an error shows.
const LOG_LINES_SHOWN: usize = 60;
/// A process that takes longer does not answer; a busy machine needs its time.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How often a condition is looked at while it is awaited.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The output of a process, also while something else borrows the process.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<VecDeque<String>>>);

impl Log {
    /// The lines so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned()
            .collect()
    }

    /// The lines so far in one text.
    #[must_use]
    pub fn text(&self) -> String {
        self.lines().join("\n")
    }

    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LOG_LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// A running process; killed and reaped when dropped.
pub struct Daemon {
    name: String,
    child: Child,
    exit: Option<ExitStatus>,
    log: Log,
    readers: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.name, self.child.id())
    }
}

impl Daemon {
    /// Starts `command`; its standard output and error become lines of the log.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}: {command:?}"))?;
        let log = Log::default();
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            readers.push(keep_lines(stdout, log.clone()));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(keep_lines(stderr, log.clone()));
        }
        Ok(Self {
            name: name.to_owned(),
            child,
            exit: None,
            log,
            readers,
        })
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the process has written.
    #[must_use]
    pub fn log(&self) -> Log {
        self.log.clone()
    }

    /// The exit status, when the process has ended.
    ///
    /// # Errors
    /// When the operating system does not tell.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        if self.exit.is_none() {
            self.exit = self.child.try_wait()?;
        }
        Ok(self.exit)
    }

    /// Waits until `ready` says so.
    ///
    /// # Errors
    /// With the end of the log, when the process ends first or the time is up.
    pub fn wait_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !ready() {
            if let Some(status) = self.exited()? {
                bail!(
                    "{} ended ({status}) before {what}\n{}",
                    self.name,
                    self.log_end()
                );
            }
            if Instant::now() >= deadline {
                bail!(
                    "{}: no {what} within {limit:?}\n{}",
                    self.name,
                    self.log_end()
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits for the process to end by itself.
    ///
    /// # Errors
    /// With the end of the log, when the time is up.
    pub fn wait_exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.exited()? {
                self.readers
                    .drain(..)
                    .for_each(|reader| drop(reader.join()));
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!(
                    "{} did not end within {limit:?}\n{}",
                    self.name,
                    self.log_end()
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Sends SIGKILL and reaps the process.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn kill9(&mut self) -> Result<ExitStatus> {
        self.child
            .kill()
            .with_context(|| format!("killing {self:?}"))?;
        self.wait_exit(Duration::from_secs(60))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        rustix::process::kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("signalling {self:?}"))
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    /// With the end of the log, when it does not end in time.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        if self.exited()?.is_none() {
            self.signal(Signal::TERM)?;
        }
        self.wait_exit(limit)
    }

    /// The last lines of the log in one text.
    #[must_use]
    pub fn log_end(&self) -> String {
        let log = self.log.lines();
        let from = log.len().saturating_sub(LOG_LINES_SHOWN);
        format!("--- log of {} ---\n{}", self.name, log[from..].join("\n"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.exited(), Ok(None)) {
            // Nothing can be done about a failure here, and the test has its result.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "{}", self.log_end());
        }
    }
}

fn keep_lines(output: impl Read + Send + 'static, log: Log) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            log.push(String::from_utf8_lossy(&line).into_owned());
        }
    })
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// When it cannot be started, or ends with another status than 0: with all it wrote.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("starting {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} ended with {}\n{text}{errors}", output.status);
    }
    Ok(text)
}

/// Where a program lies, by the search path.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// A loopback address that nothing listens on.
///
/// The port lies below the range from which the kernel takes the ports of outgoing connections,
/// so that ten thousand test connections do not take it before the server does. No port is
/// given out twice by one process. A connection tries the port: a listener that tries it would
/// live on, for a moment, in each process that is started beside it.
///
/// # Errors
/// When no free port is found.
pub fn free_address() -> Result<SocketAddr> {
    static GIVEN: LazyLock<Mutex<(Rng, HashSet<u16>)>> = LazyLock::new(|| {
        let seed = u64::from(std::process::id()) << 32;
        let now = std::time::UNIX_EPOCH
            .elapsed()
            .map_or(0, |since| since.subsec_nanos());
        Mutex::new((Rng::new(seed ^ u64::from(now)), HashSet::new()))
    });
    let (rng, given) = &mut *GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..1000 {
        let port = 12_000 + rng.below(20_000) as u16;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if given.insert(port) && !accepts(addr) {
            return Ok(addr);
        }
    }
    bail!("no free port between 12000 and 32000")
}

/// Whether something accepts connections at `addr`.
#[must_use]
pub fn accepts(addr: SocketAddr) -> bool {
    TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_ok()
}

/// Whether the server at `addr` answers `request` with what begins with `reply`.
#[must_use]
pub fn answers(addr: SocketAddr, request: &[u8], reply: &[u8]) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&addr, ANSWER_LIMIT)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.write_all(request)?;
        let mut bytes = vec![0; reply.len()];
        stream.read_exact(&mut bytes)?;
        Ok(bytes == reply)
    };
    ask().unwrap_or(false)
}

/// Lets this process, and those it starts, open at least `count` files.
///
/// # Errors
/// When the hard limit is lower and may not be raised.
pub fn raise_open_files(count: u64) -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(count));
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(count),
            maximum,
        },
    )
    .with_context(|| {
        format!("raising the limit of open files to {count} (the hard limit is {maximum:?})")
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn an_address_is_free_while_processes_are_started() {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        Command::new("true").status().unwrap();
                    }
                });
            }
            let taken: Vec<_> = (0..300)
                .filter_map(|_| TcpListener::bind(free_address().unwrap()).err())
                .collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(taken.is_empty(), "{taken:?}");
        });
    }

    #[test]
    fn output_is_kept_and_the_status_returned() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let mut daemon = Daemon::spawn("sh", &mut command).unwrap();
        assert_eq!(
            daemon.wait_exit(Duration::from_secs(60)).unwrap().code(),
            Some(3)
        );
        let log = daemon.log().lines();
        assert!(
            log.contains(&"out".to_owned()) && log.contains(&"err".to_owned()),
            "{log:?}"
        );
    }

    #[test]
    fn a_process_that_ends_early_is_reported_with_its_log() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo cannot bind; exit 1"]);
        let mut daemon = Daemon::spawn("sh", &mut command).unwrap();
        let error = daemon
            .wait_until("port", Duration::from_secs(60), || false)
            .unwrap_err();
        assert!(error.to_string().contains("before port"), "{error}");
    }

    #[test]
    fn only_a_process_that_answers_as_asked_is_there() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for reply in [&b"VERSION 1\r\n"[..], b"ERROR here\r\n", b""] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 9];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(reply).unwrap();
            }
        });
        let is_there = || answers(addr, b"version\r\n", b"VERSION ");
        assert!(is_there());
        assert!(!is_there(), "another answer");
        assert!(!is_there(), "accepted, and closed");
        server.join().unwrap();
        assert!(!is_there(), "nobody listens");
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let daemon = Daemon::spawn("sleep", Command::new("sleep").arg("100")).unwrap();
        let proc = format!("/proc/{}", daemon.pid());
        drop(daemon);
        assert!(!std::path::Path::new(&proc).exists());
    }
}
