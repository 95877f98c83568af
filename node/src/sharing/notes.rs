//! The state of a member that has not copied all its slots, for its next start: the map that it
//! applied, and the [sources](super::holdings) of each slot, in a file.
//!
//! The member writes it before it applies a map. So after a restart it asks all sources that it had
//! to ask, and knows which failed or were removed meanwhile. The file may name a member that is no
//! source any more, which is then asked once more. From the map follow the earlier owners of the
//! slots that a later map gives to the member, also where the member heard of it just before its
//! end.
//!
//! [Missing](super::missing) members are in a file of their own: versions that do not know this
//! file go on with that file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use fonn_forward::{Member, MemberState, Topology};
use fonn_proto::peer::SlotSet;
use fonn_proto::placement::{Placed, SLOT_COUNT, Table};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Sharing;
use super::holdings::{BySource, Holdings};
use super::missing::{Missing, hex, parse, read, replace};

const FILE: &str = "sources";
const LAYOUT: u32 = 1;

/// What is noted, and where.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// The directory, if they outlive the process.
    dir: OnceLock<PathBuf>,
    /// The map that was gone by before the start.
    before: OnceLock<Topology>,
    /// Of which map the file is, and the sources in it.
    saved: Mutex<Option<(u64, BySource)>>,
}

impl Notes {
    /// The map that was gone by before the start, if it is known.
    pub(super) fn before(&self) -> Option<&Topology> {
        self.before.get()
    }

    /// Whether anything is noted.
    pub(super) fn are_kept(&self) -> bool {
        self.dir.get().is_some()
    }

    /// Notes the sources by a map, if that is something else than before. Blocks on the disk.
    pub(super) fn save(&self, map: &Topology, sources: &BySource) {
        let Some(dir) = self.dir.get() else { return };
        let mut saved = self.saved.lock();
        let is_same = |(epoch, of): &(u64, BySource)| {
            *epoch > map.epoch() || *epoch == map.epoch() && of == sources
        };
        if saved.as_ref().is_some_and(is_same) {
            return;
        }
        match save(dir, map, sources) {
            Ok(()) => *saved = Some((map.epoch(), sources.clone())),
            // What is there says less, but nothing wrong.
            Err(error) => {
                tracing::warn!(%error, "cannot note the former owners of slots that are being copied: after a restart before that is done, older copies may show");
            }
        }
    }
}

impl Sharing {
    /// Notes in `dir` what a restart has to know, and goes on with what was noted there. To be
    /// called before it goes by any map. Blocks on the disk.
    pub fn note_in(&self, dir: &Path) {
        if self.notes.dir.set(dir.to_owned()).is_err() {
            return;
        }
        if let Some(noted) = load(dir) {
            let (epoch, map) = (noted.epoch, noted.map.as_ref());
            let holdings = Holdings::of_sources(epoch, map, &self.own, &noted.sources);
            self.held.lock().holdings = holdings;
            if let Some(map) = noted.map {
                let _ = self.notes.before.set(map);
            }
            *self.notes.saved.lock() = Some((noted.epoch, noted.sources));
        }
        self.note_missing_in(dir);
    }

    /// Notes what is to be known of a map before it is gone by: what there was to do with slots
    /// before, and from now on, and the missing members. Blocks on the disk.
    pub(super) fn note(
        &self,
        map: &Topology,
        (before, holdings): (&Holdings, &Holdings),
        missing: &Missing,
    ) {
        if !self.notes.are_kept() {
            return;
        }
        let sources = holdings.sources();
        // A member that cannot be asked any more is a source until it is noted what is missing with
        // it.
        let serves = |id: &str| map.member(id).is_some_and(|it| it.state.is_serving());
        let lost = before.sources().into_iter();
        let lost = lost.filter(|((id, is_known), _)| !is_known && !serves(id));
        let mut all = sources.clone();
        all.extend(lost);
        self.notes.save(map, &all);
        if self.doubts.save(map, missing, false) {
            self.notes.save(map, &sources);
        }
    }

