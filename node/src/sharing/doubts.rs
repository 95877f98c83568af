//! Local copies that may be stale because the owner that could confirm them is down
//! ([missing](super::missing)).
//!
//! They are not shown, so that a read is a miss and never a stale value. They are not removed
//! either. They show again when no owner is missing any more, unless the key was written meanwhile.
//! Later writes are newer, and are shown. With a bucket the bucket decides: the copies there may be
//! older too, by the spill window.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fonn_base::hlc::Hlc;
use fonn_forward::{MemberState, Topology};
use fonn_proto::peer::{SlotSet, SourcesBuilder};
use fonn_proto::placement::SLOT_COUNT;
use fonn_proto::{Outcome, Version, placement};
use fonn_server::Job;
use parking_lot::Mutex;

use super::holdings::{Holdings, Step};
use super::missing::{self, Change, Known, Missing};
use super::{Held, Sharing, Unconfirmed, refused};
use crate::engine::Engine;

/// What is doubted of each slot, and where it is noted.
#[derive(Debug)]
pub(super) struct Doubts {
    /// Tells the versions up to which there are copies; without it nothing is doubted.
    versions: OnceLock<Arc<Hlc>>,
    /// Copies up to this version are doubted; 0 for none.
    slots: Box<[AtomicU64]>,
    /// The directory of the notes, if they outlive the process.
    dir: OnceLock<PathBuf>,
    /// What is in the file.
    saved: Mutex<Option<(Known, Missing)>>,
}

impl Default for Doubts {
    fn default() -> Self {
        Self {
            versions: OnceLock::new(),
            slots: (0..SLOT_COUNT).map(|_| AtomicU64::new(0)).collect(),
            dir: OnceLock::new(),
            saved: Mutex::default(),
        }
    }
}

impl Doubts {
    /// The version up to which copies of a slot are doubted; 0 if none are.
    pub(super) fn up_to(&self, slot: u16) -> Version {
        let slot = self.slots.get(usize::from(slot));
        slot.map_or(0, |slot| slot.load(Ordering::Acquire))
    }

    /// A version above all that is here now; what is written here from now on is above it.
    fn now(versions: &Hlc) -> Version {
        let now = versions.newest();
        versions.advance(now);
        now
    }

    /// What the next map makes of missing members; those that are back become sources of `next`.
    pub(super) fn follow(
        &self,
        (missing, holdings): (&Missing, &Holdings),
        step: Step<'_>,
        since: &dyn Fn(&str) -> u64,
        next: &mut Holdings,
    ) -> Missing {
        let Some(versions) = self.versions.get() else {
            return Missing::default();
        };
        let known = self.known(step.old);
        let followed = missing.follow(Change {
            step,
            holdings,
            known: known.as_ref(),
            since,
            now: Self::now(versions),
        });
        let members = step.new.members().iter();
        for back in members.filter(|it| it.state.is_serving() && it.id != step.own) {
            for (_, slots) in missing.iter().filter(|(id, _)| ***id == *back.id) {
                next.add_returned(&back.id, slots);
            }
        }
        followed
    }

    /// By what map the missing members were noted.
    fn known(&self, old: Option<&Topology>) -> Option<Known> {
        old.map(Known::of)
            .or_else(|| self.saved.lock().as_ref().map(|(known, _)| known.clone()))
    }

    /// Believes it from now on.
    pub(super) fn set(&self, missing: &Missing) {
        for (slot, doubted) in (0..SLOT_COUNT).zip(&self.slots) {
            doubted.store(missing.doubted(slot), Ordering::Release);
        }
    }

    /// Notes the missing members by a map, if it is something else than before, and whether nothing
    /// is lacked any more. False if that cannot be. Blocks on the disk.
    pub(super) fn save(&self, map: &Topology, missing: &Missing, is_settled: bool) -> bool {
        let Some(dir) = self.dir.get() else {
            return true;
        };
        let mut saved = self.saved.lock();
        let known = Known::of(map);
        let known = if is_settled { known.settled() } else { known };
        let is_same = |(before, of): &(Known, Missing)| {
            before.is_newer_than(&known) || before.is_as(&known) && of == missing
        };
        if saved.as_ref().is_some_and(is_same) {
            return true;
        }
        let result = missing::save(dir, &known, missing);
        if let Err(error) = &result {
            tracing::warn!(%error, "cannot note which members are missing: after a restart, more copies are not shown until they are back");
        }
        // Tried again by the next map.
        *saved = result.is_ok().then(|| (known, missing.clone()));
        saved.is_some()
    }
}

