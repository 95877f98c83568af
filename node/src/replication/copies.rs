//! Hedged reads: a member answers from its copy although it is not the primary of the slot.
//!
//! All owners that are up have what was acknowledged, so a copy is as new as that. A hedged read
//! may also return a value that the primary has not acknowledged yet. A member that may be cut off
//! answers no hedged read: the others may have gone on without it.

use fonn_proto::peer::{Refusal, Reply};
use fonn_proto::{Command, Get, Outcome, Space, placement};
use fonn_server::Job;

use super::Replication;
use super::metrics::Event;
use crate::engine::{Acks, Engine};

impl Replication {
    /// Answers a read from memory or disk, if this member owns the slot and lacks nothing of it.
    /// `word` gets a hit, or the news that there is none to show.
    pub async fn read_copy(
        &self,
        engine: &Engine,
        space: Space,
        get: &Get<'_>,
        acks: &mut Acks,
        word: impl FnOnce(&Reply<'_>),
    ) {
        if get.changes_entry() || get.claim {
            return word(&Reply::Refused(Refusal::Malformed));
        }
        let slot = placement::slot(get.key);
        if !self.rights.hedges(slot) || !self.holds_lease() {
            return word(&Reply::WrongOwner);
        }
        let is_local = engine.copy_version(space, get.key).await.is_some();
        if !is_local || self.rights.floor(slot).is_some() {
            self.count(Event::CopyDenied);
            return word(&Reply::Unknown);
        }
        let command = Command::Get(get.clone());
        let job = Job::own(space, &command);
        let mut scratch = Vec::new();
        match crate::server::execute_here(engine, &job, acks, &mut scratch).await {
            Outcome::Hit(hit) if !hit.stale && self.rights.hedges(slot) && self.holds_lease() => {
                self.count(Event::CopyRead);
                word(&Reply::Outcome(Outcome::Hit(hit)));
            }
            _ => {
                self.count(Event::CopyDenied);
                word(&Reply::Unknown);
            }
        }
    }
}