    /// Notes that all that `source` knows of the slots is here, if the map did not change since
    /// `generation`. Blocks on the disk.
    pub(super) fn note_without(&self, source: &str, slots: &SlotSet, generation: u64) {
        let (topology, mut holdings) = {
            let held = self.held.lock();
            if *self.changes.borrow() != generation {
                return;
            }
            (held.topology.clone(), held.holdings.clone())
        };
        for slot in (0..SLOT_COUNT).filter(|slot| slots.contains(*slot)) {
            holdings.settle(slot, source);
        }
        if let Some(topology) = topology {
            self.notes.save(&topology, &holdings.sources());
        }
    }
}

/// The file. A field that a later version adds is skipped by this version; what must not be has
/// another layout.
#[derive(Serialize, Deserialize)]
struct Stored {
    layout: u32,
    /// The map that was gone by.
    epoch: u64,
    replicas: usize,
    members: Vec<StoredMember>,
    sources: Vec<StoredSource>,
}

#[derive(Serialize, Deserialize)]
struct StoredMember {
    id: String,
    address: String,
    zone: String,
    weight: u32,
    share: u16,
    state: State,
}

#[derive(Serialize, Deserialize)]
struct StoredSource {
    member: String,
    /// As [`hex`] has them.
    slots: String,
    is_known: bool,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Joining,
    Active,
    Draining,
    Down,
}

impl From<MemberState> for State {
    fn from(state: MemberState) -> Self {
        match state {
            MemberState::Joining => Self::Joining,
            MemberState::Active => Self::Active,
            MemberState::Draining => Self::Draining,
            MemberState::Down => Self::Down,
        }
    }
}

impl From<State> for MemberState {
    fn from(state: State) -> Self {
        match state {
            State::Joining => Self::Joining,
            State::Active => Self::Active,
            State::Draining => Self::Draining,
            State::Down => Self::Down,
        }
    }
}

/// What was in a file.
pub(super) struct Noted {
    epoch: u64,
    /// None if its owners cannot be told.
    map: Option<Topology>,
    pub(super) sources: BySource,
}

fn save(dir: &Path, map: &Topology, sources: &BySource) -> io::Result<()> {
    let members = map.members().iter().map(|member| StoredMember {
        id: member.id.clone(),
        address: member.address.clone(),
        zone: member.zone.clone(),
        weight: member.weight,
        share: u16::try_from(member.share).unwrap_or(u16::MAX),
        state: member.state.into(),
    });
    let sources = sources.iter().map(|((id, is_known), slots)| StoredSource {
        member: id.to_string(),
        slots: hex(slots),
        is_known: *is_known,
    });
    let stored = Stored {
        layout: LAYOUT,
        epoch: map.epoch(),
        // A slot has as many as there are, where there are fewer.
        replicas: map.positions(0).len(),
        members: members.collect(),
        sources: sources.collect(),
    };
    replace(dir, FILE, &serde_json::to_vec(&stored)?)
}

/// Loads what was noted; None if there is nothing that can be understood.
pub(super) fn load(dir: &Path) -> Option<Noted> {
    let stored: Stored = read(dir, FILE).filter(|it: &Stored| it.layout == LAYOUT)?;
    let mut sources = BySource::new();
    for source in &stored.sources {
        let of = (Arc::from(&*source.member), source.is_known);
        sources.insert(of, parse(&source.slots)?);
    }
    Some(Noted {
        epoch: stored.epoch,
        map: topology(stored),
        sources,
    })
}

/// The owners are what they were: all members compute the same ones.
fn topology(stored: Stored) -> Option<Topology> {
    let placed = stored.members.iter().map(|member| Placed {
        id: &member.id,
        zone: &member.zone,
        weight: member.share,
    });
    let placed: Vec<Placed<'_>> = placed.collect();
    let table = Table::new(&placed, stored.replicas)?;
    let owners = (0..SLOT_COUNT).map(|slot| table.owners(slot)).collect();
    let members = stored.members.into_iter().map(|member| Member {
        id: member.id,
        address: member.address,
        cluster_address: String::new(),
        zone: member.zone,
        weight: member.weight,
        share: u32::from(member.share),
        state: member.state.into(),
    });
    Topology::new(stored.epoch, members.collect(), owners).ok()
}

#[cfg(test)]
mod tests;