impl Sharing {
    /// Doubts, from now on, what an engine without a bucket has that another member may have
    /// overwritten.
    pub fn doubt_by(&self, engine: &Engine) {
        if engine.cold().is_none() {
            let _ = self.doubts.versions.set(engine.versions());
        }
    }

    /// Notes in `dir` which members are missing, and goes on with what was noted there. To be
    /// called before it goes by any map. Blocks on the disk.
    pub(super) fn note_missing_in(&self, dir: &Path) {
        if self.doubts.versions.get().is_none() || self.doubts.dir.set(dir.to_owned()).is_err() {
            return;
        }
        let loaded = missing::load(dir);
        if let Some((_, missing)) = &loaded {
            self.held.lock().missing = missing.clone();
        }
        *self.doubts.saved.lock() = loaded;
    }

    /// Notes that nothing is lacked any more, unless the map changed since `generation`. Blocks on
    /// the disk.
    pub(super) fn note_settled(&self, generation: u64) {
        let (topology, missing, sources) = {
            let held = self.held.lock();
            if *self.changes.borrow() != generation {
                return;
            }
            let missing = held.missing.clone();
            (held.topology.clone(), missing, held.holdings.sources())
        };
        if let Some(topology) = topology {
            self.notes.save(&topology, &sources);
            let _ = self.doubts.save(&topology, &missing, true);
        }
    }

    /// A member has told which of its sources, and of those that are missing, know of which of some
    /// slots. Returns how many of the former there was no room for.
    pub(super) fn be_told(
        &self,
        held: &mut Held,
        (source, slots): (&str, &SlotSet),
        more: &[(Arc<str>, SlotSet)],
    ) -> u64 {
        let topology = held.topology.clone();
        let is_down = |id: &str| {
            let member = topology.as_ref().and_then(|map| map.member(id));
            member.is_some_and(|it| it.state == MemberState::Down)
        };
        if let Some(versions) = self.doubts.versions.get() {
            held.missing.trust(slots, |id, slot| {
                let mut told = more.iter().filter(|(told, _)| **told == *id);
                told.any(|(_, of)| of.contains(slot))
            });
            for (id, of) in more.iter().filter(|(id, _)| is_down(id)) {
                let asked = |slot: &u16| slots.contains(*slot) && of.contains(*slot);
                let of = (0..SLOT_COUNT).filter(asked).collect();
                held.missing.add(id, &of, Doubts::now(versions));
            }
            self.doubts.set(&held.missing);
        }
        let mut left_out = 0;
        for slot in (0..SLOT_COUNT).filter(|slot| slots.contains(*slot)) {
            let of_slot = more.iter().filter(|(_, slots)| slots.contains(slot));
            let of_slot = of_slot.filter(|(id, _)| !is_down(id));
            let ids: Vec<Arc<str>> = of_slot.map(|(id, _)| Arc::clone(id)).collect();
            left_out += held.holdings.add_sources(slot, source, &ids, &self.own);
            if let Some(holding) = held.holdings.get(slot) {
                self.store(slot, holding);
            }
        }
        left_out
    }

    /// Adds the missing members, and the slots that they may know of.
    pub(super) fn add_missing(&self, sources: &mut SourcesBuilder, slots: &SlotSet) {
        for (id, of) in self.held.lock().missing.iter() {
            let asked = |slot: &u16| slots.contains(*slot) && of.contains(*slot);
            let of: SlotSet = (0..SLOT_COUNT).filter(asked).collect();
            if !of.is_empty() {
                // Names of members are short.
                let _ = sources.push(id, &of);
            }
        }
    }

    /// A command on a key of which copies are doubted meets none: a read is a miss, and what writes
    /// finds nothing.
    ///
    /// # Errors
    /// The answer to a read that would have met one, or if the disk cannot be read.
    pub(super) async fn meet_none_doubted(
        &self,
        engine: &Engine,
        job: &Job<'_>,
    ) -> Result<(), Outcome<'static>> {
        let key = job.command.key();
        let up_to = self.doubts.up_to(placement::slot(key));
        for (space, key) in super::places(job) {
            let kept = |why| refused(job.command, Unconfirmed::Kept(why));
            if job.command.is_write() {
                engine.hide_copy(space, key, up_to).await.map_err(kept)?;
                continue;
            }
            let newest = engine.newest(space, key).await.map_err(kept)?;
            if newest.is_some_and(|newest| newest <= up_to) {
                return Err(Outcome::Miss);
            }
        }
        Ok(())
    }
}
