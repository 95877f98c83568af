//! The programs of a cluster: started with their output kept in files, warnings shown, and stopped.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{self, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Lines of output that an error shows.
const LINES_SHOWN: usize = 20;

/// A line of output is cut here.
const LINE_LEN_MAX: u64 = 64 * 1024;

/// The programs that run. What is left when this is dropped is killed.
#[derive(Default)]
pub struct Children(Vec<Running>);

struct Running {
    name: String,
    child: process::Child,
    last: Arc<Mutex<VecDeque<String>>>,
    reader: Option<JoinHandle<()>>,
}

/// A program that has ended.
pub struct Child {
    name: String,
    status: ExitStatus,
    last: Vec<String>,
}

impl Child {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it ended as it should.
    pub fn is_clean(&self) -> bool {
        self.status.success()
    }

    /// How it ended, in words.
    pub fn how(&self) -> String {
        format!("{} ended with {}", self.name, self.status)
    }

    /// The last lines of its output.
    pub fn log_end(&self) -> String {
        self.last.join("\n")
    }
}

impl Children {
    /// Whether none runs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The process of a program that runs.
    pub fn pid(&self, name: &str) -> Option<u32> {
        let running = self.0.iter().find(|it| it.name == name)?;
        Some(running.child.id())
    }

    /// Starts a program with nothing of the developer's own settings. What it writes goes to `log`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&mut self, name: &str, mut command: Command, log: &Path) -> Result<()> {
        for (variable, _) in std::env::vars_os() {
            if variable.as_encoded_bytes().starts_with(b"FONN_") {
                command.env_remove(variable);
            }
        }
        let file = File::options().create(true).append(true).open(log);
        let file = file.with_context(|| format!("opening {}", log.display()))?;
        let mut child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}: {command:?}"))?;
        let last = Arc::new(Mutex::new(VecDeque::new()));
        let reader = child.stderr.take().map(|stderr| {
            let (name, last) = (name.to_owned(), Arc::clone(&last));
            std::thread::spawn(move || follow(&name, stderr, file, &last))
        });
        self.0.push(Running {
            name: name.to_owned(),
            child,
            last,
            reader,
        });
        Ok(())
    }

    /// One of those that have ended since the last call.
    pub fn ended(&mut self) -> Option<Child> {
        let is_over = |it: &mut Running| it.child.try_wait().ok().flatten();
        let (at, status) = self
            .0
            .iter_mut()
            .enumerate()
            .find_map(|(at, it)| is_over(it).map(|status| (at, status)))?;
        let mut running = self.0.remove(at);
        if let Some(reader) = running.reader.take() {
            // A panic of it was told already.
            let _ = reader.join();
        }
        let last = running.last.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Child {
            status,
            last: last.iter().cloned().collect(),
            name: std::mem::take(&mut running.name),
        })
    }

    /// Whether one runs whose name is such.
    pub fn any(&self, is_such: impl Fn(&str) -> bool) -> bool {
        self.0.iter().any(|it| is_such(&it.name))
    }

    /// Asks those to stop whose names are such.
    pub fn terminate(&self, is_such: impl Fn(&str) -> bool) {
        for running in self.0.iter().filter(|it| is_such(&it.name)) {
            // One that is gone needs no asking. It was not waited for, so the number is its own.
            let _ = kill_process(Pid::from_child(&running.child), Signal::TERM);
        }
    }

    /// Ends all at once.
    ///
    /// # Errors
    /// If one cannot be ended.
    pub fn kill(&mut self) -> Result<()> {
        for mut running in self.0.drain(..) {
            let _ = writeln!(io::stderr(), "{} | killed", running.name);
            let killed = running.child.kill();
            killed.with_context(|| format!("killing {}", running.name))?;
            running.child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for running in &mut self.0 {
            // There is no place left to report a failure.
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

/// Writes what a program says to its file, and what a person should see of it to standard error.
fn follow(name: &str, output: impl Read, mut file: File, last: &Mutex<VecDeque<String>>) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut output)
            .take(LINE_LEN_MAX)
            .read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) {
            return;
        }
        // The program must not stop for a full disk.
        let _ = file.write_all(&line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if is_warning(text) {
            let _ = writeln!(io::stderr(), "{name} | {text}");
        }
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == LINES_SHOWN {
            last.pop_front();
        }
        last.push_back(text.to_owned());
    }
}

/// Whether a line is a warning or an error: the level stands behind the time.
fn is_warning(line: &str) -> bool {
    let level = line.split_whitespace().nth(1);
    matches!(level, Some("WARN" | "ERROR")) || line.starts_with("error:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_warnings_and_errors_are_shown() {
        assert!(is_warning("2026-01-01T00:00:00.000000Z  WARN a: b"));
        assert!(is_warning("2026-01-01T00:00:00.000000Z ERROR a: b"));
        assert!(is_warning("error: --listen x: no"));
        for quiet in [
            "",
            "2026-01-01T00:00:00.000000Z  INFO a: WARN",
            "fonn-node 0.1.0",
        ] {
            assert!(!is_warning(quiet), "{quiet}");
        }
    }

    fn wait(children: &mut Children) -> Child {
        let begun = std::time::Instant::now();
        loop {
            if let Some(child) = children.ended() {
                return child;
            }
            assert!(begun.elapsed().as_secs() < 30);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_kept_and_how_a_program_ended_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut children = Children::default();
        children
            .start("a", shell("echo hello >&2; exit 3"), &log)
            .unwrap();
        let child = wait(&mut children);
        assert!(!child.is_clean() && child.how().contains("a ended with exit status: 3"));
        assert_eq!(child.log_end(), "hello");
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "hello\n");
        assert!(children.is_empty());
    }

    #[test]
    fn programs_are_asked_to_stop_and_killed_if_they_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut children = Children::default();
        children
            .start(
                "a",
                shell("trap 'exit 0' TERM; echo up >&2; while :; do sleep 0.05; done"),
                &log,
            )
            .unwrap();
        let begun = std::time::Instant::now();
        while std::fs::read(&log).unwrap() != b"up\n" {
            assert!(begun.elapsed().as_secs() < 30);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        children.terminate(|name| name == "b");
        assert!(children.any(|name| name == "a") && !children.any(|name| name == "b"));
        children.terminate(|name| name == "a");
        assert!(wait(&mut children).is_clean());
        children
            .start("b", shell("trap '' TERM; exec sleep 100"), &log)
            .unwrap();
        children.kill().unwrap();
        assert!(children.is_empty());
    }
}
