//! The line that shows how far a long piece of work is: on a terminal, and only there.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How often the line changes at most.
const INTERVAL: Duration = Duration::from_millis(100);
const WIDTH: usize = 30;

/// A line on standard error that is written over.
#[derive(Debug)]
pub(super) struct Progress {
    is_shown: bool,
    drawn: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            is_shown: io::stderr().is_terminal(),
            drawn: None,
        }
    }

    /// Shows this much of a whole, with words behind it.
    pub(super) fn set(&mut self, done: u64, total: u64, words: &str) {
        let due = self.drawn.is_none_or(|at| at.elapsed() >= INTERVAL);
        if !self.is_shown || !due {
            return;
        }
        self.drawn = Some(Instant::now());
        // A terminal that is gone needs no progress.
        let _ = write!(io::stderr(), "\r\x1b[K{} {words}", bar(done, total));
        let _ = io::stderr().flush();
    }

    /// Takes the line away, so that something else can be written.
    pub(super) fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// `[=========>          ]  48 %`
pub(super) fn bar(done: u64, total: u64) -> String {
    let share = match total {
        0 => 0.0,
        _ => (done as f64 / total as f64).min(1.0),
    };
    let full = (share * WIDTH as f64) as usize;
    let mut text = "=".repeat(full);
    if full < WIDTH {
        text.push('>');
    }
    format!("[{text:<WIDTH$}] {:>3.0} %", share * 100.0)
}
