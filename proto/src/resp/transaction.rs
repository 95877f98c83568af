//! What a connection keeps from `WATCH` or `MULTI` to `EXEC` (ADR 0003).
//!
//! The arguments of a queued command are copied; `EXEC` parses them again. What is kept is bounded
//! in commands and bytes, and is free with the first request behind `EXEC` at the latest.

use super::frame::{Args, Span};
use super::table::CommandInfo;
use super::wording::{self, ReplyError};
use crate::batch::{BATCH_STEPS_MAX, Seen, Watched};

/// What one kept command or key takes besides its arguments, in bytes.
const KEPT_COST: usize = 64;

/// Watched keys and queued commands of one connection.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    phase: Phase,
    /// A command could not be queued, so `EXEC` carries out nothing.
    pub(super) is_spoiled: bool,
    watched: Vec<WatchedKey>,
    commands: Vec<QueuedCommand>,
    /// Steps that the queued commands will come to.
    steps: usize,
    /// The arguments of the queued commands.
    bytes: Vec<u8>,
    spans: Vec<Span>,
    /// Bytes of the watched keys.
    watched_len: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// After `WATCH`.
    #[default]
    Watching,
    /// After `MULTI`.
    Queueing,
    /// After `EXEC`.
    Over,
}

#[derive(Debug)]
struct WatchedKey {
    database: u8,
    key: Vec<u8>,
    seen: Option<Seen>,
}

#[derive(Debug)]
struct QueuedCommand {
    info: &'static CommandInfo,
    spans: std::ops::Range<usize>,
}

impl Transaction {
    /// Whether commands are queued instead of being carried out.
    pub(super) fn is_queueing(&self) -> bool {
        self.phase == Phase::Queueing
    }

    /// Whether nothing of it is needed any more.
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// `MULTI`.
    pub(super) fn begin(&mut self) {
        self.phase = Phase::Queueing;
    }

    /// `EXEC`: what was kept is lent to the request, and is not needed afterwards.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Over;
    }

    /// Gives up what is kept; `EXEC` tells so.
    pub(super) fn forget(&mut self) {
        *self = Self {
            phase: self.phase,
            is_spoiled: true,
            ..Self::default()
        };
    }

    /// Bytes that are kept.
    pub(super) fn len(&self) -> usize {
        let kept = self.commands.len() + self.watched.len();
        let spans = self.spans.len() * size_of::<Span>();
        self.bytes.len() + self.watched_len + spans + kept * KEPT_COST
    }

    /// Keeps a key as it was read.
    ///
    /// # Errors
    /// If too many keys are watched.
    pub(super) fn watch(
        &mut self,
        database: u8,
        key: &[u8],
        seen: Option<Seen>,
    ) -> Result<(), ReplyError> {
        if self.watched.len() >= BATCH_STEPS_MAX {
            return Err(wording::TRANSACTION_TOO_LARGE);
        }
        self.watched_len += key.len();
        self.watched.push(WatchedKey {
            database,
            key: key.to_vec(),
            seen,
        });
        Ok(())
    }

    /// Keeps a command that comes to so many steps.
    ///
    /// # Errors
    /// If that is more than a transaction may have, in steps or in bytes.
    pub(super) fn push(
        &mut self,
        info: &'static CommandInfo,
        args: Args<'_>,
        steps: usize,
        len_max: usize,
    ) -> Result<(), ReplyError> {
        let len: usize = args.from(0).map(<[u8]>::len).sum();
        let steps = self.steps.saturating_add(steps.max(1));
        if steps > BATCH_STEPS_MAX || self.len().saturating_add(len) > len_max {
            return Err(wording::TRANSACTION_TOO_LARGE);
        }
        self.steps = steps;
        let first = self.spans.len();
        for arg in args.from(0) {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(arg);
            let len = arg.len();
            self.spans.push(Span { start, len });
        }
        let spans = first..self.spans.len();
        self.commands.push(QueuedCommand { info, spans });
        Ok(())
    }

    /// The queued commands with their arguments.
    pub(super) fn commands(
        &self,
    ) -> impl ExactSizeIterator<Item = (&'static CommandInfo, Args<'_>)> {
        self.commands.iter().map(|command| {
            let spans = self.spans.get(command.spans.clone());
            let args = Args::new(&self.bytes, spans.unwrap_or_default());
            (command.info, args)
        })
    }

    /// The watched keys.
    pub(super) fn watched(&self) -> impl Iterator<Item = Watched<'_>> {
        self.watched.iter().map(|it| Watched {
            database: it.database,
            key: &it.key,
            seen: it.seen,
        })
    }
}
