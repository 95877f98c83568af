//! Copies that a member has kept of a slot that was another one's for a while.
//!
//! Whoever hands a slot over keeps its copies, until they are evicted. If the new owner falls, and this member stands in for
//! it, nobody can say which of them it had overwritten: they are not shown, so that a read is a miss and nothing older than
//! what was acknowledged. What is written from then on is shown. With a bucket it is as that has it: the copies there may be
//! older too, by the spill window.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fonn_proto::placement::SLOT_COUNT;
use fonn_proto::{Failure, Version, placement};
use fonn_runtime::hlc::Hlc;
use fonn_runtime::route::Topology;

use super::Sharing;
use super::holdings::{Holding, Part};
use crate::engine::Engine;
use crate::entry::Space;

/// What is doubted of each slot.
#[derive(Debug)]
pub(super) struct Doubts {
    /// Tells the versions up to which there are copies; without it nothing is doubted.
    versions: OnceLock<Arc<Hlc>>,
    slots: Box<[Slot]>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The newest version by the time at which the slot was lost.
    lost: AtomicU64,
    /// Copies up to this one are doubted; 0 for none.
    doubted: AtomicU64,
}

impl Default for Doubts {
    fn default() -> Self {
        Self {
            versions: OnceLock::new(),
            slots: (0..SLOT_COUNT).map(|_| Slot::default()).collect(),
        }
    }
}

impl Doubts {
    fn slot(&self, slot: u16) -> Option<&Slot> {
        self.slots.get(usize::from(slot))
    }

    /// The version up to which copies of a slot are doubted; 0 if none are.
    pub(super) fn up_to(&self, slot: u16) -> Version {
        let slot = self.slot(slot);
        slot.map_or(0, |slot| slot.doubted.load(Ordering::Acquire))
    }

    /// Notes what a map makes of a slot. `old` is the one before, where there was one.
    pub(super) fn follow(
        &self,
        slot: u16,
        (before, next): (Part, Part),
        old: Option<&Topology>,
        new: &Topology,
    ) {
        let (Some(versions), Some(doubts)) = (self.versions.get(), self.slot(slot)) else {
            return;
        };
        if next != Part::Primary {
            doubts.doubted.store(0, Ordering::Release);
        }
        match (before, next) {
            (_, Part::None) if before != Part::None || old.is_none() => {
                doubts.lost.store(versions.newest(), Ordering::Release);
            }
            (Part::None, Part::Primary) => {
                let first = |map: &Topology| {
                    let mut owners = map.owners(slot).filter(|it| it.state.is_serving());
                    owners.next().map(|owner| owner.id.clone())
                };
                let gone = old.and_then(first).filter(|id| {
                    let is_now = new.member(id);
                    !is_now.is_some_and(|member| member.state.is_serving())
                });
                if gone.is_some() {
                    let lost = doubts.lost.load(Ordering::Acquire);
                    doubts.doubted.store(lost, Ordering::Release);
                }
            }
            _ => {}
        }
    }
}

impl Sharing {
    /// Doubts, from now on, what an engine without a bucket has kept of slots that were others'.
    pub fn doubt_by(&self, engine: &Engine) {
        if engine.cold().is_none() {
            let _ = self.doubts.versions.set(engine.versions());
        }
    }

    /// Notes what a map makes of the slots.
    pub(super) fn follow_doubts<'a>(
        &self,
        before: impl Iterator<Item = (u16, &'a Holding)>,
        next: impl Iterator<Item = (u16, &'a Holding)>,
        old: Option<&Topology>,
        new: &Topology,
    ) {
        for ((slot, before), (_, next)) in before.zip(next) {
            self.doubts.follow(slot, (before.part, next.part), old, new);
        }
    }

    /// Hides the copy of a key that is doubted, if there is one.
    pub(super) async fn hide_doubted(
        &self,
        engine: &Engine,
        space: Space,
        key: &[u8],
    ) -> Result<(), Failure> {
        match self.doubts.up_to(placement::slot(key)) {
            0 => Ok(()),
            up_to => engine.hide_copy(space, key, up_to).await,
        }
    }
}
