//! A terminal that is drawn over and given back as it was, however the program ends.

use std::io::{self, IsTerminal as _, Read as _, Write as _};

use rustix::termios::{LocalModes, tcgetwinsize};
use tokio::sync::mpsc;

use crate::password::Without;

/// The other screen without a cursor; and back (xterm's control sequences, which all terminals
/// have).
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// What a terminal has that does not tell.
const SIZE: (usize, usize) = (80, 24);

/// The terminal at standard output, and what keys do at standard input.
#[derive(Debug)]
pub(super) struct Screen {
    /// Standard input, if it is a terminal.
    _input: Option<Without>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// When it cannot be written to.
    pub(super) fn enter() -> io::Result<Self> {
        let input = match io::stdin().is_terminal() {
            // Keys at once and unseen; those that mean a signal still do.
            true => Some(Without::begin(LocalModes::ICANON | LocalModes::ECHO)?),
            false => None,
        };
        // From here on dropping it gives the terminal back.
        let screen = Self { _input: input };
        let mut out = io::stdout().lock();
        out.write_all(ENTER.as_bytes())?;
        out.flush()?;
        Ok(screen)
    }

    /// Shows as much of a text as there is room for.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn draw(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let size = match tcgetwinsize(&out) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 1 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            _ => SIZE,
        };
        out.write_all(frame(text, size).as_bytes())?;
        out.flush()
    }
}

/// What is sent to show a text: no more than fits, without flicker.
fn frame(text: &str, (columns, rows): (usize, usize)) -> String {
    let mut frame = "\x1b[H".to_owned();
    for line in text.lines().take(rows - 1) {
        frame.extend(line.chars().take(columns));
        frame.push_str("\x1b[K\n");
    }
    frame.push_str("\x1b[J");
    frame.extend("q or ctrl-c leaves".chars().take(columns));
    frame
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let mut out = io::stdout().lock();
        let _ = out.write_all(LEAVE.as_bytes());
        let _ = out.flush();
    }
}

/// Keys that are pressed, read by a thread that ends with the process.
#[derive(Debug)]
pub(super) struct Keys {
    pressed: mpsc::Receiver<u8>,
}

impl Keys {
    /// Begins to read keys. Without a terminal there are none.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn start() -> io::Result<Self> {
        let (press, pressed) = mpsc::channel(16);
        if io::stdin().is_terminal() {
            let read = move || {
                for key in io::stdin().lock().bytes().map_while(Result::ok) {
                    if press.blocking_send(key).is_err() {
                        break;
                    }
                }
            };
            std::thread::Builder::new()
                .name("keys".to_owned())
                .spawn(read)?;
        }
        Ok(Self { pressed })
    }

    /// Waits until the user wants to leave.
    ///
    /// # Cancel safety
    /// Cancelling it loses no key.
    pub(super) async fn quit(&mut self) {
        while let Some(key) = self.pressed.recv().await {
            if matches!(key, b'q' | b'Q') {
                return;
            }
        }
        // No keys, or none any more: signals are left.
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_drawn_than_fits() {
        let frame = frame("one\ntwo long\nthree\nfour\n", (4, 3));
        assert_eq!(frame, "\x1b[Hone\x1b[K\ntwo \x1b[K\n\x1b[Jq or");
    }
}
