//! Hedged reads: a member answers from its copy although it is not the primary of the slot.
//!
//! All owners that are up have what was acknowledged, so a copy is as new as that. A hedged read
//! may also return a value that the primary has not acknowledged yet. A member that may be cut off
//! answers no hedged read: the others may have gone on without it.

use fonn_proto::peer::{Refusal, Reply};
use fonn_proto::{Command, Get, Outcome, Redirects, Space, Version, WriterId, placement};
use fonn_server::Job;

use super::metrics::Event;
use super::{DOUBTED, FILLING, PRIMARY, REPLICA, Sharing};
use crate::engine::{Acks, Engine};

impl Sharing {
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
        let flags = self.flags(placement::slot(get.key));
        let is_owner = flags & (PRIMARY | REPLICA) != 0 && flags & (FILLING | DOUBTED) == 0;
        if !is_owner || !self.is_sound() {
            return word(&Reply::WrongOwner);
        }
        let is_primary = flags & PRIMARY != 0;
        let is_local = engine.copy_version(space, get.key).await.is_some();
        if !is_local || !(is_primary || self.is_led()) {
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
            writer: WriterId::NONE,
        };
        let mut scratch = Vec::new();
        match crate::server::execute_here(engine, &job, acks, &mut scratch).await {
            Outcome::Hit(hit) if !hit.stale => {
                self.events.count(Event::CopyRead);
                if !is_primary {
                    // The primary has not compared its version with this copy's.
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

    /// The version of the entry that a read would find, asked of the primary by another owner. None
    /// if this member is not the primary.
    pub async fn version_of(&self, engine: &Engine, space: Space, key: &[u8]) -> Option<Version> {
        if !self.is_settled_primary(placement::slot(key)) {
            return None;
        }
        Some(engine.copy_version(space, key).await.unwrap_or(0))
    }
}
