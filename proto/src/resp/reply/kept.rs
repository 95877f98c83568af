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
    /// Steps and form of each command whose answer is not worded.
    forms: std::vec::IntoIter<(usize, Form<'a>)>,
    /// Whether the answer is an array with an element for each command, and has not begun.
    begins_array: bool,
    /// Steps whose outcome is worded.
    worded: usize,
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

impl<'a> BatchForms<'a> {
    /// With the steps and the form of each command. The answer may be an array, with an element for
    /// each of them.
    pub(in super::super) fn new(forms: Vec<(usize, Form<'a>)>, is_array: bool) -> Self {
        Self {
            forms: forms.into_iter(),
            begins_array: is_array,
            worded: 0,
        }
    }

    /// Words the outcomes of the next steps, up to an answer that is computed from a whole value.
    /// True if there are more.
    pub(super) fn put_part(
        &mut self,
        protocol: Protocol,
        outcomes: &[Outcome<'_>],
        out: &mut Out,
    ) -> bool {
        if std::mem::take(&mut self.begins_array) {
            put_array_len(out, self.forms.len());
        }
        while let Some((steps, mut form)) = self.forms.next() {
            for _ in 0..steps {
                // A member that carried out less than it was asked for is no member of this
                // release.
                let failed = Outcome::Failed(Failure::Unavailable);
                form.put(protocol, outcomes.get(self.worded).unwrap_or(&failed), out);
                self.worded += 1;
            }
            form.finish(protocol, out);
            if form.is_computed() {
                return self.forms.len() > 0;
            }
        }
        false
    }

    /// Words the outcomes of all steps.
    pub(super) fn put(&mut self, protocol: Protocol, outcomes: &[Outcome<'_>], out: &mut Out) {
        while self.put_part(protocol, outcomes, out) {}
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
