//! The words of the text dialect.

use crate::outcome::{Failure, Outcome};
use crate::request::{ServerCommand, ServerOutcome};
use crate::{Command, Out};

const NOT_A_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// How to word the answer to one request of the text dialect.
#[derive(Clone, Debug)]
pub struct Reply {
    kind: Kind,
    /// The request said `noreply`: nothing is sent, not even an error.
    quiet: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// `VALUE` lines and `END`.
    Retrieval {
        with_cas: bool,
        /// An error was sent in place of `END`; what comes after it is left out.
        failed: bool,
    },
    /// One line for one outcome.
    Outcome,
    /// A line that is known already.
    Answer(&'static str),
}

impl Reply {
    pub(super) fn retrieval(with_cas: bool) -> Self {
        Self::new(
            Kind::Retrieval {
                with_cas,
                failed: false,
            },
            false,
        )
    }

    pub(super) fn outcome(quiet: bool) -> Self {
        Self::new(Kind::Outcome, quiet)
    }

    pub(super) fn answer(line: &'static str, quiet: bool) -> Self {
        Self::new(Kind::Answer(line), quiet)
    }

    fn new(kind: Kind, quiet: bool) -> Self {
        Self { kind, quiet }
    }

    /// Whether the request said `noreply`.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Words the outcome of one command.
    #[inline]
    pub fn each(&mut self, command: &Command<'_>, outcome: &Outcome<'_>, out: &mut Out) {
        if let Kind::Retrieval { with_cas, failed } = &mut self.kind {
            if *failed {
                return;
            }
            match outcome {
                Outcome::Hit(hit) => {
                    out.put(b"VALUE ");
                    out.put(command.key());
                    match hit.flags {
                        0 => out.put(b" 0 "),
                        flags => {
                            out.put(b" ");
                            out.put_decimal(flags);
                            out.put(b" ");
                        }
                    }
                    out.put_decimal(hit.value_len);
                    if *with_cas {
                        out.put(b" ");
                        out.put_decimal(hit.version);
                    }
                    out.put(b"\r\n");
                    out.put_value(&hit.value);
                    out.put(b"\r\n");
                }
                Outcome::Failed(failure) => {
                    *failed = true;
                    put_failure(*failure, out);
                }
                // Only clients that ask for it get this reply, and here no client can.
                Outcome::Moved(_) => {
                    *failed = true;
                    put_failure(Failure::Unavailable, out);
                }
                _ => {}
            }
        } else if matches!(self.kind, Kind::Outcome) && !self.quiet {
            put_outcome(outcome, out);
        }
    }

    /// Words the end of the answer, or an answer that was known from the start.
    #[inline]
    pub fn finish(&mut self, out: &mut Out) {
        match self.kind {
            Kind::Retrieval { failed: false, .. } => out.put(b"END\r\n"),
            Kind::Answer(line) if !self.quiet => put_line(line, out),
            Kind::Retrieval { .. } | Kind::Answer(_) | Kind::Outcome => {}
        }
    }

    /// Words the answer to a server command.
    pub fn server(&mut self, command: &ServerCommand<'_>, outcome: &ServerOutcome, out: &mut Out) {
        if self.quiet {
            return;
        }
        match (outcome, command) {
            (ServerOutcome::Pairs(pairs), _) => {
                for (name, value) in pairs {
                    out.put(b"STAT ");
                    out.put(name.as_bytes());
                    out.put(b" ");
                    out.put(value.as_bytes());
                    out.put(b"\r\n");
                }
                out.put(b"END\r\n");
            }
            (ServerOutcome::Done, ServerCommand::Stats(_)) => out.put(b"RESET\r\n"),
            (ServerOutcome::Done, ServerCommand::Auth { .. }) => out.put(b"STORED\r\n"),
            (ServerOutcome::Done, _) => out.put(b"OK\r\n"),
            (ServerOutcome::WrongPassword | ServerOutcome::AuthNotConfigured, _) => {
                out.put(b"CLIENT_ERROR authentication failure\r\n");
            }
            (ServerOutcome::Failed(failure), _) => put_failure(*failure, out),
            // Answers to commands that this dialect does not have.
            (
                ServerOutcome::Text(_)
                | ServerOutcome::Integer(_)
                | ServerOutcome::Scan { .. }
                | ServerOutcome::Key(_)
                | ServerOutcome::InvalidCursor
                | ServerOutcome::Outcomes(_)
                | ServerOutcome::Changed
                | ServerOutcome::CrossSlot
                | ServerOutcome::Invalid(_)
                | ServerOutcome::Cluster(_),
                _,
            ) => out.put(b"SERVER_ERROR unexpected outcome\r\n"),
        }
    }
}

fn put_outcome(outcome: &Outcome<'_>, out: &mut Out) {
    let line = match outcome {
        Outcome::Stored(_) => "STORED",
        Outcome::NotStored(_) => "NOT_STORED",
        Outcome::Exists => "EXISTS",
        Outcome::NotFound | Outcome::Miss => "NOT_FOUND",
        Outcome::Deleted { .. } => "DELETED",
        Outcome::Touched { .. } | Outcome::Hit(_) => "TOUCHED",
        Outcome::Number(number) => {
            out.put(&number.text);
            out.put(b"\r\n");
            return;
        }
        Outcome::NotANumber | Outcome::Overflow => NOT_A_NUMBER,
        Outcome::Failed(failure) => failure_line(*failure),
        Outcome::Moved(_) => failure_line(Failure::Unavailable),
    };
    put_line(line, out);
}

/// Words that arithmetic met no number; meta has the same words.
pub(in crate::memcached) fn put_not_a_number(out: &mut Out) {
    put_line(NOT_A_NUMBER, out);
}

/// Writes a line and its end.
pub(in crate::memcached) fn put_line(line: &str, out: &mut Out) {
    out.put(line.as_bytes());
    out.put(b"\r\n");
}

/// The line, without its end, that says why a command was not carried out.
pub(super) const fn failure_line(failure: Failure) -> &'static str {
    match failure {
        Failure::Busy => "SERVER_ERROR busy",
        Failure::OutOfSpace => "SERVER_ERROR out of memory storing object",
        Failure::TooLarge => "SERVER_ERROR object too large for cache",
        Failure::ReadOnly => "CLIENT_ERROR read-only user",
        Failure::AuthRequired => "CLIENT_ERROR unauthenticated",
        Failure::Unavailable => "SERVER_ERROR unavailable",
    }
}

/// Writes the line that says why a command was not carried out, in text and meta alike.
pub fn put_failure(failure: Failure, out: &mut Out) {
    put_line(failure_line(failure), out);
}
