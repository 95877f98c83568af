//! The answers that go with a transaction: they change what the connection keeps, or word what came
//! of it.

use super::super::encode::{Protocol, put_array_len};
use super::super::frame::Args;
use super::super::session::Session;
use super::super::table::CommandInfo;
use super::super::wording::{self, ReplyError};
use super::{Form, of_outcome};
use crate::outcome::{Failure, Outcome};
use crate::{Out, Seen};

/// How the answers to the steps of a batch are worded.
#[derive(Debug)]
pub(in super::super) struct BatchForms<'a> {
    /// Steps and form of each command.
    pub(in super::super) forms: Vec<(usize, Form<'a>)>,
    /// Whether the answer is an array with an element for each command.
    pub(in super::super) is_array: bool,
}

/// A command that is kept for `EXEC`.
#[derive(Debug)]
pub(in super::super) struct Queue<'a> {
    pub(in super::super) session: &'a mut Session,
    pub(in super::super) info: &'static CommandInfo,
    pub(in super::super) args: Args<'a>,
    /// Steps that it will come to.
    pub(in super::super) steps: usize,
    /// Bytes that a transaction may keep.
    pub(in super::super) len_max: usize,
    /// Whether the transaction was spoiled before this command.
    pub(in super::super) was_spoiled: bool,
}

/// Keys that are watched from their reading on.
#[derive(Debug)]
pub(in super::super) struct Watch<'a> {
    pub(in super::super) session: &'a mut Session,
    pub(in super::super) failure: Option<ReplyError>,
}

/// What becomes of a transaction.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Change {
    /// `MULTI`.
    Begin,
    /// `DISCARD` and `UNWATCH`.
    Forget,
}

impl BatchForms<'_> {
    /// Words the outcomes of all steps.
    pub(super) fn put(&mut self, protocol: Protocol, outcomes: &[Outcome<'_>], out: &mut Out) {
        if self.is_array {
            put_array_len(out, self.forms.len());
        }
        let mut rest = outcomes.iter();
        for (steps, form) in &mut self.forms {
            for _ in 0..*steps {
                // A member that carried out less than it was asked for is no member of this
                // release.
                let failed = Outcome::Failed(Failure::Unavailable);
                form.put(protocol, rest.next().unwrap_or(&failed), out);
            }
            form.finish(protocol, out);
        }
    }
}

impl Queue<'_> {
    /// Keeps the command, which is admitted.
    pub(super) fn keep(&mut self) -> Result<(), ReplyError> {
        let Some(transaction) = &mut self.session.transaction else {
            return Err(wording::INTERNAL);
        };
        let pushed = transaction.push(self.info, self.args, self.steps, self.len_max);
        transaction.is_spoiled = self.was_spoiled || pushed.is_err();
        pushed
    }
}

impl Watch<'_> {
    /// Keeps a key as it was read.
    pub(super) fn note(&mut self, key: &[u8], outcome: &Outcome<'_>) {
        let database = self.session.database;
        let noted = match Seen::of(outcome) {
            Some(seen) => {
                let transaction = self.session.transaction.get_or_insert_default();
                transaction.watch(database, key, seen)
            }
            None => Err(of_outcome(outcome)),
        };
        if let (Err(error), None) = (noted, &self.failure) {
            self.failure = Some(error);
        }
    }
}

impl Change {
    /// Carries out what `MULTI`, `DISCARD` and `UNWATCH` ask for.
    pub(super) fn apply(self, session: &mut Session) {
        match self {
            Self::Begin => session.transaction.get_or_insert_default().begin(),
            Self::Forget => session.transaction = None,
        }
    }
}
