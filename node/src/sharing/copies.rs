//! Reads that a member answers from its copy although it is not the first owner of the slot.
//!
//! All owners that are up have what was acknowledged, so a copy is as new as that. A write that is under way may be at
//! some owners only; so that nobody sees it and then the entry before it, the first owner confirms the version of a copy
//! that is read for a hot key, as if it had been read there. One question does for all reads that wait for it: those that
//! come while it is asked wait for the next one.
//!
//! A read that the first owner is slow to answer is not confirmed. Who may be cut off does not answer it: others may
//! have gone on without it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fonn_proto::peer::{Refusal, Reply, Request};
use fonn_proto::{Command, Get, Outcome, Redirects, Space, Version, placement};
use fonn_runtime::route::envelope;
use fonn_runtime::serve::Job;
use parking_lot::Mutex;

use super::metrics::Event;
use super::{DOUBTED, FILLING, PRIMARY, REPLICA, Sharing};
use crate::engine::{Acks, Engine};

/// How long the first owner may take to confirm a copy; who asked for it goes there then.
const CONFIRM_TIMEOUT: Duration = Duration::from_millis(100);

/// A key that is read.
pub(super) type Key = (Space, Box<[u8]>);

/// Questions to first owners that are under way; as many keys as there are reads that wait.
#[derive(Debug, Default)]
pub(super) struct Confirmations(Mutex<HashMap<Key, Arc<Question>>>);

#[derive(Debug, Default)]
struct Question {
    /// Held by whoever asks for all.
    turn: tokio::sync::Mutex<()>,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    /// Questions that were begun.
    begun: u64,
    /// The last one that is over, and what came of it.
    over: u64,
    version: Option<Version>,
}

impl Confirmations {
    /// The answer to a question that is asked after now: by this caller, or by another one for all that wait.
    ///
    /// # Cancel safety
    /// If the future is dropped, the next one that waits asks.
    async fn ask(
        &self,
        space: Space,
        key: &[u8],
        ask: impl Future<Output = Option<Version>>,
    ) -> Option<Version> {
        let (question, wanted) = {
            let mut questions = self.0.lock();
            let question = questions.entry((space, key.into())).or_default();
            let begun = question.told.lock().begun;
            (Arc::clone(question), begun + 1)
        };
        let leaving = Leaving {
            all: self,
            key: (space, key.into()),
            question,
        };
        let question = &leaving.question;
        let _turn = question.turn.lock().await;
        {
            let mut told = question.told.lock();
            if told.over >= wanted {
                return told.version;
            }
            told.begun += 1;
        }
        let version = ask.await;
        let mut told = question.told.lock();
        told.over = told.begun;
        told.version = version;
        version
    }
}

/// Takes a question away with the last one who waits for it.
struct Leaving<'a> {
    all: &'a Confirmations,
    key: Key,
    question: Arc<Question>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut questions = self.all.0.lock();
        // The table has one, this is another; whoever comes takes its own under the lock.
        if Arc::strong_count(&self.question) <= 2 {
            questions.remove(&self.key);
        }
    }
}

impl Sharing {
    /// Answers a read of an entry that is here in memory or on disk, if this member owns its slot and lacks nothing
    /// of it: `word` gets a hit, or that there is none to show.
    pub async fn read_copy(
        &self,
        engine: &Engine,
        space: Space,
        get: &Get<'_>,
        is_confirmed: bool,
        acks: &mut Acks,
        word: impl FnOnce(&Reply<'_>),
    ) {
        if get.changes_entry() || get.claim {
            return word(&Reply::Refused(Refusal::Malformed));
        }
        let flags = self.flags(placement::slot(get.key));
        let is_owner = flags & (PRIMARY | REPLICA) != 0 && flags & (FILLING | DOUBTED) == 0;
        if !is_owner || !self.is_sound() {
            return word(&Reply::WrongOwner);
        }
        let Some(version) = engine.copy_version(space, get.key).await else {
            return word(&Reply::Unknown);
        };
        let is_newest = match is_confirmed {
            _ if flags & PRIMARY != 0 => true,
            true => {
                let first = self.confirm_copy(space, get.key).await;
                if first.is_some_and(|first| first != version) {
                    self.note_disagreement(space, get.key);
                }
                first == Some(version)
            }
            false => self.is_led(),
        };
        if !is_newest {
            self.events.count(Event::CopyDenied);
            return word(&Reply::Unknown);
        }
        let command = Command::Get(get.clone());
        let job = Job {
            space,
            command: &command,
            source: None,
            base: None,
            is_routed: true,
            redirects: Redirects::Never,
        };
        let mut scratch = Vec::new();
        let outcome = crate::server::execute_here(engine, &job, acks, &mut scratch).await;
        // What came meanwhile may be at this owner alone.
        let is_same = !is_confirmed || engine.copy_version(space, get.key).await == Some(version);
        match outcome {
            Outcome::Hit(hit) if !hit.stale && is_same => {
                self.events.count(Event::CopyRead);
                if !is_confirmed && flags & PRIMARY == 0 {
                    // Nobody has compared it.
                    self.note_disagreement(space, get.key);
                }
                word(&Reply::Outcome(Outcome::Hit(hit)));
            }
            _ => {
                self.events.count(Event::CopyDenied);
                word(&Reply::Unknown);
            }
        }
    }

    /// The version of the entry that a read would find, asked of the first owner by another one; None if this member
    /// is not the one to ask.
    pub async fn version_of(&self, engine: &Engine, space: Space, key: &[u8]) -> Option<Version> {
        if !self.is_settled_primary(placement::slot(key)) {
            return None;
        }
        Some(engine.copy_version(space, key).await.unwrap_or(0))
    }

    async fn confirm_copy(&self, space: Space, key: &[u8]) -> Option<Version> {
        self.confirmations
            .ask(space, key, async {
                let slot = placement::slot(key);
                let first = self.forwarder.upstreams().owner(slot, 0)?;
                self.events.count(Event::CopyConfirmed);
                let envelope = envelope(slot, space, first.epoch);
                let request = Request::Version { key };
                let call = first.client.call(&request, envelope, None, CONFIRM_TIMEOUT);
                match call.await.ok()?.reply() {
                    Ok(Reply::Version(version)) => Some(version),
                    _ => None,
                }
            })
            .await
    }
}
